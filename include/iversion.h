/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A change counter for inodes that is bumped only when somebody has looked.
 *
 * The same thing as the Rust crate `iversion`, for filesystems in C: C11, C++11, or (with __KERNEL__ defined)
 * Linux. The crate's documentation argues the memory order at length; its models check it.
 *
 * What an observer is promised. Let v = inode_query_iversion().
 *
 *   differs  Every change that completes later, that is, whose inode_maybe_inc_iversion() returns later,
 *            makes every later query return something other than v.
 *   grows    What it returns is greater, as inode_cmp_iversion() compares: also when the counter has wrapped.
 *   rests    Without a change it returns v.
 *   orders   v = query; D = read; w = query; and w == v: D holds everything changed before w, but for the
 *            bytes of changes that were not complete at w.
 *
 * What a writer owes. First make the change visible, then call inode_maybe_inc_iversion(), on every way out:
 * also when the change ends short or fails after a part of it became visible. If it returns true, the inode
 * has a new version, to be stored with it.
 *
 * The word.
 *
 *   bit 0       QUERIED: somebody has looked since the last bump. Set by a query, cleared by a bump. Never
 *               stored on disk.
 *   bits 1..63  the version. A bump adds one and clears QUERIED, in one compare-exchange. After 2^63 - 1
 *               comes 0.
 *
 * The set functions replace both, and are for an inode that is not yet in use. The raw functions are for
 * self-managed users, whose version comes from elsewhere (the NFS and AFS clients: from the server); those
 * call nothing but inode_set_iversion_raw() and inode_peek_iversion_raw(), and have all 64 bits.
 *
 * The fences. A writer stores data, then looks at QUERIED; an observer sets QUERIED, then reads data. Each
 * must not miss the other, and only sequentially consistent fences see to that:
 *
 *   W   in inode_maybe_inc_iversion(), before the load of the word; pairs with Q
 *   Q   at the end of inode_query_iversion(), also when QUERIED was set already (the one who set it may not
 *       have reached his own fence yet); pairs with W
 *
 * A bump releases and a query acquires, so that whoever sees a version sees the data it stands for.
 */
#ifndef IVERSION_H
#define IVERSION_H

#ifdef _LINUX_IVERSION_H
#error "iversion.h takes the place of linux/iversion.h: include one of them"
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
#error "iversion.h keeps its counter in one 64-bit atomic word, which this target does not have"
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
/* Bit 0 of the raw word: somebody has looked since the last bump. */
#define IVERSION_QUERIED ((uint64_t)1)
/* What a bump adds to the raw word. */
#define IVERSION_INCREMENT ((uint64_t)1 << IVERSION_QUERIED_SHIFT)
/* The greatest version. */
#define IVERSION_MAX (~(uint64_t)0 >> IVERSION_QUERIED_SHIFT)

/* An inode's version, and whether somebody has looked since the last bump. To be embedded in the inode. */
struct iversion {
	iversion_word_t raw;
};
typedef struct iversion iversion_t;

/* Replaces the whole word. For self-managed users; not atomic against a bump. */
static inline void inode_set_iversion_raw(iversion_t *version, uint64_t raw)
{
	iversion_store_release_(&version->raw, raw);
}

/*
 * Starts a fresh inode at a value that nobody has seen. A reused inode number is a new file with an old name:
 * start above the version that the slot had.
 */
static inline void inode_set_iversion(iversion_t *version, uint64_t value)
{
	inode_set_iversion_raw(version, value << IVERSION_QUERIED_SHIFT);
}

/* Starts an inode at a value that was loaded from a store, and that anybody may have seen. */
static inline void inode_set_iversion_queried(iversion_t *version, uint64_t value)
{
	inode_set_iversion_raw(version, (value << IVERSION_QUERIED_SHIFT) | IVERSION_QUERIED);
}

/*
 * Called by every change, when it is visible: bumps the version if somebody has seen it, or if forced
 * (because the inode is logged anyhow). Returns whether it did; if not, the version is no reason to log the
 * inode.
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

/* Bumps the version whether or not somebody has seen it. */
static inline void inode_inc_iversion(iversion_t *version)
{
	(void)inode_maybe_inc_iversion(version, true);
}

/* The whole word, without any effect. */
static inline uint64_t inode_peek_iversion_raw(const iversion_t *version)
{
	return iversion_load_acquire_(&version->raw);
}

/*
 * Whether a change that completed now would bump the version without being forced. A hint: it can turn true
 * at any moment, so the change has to call inode_maybe_inc_iversion() even so.
 */
static inline bool inode_iversion_need_inc(const iversion_t *version)
{
	return (inode_peek_iversion_raw(version) & IVERSION_QUERIED) != 0;
}

/* The version, without any effect. For storing it: nobody may keep it to compare with later. */
static inline uint64_t inode_peek_iversion(const iversion_t *version)
{
	return inode_peek_iversion_raw(version) >> IVERSION_QUERIED_SHIFT;
}

/* The version, for keeping: marks it as seen. To be taken before reading what it is to vouch for. */
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
 * Compares with a version kept earlier, without any effect: positive if the counter has moved on since,
 * negative if `old` is the newer (less than 2^62 ahead), 0 if they are equal. Only the sign is meant to be
 * used.
 */
static inline int64_t inode_cmp_iversion(const iversion_t *version, uint64_t old)
{
	return (int64_t)((inode_peek_iversion_raw(version) & ~IVERSION_QUERIED) - (old << IVERSION_QUERIED_SHIFT));
}

#endif /* IVERSION_H */
