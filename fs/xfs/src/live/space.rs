//! Sizes of files, and space apart from writing: truncation and fallocate.

use super::{Edited, core_of};
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::volume::Xfs;
use ivers_block::FileBlock;
use ivers_vfs::{Error, FallocateMode, Inode, NameError, Result, Touch};
use std::ops::Range;

/// The first block that no file has.
const END: FileBlock = FileBlock(FILE_BLOCKS_END);

impl Xfs {
    /// Sets the size of the data; see [`ivers_vfs::FileOps::truncate`].
    pub(super) fn truncate_data(&self, inode: &Inode, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(NameError::TooLarge.into());
        }
        let bits = self.sb.block_bits;
        if size >= core_of(inode).size() {
            self.zero_stale_tail(inode, size.next_multiple_of(1 << bits))?;
            return self.change_size(inode, size);
        }
        // If the device refuses these zeros, the file is cut all the same: the VFS shows it so. They are
        // tried again before the file grows.
        let from = FileBlock(size.div_ceil(1 << bits));
        let zeroed = self.zero_part(inode, size, from.0 << bits);
        if !matches!(zeroed, Ok(()) | Err(Error::FileData(_))) {
            return zeroed;
        }
        self.remove_blocks(inode, from..END, Some(size))?;
        zeroed
    }

    /// Records a change of data, with this size on the device.
    fn change_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let change = self.change()?;
        let mut edited = Edited::new(inode).touched(Touch::Data).logged();
        edited.core.set_size(size);
        change.finish(vec![edited])
    }

    /// Frees blocks of a file, in as many transactions as it takes. Users see the first one as the change; it
    /// also sets the size on the device, if one is given.
    fn remove_blocks(&self, inode: &Inode, range: Range<FileBlock>, size: Option<u64>) -> Result<()> {
        let mut is_first = true;
        loop {
            let mut change = self.change()?;
            let mut edited = Edited::new(inode).logged();
            if is_first {
                edited = edited.touched(Touch::Data);
                if let Some(size) = size {
                    edited.core.set_size(size);
                }
            }
            let done = change.remove(&mut edited.core, range.clone())?;
            edited.core.end_sharing_if_empty();
            change.finish(vec![edited])?;
            is_first = false;
            if done {
                return Ok(());
            }
        }
    }

    /// Zeroes bytes inside one block on the device.
    fn zero_part(&self, inode: &Inode, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let bits = self.sb.block_bits;
        let mapping = self.mapping_at(inode, FileBlock(from >> bits))?;
        match mapping.block.filter(|_| !mapping.unwritten) {
            Some(block) => {
                self.expect_own_data(inode)?;
                self.zero(inode, block, from & ((1 << bits) - 1), to - from)
            }
            None => Ok(()),
        }
    }

    fn punch(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let (first, last) = (offset.div_ceil(1 << bits), end >> bits);
        if first > last {
            self.zero_part(inode, offset, end)?;
        } else {
            self.zero_part(inode, offset, first << bits)?;
            self.zero_part(inode, last << bits, end)?;
        }
        self.remove_blocks(inode, FileBlock(first)..FileBlock(last.max(first)), None)
    }

    /// See [`ivers_vfs::AllocateOps::fallocate`].
    pub(super) fn allocate_range(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let bits = self.sb.block_bits;
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(NameError::TooLarge)?;
        if mode.intersects(FallocateMode::COLLAPSE_RANGE | FallocateMode::INSERT_RANGE) {
            return Err(NameError::NotSupported.into());
        }
        self.expect_own_data(inode)?;
        if mode.contains(FallocateMode::PUNCH_HOLE) {
            return self.punch(inode, offset, end);
        }
        if mode.contains(FallocateMode::ZERO_RANGE) {
            self.punch(inode, offset, end)?;
        }
        let range = FileBlock(offset >> bits)..FileBlock(end.div_ceil(1 << bits));
        self.fill_holes(inode, range)?;
        let size = inode.size();
        if mode.contains(FallocateMode::KEEP_SIZE) || end <= size {
            let stored = core_of(inode).size();
            return self.change_size(inode, stored);
        }
        self.zero_stale_tail(inode, end.next_multiple_of(1 << bits))?;
        // Before the change: a program that sees the new counter must see the new size.
        inode.with_attr(|attr| attr.size = end);
        let changed = self.change_size(inode, end);
        if changed.is_err() {
            inode.with_attr(|attr| attr.size = size);
        }
        changed
    }

    /// Allocates unwritten blocks for every hole of a range. The caller holds the write-back lock, so the
    /// other holes stay.
    fn fill_holes(&self, inode: &Inode, range: Range<FileBlock>) -> Result<()> {
        let holes = self.holes(&core_of(inode), range)?;
        // All or nothing, and not the reserved blocks.
        self.session()?.check_space(holes.iter().map(|hole| hole.end - hole.start).sum())?;
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                at = self.allocate_unwritten(inode, at..hole.end)?;
            }
        }
        Ok(())
    }
}
