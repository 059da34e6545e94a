//! `fallocate`: blocks of zeros in holes, and after the end of a file.
//!
//! UFS cannot mark a block as allocated but not written, so zeros are written. A file has no blocks past its
//! end, and a punched hole would need an order of writes that only truncation has: other modes are refused.

use crate::volume::{Ufs, private_of};
use ivers_block::FileBlock;
use ivers_vfs::{BlockPool, FallocateMode, Inode, Logged, NameError, Result, Touch};

/// Zeros are written in pieces of this length.
const PIECE_BYTES: u64 = 1 << 20;

impl Ufs {
    pub(crate) fn fs_fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        pool: BlockPool,
    ) -> Result<()> {
        if !mode.is_empty() {
            return Err(NameError::NotSupported.into());
        }
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        let old = private_of(inode).state.read().dinode.size;
        if let Err(error) = self.fill_holes(inode, offset, end, pool) {
            // The VFS still has the old size. If the stored size grew, it is cut again. Blocks that were
            // added in holes stay.
            if private_of(inode).state.read().dinode.size > old {
                self.fs_truncate(inode, old)?;
            }
            return Err(error);
        }
        inode.with_attr(|attr| attr.size = attr.size.max(end));
        inode.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(inode)
    }

    fn fill_holes(&self, inode: &Inode, offset: u64, end: u64, pool: BlockPool) -> Result<()> {
        let size = u64::from(self.sb.block_size);
        let (mut block, last) = (offset / size, end.div_ceil(size));
        while block < last {
            let most = last.min(block + PIECE_BYTES / size);
            let count = self.missing_blocks(inode, block, most)?;
            if count == 0 {
                block += 1;
                continue;
            }
            let start = block * size;
            // All of a block in a hole becomes zeros, also what is past the range.
            let file_end = end.max(private_of(inode).state.read().dinode.size);
            let len = (count * size).min(file_end - start);
            self.fs_reserve(inode, start, len, pool)?;
            if let Err(error) = self.write_and_attach(inode, start, &vec![0; len as usize], start + len) {
                self.fs_unreserve(inode, start, len);
                return Err(error);
            }
            block += count;
        }
        // The last block may exist, but end before.
        if end > private_of(inode).state.read().dinode.size {
            self.write_and_attach(inode, end, &[], end)?;
        }
        Ok(())
    }

    /// Returns how many file blocks from one on have no place.
    fn missing_blocks(&self, inode: &Inode, first: u64, end: u64) -> Result<u64> {
        let state = private_of(inode).state.read();
        let mut count = 0;
        while first + count < end && self.map(&state.dinode, FileBlock(first + count))?.start.is_none() {
            count += 1;
        }
        Ok(count)
    }
}
