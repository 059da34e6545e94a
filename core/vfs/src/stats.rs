//! The counters that every mount keeps (contract C5: every inode update has a counted cause).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Threads count in lines of their own, so that two writers of two files do not pass one cache line to and fro.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS;
}

/// The part of the counters that some threads of a mount count in. What follows from others is not among them: a write
/// that dirties nothing is to pay for one.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Shard {
    pub(crate) changes: AtomicU64,
    pub(crate) changes_logged: AtomicU64,
    pub(crate) queries: AtomicU64,
    pub(crate) bumps: AtomicU64,
    pub(crate) bumps_put_off: AtomicU64,
    pub(crate) inode_updates_times: AtomicU64,
    pub(crate) inode_updates_version: AtomicU64,
    pub(crate) inode_updates_allocation: AtomicU64,
    pub(crate) inode_updates_metadata: AtomicU64,
    pub(crate) data_bytes: AtomicU64,
    pub(crate) written_back_bytes: AtomicU64,
}

/// Live counters of a mount. Each is exact; together they are read without a lock.
#[derive(Debug, Default)]
pub struct Stats {
    shards: [Shard; SHARDS],
}

macro_rules! snapshot {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A reading of [`Stats`].
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct StatsSnapshot { $($(#[$doc])* pub $name: u64),* }
        impl StatsSnapshot {
            /// Name and value of each counter, in a fixed order; the names are the JSON ones.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

snapshot! {
    /// Changes of data or metadata that completed.
    changes,
    /// Queries of the change attribute.
    queries,
    /// Times a counter was raised.
    bumps,
    /// Of those, the ones that `lazyversion` held back: somebody had looked, and nothing else asked for a log.
    bumps_put_off,
    /// Changes that nobody had looked at and that raised nothing.
    bumps_avoided,
    /// Inode updates in all: the sum of the four below.
    inode_updates,
    /// Inode updates because a time moved.
    inode_updates_times,
    /// Inode updates because the counter had been queried; under `lazyversion` at write-back, if nothing else has logged the inode since.
    inode_updates_version,
    /// Inode updates because write-back allocated or the size moved.
    inode_updates_allocation,
    /// Inode updates by explicit metadata calls and namespace changes.
    inode_updates_metadata,
    /// Changes that logged no inode.
    inode_updates_avoided,
    /// Bytes of file data written by callers.
    data_bytes,
    /// Bytes of file data written back to the device.
    written_back_bytes,
}

impl Stats {
    /// The counters that the calling thread counts in.
    pub fn mine(&self) -> &Shard {
        &self.shards[SHARD.with(|shard| *shard)]
    }

    /// Add one.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// Read all counters.
    pub fn snapshot(&self) -> StatsSnapshot {
        let sum = |of: fn(&Shard) -> &AtomicU64| -> u64 {
            self.shards.iter().map(|shard| of(shard).load(Relaxed)).sum()
        };
        // What is taken away is read first: a change in between makes a difference too large by one, never negative.
        let (bumps, logged) = (sum(|s| &s.bumps), sum(|s| &s.changes_logged));
        let changes = sum(|s| &s.changes);
        let times = sum(|s| &s.inode_updates_times);
        let version = sum(|s| &s.inode_updates_version);
        let allocation = sum(|s| &s.inode_updates_allocation);
        let metadata = sum(|s| &s.inode_updates_metadata);
        StatsSnapshot {
            changes,
            queries: sum(|s| &s.queries),
            bumps,
            bumps_put_off: sum(|s| &s.bumps_put_off),
            bumps_avoided: changes.saturating_sub(bumps),
            inode_updates: times + version + allocation + metadata,
            inode_updates_times: times,
            inode_updates_version: version,
            inode_updates_allocation: allocation,
            inode_updates_metadata: metadata,
            inode_updates_avoided: changes.saturating_sub(logged),
            data_bytes: sum(|s| &s.data_bytes),
            written_back_bytes: sum(|s| &s.written_back_bytes),
        }
    }
}
