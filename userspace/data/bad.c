// SPDX-License-Identifier: MIT
/* bad.c: see bad.h. */
#include "bad.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CRASHES 3

/* Length of the well-formed UTF-8 character at s (Unicode 15, table 3-7), 0: malformed. */
static unsigned int utf8_length(const uint8_t *s, size_t left)
{
	uint8_t low = 0x80, high = 0xbf;
	unsigned int n;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		n = 2;
	else if ((s[0] & 0xf0) == 0xe0)
		n = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		n = 4;
	else
		return 0;
	if (s[0] == 0xe0)
		low = 0xa0; /* overlong */
	if (s[0] == 0xed)
		high = 0x9f; /* surrogates */
	if (s[0] == 0xf0)
		low = 0x90;
	if (s[0] == 0xf4)
		high = 0x8f;
	if (left < n || s[1] < low || s[1] > high)
		return 0;
	for (unsigned int i = 2; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	return n;
}

void utf8_clean(char *out, size_t size, const void *text, size_t bytes)
{
	const uint8_t *s = text;
	size_t at = 0, i = 0;

	while (i < bytes) {
		unsigned int n = utf8_length(s + i, bytes - i);
		bool control = n == 1 && (s[i] < 0x20 || s[i] == 0x7f);

		if (at + (n ? n : 1) >= size)
			break;
		if (!n || control)
			out[at++] = '?';
		else
			for (unsigned int k = 0; k < n; k++)
				out[at++] = (char)s[i + k];
		i += n ? n : 1;
	}
	out[at] = '\0';
}

void bad_rows_free(struct bad_rows *bad)
{
	for (size_t i = 0; i < bad->n; i++)
		free(bad->row[i].id);
	free(bad->row);
	bad->row = NULL;
	bad->n = bad->capacity = 0;
}

uint64_t bad_rows_total(const struct bad_rows *bad)
{
	return bad->count[ROW_TRAIN] + bad->count[ROW_VALIDATION] + bad->count[ROW_PREDICT];
}

/* Room or memory lacking is no error: the row is counted all the same. */
static void keep(struct bad_rows *bad, enum row_set set, const char *id, const char *reason)
{
	size_t id_bytes = strlen(id) + 1, reason_bytes = strlen(reason) + 1;
	size_t bytes = id_bytes + reason_bytes;
	char *text;

	if (bad->n >= bad->max || bad->bytes + bytes > BAD_KEPT_BYTES)
		return;
	if (bad->n == bad->capacity) {
		size_t capacity = bad->capacity ? 2 * bad->capacity : 16;
		struct bad_row *row = realloc(bad->row, capacity * sizeof(*row));

		if (!row)
			return;
		bad->row = row;
		bad->capacity = capacity;
	}
	text = malloc(bytes);
	if (!text)
		return;
	memcpy(text, id, id_bytes);
	memcpy(text + id_bytes, reason, reason_bytes);
	bad->bytes += bytes + sizeof(*bad->row);
	bad->row[bad->n++] = (struct bad_row){(uint8_t)set, text, text + id_bytes};
}

int bad_rows_add(struct bad_rows *bad, enum row_set set, const char *id, const char *reason,
		 bool crash, struct err *err)
{
	uint64_t total;

	bad->count[set]++;
	bad->crashes += crash;
	total = bad_rows_total(bad);
	keep(bad, set, id, reason);
	if (bad->crashes >= MAX_CRASHES) {
		err_set(err, ERR_DATA, -EBADMSG,
			"%" PRIu64 " images ended or hung the decoder, the last one in row %.80s: "
			"%.200s",
			bad->crashes, id, reason);
		err_hint(err, "Remove these images: they are damaged, or made to attack.");
		return -EBADMSG;
	}
	if (total > bad->max) {
		err_set(err, ERR_DATA, -EBADMSG,
			"%" PRIu64 " rows cannot be used, max_bad_rows is %" PRIu64
			"; row %.80s: %.300s",
			total, bad->max, id, reason);
		if (bad->n)
			err_hint(err, "The first was row %.60s: %.150s.", bad->row[0].id,
				 bad->row[0].reason);
		return -EBADMSG;
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	const struct bad_row *x = a, *y = b;
	int c;

	if (x->set != y->set)
		return x->set < y->set ? -1 : 1;
	c = strverscmp(x->id, y->id);
	if (!c)
		c = strcmp(x->id, y->id);
	return c ? c : strcmp(x->reason, y->reason);
}

void bad_rows_sort(struct bad_rows *bad)
{
	if (bad->n)
		qsort(bad->row, bad->n, sizeof(*bad->row), compare);
}
