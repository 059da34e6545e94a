//! The bitmap of free blocks.
//!
//! The whole bitmap is in memory, one bit for each block. Changes bring it to the bitmap blocks on the
//! device. The bitmap on the device is valid only while `bm_flag` is set, which marks a cleanly closed
//! volume (see `docs/affs.md`).

use crate::layout::{
    BM_VALID, Block, ROOT_BM_PAGES, checksum_is_valid, get_block, get32, head, put_date, put_tail32, put32,
    set_checksum, tail, tail_block,
};
use crate::volume::Geometry;
use ivers_block::BufferCache;
use ivers_vfs::sync::{RankedMutex, rank};
use ivers_vfs::{NameError, Result, Timestamp};
use ivers_write_ordering::{Change, Stage, Volume};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Larger volumes (128 GiB with blocks of 512 bytes) are read-only: the bitmap would take more than 32 MiB
/// of memory.
pub(crate) const BLOCKS_MAX: u32 = 1 << 28;

/// One bit for each block, from the first block that is not reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    /// Sets a bit and returns its old value.
    pub fn set(&mut self, at: usize, value: bool) -> bool {
        let word = &mut self.0[at / 64];
        let old = *word >> (at % 64) & 1 != 0;
        *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
        old
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the first set bit at or after `from`.
    fn next(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut word = self.0.get(at)? & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.0.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }
}

/// Number of free blocks that are set aside for operations that must not fail for lack of space. A rename
/// needs a block until its second batch is durable, and perhaps one for a directory cache.
const RESERVE_POOL_BLOCKS: u64 = 2;

/// The free blocks from which an allocation may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocSource {
    /// Blocks that are neither reserved nor in the reserve pool.
    Unreserved,
    /// This many blocks of a reservation first, then as `Unreserved`.
    Reservation(u64),
    /// All free blocks that are not reserved, including the reserve pool.
    ReservePool,
}

#[derive(Default)]
struct State {
    /// Blocks that can be allocated.
    free: Bits,
    free_count: u64,
    /// Blocks that are freed, but still marked as used until the batch is durable.
    freed: HashSet<Block>,
    /// Free blocks that are reserved for dirty pages.
    reserved: u64,
    /// Time of the last change in this mount.
    last_change: Option<Timestamp>,
}

/// The bitmap of a volume and its reservations.
pub(crate) struct Bitmap {
    geometry: Geometry,
    cache: Arc<BufferCache>,
    /// The bitmap blocks, in order.
    pages: Vec<Block>,
    /// The blocks of the volume itself: root, bitmap and bitmap extension blocks.
    system: HashSet<Block>,
    state: RankedMutex<rank::Leaf, State>,
    /// Keeps the dirty mark when the volume is closed.
    keep_dirty_mark: AtomicBool,
}

impl Bitmap {
    /// Finds the bitmap blocks without reading them. The error names a damaged block.
    pub fn locate(geometry: &Geometry, cache: &Arc<BufferCache>, root: &[u8]) -> (Self, Result<()>) {
        let mut bitmap = Self {
            geometry: geometry.clone(),
            cache: cache.clone(),
            pages: Vec::new(),
            system: HashSet::from([geometry.root]),
            state: RankedMutex::default(),
            keep_dirty_mark: AtomicBool::new(false),
        };
        let found = bitmap.locate_pages(root);
        (bitmap, found)
    }

    /// Returns how many blocks one bitmap block covers.
    fn per_page(&self) -> usize {
        (self.geometry.block_size as usize / 4 - 1) * 32
    }

    /// Returns how many blocks the bitmap covers.
    fn len(&self) -> usize {
        (self.geometry.blocks - self.geometry.reserved) as usize
    }

    fn locate_pages(&mut self, root: &[u8]) -> Result<()> {
        let wanted = self.len().div_ceil(self.per_page());
        let first = (0..ROOT_BM_PAGES).map(|nth| tail_block(root, tail::BM_PAGES - nth * 4));
        for page in first.take(wanted) {
            self.add_system_block(page, "a bitmap block")?;
            self.pages.push(page);
        }
        let mut next = tail_block(root, tail::BM_EXT);
        while self.pages.len() < wanted {
            self.add_system_block(next, "a bitmap extension block")?;
            let block = self.cache.get(next.no())?.read();
            let per_extension = self.geometry.block_size as usize / 4 - 1;
            for nth in 0..per_extension.min(wanted - self.pages.len()) {
                let page = get_block(&block, nth * 4);
                self.add_system_block(page, "a bitmap block")?;
                self.pages.push(page);
            }
            next = get_block(&block, per_extension * 4);
        }
        Ok(())
    }

