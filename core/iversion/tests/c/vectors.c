/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the test vectors (the file named by the argument) against iversion.h, and prints the number of results
 * compared. Also C++.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "iversion.h"

static iversion_t version;

static bool run(const char *operation, uint64_t argument, uint64_t *result)
{
	if (!strcmp(operation, "set_raw"))
		inode_set_iversion_raw(&version, argument);
	else if (!strcmp(operation, "set"))
		inode_set_iversion(&version, argument);
	else if (!strcmp(operation, "set_queried"))
		inode_set_iversion_queried(&version, argument);
	else if (!strcmp(operation, "inc"))
		inode_inc_iversion(&version);
	else if (!strcmp(operation, "maybe_inc"))
		*result = inode_maybe_inc_iversion(&version, argument != 0);
	else if (!strcmp(operation, "need_inc"))
		*result = inode_iversion_need_inc(&version);
	else if (!strcmp(operation, "peek_raw"))
		*result = inode_peek_iversion_raw(&version);
	else if (!strcmp(operation, "peek"))
		*result = inode_peek_iversion(&version);
	else if (!strcmp(operation, "query"))
		*result = inode_query_iversion(&version);
	else if (!strcmp(operation, "cmp"))
		*result = (uint64_t)inode_cmp_iversion(&version, argument);
	else
		return false;
	return true;
}

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
	char line[256];
	int number = 0, results = 0;

	if (!file) {
		fprintf(stderr, "usage: vectors FILE\n");
		return 2;
	}
	while (fgets(line, sizeof(line), file)) {
		char *operation, *word, *expected = NULL;
		uint64_t argument = 0, result = 0, wanted;

		number++;
		operation = strtok(line, " \n");
		if (!operation || operation[0] == '#')
			continue;
		while ((word = strtok(NULL, " \n"))) {
			if (strcmp(word, "="))
				argument = strtoull(word, NULL, 0);
			else
				expected = strtok(NULL, " \n");
		}
		if (!run(operation, argument, &result)) {
			fprintf(stderr, "line %d: what is %s?\n", number, operation);
			return 1;
		}
		if (!expected)
			continue;
		wanted = expected[0] == '-' ? (uint64_t)strtoll(expected, NULL, 0) : strtoull(expected, NULL, 0);
		if (result != wanted) {
			fprintf(stderr, "line %d: %s gave %" PRIu64 ", expected %s\n", number, operation, result, expected);
			return 1;
		}
		results++;
	}
	fclose(file);
	printf("%d\n", results);
	return 0;
}
