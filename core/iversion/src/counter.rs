//! The counter. The crate's documentation has the promises, the bits and the pairs of fences.

use core::fmt;

use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{AtomicU64, fence};
use crate::{INCREMENT, QUERIED, QUERIED_BITS, cmp};

/// An inode's change counter, and whether it was queried since the last bump.
///
/// The verbs carry the contract: `peek` has no effect, `query` sets QUERIED, every change calls `maybe_inc`.
/// Values are 63 bits wide; bit 63 of a wider argument is lost.
///
/// Call only `set_raw` and `peek_raw` if a server manages the value (the NFS and AFS clients). It then has
/// all 64 bits and no flag.
pub struct Counter(AtomicU64);

/// `const fn`, except under loom, whose atomics cannot be constants.
macro_rules! const_unless_loom {
    ($($(#[$attribute:meta])* pub fn $name:ident($value:ident: u64) -> Self $body:block)*) => {$(
        $(#[$attribute])* #[cfg(not(loom))] pub const fn $name($value: u64) -> Self $body
        $(#[$attribute])* #[cfg(loom)] pub fn $name($value: u64) -> Self $body
    )*};
}

impl Counter {
    const_unless_loom! {
        /// Returns the counter of a new inode. `value` was never queried.
        #[inline]
        #[must_use]
        pub fn new(value: u64) -> Self {
            Self(AtomicU64::new(value << QUERIED_BITS))
        }

        /// Returns the counter of a loaded inode. `value` may have been queried, so the first change bumps
        /// it.
        #[inline]
        #[must_use]
        pub fn new_queried(value: u64) -> Self {
            Self(AtomicU64::new((value << QUERIED_BITS) | QUERIED))
        }
    }

    /// Replaces the whole word by `raw`.
    ///
    /// For values that a server manages, and for restoring a word of [`peek_raw`](Self::peek_raw). Not atomic
    /// against a bump: the inode's owner serializes the two. A thread that peeks the new word sees all stores
    /// before this call.
    #[inline]
    pub fn set_raw(&self, raw: u64) {
        self.0.store(raw, Release);
    }

    /// Starts a new inode at `value`, which was never queried. Call it only before the inode is in use.
    ///
    /// For a reused inode number, start above the value that the slot had.
    #[inline]
    pub fn set(&self, value: u64) {
        self.set_raw(value << QUERIED_BITS);
    }

    /// Starts a loaded inode at `value`, which may have been queried. Call it only before the inode is in
    /// use.
    #[inline]
    pub fn set_queried(&self, value: u64) {
        self.set_raw((value << QUERIED_BITS) | QUERIED);
    }

    /// Bumps the counter if it was queried, or if `force` is set. Every change calls it after it became
    /// visible.
    ///
    /// Returns whether it bumped. After `false` the counter is no reason to log the inode. After `true` the
    /// inode must be logged: at once, or, where an epoch changes every value after a crash, before the epoch
    /// is closed. Set `force` if the inode is logged anyway: the bump then costs nothing, and the stored
    /// value stays current.
    #[inline]
    #[must_use = "a new value must be logged with its inode; call `inc` if it is logged in any case"]
    pub fn maybe_inc(&self, force: bool) -> bool {
        // Fence W, pairs with Q1 and Q2 in `query`: after the caller's data stores, before the load of
        // QUERIED.
        fence(SeqCst);
        self.bump_if_queried(force)
    }

    /// [`maybe_inc`](Self::maybe_inc) without its fence, for a change that holds a lock under which all
    /// observers set QUERIED, by [`query_under_lock`](Self::query_under_lock).
    ///
    /// The lock orders the two. A query before it is seen here. A query after it sees the data, which was
    /// stored before the lock was released. So a change that takes such a lock anyway checks QUERIED at the
    /// price of a load. An inode uses either this pair or `maybe_inc` and `query`, never both; a forced bump
    /// needs no lock.
    #[inline]
    #[must_use = "a new value must be logged with its inode"]
    pub fn maybe_inc_under_lock(&self, force: bool) -> bool {
        self.bump_if_queried(force)
    }

    #[inline]
    fn bump_if_queried(&self, force: bool) -> bool {
        let mut raw = self.0.load(Relaxed);
        loop {
            if !force && raw & QUERIED == 0 {
                return false;
            }
            // Release: a thread that sees the new value sees the data. A failure needs no order: it hands out
            // nothing, and the fence or lock that orders the check is before every load in this loop.
            match self.0.compare_exchange_weak(raw, bumped(raw), AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => raw = now,
            }
        }
    }

    /// Bumps the counter whether or not it was queried: [`maybe_inc(true)`](Self::maybe_inc).
    #[inline]
    pub fn inc(&self) {
        let _always = self.maybe_inc(true);
    }

    /// Returns whether a change that completed now would bump the counter without `force`.
    ///
    /// A hint, for deciding whether to start a transaction. It can become true at any moment, so the change
    /// must call `maybe_inc` in any case.
    #[inline]
    #[must_use]
    pub fn need_inc(&self) -> bool {
        self.peek_raw() & QUERIED != 0
    }

    /// Returns the whole word, without any effect: the server's value, or value and flag.
    #[inline]
    #[must_use]
    pub fn peek_raw(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Returns the value, without any effect. For storing it. Do not keep it to compare later: no change
    /// notices that it was read.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> u64 {
        self.peek_raw() >> QUERIED_BITS
    }

    /// Returns the value, for comparing later, and sets QUERIED, so that the next change gives a new value.
    ///
    /// Call it *before* reading the data that the value must vouch for.
    #[inline]
    #[must_use = "an unused query makes the next change log its inode for nothing"]
    pub fn query(&self) -> u64 {
        let mut raw = self.0.load(Acquire);
        while raw & QUERIED == 0 {
            match self.0.compare_exchange_weak(raw, raw | QUERIED, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => raw = now,
            }
        }
        // Fences Q1 and Q2, pair with W in `maybe_inc`: after QUERIED, before the caller's reads of the data.
        // Q2, when another observer set the bit, is needed too: that observer may not have reached its own
        // fence.
        fence(SeqCst);
        raw >> QUERIED_BITS
    }

    /// [`query`](Self::query) without its fences: the caller holds the lock that
    /// [`maybe_inc_under_lock`](Self::maybe_inc_under_lock) is called under.
    #[inline]
    #[must_use = "an unused query makes the next change log its inode for nothing"]
    pub fn query_under_lock(&self) -> u64 {
        // Release, for `query_seen`: a thread that finds this bit sees everything that the lock showed to us.
        self.0.fetch_or(QUERIED, AcqRel) >> QUERIED_BITS
    }

    /// Returns the value if QUERIED is set: [`query_under_lock`](Self::query_under_lock) without the lock,
    /// for later observers.
    ///
    /// Every change that did not bump this value completed before the bit was set under the lock, and Acquire
    /// shows what that observer could see. Every later change finds the bit.
    #[inline]
    #[must_use]
    pub fn query_seen(&self) -> Option<u64> {
        let raw = self.0.load(Acquire);
        (raw & QUERIED != 0).then_some(raw >> QUERIED_BITS)
    }

    /// Compares with the value `old` as [`cmp`](crate::cmp) does: positive if the counter rose since.
    ///
    /// Has no effect on the counter: no value is handed out.
    #[inline]
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "Linux's name; `Ord` would compare two counters")]
    pub fn cmp(&self, old: u64) -> i64 {
        cmp(self.peek(), old)
    }
}

/// Returns the word after a bump: the next value, not queried.
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
