//! Groups: bitmaps and counts against what was found.

use super::state::{Checker, DT_DIR};
use crate::layout::Fields;
use crate::layout::group::Group;
use crate::layout::superblock::{Counts, ROOT, SUMMARY_BYTES};
use ivers_vfs::Result;
use ivers_vfs::check::{Place, Runs, run_is};

/// Free space and inodes of a group, as they must be.
#[derive(Default)]
struct Expected {
    counts: Counts,
    /// Runs of free fragments in blocks that are partly in use, by length.
    fragment_runs: [u32; 8],
    /// Runs of free blocks by length; longer ones are counted with the longest.
    clusters: [u32; 17],
}

impl Checker {
    /// Compares all groups, the summary area, and the counts of the superblock.
    pub(super) fn check_groups(&mut self) -> Result<()> {
        let frags = self.sb.summary_frags();
        let summary = self.reader.read(self.sb.summary_start, frags)?;
        let mut total = Counts::default();
        for group in 0..self.sb.groups {
            let expected = self.expected(group);
            let place = Place::group(group);
            let descriptor = self.reader.read_block(self.sb.structure(group, 1))?;
            match Group::parse(&descriptor, &self.sb, group) {
                Ok(parsed) => self.check_group(group, &parsed, &expected),
                Err(what) => {
                    let place = place.clone().at(self.sb.structure(group, 1));
                    self.bad("group-invalid", place, what);
                }
            }
            let fields = Fields::new(&summary, self.sb.order);
            let stored = Counts::parse(&fields, (u64::from(group) * SUMMARY_BYTES) as usize);
            if stored != expected.counts {
                let what = format!("the summary area has {stored}; the group has {}", expected.counts);
                self.bad("summary-wrong", place, what);
            }
            total = total.plus(&expected.counts);
        }
        let stored = self.sb.total;
        for (code, name, stored, found) in [
            ("directories-count-wrong", "directories", stored.dirs, total.dirs),
            ("free-blocks-count-wrong", "free blocks", stored.free_blocks, total.free_blocks),
            ("free-inodes-count-wrong", "free inodes", stored.free_inodes, total.free_inodes),
            ("free-fragments-count-wrong", "free fragments", stored.free_frags, total.free_frags),
        ] {
            if stored != found {
                let what = format!("the superblock has {stored} {name}, the groups have {found}");
                self.bad(code, Place::filesystem(), what);
            }
        }
        Ok(())
    }

    /// Counts what is free in a group.
    fn expected(&self, group: u32) -> Expected {
        let mut expected = Expected::default();
        let (base, frags) = (self.sb.group_base(group), self.sb.group_frags(group));
        let per_block = u64::from(self.sb.frags_per_block);
        let longest = self.sb.cluster_lengths;
        let mut cluster = 0;
        let mut end_cluster = |cluster: &mut u32| {
            expected.clusters[(*cluster).min(longest) as usize] += 1;
            *cluster = 0;
        };
        for block in (0..frags).step_by(per_block as usize) {
            // What is past the end of the filesystem is not free.
            let is_free = |nth: u64| block + nth < frags && !self.owned.get(base + block + nth);
            let free = (0..per_block).filter(|&nth| is_free(nth)).count() as u64;
            if free == per_block {
                expected.counts.free_blocks += 1;
                cluster += 1;
                continue;
            }
            end_cluster(&mut cluster);
            expected.counts.free_frags += free;
            let mut run = 0;
            for nth in 0..=per_block {
                if nth < per_block && is_free(nth) {
                    run += 1;
                } else {
                    expected.fragment_runs[run] += 1;
                    run = 0;
                }
            }
        }
        end_cluster(&mut cluster);
        let inodes = self.inodes[group as usize].as_deref().unwrap_or_default();
        let used = inodes.iter().filter(|seen| seen.kind != 0).count() as u64;
        // Inodes 0 and 1 are never used, and not free.
        let reserved = if group == 0 { u64::from(ROOT) } else { 0 };
        expected.counts.free_inodes = u64::from(self.sb.inodes_per_group) - used - reserved;
        expected.counts.dirs = inodes.iter().filter(|seen| seen.kind == DT_DIR).count() as u64;
        expected
    }

