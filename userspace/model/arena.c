// SPDX-License-Identifier: MIT
/* arena.c: the block allocator of jread.h: everything of a model goes with one call. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "jread.h"

#define CHUNK 65536

struct arena_chunk {
	struct arena_chunk *next;
	size_t used, size;
	_Alignas(16) unsigned char data[];
};

void *arena_alloc(struct arena *arena, size_t size)
{
	struct arena_chunk *c = arena->first;
	void *p;

	if (size > SIZE_MAX / 2)
		return NULL;
	size = (size + 15) & ~(size_t)15;
	if (!c || c->size - c->used < size) {
		size_t room = size > CHUNK ? size : CHUNK;

		c = calloc(1, sizeof(*c) + room);
		if (!c)
			return NULL;
		c->size = room;
		if (arena->first && size > CHUNK) { /* keep filling the one in front */
			c->next = arena->first->next;
			arena->first->next = c;
		} else {
			c->next = arena->first;
			arena->first = c;
		}
	}
	p = c->data + c->used;
	c->used += size;
	return p;
}

void *arena_array(struct arena *arena, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		return NULL;
	return arena_alloc(arena, bytes);
}

char *arena_printf(struct arena *arena, const char *fmt, ...)
{
	va_list ap, again;
	char *text = NULL;
	int n;

	va_start(ap, fmt);
	va_copy(again, ap);
	n = vsnprintf(NULL, 0, fmt, ap);
	if (n >= 0)
		text = arena_alloc(arena, (size_t)n + 1);
	if (text)
		vsnprintf(text, (size_t)n + 1, fmt, again);
	va_end(again);
	va_end(ap);
	return text;
}

void arena_free(struct arena *arena)
{
	while (arena->first) {
		struct arena_chunk *c = arena->first;

		arena->first = c->next;
		free(c);
	}
}
