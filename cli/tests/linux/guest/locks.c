/* Byte-range locks between processes of one machine; `hold-lock FILE` holds one for other machines. */
#include "try.h"

static int lock(int fd, int how, short type, off_t start, off_t len)
{
	struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
	return fcntl(fd, how, &range);
}

/* Returns the type of the lock that conflicts with a write lock. */
static short in_the_way(int fd, off_t start, off_t len)
{
	struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
	must(fcntl(fd, F_GETLK, &range) == 0);
	return range.l_type;
}

static void in_turn(int pipe_end)
{
	char word;
	must(read(pipe_end, &word, 1) == 1);
}

static void other(int fd, int wait_for, int tell)
{
	in_turn(wait_for);
	must(in_the_way(fd, 0, 10) == F_WRLCK);
	must_fail(lock(fd, F_SETLK, F_WRLCK, 5, 1), EAGAIN);
	must_fail(lock(fd, F_SETLK, F_RDLCK, 99, 1), EAGAIN);
	must(lock(fd, F_SETLK, F_WRLCK, 100, 0) == 0);
	must(write(tell, "1", 1) == 1);
	/* Blocks until the whole range is unlocked. */
	must(lock(fd, F_SETLKW, F_WRLCK, 40, 20) == 0);
	must(write(tell, "2", 1) == 1);
	must_fail(lock(fd, F_SETLK, F_WRLCK, 39, 1), EAGAIN);
	must_fail(lock(fd, F_SETLK, F_WRLCK, 60, 1), EAGAIN);
	in_turn(wait_for);
	/* The other process has changed its write lock into a read lock. */
	must(lock(fd, F_SETLK, F_RDLCK, 0, 40) == 0);
	must(in_the_way(fd, 0, 40) == F_RDLCK);
	must_fail(lock(fd, F_SETLK, F_WRLCK, 0, 40), EAGAIN);
	must(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	must(write(tell, "3", 1) == 1);
	_exit(0);
}

int try_locks(void)
{
	int there[2], back[2];
	char word;
	int fd = open("locked", O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && pipe(there) == 0 && pipe(back) == 0);
	must(lock(fd, F_SETLK, F_WRLCK, 0, 100) == 0);
	pid_t child = fork();
	if (child == 0)
		other(open("locked", O_RDWR), there[0], back[1]);
	must(write(there[1], "1", 1) == 1);
	in_turn(back[0]);
	must_fail(lock(fd, F_SETLK, F_WRLCK, 1000, 1), EAGAIN);
	/* Long enough for the other process to block. */
	usleep(300000);
	must(fcntl(back[0], F_SETFL, O_NONBLOCK) == 0);
	must_fail(read(back[0], &word, 1), EAGAIN);
	must(fcntl(back[0], F_SETFL, 0) == 0);
	must(lock(fd, F_SETLK, F_UNLCK, 40, 20) == 0);
	in_turn(back[0]);
	must(in_the_way(fd, 40, 20) == F_WRLCK);
	must(lock(fd, F_SETLK, F_RDLCK, 0, 40) == 0);
	must(write(there[1], "2", 1) == 1);
	in_turn(back[0]);
	child_succeeds(child);
	/* The locks of the process ended with it. */
	must(lock(fd, F_SETLK, F_WRLCK, 0, 0) == 0);
	/* Locks of an open file description conflict with those of another one, even in one process. */
	int second = open("locked", O_RDWR), third = open("locked", O_RDWR);
	must(second >= 0 && third >= 0 && lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	must(lock(second, F_OFD_SETLK, F_WRLCK, 0, 10) == 0);
	must_fail(lock(third, F_OFD_SETLK, F_WRLCK, 9, 1), EAGAIN);
	must(close(second) == 0 && lock(third, F_OFD_SETLK, F_WRLCK, 9, 1) == 0);
	must(close(third) == 0 && close(fd) == 0);
	return 0;
}

/* Holds a lock of the first ten bytes until it is killed. */
int hold_lock(int argc, char **argv)
{
	must(argc == 1);
	int fd = open(argv[0], O_RDWR | O_CREAT, 0644);
	must(fd >= 0 && lock(fd, F_SETLKW, F_WRLCK, 0, 10) == 0);
	printf("held\n");
	for (;;)
		pause();
}

/* `count FILE TIMES` increments the number in a file under a lock, repeatedly. */
int count_up(int argc, char **argv)
{
	must(argc == 2);
	int fd = open(argv[0], O_RDWR | O_CREAT, 0644);
	must(fd >= 0);
	for (int times = atoi(argv[1]); times > 0; times--) {
		char text[32] = "";
		must(lock(fd, F_SETLKW, F_WRLCK, 0, 0) == 0);
		must(pread(fd, text, sizeof text - 1, 0) >= 0);
		int len = snprintf(text, sizeof text, "%d\n", atoi(text) + 1);
		must(pwrite(fd, text, len, 0) == len);
		must(lock(fd, F_SETLK, F_UNLCK, 0, 0) == 0);
	}
	must(close(fd) == 0);
	return 0;
}
