/* Files, directories, links, names and attributes. */
#include "try.h"

#define LEN (3 << 20)

static void contents(void)
{
	unsigned char *bytes = malloc(LEN);
	int fd = open("data", O_RDWR | O_CREAT | O_EXCL, 0644);
	must(fd >= 0);
	fill(bytes, LEN, 0, 1);
	must(pwrite(fd, bytes, LEN, 0) == LEN);
	forget(fd);
	memset(bytes, 0, LEN);
	must(pread(fd, bytes, LEN, 0) == LEN);
	must(is_filled(bytes, LEN, 0, 1));
	/* Overwrite the middle, not aligned to pages. */
	fill(bytes, 70001, 123457, 2);
	must(pwrite(fd, bytes, 70001, 123457) == 70001);
	forget(fd);
	must(pread(fd, bytes, LEN, 0) == LEN);
	must(is_filled(bytes, 123457, 0, 1));
	must(is_filled(bytes + 123457, 70001, 123457, 2));
	must(is_filled(bytes + 193458, LEN - 193458, 193458, 1));
	must(pread(fd, bytes, 10, LEN) == 0);
	must(close(fd) == 0);
	must_fail(open("data", O_RDWR | O_CREAT | O_EXCL, 0644), EEXIST);
	must_fail(open("missing", O_RDONLY), ENOENT);
	must_fail(open("data/x", O_RDONLY), ENOTDIR);
	free(bytes);
}

static void attributes(void)
{
	struct stat st;
	must(stat("data", &st) == 0);
	must(st.st_size == LEN && (st.st_mode & 07777) == 0644 && st.st_nlink == 1);
	must(st.st_blocks >= LEN / 512);
	must(chmod("data", 0640) == 0 && chown("data", 1000, 1001) == 0);
	must(stat("data", &st) == 0);
	must((st.st_mode & 07777) == 0640 && st.st_uid == 1000 && st.st_gid == 1001);
	must(chmod("data", 04755) == 0 && stat("data", &st) == 0);
	must((st.st_mode & 07777) == 04755);
	struct timespec times[2] = {{1000000000, 123456789}, {1500000000, 987654321}};
	must(utimensat(AT_FDCWD, "data", times, 0) == 0 && stat("data", &st) == 0);
	must(st.st_atim.tv_sec == 1000000000 && st.st_atim.tv_nsec == 123456789);
	must(st.st_mtim.tv_sec == 1500000000 && st.st_mtim.tv_nsec == 987654321);
	time_t now = time(NULL);
	must(utimensat(AT_FDCWD, "data", NULL, 0) == 0 && stat("data", &st) == 0);
	must(st.st_mtim.tv_sec >= now - 5 && st.st_mtim.tv_sec <= now + 5);
	/* The mode limits users other than root. */
	must(chmod("data", 0600) == 0 && chown("data", 0, 0) == 0);
	pid_t child = fork();
	if (child == 0) {
		must(setgid(1001) == 0 && setuid(1001) == 0);
		must_fail(open("data", O_RDONLY), EACCES);
		must_fail(open("new", O_WRONLY | O_CREAT, 0644), EACCES);
		must_fail(chmod("data", 0666), EPERM);
		must(access("data", R_OK) < 0);
		_exit(0);
	}
	child_succeeds(child);
	must(mkdir("open", 0777) == 0 && chmod("open", 01777) == 0);
	child = fork();
	if (child == 0) {
		must(setgid(1001) == 0 && setuid(1001) == 0);
		int fd = open("open/theirs", O_RDWR | O_CREAT | O_EXCL, 0400);
		must(fd >= 0 && write(fd, "theirs", 6) == 6 && close(fd) == 0);
		must_fail(open("open/theirs", O_RDWR), EACCES);
		_exit(0);
	}
	child_succeeds(child);
	must(stat("open/theirs", &st) == 0);
	must(st.st_uid == 1001 && st.st_gid == 1001 && st.st_size == 6 && (st.st_mode & 0777) == 0400);
}

