//! Inodes that a front end remembers by number while nothing uses them.
//!
//! A front end that gives inode numbers to others must accept them again at any time: the kernel behind a
//! FUSE mount may use each until it forgets it. An [`InodeRef`] for each would keep all these inodes in
//! memory. So the front end counts its references here, and the inode may leave memory and come back
//! ([`Vfs::recall`]). What is kept of it ([`group`]) counts in the memory budget.
//!
//! | # | while an inode is remembered | established by |
//! |---|---|---|
//! | R1 | no other inode has its number: an orphan is deleted when it is forgotten | `Vfs::release` |
//! | R2 | a recall returns this inode, or an error | generation in the entry; `InodeOps::release_ino` |
//! | R3 | its change counter survives an eviction, stored or not | `Vfs::evict`, `Vfs::get` |
//!
//! The lock of a shard is a leaf. Only the caller of [`Vfs::remember`] adds an entry, and it has an
//! [`InodeRef`]: so an inode whose slot is busy or empty cannot become remembered at that moment.

mod group;

use self::group::{Entry, Group, INODES, REFERENCES_MAX};
use crate::error::{NameError, Result};
use crate::icache::Found;
use crate::inode::Inode;
use crate::memory::{is_sparse, scattered};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use crate::vfs::{InodeRef, Vfs};
use ivers_block::{Budget, NumberMap};
use std::sync::Arc;

/// Few under shuttle, as in the inode cache.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };
/// Memory of a kept counter in bytes.
const COUNTER_BYTES: u64 = 32;

#[derive(Default)]
struct Shard {
    /// By the number of the group. None is empty.
    groups: NumberMap<u64, Group>,
    /// The counters of remembered inodes that are out of memory and store none.
    counters: NumberMap<Ino, u64>,
}

fn place(ino: Ino) -> (u64, u64) {
    (ino.0 / INODES, ino.0 % INODES)
}

impl Shard {
    fn get(&self, ino: Ino) -> Option<Entry> {
        let (group, nth) = place(ino);
        self.groups.get(&group)?.get(nth)
    }

    fn inodes(&self) -> usize {
        self.groups.values().map(Group::len).sum()
    }

    fn bytes(&self) -> u64 {
        self.groups.values().map(Group::bytes).sum::<u64>() + COUNTER_BYTES * self.counters.len() as u64
    }
}

/// The shard of an inode. The last shard gets almost twice as many groups as the first, and the others lie
/// between. So their tables, which double when they are full, do not grow at the same time.
fn shard_of(ino: Ino) -> usize {
    let share = (1.0 + scattered(place(ino).0) as f64 / (1_u64 << 32) as f64).log2();
    ((share * SHARDS as f64) as usize).min(SHARDS - 1)
}

/// The remembered inodes of a mount.
pub(crate) struct Remembered {
    shards: Vec<RankedMutex<rank::Leaf, Shard>>,
    budget: Arc<Budget>,
    /// Inodes of all shards.
    count: AtomicUsize,
    /// Memory of all shards in bytes, as charged to the budget.
    bytes: AtomicU64,
}

