//! Which blocks are free.
//!
//! The bitmap is kept in memory whole, a bit a block; its blocks on the device follow by changes. On the device it is believed only while
//! `bm_flag` says so, which is the mark of a volume that was closed in good order: see `docs/affs.md`.

use crate::layout::{
    BM_VALID, Block, ROOT_BM_PAGES, get_block, get32, head, is_sealed, put_date, put_tail32, put32, seal,
    tail, tail_block,
};
use crate::volume::Shape;
use ivers_block::BufferCache;
use ivers_vfs::sync::Mutex;
use ivers_vfs::{NameError, Result, Timestamp};
use ivers_write_ordering::{Change, Stage, Volume};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// More blocks than this (128 GiB of 512 bytes) are not written to: the bitmap would take more than 32 MiB of memory.
pub(crate) const BLOCKS_MAX: u32 = 1 << 28;

/// A bit a block, numbered from the first that is not reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    pub fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    /// Sets a bit; what it was.
    pub fn set(&mut self, at: usize, value: bool) -> bool {
        let word = &mut self.0[at / 64];
        let old = *word >> (at % 64) & 1 != 0;
        *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
        old
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first set bit from here on.
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

/// So many free blocks are kept for what must not fail for want of room: a move takes one for a moment, and perhaps one for a directory cache. As soon as
/// what it freed is free they are there again.
const KEPT: u64 = 2;

/// On what grounds somebody takes blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Anybody's.
    Plain,
    /// So many of them were promised to him.
    Promised(u64),
    /// Those that are kept may be among them.
    Kept,
}

#[derive(Default)]
struct State {
    /// Those that can be given away.
    free: Bits,
    count: u64,
    /// Freed, but not durably yet.
    leaving: HashSet<Block>,
    /// Of the free ones, promised to dirty pages.
    promised: u64,
    /// When anything was last changed in this mount.
    newest: Option<Timestamp>,
}

/// The space of a volume.
pub(crate) struct Space {
    shape: Shape,
    cache: Arc<BufferCache>,
    /// The bitmap blocks, in order.
    pages: Vec<Block>,
    /// Root, bitmap and bitmap extension blocks: no file's.
    own: HashSet<Block>,
    state: Mutex<State>,
    /// Damage was met while changing things: the volume stays marked.
    keep_mark: AtomicBool,
}

impl Space {
    /// Finds the bitmap blocks; reads none. The error says which is damaged.
    pub fn find(shape: &Shape, cache: &Arc<BufferCache>, root: &[u8]) -> (Self, Result<()>) {
        let mut space = Self {
            shape: shape.clone(),
            cache: cache.clone(),
            pages: Vec::new(),
            own: HashSet::from([shape.root]),
            state: Mutex::default(),
            keep_mark: AtomicBool::new(false),
        };
        let found = space.find_pages(root);
        (space, found)
    }

    /// Blocks that a bitmap block speaks of.
    fn per_page(&self) -> usize {
        (self.shape.block_size as usize / 4 - 1) * 32
    }

    /// Blocks that the bitmap speaks of.
    fn len(&self) -> usize {
        (self.shape.blocks - self.shape.reserved) as usize
    }

    fn find_pages(&mut self, root: &[u8]) -> Result<()> {
        let want = self.len().div_ceil(self.per_page());
        let first = (0..ROOT_BM_PAGES).map(|nth| tail_block(root, tail::BM_PAGES - nth * 4));
        for page in first.take(want) {
            self.add_own(page, "a bitmap block")?;
            self.pages.push(page);
        }
        let mut next = tail_block(root, tail::BM_EXT);
        while self.pages.len() < want {
            self.add_own(next, "a bitmap extension block")?;
            let block = self.cache.get(next.no())?.read();
            let named = self.shape.block_size as usize / 4 - 1;
            for nth in 0..named.min(want - self.pages.len()) {
                let page = get_block(&block, nth * 4);
                self.add_own(page, "a bitmap block")?;
                self.pages.push(page);
            }
            next = get_block(&block, named * 4);
        }
        Ok(())
    }

