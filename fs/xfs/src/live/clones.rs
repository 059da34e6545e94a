//! Files that get the blocks of others.

use super::change::Edited;
use super::vnode::core_of;
use super::volume::Xfs;
use ivers_block::FileBlock;
use ivers_vfs::{BlockPool, CloneOps, Cred, Inode, NameError, Result};

/// What an extent that is shared needs at most for the extent maps and B-trees, in blocks.
const BLOCKS_AN_EXTENT: u64 = 4;

/// A copy of blocks: where from, where to, and how many.
#[derive(Clone, Copy)]
struct Blocks {
    from: FileBlock,
    to: FileBlock,
    len: u64,
}

impl Xfs {
    fn share_all(&self, source: &Inode, target: &Inode, all: Blocks) -> Result<()> {
        let mut done = 0;
        while done < all.len {
            let rest = Blocks { from: all.from + done, to: all.to + done, len: all.len - done };
            done += self.share_some(source, target, rest)?;
        }
        Ok(())
    }

    /// Shares blocks, as many as fit into one transaction. Returns how many file blocks are done.
    fn share_some(&self, source: &Inode, target: &Inode, blocks: Blocks) -> Result<u64> {
        // An extent takes a reference, and ends one.
        let most = (self.session()?.extents_a_change / 2).max(1) as u64;
        self.session()?.check_space(most * BLOCKS_AN_EXTENT)?;
        let mut change = self.change()?;
        let mut to = Edited::new(target);
        to.core.begin_sharing();
        let from = (source.ino != target.ino).then(|| {
            let mut from = Edited::new(source);
            from.core.begin_sharing();
            from
        });
        let mut done = 0;
        for _ in 0..most {
            if done < blocks.len {
                let places = (blocks.from + done, blocks.to + done);
                let source = from.as_ref().map(|from| &from.core);
                done += change.share(source, &mut to.core, places, blocks.len - done)?;
            }
        }
        change.finish(from.into_iter().chain([to]).collect())?;
        Ok(done)
    }
}

impl CloneOps for Xfs {
    fn clone_range(
        &self,
        _caller: &Cred,
        (source, source_offset): (&Inode, u64),
        (target, target_offset): (&Inode, u64),
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let bits = self.sb.block_bits;
        for file in [source, target] {
            self.check_readable(&core_of(file))?;
        }
        let end = target_offset + len;
        if end > i64::MAX as u64 {
            return Err(NameError::TooLarge.into());
        }
        // What is on the device past the end of a file may be anything. These bytes get into a file.
        self.zero_stale_tail(source, source_offset + len)?;
        self.zero_stale_tail(target, target_offset)?;
        let all = Blocks {
            from: FileBlock(source_offset >> bits),
            to: FileBlock(target_offset >> bits),
            len: len.div_ceil(1 << bits),
        };
        let size = target.size();
        if let Err(error) = self.share_all(source, target, all) {
            // Nobody wants blocks past the end of a file.
            let past = all.to.max(FileBlock(size.div_ceil(1 << bits)))..all.to + all.len;
            if let Err(why) = self.free_blocks(target, past, |edited| edited) {
                log::warn!("inode {}: cannot free the blocks of a clone that failed: {why}", target.ino);
            }
            return Err(error);
        }
        self.release_range(target, all.to..all.to + all.len);
        // Before the change: a program that sees the new counter must see the new size.
        target.with_attr(|attr| attr.size = size.max(end));
        let stored = core_of(target).size().max(end);
        self.change_size(target, stored).inspect_err(|_| target.with_attr(|attr| attr.size = size))
    }
}
