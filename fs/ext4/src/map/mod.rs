//! Mapping file blocks to blocks, and file data.
//!
//! # Order of writes
//!
//! New data reaches the device before the transaction that maps it begins: blocks are reserved in memory,
//! written, and only then marked as used and mapped, together with the size. The commit's flush orders both.
//! So after a crash the file is either without the new blocks or has them with their data, never with another
//! file's old data.
//!
//! # Locks
//!
//! `InodeCore`'s lock guards the map. Start a handle *before* taking that lock for writing: starting one may
//! wait for a commit, and a commit waits for handles.

pub(crate) mod data;
mod extent;
mod extent_range;
mod fallocate;
mod indirect;
pub(crate) mod node;
mod relocate;
mod relocate_nodes;
mod write;

use crate::fs::{Ext4, Handle, InodeCore, core_of};
use crate::layout::inode::{FL_EXTENTS, FL_INLINE_DATA};
use ivers_block::{BlockNo, Buffer, FileBlock};
use ivers_vfs::{Inode, NameError, RangeKind, Result};
pub(crate) use node::{END, Extent, empty_root};
pub(crate) use relocate::Contents;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Blocks that one change of the map may change, beside the inode and bitmaps: three a level of a tree.
pub(crate) const MAP_CREDITS: u32 = 24;

/// The block of a hole: no file's data is in block 0.
pub(crate) const HOLE: BlockNo = BlockNo(0);

/// File blocks of one inode that have a reservation: each has one free block set aside.
#[derive(Debug, Default)]
pub struct Delayed {
    blocks: BTreeSet<FileBlock>,
}

/// The mapping of a run of file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The requested file block.
    pub start: FileBlock,
    /// Length of the run in blocks.
    pub len: u64,
    /// Data, unwritten or hole.
    pub kind: RangeKind,
    /// The first block, [`HOLE`] in a hole.
    pub block: BlockNo,
}

impl Mapping {
    fn hole(start: FileBlock, len: u64) -> Self {
        Self { start, len, kind: RangeKind::Hole, block: HOLE }
    }
}

impl Ext4 {
    /// Returns the mapping at a file block. A hole after the last block extends to the size limit.
    pub fn map_block(&self, inode: &Inode, file_block: FileBlock) -> Result<Mapping> {
        self.map_in(inode, &core_of(inode).read(), file_block)
    }

    fn map_in(&self, inode: &Inode, core: &InodeCore, file_block: FileBlock) -> Result<Mapping> {
        let mapping = self.map_unchecked(inode, core, file_block)?;
        if mapping.kind != RangeKind::Hole {
            self.check_not_own(inode, mapping.block, mapping.len)?;
        }
        Ok(mapping)
    }

    /// As [`Ext4::map_block`], without the check for the filesystem's own structures.
    pub(crate) fn map_unchecked(
        &self,
        inode: &Inode,
        core: &InodeCore,
        file_block: FileBlock,
    ) -> Result<Mapping> {
        if core.flags & FL_INLINE_DATA != 0 {
            return Ok(Mapping::hole(file_block, u64::MAX - file_block.0));
        }
        if core.flags & FL_EXTENTS == 0 {
            return self.indirect_map(inode, core, file_block);
        }
        Ok(match self.extent_at_or_after(inode, core, file_block)? {
            None => Mapping::hole(file_block, u64::MAX - file_block.0),
            Some(extent) if extent.file_block > file_block => {
                Mapping::hole(file_block, extent.file_block - file_block)
            }
            Some(extent) => {
                let skip = file_block - extent.file_block;
                Mapping {
                    start: file_block,
                    len: u64::from(extent.len) - skip,
                    kind: if extent.unwritten { RangeKind::Unwritten } else { RangeKind::Data },
                    block: extent.start + skip,
                }
            }
        })
    }

    /// The first file block beyond the range of the inode's kind of map.
    pub(crate) fn map_limit(&self, core: &InodeCore) -> FileBlock {
        if core.flags & FL_EXTENTS == 0 { self.indirect_limit() } else { FileBlock(u64::from(u32::MAX)) }
    }