    /// Each once: that also ends a list that goes round.
    fn add_own(&mut self, block: Block, what: &str) -> Result<()> {
        let inside = (self.shape.reserved..self.shape.blocks).contains(&block.0);
        if !inside || !self.own.insert(block) {
            return Err(self.shape.damaged(block, format!("{what} cannot be there")));
        }
        Ok(())
    }

    /// Whether a block is the volume's own.
    pub fn is_own(&self, block: Block) -> bool {
        self.own.contains(&block)
    }

    /// The volume's own blocks.
    pub fn own(&self) -> impl Iterator<Item = Block> + '_ {
        self.own.iter().copied()
    }

    pub fn bit_of(&self, block: Block) -> usize {
        (block.0 - self.shape.reserved) as usize
    }

    fn block_of(&self, bit: usize) -> Block {
        Block(bit as u32 + self.shape.reserved)
    }

    /// No bit set.
    pub fn no_bits(&self) -> Bits {
        Bits::new(self.len())
    }

    /// Reads the bitmap.
    pub fn load(&self) -> Result<()> {
        let mut free = self.no_bits();
        for (nth, &page) in self.pages.iter().enumerate() {
            let block = self.cache.get(page.no())?.read();
            if !is_sealed(&block) {
                return Err(self.shape.damaged(page, "the checksum of a bitmap block is wrong"));
            }
            let first = nth * self.per_page();
            for bit in first..(first + self.per_page()).min(self.len()) {
                let at = bit - first;
                if get32(&block, 4 + at / 32 * 4) >> (at % 32) & 1 != 0 {
                    free.set(bit, true);
                }
            }
        }
        if let Some(own) = self.own.iter().find(|&&block| free.get(self.bit_of(block))) {
            return Err(self.shape.damaged(*own, "the bitmap says that this block of its own is free"));
        }
        self.take_over(free);
        Ok(())
    }

    fn take_over(&self, free: Bits) {
        let count = free.count();
        *self.state.lock() = State { count, free, ..State::default() };
    }

    /// These blocks are in use and no others: so says the tree. Written with the next batch.
    pub fn rebuild(&self, change: &Change<'_>, used: &Bits) -> Result<()> {
        let mut free = self.no_bits();
        for bit in 0..self.len() {
            free.set(bit, !used.get(bit));
        }
        for (nth, &page) in self.pages.iter().enumerate() {
            let first = nth * self.per_page();
            let behind = (first + self.per_page()).min(self.len());
            let buffer = self.cache.get(page.no())?;
            change.put(&buffer, Stage::Fresh, |bytes| {
                // What lies behind the last block is not looked at; ones, as the Amiga leaves it.
                bytes.fill(0xff);
                (first..behind).filter(|&bit| !free.get(bit)).for_each(|bit| mark(bytes, bit - first, false));
                seal(bytes, 0);
            });
        }
        self.take_over(free);
        Ok(())
    }

    /// Changes the bits of these blocks on the device.
    fn put_marks(&self, change: &Change<'_>, blocks: &[Block], free: bool) -> Result<()> {
        let per_page = self.per_page();
        for group in blocks.chunk_by(|a, b| self.bit_of(*a) / per_page == self.bit_of(*b) / per_page) {
            let nth = self.bit_of(group[0]) / per_page;
            let buffer = self.cache.get(self.pages[nth].no())?;
            change.put(&buffer, Stage::Fresh, |bytes| {
                group.iter().for_each(|&block| mark(bytes, self.bit_of(block) - nth * per_page, free));
                seal(bytes, 0);
            });
        }
        Ok(())
    }

    /// So many free blocks, those behind `goal` first.
    pub fn take(&self, change: &Change<'_>, goal: Block, count: u64, claim: Claim) -> Result<Vec<Block>> {
        let blocks = {
            let mut state = self.state.lock();
            let (own_promise, kept) = match claim {
                Claim::Plain => (0, KEPT),
                Claim::Promised(promised) => (promised.min(count).min(state.promised), KEPT),
                Claim::Kept => (0, 0),
            };
            // What was promised is there, whatever became of the kept ones.
            let asked = count - own_promise;
            if asked > 0 && state.count < state.promised + asked + kept || state.count < count {
                return Err(NameError::NoSpace.into());
            }
            state.promised -= own_promise;
            let mut blocks = Vec::with_capacity(count as usize);
            let mut from = self.bit_of(Block(goal.0.clamp(self.shape.reserved, self.shape.blocks - 1)));
            while (blocks.len() as u64) < count {
                // The count says that there is one.
                let Some(bit) = state.free.next(from).or_else(|| state.free.next(0)) else { break };
                state.free.set(bit, false);
                blocks.push(self.block_of(bit));
                from = bit;
            }
            state.count -= blocks.len() as u64;
            blocks
        };
        self.put_marks(change, &blocks, false)?;
        Ok(blocks)
    }

    /// Gives up blocks that something durable may still point to. One that is free already is damage: nothing is given up then.
    pub fn give_up(&self, change: &Change<'_>, blocks: &[Block]) -> Result<()> {
        let mut state = self.state.lock();
        let twice = |block: &&Block| state.leaving.contains(block) || state.free.get(self.bit_of(**block));
        if let Some(&block) = blocks.iter().find(twice) {
            return Err(self
                .shape
                .damaged(block, "a block in use is marked as free, or belongs to two files"));
        }
        state.leaving.extend(blocks);
        blocks.iter().for_each(|&block| change.free(block.no().0..block.no().0 + 1));
        Ok(())
    }

    /// Promises blocks to what is to be written later.
    pub fn promise(&self, count: u64) -> Result<()> {
        let mut state = self.state.lock();
        if count > 0 && state.count < state.promised + count + KEPT {
            return Err(NameError::NoSpace.into());
        }
        state.promised += count;
        Ok(())
    }

    /// Takes a promise back.
    pub fn unpromise(&self, count: u64) {
        let mut state = self.state.lock();
        state.promised -= count.min(state.promised);
    }

    /// Whether a block is marked as free.
    pub fn is_free(&self, block: Block) -> bool {
        let state = self.state.lock();
        state.count > 0 && state.free.get(self.bit_of(block))
    }

    /// Free blocks: all, and those that anybody can have.
    pub fn figures(&self) -> (u64, u64) {
        let state = self.state.lock();
        let free = state.count + state.leaving.len() as u64;
        (free, free.saturating_sub(state.promised + KEPT))
    }

    /// Something was changed at this time.
    pub fn changed_at(&self, time: Timestamp) {
        let mut state = self.state.lock();
        state.newest = state.newest.max(Some(time));
    }

    /// The volume stays marked as in use: what was found on it says that its bitmap cannot be believed.
    pub fn keep_mark(&self) {
        self.keep_mark.store(true, Ordering::Release);
    }
}

