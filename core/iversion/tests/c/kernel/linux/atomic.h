/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A stand-in for the kernel's header: the calls of iversion.h, with the order that the kernel documents. */
#include <stdbool.h>
#include <stdint.h>

typedef struct {
	int64_t counter;
} atomic64_t;

#define smp_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static inline int64_t atomic64_read(const atomic64_t *word)
{
	return __atomic_load_n(&word->counter, __ATOMIC_RELAXED);
}

static inline int64_t atomic64_read_acquire(const atomic64_t *word)
{
	return __atomic_load_n(&word->counter, __ATOMIC_ACQUIRE);
}

static inline void atomic64_set_release(atomic64_t *word, int64_t value)
{
	__atomic_store_n(&word->counter, value, __ATOMIC_RELEASE);
}

static inline bool atomic64_try_cmpxchg(atomic64_t *word, int64_t *old, int64_t value)
{
	return __atomic_compare_exchange_n(&word->counter, old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}
