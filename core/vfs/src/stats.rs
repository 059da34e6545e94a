//! The counters that every mount keeps (contract C5: every inode update has a counted cause).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Threads count in lines of their own, so that two writers of two files do not pass one cache line to and fro.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS;
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The part of the counters that some threads of a mount count in.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Shard { $($(#[$doc])* pub $name: AtomicU64),* }
        /// Live counters of a mount. Each is exact; together they are read without a lock.
        #[derive(Debug, Default)]
        pub struct Stats { shards: [Shard; SHARDS] }
        /// A reading of [`Stats`].
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct StatsSnapshot { $($(#[$doc])* pub $name: u64),* }
        impl Stats {
            /// Read all counters.
            pub fn snapshot(&self) -> StatsSnapshot {
                StatsSnapshot { $($name: self.shards.iter().map(|shard| shard.$name.load(Relaxed)).sum()),* }
            }
        }
        impl StatsSnapshot {
            /// Name and value of each counter, in a fixed order; the names are the JSON ones.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

stats! {
    /// Changes of data or metadata that completed.
    changes,
    /// Queries of the change attribute.
    queries,
    /// Times a counter was raised.
    bumps,
    /// Changes that nobody had looked at and that raised nothing.
    bumps_avoided,
    /// Inode updates in all: the sum of the four below.
    inode_updates,
    /// Inode updates because a time moved.
    inode_updates_times,
    /// Inode updates because the counter had been queried.
    inode_updates_version,
    /// Inode updates because write-back allocated or the size moved.
    inode_updates_allocation,
    /// Inode updates by explicit metadata calls and namespace changes.
    inode_updates_metadata,
    /// Changes that dirtied no inode.
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
}
