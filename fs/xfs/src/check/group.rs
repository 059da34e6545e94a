//! Allocation groups: their heads, free lists and B-trees.

use super::state::Checker;
use super::superblock::counts_lazily;
use super::tree::{TreeKind, Walk};
use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGFL, MAGIC_AGI, NULL_AGINO, number, read};
use crate::layout::checksum::{AGF, AGFL, AGI, SelfDescription};
use crate::layout::features::RoCompat;
use crate::layout::owner::Owner;
use crate::layout::raw::{RawAgf, RawAgfl, RawAgi};
use ivers_block::ByteOffset;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::mem::size_of;

/// Sectors with the heads of a group: superblock, AGF, AGI, AGFL.
const HEAD_SECTORS: u32 = 4;

impl Checker {
    pub(super) fn check_groups(&mut self) -> Result<()> {
        for ag in 0..self.sb.ag_count {
            self.check_heads(ag)?;
        }
        self.claim_log();
        for ag in 0..self.sb.ag_count {
            self.check_group_trees(ag)?;
            self.charge(0)?;
        }
        Ok(())
    }

    fn sector(&self, ag: u32, number: u32) -> Result<Vec<u8>> {
        let size = self.sb.sector_size;
        let start = u64::from(ag) * u64::from(self.sb.ag_blocks) * u64::from(self.sb.block_size);
        let mut bytes = vec![0; size as usize];
        self.dev.read_at(ByteOffset(start + u64::from(number * size)), &mut bytes)?;
        Ok(bytes)
    }

    /// Claims the heads of a group, and checks and keeps them.
    fn check_heads(&mut self, ag: u32) -> Result<()> {
        let blocks = (HEAD_SECTORS * self.sb.sector_size).div_ceil(self.sb.block_size);
        let place = Place::group(ag);
        if self.sb.ag_len(ag) < 2 * blocks {
            self.bad("group-too-small", place, "the group is too small for its heads");
            return Ok(());
        }
        let start = u64::from(ag) * u64::from(self.sb.ag_blocks);
        self.claim(start, blocks.into(), Owner::HEADS, &place, "a head of a group");
        let copy = self.sector(ag, 0)?;
        self.check_copy(ag, &copy);
        let agf = self.sector(ag, 1)?;
        self.check_agf(ag, &agf);
        let agi = self.sector(ag, 2)?;
        self.check_agi(ag, &agi);
        Ok(())
    }

