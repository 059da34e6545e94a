/* Holes, copies, direct and appending writes. */
#include "try.h"
#include <linux/falloc.h>
#include <linux/fs.h>

#define MB (1 << 20)

static blkcnt_t blocks(int fd)
{
	struct stat st;
	forget(fd);
	must(fstat(fd, &st) == 0);
	return st.st_blocks;
}

int try_sparse(void)
{
	unsigned char *bytes = malloc(4 * MB);
	struct stat st;
	int fd = open("sparse", O_RDWR | O_CREAT, 0644);
	must(fd >= 0);
	fill(bytes, 65536, MB, 1);
	must(pwrite(fd, bytes, 65536, MB) == 65536);
	fill(bytes, 65536, 3 * MB, 1);
	must(pwrite(fd, bytes, 65536, 3 * MB) == 65536);
	must(ftruncate(fd, 4 * MB) == 0);
	must(fsync(fd) == 0);
	must(lseek(fd, 0, SEEK_DATA) == MB);
	must(lseek(fd, MB, SEEK_HOLE) == MB + 65536);
	must(lseek(fd, MB + 65536, SEEK_DATA) == 3 * MB);
	must(lseek(fd, 3 * MB + 10, SEEK_DATA) == 3 * MB + 10);
	must(lseek(fd, 3 * MB, SEEK_HOLE) == 3 * MB + 65536);
	must_fail(lseek(fd, 3 * MB + 65536, SEEK_DATA), ENXIO);
	must_fail(lseek(fd, 4 * MB, SEEK_HOLE), ENXIO);
	blkcnt_t before = blocks(fd);
	must(before < 2 * MB / 512);

	must(fallocate(fd, 0, 2 * MB, 512 * 1024) == 0);
	must(blocks(fd) >= before + 1024);
	must(fallocate(fd, 0, 4 * MB, MB) == 0 && fstat(fd, &st) == 0 && st.st_size == 5 * MB);
	before = blocks(fd);
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MB + 8192, 32768) == 0);
	must(blocks(fd) < before);
	must(lseek(fd, MB, SEEK_HOLE) == MB + 8192);
	must(pread(fd, bytes, 65536, MB) == 65536);
	must(is_filled(bytes, 8192, MB, 1) && is_zero(bytes + 8192, 32768));
	must(is_filled(bytes + 40960, 24576, MB + 40960, 1));
	/* Partial blocks are filled with zeros. */
	must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * MB + 100, 10000) == 0);
	forget(fd);
	must(pread(fd, bytes, 65536, 3 * MB) == 65536);
	must(is_filled(bytes, 100, 3 * MB, 1) && is_zero(bytes + 100, 10000));
	must(is_filled(bytes + 10100, 55436, 3 * MB + 10100, 1));
	must(fstat(fd, &st) == 0 && st.st_size == 5 * MB && close(fd) == 0);
	free(bytes);
	return 0;
}

int try_copies(void)
{
	/* Long enough for an asynchronous copy. */
	size_t len = 12 * MB;
	unsigned char *bytes = malloc(len + 10);
	int from = open("copied-from", O_RDWR | O_CREAT, 0644), to = open("copied-to", O_RDWR | O_CREAT, 0644);
	fill(bytes, len, 0, 2);
	must(from >= 0 && to >= 0 && pwrite(from, bytes, len, 0) == (ssize_t)len);
	loff_t in = 3, out = 10;
	while (in < (loff_t)len) {
		ssize_t some = copy_file_range(from, &in, to, &out, len - in, 0);
		must(some > 0);
	}
	must(out == (loff_t)len + 7);
	forget(to);
	must(pread(to, bytes, len + 10, 0) == (ssize_t)len + 7);
	must(is_zero(bytes, 10) && is_filled(bytes + 10, len - 3, 3, 2));
	/* There is nothing to copy after the end. */
	in = len;
	must(copy_file_range(from, &in, to, &out, 100, 0) == 0);
	/* ext4 shares no extents. */
	must(ioctl(to, FICLONE, from) < 0 && (errno == EOPNOTSUPP || errno == EINVAL || errno == EXDEV));
	must(close(from) == 0 && close(to) == 0);
	free(bytes);
	return 0;
}

/* `make-source FILE MIBS` creates a file to copy. */
int make_source(int argc, char **argv)
{
	unsigned char *bytes = malloc(MB);
	must(argc == 2);
	int fd = open(argv[0], O_RDWR | O_CREAT | O_EXCL, 0644);
	must(fd >= 0);
	for (off_t at = 0; at < (off_t)atoi(argv[1]) * MB; at += MB) {
		fill(bytes, MB, at, 6);
		must(pwrite(fd, bytes, MB, at) == MB);
	}
	must(fsync(fd) == 0 && close(fd) == 0);
	free(bytes);
	return 0;
}