static void lengths(void)
{
	unsigned char bytes[5000];
	struct stat before, after;
	int fd = open("lengths", O_RDWR | O_CREAT | O_EXCL, 0644);
	fill(bytes, sizeof bytes, 0, 3);
	must(fd >= 0 && pwrite(fd, bytes, sizeof bytes, 0) == sizeof bytes && fsync(fd) == 0);
	must(fstat(fd, &before) == 0);
	usleep(20000);
	must(ftruncate(fd, 100) == 0 && fstat(fd, &after) == 0 && after.st_size == 100);
	must(after.st_mtim.tv_sec > before.st_mtim.tv_sec || after.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
	must(ftruncate(fd, sizeof bytes) == 0);
	forget(fd);
	must(pread(fd, bytes, sizeof bytes, 0) == sizeof bytes);
	must(is_filled(bytes, 100, 0, 3) && is_zero(bytes + 100, sizeof bytes - 100));
	must(close(fd) == 0 && truncate("lengths", 7) == 0 && stat("lengths", &after) == 0 && after.st_size == 7);
	fd = open("lengths", O_WRONLY | O_TRUNC);
	must(fd >= 0 && fstat(fd, &after) == 0 && after.st_size == 0 && close(fd) == 0);
}

static void links(void)
{
	struct stat st, other;
	char text[PATH_MAX];
	must(link("data", "second") == 0 && stat("data", &st) == 0 && stat("second", &other) == 0);
	must(st.st_nlink == 2 && st.st_ino == other.st_ino && st.st_dev == other.st_dev);
	must(symlink("data", "soft") == 0 && readlink("soft", text, sizeof text) == 4 && !memcmp(text, "data", 4));
	must(lstat("soft", &st) == 0 && S_ISLNK(st.st_mode) && st.st_size == 4);
	must(stat("soft", &st) == 0 && st.st_ino == other.st_ino);
	must(unlink("second") == 0 && stat("data", &st) == 0 && st.st_nlink == 1);
	must_fail(unlink("second"), ENOENT);
	must(mkfifo("fifo", 0600) == 0 && lstat("fifo", &st) == 0 && S_ISFIFO(st.st_mode));
	must(mknod("null", S_IFCHR | 0600, 0x103) == 0 && lstat("null", &st) == 0);
	must(S_ISCHR(st.st_mode) && st.st_rdev == 0x103);
	must_fail(link("open", "dirlink"), EPERM);
}

static void directories(void)
{
	char name[257];
	struct stat st;
	must(mkdir("dir", 0755) == 0 && mkdir("dir/inner", 0700) == 0);
	must(stat("dir", &st) == 0 && st.st_nlink == 3);
	must_fail(rmdir("dir"), ENOTEMPTY);
	must_fail(mkdir("dir", 0755), EEXIST);
	must_fail(unlink("dir"), EISDIR);
	must(rename("data", "dir/data") == 0 && rename("dir/data", "data") == 0);
	int fd = open("dir/old", O_WRONLY | O_CREAT, 0644);
	must(fd >= 0 && write(fd, "old", 3) == 3 && close(fd) == 0);
	fd = open("dir/new", O_WRONLY | O_CREAT, 0644);
	must(fd >= 0 && write(fd, "newer", 5) == 5 && close(fd) == 0);
	must(rename("dir/new", "dir/old") == 0 && stat("dir/old", &st) == 0 && st.st_size == 5);
	must_fail(stat("dir/new", &st), ENOENT);
	must_fail(rename("dir", "dir/inner/below"), EINVAL);
	/* NFS4ERR_EXIST, which POSIX allows too (RFC 8881 section 18.26.3). */
	must_fail(rename("dir/inner", "open"), EEXIST);
	must(rename("dir/inner", "dir/moved") == 0 && rmdir("dir/moved") == 0);
	memset(name, 'n', sizeof name);
	name[255] = 0;
	must(mkdir(name, 0755) == 0 && stat(name, &st) == 0 && rmdir(name) == 0);
	name[255] = 'n';
	name[256] = 0;
	must_fail(mkdir(name, 0755), ENAMETOOLONG);
	must(mkdir("\xc3\xa4\xe2\x82\xac", 0755) == 0);
}

int try_files(void)
{
	struct statvfs fs;
	contents();
	attributes();
	lengths();
	links();
	directories();
	must(statvfs(".", &fs) == 0);
	must(fs.f_blocks > 0 && fs.f_bfree <= fs.f_blocks && fs.f_files > 0 && fs.f_namemax == 255);
	return 0;
}