    /// Adds a block, which must not be in the set. So a list with a cycle ends with an error.
    fn add_system_block(&mut self, block: Block, what: &str) -> Result<()> {
        let inside = (self.geometry.reserved..self.geometry.blocks).contains(&block.0);
        if !inside || !self.system.insert(block) {
            return Err(self.geometry.corrupt(
                block,
                format!("a pointer to {what} leads outside the volume or to a block in use"),
            ));
        }
        Ok(())
    }

    /// Returns whether a block is the root, a bitmap or a bitmap extension block.
    pub fn is_system_block(&self, block: Block) -> bool {
        self.system.contains(&block)
    }

    /// Returns root, bitmap and bitmap extension blocks.
    pub fn system_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.system.iter().copied()
    }

    pub fn bit_of(&self, block: Block) -> usize {
        (block.0 - self.geometry.reserved) as usize
    }

    fn block_of(&self, bit: usize) -> Block {
        Block(bit as u32 + self.geometry.reserved)
    }

    /// Returns a bitmap without set bits.
    pub fn empty_bits(&self) -> Bits {
        Bits::new(self.len())
    }

    /// Reads the bitmap.
    pub fn load(&self) -> Result<()> {
        let mut free = self.empty_bits();
        for (nth, &page) in self.pages.iter().enumerate() {
            let block = self.cache.get(page.no())?.read();
            if !checksum_is_valid(&block) {
                return Err(self.geometry.corrupt(page, "a bitmap block has a bad checksum"));
            }
            let first = nth * self.per_page();
            for bit in first..(first + self.per_page()).min(self.len()) {
                let at = bit - first;
                if get32(&block, 4 + at / 32 * 4) >> (at % 32) & 1 != 0 {
                    free.set(bit, true);
                }
            }
        }
        if let Some(block) = self.system.iter().find(|&&block| free.get(self.bit_of(block))) {
            return Err(self.geometry.corrupt(*block, "the bitmap marks the root or a bitmap block as free"));
        }
        self.set_free(free);
        Ok(())
    }

    fn set_free(&self, free: Bits) {
        let free_count = free.count();
        *self.state.lock() = State { free_count, free, ..State::default() };
    }

    /// Replaces the bitmap: exactly the blocks in `used` are in use. The next batch writes it.
    pub fn rebuild(&self, change: &Change<'_>, used: &Bits) -> Result<()> {
        let mut free = self.empty_bits();
        for bit in 0..self.len() {
            free.set(bit, !used.get(bit));
        }
        for (nth, &page) in self.pages.iter().enumerate() {
            let first = nth * self.per_page();
            let end = (first + self.per_page()).min(self.len());
            let buffer = self.cache.get(page.no())?;
            change.put(&buffer, Stage::Fresh, |bytes| {
                // Nothing reads the bits after the last block. The Amiga leaves them set.
                bytes.fill(0xff);
                (first..end).filter(|&bit| !free.get(bit)).for_each(|bit| set_bit(bytes, bit - first, false));
                set_checksum(bytes, 0);
            });
        }
        self.set_free(free);
        Ok(())
    }

    /// Sets the bits of blocks on the device.
    fn write_bits(&self, change: &Change<'_>, blocks: &[Block], free: bool) -> Result<()> {
        let per_page = self.per_page();
        for group in blocks.chunk_by(|a, b| self.bit_of(*a) / per_page == self.bit_of(*b) / per_page) {
            let nth = self.bit_of(group[0]) / per_page;
            let buffer = self.cache.get(self.pages[nth].no())?;
            change.put(&buffer, Stage::Fresh, |bytes| {
                group.iter().for_each(|&block| set_bit(bytes, self.bit_of(block) - nth * per_page, free));
                set_checksum(bytes, 0);
            });
        }
        Ok(())
    }

    /// Allocates `count` blocks, at or after `goal` if possible.
    pub fn allocate(
        &self,
        change: &Change<'_>,
        goal: Block,
        count: u64,
        source: AllocSource,
    ) -> Result<Vec<Block>> {
        let blocks = {
            let mut state = self.state.lock();
            let (from_reservation, pool) = match source {
                AllocSource::Unreserved => (0, RESERVE_POOL_BLOCKS),
                AllocSource::Reservation(reserved) => {
                    (reserved.min(count).min(state.reserved), RESERVE_POOL_BLOCKS)
                }
                AllocSource::ReservePool => (0, 0),
            };
            // Reserved blocks are available whatever is left of the reserve pool.
            let unreserved = count - from_reservation;
            if unreserved > 0 && state.free_count < state.reserved + unreserved + pool
                || state.free_count < count
            {
                return Err(NameError::NoSpace.into());
            }
            state.reserved -= from_reservation;
            let mut blocks = Vec::with_capacity(count as usize);
            let mut from = self.bit_of(Block(goal.0.clamp(self.geometry.reserved, self.geometry.blocks - 1)));
            while (blocks.len() as u64) < count {
                // `free_count` guarantees that there is one.
                let Some(bit) = state.free.next(from).or_else(|| state.free.next(0)) else { break };
                state.free.set(bit, false);
                blocks.push(self.block_of(bit));
                from = bit;
            }
            state.free_count -= blocks.len() as u64;
            blocks
        };
        self.write_bits(change, &blocks, false)?;
        Ok(blocks)
    }

    /// Frees blocks that a durable pointer may still lead to. If one of them is free already, the volume is
    /// damaged and nothing is freed.
    pub fn free(&self, change: &Change<'_>, blocks: &[Block]) -> Result<()> {
        let mut state = self.state.lock();
        let is_free = |block: &&Block| state.freed.contains(block) || state.free.get(self.bit_of(**block));
        if let Some(&block) = blocks.iter().find(is_free) {
            return Err(self
                .geometry
                .corrupt(block, "a block in use is marked as free, or belongs to two files"));
        }
        state.freed.extend(blocks);
        blocks.iter().for_each(|&block| change.free(block.no().0..block.no().0 + 1));
        Ok(())
    }

    /// Reserves blocks for dirty pages, or returns `NoSpace`.
    pub fn reserve(&self, count: u64) -> Result<()> {
        let mut state = self.state.lock();
        if count > 0 && state.free_count < state.reserved + count + RESERVE_POOL_BLOCKS {
            return Err(NameError::NoSpace.into());
        }
        state.reserved += count;
        Ok(())
    }

    /// Releases reserved blocks.
    pub fn unreserve(&self, count: u64) {
        let mut state = self.state.lock();
        state.reserved -= count.min(state.reserved);
    }

    /// Returns whether a block is marked as free.
    pub fn is_free(&self, block: Block) -> bool {
        let state = self.state.lock();
        state.free_count > 0 && state.free.get(self.bit_of(block))
    }

    /// Returns the number of free blocks, and of those that are neither reserved nor in the reserve pool.
    pub fn free_counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        let free = state.free_count + state.freed.len() as u64;
        (free, free.saturating_sub(state.reserved + RESERVE_POOL_BLOCKS))
    }

    /// Records the time of a change; [`tail::VOLUME_DATE`] gets the latest.
    pub fn note_change_time(&self, time: Timestamp) {
        let mut state = self.state.lock();
        state.last_change = state.last_change.max(Some(time));
    }

    /// Keeps the dirty mark when the volume is closed: the bitmap or a directory cache may be wrong.
    pub fn keep_dirty_mark(&self) {
        self.keep_dirty_mark.store(true, Ordering::Release);
    }
}

