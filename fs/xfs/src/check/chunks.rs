//! Chunks of inodes: the inode B-tree, and that of free inodes.

use super::state::{Checker, Chunk};
use super::tree::{TreeKind, Walk};
use crate::layout::chunk::{CHUNK_INODES, InodeChunk};
use crate::layout::features::{Incompat, RoCompat, Version};
use crate::layout::owner::Owner;
use crate::layout::raw::RawAgi;
use ivers_vfs::Result;
use ivers_vfs::check::Place;

impl Checker {
    /// Walks the inode B-trees of a group.
    pub(super) fn check_inode_trees(&mut self, ag: u32, agi: &RawAgi) -> Result<()> {
        let sparse = self.sb.incompat.contains(Incompat::SPARSE);
        let (mut end, mut last_block, mut inodes, mut free) = (0u32, u64::MAX, 0u64, 0u64);
        let mut with_free = 0u64;
        let mut visit = |checker: &mut Checker, bytes: &[u8]| {
            let record = InodeChunk::decode(bytes, sparse);
            let place = Place::group(ag);
            let ino = checker.sb.ino(ag, record.first);
            if record.first < end || !checker.is_chunk_start(ag, &record) {
                let what = format!("a chunk of inodes starts at inode {} of the group", record.first);
                checker.bad("inode-chunk-invalid", Place { inode: Some(ino), ..place }, what);
                checker.maps_unsound = true;
                return Ok(());
            }
            if let Some(what) = record.contradiction() {
                checker.bad("inode-chunk-invalid", Place { inode: Some(ino), ..place.clone() }, what);
            }
            end = record.first.saturating_add(CHUNK_INODES as u32);
            inodes += CHUNK_INODES - u64::from(record.holes.count_ones());
            let free_here = u64::from((record.free & !record.holes).count_ones());
            free += free_here;
            with_free += u64::from(free_here > 0);
            checker.claim_chunk(ag, &record, &mut last_block);
            let parents = checker.has_parents().then(|| Box::new([0; 64]));
            let (kinds, links, names) = ([0; 64], [0; 64], [0; 64]);
            let InodeChunk { free, holes, .. } = record;
            checker.chunks.insert(ino, Chunk { free, holes, kinds, links, names, parents });
            if checker.chunks.len().is_multiple_of(1024) { checker.charge(0) } else { Ok(()) }
        };
        let mut walk = Walk::of_group(TreeKind::Inodes, ag, Owner::INODE_TREE, &mut visit);
        walk.walk(self, agi.agi_root.get(), agi.agi_level.get())?;
        let (sound, blocks) = (walk.sound, walk.blocks());
        self.groups[ag as usize].inodes_sound = sound;
        if sound {
            self.check_count(ag, "agi_count", agi.agi_count.get(), inodes);
            self.check_count(ag, "agi_freecount", agi.agi_freecount.get(), free);
        } else {
            (self.maps_unsound, self.names_unsound) = (true, true);
        }
        let counted = self.sb.ro_compat.contains(RoCompat::INOBTCNT);
        if sound && counted {
            self.check_count(ag, "agi_iblocks", agi.agi_iblocks.get(), blocks);
        }
        if self.sb.ro_compat.contains(RoCompat::FINOBT) {
            let expected = sound.then_some(with_free);
            let blocks = self.check_free_inodes(ag, agi, expected, sparse)?;
            if let Some(blocks) = blocks.filter(|_| counted) {
                self.check_count(ag, "agi_fblocks", agi.agi_fblocks.get(), blocks);
            }
        }
        Ok(())
    }

    fn check_free_inodes(
        &mut self,
        ag: u32,
        agi: &RawAgi,
        expected: Option<u64>,
        sparse: bool,
    ) -> Result<Option<u64>> {
        let (mut records, mut wrong) = (0u64, false);
        let mut visit = |checker: &mut Checker, bytes: &[u8]| {
            let record = InodeChunk::decode(bytes, sparse);
            let ino = checker.sb.ino(ag, record.first);
            records += 1;
            let chunk = checker.chunks.get(&ino);
            let same = chunk.is_some_and(|chunk| {
                (chunk.free, chunk.holes) == (record.free, record.holes)
                    && record.contradiction().is_none()
                    && record.free_count > 0
            });
            if !same && expected.is_some() {
                wrong = true;
                let what = "the B-tree of free inodes differs from the inode B-tree";
                checker.bad("free-inodes-tree-wrong", Place { inode: Some(ino), ..Place::group(ag) }, what);
            }
            Ok(())
        };
        let mut walk = Walk::of_group(TreeKind::FreeInodes, ag, Owner::INODE_TREE, &mut visit);
        walk.walk(self, agi.agi_free_root.get(), agi.agi_free_level.get())?;
        let (sound, blocks) = (walk.sound, walk.blocks());
        if !sound {
            self.maps_unsound = true;
            return Ok(None);
        }
        if let Some(expected) = expected.filter(|expected| *expected != records && !wrong) {
            let what = format!("the B-tree of free inodes has {records} chunks, {expected} have free inodes");
            self.bad("free-inodes-tree-wrong", Place::group(ag), what);
        }
        Ok(Some(blocks))
    }

    /// Whether a chunk lies in its group and starts where one may.
    fn is_chunk_start(&self, ag: u32, record: &InodeChunk) -> bool {
        let per_block = 1u32 << self.sb.inopb_bits;
        let align = if self.sb.flags.contains(Version::ALIGN) { self.raw.sb_inoalignmt.get() } else { 0 };
        let whole = per_block.min(CHUNK_INODES as u32);
        let last = (0..64).rev().find(|bit| record.holes >> bit & 1 == 0).unwrap_or(0);
        let Some(last) = record.first.checked_add(last) else { return false };
        let block = record.first >> self.sb.inopb_bits;
        record.first.is_multiple_of(whole)
            && (align <= 1 || u64::from(per_block) >= CHUNK_INODES || block.is_multiple_of(align))
            && self.sb.ag_block(ag, last >> self.sb.inopb_bits).is_some()
    }

    /// Claims the blocks of a chunk; several chunks can share one.
    fn claim_chunk(&mut self, ag: u32, record: &InodeChunk, last_block: &mut u64) {
        let per_block = 1u32 << self.sb.inopb_bits;
        let in_block = per_block.min(CHUNK_INODES as u32);
        let part = if in_block == 64 { u64::MAX } else { (1 << in_block) - 1 };
        for first in (0..CHUNK_INODES as u32).step_by(in_block as usize) {
            let holes = record.holes >> first & part;
            let agino = record.first.saturating_add(first);
            let Some(block) = self.sb.ag_block(ag, agino >> self.sb.inopb_bits) else {
                continue;
            };
            let place = Place { inode: Some(self.sb.ino(ag, record.first)), ..Place::group(ag).at(block.0) };
            if holes == part {
                continue;
            }
            if holes != 0 {
                self.bad(
                    "inode-chunk-invalid",
                    place.clone(),
                    "a hole of a chunk of inodes is a part of a block",
                );
            }
            if *last_block != block.0 {
                self.claim(block.0, 1, Owner::INODES, &place, "a block of inodes");
                *last_block = block.0;
            }
        }
    }
}
