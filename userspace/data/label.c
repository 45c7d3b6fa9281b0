// SPDX-License-Identifier: MIT
/* label.c: see label.h. */
#include "label.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void label_table_free(struct label_table *t)
{
	free(t->value);
	free(t->slot);
	free(t->text);
	memset(t, 0, sizeof(*t));
}

size_t label_table_bytes(const struct label_table *t)
{
	return t->capacity * sizeof(*t->value) + t->slots * sizeof(*t->slot) + t->text_capacity;
}

const uint8_t *label_text(const struct label_table *t, uint32_t number, uint32_t *bytes)
{
	*bytes = t->value[number].bytes;
	return t->text + t->value[number].offset;
}

int64_t label_find(const struct label_table *t, const void *value, uint32_t bytes)
{
	uint32_t at;

	if (!t->slots)
		return -1;
	at = (uint32_t)XXH3_64bits(value, bytes) & (t->slots - 1);
	for (; t->slot[at]; at = (at + 1) & (t->slots - 1)) {
		const struct label_value *v = &t->value[t->slot[at] - 1];

		if (v->bytes == bytes && !memcmp(t->text + v->offset, value, bytes))
			return t->slot[at] - 1;
	}
	return -1;
}

static void insert(struct label_table *t, uint32_t number)
{
	const struct label_value *v = &t->value[number];
	uint32_t at = (uint32_t)XXH3_64bits(t->text + v->offset, v->bytes) & (t->slots - 1);

	while (t->slot[at])
		at = (at + 1) & (t->slots - 1);
	t->slot[at] = number + 1;
}

static int grow_values(struct label_table *t)
{
	uint32_t capacity = t->capacity ? 2 * t->capacity : 16;
	struct label_value *value = realloc(t->value, capacity * sizeof(*value));
	uint32_t *slot;

	if (!value)
		return -ENOMEM;
	t->value = value;
	slot = calloc(2 * (size_t)capacity, sizeof(*slot));
	if (!slot)
		return -ENOMEM;
	free(t->slot);
	t->slot = slot;
	t->slots = 2 * capacity;
	t->capacity = capacity;
	for (uint32_t i = 0; i < t->n; i++)
		insert(t, i);
	return 0;
}

int64_t label_add(struct label_table *t, const void *value, uint32_t bytes, uint32_t tag)
{
	if (t->n == t->capacity && grow_values(t))
		return -ENOMEM;
	if (t->text_capacity - t->text_bytes < bytes || !t->text) {
		size_t capacity = 2 * t->text_capacity + bytes + 256;
		uint8_t *text = capacity > UINT32_MAX ? NULL : realloc(t->text, capacity);

		if (!text)
			return -ENOMEM;
		t->text = text;
		t->text_capacity = capacity;
	}
	if (bytes)
		memcpy(t->text + t->text_bytes, value, bytes);
	t->value[t->n] = (struct label_value){(uint32_t)t->text_bytes, bytes, tag};
	t->text_bytes += bytes;
	insert(t, t->n);
	return t->n++;
}
