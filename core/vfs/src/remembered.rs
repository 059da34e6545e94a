//! Inodes that a front end remembers by number while nothing uses them.
//!
//! A front end that gives inode numbers to others must accept them again at any time: the kernel behind a
//! FUSE mount may use each until it forgets it. An [`InodeRef`] for each would keep all these inodes in
//! memory. So the front end counts its references here, and the inode may leave memory and come back
//! ([`Vfs::recall`]). One entry takes about [`ENTRY_BYTES`], which count in the memory budget.
//!
//! | # | while an inode is remembered | established by |
//! |---|---|---|
//! | R1 | no other inode has its number: an orphan is deleted when it is forgotten | `Vfs::release` |
//! | R2 | a recall returns this inode, or an error | generation in the entry; `InodeOps::release_ino` |
//! | R3 | its change counter survives an eviction, stored or not | `Vfs::evict`, `Vfs::get` |
//!
//! The lock of a shard is a leaf. Only the caller of [`Vfs::remember`] adds an entry, and it has an
//! [`InodeRef`]: so an inode whose slot is busy or empty cannot become remembered at that moment.

use crate::error::{NameError, Result};
use crate::icache::Found;
use crate::inode::Inode;
use crate::memory::{is_sparse, mixed};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use crate::vfs::{InodeRef, Vfs};
use ivers_block::{Budget, NumberMap};
use std::sync::Arc;

/// Few under shuttle, as in the inode cache.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };
/// Memory of an entry in bytes, with its share of the table's free slots.
pub(crate) const ENTRY_BYTES: u64 = 48;
/// Memory of a kept counter in bytes.
const COUNTER_BYTES: u64 = 32;

struct Entry {
    references: u32,
    generation: u32,
    /// The directory in which it was last found. A hint.
    seen_in: Ino,
}

#[derive(Default)]
struct Shard {
    entries: NumberMap<Ino, Entry>,
    /// The counters of remembered inodes that are out of memory and store none.
    counters: NumberMap<Ino, u64>,
}

/// The shard of an inode. The last shard gets almost twice as many inodes as the first, and the others lie
/// between. So their tables, which double when they are full, do not grow at the same time.
fn shard_of(ino: Ino) -> usize {
    let mixed = mixed(ino);
    let share = (1.0 + mixed as f64 / (1_u64 << 32) as f64).log2();
    ((share * SHARDS as f64) as usize).min(SHARDS - 1)
}

/// The remembered inodes of a mount.
pub(crate) struct Remembered {
    shards: Vec<RankedMutex<rank::Leaf, Shard>>,
    budget: Arc<Budget>,
    /// Entries of all shards.
    count: AtomicUsize,
}

impl Remembered {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RankedMutex::default()).collect(),
            budget,
            count: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &RankedMutex<rank::Leaf, Shard> {
        &self.shards[shard_of(ino)]
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.shard(ino).lock().entries.contains_key(&ino)
    }

    /// Keeps the counter of an inode that leaves memory, if the inode is remembered.
    pub(crate) fn keep_counter(&self, ino: Ino, counter: u64) {
        let mut shard = self.shard(ino).lock();
        if shard.entries.contains_key(&ino) && shard.counters.insert(ino, counter).is_none() {
            self.budget.charge(COUNTER_BYTES);
        }
    }

    /// The counter that was kept for an inode, which is in memory again.
    pub(crate) fn take_counter(&self, ino: Ino, generation: u32) -> Option<u64> {
        let mut shard = self.shard(ino).lock();
        let counter = shard.counters.remove(&ino)?;
        self.budget.uncharge(COUNTER_BYTES);
        shard.entries.get(&ino).is_some_and(|entry| entry.generation == generation).then_some(counter)
    }

    /// Adds one reference. Returns whether it is the first.
    fn add(&self, inode: &Inode, seen_in: Ino) -> bool {
        let mut shard = self.shard(inode.ino).lock();
        let mut is_first = false;
        let entry = shard.entries.entry(inode.ino).or_insert_with(|| {
            is_first = true;
            Entry { references: 0, generation: inode.generation, seen_in }
        });
        // An inode whose count is saturated is never forgotten.
        entry.references = entry.references.saturating_add(1);
        entry.generation = inode.generation;
        if seen_in != inode.ino {
            entry.seen_in = seen_in;
        }
        drop(shard);
        if is_first {
            self.budget.charge(ENTRY_BYTES);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_first
    }

    /// Removes references. Returns whether the last one is gone.
    fn remove(&self, ino: Ino, references: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(entry) = shard.entries.get_mut(&ino) else { return false };
        if entry.references == u32::MAX {
            return false;
        }
        let left = u64::from(entry.references).saturating_sub(references);
        if left > 0 {
            entry.references = left as u32;
            return false;
        }
        shard.entries.remove(&ino);
        let kept = shard.counters.remove(&ino).is_some();
        if is_sparse(shard.entries.len(), shard.entries.capacity(), 8) {
            shard.entries.shrink_to_fit();
            shard.counters.shrink_to_fit();
        }
        drop(shard);
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.budget.uncharge(ENTRY_BYTES + if kept { COUNTER_BYTES } else { 0 });
        true
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let Shard { entries, counters } = std::mem::take(&mut *shard.lock());
            self.count.fetch_sub(entries.len(), Ordering::Relaxed);
            self.budget.uncharge(ENTRY_BYTES * entries.len() as u64 + COUNTER_BYTES * counters.len() as u64);
        }
    }
}

