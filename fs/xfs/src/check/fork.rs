//! Forks of inodes: their extents, and the blocks that they own.

use super::state::{Checker, Slot};
use super::tree::Walk;
use crate::btree::MAX_LEVELS;
use crate::fork::Extent;
pub(super) use crate::fork::Which;
use crate::layout::bytes::{number, read};
use crate::layout::dinode::{FILE_BLOCKS_END, flags, flags2, format};
use crate::layout::features::Incompat;
use crate::layout::owner::{ATTRIBUTES, Owner, TREE, UNWRITTEN};
use crate::layout::raw::{RawBmdrBlock, RawDinode, V2_INODE_BYTES};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::mem::{offset_of, size_of};

impl Which {
    fn name(self) -> &'static str {
        match self {
            Self::Data => "the data fork",
            Self::Attributes => "the attribute fork",
        }
    }
}

/// What a walk of a fork counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    pub(super) extents: u64,
    /// Blocks, those of the extent B-tree included.
    pub(super) blocks: u64,
    /// Whether the whole map could be read.
    pub(super) sound: bool,
}

/// The blocks of a fork in the inode's memory: for directories, attributes and links.
pub(super) struct Mapped {
    pub(super) ino: u64,
    pub(super) extents: Vec<Extent>,
    /// Whether the whole map could be read.
    pub(super) sound: bool,
}

impl Mapped {
    /// The device blocks of a run of file blocks, if all are mapped.
    pub(super) fn blocks(&self, checker: &Checker, first: u64, count: u64) -> Option<Vec<u64>> {
        let mut blocks = Vec::new();
        for at in first..first.checked_add(count)? {
            let index = self.extents.partition_point(|extent| extent.file_block.0 <= at).checked_sub(1)?;
            let extent = self.extents.get(index)?;
            let skipped = at - extent.file_block.0;
            let start = checker.sb.run(extent.start, extent.len).filter(|_| skipped < extent.len)?;
            blocks.push(start.0 + skipped);
        }
        Some(blocks)
    }
}

impl Slot {
    fn literal(&self) -> &[u8] {
        let core = if self.raw.di_version == 3 { size_of::<RawDinode>() } else { V2_INODE_BYTES };
        self.bytes.get(core..).unwrap_or_default()
    }

    /// The bytes of a fork.
    pub(super) fn space(&self, which: Which) -> &[u8] {
        let literal = self.literal();
        let split = usize::from(self.raw.di_forkoff) * 8;
        let split = if split == 0 { literal.len() } else { split.min(literal.len()) };
        if which == Which::Data { &literal[..split] } else { &literal[split..] }
    }

    pub(super) fn literal_bytes(&self) -> usize {
        self.literal().len()
    }

    pub(super) fn format(&self, which: Which) -> u8 {
        if which == Which::Data { self.raw.di_format } else { self.raw.di_aformat }
    }

    pub(super) fn flags2(&self) -> u64 {
        if self.raw.di_version == 3 { self.raw.di_flags2.get() } else { 0 }
    }

    /// The stored number of extents of a fork.
    pub(super) fn extents(&self, which: Which) -> u64 {
        let large = self.flags2() & flags2::NREXT64 != 0;
        match (which, large) {
            (Which::Data, true) => number(&self.bytes, offset_of!(RawDinode, di_pad), 8).unwrap_or(0),
            (Which::Data, false) | (Which::Attributes, true) => self.raw.di_nextents.get().into(),
            (Which::Attributes, false) => self.raw.di_anextents.get().into(),
        }
    }

    pub(super) fn is_kind(&self, kind: u16) -> bool {
        self.raw.di_mode.get() & 0o170000 == kind
    }

    fn is_realtime(&self) -> bool {
        self.raw.di_flags.get() & flags::REALTIME != 0 && self.is_kind(0o100000)
    }
}

/// A consumer of extents.
type VisitExtent<'a> = dyn FnMut(&mut Checker, &Extent) -> Result<()> + 'a;

impl Checker {
    /// Walks a fork that has extents. Claims its blocks and reports defects the first time (`first`), and
    /// does neither later.
    pub(super) fn each_extent(
        &mut self,
        slot: &Slot,
        which: Which,
        first: bool,
        visit: &mut VisitExtent<'_>,
    ) -> Result<Counted> {
        let mut counted = Counted { sound: true, ..Counted::default() };
        let mut end = 0;
        let mut record = |checker: &mut Checker, bytes: &[u8]| {
            let Some(extent) = Extent::decode(bytes) else { return Ok(()) };
            counted.extents += 1;
            counted.blocks = counted.blocks.saturating_add(extent.len);
            let in_order = extent.file_block.0 >= end;
            end = extent.file_block.0.saturating_add(extent.len);
            if checker.check_extent(slot, which, &extent, in_order, first) {
                visit(checker, &extent)
            } else {
                counted.sound = false;
                Ok(())
            }
        };
        let space = slot.space(which);
        let place = slot.place();
        match slot.format(which) {
            format::EXTENTS => {
                let count = slot.extents(which);
                let most = (space.len() / 16) as u64;
                if count > most {
                    if first {
                        let what = format!("{} has {count} extents, there is room for {most}", which.name());
                        self.bad("extent-count-wrong", place, what);
                    }
                    return Ok(Counted::default());
                }
                for bytes in space.chunks_exact(16).take(count as usize) {
                    record(self, bytes)?;
                }
            }
            format::BTREE => {
                let header = size_of::<RawBmdrBlock>();
                let root: Option<RawBmdrBlock> = read(space, 0);
                let (level, records) = root.map_or((0, 0), |root| {
                    (u32::from(root.bb_level.get()), usize::from(root.bb_numrecs.get()))
                });
                let most = space.len().saturating_sub(header) / 16;
                if !(1..MAX_LEVELS).contains(&level) || records == 0 || records > most {
                    if first {
                        let what = format!(
                            "the root of the extent B-tree of {} has level {level} and {records} records",
                            which.name()
                        );
                        self.bad("extent-root-invalid", place, what);
                    }
                    return Ok(Counted::default());
                }
                let field = |at| number(space, header + at * 8, 8).unwrap_or(0);
                let children: Vec<_> =
                    (0..records).map(|index| (field(index), field(most + index))).collect();
                let flag = if which == Which::Data { 0 } else { ATTRIBUTES };
                let owner = first.then_some(Owner { owner: slot.ino, offset: TREE | flag });
                let mut walk = Walk::of_fork(slot.ino, owner, &mut record);
                walk.walk_children(self, &children, level)?;
                let (blocks, sound) = (walk.blocks(), walk.sound);
                counted.blocks = counted.blocks.saturating_add(blocks);
                counted.sound &= sound;
            }
            _ => {}
        }
        Ok(counted)
    }

