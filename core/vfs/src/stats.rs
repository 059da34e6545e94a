//! Statistics of a mount (contract C5: every inode update has a counted cause).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Each thread counts in a separate shard, so that writers of different files share none.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS;
}

/// The counters that some of the threads use. Counters that follow from others are left out, so that a write
/// that dirties nothing counts once.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Shard {
    pub(crate) changes: AtomicU64,
    pub(crate) changes_logged: AtomicU64,
    pub(crate) queries: AtomicU64,
    pub(crate) bumps: AtomicU64,
    pub(crate) bumps_deferred: AtomicU64,
    pub(crate) bumps_forced: AtomicU64,
    pub(crate) inode_updates_times: AtomicU64,
    pub(crate) inode_updates_version: AtomicU64,
    pub(crate) inode_updates_allocation: AtomicU64,
    pub(crate) inode_updates_metadata: AtomicU64,
    pub(crate) data_bytes: AtomicU64,
    pub(crate) written_back_bytes: AtomicU64,
}

/// Live statistics of a mount. Each counter is exact; they are read without a common lock.
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
            /// Name and value of each counter, in a fixed order. The names are the JSON keys.
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
    /// Bumps of change counters.
    bumps,
    /// Bumps that `lazyversion` deferred: a query asked for them, and nothing else logged the inode.
    bumps_deferred,
    /// Bumps because a front end could not tell in time whether something had changed.
    bumps_forced,
    /// Changes that bumped nothing, because the counter was not queried.
    bumps_avoided,
    /// Inode updates in all: the sum of the four below.
    inode_updates,
    /// Inode updates because a time moved.
    inode_updates_times,
    /// Inode updates because the counter was queried. Deferred bumps count at write-back, unless something
    /// else logged the inode.
    inode_updates_version,
    /// Inode updates because write-back allocated blocks or moved the size on disk.
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
    /// The shard of the calling thread.
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
        // Read the subtrahends first: a concurrent change then makes a difference too large by one, never
        // negative.
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
            bumps_deferred: sum(|s| &s.bumps_deferred),
            bumps_forced: sum(|s| &s.bumps_forced),
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
