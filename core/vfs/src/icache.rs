//! The inode cache: at most one inode in memory for each inode number.
//!
//! A slot is ready or busy. It is busy while its inode is loaded, evicted or deleted. A thread that wants it
//! meanwhile waits, so that there is never a second inode with that number, and no old one is written after a
//! newer one was read. Only clean inodes that nobody uses are evicted; a new user is counted only under the
//! lock of the shard.

use crate::inode::Inode;
use crate::memory::{is_sparse, mixed};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, Held, RankedMutex, rank};
use crate::types::Ino;
use ivers_block::NumberMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Few under shuttle: most steps of a schedule would look into empty shards.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };

enum Slot {
    Ready(Arc<Inode>),
    Busy,
}

#[derive(Default)]
struct Shard {
    slots: NumberMap<Ino, Slot>,
    /// In order of arrival, for second-chance eviction. Entries of inodes that left are dropped when eviction
    /// meets them.
    queue: VecDeque<(Ino, u64)>,
}

impl Shard {
    /// Drops queue entries of inodes that left once they outnumber the others.
    fn tidy(&mut self) {
        if self.queue.len() > 2 * self.slots.len() + 256 {
            self.drop_outdated();
        }
    }

    /// Gives memory back when few of the slots are used.
    fn shrink_tables(&mut self) {
        if is_sparse(self.slots.len(), self.slots.capacity(), 4) {
            self.drop_outdated();
            self.slots.shrink_to_fit();
            self.queue.shrink_to_fit();
        }
    }

    fn drop_outdated(&mut self) {
        let slots = &self.slots;
        self.queue.retain(|(ino, id)| match slots.get(ino) {
            Some(Slot::Ready(inode)) => inode.cache_id.load(Ordering::Relaxed) == *id,
            _ => false,
        });
    }
}

struct Locked {
    shard: RankedMutex<rank::InodeShard, Shard>,
    wake: Condvar,
}

/// The inode cache.
pub(crate) struct InodeCache {
    shards: Vec<Locked>,
    next_id: AtomicU64,
}

/// Result of a search.
pub(crate) enum Found<'a> {
    /// It is cached; the caller is counted as a user.
    Ready(Arc<Inode>),
    /// The caller fills the slot; others wait.
    Vacant(Claim<'a>),
}

/// A busy slot that the caller owns. If it is dropped without being filled, the slot is empty again.
pub(crate) struct Claim<'a> {
    cache: &'a InodeCache,
    ino: Ino,
    is_filled: bool,
    _held: Held,
}

impl Claim<'_> {
    /// Fills the slot with an inode that has one user: the caller.
    pub(crate) fn fill(mut self, inode: Arc<Inode>) -> Arc<Inode> {
        let locked = self.cache.locked(self.ino);
        let id = self.cache.next_id.fetch_add(1, Ordering::Relaxed);
        inode.cache_id.store(id, Ordering::Relaxed);
        inode.users.store(1, Ordering::Relaxed);
        let mut shard = locked.shard.lock();
        shard.slots.insert(self.ino, Slot::Ready(inode.clone()));
        shard.queue.push_back((self.ino, id));
        shard.tidy();
        locked.wake.notify_all();
        self.is_filled = true;
        inode
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.is_filled {
            return;
        }
        let locked = self.cache.locked(self.ino);
        let mut shard = locked.shard.lock();
        shard.slots.remove(&self.ino);
        shard.shrink_tables();
        locked.wake.notify_all();
    }
}

impl InodeCache {
    pub(crate) fn new() -> Self {
        let shards =
            (0..SHARDS).map(|_| Locked { shard: RankedMutex::default(), wake: Condvar::new() }).collect();
        Self { shards, next_id: AtomicU64::new(1) }
    }

    fn locked(&self, ino: Ino) -> &Locked {
        &self.shards[mixed(ino) as usize % SHARDS]
    }

    /// Finds an inode or claims its slot; waits while the slot is busy.
    pub(crate) fn find(&self, ino: Ino) -> Found<'_> {
        let locked = self.locked(ino);
        let held = Held::before_waiting::<rank::InodeSlot>();
        let mut shard = locked.shard.lock();
        loop {
            match shard.slots.get(&ino) {
                Some(Slot::Ready(inode)) => {
                    inode.users.fetch_add(1, Ordering::Relaxed);
                    inode.recent.store(true, Ordering::Relaxed);
                    return Found::Ready(inode.clone());
                }
                Some(Slot::Busy) => shard.wait(&locked.wake),
                None => {
                    shard.slots.insert(ino, Slot::Busy);
                    return Found::Vacant(Claim { cache: self, ino, is_filled: false, _held: held });
                }
            }
        }
    }

    /// The inode if it is in memory, with the caller counted as a user; never waits.
    pub(crate) fn peek(&self, ino: Ino) -> Option<Arc<Inode>> {
        match self.locked(ino).shard.lock().slots.get(&ino) {
            Some(Slot::Ready(inode)) => {
                inode.users.fetch_add(1, Ordering::Relaxed);
                Some(inode.clone())
            }
            _ => None,
        }
    }

    /// Whether the inode is in memory, or about to be.
    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.locked(ino).shard.lock().slots.contains_key(&ino)
    }

    /// Claims the slot of an inode that nobody uses, if `may_go`, to evict or delete it.
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
        let _held = Held::without_waiting::<rank::InodeSlot>();
        Some(Claim { cache: self, ino: inode.ino, is_filled: false, _held })
    }

    pub(crate) const fn shards(&self) -> usize {
        SHARDS
    }

    /// Takes the next inodes of one shard in eviction order. Those that stay go back by
    /// [`InodeCache::put_back`].
    pub(crate) fn take_oldest(&self, shard: usize, count: usize) -> Vec<Arc<Inode>> {
        let mut shard = self.shards[shard].shard.lock();
        let shard = &mut *shard;
        let count = count.min(shard.queue.len());
        let inodes = shard.queue.drain(..count).filter_map(|(ino, id)| match shard.slots.get(&ino) {
            Some(Slot::Ready(inode)) if inode.cache_id.load(Ordering::Relaxed) == id => Some(inode.clone()),
            _ => None,
        });
        inodes.collect()
    }

    /// Puts inodes of one shard at the end of the eviction order.
    pub(crate) fn put_back(&self, shard: usize, inodes: &[Arc<Inode>]) {
        if !inodes.is_empty() {
            let ids = inodes.iter().map(|inode| (inode.ino, inode.cache_id.load(Ordering::Relaxed)));
            self.shards[shard].shard.lock().queue.extend(ids);
        }
    }

    /// The numbers of all inodes in memory, in ascending order, so that work on all of them is reproducible.
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
