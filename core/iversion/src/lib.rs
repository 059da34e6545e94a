//! A change counter for inodes that rises only if it was queried since the last change.
//!
//! An observer (an NFS server, a backup program, a cache) queries an inode's counter, keeps the value, and
//! queries again later. Different values: the inode changed in between. Equal values: it did not. A plain
//! counter provides this at the price of one logged inode update for every write.
//!
//! But nobody compares against a value that was never handed out, so only the first change after a query must
//! raise the counter. [`Counter`] keeps one bit for that. While the bit is clear, [`Counter::maybe_inc`]
//! changes nothing and returns false, and the inode need not be logged for the counter's sake.
//!
//! ```
//! use iversion::Counter;
//!
//! let counter = Counter::new(7);
//! assert!(!counter.maybe_inc(false)); // not queried: nothing to do, nothing to log
//! let before = counter.query(); // now it is
//! assert!(counter.maybe_inc(false)); // so the next change bumps ...
//! assert!(!counter.maybe_inc(false)); // ... and later ones are free again
//! assert!(counter.cmp(before) > 0);
//! ```
//!
//! # Promises to an observer
//!
//! Let `v = query()`.
//!
//! - **Differs.** A change completes when its [`maybe_inc`](Counter::maybe_inc) returns. Every change that
//!   completes later makes every later `query` return something other than `v`.
//! - **Grows.** The other value is greater, as [`cmp`] compares: by the signed difference, so that a wrapped
//!   counter compares rightly.
//! - **Rests.** Without a `maybe_inc` or a `set`, a query returns `v`. A query changes nothing that another
//!   observer can see.
//! - **Orders.** `v = query(); D = read; w = query()` with `w == v` means that `D` holds everything changed
//!   before `w`, except for bytes of changes that were not complete at `w`.
//!
//! # Duties of a writer
//!
//! Make the change visible first, then call `maybe_inc`. Call it on every way out: also when the change ends
//! short, or fails after a part of it became visible. If `maybe_inc` returns true, store the new value with
//! the inode.
//!
//! # The word
//!
//! | bits | name | changed by |
//! |---|---|---|
//! | 0 | [`QUERIED`]: queried since the last bump | set by [`query`](Counter::query), cleared by a bump |
//! | 1..=63 | the value, 63 bits | raised by a bump; replaced by the `set` calls |
//!
//! A bump is one compare-exchange that adds 1 to the value and clears `QUERIED`. The `set` calls store
//! without looking. Use them for an inode that is not yet in use, or (raw) where the inode's owner serializes
//! the calls.
//!
//! `QUERIED` belongs to the copy in memory and is never stored. Store [`peek`](Counter::peek). Load with
//! [`set_queried`](Counter::set_queried), because the stored value may have been queried before.
//!
//! # Memory order
//!
//! A writer stores data and then loads `QUERIED`. An observer sets `QUERIED` and then loads the data. Each
//! stores to one place and loads from the other (Dekker's pattern). Unless at least one of them sees the
//! other's store, the observer holds old data and a value that vouches for it for ever.
//!
//! Acquire and release do not forbid that, and neither does x86: its stores wait in a buffer while later
//! loads pass them. Only two sequentially consistent fences do:
//!
//! | | where | pairs with |
//! |---|---|---|
//! | W | `maybe_inc`, after the caller's data stores, before the load of the word | Q1 and Q2 |
//! | Q1 | `query`, after the compare-exchange that set `QUERIED`, before the caller's reads | W |
//! | Q2 | `query`, after a load that found `QUERIED` set, before the caller's reads | W |
//!
//! All fences have one total order. If W is before Q, the observer's reads see the writer's data. If Q is
//! before W, the writer's load sees `QUERIED`, or a bump after it, and the observer's value is not the
//! current one.
//!
//! Q2 is needed although another observer set the bit. That observer may be before its own Q1. Until some
//! thread has passed a fence after it saw the bit, a writer past W may still miss the bit.
//!
//! The rest is acquire and release. The bump releases and the load in `query` acquires, so an observer that
//! sees a value sees the data that it stands for; the exchange in `query` carries that on. The load in
//! `maybe_inc` is relaxed: it decides, and hands out nothing. A forced bump could do without W; it has W so
//! that there is one rule.
//!
//! ## Under a lock
//!
//! A change that takes a lock of the inode anyway, for instance to move its times, needs no fence if
//! observers set `QUERIED` under the same lock: [`maybe_inc_under_lock`](Counter::maybe_inc_under_lock) and
//! [`query_under_lock`](Counter::query_under_lock). One of two critical sections is first. If it is the
//! writer's, the observer's lock acquires the data. If it is the observer's, the writer finds the bit.
//!
//! An observer that finds the bit set ([`query_seen`](Counter::query_seen)) needs neither lock nor fence. Its
//! load acquires from the exchange that set the bit, so it sees the data of every writer that had not found
//! the bit. The lock need not cover the data.
//!
//! `tests/loom.rs` checks this code under loom. It also checks that three weakened copies are rejected: one
//! without W, one without Q2, and one that sets the bit outside the lock.
//!
//! # Targets
//!
//! `no_std`, no allocation, no dependencies. The target must have 64-bit atomics, as all 64-bit targets do,
//! and of the 32-bit ones i586 and later and ARMv7 (not ARMv6, 32-bit PowerPC or MIPS). Others are refused at
//! compile time: a lock hidden in the word would make every query expensive.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(not(target_has_atomic = "64"))]
compile_error!("iversion keeps its counter in one 64-bit atomic word, which this target does not have");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(target_has_atomic = "64")]
mod counter;
#[cfg(target_has_atomic = "64")]
mod sync;

#[cfg(target_has_atomic = "64")]
pub use counter::Counter;

/// Bit 0 of the raw word: the counter was queried since the last bump.
pub const QUERIED: u64 = 1;

/// What a bump adds to the raw word: 1 to the value, which begins at bit 1.
pub const INCREMENT: u64 = 1 << QUERIED_BITS;

/// The greatest value, 2^63 - 1. The next one is 0.
pub const MAX: u64 = u64::MAX >> QUERIED_BITS;

/// How far the value is shifted in the raw word.
const QUERIED_BITS: u32 = 1;

/// Compares two values: positive if `a` is newer, negative if it is older, 0 if they are equal.
///
/// Values are 63 bits wide and wrap, so "newer" means less than 2^62 steps ahead. Use the sign only: the
/// result is twice the distance, and `i64::MIN` at a distance of exactly 2^62. Bit 63 of the arguments is
/// ignored.
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
