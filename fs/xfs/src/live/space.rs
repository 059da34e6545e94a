//! Sizes of files, and space apart from writing: truncation and fallocate.

use super::change::Edited;
use super::vnode::core_of;
use super::volume::Xfs;
use crate::layout::dinode::FILE_BLOCKS_END;
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
        // If the device refuses these zeros, or there is no space to copy a shared block, the file is cut all
        // the same: the VFS shows it so. They are tried again before the file grows.
        let from = FileBlock(size.div_ceil(1 << bits));
        self.forget_window(inode);
        let zeroed = self.zero_bytes(inode, size, from.0 << bits);
        if !matches!(zeroed, Ok(()) | Err(Error::FileData(_) | Error::Name(NameError::NoSpace))) {
            return zeroed;
        }
        self.free_blocks(inode, from..END, |mut edited| {
            edited.core.set_size(size);
            edited.touched(Touch::Data)
        })?;
        self.release_copies(inode, from..END);
        if matches!(zeroed, Err(Error::FileData(_))) { zeroed } else { Ok(()) }
    }

    /// Records a change of data, with this size on the device.
    pub(super) fn change_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let change = self.change()?;
        let mut edited = Edited::new(inode).touched(Touch::Data).logged();
        edited.core.set_size(size);
        change.finish(vec![edited])
    }

    /// Frees blocks of a file, in as many transactions as it takes. `first` adds to the first one what users
    /// see as the change.
    pub(super) fn free_blocks(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        first: impl Fn(Edited<'_>) -> Edited<'_>,
    ) -> Result<()> {
        let mut is_first = true;
        loop {
            let mut change = self.change()?;
            let mut edited = Edited::new(inode).logged();
            if is_first {
                edited = first(edited);
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

    fn punch(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let bits = self.sb.block_bits;
        let (first, last) = (offset.div_ceil(1 << bits), end >> bits);
        if first > last {
            self.zero_bytes(inode, offset, end)?;
        } else {
            self.zero_bytes(inode, offset, first << bits)?;
            self.zero_bytes(inode, last << bits, end)?;
        }
        let whole = FileBlock(first)..FileBlock(last.max(first));
        self.free_blocks(inode, whole, |edited| edited.touched(Touch::Data))
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
        self.check_readable(&core_of(inode))?;
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
                at = self.allocate_unwritten(inode, at..hole.end, 0)?;
            }
        }
        Ok(())
    }
}