    fn check_group(&mut self, group: u32, stored: &Group<'_>, expected: &Expected) {
        let base = self.sb.group_base(group);
        let (mut free_in_use, mut lost) = (Runs::default(), Runs::default());
        for nth in 0..self.sb.group_frags(group) {
            let fragment = base + nth;
            let ended = match (stored.is_frag_free(nth), self.owned.get(fragment)) {
                (true, true) => free_in_use.push(fragment).map(|run| (FREE_IN_USE, run)),
                (false, false) => lost.push(fragment).map(|run| (LOST, run)),
                _ => None,
            };
            ended.into_iter().for_each(|(kind, run)| self.bad_fragments(group, kind, run));
        }
        free_in_use.finish().into_iter().for_each(|run| self.bad_fragments(group, FREE_IN_USE, run));
        lost.finish().into_iter().for_each(|run| self.bad_fragments(group, LOST, run));
        let first = group * self.sb.inodes_per_group;
        for nth in 0..self.sb.inodes_per_group {
            let ino = first + nth;
            let is_used = ino < ROOT || self.seen(ino).is_some_and(|seen| seen.kind != 0);
            match (is_used, stored.is_inode_used(nth)) {
                (true, false) => {
                    let what = "the inode is in use, but marked as free";
                    self.bad("inode-in-use-marked-free", Place::inode(ino), what);
                }
                (false, true) => {
                    let what = format!("inode {ino} is free, but marked as used");
                    self.bad("inode-lost", Place::group(group), what);
                }
                _ => {}
            }
        }
        self.check_counts(group, stored, expected);
    }

    fn bad_fragments(&mut self, group: u32, (code, what): (&'static str, &str), (first, last): (u64, u64)) {
        let what = format!("{} {what}", run_is("fragment", first, last));
        self.bad(code, Place::group(group).at(first), what);
    }

    fn check_counts(&mut self, group: u32, stored: &Group<'_>, expected: &Expected) {
        let (has, must) = (stored.counts, expected.counts);
        for (code, name, has, must) in [
            ("group-free-blocks-wrong", "free blocks", has.free_blocks, must.free_blocks),
            ("group-free-fragments-wrong", "free fragments", has.free_frags, must.free_frags),
            ("group-free-inodes-wrong", "free inodes", has.free_inodes, must.free_inodes),
            ("group-directories-wrong", "directories", has.dirs, must.dirs),
        ] {
            if has != must {
                self.bad(code, Place::group(group), format!("the group counts {has} {name}, it has {must}"));
            }
        }
        for length in 1..self.sb.frags_per_block as usize {
            let (has, must) = (stored.fragment_runs(length), expected.fragment_runs[length]);
            if has != must {
                let what = format!("the group counts {has} runs of {length} free fragments, it has {must}");
                self.bad("fragment-runs-wrong", Place::group(group), what);
            }
        }
        for length in 1..=self.sb.cluster_lengths {
            let (has, must) = (stored.clusters_of(length), expected.clusters[length as usize]);
            if let Some(has) = has.filter(|&has| has != must) {
                let what = format!("the group counts {has} clusters of {length} free blocks, it has {must}");
                self.bad("cluster-counts-wrong", Place::group(group), what);
            }
        }
        let (base, per_block) = (self.sb.group_base(group), u64::from(self.sb.frags_per_block));
        for block in 0..self.sb.group_frags(group) / per_block {
            let start = base + block * per_block;
            let is_free = self.owned.find(start, per_block, true).is_none();
            if stored.is_block_free(block).is_some_and(|marked| marked != is_free) {
                let what = "the map of clusters is wrong";
                self.bad("cluster-map-wrong", Place::group(group).at(start), what);
            }
        }
    }
}

/// The codes of wrong bits, and what follows the fragments in their text.
const FREE_IN_USE: (&str, &str) = ("block-in-use-marked-free", "in use and marked as free");
const LOST: (&str, &str) = ("block-lost", "marked as used and have no owner");
