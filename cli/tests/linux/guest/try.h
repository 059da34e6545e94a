/* Common code of the programs for the emulated machine. Each works on the given file or directory, and ends
 * with an error at the first failed check. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define must(holds) \
	do { \
		if (!(holds)) { \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #holds, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define must_fail(call, why) \
	do { \
		errno = 0; \
		must((call) < 0); \
		must(errno == (why)); \
	} while (0)

/* Fills in bytes that depend on their position and the kind. */
static inline void fill(unsigned char *bytes, size_t len, uint64_t at, unsigned kind)
{
	for (size_t i = 0; i < len; i++) {
		uint64_t place = at + i;
		bytes[i] = (unsigned char)(place ^ (place >> 8) ^ (place >> 16) ^ (kind * 37u));
	}
}

static inline int is_filled(const unsigned char *bytes, size_t len, uint64_t at, unsigned kind)
{
	unsigned char want[4096];
	while (len > 0) {
		size_t some = len < sizeof want ? len : sizeof want;
		fill(want, some, at, kind);
		if (memcmp(bytes, want, some) != 0)
			return 0;
		bytes += some;
		at += some;
		len -= some;
	}
	return 1;
}

static inline int is_zero(const unsigned char *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (bytes[i] != 0)
			return 0;
	return 1;
}

/* Drops the cache, so that reads go to the server. */
static inline void forget(int fd)
{
	must(fsync(fd) == 0);
	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
}

static inline void child_succeeds(pid_t child)
{
	int status;
	must(waitpid(child, &status, 0) == child);
	must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int try_files(void);
int try_names(int argc, char **argv);
int try_locks(void);
int try_mapped(void);
int try_open_files(void);
int try_xattrs(void);
int try_sparse(void);
int try_copies(void);
int try_direct(void);
int try_append(void);
int make_source(int argc, char **argv);
int copy_over(int argc, char **argv);
int write_records(int argc, char **argv);
int count_up(int argc, char **argv);
int hold_lock(int argc, char **argv);
int hold_dirty(int argc, char **argv);
