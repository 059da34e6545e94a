/* Work of libnfs, in one process: libnfs URL COUNT WORK. It prints the seconds that the work took. URL is
   nfs://HOST/EXPORT?version=4&nfsport=PORT, and WORK one of
   write DEPTH, durable DEPTH: writes 4 KiB at random places of the file "data", with DEPTH requests in
     flight, and then syncs the file. "durable": each write is durable when it returns.
   getattr: asks for the attributes of an open file.
   create: creates a file, closes and removes it.
   write-large, read-large: MiB after MiB; a new file, which is synced at the end.
   walk PATH: lists a tree. Fails unless it has COUNT names.
   unpack SOURCE PATH: copies a local tree, with modes and times. COUNT is not used. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <nfsc/libnfs.h>

#define MIB (1 << 20)
#define DATA_BYTES (64 * MIB)

static struct nfs_context *nfs;
static const char *target;
static char buffer[MIB];

static void need(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s: %s\n", what, strerror(-result), nfs_get_error(nfs));
		exit(1);
	}
}

static int in_flight;

static void written(int status, struct nfs_context *context, void *data, void *private_data)
{
	(void)context, (void)data, (void)private_data;
	need(status, "write");
	in_flight--;
}

static void write_small(long count, int depth, int flags)
{
	struct nfsfh *file;
	need(nfs_open(nfs, "/data", O_RDWR | flags, &file), "open");
	uint64_t random = 1;
	while (count > 0 || in_flight > 0) {
		while (count > 0 && in_flight < depth) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			uint64_t offset = (random >> 33) % (DATA_BYTES / 4096) * 4096;
			need(nfs_pwrite_async(nfs, file, buffer, 4096, offset, written, NULL), "write");
			in_flight++, count--;
		}
		struct pollfd poll_for = { .fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs) };
		if (poll(&poll_for, 1, -1) < 0 || nfs_service(nfs, poll_for.revents) < 0)
			need(-EIO, "connection");
	}
	need(nfs_fsync(nfs, file), "fsync");
	need(nfs_close(nfs, file), "close");
}

static void write_large(long count)
{
	struct nfsfh *file;
	need(nfs_creat(nfs, "/large", 0644, &file), "create");
	for (long nth = 0; nth < count; nth++)
		for (int done = 0; done < MIB;) {
			int wrote = nfs_pwrite(nfs, file, buffer + done, MIB - done, nth * (uint64_t)MIB + done);
			need(wrote, "write");
			done += wrote;
		}
	need(nfs_fsync(nfs, file), "fsync");
	need(nfs_close(nfs, file), "close");
}

static void read_large(long count)
{
	struct nfsfh *file;
	need(nfs_open(nfs, "/data", O_RDONLY, &file), "open");
	for (long nth = 0; nth < count; nth++)
		for (int done = 0; done < MIB;) {
			uint64_t offset = nth * (uint64_t)MIB % DATA_BYTES + done;
			int got = nfs_pread(nfs, file, buffer + done, MIB - done, offset);
			need(got > 0 ? got : -EIO, "read");
			done += got;
		}
	need(nfs_close(nfs, file), "close");
}

static void get_attributes(long count)
{
	struct nfsfh *file;
	struct nfs_stat_64 stat;
	need(nfs_open(nfs, "/data", O_RDONLY, &file), "open");
	while (count-- > 0)
		need(nfs_fstat64(nfs, file, &stat), "stat");
	need(nfs_close(nfs, file), "close");
}

static void create(long count)
{
	while (count-- > 0) {
		char name[64];
		struct nfsfh *file;
		snprintf(name, sizeof name, "/created-%ld", count);
		need(nfs_creat(nfs, name, 0644, &file), "create");
		need(nfs_close(nfs, file), "close");
		need(nfs_unlink(nfs, name), "unlink");
	}
}

static long walk(const char *path)
{
	struct nfsdir *dir;
	struct nfsdirent *entry;
	long names = 1;
	need(nfs_opendir(nfs, path, &dir), path);
	while ((entry = nfs_readdir(nfs, dir))) {
		char below[4096];
		if (!strcmp(entry->name, ".") || !strcmp(entry->name, ".."))
			continue;
		if ((size_t)snprintf(below, sizeof below, "%s/%s", path, entry->name) >= sizeof below)
			need(-ENAMETOOLONG, path);
		names += S_ISDIR(entry->mode) || entry->type == 2 ? walk(below) : 1;
	}
	nfs_closedir(nfs, dir);
	return names;
}

/* Files with several names: the first name of each. */
static struct { ino_t number; char *path; } linked[4096];
static int linked_count;
static int source_len;

