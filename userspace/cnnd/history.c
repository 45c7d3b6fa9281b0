// SPDX-License-Identifier: MIT
/* history.c: see history.h. */
#include "history.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct history {
	struct history_entry entry[HISTORY_JOBS];
	unsigned int next, n;
};

struct history_sum {
	XXH3_state_t *state;
};

int history_create(struct history **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void history_free(struct history *h)
{
	free(h);
}

void history_add(struct history *h, const struct history_entry *entry)
{
	h->entry[h->next] = *entry;
	h->next = (h->next + 1) % HISTORY_JOBS;
	if (h->n < HISTORY_JOBS)
		h->n++;
}

const struct history_entry *history_at(const struct history *h, unsigned int i)
{
	if (i >= h->n)
		return NULL;
	return &h->entry[(h->next + HISTORY_JOBS - 1 - i) % HISTORY_JOBS];
}

const struct history_entry *history_find(const struct history *h, const uint8_t id[CTL_ID])
{
	const struct history_entry *e;

	for (unsigned int i = 0; (e = history_at(h, i)); i++)
		if (!memcmp(e->id, id, CTL_ID))
			return e;
	return NULL;
}

struct history_sum *history_sum_new(void)
{
	struct history_sum *sum = calloc(1, sizeof(*sum));

	if (!sum)
		return NULL;
	sum->state = XXH3_createState();
	if (!sum->state) {
		free(sum);
		return NULL;
	}
	XXH3_64bits_reset(sum->state);
	return sum;
}

void history_sum_free(struct history_sum *sum)
{
	if (!sum)
		return;
	XXH3_freeState(sum->state);
	free(sum);
}

void history_sum_add(struct history_sum *sum, const void *data, uint64_t bytes)
{
	XXH3_64bits_update(sum->state, data, bytes);
}

uint64_t history_sum_value(const struct history_sum *sum)
{
	return XXH3_64bits_digest(sum->state);
}