    /// Checks and claims an extent; returns whether it can be used.
    fn check_extent(
        &mut self,
        slot: &Slot,
        which: Which,
        extent: &Extent,
        in_order: bool,
        first: bool,
    ) -> bool {
        let place = slot.place();
        let at = extent.file_block.0;
        let end = at.saturating_add(extent.len);
        let is_file = slot.is_kind(0o100000) && which == Which::Data;
        if !first {
            return in_order && extent.len > 0 && self.sb.run(extent.start, extent.len).is_some();
        }
        if extent.len == 0 || end > FILE_BLOCKS_END {
            let what = format!("an extent at file block {at} has {} blocks", extent.len);
            self.bad("extent-invalid", place, what);
            return false;
        }
        if !in_order {
            let what = format!("the extent at file block {at} overlaps the one before, or is out of order");
            self.bad("extent-order-wrong", place, what);
            return false;
        }
        if extent.unwritten && !is_file {
            let what = format!("an extent of {} at file block {at} is unwritten", which.name());
            self.bad("extent-invalid", place.clone(), what);
        }
        if slot.is_realtime() && which == Which::Data {
            return true;
        }
        let Some(start) = self.sb.run(extent.start, extent.len) else {
            let what =
                format!("an extent at file block {at} has {} blocks at {}", extent.len, extent.start.0);
            self.bad("block-out-of-range", place, what);
            return false;
        };
        let unwritten = if extent.unwritten { UNWRITTEN } else { 0 };
        let flag = if which == Which::Data { 0 } else { ATTRIBUTES };
        let owner = Owner { owner: slot.ino, offset: at | unwritten | flag };
        let place = place.at(start.0);
        if is_file && slot.flags2() & flags2::REFLINK != 0 {
            self.claim_sharable(start.0, extent.len, owner, &place)
        } else {
            self.claim(start.0, extent.len, owner, &place, "an extent")
        }
    }

    /// The extents of a fork whose blocks are claimed already.
    pub(super) fn mapped(&mut self, slot: &Slot, which: Which) -> Result<Mapped> {
        let mut extents = Vec::new();
        let counted = self.each_extent(slot, which, false, &mut |checker, extent| {
            extents.push(*extent);
            if extents.len().is_multiple_of(1 << 14) {
                return checker.charge(extents.capacity() * size_of::<Extent>());
            }
            Ok(())
        })?;
        Ok(Mapped { ino: slot.ino, extents, sound: counted.sound })
    }

    /// Compares the counts of an inode with its forks.
    pub(super) fn check_forks(&mut self, slot: &Slot) -> Result<bool> {
        let mut blocks = 0u64;
        let mut sound = true;
        for which in [Which::Data, Which::Attributes] {
            if which == Which::Attributes && slot.raw.di_forkoff == 0 {
                continue;
            }
            let in_blocks = matches!(slot.format(which), format::EXTENTS | format::BTREE);
            let counted = if in_blocks {
                self.each_extent(slot, which, true, &mut |_, _| Ok(()))?
            } else {
                Counted { sound: true, ..Counted::default() }
            };
            sound &= counted.sound;
            blocks = blocks.saturating_add(counted.blocks);
            let stored = slot.extents(which);
            if counted.sound && stored != counted.extents {
                let what = format!("{} says {stored} extents, counted {}", which.name(), counted.extents);
                self.bad("extent-count-wrong", slot.place(), what);
            }
        }
        if !sound {
            self.maps_unsound = true;
        } else if slot.raw.di_nblocks.get() != blocks {
            let what = format!("di_nblocks is {}, counted {blocks}", slot.raw.di_nblocks.get());
            self.bad("inode-block-count-wrong", slot.place(), what);
        }
        Ok(sound)
    }

    /// Whether large extent counters are in use although the filesystem has none.
    pub(super) fn has_foreign_counters(&self, slot: &Slot) -> bool {
        slot.flags2() & flags2::NREXT64 != 0 && !self.sb.incompat.contains(Incompat::NREXT64)
    }
}

/// The place of a block of an inode.
pub(super) fn place_in(ino: u64, block: u64) -> Place {
    Place::inode(ino).at(block)
}
