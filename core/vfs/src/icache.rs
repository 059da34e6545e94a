//! The inode cache: at most one inode a number in memory at any time.
//!
//! A slot is ready or busy. It is busy while its inode is loaded, evicted or deleted; whoever wants it meanwhile waits,
//! so that no second inode of that number can come to be and no stale one can be written after a newer one was read.
//! Only inodes that nobody uses and that have nothing unwritten are evicted; users appear only under the shard's lock.

use crate::inode::Inode;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Mutex};
use crate::types::Ino;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Few where schedules are explored, or most steps of a schedule would be looks into empty shards.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };

enum Slot {
    Ready(Arc<Inode>),
    Busy,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<Ino, Slot>,
    /// In order of arrival, for second-chance eviction; entries of inodes that left are dropped when met.
    queue: VecDeque<(Ino, u64)>,
}

impl Shard {
    /// Drop the queue's entries of inodes that left, once they outnumber the others.
    fn tidy(&mut self) {
        if self.queue.len() > 2 * self.slots.len() + 256 {
            let slots = &self.slots;
            self.queue.retain(|(ino, id)| match slots.get(ino) {
                Some(Slot::Ready(inode)) => inode.cache_id.load(Ordering::Relaxed) == *id,
                _ => false,
            });
        }
    }
}

struct Locked {
    shard: Mutex<Shard>,
    wake: Condvar,
}

/// The inode cache.
pub(crate) struct InodeCache {
    shards: Vec<Locked>,
    next_id: AtomicU64,
}

/// What a search found.
pub(crate) enum Found<'a> {
    /// It is there and has one user more.
    Ready(Arc<Inode>),
    /// The slot is ours to fill; others wait.
    Vacant(Claim<'a>),
}

/// A busy slot that we own. Dropped without being filled, it becomes vacant.
pub(crate) struct Claim<'a> {
    cache: &'a InodeCache,
    ino: Ino,
}

impl Claim<'_> {
    /// Fill the slot with an inode that has one user: the caller.
    pub(crate) fn fill(self, inode: Arc<Inode>) -> Arc<Inode> {
        let locked = self.cache.locked(self.ino);
        let id = self.cache.next_id.fetch_add(1, Ordering::Relaxed);
        inode.cache_id.store(id, Ordering::Relaxed);
        inode.users.store(1, Ordering::Relaxed);
        let mut shard = locked.shard.lock();
        shard.slots.insert(self.ino, Slot::Ready(inode.clone()));
        shard.queue.push_back((self.ino, id));
        shard.tidy();
        locked.wake.notify_all();
        drop(shard);
        std::mem::forget(self);
        inode
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let locked = self.cache.locked(self.ino);
        let mut shard = locked.shard.lock();
        shard.slots.remove(&self.ino);
        locked.wake.notify_all();
    }
}

impl InodeCache {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS)
            .map(|_| Locked { shard: Mutex::new(Shard::default()), wake: Condvar::new() })
            .collect();
        Self { shards, next_id: AtomicU64::new(1) }
    }

    fn locked(&self, ino: Ino) -> &Locked {
        let mixed = ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }

    /// Find an inode or claim its slot; waits while the slot is busy.
    pub(crate) fn find(&self, ino: Ino) -> Found<'_> {
        let locked = self.locked(ino);
        let mut shard = locked.shard.lock();
        loop {
            match shard.slots.get(&ino) {
                Some(Slot::Ready(inode)) => {
                    inode.users.fetch_add(1, Ordering::Relaxed);
                    inode.recent.store(true, Ordering::Relaxed);
                    return Found::Ready(inode.clone());
                }
                Some(Slot::Busy) => locked.wake.wait(&mut shard),
                None => {
                    shard.slots.insert(ino, Slot::Busy);
                    return Found::Vacant(Claim { cache: self, ino });
                }
            }
        }
    }

    /// The inode if it is in memory, with one user more; never waits.
    pub(crate) fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        match self.locked(ino).shard.lock().slots.get(&ino) {
            Some(Slot::Ready(inode)) => {
                inode.users.fetch_add(1, Ordering::Relaxed);
                Some(inode.clone())
            }
            _ => None,
        }
    }

    /// Claim the slot of an inode that nobody uses and that `may_go`, to evict or delete it.
    pub(crate) fn claim_unused(
        &self,
        inode: &Arc<Inode>,
        may_go: impl FnOnce(&Inode) -> bool,
    ) -> Option<Claim<'_>> {
        let mut shard = self.locked(inode.ino).shard.lock();
        match shard.slots.get(&inode.ino) {
            Some(Slot::Ready(here)) if Arc::ptr_eq(here, inode) => {}
            _ => return None,
        }
        if inode.users.load(Ordering::Acquire) != 0 || !may_go(inode) {
            return None;
        }
        shard.slots.insert(inode.ino, Slot::Busy);
        Some(Claim { cache: self, ino: inode.ino })
    }

    pub(crate) const fn shards(&self) -> usize {
        SHARDS
    }

    /// The next inodes in eviction order of one shard; they go to the back of the queue.
    pub(crate) fn rotate(&self, shard: usize, count: usize) -> Vec<Arc<Inode>> {
        let mut shard = self.shards[shard].shard.lock();
        let count = count.min(shard.queue.len());
        let mut batch = Vec::with_capacity(count);
        for _ in 0..count {
            let Some((ino, id)) = shard.queue.pop_front() else { break };
            let keep = match shard.slots.get(&ino) {
                Some(Slot::Ready(inode)) if inode.cache_id.load(Ordering::Relaxed) == id => {
                    batch.push(inode.clone());
                    true
                }
                _ => false,
            };
            if keep {
                shard.queue.push_back((ino, id));
            }
        }
        batch
    }

    /// The numbers of all inodes in memory, in ascending order: what is done to all is done in the same order each time.
    pub(crate) fn all(&self) -> Vec<Ino> {
        let mut all = Vec::new();
        for locked in &self.shards {
            all.extend(locked.shard.lock().slots.keys().copied());
        }
        all.sort_unstable();
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|locked| locked.shard.lock().slots.len()).sum()
    }
}