static int unpack_one(const char *from, const struct stat *stat, int kind, struct FTW *place)
{
	char to[4096], link[4096];
	struct nfsfh *file;
	struct timeval times[2] = { { stat->st_atim.tv_sec, stat->st_atim.tv_nsec / 1000 },
				    { stat->st_mtim.tv_sec, stat->st_mtim.tv_nsec / 1000 } };
	(void)place;
	if ((size_t)snprintf(to, sizeof to, "%s%s", target, from + source_len) >= sizeof to)
		need(-ENAMETOOLONG, from);
	if (kind == FTW_D) {
		need(nfs_mkdir2(nfs, to, stat->st_mode & 07777), to);
		return 0;
	}
	if (kind == FTW_SL) {
		ssize_t len = readlink(from, link, sizeof link - 1);
		need(len < 0 ? -errno : 0, from);
		link[len] = 0;
		need(nfs_symlink(nfs, link, to), to);
		return 0;
	}
	if (stat->st_nlink > 1) {
		for (int nth = 0; nth < linked_count; nth++)
			if (linked[nth].number == stat->st_ino) {
				need(nfs_link(nfs, linked[nth].path, to), to);
				return 0;
			}
		if (linked_count < 4096) {
			linked[linked_count].number = stat->st_ino;
			linked[linked_count++].path = strdup(to);
		}
	}
	int local = open(from, O_RDONLY);
	need(local < 0 ? -errno : 0, from);
	need(nfs_creat(nfs, to, stat->st_mode & 07777, &file), to);
	uint64_t offset = 0;
	for (ssize_t got; (got = read(local, buffer, sizeof buffer)) > 0; offset += got)
		need(nfs_pwrite(nfs, file, buffer, got, offset), to);
	close(local);
	need(nfs_close(nfs, file), to);
	need(nfs_utimes(nfs, to, times), to);
	return 0;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count_of_words, char **words)
{
	if (count_of_words < 4)
		return 2;
	nfs = nfs_init_context();
	/* A directory in one reply. */
	if (nfs)
		nfs_set_readdir_max_buffer_size(nfs, MIB, MIB);
	struct nfs_url *url = nfs ? nfs_parse_url_dir(nfs, words[1]) : NULL;
	if (!url || nfs_mount(nfs, url->server, url->path) < 0) {
		fprintf(stderr, "%s: %s\n", words[1], nfs ? nfs_get_error(nfs) : "no memory");
		return 1;
	}
	long count = atol(words[2]);
	const char *work = words[3], *first = count_of_words > 4 ? words[4] : "";
	target = count_of_words > 5 ? words[5] : "";
	memset(buffer, 7, sizeof buffer);
	double begin = now();
	if (!strcmp(work, "write"))
		write_small(count, atoi(first), 0);
	else if (!strcmp(work, "durable"))
		write_small(count, atoi(first), O_SYNC);
	else if (!strcmp(work, "getattr"))
		get_attributes(count);
	else if (!strcmp(work, "create"))
		create(count);
	else if (!strcmp(work, "write-large"))
		write_large(count);
	else if (!strcmp(work, "read-large"))
		read_large(count);
	else if (!strcmp(work, "walk")) {
		long names = walk(first);
		if (names != count) {
			fprintf(stderr, "%ld names instead of %ld\n", names, count);
			return 1;
		}
	} else if (!strcmp(work, "unpack")) {
		source_len = strlen(first);
		if (nftw(first, unpack_one, 64, FTW_PHYS))
			return 1;
	} else
		return 2;
	printf("%.6f\n", now() - begin);
	return 0;
}