impl Remembered {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RankedMutex::default()).collect(),
            budget,
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &RankedMutex<rank::Leaf, Shard> {
        &self.shards[shard_of(ino)]
    }

    fn charge(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.charge(bytes);
    }

    fn uncharge(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.uncharge(bytes);
    }

    /// Accounts for a group that took `before` bytes and takes `after`. Under the lock of its shard, so that
    /// a later change of the group is not accounted for first.
    fn resized(&self, before: u64, after: u64) {
        match after.cmp(&before) {
            std::cmp::Ordering::Greater => self.charge(after - before),
            std::cmp::Ordering::Less => self.uncharge(before - after),
            std::cmp::Ordering::Equal => {}
        }
    }

    fn get(&self, ino: Ino) -> Option<Entry> {
        self.shard(ino).lock().get(ino)
    }

    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.get(ino).is_some()
    }

    /// Keeps the counter of an inode that leaves memory, if the inode is remembered.
    pub(crate) fn keep_counter(&self, ino: Ino, counter: u64) {
        let mut shard = self.shard(ino).lock();
        if shard.get(ino).is_some() && shard.counters.insert(ino, counter).is_none() {
            self.charge(COUNTER_BYTES);
        }
    }

    /// The counter that was kept for an inode, which is in memory again.
    pub(crate) fn take_counter(&self, ino: Ino, generation: u32) -> Option<u64> {
        let mut shard = self.shard(ino).lock();
        let counter = shard.counters.remove(&ino)?;
        self.uncharge(COUNTER_BYTES);
        shard.get(ino).is_some_and(|entry| entry.generation == generation).then_some(counter)
    }

    /// Adds one reference. Returns whether it is the first.
    fn add(&self, inode: &Inode, seen_in: Ino) -> bool {
        let (number, nth) = place(inode.ino);
        let mut shard = self.shard(inode.ino).lock();
        let group = shard.groups.entry(number).or_default();
        let before = if group.len() == 0 { 0 } else { group.bytes() };
        let old = group.get(nth);
        group.set(
            nth,
            Entry {
                references: old.map_or(0, |old| old.references).saturating_add(1),
                generation: inode.generation,
                seen_in: old.filter(|_| seen_in == inode.ino).map_or(seen_in, |old| old.seen_in),
            },
        );
        self.resized(before, group.bytes());
        if old.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        old.is_none()
    }

    /// Removes references. Returns whether the last one is gone.
    fn remove(&self, ino: Ino, references: u64) -> bool {
        let (number, nth) = place(ino);
        let mut shard = self.shard(ino).lock();
        let Some(group) = shard.groups.get_mut(&number) else { return false };
        let Some(entry) = group.get(nth) else { return false };
        if entry.references == REFERENCES_MAX {
            return false;
        }
        let left = u64::from(entry.references).saturating_sub(references);
        if left > 0 {
            group.set(nth, Entry { references: left as u32, ..entry });
            return false;
        }
        let before = group.bytes();
        group.remove(nth);
        if group.len() == 0 {
            shard.groups.remove(&number);
            self.uncharge(before);
        } else {
            self.resized(before, group.bytes());
        }
        if shard.counters.remove(&ino).is_some() {
            self.uncharge(COUNTER_BYTES);
        }
        if is_sparse(shard.groups.len(), shard.groups.capacity(), 8) {
            shard.groups.shrink_to_fit();
        }
        if is_sparse(shard.counters.len(), shard.counters.capacity(), 8) {
            shard.counters.shrink_to_fit();
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Removes all entries.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let removed = std::mem::take(&mut *shard.lock());
            self.count.fetch_sub(removed.inodes(), Ordering::Relaxed);
            self.uncharge(removed.bytes());
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
        let (number, nth) = place(ino);
        let mut shard = self.remembered.shard(ino).lock();
        let Some(group) = shard.groups.get_mut(&number) else { return };
        if let Some(entry) = group.get(nth) {
            let before = group.bytes();
            group.set(nth, Entry { seen_in, ..entry });
            self.remembered.resized(before, group.bytes());
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
        let entry = self.remembered.get(ino).ok_or(NameError::Stale)?;
        self.get_generation(ino, entry.generation)
    }

    /// The directory in which a remembered inode was last found. A hint.
    pub fn seen_in(&self, ino: Ino) -> Option<Ino> {
        self.remembered.get(ino).map(|entry| entry.seen_in)
    }

    /// Whether the inode with this number is in memory.
    pub fn is_in_memory(&self, ino: Ino) -> bool {
        self.inodes.contains(ino)
    }

    /// How many inodes are remembered.
    pub fn remembered_inodes(&self) -> usize {
        self.remembered.count.load(Ordering::Relaxed)
    }

    /// Memory of all remembered inodes in bytes, apart from those inodes that are in memory.
    pub fn remembered_bytes(&self) -> u64 {
        self.remembered.bytes.load(Ordering::Relaxed)
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
            let mut skipped = (hand / SHARDS).wrapping_mul(most) % shard.inodes().max(1);
            let later = shard.groups.iter().skip_while(|(_, group)| {
                let skips = group.len() <= skipped;
                skipped -= if skips { group.len() } else { 0 };
                skips
            });
            let inos =
                later.flat_map(|(number, group)| group.members().map(move |nth| Ino(number * INODES + nth)));
            inos.take(most).collect()
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
        let mut groups = [0_u32; SHARDS];
        let mut doubled_at = Vec::new();
        for number in 1..300_000 {
            let groups = &mut groups[shard_of(Ino(number * INODES))];
            *groups += 1;
            // The standard library's tables are full at seven eighths of a power of two.
            if *groups == 7 << 9 {
                doubled_at.push(number);
            }
        }
        assert_eq!(doubled_at.len(), SHARDS);
        let (first, last) = (doubled_at[0], doubled_at[SHARDS - 1]);
        assert!(last > first * 9 / 5, "the tables grow at {first} to {last} groups");
        let most = doubled_at.windows(5).map(|some| some[4] * 100 / some[0]).min();
        assert!(most > Some(105), "five tables grow at once: {doubled_at:?}");
    }
}
