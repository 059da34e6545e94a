/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The change attribute of a file on an ivers mount, by ioctl on any open
 * descriptor of the file:
 *
 *     struct ivers_change c;
 *     if (ioctl(fd, IVERS_IOC_CHANGE, &c) == 0 && (c.flags & IVERS_CHANGE_VALID))
 *             ...
 *
 * ENOTTY: the file is not on an ivers mount. The extended attributes
 * system.ivers.change and system.ivers.stored have the same values and need no
 * descriptor.
 *
 * Two equal values of `change` of one file (same filesystem, inode number and
 * generation) mean that nothing about it changed in between, except access
 * times. Later values are larger: (int64_t)((a - b) << 1) > 0. Compare values of
 * different mounts only with IVERS_CHANGE_PERSISTENT. Without it each mount
 * starts a new count, and keeps a value only while it keeps the inode in memory.
 */
#ifndef IVERS_H
#define IVERS_H

#include <stdint.h>
#include <sys/ioctl.h>

struct ivers_change {
	uint64_t change;     /* 0 unless IVERS_CHANGE_VALID */
	uint64_t stored;     /* the counter without the epoch, as the format stores it at the next write-back */
	uint32_t generation; /* distinguishes successive files with one inode number */
	uint32_t flags;      /* IVERS_CHANGE_* */
};

#define IVERS_CHANGE_VALID      0x01u /* there is a change attribute */
#define IVERS_CHANGE_DATA       0x02u /* changes of data raise it */
#define IVERS_CHANGE_METADATA   0x04u /* changes of metadata raise it */
#define IVERS_CHANGE_MONOTONIC  0x08u /* it only grows */
#define IVERS_CHANGE_PERSISTENT 0x10u /* it stays the same across a clean remount */
#define IVERS_CHANGE_CRASH_SAFE 0x20u /* never vouches for other contents after a crash */

#define IVERS_IOC_CHANGE _IOR(0xE9, 1, struct ivers_change)

#endif
