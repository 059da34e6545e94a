/* Extended attributes. */
#include "try.h"

static int listed(const char *name)
{
	char names[4096];
	ssize_t len = listxattr("attributed", names, sizeof names);
	must(len >= 0);
	for (ssize_t at = 0; at < len; at += strlen(names + at) + 1)
		if (!strcmp(names + at, name))
			return 1;
	return 0;
}

int try_xattrs(void)
{
	char value[3000], back[4096], name[64];
	must(close(open("attributed", O_WRONLY | O_CREAT, 0644)) == 0);
	must_fail(getxattr("attributed", "user.none", back, sizeof back), ENODATA);
	must(setxattr("attributed", "user.one", "first", 5, XATTR_CREATE) == 0);
	must_fail(setxattr("attributed", "user.one", "x", 1, XATTR_CREATE), EEXIST);
	must_fail(setxattr("attributed", "user.two", "x", 1, XATTR_REPLACE), ENODATA);
	must(getxattr("attributed", "user.one", back, sizeof back) == 5 && !memcmp(back, "first", 5));
	must(getxattr("attributed", "user.one", NULL, 0) == 5);
	must_fail(getxattr("attributed", "user.one", back, 2), ERANGE);
	must(setxattr("attributed", "user.one", "second!", 7, XATTR_REPLACE) == 0);
	must(getxattr("attributed", "user.one", back, sizeof back) == 7 && !memcmp(back, "second!", 7));
	must(setxattr("attributed", "user.empty", "", 0, 0) == 0);
	must(getxattr("attributed", "user.empty", back, 10) == 0);
	fill((unsigned char *)value, sizeof value, 0, 8);
	must(setxattr("attributed", "user.long", value, sizeof value, 0) == 0);
	must(getxattr("attributed", "user.long", back, sizeof back) == sizeof value);
	must(!memcmp(back, value, sizeof value));
	must(removexattr("attributed", "user.long") == 0 && !listed("user.long"));
	must_fail(removexattr("attributed", "user.long"), ENODATA);
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "user.number-%d", i);
		must(setxattr("attributed", name, name, strlen(name), XATTR_CREATE) == 0);
	}
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof name, "user.number-%d", i);
		must(listed(name));
	}
	must(listed("user.one") && listed("user.empty"));
	must(mkdir("attributed-dir", 0755) == 0 && setxattr("attributed-dir", "user.d", "dir", 3, 0) == 0);
	must(getxattr("attributed-dir", "user.d", back, sizeof back) == 3);
	must(getxattr(".", "user.d", back, sizeof back) < 0 && errno == ENODATA);
	/* NFS carries only the user namespace. */
	must(setxattr("attributed", "trusted.x", "1", 1, 0) < 0 && errno == EOPNOTSUPP);
	return 0;
}
