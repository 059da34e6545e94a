/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One line of the test vectors, run against iversion.h. Asks for nothing but strcmp(), so that programs and
 * the kernel module share it. To be included behind iversion.h. Also C++.
 */
#ifndef IVERSION_VECTORS_H
#define IVERSION_VECTORS_H

enum vector_outcome { VECTOR_SILENT, VECTOR_RIGHT, VECTOR_WRONG, VECTOR_UNKNOWN };

/* Cuts the next word off. NULL at the end of the line. */
static inline char *vector_word(char **line)
{
	char *word = *line;

	while (*word == ' ' || *word == '\n')
		word++;
	*line = word;
	if (!*word)
		return NULL;
	while (**line && **line != ' ' && **line != '\n')
		++*line;
	if (**line)
		*(*line)++ = 0;
	return word;
}

/* Unsigned, decimal or 0x, or a negative decimal. */
static inline bool vector_number(const char *text, uint64_t *number)
{
	bool negative = text[0] == '-';
	unsigned int base = 10;

	text += negative;
	if (text[0] == '0' && text[1] == 'x') {
		base = 16;
		text += 2;
	}
	if (!*text)
		return false;
	for (*number = 0; *text; text++) {
		unsigned int digit = 16;

		if (*text >= '0' && *text <= '9')
			digit = (unsigned int)(*text - '0');
		else if (*text >= 'a' && *text <= 'f')
			digit = (unsigned int)(*text - 'a') + 10;
		else if (*text >= 'A' && *text <= 'F')
			digit = (unsigned int)(*text - 'A') + 10;
		if (digit >= base)
			return false;
		*number = *number * base + digit;
	}
	if (negative)
		*number = 0 - *number;
	return true;
}

static inline bool vector_call(iversion_t *version, const char *operation, uint64_t argument,
			       uint64_t *result)
{
	if (!strcmp(operation, "set_raw"))
		inode_set_iversion_raw(version, argument);
	else if (!strcmp(operation, "set"))
		inode_set_iversion(version, argument);
	else if (!strcmp(operation, "set_queried"))
		inode_set_iversion_queried(version, argument);
	else if (!strcmp(operation, "inc"))
		inode_inc_iversion(version);
	else if (!strcmp(operation, "maybe_inc"))
		*result = inode_maybe_inc_iversion(version, argument != 0);
	else if (!strcmp(operation, "need_inc"))
		*result = inode_iversion_need_inc(version);
	else if (!strcmp(operation, "peek_raw"))
		*result = inode_peek_iversion_raw(version);
	else if (!strcmp(operation, "peek"))
		*result = inode_peek_iversion(version);
	else if (!strcmp(operation, "query"))
		*result = inode_query_iversion(version);
	else if (!strcmp(operation, "cmp"))
		*result = (uint64_t)inode_cmp_iversion(version, argument);
	else
		return false;
	return true;
}

/* Runs a line, which it cuts into words. VECTOR_SILENT: it had no result to compare. */
static inline enum vector_outcome vector_line(iversion_t *version, char *line, uint64_t *result)
{
	char *operation = vector_word(&line), *word, *expected = NULL;
	uint64_t argument = 0, wanted = 0;

	*result = 0;
	if (!operation || operation[0] == '#')
		return VECTOR_SILENT;
	while ((word = vector_word(&line))) {
		if (!strcmp(word, "="))
			expected = vector_word(&line);
		else if (!vector_number(word, &argument))
			return VECTOR_UNKNOWN;
	}
	if (!vector_call(version, operation, argument, result))
		return VECTOR_UNKNOWN;
	if (!expected)
		return VECTOR_SILENT;
	if (!vector_number(expected, &wanted))
		return VECTOR_UNKNOWN;
	return *result == wanted ? VECTOR_RIGHT : VECTOR_WRONG;
}

#endif /* IVERSION_VECTORS_H */
