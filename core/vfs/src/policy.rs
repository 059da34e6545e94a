//! What a mount decides once: the mode of the counter, the clock, how times are kept, and its statistics.

use crate::stats::Stats;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::types::Timestamp;

/// When the change counter moves (mount option `iversion=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChangeMode {
    /// Only when somebody has looked, or when the inode is logged anyway.
    #[default]
    Lazy,
    /// At every change, as Linux did before 4.16.
    Eager,
    /// No cookie is served.
    Off,
}

/// How access times are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimeMode {
    /// Only when older than a change, or than a day.
    #[default]
    Relative,
    /// Never.
    Never,
    /// At every read.
    Strict,
}

/// The coarse clock of a mount.
pub trait Clock: Send + Sync + 'static {
    /// Now, at the granule of the clock's tick.
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

/// A clock that stands still until it is moved: for tests.
#[derive(Debug, Default)]
pub struct ManualClock(Mutex<Timestamp>);

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

/// What stays in memory, if it is all that is new of an inode, until something else logs that or writes it back, or a day passes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HeldBack {
    /// Times (`lazytime`).
    pub times: bool,
    /// A counter that was raised (`lazyversion`).
    pub version: bool,
}

/// The settled options of a mount that every inode looks at.
pub struct Policy {
    /// When the counter moves.
    pub mode: ChangeMode,
    /// What may wait.
    pub held_back: HeldBack,
    /// Access times.
    pub atime: AtimeMode,
    /// Nothing may change.
    pub read_only: bool,
    /// The counters.
    pub stats: Stats,
    clock: Box<dyn Clock>,
    granularity_ns: u32,
    next_unstored: AtomicU64,
    changed_without_cookie: AtomicBool,
}

impl Policy {
    /// A policy; `granularity_ns` is the granule of the format's times.
    pub fn new(
        mode: ChangeMode,
        held_back: HeldBack,
        atime: AtimeMode,
        read_only: bool,
        clock: Box<dyn Clock>,
        granularity_ns: u32,
    ) -> Self {
        Self {
            mode,
            held_back,
            atime,
            read_only,
            stats: Stats::default(),
            clock,
            granularity_ns,
            next_unstored: AtomicU64::new(1),
            changed_without_cookie: AtomicBool::new(false),
        }
    }

    /// The time that a change gets, at the granule of clock and format.
    pub fn now(&self) -> Timestamp {
        self.clock.now().truncate(self.granularity_ns)
    }

    /// The mount-wide counter of formats that store no version. An inode that is evicted and loaded again must start
    /// above all that it showed before, which [`Policy::retire_unstored_version`] sees to.
    pub fn next_unstored_version(&self) -> u64 {
        self.next_unstored.fetch_add(1, Ordering::Relaxed)
    }

    /// An inode whose version is stored nowhere leaves the cache at `last`: later loads start above it.
    pub fn retire_unstored_version(&self, last: u64) {
        self.next_unstored.fetch_max(last + 1, Ordering::Relaxed);
    }

    pub(crate) fn first_change_without_cookie(&self) {
        // Looked at first: a line that every write stored to would pass between the writers.
        if !self.changed_without_cookie.load(Ordering::Relaxed) {
            self.changed_without_cookie.store(true, Ordering::Relaxed);
        }
    }

    /// Whether anything changed while no cookie was served.
    pub fn has_changed_without_cookie(&self) -> bool {
        self.changed_without_cookie.load(Ordering::Relaxed)
    }
}
