/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A change counter for inodes that rises only if it was queried since the last change.
 *
 * The same as the Rust crate `iversion`, for filesystems in C: C11, C++11, or (with __KERNEL__ defined)
 * Linux. The crate's documentation argues the memory order; its models check it.
 *
 * Promises to an observer. Let v = inode_query_iversion(). A change completes when its
 * inode_maybe_inc_iversion() returns.
 *
 *   differs  Every change that completes later makes every later query return something other than v.
 *   grows    The other value is greater, as inode_cmp_iversion() compares, also when the counter has wrapped.
 *   rests    Without a change, a query returns v.
 *   orders   v = query; D = read; w = query; w == v: D holds everything changed before w, except for bytes of
 *            changes that were not complete at w.
 *
 * Duties of a writer. Make the change visible first, then call inode_maybe_inc_iversion(). Call it on every
 * way out, also when the change ends short or fails after a part of it became visible. If it returns true,
 * store the new value with the inode.
 *
 * The word.
 *
 *   bit 0       QUERIED: queried since the last bump. Set by a query, cleared by a bump. Never stored on
 *               disk.
 *   bits 1..63  the value. A bump adds 1 and clears QUERIED, in one compare-exchange. 0 follows 2^63 - 1.
 *
 * The set functions replace both, and are for an inode that is not yet in use. If a server manages the value
 * (NFS and AFS clients), call only inode_set_iversion_raw() and inode_peek_iversion_raw(); the value then has
 * 64 bits.
 *
 * The fences. A writer stores data, then loads QUERIED; an observer sets QUERIED, then reads data. At least
 * one must see the other's store. Only sequentially consistent fences guarantee that:
 *
 *   W   in inode_maybe_inc_iversion(), before the load of the word; pairs with Q
 *   Q   at the end of inode_query_iversion(), also when QUERIED was already set (the observer that set it may
 *       not have reached its own fence yet); pairs with W
 *
 * A bump releases and a query acquires, so an observer that sees a value sees the data that it stands for.
 */
#ifndef IVERSION_H
#define IVERSION_H

#ifdef _LINUX_IVERSION_H
#error "iversion.h replaces linux/iversion.h: include only one of them"
#endif

#if defined(__KERNEL__)

#include <linux/types.h>
#include <linux/atomic.h>

typedef atomic64_t iversion_word_t;

#define iversion_load_relaxed_(word) ((uint64_t)atomic64_read(word))
#define iversion_load_acquire_(word) ((uint64_t)atomic64_read_acquire(word))
#define iversion_store_release_(word, raw) atomic64_set_release(word, (int64_t)(raw))
#define iversion_fence_() smp_mb()

/* Fully ordered if it succeeds. */
static inline bool iversion_exchange_(iversion_word_t *word, uint64_t *old, uint64_t raw)
{
	int64_t expected = (int64_t)*old;
	bool done = atomic64_try_cmpxchg(word, &expected, (int64_t)raw);

	*old = (uint64_t)expected;
	return done;
}

#else /* userspace */

#if defined(__cplusplus)

#include <atomic>
#include <cstdint>
using std::int64_t;
using std::uint64_t;
typedef std::atomic<uint64_t> iversion_word_t;
#define IVERSION_STD_(name) std::name

#else

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
typedef _Atomic(uint64_t) iversion_word_t;
#define IVERSION_STD_(name) name

#endif

#if ATOMIC_LLONG_LOCK_FREE != 2
#error "iversion.h requires lock-free 64-bit atomics, which this target does not have"
#endif

#define iversion_load_relaxed_(word) \
	IVERSION_STD_(atomic_load_explicit)(word, IVERSION_STD_(memory_order_relaxed))
#define iversion_load_acquire_(word) \
	IVERSION_STD_(atomic_load_explicit)(word, IVERSION_STD_(memory_order_acquire))
#define iversion_store_release_(word, raw) \
	IVERSION_STD_(atomic_store_explicit)(word, raw, IVERSION_STD_(memory_order_release))
#define iversion_fence_() IVERSION_STD_(atomic_thread_fence)(IVERSION_STD_(memory_order_seq_cst))

