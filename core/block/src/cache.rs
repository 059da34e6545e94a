//! The buffer cache: metadata blocks in memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::read_ahead::RecentMisses;
use crate::write_in_place::{RUN_BYTES, write_units_in_place};
use crate::{BlockError, BlockNo, Budget, Buffer, Contents, Device, NumberMap, Result, Unit};

const SHARDS: usize = 32;
/// Memory of a cached block in bytes, beside its contents: the buffer, its reference counts, its entries in
/// map and clock.
const BUFFER_BYTES: u64 = 104;

/// A function that completes the bytes of a unit before the cache writes them in place; see
/// [`BufferCache::set_place_hook`].
pub type PlaceHook = Box<dyn Fn(&Unit, &mut [u8]) + Send + Sync>;

/// A cache of the blocks of one device.
///
/// Blocks are spread over several maps. Each map has its own lock, which is never held across device I/O.
/// While the [`Budget`] is over, the clock algorithm evicts clean buffers without other references. An
/// `Arc<Buffer>` pins its buffer: a journal keeps one until the block is written in place.
pub struct BufferCache {
    device: Arc<dyn Device>,
    block_size: u32,
    budget: Arc<Budget>,
    shards: [Mutex<Shard>; SHARDS],
    /// Held while dirty buffers are written, so that an older write of a block cannot follow a newer one.
    writeback: Mutex<()>,
    place_hook: OnceLock<PlaceHook>,
    misses: RecentMisses,
    reads: AtomicU64,
    device_reads: AtomicU64,
    hits: AtomicU64,
    writes: AtomicU64,
    evicted: AtomicU64,
}

/// Counts since the cache was created; see [`BufferCache::stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks read from the device.
    pub reads: u64,
    /// Reads of the device. One may read several blocks.
    pub device_reads: u64,
    /// Requests that found the block in memory.
    pub hits: u64,
    /// Blocks that the cache wrote in place. A journal counts its own.
    pub writes: u64,
    /// Buffers evicted because the budget was over.
    pub evicted: u64,
    /// Buffers in memory.
    pub buffers: u64,
}

#[derive(Default)]
struct Shard {
    /// By first block.
    map: NumberMap<BlockNo, Arc<Buffer>>,
    /// Blocks in the order in which the clock's hand visits them. Entries that are not in the map are
    /// skipped.
    clock: VecDeque<BlockNo>,
}

impl Shard {
    /// Evicts up to `wanted` buffers; examines at most `limit`, and each at most twice. Returns how many it
    /// evicted.
    fn evict(&mut self, wanted: usize, limit: usize) -> usize {
        let mut evicted = 0;
        for _ in 0..limit.min(2 * self.clock.len()) {
            if evicted == wanted {
                break;
            }
            let Some(block) = self.clock.pop_front() else { break };
            let Some(buffer) = self.map.get(&block) else { continue };
            // New references come from the map only, under this lock: a count of one stays one.
            if Arc::strong_count(buffer) == 1 && !buffer.is_dirty() && !buffer.take_referenced() {
                self.map.remove(&block);
                evicted += 1;
            } else {
                self.clock.push_back(block);
            }
        }
        evicted
    }

    fn insert(&mut self, block: BlockNo, buffer: Arc<Buffer>) {
        if self.clock.len() > 2 * self.map.len() + 64 {
            self.clock = self.map.keys().copied().collect();
        }
        self.map.insert(block, buffer);
        self.clock.push_back(block);
    }
}

