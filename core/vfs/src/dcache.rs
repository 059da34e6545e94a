//! The name cache: what a directory says about a name, absence included.
//!
//! Entries are put in and taken out under the directory's lock (shared is enough to remember what a lookup found, since
//! names change only under the exclusive lock), so that an entry is right whenever that lock is held.
//!
//! Where several spellings are one name (case, short names: [`FileSystem::names_alias`](crate::FileSystem::names_alias)), a change of one is one of others that
//! nobody can list. There an entry is believed, absence included, only while the directory's change counter is what it was when the entry was put in: the counter is
//! marked as seen then, so that the next change moves it.

use crate::inode::Inode;
use crate::places::Places;
use crate::sync::Mutex;
use crate::types::Ino;
use ivers_block::Budget;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Few where schedules are explored, as in the inode cache.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 32 };
/// What an entry costs beside its name, roughly.
const ENTRY_BYTES: u64 = 128;

struct Entry {
    ino: Option<Ino>,
    /// The directory's counter when this was put in; 0 where names have one spelling.
    seen: u64,
    recent: bool,
}

#[derive(Default)]
struct Shard {
    directories: HashMap<Ino, HashMap<Arc<[u8]>, Entry>>,
    /// In order of arrival, for second-chance eviction; entries of names that left are dropped when met.
    queue: VecDeque<(Ino, Arc<[u8]>)>,
    entries: usize,
}

impl Shard {
    /// Drop the queue's entries of names that left, once they outnumber the others.
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
    shards: Vec<Mutex<Shard>>,
    budget: Arc<Budget>,
    alias: bool,
    /// The same the other way round.
    pub(crate) places: Places,
}

fn cost(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

impl NameCache {
    /// `alias`: several spellings may be one name.
    pub(crate) fn new(budget: Arc<Budget>, alias: bool, places: Places) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(), budget, alias, places }
    }

    fn shard(&self, dir: Ino) -> &Mutex<Shard> {
        let mixed = dir.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }

    /// What is known: nothing, absence, or an inode number.
    pub(crate) fn get(&self, dir: &Inode, name: &[u8]) -> Option<Option<Ino>> {
        let mut shard = self.shard(dir.ino).lock();
        let entry = shard.directories.get_mut(&dir.ino)?.get_mut(name)?;
        if self.alias && entry.seen != dir.version.peek() {
            return None;
        }
        entry.recent = true;
        Some(entry.ino)
    }

    /// Remember.
    pub(crate) fn put(&self, dir: &Inode, name: &[u8], ino: Option<Ino>) {
        if let Some(ino) = ino {
            self.places.note(ino, dir.ino, name);
        }
        let seen = if self.alias { dir.query() } else { 0 };
        let mut shard = self.shard(dir.ino).lock();
        let shard = &mut *shard;
        let names = shard.directories.entry(dir.ino).or_default();
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

    /// Forget a directory that is gone.
    pub(crate) fn forget(&self, dir: Ino) {
        let mut shard = self.shard(dir).lock();
        if let Some(names) = shard.directories.remove(&dir) {
            shard.entries -= names.len();
            self.budget.uncharge(names.keys().map(|name| cost(name)).sum());
        }
    }

    /// Give up to `count` of every shard's oldest entries up, those lately used excepted; says how many went.
    pub(crate) fn shrink(&self, count: usize) -> u64 {
        let mut gone = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let shard = &mut *shard;
            for _ in 0..count.min(shard.queue.len()) {
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
                }
                shard.entries -= 1;
                self.budget.uncharge(cost(&name));
                gone += 1;
            }
        }
        gone
    }

    /// Forget what is known of a name: a change failed half-way, ask the driver.
    pub(crate) fn doubt(&self, dir: Ino, name: &[u8]) {
        let mut shard = self.shard(dir).lock();
        let Some(names) = shard.directories.get_mut(&dir) else { return };
        if let Some((name, _)) = names.remove_entry(name) {
            shard.entries -= 1;
            self.budget.uncharge(cost(&name));
        }
    }

    /// Give everything back.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            let names = shard.directories.values().flat_map(|names| names.keys());
            self.budget.uncharge(names.map(|name| cost(name)).sum());
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries).sum()
    }
}