static inline bool iversion_exchange_(iversion_word_t *word, uint64_t *old, uint64_t raw)
{
	return IVERSION_STD_(atomic_compare_exchange_weak_explicit)(
		word, old, raw, IVERSION_STD_(memory_order_acq_rel), IVERSION_STD_(memory_order_acquire));
}

#endif /* __KERNEL__ */

#define IVERSION_QUERIED_SHIFT 1
/* Bit 0 of the raw word: queried since the last bump. */
#define IVERSION_QUERIED ((uint64_t)1)
/* What a bump adds to the raw word. */
#define IVERSION_INCREMENT ((uint64_t)1 << IVERSION_QUERIED_SHIFT)
/* The greatest value. */
#define IVERSION_MAX (~(uint64_t)0 >> IVERSION_QUERIED_SHIFT)

/* An inode's change counter, with QUERIED. Embed it in the inode. */
struct iversion {
	iversion_word_t raw;
};
typedef struct iversion iversion_t;

/* Replaces the whole word. For values that a server manages. Not atomic against a bump. */
static inline void inode_set_iversion_raw(iversion_t *version, uint64_t raw)
{
	iversion_store_release_(&version->raw, raw);
}

/*
 * Starts a new inode at a value that was never queried. For a reused inode number, start above the value that
 * the slot had.
 */
static inline void inode_set_iversion(iversion_t *version, uint64_t value)
{
	inode_set_iversion_raw(version, value << IVERSION_QUERIED_SHIFT);
}

/* Starts a loaded inode at a value that may have been queried. */
static inline void inode_set_iversion_queried(iversion_t *version, uint64_t value)
{
	inode_set_iversion_raw(version, (value << IVERSION_QUERIED_SHIFT) | IVERSION_QUERIED);
}

/*
 * Bumps the counter if it was queried, or if forced (because the inode is logged anyway). Every change calls
 * it after it became visible. Returns whether it bumped. If not, the counter is no reason to log the inode.
 */
static inline bool inode_maybe_inc_iversion(iversion_t *version, bool force)
{
	uint64_t raw;

	iversion_fence_(); /* W */
	raw = iversion_load_relaxed_(&version->raw);
	do {
		if (!force && !(raw & IVERSION_QUERIED))
			return false;
	} while (!iversion_exchange_(&version->raw, &raw, (raw & ~IVERSION_QUERIED) + IVERSION_INCREMENT));
	return true;
}

/* Bumps the counter whether or not it was queried. */
static inline void inode_inc_iversion(iversion_t *version)
{
	(void)inode_maybe_inc_iversion(version, true);
}

/* Returns the whole word, without any effect. */
static inline uint64_t inode_peek_iversion_raw(const iversion_t *version)
{
	return iversion_load_acquire_(&version->raw);
}

/*
 * Returns whether a change that completed now would bump the counter without being forced. A hint: it can
 * become true at any moment, so the change must call inode_maybe_inc_iversion() in any case.
 */
static inline bool inode_iversion_need_inc(const iversion_t *version)
{
	return (inode_peek_iversion_raw(version) & IVERSION_QUERIED) != 0;
}

/* Returns the value, without any effect. For storing it. Do not keep it to compare later. */
static inline uint64_t inode_peek_iversion(const iversion_t *version)
{
	return inode_peek_iversion_raw(version) >> IVERSION_QUERIED_SHIFT;
}

/* Returns the value, and sets QUERIED. Call it before reading the data that the value must vouch for. */
static inline uint64_t inode_query_iversion(iversion_t *version)
{
	uint64_t raw = iversion_load_acquire_(&version->raw);

	while (!(raw & IVERSION_QUERIED)) {
		if (iversion_exchange_(&version->raw, &raw, raw | IVERSION_QUERIED))
			break;
	}
	iversion_fence_(); /* Q */
	return raw >> IVERSION_QUERIED_SHIFT;
}

/*
 * Compares with a value kept earlier, without any effect: positive if the counter rose since, negative if
 * `old` is newer (less than 2^62 ahead), 0 if they are equal. Use the sign only.
 */
static inline int64_t inode_cmp_iversion(const iversion_t *version, uint64_t old)
{
	return (int64_t)((inode_peek_iversion_raw(version) & ~IVERSION_QUERIED) - (old << IVERSION_QUERIED_SHIFT));
}

#endif /* IVERSION_H */
