/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A writer and an observer meet once a round, for the seconds given by the argument: the writer changes the
 * data and calls maybe_inc, the observer queries and reads. If the version then rests, the data read must be
 * the new ones. Prints the number of rounds.
 */
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "iversion.h"

/* On cache lines of their own, so that the accesses do not wait for each other. */
static _Alignas(128) iversion_t version;
static _Alignas(128) _Atomic(uint64_t) data;
static _Alignas(128) _Atomic(uint64_t) started;
static _Alignas(128) _Atomic(uint64_t) written;

#define LAST UINT64_MAX

static uint64_t wait_for(_Atomic(uint64_t) *round, uint64_t wanted)
{
	uint64_t seen;
	int spins = 0;

	while ((seen = atomic_load_explicit(round, memory_order_acquire)) < wanted) {
		if (++spins % 1000 == 0)
			sched_yield();
	}
	return seen;
}

static void *write_rounds(void *unused)
{
	uint64_t round;

	for (round = 1; wait_for(&started, round) != LAST; round++) {
		atomic_store_explicit(&data, round, memory_order_relaxed);
		inode_maybe_inc_iversion(&version, false);
		atomic_store_explicit(&written, round, memory_order_release);
	}
	return unused;
}

static double now_s(void)
{
	struct timespec now;

	timespec_get(&now, TIME_UTC);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double end_s = now_s() + (argc == 2 ? atof(argv[1]) : 1.0);
	uint64_t round, bumped = 0;
	pthread_t writer;

	inode_set_iversion(&version, 1);
	if (pthread_create(&writer, NULL, write_rounds, NULL))
		return 2;
	for (round = 1; round % 1024 || now_s() < end_s; round++) {
		uint64_t before, read;
		int64_t moved;

		atomic_store_explicit(&started, round, memory_order_release);
		before = inode_query_iversion(&version);
		read = atomic_load_explicit(&data, memory_order_relaxed);
		wait_for(&written, round);
		moved = inode_cmp_iversion(&version, before);
		if (moved < 0 || (moved == 0 && read != round)) {
			fprintf(stderr, "round %" PRIu64 ": version %" PRIu64 " vouches for data %" PRIu64 "\n", round,
				before, read);
			return 1;
		}
		bumped += moved > 0;
		inode_inc_iversion(&version); /* unseen again for the next round */
	}
	atomic_store_explicit(&started, LAST, memory_order_release);
	pthread_join(writer, NULL);
	printf("%" PRIu64 " rounds, %" PRIu64 " bumped\n", round, bumped);
	return 0;
}
