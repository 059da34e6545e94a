//! Settings that are fixed at mount: the mode of the change counter, the clock, the handling of times; and
//! statistics.

use crate::stats::Stats;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{RankedMutex, rank};
use crate::types::Timestamp;

/// When the change counter is bumped (mount option `iversion=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChangeMode {
    /// Only after a query, or when the inode is logged anyway.
    #[default]
    Lazy,
    /// At every change, as Linux did before 4.16.
    Eager,
    /// No change attribute is served.
    Off,
}

/// When access times are updated (mount options `relatime`, `noatime`, `strictatime`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimeMode {
    /// Only when older than the last change, or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// At every read.
    Strict,
}

/// The coarse clock of a mount.
pub trait Clock: Send + Sync + 'static {
    /// Now, rounded down to a tick of the clock.
    fn now(&self) -> Timestamp;
}

/// CLOCK_REALTIME_COARSE.
#[derive(Debug, Default)]
pub struct CoarseClock;

impl Clock for CoarseClock {
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }
}

/// A clock for tests that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock(RankedMutex<rank::Leaf, Timestamp>);

impl ManualClock {
    /// Set the time.
    pub fn set(&self, now: Timestamp) {
        *self.0.lock() = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// Inode updates that are deferred until something else logs the inode, it is written back, or a day passes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DeferredUpdates {
    /// Times (`lazytime`).
    pub times: bool,
    /// A bump that only a query asked for (`lazyversion`).
    pub counter: bool,
}

/// The settings of a mount that every inode uses.
pub struct Policy {
    /// When the counter is bumped.
    pub mode: ChangeMode,
    /// Which updates are deferred.
    pub deferred: DeferredUpdates,
    /// Access times.
    pub atime: AtimeMode,
    /// Whether nothing may change.
    pub read_only: bool,
    /// Statistics of the mount.
    pub stats: Stats,
    clock: Box<dyn Clock>,
    granularity_ns: u32,
    next_unstored: AtomicU64,
    changed_unserved: AtomicBool,
}

impl Policy {
    /// `granularity_ns` is the granularity of the format's times.
    pub fn new(
        mode: ChangeMode,
        deferred: DeferredUpdates,
        atime: AtimeMode,
        read_only: bool,
        clock: Box<dyn Clock>,
        granularity_ns: u32,
    ) -> Self {
        Self {
            mode,
            deferred,
            atime,
            read_only,
            stats: Stats::default(),
            clock,
            granularity_ns,
            next_unstored: AtomicU64::new(1),
            changed_unserved: AtomicBool::new(false),
        }
    }

    /// The time of a change, rounded down to the granularity of clock and format.
    pub fn now(&self) -> Timestamp {
        self.clock.now().truncate(self.granularity_ns)
    }

    /// The mount-wide counter of formats that store none. An inode that is evicted and loaded again must
    /// start above every value that it showed; [`Policy::retire_unstored_counter`] ensures that.
    pub fn next_unstored_counter(&self) -> u64 {
        self.next_unstored.fetch_add(1, Ordering::Relaxed)
    }

    /// An inode whose counter is not stored leaves the cache with the value `last`: later loads start above
    /// it.
    pub fn retire_unstored_counter(&self, last: u64) {
        self.next_unstored.fetch_max(last + 1, Ordering::Relaxed);
    }

    pub(crate) fn note_unserved_change(&self) {
        // Load first: if every write stored to it, the cache line would move between the writers.
        if !self.changed_unserved.load(Ordering::Relaxed) {
            self.changed_unserved.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anything changed while no change attribute was served.
    pub fn has_unserved_change(&self) -> bool {
        self.changed_unserved.load(Ordering::Relaxed)
    }
}
