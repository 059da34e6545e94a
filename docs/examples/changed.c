/*
 * Tells whether a file changed since this program last ran.
 *
 *     cc -o changed changed.c
 *     ./changed FILE NOTE
 *
 * NOTE keeps what the last run saw. Exit code: 0 unchanged, 1 changed or seen for the first time, 2 error.
 * The programs in Python and Rust beside this one do the same and share the form of NOTE.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

static _Noreturn void fail(const char *path)
{
	fprintf(stderr, "changed: %s: %s\n", path, strerror(errno));
	fputs("usage: changed FILE NOTE; FILE must be on an ivers mount\n", stderr);
	exit(2);
}

/* The value of an extended attribute, as a string. */
static void ask(const char *path, const char *name, char *value, size_t size)
{
	ssize_t length = getxattr(path, name, value, size - 1);

	if (length < 0)
		fail(path);
	value[length] = '\0';
}

/* Everything that two equal notes must agree on. */
static void query(const char *path, char *note, size_t size)
{
	static const char key[] = "\"instance\":\"";
	char mount[4096], generation[32], change[32], *instance;
	struct stat stat_;

	if (stat(path, &stat_) < 0)
		fail(path);
	ask(path, "system.ivers.mount", mount, sizeof mount);
	ask(path, "system.ivers.generation", generation, sizeof generation);
	ask(path, "system.ivers.change", change, sizeof change);
	/* "instance" tells filesystems apart; where values do not outlive a mount it also tells mounts apart. */
	instance = strstr(mount, key);
	if (!instance) {
		errno = EPROTO;
		fail(path);
	}
	instance += sizeof key - 1;
	instance[strcspn(instance, "\"")] = '\0';
	snprintf(note, size, "%s %llu %s %s\n", instance, (unsigned long long)stat_.st_ino, generation, change);
}

/* Whatever the program does with the file: here it counts the bytes. */
static size_t read_contents(const char *path)
{
	char buffer[65536];
	size_t bytes = 0, piece;
	FILE *file = fopen(path, "rb");

	if (!file)
		fail(path);
	while ((piece = fread(buffer, 1, sizeof buffer, file)) > 0)
		bytes += piece;
	if (ferror(file))
		fail(path);
	fclose(file);
	return bytes;
}

int main(int argc, char **argv)
{
	char kept[512] = "", before[512], after[512];
	size_t bytes;
	FILE *note;

	if (argc != 3) {
		errno = EINVAL;
		fail("arguments");
	}
	note = fopen(argv[2], "r");
	if (note) {
		kept[fread(kept, 1, sizeof kept - 1, note)] = '\0';
		fclose(note);
	} else if (errno != ENOENT) {
		fail(argv[2]);
	}
	do {
		query(argv[1], before, sizeof before);
		if (strcmp(before, kept) == 0)
			return 0;
		bytes = read_contents(argv[1]);
		query(argv[1], after, sizeof after);
	} while (strcmp(before, after) != 0); /* equal: the contents belong to this value */
	printf("%s: %s %zu bytes%s\n", argv[1], *kept ? "changed," : "new,", bytes, *kept ? " now" : "");
	note = fopen(argv[2], "w");
	if (!note || fputs(before, note) < 0 || fclose(note) != 0)
		fail(argv[2]);
	return 1;
}
