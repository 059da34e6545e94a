//! Free space against owners, and the counts of the superblock.

use super::state::Checker;
use super::superblock::counts_lazily;
use ivers_vfs::check::{Place, Runs, run_is};

/// Blocks that are compared at a time.
const STEP: u64 = 1 << 15;

impl Checker {
    /// Compares free space with what has an owner: each block is one of both.
    pub(super) fn check_space(&mut self) {
        if self.maps_unsound {
            self.found.note("lost blocks are not reported: not all owners of blocks are known");
        }
        for ag in 0..self.sb.ag_count {
            if !self.groups[ag as usize].space_sound {
                continue;
            }
            let (base, len) = (u64::from(ag) * u64::from(self.sb.ag_blocks), u64::from(self.sb.ag_len(ag)));
            let (mut both, mut neither) = (Runs::default(), Runs::default());
            let mut at = base;
            while at < base + len {
                let count = STEP.min(base + len - at);
                let (claimed, free) = (self.claimed.bytes(at, count), self.free.bytes(at, count));
                let differing = claimed.iter().zip(&free).enumerate().filter(|(_, (a, b))| **a ^ **b != 0xFF);
                for (byte, (claimed, free)) in differing {
                    for bit in (0..8).filter(|bit| (claimed ^ free) >> bit & 1 == 0) {
                        let block = at + byte as u64 * 8 + bit;
                        if block >= at + count {
                            continue;
                        }
                        let run = if claimed >> bit & 1 == 1 {
                            both.push(block).map(|run| (run, true))
                        } else {
                            neither.push(block).map(|run| (run, false))
                        };
                        if let Some((run, is_claimed)) = run {
                            self.report_space(ag, run, is_claimed);
                        }
                    }
                }
                at += count;
            }
            if let Some(run) = both.finish() {
                self.report_space(ag, run, true);
            }
            if let Some(run) = neither.finish() {
                self.report_space(ag, run, false);
            }
        }
    }

    fn report_space(&mut self, ag: u32, (first, last): (u64, u64), is_claimed: bool) {
        let place = Place::group(ag).at(first);
        let run = run_is("block", first, last);
        if is_claimed {
            self.bad(
                "block-in-use-marked-free",
                place,
                format!("{run} in use and in the B-tree of free space"),
            );
        } else if !self.maps_unsound && self.pending.find(first, last - first + 1, true).is_none() {
            self.bad("block-lost", place, format!("{run} not free and without an owner"));
        }
    }

    /// Compares the counts of the superblock with the sums of the groups.
    pub(super) fn check_counts(&mut self) {
        if self.copies > 0 {
            self.found.note(format!("{} blocks for copy on write: the next mount frees them", self.copies));
        }
        if self.stale_counts {
            return;
        }
        let lazy = counts_lazily(&self.sb);
        let (mut inodes, mut free_inodes, mut free_blocks) = (0u64, 0u64, 0u64);
        for group in &self.groups {
            let (Some(agf), Some(agi)) = (&group.agf, &group.agi) else { return };
            inodes += u64::from(agi.agi_count.get());
            free_inodes += u64::from(agi.agi_freecount.get());
            free_blocks += u64::from(agf.agf_freeblks.get()) + u64::from(agf.agf_flcount.get());
            free_blocks += if lazy { agf.agf_btreeblks.get().into() } else { 0 };
        }
        let raw = &self.raw;
        let counts = [
            ("inodes-count-wrong", "sb_icount", raw.sb_icount.get(), inodes),
            ("free-inodes-count-wrong", "sb_ifree", raw.sb_ifree.get(), free_inodes),
            ("free-blocks-count-wrong", "sb_fdblocks", raw.sb_fdblocks.get(), free_blocks),
        ];
        for (code, name, stored, counted) in
            counts.into_iter().filter(|(.., stored, counted)| stored != counted)
        {
            self.bad(code, Place::filesystem(), format!("{name} is {stored}, the groups have {counted}"));
        }
    }
}
