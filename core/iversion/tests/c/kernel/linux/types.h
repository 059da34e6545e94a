/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A stand-in for the kernel's header, so that the __KERNEL__ branch of iversion.h can be compiled and run. */
#include <stdbool.h>
#include <stdint.h>
