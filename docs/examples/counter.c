/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A cache that reads a file again only if it changed, with iversion.h.
 *
 *   cc -std=c11 -I include -o counter docs/examples/counter.c && ./counter
 */
#include <stdio.h>
#include <string.h>

#include "iversion.h"

struct file {
	iversion_t version;
	char data[64];
	unsigned int logged; /* how often the inode would have been logged for its counter */
};

struct cache {
	uint64_t version;
	char data[64];
	unsigned int reads;
};

/* Makes the change visible first, then tells the counter. */
static void file_write(struct file *file, const char *text)
{
	snprintf(file->data, sizeof(file->data), "%s", text);
	if (inode_maybe_inc_iversion(&file->version, false))
		file->logged++;
}

/* Queries before it reads: a change between the two makes the next call read again. */
static const char *cache_get(struct cache *cache, struct file *file)
{
	uint64_t now = inode_query_iversion(&file->version);

	if (!cache->reads || now != cache->version) {
		cache->reads++;
		cache->version = now;
		memcpy(cache->data, file->data, sizeof(cache->data));
	}
	return cache->data;
}

int main(void)
{
	static struct file file;
	static struct cache cache;
	char text[64];

	inode_set_iversion(&file.version, 1);
	for (int round = 0; round < 3; round++) {
		for (int write = 0; write < 1000; write++) {
			snprintf(text, sizeof(text), "round %d, write %d", round, write);
			file_write(&file, text);
		}
		for (int lookup = 0; lookup < 1000; lookup++)
			if (strcmp(cache_get(&cache, &file), text) != 0)
				return 1;
	}
	printf("3000 writes, 3000 lookups: %u reads, inode logged %u times\n", cache.reads, file.logged);
	return 0;
}
