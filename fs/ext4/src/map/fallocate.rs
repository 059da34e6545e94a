//! Truncation and fallocate.

use crate::fs::{Ext4, core_of};
use crate::layout::inode::FL_EXTENTS;
use crate::map::MAP_CREDITS;
use crate::map::node::{END, Extent, MAX_UNWRITTEN};
use ivers_block::FileBlock;
use ivers_vfs::{
    AllocateOps, BlockPool, Cred, Error, FallocateMode, Inode, Logged, NameError, RangeKind, Result, Touch,
};

impl Ext4 {
    /// Sets the size of the data; see [`ivers_vfs::FileOps::truncate`]. A shrink first logs the new size with
    /// the inode as an orphan: the next mount finishes freeing after a crash.
    pub(crate) fn truncate_data(&self, inode: &Inode, size: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        self.inline_to_blocks(inode)?;
        let old = {
            let core = core_of(inode).read();
            if FileBlock(size.div_ceil(1 << bits)) > self.map_limit(&core) {
                return Err(NameError::TooLarge.into());
            }
            core.disk_size
        };
        if size >= old {
            self.zero_stale_tail(inode, size.next_multiple_of(1 << bits).saturating_add(1))?;
            return self.changed_size(inode, size);
        }
        // Other code relies on zeros in a block after the end of the file. If the device refuses them, the
        // file is cut all the same: the VFS shows it so. `zero_stale_tail` tries again before it grows.
        let from = FileBlock(size.div_ceil(1 << bits));
        let zeroed = self.zero_part(inode, size, from.0 << bits);
        if !matches!(zeroed, Ok(()) | Err(Error::FileData(_))) {
            return zeroed;
        }
        let mut h = self.begin(MAP_CREDITS)?;
        core_of(inode).write().disk_size = size;
        self.orphan_add(&mut h, inode)?;
        inode.changed(Touch::Data, Logged::Anyway);
        self.log(&mut h, inode)?;
        drop(h);
        let removed = self.remove_blocks(inode, from, FileBlock(u64::MAX));
        let mut h = self.begin(MAP_CREDITS)?;
        self.orphan_del(&mut h, inode)?;
        self.log(&mut h, inode)?;
        removed.and(zeroed)
    }

    /// Logs the new disk size in the last transaction of a change of the data.
    fn changed_size(&self, inode: &Inode, disk_size: u64) -> Result<()> {
        let mut h = self.begin(MAP_CREDITS)?;
        core_of(inode).write().disk_size = disk_size;
        inode.changed(Touch::Data, Logged::Anyway);
        self.log(&mut h, inode)
    }

    /// Removes a range of whole blocks and closes the gap, or opens a gap. Keys move leaf by leaf and need no
    /// new blocks.
    fn shift(&self, inode: &Inode, insert: bool, offset: u64, len: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let (from, by) = (FileBlock(offset >> bits), len >> bits);
        if from.0.max(by) > u64::from(u32::MAX) {
            return Err(NameError::TooLarge.into());
        }
        let end = from + by;
        if !insert {
            self.remove_blocks(inode, from, end)?;
        } else {
            let mut h = self.begin(MAP_CREDITS + 16)?;
            let cut = self.extent_cut(&mut h, inode, &mut core_of(inode).write(), from);
            self.log(&mut h, inode)?;
            cut?;
        }
        let mut next = if insert { END } else { end };
        loop {
            let mut h = self.begin(MAP_CREDITS)?;
            let mut core = core_of(inode).write();
            let moved = if insert {
                self.extent_shift_up(&mut h, inode, &mut core, from, next, by)?
            } else {
                self.extent_shift_down(&mut h, inode, &mut core, next, by)?
            };
            drop(core);
            self.log(&mut h, inode)?;
            match moved {
                Some(place) => next = place,
                None => break,
            }
        }
        let sized = |size: u64| if insert { size.saturating_add(len) } else { size.saturating_sub(len) };
        inode.with_attr(|attr| attr.size = sized(attr.size));
        let disk_size = sized(core_of(inode).read().disk_size);
        self.changed_size(inode, disk_size)
    }

