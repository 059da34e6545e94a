/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the test vectors (the file named by the argument) against iversion.h, and prints the number of results
 * compared. Also C++.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "iversion.h"
#include "vectors.h"

static iversion_t version;

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
	char line[256], words[256];
	int number = 0, results = 0;

	if (!file) {
		fprintf(stderr, "usage: vectors FILE\n");
		return 2;
	}
	while (fgets(line, sizeof(line), file)) {
		uint64_t result;

		number++;
		strcpy(words, line);
		switch (vector_line(&version, words, &result)) {
		case VECTOR_SILENT:
			break;
		case VECTOR_RIGHT:
			results++;
			break;
		case VECTOR_WRONG:
			fprintf(stderr, "line %d gave %" PRIu64 ": %s", number, result, line);
			return 1;
		case VECTOR_UNKNOWN:
			fprintf(stderr, "line %d, what is it? %s", number, line);
			return 1;
		}
	}
	fclose(file);
	printf("%d\n", results);
	return 0;
}
