/* `names COUNT`: a directory of many names, of which every third stays. */
#include "try.h"

static int seen(unsigned char *counts, int count)
{
	int found = 0;
	DIR *dir = opendir(".");
	must(dir != NULL);
	memset(counts, 0, count);
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		int number;
		if (entry->d_name[0] == '.')
			continue;
		must(sscanf(entry->d_name, "a-name-of-some-length-%d", &number) == 1);
		must(number >= 0 && number < count && counts[number] == 0);
		counts[number] = 1;
		found++;
	}
	must(closedir(dir) == 0);
	return found;
}

int try_names(int argc, char **argv)
{
	int count = argc > 0 ? atoi(argv[0]) : 2000;
	unsigned char *counts = malloc(count);
	char name[64];
	must(mkdir("many", 0755) == 0 && chdir("many") == 0);
	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof name, "a-name-of-some-length-%d", i);
		must(mknod(name, S_IFREG | 0644, 0) == 0);
	}
	must(seen(counts, count) == count);
	/* Removing entries that were listed does not move the remaining ones. */
	DIR *dir = opendir(".");
	int found = 0;
	memset(counts, 0, count);
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		int number;
		if (entry->d_name[0] == '.')
			continue;
		must(sscanf(entry->d_name, "a-name-of-some-length-%d", &number) == 1 && counts[number]++ == 0);
		found++;
		if (number % 3 != 0)
			must(unlink(entry->d_name) == 0);
	}
	must(closedir(dir) == 0);
	must(found == count);
	must(seen(counts, count) == (count + 2) / 3);
	for (int i = 0; i < count; i++)
		must(counts[i] == (i % 3 == 0));
	return 0;
}