impl BufferCache {
    /// Creates a cache of `device`, in blocks of `block_size` bytes.
    ///
    /// # Panics
    /// If `block_size` is not a power of two.
    pub fn new(device: Arc<dyn Device>, block_size: u32, budget: Arc<Budget>) -> Self {
        assert!(block_size.is_power_of_two(), "the block size must be a power of two");
        Self {
            device,
            block_size,
            budget,
            shards: std::array::from_fn(|_| Mutex::default()),
            writeback: Mutex::new(()),
            place_hook: OnceLock::new(),
            misses: RecentMisses::default(),
            reads: AtomicU64::new(0),
            device_reads: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The size of a block in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The bytes of a buffer of `unit`.
    pub fn len_of(&self, unit: &Unit) -> u32 {
        self.block_size * unit.len() as u32
    }

    /// The number of whole blocks on the device.
    pub fn blocks(&self) -> u64 {
        self.device.size_bytes() >> self.block_size.trailing_zeros()
    }

    /// The memory bound, which other caches share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Sets a function that completes the bytes of each buffer before the cache writes it in place, for
    /// example with a checksum. What it changes is not in the cached buffer. Only the first call counts.
    ///
    /// It must not use the cache.
    pub fn set_place_hook(&self, hook: PlaceHook) {
        let _ = self.place_hook.set(hook);
    }

    /// Returns the buffer of `block`; reads it from the device if it is not in memory.
    pub fn get(&self, block: BlockNo) -> Result<Arc<Buffer>> {
        self.get_buffer(block.into())
    }

    /// As [`BufferCache::get`], for several blocks in one buffer. Fails if the first block was changed as
    /// part of another unit: forget that one first.
    ///
    /// # Panics
    /// If there are no blocks.
    pub fn get_unit(&self, blocks: &[BlockNo]) -> Result<Arc<Buffer>> {
        self.get_buffer(Unit::new(blocks))
    }

    fn get_buffer(&self, unit: Unit) -> Result<Arc<Buffer>> {
        let buffer = self.find_or_insert(unit)?;
        if buffer.is_uptodate() {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(buffer);
        }
        let loaded = buffer.load(|| {
            let data = self.read_device(buffer.unit())?;
            self.device_reads.fetch_add(buffer.unit().runs().count() as u64, Ordering::Relaxed);
            Ok(data)
        });
        match loaded {
            Ok(true) => self.reads.fetch_add(buffer.unit().len() as u64, Ordering::Relaxed),
            Ok(false) => self.hits.fetch_add(1, Ordering::Relaxed),
            Err(e) => return Err(e),
        };
        Ok(buffer)
    }

    /// Reads a unit from the device, past the cache.
    pub fn read_device(&self, unit: &Unit) -> Result<Contents> {
        let size = self.block_size as usize;
        let mut data = vec![0; self.len_of(unit) as usize];
        for (index, first, count) in unit.runs() {
            let run = &mut data[index * size..(index + count) * size];
            self.device.read_at(first.offset(self.block_size), run)?;
        }
        Ok(Contents::new(data, &self.budget))
    }

    /// As [`BufferCache::get`], for one of several blocks that are often read together, such as an inode
    /// table or a directory. If a neighbour in `range` was read from the device shortly before, missing
    /// neighbours are read with the same device read.
    pub fn get_in_range(&self, block: BlockNo, range: Range<BlockNo>) -> Result<Arc<Buffer>> {
        let buffer = self.find_or_insert(block.into())?;
        if buffer.is_uptodate() {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(buffer);
        }
        if let Some(window) = self.misses.window(block, &range) {
            self.read_run(block, window)?;
        }
        self.get(block)
    }

    /// Reads a block and its missing neighbours inside `window` with one device read. Reads nothing if
    /// another thread is reading or changing the block.
    fn read_run(&self, block: BlockNo, window: Range<BlockNo>) -> Result<()> {
        let is_missing = |block: BlockNo| self.peek(block).is_none();
        let (mut first, mut end) = (block, block + 1);
        while first > window.start && is_missing(BlockNo(first.0 - 1)) {
            first = BlockNo(first.0 - 1);
        }
        while end < window.end && end.0 < self.blocks() && is_missing(end) {
            end = BlockNo(end.0 + 1);
        }
        let mut buffers = Vec::new();
        for at in first.0..end.0 {
            buffers.push(self.find_or_insert(BlockNo(at).into())?);
        }
        // The buffers stay locked during the read: a newer version of a block could otherwise be loaded,
        // changed, written and evicted before this read's older one arrives. A lock that is taken ends the
        // run, so that no thread waits for two of them.
        let own = (block - first) as usize;
        let mut locked: Vec<_> = buffers.iter().map(|buffer| buffer.try_lock_unloaded()).collect();
        let after = locked[own..].iter().position(Option::is_none).map_or(locked.len(), |at| own + at);
        locked.truncate(after);
        let before = locked[..own.min(after)].iter().rposition(Option::is_none).map_or(0, |at| at + 1);
        let run: Vec<_> = locked.drain(before..).flatten().collect();
        drop(locked);
        if run.is_empty() {
            return Ok(());
        }
        let size = self.block_size as usize;
        let mut bytes = vec![0; run.len() * size];
        let start = first + before as u64;
        // A block after the one that is needed may be unreadable: that is no error of this read.
        if self.device.read_at(start.offset(self.block_size), &mut bytes).is_err() {
            return Ok(());
        }
        self.device_reads.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(run.len() as u64, Ordering::Relaxed);
        for (buffer, contents) in run.into_iter().zip(bytes.chunks_exact(size)) {
            buffer.load(Contents::new(contents, &self.budget));
        }
        Ok(())
    }

    /// Returns the buffer of `block` filled with zeros, without a read, for new metadata. It is verified
    /// and not dirty: the zeros are in memory only until a journal handle modifies the buffer.
    pub fn get_zeroed(&self, block: BlockNo) -> Result<Arc<Buffer>> {
        self.new_unit(&[block])
    }

    /// As [`get_zeroed`](Self::get_zeroed), for several blocks in one buffer. Drops a buffer that starts with
    /// the same block and has others: the blocks have a new use.
    ///
    /// # Panics
    /// If there are no blocks.
    pub fn new_unit(&self, blocks: &[BlockNo]) -> Result<Arc<Buffer>> {
        let unit = Unit::new(blocks);
        if let Some(other) = self.peek(unit.first()).filter(|other| *other.unit() != unit) {
            self.forget_unit(other.unit());
        }
        let len = self.len_of(&unit) as usize;
        let buffer = self.find_or_insert(unit)?;
        buffer.replace(Contents::zeroed(len, &self.budget));
        Ok(buffer)
    }

    /// Returns the buffer that starts with `block` if it is in memory.
    pub fn peek(&self, block: BlockNo) -> Option<Arc<Buffer>> {
        self.shard(block).lock().map.get(&block).filter(|b| b.is_uptodate()).cloned()
    }

    /// Drops `block`, which was freed, without writing it. When this returns, no write of it by the cache
    /// is in progress. A reference that another thread still holds is never written.
    pub fn forget(&self, block: BlockNo) {
        self.forget_unit(&block.into());
    }

    /// As [`forget`](Self::forget), for a unit. Does nothing if its blocks have a newer use.
    pub fn forget_unit(&self, unit: &Unit) {
        let mut shard = self.shard(unit.first()).lock();
        if shard.map.get(&unit.first()).is_none_or(|buffer| buffer.unit() != unit) {
            return;
        }
        let Some(buffer) = shard.map.remove(&unit.first()) else { return };
        drop(shard);
        self.budget.uncharge(BUFFER_BYTES);
        if buffer.clear_dirty() {
            drop(self.writeback.lock());
        }
        // A write that failed meanwhile marked it dirty again.
        buffer.clear_dirty();
    }

    /// Drops a unit, whose contents are obsolete, if it is clean and has no other reference.
    pub fn forget_unused(&self, unit: &Unit) {
        let mut shard = self.shard(unit.first()).lock();
        let is_unused = |b: &Arc<Buffer>| b.unit() == unit && Arc::strong_count(b) == 1 && !b.is_dirty();
        if shard.map.get(&unit.first()).is_some_and(is_unused) {
            shard.map.remove(&unit.first());
            self.budget.uncharge(BUFFER_BYTES);
        }
    }

    /// Writes every dirty buffer in place, in ascending order of blocks, then flushes the device.
    pub fn sync(&self) -> Result<()> {
        self.write_dirty()?;
        self.device.flush()
    }

    /// Writes every dirty buffer in place, without a flush.
    pub fn write_dirty(&self) -> Result<()> {
        let _order = self.writeback.lock();
        let mut dirty = Vec::new();
        for shard in &self.shards {
            dirty.extend(shard.lock().map.values().filter(|b| b.is_dirty()).cloned());
        }
        dirty.sort_unstable_by_key(|b| b.block());
        self.write_sorted(&dirty)
    }

    /// Writes those of `blocks` that are dirty in place, without a flush, for an fsync without a journal.
    pub fn write_blocks(&self, blocks: &[BlockNo]) -> Result<()> {
        let _order = self.writeback.lock();
        let mut dirty: Vec<_> =
            blocks.iter().filter_map(|&b| self.peek(b)).filter(|b| b.is_dirty()).collect();
        dirty.sort_unstable_by_key(|b| b.block());
        dirty.dedup_by_key(|b| b.block());
        self.write_sorted(&dirty)
    }

    /// Drops every clean buffer without other references. Call it after the device was written past the
    /// cache.
    pub fn invalidate(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.map.len();
            shard.map.retain(|_, b| Arc::strong_count(b) > 1 || b.is_dirty());
            self.budget.uncharge((before - shard.map.len()) as u64 * BUFFER_BYTES);
        }
    }

    /// Evicts until the budget is not over or nothing more can be evicted. Writes dirty buffers in place if
    /// clean ones do not suffice.
    pub fn shrink(&self) {
        for attempt in 0..2 {
            // Two rounds of the clock: the first may only clear REFERENCED.
            for _ in 0..2 {
                for shard in &self.shards {
                    while self.budget.over() {
                        let mut shard = shard.lock();
                        let all = shard.clock.len();
                        if self.count_evicted(shard.evict(32, all)) == 0 {
                            break;
                        }
                    }
                }
            }
            // A failed write leaves its buffers dirty: `sync` reports it.
            if !self.budget.over() || attempt == 1 || self.write_dirty().is_err() {
                return;
            }
        }
    }

    /// Evicts clean buffers without other references, about `bytes` of them.
    pub fn evict(&self, bytes: u64) {
        let each = (bytes / self.cost() / SHARDS as u64 + 1) as usize;
        for shard in &self.shards {
            let mut shard = shard.lock();
            // Most marks are clear after one round of the clock.
            let limit = 2 * each + 16;
            self.count_evicted(shard.evict(each, limit));
        }
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            reads: self.reads.load(Ordering::Relaxed),
            device_reads: self.device_reads.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            buffers: self.shards.iter().map(|s| s.lock().map.len() as u64).sum(),
        }
    }

