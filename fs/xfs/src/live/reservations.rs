//! Space for data that is written back later.

use super::vnode::{core_of, private_of};
use super::volume::Xfs;
use crate::delayed::Delayed;
use crate::fork::ForkSource;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::layout::tree::TreeKind;
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

    /// The blocks of whole pages that cover a range of bytes.
    fn page_blocks(&self, offset: u64, len: u64) -> Result<Range<FileBlock>> {
        let bits = self.sb.block_bits;
        let page = PAGE_BYTES.max(1 << bits);
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
        // The last page may end at 2^63.
        let end = end.map(|end| end.next_multiple_of(page)).filter(|end| end >> bits <= FILE_BLOCKS_END);
        let end = end.ok_or(NameError::TooLarge)?;
        Ok(FileBlock((offset / page * page) >> bits)..FileBlock(end >> bits))
    }

    /// The blocks of a file in a range that are shared, or may be. They stay at least that until the file
    /// gets copies: only a clone makes more of them, and it has the lock of the file.
    fn shared_ranges(&self, inode: &Inode, range: Range<FileBlock>) -> Result<Vec<Range<FileBlock>>> {
        let mut mapped = Vec::new();
        {
            let core = core_of(inode);
            let mut at = if core.may_share() { range.start } else { range.end };
            while at < range.end {
                let mapping = self.map(&core.data, at, core.ino)?;
                let stop = at.saturating_add(mapping.len).min(range.end);
                mapped.extend(mapping.block.map(|block| (at..stop, block)));
                at = stop;
            }
        }
        let mut shared = Vec::new();
        // Without the lock of the inode, which comes after that of the groups.
        self.session()?.space.while_still(|| {
            for (blocks, block) in mapped {
                let mut at = blocks.start;
                while at < blocks.end {
                    let (len, is_shared) = self.sharing(block + (at - blocks.start), blocks.end - at)?;
                    if is_shared {
                        shared.push(at..at + len);
                    }
                    at += len;
                }
            }
            Ok(shared)
        })
    }

    /// Reserves space for each block of a range of bytes that has none, or only a shared one. The block with
    /// the end of the file may change too, if the range begins after it.
    pub(super) fn reserve_range(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        self.check_readable(&core_of(inode))?;
        let range = self.page_blocks(offset, len)?;
        let session = self.session()?;
        let mut copies = self.shared_ranges(inode, range.clone())?;
        let last = FileBlock(core_of(inode).size() >> self.sb.block_bits);
        if last < range.start {
            copies.extend(self.shared_ranges(inode, last..last + 1)?);
        }
        // Before the lock of the inode, which comes after that of the groups.
        let usable = session.usable_blocks();
        let core = core_of(inode);
        let holes = self.holes(&core, range)?;
        if holes.is_empty() && copies.is_empty() {
            return Ok(());
        }
        let per_block = self.extents_a_map_block();
        let mut delayed = private_of(inode).delayed.lock();
        let mut with = delayed.clone();
        holes.into_iter().for_each(|hole| with.holes.add(hole));
        copies.into_iter().for_each(|copy| with.copies.add(copy));
        let (before, after) = (delayed.cost(per_block), with.cost(per_block));
        if !session.reserved.take(after.saturating_sub(before), usable) {
            return Err(NameError::NoSpace.into());
        }
        *delayed = with;
        Ok(())
    }

    /// Changes what is reserved, to less.
    fn release(&self, inode: &Inode, change: impl FnOnce(&mut Delayed)) {
        let Ok(session) = self.session() else { return };
        let per_block = self.extents_a_map_block();
        let mut delayed = private_of(inode).delayed.lock();
        let before = delayed.cost(per_block);
        change(&mut delayed);
        let after = delayed.cost(per_block);
        session.reserved.adjust(before, after);
    }

    /// Ends the reservations of a range of blocks.
    pub(crate) fn release_range(&self, inode: &Inode, range: Range<FileBlock>) {
        self.release(inode, |delayed| delayed.remove(range));
    }

    /// Ends the reservations for copies of shared blocks in a range.
    pub(super) fn release_copies(&self, inode: &Inode, range: Range<FileBlock>) {
        self.release(inode, |delayed| delayed.copies.remove(range));
    }

    /// 512-byte units that the file uses, or will use after write-back.
    pub(super) fn shown_blocks(&self, inode: &Inode) -> u64 {
        let used = core_of(inode).blocks_512(&self.sb);
        let bits = self.sb.block_bits;
        // Space is reserved for whole pages; the blocks after the end of the file will not be used. Copies
        // take the place of blocks that the file has.
        let end = FileBlock(inode.size().div_ceil(1 << bits));
        let delayed = private_of(inode).delayed.lock();
        used + ((delayed.holes.len() - delayed.holes.len_from(end)) << (bits - 9))
    }
}