/* `copy-over FROM TO SAYS` copies a file on the server, which must succeed completely or report an error. */
int copy_over(int argc, char **argv)
{
	unsigned char *bytes = malloc(MB);
	struct stat st;
	must(argc == 3);
	int from = open(argv[0], O_RDONLY), to = open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0644);
	int says = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	must(from >= 0 && to >= 0 && says >= 0 && fstat(from, &st) == 0);
	loff_t in = 0, out = 0;
	ssize_t some = 1;
	while (in < st.st_size && some > 0)
		some = copy_file_range(from, &in, to, &out, st.st_size - in, 0);
	if (some < 0 || fsync(to) != 0) {
		must(dprintf(says, "failed: %s\n", strerror(errno)) > 0);
		return 0;
	}
	must(in == st.st_size && out == in && posix_fadvise(to, 0, 0, POSIX_FADV_DONTNEED) == 0);
	for (off_t at = 0; at < out; at += MB)
		must(pread(to, bytes, MB, at) == MB && is_filled(bytes, MB, at, 6));
	must(fstat(to, &st) == 0 && st.st_size == out);
	must(close(from) == 0 && close(to) == 0 && dprintf(says, "copied\n") > 0);
	free(bytes);
	return 0;
}

int try_direct(void)
{
	unsigned char *bytes;
	must(posix_memalign((void **)&bytes, 4096, MB) == 0);
	int fd = open("direct", O_RDWR | O_CREAT | O_DIRECT, 0644), other = open("direct", O_RDWR);
	must(fd >= 0 && other >= 0);
	for (int i = 0; i < 16; i++) {
		fill(bytes, 65536, i * 65536, 3);
		must(pwrite(fd, bytes, 65536, i * 65536) == 65536);
	}
	memset(bytes, 0, MB);
	must(pread(fd, bytes, MB, 0) == MB && is_filled(bytes, MB, 0, 3));
	must(pread(other, bytes, MB, 0) == MB && is_filled(bytes, MB, 0, 3));
	fill(bytes, 1000, 5001, 4);
	must(pwrite(other, bytes, 1000, 5001) == 1000);
	must(pread(fd, bytes, 8192, 0) == 8192);
	must(is_filled(bytes, 5001, 0, 3) && is_filled(bytes + 5001, 1000, 5001, 4));
	must(pread(fd, bytes, 4096, MB) == 0);
	must(close(fd) == 0 && close(other) == 0);
	free(bytes);
	return 0;
}

#define RECORDS 400

static void append(char who)
{
	char line[128];
	int fd = open("appended", O_WRONLY | O_APPEND);
	must(fd >= 0);
	for (int i = 0; i < RECORDS; i++) {
		const char *dots = "..................................................";
		int len = snprintf(line, sizeof line, "%c %d %.*s\n", who, i, i % 50, dots);
		must(write(fd, line, len) == len);
		if (i % 100 == 99)
			must(fsync(fd) == 0);
	}
	must(close(fd) == 0);
}

int try_append(void)
{
	int next[2] = {0, 0}, number;
	char line[128], who;
	must(close(open("appended", O_WRONLY | O_CREAT | O_EXCL, 0644)) == 0);
	pid_t child = fork();
	if (child == 0) {
		append('b');
		_exit(0);
	}
	append('a');
	child_succeeds(child);
	FILE *file = fopen("appended", "r");
	must(file != NULL);
	while (fgets(line, sizeof line, file) != NULL) {
		must(sscanf(line, "%c %d ", &who, &number) == 2 && (who == 'a' || who == 'b'));
		must(number == next[who - 'a']++);
		must(line[strlen(line) - 1] == '\n');
	}
	must(next[0] == RECORDS && next[1] == RECORDS && fclose(file) == 0);
	return 0;
}

/* `write-records FILE SAYS COUNT KIND` appends synced records of 4000 bytes, and reports each in SAYS. */
int write_records(int argc, char **argv)
{
	unsigned char bytes[4000];
	must(argc == 4);
	int fd = open(argv[0], O_RDWR | O_CREAT, 0644), says = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	int count = atoi(argv[2]), kind = atoi(argv[3]);
	must(fd >= 0 && says >= 0);
	for (int i = 0; i < count; i++) {
		off_t at = (off_t)i * sizeof bytes;
		fill(bytes, sizeof bytes, at, kind);
		must(pwrite(fd, bytes, sizeof bytes, at) == sizeof bytes);
		/* One sync for two records. */
		if (i % 2 == 0)
			continue;
		must(fsync(fd) == 0);
		must(dprintf(says, "%d\n", i + 1) > 0);
	}
	must(close(fd) == 0 && dprintf(says, "done\n") > 0);
	return 0;
}
