//! The index of free space of a node directory.

use super::leaf::FreeBlock;
use crate::fork::{ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::checksum::DIR_DATA;
use crate::layout::dinode::FILE_BLOCKS_END;
use crate::layout::directory::{FREE_OFFSET, NO_BEST, dir_unit};
use crate::write::tx::Tx;
use ivers_block::FileBlock;
use ivers_vfs::Result;

impl Tx<'_> {
    fn free_place(&self, nth: u64) -> (FileBlock, u64) {
        let sb = &self.space().sb;
        let unit = dir_unit(sb);
        (FileBlock(FREE_OFFSET / u64::from(sb.block_size) + nth * unit), unit)
    }

    /// How many blocks the index has, those in holes included.
    pub(super) fn free_blocks(&self, dir: &Dinode) -> Result<u64> {
        let (first, unit) = self.free_place(0);
        let end = self.end_before(dir, Which::Data, FileBlock(FILE_BLOCKS_END))?;
        Ok(end.0.saturating_sub(first.0).div_ceil(unit))
    }

    fn has_free_block(&self, dir: &Dinode, nth: u64) -> Result<bool> {
        let (at, _) = self.free_place(nth);
        Ok(self.find_extent(&dir.data, at, dir.ino)?.0.is_some_and(|extent| extent.end() > at))
    }

    /// Reads a block of the index.
    fn read_free_block<R>(
        &self,
        dir: &Dinode,
        nth: u64,
        read: impl FnOnce(&[u8]) -> std::result::Result<R, String>,
    ) -> Result<R> {
        let (at, unit) = self.free_place(nth);
        let blocks = self.unit_blocks(dir, Which::Data, at, unit)?;
        let bytes = self.read_unit(&blocks, Some(&DIR_DATA), dir.whose())?;
        read(&bytes).map_err(|what| self.bad_unit(dir.ino, &blocks, what))
    }

    pub(super) fn free_block(&self, dir: &Dinode, nth: u64) -> Result<FreeBlock> {
        self.read_free_block(dir, nth, |bytes| FreeBlock::decode(&self.space().sb, bytes, nth))
    }

    fn store_free_block(&mut self, dir: &Dinode, nth: u64, free: &FreeBlock) -> Result<()> {
        let (at, unit) = self.free_place(nth);
        let blocks = self.unit_blocks(dir, Which::Data, at, unit)?;
        self.modify(&blocks, Some(&DIR_DATA), dir.whose(), |bytes| free.encode(bytes))
    }

    /// Makes a block of the index.
    pub(super) fn new_free_block(&mut self, dir: &mut Dinode, nth: u64, bests: Vec<u16>) -> Result<()> {
        let place = self.free_place(nth);
        self.new_fork_unit(dir, Which::Data, place, &DIR_DATA)?;
        let first = (nth as usize * FreeBlock::room(&self.space().sb)) as u32;
        self.store_free_block(dir, nth, &FreeBlock { first, bests })
    }

    pub(super) fn drop_free_block(&mut self, dir: &mut Dinode, nth: u64) -> Result<()> {
        let (at, unit) = self.free_place(nth);
        self.free_fork_unit(dir, Which::Data, at, unit)
    }

    /// The first data block with a free range of so many bytes.
    pub(super) fn data_block_with(&self, dir: &Dinode, len: u16) -> Result<Option<u64>> {
        let (first, unit) = self.free_place(0);
        let mut at = first;
        loop {
            let (extent, next) = self.find_extent(&dir.data, at, dir.ino)?;
            if extent.is_some_and(|extent| extent.end() > at) {
                let (sb, nth) = (&self.space().sb, (at - first) / unit);
                let find = |bytes: &[u8]| FreeBlock::find(sb, bytes, nth, len);
                if let Some(found) = self.read_free_block(dir, nth, find)? {
                    return Ok(Some(found));
                }
                at += unit;
            } else if let Some(next) = next {
                at = first + (next - first).next_multiple_of(unit);
            } else {
                return Ok(None);
            }
        }
    }

    /// Notes the largest free range of a data block; `NO_BEST` if the block is gone.
    pub(super) fn set_best(&mut self, dir: &mut Dinode, number: u64, best: u16) -> Result<()> {
        let room = FreeBlock::room(&self.space().sb) as u64;
        let (nth, index) = (number / room, (number % room) as usize);
        if !self.has_free_block(dir, nth)? {
            return match best {
                NO_BEST => Ok(()),
                best => {
                    let mut bests = vec![NO_BEST; index];
                    bests.push(best);
                    self.new_free_block(dir, nth, bests)
                }
            };
        }
        let (sb, (at, unit)) = (&self.space().sb, self.free_place(nth));
        let blocks = self.unit_blocks(dir, Which::Data, at, unit)?;
        let set = |bytes: &mut [u8]| FreeBlock::set_in_place(sb, bytes, nth, index, best);
        if self.change_unit(dir.ino, &blocks, &DIR_DATA, set)? {
            return Ok(());
        }
        let mut free = self.free_block(dir, nth)?;
        if free.bests.len() <= index {
            free.bests.resize(index + 1, NO_BEST);
        }
        free.bests[index] = best;
        while free.bests.last() == Some(&NO_BEST) {
            free.bests.pop();
        }
        if free.bests.is_empty() {
            return self.drop_free_block(dir, nth);
        }
        self.store_free_block(dir, nth, &free)
    }
}
