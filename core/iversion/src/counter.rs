//! The counter itself. The crate's documentation has the promises, the bits and the pairs of fences.

use core::fmt;

use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU64, fence};
use crate::{INCREMENT, QUERIED, QUERIED_BITS, cmp};

/// An inode's version, and whether somebody has looked at it since the last bump.
///
/// The verbs carry the contract: `peek` has no effect, `query` marks the version as seen, `maybe_inc` is what
/// every change calls. Versions are 63 bits wide; of a wider argument bit 63 is lost. The `raw` calls are for
/// users whose version comes from elsewhere (the NFS and AFS clients: from the server) and is nobody's to
/// count here; it has all 64 bits and no flag, and such users call nothing but `set_raw` and `peek_raw`.
pub struct Counter(AtomicU64);

/// loom's atomics are no constants.
macro_rules! const_unless_loom {
    ($($(#[$attribute:meta])* pub fn $name:ident($value:ident: u64) -> Self $body:block)*) => {$(
        $(#[$attribute])* #[cfg(not(loom))] pub const fn $name($value: u64) -> Self $body
        $(#[$attribute])* #[cfg(loom)] pub fn $name($value: u64) -> Self $body
    )*};
}

impl Counter {
    const_unless_loom! {
        /// The counter of a fresh inode: at `value`, which nobody has seen.
        #[inline]
        #[must_use]
        pub fn new(value: u64) -> Self {
            Self(AtomicU64::new(value << QUERIED_BITS))
        }

        /// The counter of an inode that was loaded: at `value`, which anybody may have seen, so that the
        /// first change bumps it.
        #[inline]
        #[must_use]
        pub fn new_queried(value: u64) -> Self {
            Self(AtomicU64::new((value << QUERIED_BITS) | QUERIED))
        }
    }

    /// Replaces the whole word by `raw`.
    ///
    /// For self-managed users, and for putting back a word taken by [`peek_raw`](Self::peek_raw). Not atomic
    /// against a bump: the inode's owner serializes the two. What was stored before the call is visible to
    /// whoever peeks the new word.
    #[inline]
    pub fn set_raw(&self, raw: u64) {
        self.0.store(raw, Release);
    }

    /// Starts a fresh inode at `value`, which nobody has seen. Only before the inode is in use.
    ///
    /// A reused inode number is a new file with an old name: start above the version that the slot had.
    #[inline]
    pub fn set(&self, value: u64) {
        self.set_raw(value << QUERIED_BITS);
    }

    /// Starts an inode at a `value` that was loaded from a store, and that anybody may have seen. Only before
    /// the inode is in use.
    #[inline]
    pub fn set_queried(&self, value: u64) {
        self.set_raw((value << QUERIED_BITS) | QUERIED);
    }

    /// Called by every change, when it is visible: bumps the version if somebody has seen it, or if `force`
    /// is set.
    ///
    /// Returns whether it did. `false` means that the version alone is no reason to log the inode; after
    /// `true` it has to be logged: at once, or, where an epoch makes every value another one behind a crash, before the epoch is closed. Use `force` if the inode is logged anyhow, so that what is stored gets
    /// ahead as far as it can for free.
    #[inline]
    #[must_use = "a new version has to be logged with its inode; call `inc` if it will be in any case"]
    pub fn maybe_inc(&self, force: bool) -> bool {
        // Fence W, with Q1 and Q2 in `query`: the caller's data stores are before it, the look at QUERIED is
        // behind it.
        fence(SeqCst);
        self.look_and_bump(force)
    }

    /// [`maybe_inc`](Self::maybe_inc) without its fence, for a change that holds a lock under which everybody who
    /// sets QUERIED does so by [`query_under_lock`](Self::query_under_lock).
    ///
    /// The lock orders the two: a look that comes first is seen here; one that comes later sees the data, which was
    /// stored before this lock was given back. A change that takes such a lock anyway (to move the inode's times,
    /// say) has its look at QUERIED for the price of a load. An inode uses either this pair or `maybe_inc` and
    /// `query`, never both; a forced bump needs no lock.
    #[inline]
    #[must_use = "a new version has to be logged with its inode"]
    pub fn maybe_inc_under_lock(&self, force: bool) -> bool {
        self.look_and_bump(force)
    }

    #[inline]
    fn look_and_bump(&self, force: bool) -> bool {
        let mut raw = self.0.load(Relaxed);
        loop {
            if !force && raw & QUERIED == 0 {
                return false;
            }
            // Release: whoever sees the new version sees the data. A failure needs no order: it hands out
            // nothing, and what orders the look (fence or lock) is before every look in this loop.
            match self.0.compare_exchange_weak(raw, bumped(raw), AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => raw = now,
            }
        }
    }

    /// Bumps the version whether or not somebody has seen it: [`maybe_inc(true)`](Self::maybe_inc).
    #[inline]
    pub fn inc(&self) {
        let _always = self.maybe_inc(true);
    }

    /// Whether a change that completed now would bump the version without being forced.
    ///
    /// A hint, for deciding beforehand whether to start a transaction: it can turn true at any moment, so a
    /// change has to call `maybe_inc` even so.
    #[inline]
    #[must_use]
    pub fn need_inc(&self) -> bool {
        self.peek_raw() & QUERIED != 0
    }

    /// The whole word, without any effect: a self-managed user's version, or version and flag.
    #[inline]
    #[must_use]
    pub fn peek_raw(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// The version, without any effect. For storing it: nobody may keep it to compare with later, since no
    /// change will notice.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> u64 {
        self.peek_raw() >> QUERIED_BITS
    }

    /// The version, for keeping: marks it as seen, so that the next change gives a new one.
    ///
    /// Take it *before* reading what it is to vouch for.
    #[inline]
    #[must_use = "a query nobody uses makes the next change pay for nothing"]
    pub fn query(&self) -> u64 {
        let mut raw = self.0.load(Acquire);
        while raw & QUERIED == 0 {
            match self.0.compare_exchange_weak(raw, raw | QUERIED, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => raw = now,
            }
        }
        // Fences Q1 and Q2, with W in `maybe_inc`: QUERIED is before it, the caller's reads of the data are
        // behind it. Q2, when the bit was set by somebody else, is no less needed: he may not have reached
        // his own fence.
        fence(SeqCst);
        raw >> QUERIED_BITS
    }

    /// [`query`](Self::query) without its fences: the caller holds the lock that
    /// [`maybe_inc_under_lock`](Self::maybe_inc_under_lock) is called under.
    #[inline]
    #[must_use = "a query nobody uses makes the next change pay for nothing"]
    pub fn query_under_lock(&self) -> u64 {
        // Release, for `query_seen`: who finds the bit that is set here sees all that the lock has shown to us.
        self.0.fetch_or(QUERIED, AcqRel) >> QUERIED_BITS
    }

    /// The version, for keeping, if somebody has seen it already: [`query_under_lock`](Self::query_under_lock) without the
    /// lock, for those who come second.
    ///
    /// Every change that left this version alone did so before the bit was set under the lock, and Acquire shows what
    /// the one who set it could see; every later one finds the bit.
    #[inline]
    #[must_use]
    pub fn query_seen(&self) -> Option<u64> {
        let raw = self.0.load(Acquire);
        (raw & QUERIED != 0).then_some(raw >> QUERIED_BITS)
    }

    /// Compares with the version `old` as [`cmp`](crate::cmp) does: positive if this counter has moved on
    /// since.
    ///
    /// Has no effect. The version is not handed out, so nobody needs to be told when it changes.
    #[inline]
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "Linux's name; `Ord` would compare two counters")]
    pub fn cmp(&self, old: u64) -> i64 {
        cmp(self.peek(), old)
    }
}

/// The word after a bump: the next version, which nobody has seen.
const fn bumped(raw: u64) -> u64 {
    (raw & !QUERIED).wrapping_add(INCREMENT)
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = self.peek_raw();
        f.debug_struct("Counter")
            .field("value", &(raw >> QUERIED_BITS))
            .field("queried", &(raw & QUERIED != 0))
            .finish()
    }
}
