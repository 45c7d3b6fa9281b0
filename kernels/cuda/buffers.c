/* SPDX-License-Identifier: MIT */
/*
 * buffers.c: places buffers in one block of memory, so that two whose lives meet never overlap. The
 * largest first, each at the lowest offset that is free for the whole of its life.
 */
#include <stdlib.h>

#include "plan.h"

#define ALIGN 256ull
#define SEARCH_MAX 8192 /* above, buffers lie one after the other: the search is quadratic */

struct order {
	uint64_t bytes;
	uint32_t buffer;
};

static int larger_first(const void *a, const void *b)
{
	const struct order *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return x->buffer < y->buffer ? -1 : 1;
}

static bool meet(const struct buffer *a, const struct buffer *b)
{
	return a->begin <= b->end && b->begin <= a->end;
}

/* placed: indices in the order of their offsets. */
static uint64_t lowest(const struct plan *p, const uint32_t *placed, uint32_t n,
		       const struct buffer *b)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct buffer *o = &p->buffer[placed[i]];

		if (!meet(b, o) || o->offset + o->bytes <= at)
			continue;
		if (o->offset >= at + b->bytes)
			break;
		at = o->offset + o->bytes;
	}
	return at;
}

static void insert(const struct plan *p, uint32_t *placed, uint32_t n, uint32_t buffer)
{
	while (n > 0 && p->buffer[placed[n - 1]].offset > p->buffer[buffer].offset) {
		placed[n] = placed[n - 1];
		n--;
	}
	placed[n] = buffer;
}

void plan_place(struct plan *p)
{
	struct order *order = calloc(p->n_buffers + 1, sizeof(*order));
	uint32_t *placed = calloc(p->n_buffers + 1, sizeof(*placed)), n = 0;
	bool search = order && placed && p->n_buffers <= SEARCH_MAX;

	p->value_bytes = 0;
	for (uint32_t i = 0; i < p->n_buffers; i++) {
		struct buffer *b = &p->buffer[i];

		b->bytes = (b->bytes + ALIGN - 1) & ~(ALIGN - 1);
		if (search) {
			order[i] = (struct order){b->bytes, i};
			continue;
		}
		b->offset = p->value_bytes;
		p->value_bytes += b->bytes;
	}
	if (search)
		qsort(order, p->n_buffers, sizeof(*order), larger_first);
	for (uint32_t i = 0; search && i < p->n_buffers; i++) {
		struct buffer *b = &p->buffer[order[i].buffer];

		if (b->begin > b->end)
			continue;
		b->offset = lowest(p, placed, n, b);
		insert(p, placed, n++, order[i].buffer);
		if (b->offset + b->bytes > p->value_bytes)
			p->value_bytes = b->offset + b->bytes;
	}
	free(order);
	free(placed);
}
