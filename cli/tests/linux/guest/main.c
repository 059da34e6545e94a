/* One program for all: `try WHAT DIRECTORY ...`. */
#include "try.h"

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	umask(022);
	if (argc < 3 || chdir(argv[2]) != 0) {
		printf("usage: try WHAT DIRECTORY ...\n");
		return 2;
	}
	const char *what = argv[1];
	argc -= 3;
	argv += 3;
	if (!strcmp(what, "files"))
		return try_files();
	if (!strcmp(what, "names"))
		return try_names(argc, argv);
	if (!strcmp(what, "locks"))
		return try_locks();
	if (!strcmp(what, "mapped"))
		return try_mapped();
	if (!strcmp(what, "open-files"))
		return try_open_files();
	if (!strcmp(what, "xattrs"))
		return try_xattrs();
	if (!strcmp(what, "sparse"))
		return try_sparse();
	if (!strcmp(what, "copies"))
		return try_copies();
	if (!strcmp(what, "direct"))
		return try_direct();
	if (!strcmp(what, "append"))
		return try_append();
	if (!strcmp(what, "make-source"))
		return make_source(argc, argv);
	if (!strcmp(what, "copy-over"))
		return copy_over(argc, argv);
	if (!strcmp(what, "write-records"))
		return write_records(argc, argv);
	if (!strcmp(what, "count"))
		return count_up(argc, argv);
	if (!strcmp(what, "hold-lock"))
		return hold_lock(argc, argv);
	if (!strcmp(what, "hold-dirty"))
		return hold_dirty(argc, argv);
	printf("%s: unknown program\n", what);
	return 2;
}
