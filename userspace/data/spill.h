/* SPDX-License-Identifier: MIT */
/*
 * spill.h: the file that rows go to when memory is used up. It has no name, its space is allocated
 * before it is written, and it is read with pread: a full or failing disk is an error of one job,
 * never a signal. reserve and release are for one thread at a time.
 */
#ifndef DATA_SPILL_H
#define DATA_SPILL_H

#include <stdint.h>

#include "../base/err.h"

struct spill {
	int fd; /* -1: not opened yet */
	char *directory;
	uint64_t max;	    /* 0: 20 % of the free space, when it is opened */
	uint64_t min_free;  /* bytes that stay free on the disk */
	uint64_t end;	    /* bytes reserved */
	uint64_t released;  /* bytes of them that were given back to the disk */
	uint64_t allocated; /* bytes the file system has promised */
};

int spill_init(struct spill *spill, const char *directory, uint64_t max, uint64_t min_free);
void spill_close(struct spill *spill);
int spill_reserve(struct spill *spill, uint64_t bytes, uint64_t *offset, struct err *err);
int spill_write(const struct spill *spill, uint64_t offset, const void *from, uint64_t bytes,
		struct err *err);
int spill_read(const struct spill *spill, uint64_t offset, void *to, uint64_t bytes,
	       struct err *err);
/* Bytes that nobody reads any more go back to the disk where its file system can do that. */
void spill_release(struct spill *spill, uint64_t offset, uint64_t bytes);
/* Says that bytes will be read soon. */
void spill_advise(const struct spill *spill, uint64_t offset, uint64_t bytes);

#endif