    /// Memory of a cached block in bytes.
    fn cost(&self) -> u64 {
        Contents::cost(u64::from(self.block_size)) + BUFFER_BYTES
    }

    fn shard(&self, block: BlockNo) -> &Mutex<Shard> {
        // Neighbours map to different shards, and so do blocks at a distance of a power of two.
        let mixed = block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59;
        &self.shards[mixed as usize % SHARDS]
    }

    fn count_evicted(&self, n: usize) -> usize {
        self.evicted.fetch_add(n as u64, Ordering::Relaxed);
        self.budget.uncharge(n as u64 * BUFFER_BYTES);
        n
    }

    fn find_or_insert(&self, unit: Unit) -> Result<Arc<Buffer>> {
        let blocks = self.blocks();
        if let Some(block) = unit.iter().find(|block| block.0 >= blocks) {
            return Err(BlockError::OutOfRange {
                what: "read",
                device: self.device.describe(),
                offset: block.offset(self.block_size),
                len: u64::from(self.block_size),
                size_bytes: self.device.size_bytes(),
            });
        }
        let block = unit.first();
        let mut shard = self.shard(block).lock();
        if let Some(buffer) = shard.map.get(&block) {
            if *buffer.unit() == unit {
                buffer.touch();
                return Ok(buffer.clone());
            }
            if Arc::strong_count(buffer) > 1 || buffer.is_dirty() {
                return Err(BlockError::OtherUnit { device: self.device.describe(), block });
            }
            shard.map.remove(&block);
            self.budget.uncharge(BUFFER_BYTES);
        }
        let mut full = false;
        if self.budget.over() {
            full = self.count_evicted(shard.evict(4, 64)) == 0;
        }
        let buffer = Arc::new(Buffer::unloaded(unit));
        shard.insert(block, buffer.clone());
        self.budget.charge(BUFFER_BYTES);
        drop(shard);
        // This shard has nothing to evict: for one block in 64, search all shards.
        if full && self.budget.over() && block.0.is_multiple_of(64) {
            self.shrink();
        }
        Ok(buffer)
    }

