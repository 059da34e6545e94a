//! The name cache: which inode number a directory has for a name, or that the name is absent.
//!
//! Entries are added and removed under the directory's lock. A shared lock is enough to cache a lookup, since
//! names change only under the exclusive lock. So an entry is right whenever that lock is held.
//!
//! Where several spellings are one name (case, short names:
//! [`FsInfo::names_alias`](crate::FsInfo::names_alias)), changing one spelling changes others that cannot be
//! listed. There an entry, also of an absent name, is valid only while the directory's change counter has the
//! value that it had when the entry was added. Adding queries the counter, so that the next change bumps it.
//! A server's directory has a number of its own for this, which changes by others raise and own ones do not.

use crate::inode::Inode;
use crate::memory::{is_sparse, scattered};
use crate::path_hints::PathHints;
use crate::sync::{RankedMutex, rank};
use crate::types::Ino;
use ivers_block::{Budget, NumberMap};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Few under shuttle, as in the inode cache.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };
/// Approximate memory of an entry in bytes, without its name.
const ENTRY_BYTES: u64 = 192;
/// Approximate memory of a directory in bytes, without its entries: most have few.
const DIRECTORY_BYTES: u64 = 192;

struct Entry {
    ino: Option<Ino>,
    /// The directory's counter when the entry was added; 0 where a name has one spelling.
    seen: u64,
    recent: bool,
}

#[derive(Default)]
struct Shard {
    directories: NumberMap<Ino, HashMap<Arc<[u8]>, Entry>>,
    /// In order of arrival, for second-chance eviction. Entries of removed names are dropped when eviction
    /// meets them.
    queue: VecDeque<(Ino, Arc<[u8]>)>,
    entries: usize,
}

impl Shard {
    /// Gives memory back when few of the places are used.
    fn shrink_tables(&mut self) {
        if is_sparse(self.queue.len(), self.queue.capacity(), 4) {
            self.queue.shrink_to_fit();
        }
        let directories = &mut self.directories;
        if is_sparse(directories.len(), directories.capacity(), 4) {
            directories.shrink_to_fit();
        }
    }

    /// Drops queue entries of removed names once they outnumber the others.
    fn tidy(&mut self) {
        if self.queue.len() > 2 * self.entries + 256 {
            let directories = &self.directories;
            self.queue
                .retain(|(dir, name)| directories.get(dir).is_some_and(|names| names.contains_key(name)));
        }
    }
}

/// The name cache.
pub(crate) struct NameCache {
    shards: Vec<RankedMutex<rank::Leaf, Shard>>,
    budget: Arc<Budget>,
    alias: bool,
    /// The reverse: names by inode.
    pub(crate) path_hints: PathHints,
}

fn cost(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

impl NameCache {
    /// `alias`: several spellings may be one name.
    pub(crate) fn new(budget: Arc<Budget>, alias: bool, path_hints: PathHints) -> Self {
        Self { shards: (0..SHARDS).map(|_| RankedMutex::default()).collect(), budget, alias, path_hints }
    }

    fn shard(&self, dir: Ino) -> &RankedMutex<rank::Leaf, Shard> {
        &self.shards[scattered(dir.0) as usize % SHARDS]
    }

    /// What is cached: nothing, absence, or an inode number.
    pub(crate) fn get(&self, dir: &Inode, name: &[u8]) -> Option<Option<Ino>> {
        let mut shard = self.shard(dir.ino).lock();
        let entry = shard.directories.get_mut(&dir.ino)?.get_mut(name)?;
        if self.alias && entry.seen != dir.names_now() {
            return None;
        }
        entry.recent = true;
        Some(entry.ino)
    }

    /// What vouches for entries that are added later: the directory's counter now.
    pub(crate) fn stamp(&self, dir: &Inode) -> u64 {
        if self.alias { dir.query_names() } else { 0 }
    }

    /// Adds or replaces an entry.
    pub(crate) fn put(&self, dir: &Inode, name: &[u8], ino: Option<Ino>) {
        self.put_stamped(dir, name, ino, self.stamp(dir));
    }

    /// Adds or replaces an entry that was read after `seen` was taken.
    pub(crate) fn put_stamped(&self, dir: &Inode, name: &[u8], ino: Option<Ino>, seen: u64) {
        if let Some(ino) = ino {
            self.path_hints.note(ino, dir.ino, name);
        }
        let mut shard = self.shard(dir.ino).lock();
        let shard = &mut *shard;
        let names = shard.directories.entry(dir.ino).or_insert_with(|| {
            self.budget.charge(DIRECTORY_BYTES);
            HashMap::new()
        });
        if let Some(entry) = names.get_mut(name) {
            (entry.ino, entry.seen) = (ino, seen);
            return;
        }
        let name: Arc<[u8]> = name.into();
        self.budget.charge(cost(&name));
        names.insert(name.clone(), Entry { ino, seen, recent: false });
        shard.queue.push_back((dir.ino, name));
        shard.entries += 1;
        shard.tidy();
    }

    /// Forgets a directory that leaves the cache.
    pub(crate) fn forget(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        if let Some(names) = shard.directories.remove(&dir) {
            shard.entries -= names.len();
            self.budget.uncharge(DIRECTORY_BYTES + names.keys().map(|name| cost(name)).sum::<u64>());
        }
    }

    /// Drops `count` and a part of the oldest entries of every shard, except those used recently. Returns how
    /// many.
    pub(crate) fn shrink(&self, count: usize) -> u64 {
        let mut gone = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let shard = &mut *shard;
            // All names of a large directory are in one shard.
            for _ in 0..(count + shard.queue.len() / 16).min(shard.queue.len()) {
                let Some((dir, name)) = shard.queue.pop_front() else { break };
                let Some(names) = shard.directories.get_mut(&dir) else { continue };
                let Some(entry) = names.get_mut(&name) else { continue };
                if std::mem::take(&mut entry.recent) {
                    shard.queue.push_back((dir, name));
                    continue;
                }
                names.remove(&name);
                if names.is_empty() {
                    shard.directories.remove(&dir);
                    self.budget.uncharge(DIRECTORY_BYTES);
                } else if is_sparse(names.len(), names.capacity(), 4) {
                    names.shrink_to_fit();
                }
                shard.entries -= 1;
                self.budget.uncharge(cost(&name));
                gone += 1;
            }
            shard.shrink_tables();
        }
        gone
    }

    /// Forgets a name after a failed change: the driver is asked next time.
    pub(crate) fn invalidate(&self, dir: Ino, name: &[u8]) {
        let mut shard = self.shard(dir).lock();
        let Some(names) = shard.directories.get_mut(&dir) else { return };
        if let Some((name, _)) = names.remove_entry(name) {
            shard.entries -= 1;
            self.budget.uncharge(cost(&name));
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            let names = shard.directories.values().flat_map(|names| names.keys());
            let directories = DIRECTORY_BYTES * shard.directories.len() as u64;
            self.budget.uncharge(directories + names.map(|name| cost(name)).sum::<u64>());
        }
    }

    /// Returns a cached name of an inode. Searches all names: only for messages.
    pub(crate) fn name_of(&self, ino: Ino) -> Option<Arc<[u8]>> {
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let mut names = shard.directories.values().flatten();
            names.find(|(_, entry)| entry.ino == Some(ino)).map(|(name, _)| name.clone())
        })
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries).sum()
    }
}
