/* SPDX-License-Identifier: MIT */
/*
 * bad.h: the rows that cannot be used: counted exactly, the first of them kept with id and reason
 * in bounded memory. Ids and reasons are kept as clean UTF-8. Not locked.
 */
#ifndef DATA_BAD_H
#define DATA_BAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"
#include "../ctl/row.h"

#define BAD_REASON 256		   /* bytes of a reason, with the end */
#define BAD_KEPT_BYTES (16u << 20) /* of ids and reasons; more are counted only */

struct bad_rows {
	uint64_t max; /* more than these are an error */
	uint64_t count[ROW_SETS];
	uint64_t crashes; /* images that ended or hung a decoder */
	size_t n, capacity, bytes;
	struct bad_row {
		uint8_t set;
		char *id; /* one allocation, the reason behind it */
		const char *reason;
	} * row;
};

void bad_rows_free(struct bad_rows *bad);
uint64_t bad_rows_total(const struct bad_rows *bad);
/* Counts the row, keeps it if there is room. ERR_DATA past max, and at the third crash. */
int bad_rows_add(struct bad_rows *bad, enum row_set set, const char *id, const char *reason,
		 bool crash, struct err *err);
/* By set, then id in the order of its numbers, so that the list does not depend on arrival. */
void bad_rows_sort(struct bad_rows *bad);

/* Copies bytes as text: invalid UTF-8 and control characters become '?', cut at a character. */
void utf8_clean(char *out, size_t size, const void *text, size_t bytes);

#endif