    fn punch(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let block_size = 1_u64 << bits;
        let (first, last) = (offset.div_ceil(block_size), end >> bits);
        if first > last {
            return self.zero_part(inode, offset, end);
        }
        self.zero_part(inode, offset, first << bits)?;
        self.zero_part(inode, last << bits, end)?;
        self.remove_blocks(inode, FileBlock(first), FileBlock(last))
    }

    /// Zeroes bytes inside one block on the device.
    fn zero_part(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let bits = self.sb.block_bits;
        let mapping = self.map_block(inode, FileBlock(from >> bits))?;
        if mapping.kind == RangeKind::Data {
            let in_block = from & ((1 << bits) - 1);
            self.write_data(
                inode,
                mapping.block.offset(self.sb.block_size) + in_block,
                &vec![0; (to - from) as usize],
            )?;
        }
        Ok(())
    }

    /// Allocates unwritten blocks for every hole of the range.
    fn allocate_unwritten(
        &self,
        inode: &Inode,
        from: FileBlock,
        to: FileBlock,
        pool: BlockPool,
    ) -> Result<()> {
        let mut at = from;
        while at < to {
            let mapping = self.map_block(inode, at)?;
            let stop = at.saturating_add(mapping.len).min(to);
            if mapping.kind != RangeKind::Hole {
                at = stop;
                continue;
            }
            let most = (stop - at).min(u64::from(MAX_UNWRITTEN)) as u32;
            // Leave the blocks that are reserved for delayed writes.
            self.reserve_delayed(u64::from(most), pool)?;
            let reserved = self.reserve_blocks(inode, self.goal_for(inode), most);
            self.release_delayed(u64::from(most));
            let reserved = reserved?;
            let run = Extent { file_block: at, len: reserved.len, start: reserved.start, unwritten: true };
            let mut h = self.begin(MAP_CREDITS + 16)?;
            self.commit_reserved(&mut h, reserved)?;
            let mut core = core_of(inode).write();
            if let Err(error) = self.map_run(&mut h, inode, &mut core, run) {
                drop(core);
                self.free_blocks(&mut h, run.start, run.len, false)?;
                // Nodes may have changed before space ran out, and their root is in the inode.
                self.log(&mut h, inode)?;
                return Err(error);
            }
            self.charge_blocks(inode, &mut core, i64::from(run.len));
            self.end_reservations(&mut core, at, at + u64::from(run.len));
            drop(core);
            self.log(&mut h, inode)?;
            at = run.end();
        }
        Ok(())
    }
}

impl AllocateOps for Ext4 {
    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        let bits = self.sb.block_bits;
        let block_size = 1_u64 << bits;
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        self.inline_to_blocks(inode)?;
        let (extents, limit) = {
            let core = core_of(inode).read();
            (core.flags & FL_EXTENTS != 0, self.map_limit(&core))
        };
        if mode.contains(FallocateMode::PUNCH_HOLE) {
            self.punch(inode, offset, end)?;
            let disk_size = core_of(inode).read().disk_size;
            return self.changed_size(inode, disk_size);
        }
        if !extents {
            return Err(NameError::NotSupported.into());
        }
        if FileBlock(end.div_ceil(block_size)) > limit {
            return Err(NameError::TooLarge.into());
        }
        if mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE) {
            return self.shift(inode, mode.contains(FallocateMode::INSERT_RANGE), offset, len);
        }
        if mode.contains(FallocateMode::ZERO_RANGE) {
            self.punch(inode, offset, end)?;
        }
        self.allocate_unwritten(inode, FileBlock(offset >> bits), FileBlock(end.div_ceil(block_size)), pool)?;
        let mut disk_size = core_of(inode).read().disk_size;
        if !mode.contains(FallocateMode::KEEP_SIZE) && end > inode.size() {
            self.zero_stale_tail(inode, end.next_multiple_of(block_size).saturating_add(1))?;
            inode.with_attr(|attr| attr.size = end);
            disk_size = end;
        }
        self.changed_size(inode, disk_size)
    }
}
