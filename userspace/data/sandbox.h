/* SPDX-License-Identifier: MIT */
/*
 * sandbox.h: takes from a process everything that decoding an image does not need: descriptors, new
 * privileges, address space, core files, and with a seccomp filter all system calls but those for
 * memory, futexes and the end. There is no way back.
 */
#ifndef DATA_SANDBOX_H
#define DATA_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Closes all descriptors but the n given (sorted in place). Sanitizer builds keep stderr too. */
void sandbox_close_all(int *keep, size_t n);
/* memory: bytes that may be mapped from now on. 0 or -errno. */
int sandbox_enter(uint64_t memory, bool filter);

#endif