    /// Checks what the heads have in common. Returns whether they can be used.
    fn check_head(
        &mut self,
        ag: u32,
        (name, code): (&str, &'static str),
        kind: &SelfDescription,
        sector: &[u8],
        magic: u32,
    ) -> bool {
        let place = Place::group(ag);
        if number(sector, 0, 4) != Some(magic.into()) {
            self.bad(code, place, format!("the {name} has no magic"));
            return false;
        }
        self.check_identity(sector, kind, &format!("the {name}"), &place, 0);
        true
    }

    fn check_agf(&mut self, ag: u32, sector: &[u8]) {
        let names = ("AGF", "agf-field-wrong");
        let Some(raw) = read::<RawAgf>(sector, 0) else { return };
        if !self.check_head(ag, names, &AGF, sector, MAGIC_AGF) {
            return;
        }
        let slots = self.free_list_slots();
        let (first, last, count) = (raw.agf_flfirst.get(), raw.agf_fllast.get(), raw.agf_flcount.get());
        let in_list = first < slots && last < slots;
        let listed = if in_list { (last + slots + 1 - first) % slots } else { 0 };
        let len = self.sb.ag_len(ag);
        let wrong = [
            (raw.agf_versionnum.get() != 1, "agf_versionnum", raw.agf_versionnum.get()),
            (raw.agf_seqno.get() != ag, "agf_seqno", raw.agf_seqno.get()),
            (raw.agf_length.get() != len, "agf_length", raw.agf_length.get()),
            (first >= slots, "agf_flfirst", first),
            (last >= slots, "agf_fllast", last),
            (count > slots || (in_list && listed != count % slots), "agf_flcount", count),
        ];
        for (_, name, value) in wrong.into_iter().filter(|(is_wrong, ..)| *is_wrong) {
            self.bad(names.1, Place::group(ag), format!("{name} is {value}, which is impossible"));
        }
        self.groups[ag as usize].agf = Some(raw);
    }

    fn check_agi(&mut self, ag: u32, sector: &[u8]) {
        let names = ("AGI", "agi-field-wrong");
        let Some(raw) = read::<RawAgi>(sector, 0) else { return };
        if !self.check_head(ag, names, &AGI, sector, MAGIC_AGI) {
            return;
        }
        let len = self.sb.ag_len(ag);
        let (newest, dir) = (raw.agi_newino.get(), raw.agi_dirino.get());
        let in_group = newest == NULL_AGINO || newest >> self.sb.inopb_bits < len;
        let wrong = [
            (raw.agi_versionnum.get() != 1, "agi_versionnum", raw.agi_versionnum.get()),
            (raw.agi_seqno.get() != ag, "agi_seqno", raw.agi_seqno.get()),
            (raw.agi_length.get() != len, "agi_length", raw.agi_length.get()),
            (!in_group, "agi_newino", newest),
            (dir != NULL_AGINO, "agi_dirino", dir),
        ];
        for (_, name, value) in wrong.into_iter().filter(|(is_wrong, ..)| *is_wrong) {
            self.bad(names.1, Place::group(ag), format!("{name} is {value}, which is impossible"));
        }
        self.groups[ag as usize].agi = Some(raw);
    }

    fn free_list_slots(&self) -> u32 {
        let header = if self.sb.is_v5() { size_of::<RawAgfl>() } else { 0 };
        (self.sb.sector_size - header as u32) / 4
    }

    fn claim_log(&mut self) {
        let (start, len) = (self.sb.log_start, u64::from(self.sb.log_blocks));
        if let Some(first) = self.sb.run(start, len) {
            self.claim(first.0, len, Owner::LOG, &Place::block(first.0), "the log");
        }
    }

    /// Checks the free list of a group, and claims its blocks.
    fn check_free_list(&mut self, ag: u32, agf: &RawAgf) -> Result<()> {
        let sector = self.sector(ag, 3)?;
        let slots = self.free_list_slots();
        let header = if self.sb.is_v5() { size_of::<RawAgfl>() } else { 0 };
        if self.sb.is_v5() {
            let names = ("AGFL", "agfl-invalid");
            let Some(raw) = read::<RawAgfl>(&sector, 0) else { return Ok(()) };
            if !self.check_head(ag, names, &AGFL, &sector, MAGIC_AGFL) {
                self.maps_unsound = true;
                return Ok(());
            }
            if raw.agfl_seqno.get() != ag {
                let what = format!("agfl_seqno is {}, which is impossible", raw.agfl_seqno.get());
                self.bad(names.1, Place::group(ag), what);
            }
        }
        let (first, count) = (agf.agf_flfirst.get(), agf.agf_flcount.get());
        if first >= slots || count > slots {
            self.maps_unsound = true;
            return Ok(());
        }
        for index in 0..count {
            let at = header + ((first + index) % slots * 4) as usize;
            let block = number(&sector, at, 4).unwrap_or(0) as u32;
            match self.sb.ag_block(ag, block) {
                Some(at) => {
                    let place = Place::group(ag).at(at.0);
                    self.claim(at.0, 1, Owner::SPACE, &place, "a block of the free list");
                }
                None => {
                    let what = format!("the free list refers to block {block}");
                    self.bad("block-out-of-range", Place::group(ag), what);
                }
            }
        }
        Ok(())
    }

    /// Walks the B-trees of a group.
    fn check_group_trees(&mut self, ag: u32) -> Result<()> {
        let (agf, agi) = (self.groups[ag as usize].agf.clone(), self.groups[ag as usize].agi.clone());
        match &agf {
            Some(agf) => {
                self.check_free_list(ag, agf)?;
                let tree_blocks = self.check_free_space(ag, agf)?;
                let (rmap_blocks, rmap_sound) = self.read_reverse_map(ag, agf)?;
                let fields = tree_blocks.zip(rmap_sound.then_some(rmap_blocks));
                if let Some((space, rmap)) = fields.filter(|_| counts_lazily(&self.sb)) {
                    self.check_count(
                        ag,
                        "agf_btreeblks",
                        agf.agf_btreeblks.get(),
                        space + rmap.saturating_sub(1),
                    );
                }
                if rmap_sound && self.has_rmap() {
                    self.check_count(ag, "agf_rmap_blocks", agf.agf_rmap_blocks.get(), rmap_blocks);
                }
                if self.sb.ro_compat.contains(RoCompat::REFLINK) {
                    self.read_refcounts(ag, agf)?;
                }
            }
            None => self.maps_unsound = true,
        }
        match &agi {
            Some(agi) => self.check_inode_trees(ag, agi)?,
            None => (self.maps_unsound, self.names_unsound) = (true, true),
        }
        Ok(())
    }

    /// Compares a count of a group's head with what was counted.
    pub(super) fn check_count(&mut self, ag: u32, name: &str, stored: u32, counted: u64) {
        if u64::from(stored) != counted {
            let what = format!("{name} is {stored}, counted {counted}");
            self.bad("group-count-wrong", Place::group(ag), what);
        }
    }

    /// Walks the two B-trees of free space, and returns their blocks without the roots, if both could be
    /// read.
    fn check_free_space(&mut self, ag: u32, agf: &RawAgf) -> Result<Option<u64>> {
        let (mut records, mut blocks, mut longest, mut end) = (0u64, 0u64, 0u64, 0u64);
        let len = u64::from(self.sb.ag_len(ag));
        let base = u64::from(ag) * u64::from(self.sb.ag_blocks);
        let extent = |record: &[u8]| {
            let field = |at| number(record, at, 4).unwrap_or(0);
            (field(0), field(4))
        };
        let mut by_block = |checker: &mut Checker, record: &[u8]| {
            let (start, count) = extent(record);
            let place = Place::group(ag).at(base + start.min(len));
            if count == 0 || start + count > len {
                let what = format!("free space has {count} blocks at {start} of the group");
                checker.bad("free-space-invalid", place, what);
                return Ok(());
            }
            if records > 0 && start <= end {
                let what = "free extents overlap or are not joined";
                checker.bad("free-space-invalid", place, what);
            }
            (records, blocks, longest, end) =
                (records + 1, blocks + count, longest.max(count), start + count);
            checker.free.set_run(base + start, count);
            Ok(())
        };
        let mut walk = Walk::of_group(TreeKind::FreeByBlock, ag, Owner::SPACE, &mut by_block);
        walk.walk(self, agf.agf_roots[0].get(), agf.agf_levels[0].get())?;
        let (sound, first_blocks) = (walk.sound, walk.blocks());
        self.groups[ag as usize].space_sound = sound;
        let (mut sized, mut wrong) = (0u64, 0u64);
        let mut by_size = |checker: &mut Checker, record: &[u8]| {
            let (start, count) = extent(record);
            sized += 1;
            let inside = count > 0 && start + count <= len;
            let same = inside
                && checker.free.find(base + start, count, false).is_none()
                && (start == 0 || checker.free.find(base + start - 1, 1, true).is_none())
                && (start + count == len || checker.free.find(base + start + count, 1, true).is_none());
            if !same && sound {
                wrong += 1;
                let what = format!(
                    "free space by size has {count} blocks at {start} of the group, free space \
                                    by block has not"
                );
                let place = Place::group(ag).at(base + start.min(len - 1));
                checker.bad("free-space-trees-differ", place, what);
            }
            Ok(())
        };
        let mut walk = Walk::of_group(TreeKind::FreeBySize, ag, Owner::SPACE, &mut by_size);
        walk.walk(self, agf.agf_roots[1].get(), agf.agf_levels[1].get())?;
        let (both, second_blocks) = (sound && walk.sound, walk.blocks());
        self.maps_unsound |= !both;
        if both && sized != records && wrong == 0 {
            let what = format!("free space by block has {records} extents, free space by size {sized}");
            self.bad("free-space-trees-differ", Place::group(ag), what);
        }
        if sound {
            self.check_count(ag, "agf_freeblks", agf.agf_freeblks.get(), blocks);
            self.check_count(ag, "agf_longest", agf.agf_longest.get(), longest);
        }
        Ok(both.then(|| (first_blocks + second_blocks).saturating_sub(2)))
    }
}
