//! A change counter for inodes that is bumped only when somebody has looked.
//!
//! An observer (an NFS server, a backup program, a cache) asks for an inode's version, keeps it, and asks
//! again later: if the two differ the inode has changed in between, if they are equal it has not. A plain
//! counter gives that at the price of one logged inode update for every write. But nobody compares against a
//! value that was never handed out, so a bump is owed only by the first change after a look. [`Counter`]
//! keeps one bit that says whether somebody has looked; as long as it is clear, [`Counter::maybe_inc`]
//! changes nothing and says so, and the inode need not be logged for the version's sake.
//!
//! ```
//! use iversion::Counter;
//!
//! let version = Counter::new(7);
//! assert!(!version.maybe_inc(false)); // nobody has looked: nothing to do, nothing to log
//! let before = version.query(); // now somebody has
//! assert!(version.maybe_inc(false)); // so the next change bumps ...
//! assert!(!version.maybe_inc(false)); // ... and the ones after it are free again
//! assert!(version.cmp(before) > 0);
//! ```
//!
//! # What an observer is promised
//!
//! Let `v = query()`.
//!
//! - **Differs.** Every change that completes later, that is, whose [`maybe_inc`](Counter::maybe_inc) returns
//!   later, makes every later `query` return something other than `v`.
//! - **Grows.** What it returns is greater, in the sense of [`cmp`]: as a signed difference, so that a
//!   counter that has wrapped still compares rightly.
//! - **Rests.** Without a `maybe_inc` or a `set` it returns `v`. Looking changes nothing that another
//!   observer can see.
//! - **Orders.** `v = query(); D = read; w = query()` with `w == v` means that `D` holds everything changed
//!   before `w`, but for the bytes of changes that were not complete at `w`.
//!
//! # What a writer owes
//!
//! First make the change visible, then call `maybe_inc`, on every way out: also when the change ends short or
//! fails after a part of it became visible. When `maybe_inc` returns `true` the inode has a new version,
//! which must be stored with it.
//!
//! # The word
//!
//! | bits | name | who may change it |
//! |---|---|---|
//! | 0 | [`QUERIED`]: somebody has looked since the last bump | set by [`query`](Counter::query), cleared by a bump; either by the `set` calls |
//! | 1..=63 | the version, 63 bits | incremented by a bump; replaced by the `set` calls |
//!
//! A bump is one compare-exchange that adds 1 to the version and clears `QUERIED` together. The `set` calls
//! store blindly, and are for an inode that is not yet in use, or (self-managed users, raw) for one whose
//! owner serializes them.
//!
//! `QUERIED` is a property of the copy in memory. It is never stored: what goes to disk is
//! [`peek`](Counter::peek), and what comes from disk goes through [`set_queried`](Counter::set_queried),
//! since nobody knows who saw the stored value.
//!
//! # Memory order
//!
//! A writer stores data and then looks at `QUERIED`; an observer sets `QUERIED` and then reads the data. Each
//! stores to one place and loads from the other (Dekker's pattern), and unless at least one of them sees the
//! other's store, the observer holds old data and a version that vouches for it for ever. Acquire and release
//! do not forbid that, and neither does x86: its stores wait in a buffer while later loads pass them. Only
//! two sequentially consistent fences do:
//!
//! | | where | pairs with |
//! |---|---|---|
//! | W | `maybe_inc`, after the caller's data stores, before the load of the word | Q1 and Q2 |
//! | Q1 | `query`, after the compare-exchange that set `QUERIED`, before the caller's reads | W |
//! | Q2 | `query`, after a load that found `QUERIED` set, before the caller's reads | W |
//!
//! All fences stand in one total order. If W is before Q, the observer's reads see the writer's data. If Q is
//! before W, the writer's load sees `QUERIED` (or a bump that came after it) and the version that the
//! observer holds is not, or no longer, the current one.
//!
//! Q2 is needed although another observer has set the bit: that one may be anywhere before its own Q1, and
//! until somebody has passed a fence after the bit became visible to *him*, a writer behind W may still miss
//! it.
//!
//! The rest is acquire and release. The bump releases and `query`'s load acquires, so whoever sees a version
//! sees the data that it stands for, and `query`'s own exchange carries that on. The load in `maybe_inc` is
//! relaxed: it decides, and hands out nothing. A forced bump decides nothing and could do without W; it has
//! it all the same, so that there is one rule.
//!
//! ## Under a lock
//!
//! A change that takes a lock of the inode in any case, to move its times for instance, needs no fence if the observers
//! who set `QUERIED` take the same lock: [`maybe_inc_under_lock`](Counter::maybe_inc_under_lock) and
//! [`query_under_lock`](Counter::query_under_lock). Of two critical sections one is first. If it is the writer's, the
//! observer's lock acquires the data; if it is the observer's, the writer finds the bit. An observer who finds the bit
//! set already ([`query_seen`](Counter::query_seen)) needs neither lock nor fence: his load acquires from the exchange
//! that set it, and so sees the data of every writer who had not found it. The lock need not cover the data, and an
//! observer never waits for more than another look at the times.
//!
//! `tests/loom.rs` checks this code under loom, and that a copy without W, one without Q2, and one that sets the bit
//! outside the lock, are rejected.
//!
//! # Targets
//!
//! `no_std`, no allocation, no dependencies. The target must have 64-bit atomics, as all 64-bit ones do, and
//! among the 32-bit ones i586 and later and ARMv7 (not ARMv6, 32-bit PowerPC or MIPS); others are refused at
//! compile time, because a lock hidden in the word would break the promise that a look costs next to nothing.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(target_has_atomic = "64"))]
compile_error!("iversion keeps its counter in one 64-bit atomic word, which this target does not have");

#[cfg(target_has_atomic = "64")]
mod counter;
#[cfg(target_has_atomic = "64")]
mod sync;

#[cfg(target_has_atomic = "64")]
pub use counter::Counter;

/// Bit 0 of the raw word: somebody has looked since the last bump.
pub const QUERIED: u64 = 1;

/// What a bump adds to the raw word: one version, past [`QUERIED`].
pub const INCREMENT: u64 = 1 << QUERIED_BITS;

/// The greatest version, 2^63 - 1. The one after it is 0.
pub const MAX: u64 = u64::MAX >> QUERIED_BITS;

/// How far a version is shifted in the raw word.
const QUERIED_BITS: u32 = 1;

/// The sign of `a - b` for two versions: positive if `a` is the newer, negative if it is the older, 0 if they
/// are equal.
///
/// Versions are 63 bits wide and wrap, so "newer" means less than 2^62 steps ahead. The result is twice the
/// distance (only the sign is meant to be used), and `i64::MIN` at a distance of exactly 2^62, where both
/// orders are as good. Bit 63 of the arguments is ignored.
///
/// ```
/// assert!(iversion::cmp(8, 7) > 0);
/// assert!(iversion::cmp(0, iversion::MAX) > 0); // wrapped
/// assert_eq!(iversion::cmp(7, 7), 0);
/// ```
#[inline]
#[must_use]
pub const fn cmp(a: u64, b: u64) -> i64 {
    (a << QUERIED_BITS).wrapping_sub(b << QUERIED_BITS).cast_signed()
}