    /// Maps a run that is a hole; the inode owns its blocks afterwards.
    pub(crate) fn map_run(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        run: Extent,
    ) -> Result<()> {
        if core.flags & FL_EXTENTS != 0 {
            self.extent_insert(h, inode, core, run)?;
        } else {
            let first = run.file_block;
            for index in 0..u64::from(run.len) {
                if let Err(error) = self.indirect_set(h, inode, core, first + index, run.start + index) {
                    // The caller frees the blocks: none of them may stay in the map.
                    while self.indirect_take(h, inode, core, first, first + index)?.is_some() {}
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Unmaps the first mapped piece inside `from..to`; the caller owns its blocks afterwards.
    fn unmap_first(
        &self,
        h: &mut Handle,
        inode: &Inode,
        core: &mut InodeCore,
        from: FileBlock,
        to: FileBlock,
    ) -> Result<Option<Extent>> {
        if core.flags & FL_INLINE_DATA != 0 {
            return Ok(None);
        }
        if core.flags & FL_EXTENTS != 0 {
            return self.extent_take(h, inode, core, from, to);
        }
        Ok(self.indirect_take(h, inode, core, from, to)?.map(|found| Extent {
            file_block: found.start,
            len: found.len as u32,
            start: found.block,
            unwritten: false,
        }))
    }

    /// Frees the mapped blocks in `from..to`, in as many transactions as necessary. Each leaves a consistent
    /// filesystem. If the inode's size exceeds `from`, the inode must be an orphan meanwhile.
    pub(crate) fn remove_blocks(&self, inode: &Inode, from: FileBlock, to: FileBlock) -> Result<()> {
        // The values of attribute inodes are journalled too.
        let metadata = inode.kind != ivers_vfs::FileType::Regular
            || core_of(inode).read().flags & crate::layout::inode::FL_EA_INODE != 0;
        // Continue after the last piece: searching again from the start would never end on a hostile map.
        let mut from = from;
        loop {
            let mut h = self.begin(MAP_CREDITS + 16)?;
            let mut core = core_of(inode).write();
            let taken = match self.unmap_first(&mut h, inode, &mut core, from, to) {
                Ok(Some(taken)) => taken,
                Ok(None) => return Ok(()),
                Err(error) => {
                    // A hole in the middle of a run needs space: nodes may have changed before it ran out.
                    drop(core);
                    self.log(&mut h, inode)?;
                    return Err(error);
                }
            };
            from = taken.end();
            self.charge_blocks(inode, &mut core, -i64::from(taken.len));
            drop(core);
            self.free_blocks(&mut h, taken.start, taken.len, metadata)?;
            self.log(&mut h, inode)?;
        }
    }

    /// Returns a block of a directory; `None` in a hole.
    pub(crate) fn dir_block(&self, dir: &Inode, file_block: FileBlock) -> Result<Option<Arc<Buffer>>> {
        let mapping = self.map_block(dir, file_block)?;
        match mapping.kind {
            RangeKind::Data => Ok(Some(self.block(mapping.block)?)),
            _ => Ok(None),
        }
    }

    /// Reads a block of a directory that is being read as a whole, perhaps with its neighbours. Errors are
    /// those of the read that follows.
    pub(crate) fn read_ahead_dir(&self, dir: &Inode, file_block: FileBlock) {
        if let Ok(mapping) = self.map_block(dir, file_block)
            && mapping.kind == RangeKind::Data
        {
            let run = mapping.block..mapping.block + mapping.len;
            let _ = self.block_in_range(mapping.block, run);
        }
    }

    /// Appends a zeroed block to a directory. Updates size and disk size; the caller fills the block and logs
    /// the directory.
    pub(crate) fn append_dir_block(&self, h: &mut Handle, dir: &Inode) -> Result<(FileBlock, Arc<Buffer>)> {
        let size = dir.size().next_multiple_of(u64::from(self.sb.block_size));
        let file_block = FileBlock(size >> self.sb.block_bits);
        if file_block >= END {
            return Err(NameError::NoSpace.into());
        }
        let block = self.alloc_own_block(h, dir)?;
        let buffer = self.new_block(block)?;
        let mut core = core_of(dir).write();
        let run = Extent { file_block, len: 1, start: block, unwritten: false };
        if let Err(error) = self.map_run(h, dir, &mut core, run) {
            drop(core);
            self.free_blocks(h, block, 1, true)?;
            return Err(error);
        }
        self.charge_blocks(dir, &mut core, 1);
        core.disk_size = size + u64::from(self.sb.block_size);
        let size = core.disk_size;
        drop(core);
        dir.with_attr(|attr| attr.size = size);
        Ok((file_block, buffer))
    }
}
