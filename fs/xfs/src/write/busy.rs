//! Busy runs: blocks that lost an owner, while a crash could still bring it back.

use super::extent::FreeExtent;
use ivers_sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run that a transaction freed, or left with one owner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freed {
    pub ag: u32,
    pub extent: FreeExtent,
}

/// Group, first block, and a number: blocks may be freed twice before they are durably free.
type Key = (u32, u32, u64);

#[derive(Debug, Default)]
struct Runs {
    /// To the length.
    runs: BTreeMap<Key, u32>,
    next: u64,
    /// No run is longer.
    longest: u32,
    blocks: u64,
}

/// All busy runs of one sort.
#[derive(Debug, Clone, Default)]
pub(super) struct Busy(Arc<Mutex<Runs>>);

impl Busy {
    /// Adds runs, and returns how to remove them.
    pub(super) fn add(&self, freed: &[Freed]) -> Vec<Key> {
        let mut runs = self.0.lock();
        let mut add = |freed: &Freed| {
            runs.next += 1;
            let key = (freed.ag, freed.extent.start, runs.next);
            runs.runs.insert(key, freed.extent.len);
            runs.longest = runs.longest.max(freed.extent.len);
            runs.blocks += u64::from(freed.extent.len);
            key
        };
        freed.iter().map(&mut add).collect()
    }

    /// The transaction that changed their owners is durable.
    pub(super) fn remove(&self, keys: &[Key]) {
        let mut runs = self.0.lock();
        for key in keys {
            let len = runs.runs.remove(key).unwrap_or(0);
            runs.blocks -= u64::from(len);
        }
        if runs.runs.is_empty() {
            runs.longest = 0;
        }
    }

    /// The busy runs that overlap a range.
    pub(super) fn in_range(&self, ag: u32, start: u32, end: u32) -> Vec<FreeExtent> {
        let runs = self.0.lock();
        let from = (ag, start.saturating_sub(runs.longest), 0);
        let found = runs
            .runs
            .range(from..(ag, end, 0))
            .map(|((_, start, _), len)| FreeExtent { start: *start, len: *len });
        found.filter(|run| run.end() > start).collect()
    }

    pub(super) fn blocks(&self) -> u64 {
        self.0.lock().blocks
    }
}