fn set_bit(page: &mut [u8], at: usize, free: bool) {
    let word = 4 + at / 32 * 4;
    let old = get32(page, word);
    let bit = 1 << (at % 32);
    put32(page, word, if free { old | bit } else { old & !bit });
}

impl Volume for Bitmap {
    fn mark(&self, change: &Change<'_>, dirty: bool) -> ivers_write_ordering::Result<()> {
        if !dirty && self.keep_dirty_mark.load(Ordering::Acquire) {
            return Ok(());
        }
        let root = self.cache.get(self.geometry.root.no())?;
        let last_change = self.state.lock().last_change;
        change.put(&root, Stage::Fresh, |bytes| {
            put_tail32(bytes, tail::BM_FLAG, if dirty { 0 } else { BM_VALID });
            if let Some(last_change) = last_change {
                put_date(bytes, tail::VOLUME_DATE, last_change);
            }
            set_checksum(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> ivers_write_ordering::Result<()> {
        let mut blocks: Vec<Block> =
            freed.iter().flat_map(|range| (range.start as u32..range.end as u32).map(Block)).collect();
        blocks.sort_unstable();
        // The block's next user must not find its old contents in the cache.
        blocks.iter().for_each(|&block| self.cache.forget(block.no()));
        let marked = self.write_bits(change, &blocks, true);
        let mut state = self.state.lock();
        for &block in &blocks {
            state.freed.remove(&block);
            if !state.free.set(self.bit_of(block), true) {
                state.free_count += 1;
            }
        }
        marked.map_err(|error| ivers_write_ordering::OrderedError::Stopped { cause: error.to_string() })
    }
}