    /// Writes buffers, sorted by block; joins neighbours. The caller holds `writeback`.
    fn write_sorted(&self, dirty: &[Arc<Buffer>]) -> Result<()> {
        let mut result = Ok(());
        let mut run_bytes = 0;
        let mut run: Vec<(&Arc<Buffer>, Contents)> = Vec::new();
        let write_run = |run: &mut Vec<(&Arc<Buffer>, Contents)>| {
            let units = run.iter().map(|(buffer, data)| (buffer.unit(), &**data));
            let written = write_units_in_place(&*self.device, self.block_size, units);
            let blocks: usize = run.iter().map(|(buffer, _)| buffer.unit().len()).sum();
            self.writes.fetch_add(blocks as u64, Ordering::Relaxed);
            run.drain(..).for_each(|(buffer, _)| buffer.end_write(written.is_ok()));
            written
        };
        for buffer in dirty {
            let last = run.last().and_then(|(last, _)| last.unit().last());
            if last.is_none_or(|last| *last + 1 != buffer.block()) || run_bytes >= RUN_BYTES {
                result = result.and(write_run(&mut run));
                run_bytes = 0;
            }
            if let Some(mut data) = buffer.start_write() {
                if let Some(hook) = self.place_hook.get() {
                    hook(buffer.unit(), data.make_mut());
                }
                run_bytes += data.len();
                run.push((buffer, data));
            }
        }
        result.and(write_run(&mut run))
    }
}

