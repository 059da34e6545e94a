// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The counter of iversion.h inside a Linux kernel: the shared test vectors, then a writer against observers.
 *
 * Everything happens at insmod, which fails if anything is not as it must be. The log says what was done.
 */
#include <linux/cache.h>
#include <linux/completion.h>
#include <linux/err.h>
#include <linux/jiffies.h>
#include <linux/kernel.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "iversion.h"
#include "vectors.h"

#define SAY "iversion_test: "

static unsigned int vectors = 1;
module_param(vectors, uint, 0);
MODULE_PARM_DESC(vectors, "run the test vectors (0: no)");

static unsigned int seconds = 5;
module_param(seconds, uint, 0);
MODULE_PARM_DESC(seconds, "how long the writer and the observers run (0: not at all)");

static unsigned int rounds = 0;
module_param(rounds, uint, 0);
MODULE_PARM_DESC(rounds, "rounds at least; the test ends after 60 times the seconds");

#define MOST_OBSERVERS 4
static unsigned int observers = 1;
module_param(observers, uint, 0);
MODULE_PARM_DESC(observers, "how many observers there are");

/* The lines of vectors.txt, each a string. */
static const char *const lines[] = {
#include "vectors.inc"
};

static int __init run_vectors(void)
{
	static iversion_t version __initdata;
	unsigned int number, results = 0;
	char words[256];
	uint64_t result;

	for (number = 0; number < ARRAY_SIZE(lines); number++) {
		if (strscpy(words, lines[number], sizeof(words)) < 0) {
			pr_err(SAY "line %u is too long\n", number + 1);
			return -EINVAL;
		}
		switch (vector_line(&version, words, &result)) {
		case VECTOR_SILENT:
			break;
		case VECTOR_RIGHT:
			results++;
			break;
		case VECTOR_WRONG:
			pr_err(SAY "line %u gave %llu: %s\n", number + 1, (unsigned long long)result,
			       lines[number]);
			return -EINVAL;
		case VECTOR_UNKNOWN:
			pr_err(SAY "line %u, what is it? %s\n", number + 1, lines[number]);
			return -EINVAL;
		}
	}
	pr_info(SAY "vectors: %u results compared\n", results);
	return 0;
}

/*
 * Writer and observers meet once a round: the writer changes the data and calls maybe_inc, each observer
 * queries and reads. An observer whose version then rests must have read the new data. Each word has cache
 * lines of its own, so that the accesses do not wait for each other.
 */
struct padded {
	u64 value;
} __aligned(128);

static iversion_t version __aligned(128);
static struct padded data, started, written;
static struct padded observed[MOST_OBSERVERS];
/* Observer 0 alone looks at the clock; the others end when it has set this. */
#define LAST U64_MAX

static DECLARE_COMPLETION(gone);
static atomic64_t bumped = ATOMIC64_INIT(0);
static atomic_t lost = ATOMIC_INIT(0);

static u64 wait_for(const struct padded *round, u64 wanted)
{
	u64 seen;
	unsigned int spins = 0;

	while ((seen = smp_load_acquire(&round->value)) < wanted) {
		cpu_relax();
		/* With fewer processors than threads, let another thread run. */
		if (++spins % 256 == 0)
			yield();
	}
	return seen;
}

static void observe(unsigned int who, u64 round)
{
	u64 before = inode_query_iversion(&version);
	u64 read = READ_ONCE(data.value);
	s64 moved;

	wait_for(&written, round);
	moved = inode_cmp_iversion(&version, before);
	if (moved < 0 || (moved == 0 && read != round)) {
		if (atomic_inc_return(&lost) == 1)
			pr_err(SAY "round %llu: version %llu vouches for data %llu\n", round, before, read);
	}
	if (moved > 0)
		atomic64_inc(&bumped);
	smp_store_release(&observed[who].value, round);
}

static int write_rounds(void *unused)
{
	u64 round;

	for (round = 1; wait_for(&started, round) != LAST; round++) {
		WRITE_ONCE(data.value, round);
		inode_maybe_inc_iversion(&version, false);
		smp_store_release(&written.value, round);
	}
	kthread_complete_and_exit(&gone, 0);
	return 0;
}

static int observe_rounds(void *who)
{
	u64 round;

	for (round = 1; wait_for(&started, round) != LAST; round++)
		observe((unsigned int)(unsigned long)who, round);
	kthread_complete_and_exit(&gone, 0);
	return 0;
}

static int __init hammer(void)
{
	unsigned long end = jiffies + seconds * HZ, latest = jiffies + 60ul * seconds * HZ;
	unsigned int who, running = 0;
	struct task_struct *task;
	int error = 0;
	u64 round = 0;

	inode_set_iversion(&version, 1);
	task = kthread_run(write_rounds, NULL, "iversion_writer");
	for (who = 1; !IS_ERR(task) && who <= observers; who++) {
		running++;
		if (who < observers)
			task = kthread_run(observe_rounds, (void *)(unsigned long)who, "iversion_obs%u", who);
	}
	if (IS_ERR(task))
		error = PTR_ERR(task);
	while (!error && !atomic_read(&lost) &&
	       (round % 256 || time_before(jiffies, end) || (round < rounds && time_before(jiffies, latest)))) {
		smp_store_release(&started.value, ++round);
		observe(0, round);
		for (who = 1; who < observers; who++)
			wait_for(&observed[who], round);
		inode_inc_iversion(&version); /* unseen again for the next round */
	}
	/* The code of the threads must not go before they do: they end in the kernel's own. */
	smp_store_release(&started.value, LAST);
	while (running--)
		wait_for_completion(&gone);
	if (error)
		return error;
	if (atomic_read(&lost))
		return -EINVAL;
	pr_info(SAY "hammer: %u observers, %llu rounds, %lld bumped, none lost\n", observers, round,
		atomic64_read(&bumped));
	return 0;
}

static int __init iversion_test_init(void)
{
	int error = 0;

	if (observers < 1 || observers > MOST_OBSERVERS)
		return -EINVAL;
	if (vectors)
		error = run_vectors();
	if (!error && seconds)
		error = hammer();
	return error;
}
module_init(iversion_test_init);

/* Nothing is left to take away, but without this the module could not be unloaded. */
static void __exit iversion_test_exit(void)
{
}
module_exit(iversion_test_exit);

MODULE_DESCRIPTION("Tests of the change counter of iversion.h");
MODULE_LICENSE("Dual MIT/GPL");