impl Vfs {
    /// Counts a reference by number. `seen_in` is the directory in which the inode was found, or its own
    /// number if that is unknown. Returns whether it is the only reference of this kind.
    pub fn remember(&self, inode: &InodeRef, seen_in: Ino) -> bool {
        self.remembered.add(inode, seen_in)
    }

    /// Whether a front end remembers this inode number.
    pub fn is_remembered(&self, ino: Ino) -> bool {
        self.remembered.contains(ino)
    }

    /// Notes that a remembered inode has moved to another directory.
    pub fn note_moved(&self, ino: Ino, seen_in: Ino) {
        if let Some(entry) = self.remembered.shard(ino).lock().entries.get_mut(&ino) {
            entry.seen_in = seen_in;
        }
    }

    /// Drops references that [`Vfs::remember`] counted. Returns whether the last one is gone: then call
    /// [`Vfs::release_forgotten`] without locks.
    pub fn forget(&self, ino: Ino, references: u64) -> bool {
        self.remembered.remove(ino, references)
    }

    /// Deletes an orphan that was only remembered, and lets the driver release the inode number. May write.
    pub fn release_forgotten(&self, ino: Ino) {
        // The last user of an orphan deletes it.
        let use_once = |inode: Arc<Inode>| drop(self.counted(inode));
        if self.info.persistent_inos {
            return self.inodes.peek(ino).map_or((), use_once);
        }
        match self.inodes.find(ino) {
            Found::Ready(inode) => use_once(inode),
            Found::Vacant(claim) => {
                self.release_ino(ino);
                drop(claim);
            }
        }
    }

    /// Lets the driver release the number of an inode that is out of memory. Its slot is busy.
    pub(crate) fn release_ino(&self, ino: Ino) {
        if !self.info.persistent_inos && !self.remembered.contains(ino) {
            self.fs.release_ino(ino);
        }
    }

    /// Forgets all remembered inodes and deletes the orphans among them: the front end is gone.
    pub fn forget_all(&self) {
        self.remembered.clear();
        for ino in self.inodes.all() {
            if let Some(inode) = self.inodes.peek(ino) {
                drop(self.counted(inode));
            }
        }
    }

    /// The remembered inode with this number; `Stale` if none is remembered.
    pub fn recall(&self, ino: Ino) -> Result<InodeRef> {
        let Some(generation) = self.remembered.shard(ino).lock().entries.get(&ino).map(|e| e.generation)
        else {
            return Err(NameError::Stale.into());
        };
        self.get_generation(ino, generation)
    }

    /// The directory in which a remembered inode was last found. A hint.
    pub fn seen_in(&self, ino: Ino) -> Option<Ino> {
        self.remembered.shard(ino).lock().entries.get(&ino).map(|entry| entry.seen_in)
    }

    /// Whether the inode with this number is in memory.
    pub fn is_in_memory(&self, ino: Ino) -> bool {
        self.inodes.contains(ino)
    }

    /// How many inodes are remembered.
    pub fn remembered_inodes(&self) -> usize {
        self.remembered.count.load(Ordering::Relaxed)
    }

    /// How many remembered inodes take this many bytes, apart from those in memory.
    pub const fn remembered_inodes_in(bytes: u64) -> usize {
        (bytes / ENTRY_BYTES) as usize
    }

    /// The bound of all caches in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory.budget.limit()
    }

    /// Up to `most` remembered inodes that are out of memory, in no particular order. `hand` chooses where
    /// the search begins: give successive numbers.
    pub fn remembered_out_of_memory(&self, hand: usize, most: usize) -> Vec<Ino> {
        let sample: Vec<Ino> = {
            let shard = self.remembered.shards[hand % SHARDS].lock();
            let skipped = (hand / SHARDS).wrapping_mul(most) % shard.entries.len().max(1);
            shard.entries.keys().copied().skip(skipped).take(most).collect()
        };
        sample.into_iter().filter(|ino| !self.inodes.contains(*ino)).collect()
    }

    /// Gives an inode that was just loaded the counter that was kept for it.
    pub(crate) fn restore_counter(&self, inode: &Inode) {
        if inode.counter_not_stored
            && let Some(counter) = self.remembered.take_counter(inode.ino, inode.generation)
        {
            // An observer may have seen it.
            inode.counter.set_queried(counter);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_shards_grow_one_after_the_other() {
        let mut inodes = [0_u32; SHARDS];
        let mut doubled_at = Vec::new();
        for ino in 11..1_000_011 {
            let inodes = &mut inodes[shard_of(Ino(ino))];
            *inodes += 1;
            // The standard library's tables are full at seven eighths of a power of two.
            if *inodes == 7 << 11 {
                doubled_at.push(ino);
            }
        }
        assert_eq!(doubled_at.len(), SHARDS);
        let (first, last) = (doubled_at[0], doubled_at[SHARDS - 1]);
        assert!(last > first * 9 / 5, "the tables grow at {first} to {last} inodes");
        let most = doubled_at.windows(5).map(|some| some[4] * 100 / some[0]).min();
        assert!(most > Some(105), "five tables grow at once: {doubled_at:?}");
    }
}