fn mark(page: &mut [u8], at: usize, free: bool) {
    let word = 4 + at / 32 * 4;
    let old = get32(page, word);
    let bit = 1 << (at % 32);
    put32(page, word, if free { old | bit } else { old & !bit });
}

impl Volume for Space {
    fn mark(&self, change: &Change<'_>, at_work: bool) -> ivers_write_ordering::Result<()> {
        if !at_work && self.keep_mark.load(Ordering::Acquire) {
            return Ok(());
        }
        let root = self.cache.get(self.shape.root.no())?;
        let newest = self.state.lock().newest;
        change.put(&root, Stage::Fresh, |bytes| {
            put_tail32(bytes, tail::BM_FLAG, if at_work { 0 } else { BM_VALID });
            if let Some(newest) = newest {
                put_date(bytes, tail::VOLUME_DATE, newest);
            }
            seal(bytes, head::CHECKSUM);
        });
        Ok(())
    }

    fn release(&self, change: &Change<'_>, freed: &[Range<u64>]) -> ivers_write_ordering::Result<()> {
        let mut blocks: Vec<Block> =
            freed.iter().flat_map(|range| (range.start as u32..range.end as u32).map(Block)).collect();
        blocks.sort_unstable();
        // Who finds one now reads what it is made into, not what it was.
        blocks.iter().for_each(|&block| self.cache.forget(block.no()));
        let marked = self.put_marks(change, &blocks, true);
        let mut state = self.state.lock();
        for &block in &blocks {
            state.leaving.remove(&block);
            if !state.free.set(self.bit_of(block), true) {
                state.count += 1;
            }
        }
        marked.map_err(|error| ivers_write_ordering::OrderedError::Stopped { cause: error.to_string() })
    }
}
