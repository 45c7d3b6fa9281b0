/* SPDX-License-Identifier: MIT */
/*
 * readahead.h: rows of the spill file on their way to a reader: while one batch is used, a thread
 * reads the rows that follow it.
 */
#ifndef DATA_READAHEAD_H
#define DATA_READAHEAD_H

#include <stdint.h>

#include "set.h"

struct readahead;

/* order: row numbers, n of them; may change while the thread rests (readahead_rest). */
int readahead_create(const struct data_set *data, const uint32_t *order, uint64_t n,
		     uint32_t max_batch, struct readahead **out, struct err *err);
void readahead_free(struct readahead *ahead);
uint64_t readahead_bytes(const struct data_set *data, uint32_t max_batch);
/* Rows [first, first + n): row i lies at base + i * stride if it is in the file. */
int readahead_get(struct readahead *ahead, uint64_t first, uint32_t n, const uint8_t **base,
		  struct err *err);
/* Waits for the thread, forgets what was read. -ETIMEDOUT */
int readahead_rest(struct readahead *ahead);
uint64_t readahead_stride(const struct data_set *data);

#endif
