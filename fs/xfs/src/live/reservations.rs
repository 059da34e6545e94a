//! Space for data that is written back later.

use super::{core_of, private_of};
use crate::layout::dinode::{FILE_BLOCKS_END, flags2};
use crate::layout::tree::TreeKind;
use crate::volume::Xfs;
use ivers_block::FileBlock;
use ivers_vfs::{Inode, NameError, Result};
use std::ops::Range;

/// Bytes of the pages that the VFS writes back.
pub(super) const PAGE_BYTES: u64 = 4096;

impl Xfs {
    /// Extents that a block of a file's map has at least, if it is not the root.
    fn extents_a_map_block(&self) -> u64 {
        let header = TreeKind::Extents.header_bytes(self.sb.is_v5());
        ((self.sb.block_size as usize - header) / TreeKind::Extents.record_bytes() / 2) as u64
    }

    /// Refuses a file whose data this driver cannot change.
    pub(super) fn expect_own_data(&self, inode: &Inode) -> Result<()> {
        let core = core_of(inode);
        self.check_readable(&core)?;
        if core.flags2() & flags2::REFLINK != 0 {
            // Its blocks may be shared, and copy on write is not built yet.
            return Err(NameError::NotSupported.into());
        }
        Ok(())
    }

    /// The blocks of whole pages that cover a range of bytes.
    fn page_blocks(&self, offset: u64, len: u64) -> Result<Range<FileBlock>> {
        let bits = self.sb.block_bits;
        let page = PAGE_BYTES.max(1 << bits);
        let end = offset.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.filter(|end| end >> bits <= FILE_BLOCKS_END && *end <= i64::MAX as u64);
        let end = end.ok_or(NameError::TooLarge)?;
        Ok(FileBlock((offset / page * page) >> bits)..FileBlock(end >> bits))
    }

    /// Reserves space for each block of a range of bytes that has none.
    pub(super) fn reserve_range(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        self.expect_own_data(inode)?;
        let range = self.page_blocks(offset, len)?;
        let session = self.session()?;
        // Before the lock of the inode, which comes after that of the groups.
        let usable = session.usable_blocks();
        let core = core_of(inode);
        let holes = self.holes(&core, range)?;
        if holes.is_empty() {
            return Ok(());
        }
        let per_block = self.extents_a_map_block();
        let mut delayed = private_of(inode).delayed.lock();
        let mut with = delayed.clone();
        holes.into_iter().for_each(|hole| with.add(hole));
        let (before, after) = (delayed.cost(per_block), with.cost(per_block));
        if !session.reserved.take(after.saturating_sub(before), usable) {
            return Err(NameError::NoSpace.into());
        }
        *delayed = with;
        Ok(())
    }

    /// Ends the reservations of a range of blocks.
    pub(super) fn release_range(&self, inode: &Inode, range: Range<FileBlock>) {
        let Ok(session) = self.session() else { return };
        let per_block = self.extents_a_map_block();
        let mut delayed = private_of(inode).delayed.lock();
        let before = delayed.cost(per_block);
        delayed.remove(range);
        let after = delayed.cost(per_block);
        session.reserved.adjust(before, after);
    }

    /// 512-byte units that the file uses, or will use after write-back.
    pub(super) fn shown_blocks(&self, inode: &Inode) -> u64 {
        let used = core_of(inode).blocks_512(&self.sb);
        let bits = self.sb.block_bits;
        // Space is reserved for whole pages; the blocks after the end of the file will not be used.
        let end = FileBlock(inode.size().div_ceil(1 << bits));
        let delayed = private_of(inode).delayed.lock();
        used + ((delayed.len() - delayed.len_from(end)) << (bits - 9))
    }
}
