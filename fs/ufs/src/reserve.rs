//! Reserved space: free blocks for dirty pages.
//!
//! A dirty page may need a new block, and an indirect block of each level above it. Each is reserved once,
//! under its height and the first file block below it, until it is written. A tail of fragments that must
//! become longer counts as a new block, because it may have to move.

use crate::alloc::order_error;
use crate::layout::superblock::DIRECT;
use crate::volume::{State, Ufs, private_of};
use ivers_block::FileBlock;
use ivers_vfs::{BlockPool, Inode, NameError, Result};

impl Ufs {
    /// Fragments that a file block has on the device.
    pub(crate) fn present_frags(&self, state: &State, block: u64) -> Result<u64> {
        Ok(match self.map(&state.dinode, FileBlock(block))?.start {
            Some(_) => self.sb.frags_of_block(state.dinode.size, block),
            None => 0,
        })
    }

    /// Adds the indirect blocks above a file block that do not exist.
    pub(crate) fn missing_nodes(
        &self,
        state: &State,
        block: u64,
        mut add: impl FnMut((u32, u64)),
    ) -> Result<()> {
        let Some(path) = self.path(block) else { return Ok(()) };
        let per_block = self.sb.pointers_per_block();
        let mut pointer = state.dinode.pointers[path.root()];
        for height in (1..=path.level).rev() {
            if pointer == 0 {
                add(path.node(height, per_block));
            } else if height > 1 {
                pointer = self.pointer_in(state.dinode.ino, pointer, path.slot(height, per_block))?;
            }
        }
        Ok(())
    }

    /// The block of a file that ends in fragments, and that must become longer if the file grows.
    pub(crate) fn short_tail(&self, state: &State) -> Option<u64> {
        let size = state.dinode.size;
        let tail = size.checked_sub(1)? / u64::from(self.sb.block_size);
        let is_short = self.sb.frags_of_block(size, tail) < self.sb.frags_per_block.into();
        (tail < DIRECT && is_short).then_some(tail)
    }

    pub(crate) fn fs_reserve(&self, inode: &Inode, offset: u64, len: u64, pool: BlockPool) -> Result<()> {
        let writer = self.writer()?;
        // If writing stopped, data that is accepted here would be lost.
        writer.ordered.check().map_err(order_error)?;
        let end = offset.checked_add(len).filter(|&end| end <= self.sb.file_size_max());
        let end = end.ok_or(NameError::TooLarge)?;
        let (size, full) = (u64::from(self.sb.block_size), u64::from(self.sb.frags_per_block));
        let mut state = private_of(inode).state.write();
        let grows = end > state.dinode.size;
        let tail = self.short_tail(&state).filter(|_| grows);
        let mut keys = std::collections::BTreeSet::new();
        for block in tail.into_iter().chain(offset / size..end.div_ceil(size)) {
            if state.reserved.contains(&(0, block)) || self.present_frags(&state, block)? == full {
                continue;
            }
            keys.insert((0, block));
            self.missing_nodes(&state, block, |node| {
                if !state.reserved.contains(&node) {
                    keys.insert(node);
                }
            })?;
        }
        let keep = match pool {
            BlockPool::All => 0,
            BlockPool::Unreserved => self.sb.data_size / 100 * u64::from(self.sb.min_free),
        };
        writer.alloc.reserve(keys.len() as u64, keep)?;
        state.reserved.extend(keys);
        Ok(())
    }

    pub(crate) fn fs_unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let size = u64::from(self.sb.block_size);
        let blocks = offset / size..offset.saturating_add(len).div_ceil(size);
        self.release_reserved(&mut private_of(inode).state.write(), blocks);
    }

    /// Releases what is reserved for file blocks that were written or dropped.
    pub(crate) fn release_reserved(&self, state: &mut State, blocks: std::ops::Range<u64>) {
        let Some(writer) = &self.writer else { return };
        let before = state.reserved.len();
        let mut dropped = state.reserved.split_off(&(0, blocks.start));
        state.reserved.extend(dropped.split_off(&(0, blocks.end.max(blocks.start))));
        if state.reserved.first().is_none_or(|&(height, _)| height > 0) {
            state.reserved.clear();
        }
        writer.alloc.unreserve((before - state.reserved.len()) as u64);
    }

    /// Releases all that is reserved for an inode.
    pub(crate) fn drop_reservation(&self, inode: &Inode) {
        self.release_reserved(&mut private_of(inode).state.write(), 0..u64::MAX);
    }

    /// Returns the units of 512 bytes that an inode has, or will have when its pages are written.
    pub(crate) fn fs_blocks_512(&self, inode: &Inode) -> u64 {
        let size = inode.size();
        let state = private_of(inode).state.read();
        let frags = state.reserved.iter().map(|&(height, block)| match height {
            0 => {
                let has = state.dinode.pointers.get(block as usize).filter(|_| block < DIRECT);
                let present = has.filter(|&&pointer| pointer != 0);
                let present = present.map_or(0, |_| self.sb.frags_of_block(state.dinode.size, block));
                self.sb.frags_of_block(size, block).saturating_sub(present)
            }
            _ => self.sb.frags_per_block.into(),
        });
        let units = frags.sum::<u64>() * u64::from(self.sb.fragment_size / 512);
        state.dinode.blocks_512.saturating_add(units)
    }
}
