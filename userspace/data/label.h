/* SPDX-License-Identifier: MIT */
/*
 * label.h: a table of distinct byte strings (the label values), numbered as they come. Not locked.
 */
#ifndef DATA_LABEL_H
#define DATA_LABEL_H

#include <stddef.h>
#include <stdint.h>

#define LABEL_MAX_BYTES 1024u /* of one value: AGREE_MAX_LABELS of them fit into AGREE_MAX_BLOB */

struct label_table {
	uint32_t n, capacity;
	struct label_value {
		uint32_t offset, bytes;
		uint32_t tag; /* the user's number: of another table */
	} * value;
	uint32_t *slot; /* open addressing: number + 1, 0 empty */
	uint32_t slots;
	uint8_t *text;
	size_t text_bytes, text_capacity;
};

void label_table_free(struct label_table *table);
/* Number of a value, -1: not there. */
int64_t label_find(const struct label_table *table, const void *value, uint32_t bytes);
/* Adds a value that is not there; its number or -ENOMEM. */
int64_t label_add(struct label_table *table, const void *value, uint32_t bytes, uint32_t tag);
const uint8_t *label_text(const struct label_table *table, uint32_t number, uint32_t *bytes);
size_t label_table_bytes(const struct label_table *table);

#endif
