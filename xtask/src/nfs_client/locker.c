/* Locks of a program on Linux's client: locker try PATH r|w, locker hold PATH, locker count PATH ROUNDS.
   "try" exits with 1 if the lock is refused. "hold" prints a line when it has the lock. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int lock(int file, int command, short type)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET };
	return fcntl(file, command, &lock);
}

static int count(int file, int rounds)
{
	while (rounds-- > 0) {
		char text[32] = "";
		if (lock(file, F_SETLKW, F_WRLCK) || pread(file, text, sizeof text - 1, 0) < 0)
			return 2;
		int len = snprintf(text, sizeof text, "%d\n", atoi(text) + 1);
		if (pwrite(file, text, len, 0) != len || lock(file, F_SETLK, F_UNLCK))
			return 2;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int file = argc < 3 ? -1 : open(argv[2], O_RDWR);
	int code = 2;
	if (file >= 0 && !strcmp(argv[1], "hold")) {
		if (!lock(file, F_SETLK, F_WRLCK)) {
			puts("held");
			fflush(stdout);
			pause();
		}
	} else if (file >= 0 && argc == 4 && !strcmp(argv[1], "try")) {
		code = lock(file, F_SETLK, *argv[3] == 'r' ? F_RDLCK : F_WRLCK) ? 1 : 0;
		if (code && errno != EAGAIN && errno != EACCES)
			code = 2;
	} else if (file >= 0 && argc == 4 && !strcmp(argv[1], "count")) {
		code = count(file, atoi(argv[3]));
	}
	if (code == 2)
		perror(argc > 2 ? argv[2] : "locker");
	return code;
}