impl Drop for BufferCache {
    fn drop(&mut self) {
        let kept: usize = self.shards.iter_mut().map(|s| s.get_mut().map.len()).sum();
        self.budget.uncharge(kept as u64 * BUFFER_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteOffset, FaultDevice, MemDevice};

    fn cache(budget: u64) -> (Arc<FaultDevice>, BufferCache) {
        let device = Arc::new(FaultDevice::new(Arc::new(MemDevice::new(8 << 20))));
        (device.clone(), BufferCache::new(device, 1024, Arc::new(Budget::new(budget))))
    }

    fn dirty(cache: &BufferCache, block: BlockNo, fill: u8) {
        let buffer = cache.get(block).unwrap();
        buffer.modify(|bytes| bytes.fill(fill));
        buffer.mark_dirty();
    }

    #[test]
    fn eviction_spares_dirty_and_referenced_buffers() {
        let (device, cache) = cache(64 << 10);
        let held = cache.get(BlockNo(1)).unwrap();
        held.modify(|bytes| bytes[0] = 1);
        dirty(&cache, BlockNo(2), 2);
        for block in 100..4000 {
            cache.get(BlockNo(block)).unwrap();
            assert!(cache.budget().used() <= (64 << 10) + 40 * cache.cost(), "block {block}");
        }
        assert_eq!(cache.get(BlockNo(1)).unwrap().read()[0], 1);
        assert_eq!(cache.get(BlockNo(2)).unwrap().read()[0], 2);
        let stats = cache.stats();
        assert!(stats.evicted > 3000 && stats.reads == 3902, "{stats:?}");
        drop(held);
        // Only dirty buffers: `shrink` writes them in place.
        (4000..4200).for_each(|block| dirty(&cache, BlockNo(block), 3));
        cache.shrink();
        assert!(!cache.budget().over());
        assert!(device.writes() > 0);
        assert_eq!(cache.get(BlockNo(4100)).unwrap().read()[9], 3);
        let budget = cache.budget().clone();
        drop(cache);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn everything_unused_can_be_evicted_at_once() {
        let (_, cache) = cache(8 << 20);
        // Twice: each has its mark.
        for block in (0..1000).chain(0..1000) {
            cache.get(BlockNo(block)).unwrap();
        }
        dirty(&cache, BlockNo(7), 1);
        let held = cache.get(BlockNo(8)).unwrap();
        cache.evict(u64::MAX);
        assert_eq!(cache.stats().buffers, 2);
        drop(held);
    }

    #[test]
    fn forgotten_blocks_are_not_written() {
        let (device, cache) = cache(u64::MAX);
        (10..14).for_each(|block| dirty(&cache, BlockNo(block), 7));
        let held = cache.get(BlockNo(11)).unwrap();
        cache.forget(BlockNo(11));
        cache.sync().unwrap();
        assert!(!held.is_dirty());
        let mut bytes = vec![0; 4096];
        device.read_at(ByteOffset(10 * 1024), &mut bytes).unwrap();
        assert!(bytes[..1024].iter().all(|&b| b == 7) && bytes[1024..2048].iter().all(|&b| b == 0));
        assert_eq!((device.writes(), cache.stats().writes), (2, 3));
        cache.sync().unwrap();
        assert_eq!(device.writes(), 2);
        cache.forget_unused(&BlockNo(12).into());
        cache.forget_unused(&BlockNo(13).into());
        assert_eq!(cache.stats().buffers, 1);
    }

    #[test]
    fn failures_leave_buffers_dirty_and_loads_repeatable() {
        let (device, cache) = cache(u64::MAX);
        dirty(&cache, BlockNo(5), 1);
        device.fail_writes_from(Some(0));
        assert!(cache.sync().is_err());
        device.fail_writes_from(None);
        assert!(cache.get(BlockNo(5)).unwrap().is_dirty());
        cache.sync().unwrap();
        device.fail_reads(ByteOffset(20 * 1024), 1);
        let error = cache.get(BlockNo(20)).unwrap_err();
        assert_eq!(error.offset(), Some(ByteOffset(20 * 1024)));
        assert!(cache.peek(BlockNo(20)).is_none());
        assert!(matches!(cache.get(BlockNo(8192)), Err(BlockError::OutOfRange { .. })));
        assert!(cache.get(BlockNo(u64::MAX)).is_err());
        let fresh = cache.get_zeroed(BlockNo(20)).unwrap();
        assert!(fresh.is_verified() && fresh.read().iter().all(|&b| b == 0));
    }

    #[test]
    fn a_reload_is_not_verified() {
        let (device, cache) = cache(u64::MAX);
        cache.get(BlockNo(3)).unwrap().set_verified();
        assert!(cache.get(BlockNo(3)).unwrap().is_verified());
        device.write_at(ByteOffset(3 * 1024), &[8; 1024]).unwrap();
        cache.invalidate();
        let again = cache.get(BlockNo(3)).unwrap();
        assert!(!again.is_verified() && again.read()[0] == 8);
    }

    #[test]
    fn threads_share_loads() {
        let (_, cache) = cache(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..4000u64 {
                        let block = (n * 7 + thread) % 500;
                        cache.get(BlockNo(block)).unwrap().modify(|bytes| bytes[thread as usize] += 1);
                    }
                });
            }
        });
        let total: u64 = (0..500)
            .map(|b| cache.get(BlockNo(b)).unwrap().read()[..4].iter().map(|&n| u64::from(n)).sum::<u64>())
            .sum();
        assert_eq!((total, cache.stats().reads), (16000, 500));
    }

    #[test]
    fn neighbours_of_a_recent_miss_are_read_together() {
        let (device, cache) = cache(1 << 20);
        let range = BlockNo(4)..BlockNo(24);
        for block in (0..32).map(BlockNo) {
            device.write_at(block.offset(1024), &[block.0 as u8; 1024]).unwrap();
        }
        let get = |block| cache.get_in_range(BlockNo(block), range.clone()).unwrap().read()[0];
        assert_eq!(get(9), 9);
        assert_eq!(
            (cache.stats().reads, cache.stats().device_reads),
            (1, 1),
            "a single miss reads one block"
        );
        // A block that is changed in memory is not overwritten by what the device has.
        let changed = cache.get(BlockNo(14)).unwrap();
        changed.modify(|bytes| bytes.fill(0xEE));
        changed.mark_dirty();
        assert_eq!(get(12), 12);
        assert_eq!(cache.stats().device_reads, 3, "blocks 10 to 13 came with one read");
        assert_eq!(cache.stats().reads, 6);
        assert_eq!((get(10), get(13), get(14)), (10, 13, 0xEE));
        assert_eq!(cache.stats().device_reads, 3);
        // Nothing outside the range is read.
        assert_eq!((get(4), get(23)), (4, 23));
        assert!(cache.peek(BlockNo(3)).is_none() && cache.peek(BlockNo(24)).is_none());
    }

    #[test]
    fn an_unreadable_neighbour_is_no_error() {
        let (device, cache) = cache(1 << 20);
        let range = BlockNo(0)..BlockNo(32);
        cache.get_in_range(BlockNo(1), range.clone()).unwrap();
        device.fail_reads(ByteOffset(20 * 1024), 1024);
        cache.get_in_range(BlockNo(2), range.clone()).unwrap();
        assert!(cache.get_in_range(BlockNo(20), range).is_err());
    }

    #[test]
    fn units_are_read_written_and_forgotten_as_one() {
        let (device, cache) = cache(u64::MAX);
        for block in (0..32).map(BlockNo) {
            device.write_at(block.offset(1024), &[block.0 as u8; 1024]).unwrap();
        }
        let blocks = [20, 21, 7].map(BlockNo);
        let unit = cache.get_unit(&blocks).unwrap();
        let firsts = |bytes: &[u8]| [0, 1024, 2048].map(|at| bytes[at]);
        assert_eq!((firsts(&unit.read()), cache.stats().device_reads), ([20, 21, 7], 2));
        assert_eq!((unit.block(), &unit.unit()[..]), (BlockNo(20), &blocks[..]));
        cache.set_place_hook(Box::new(|unit, bytes| bytes[1] = unit.len() as u8));
        unit.modify(|bytes| bytes.fill(9));
        unit.mark_dirty();
        assert!(matches!(cache.get(BlockNo(20)), Err(BlockError::OtherUnit { .. })));
        let writes = device.writes();
        cache.sync().unwrap();
        assert_eq!((device.writes() - writes, cache.stats().writes), (2, 3));
        let mut bytes = vec![0; 1024];
        device.read_at(BlockNo(7).offset(1024), &mut bytes).unwrap();
        assert_eq!(bytes, [9; 1024]);
        device.read_at(BlockNo(20).offset(1024), &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1], unit.read()[1]), (9, 3, 9));
        // A new use of the first block drops the unit, even if it is dirty.
        unit.mark_dirty();
        let one = cache.new_unit(&[BlockNo(20)]).unwrap();
        assert!(!unit.is_dirty() && one.read().len() == 1024);
        cache.forget_unit(unit.unit());
        assert!(Arc::ptr_eq(&cache.peek(BlockNo(20)).unwrap(), &one), "the unit has no buffer");
        drop(one);
        // A clean buffer without references is replaced.
        assert_eq!(firsts(&cache.get_unit(&blocks).unwrap().read()), [9, 9, 9]);
        assert!(cache.get_unit(&[BlockNo(1), BlockNo(8192)]).is_err());
    }
}
