/* Files that are removed and replaced while they are open, and files in memory. */
#include "try.h"

static int hidden(void)
{
	int found = 0;
	DIR *dir = opendir(".");
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		found += !strncmp(entry->d_name, ".nfs", 4);
	must(closedir(dir) == 0);
	return found;
}

/* Files kept for a process that had them open disappear at the close, or shortly after it. */
static void nothing_hidden(void)
{
	for (int tries = 0; hidden() != 0; tries++) {
		must(tries < 500);
		usleep(10000);
	}
}

int try_open_files(void)
{
	unsigned char bytes[30000];
	struct stat st;
	must(mkdir("unlinked", 0755) == 0 && chdir("unlinked") == 0);
	int fd = open("gone", O_RDWR | O_CREAT, 0644);
	fill(bytes, sizeof bytes, 0, 1);
	must(fd >= 0 && pwrite(fd, bytes, 10000, 0) == 10000);
	must(unlink("gone") == 0);
	must_fail(stat("gone", &st), ENOENT);
	must(hidden() == 1);
	must(pwrite(fd, bytes + 10000, 20000, 10000) == 20000);
	forget(fd);
	must(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes && is_filled(bytes, sizeof bytes, 0, 1));
	must(ftruncate(fd, 5000) == 0 && fstat(fd, &st) == 0 && st.st_size == 5000);
	must(close(fd) == 0);
	nothing_hidden();

	int old = open("target", O_RDWR | O_CREAT, 0644);
	must(old >= 0 && write(old, "old", 3) == 3);
	fd = open("source", O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && write(fd, "source", 6) == 6);
	must(rename("source", "target") == 0);
	forget(old);
	must(pread(old, bytes, 10, 0) == 3 && !memcmp(bytes, "old", 3));
	must(write(fd, "+more", 5) == 5 && close(fd) == 0 && close(old) == 0);
	nothing_hidden();
	fd = open("target", O_RDONLY);
	must(fd >= 0 && read(fd, bytes, 100) == 11 && !memcmp(bytes, "source+more", 11) && close(fd) == 0);
	must(rename("target", "moved") == 0);
	return 0;
}

int try_mapped(void)
{
	size_t len = 1 << 20;
	unsigned char *check = malloc(len);
	int fd = open("mapped", O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && ftruncate(fd, len) == 0);
	unsigned char *shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(shared != MAP_FAILED && is_zero(shared, len));
	fill(shared, len / 2, 0, 5);
	must(msync(shared, len, MS_SYNC) == 0);
	forget(fd);
	must(pread(fd, check, len, 0) == (ssize_t)len);
	must(is_filled(check, len / 2, 0, 5) && is_zero(check + len / 2, len / 2));
	/* Writes are seen in the mapping, and the mapping in reads. */
	fill(check, 5000, 700001, 6);
	must(pwrite(fd, check, 5000, 700001) == 5000 && is_filled(shared + 700001, 5000, 700001, 6));
	shared[len - 1] = 77;
	must(pread(fd, check, 1, len - 1) == 1 && check[0] == 77);
	unsigned char *private = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	must(private != MAP_FAILED);
	private[0] = (unsigned char)~private[0];
	must(pread(fd, check, 4096, 0) == 4096 && is_filled(check, 4096, 0, 5));
	must(ftruncate(fd, len + 4096) == 0 && munmap(shared, len) == 0 && munmap(private, 4096) == 0);
	forget(fd);
	must(pread(fd, check, 1, len - 1) == 1 && check[0] == 77);
	must(close(fd) == 0);
	free(check);
	return 0;
}

/* `hold-dirty FILE` writes a page and keeps the file open, so that the page stays in the cache. */
int hold_dirty(int argc, char **argv)
{
	unsigned char bytes[4096];
	must(argc == 1);
	int fd = open(argv[0], O_RDWR | O_CREAT, 0644);
	fill(bytes, sizeof bytes, 0, 9);
	must(fd >= 0 && pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes);
	printf("held\n");
	for (;;)
		pause();
}
