// SPDX-License-Identifier: MIT
/* store.c: see store.h. */
#include "store.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "spill.h"

#define HUGE_PAGE ((uint64_t)2 << 20)
#define CHUNK_MAX ((uint64_t)8 << 20)
#define CHUNK_MIN ((uint64_t)64 << 10)
#define PAGE 4096u
#define OFFSET_BITS 34 /* of where: a chunk takes a value of 16 GB; 2^30 chunks */
#define ALIGN 8u

struct chunk {
	uint8_t *base; /* NULL: in the file, or gone */
	uint64_t size, bottom;
	uint64_t file; /* offset that base would have in the file */
};

struct store {
	pthread_mutex_t lock;
	uint64_t limit, chunk_bytes;
	atomic_uint_fast64_t used;
	bool spills;
	struct spill spill;
	atomic_uint_fast64_t spilled;
	uint32_t n, capacity;
	struct chunk *chunk;
	uint32_t n_closed, closed_capacity;
	uint32_t *closed; /* full chunks that are in memory */
};

int store_create(uint64_t memory, const char *spill_dir, uint64_t spill_max,
		 uint64_t spill_min_free, struct store **out, struct err *err)
{
	struct store *s = calloc(1, sizeof(*s));

	if (!s)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	if (spill_dir && spill_init(&s->spill, spill_dir, spill_max, spill_min_free)) {
		free(s);
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	}
	pthread_mutex_init(&s->lock, NULL);
	s->spills = spill_dir;
	s->limit = memory;
	s->chunk_bytes = CHUNK_MAX;
	while (s->chunk_bytes > CHUNK_MIN && s->chunk_bytes > memory / 64)
		s->chunk_bytes /= 2;
	*out = s;
	return 0;
}

void store_free(struct store *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->chunk[i].base)
			munmap(s->chunk[i].base, s->chunk[i].size);
	if (s->spills)
		spill_close(&s->spill);
	pthread_mutex_destroy(&s->lock);
	free(s->chunk);
	free(s->closed);
	free(s);
}

uint64_t store_memory(const struct store *s)
{
	return atomic_load(&s->used);
}

uint64_t store_spilled(const struct store *s)
{
	return atomic_load(&s->spilled);
}

void store_charge_anyway(struct store *s, uint64_t bytes)
{
	atomic_fetch_add(&s->used, bytes);
}

void store_uncharge(struct store *s, uint64_t bytes)
{
	atomic_fetch_sub(&s->used, bytes);
}

static bool try_charge(struct store *s, uint64_t bytes)
{
	uint64_t used = atomic_load(&s->used);

	do {
		if (bytes > s->limit || used > s->limit - bytes)
			return false;
	} while (!atomic_compare_exchange_weak(&s->used, &used, used + bytes));
	return true;
}

/* Writes one full chunk to the file. 1: there is none. */
static int evict(struct store *s, struct err *err)
{
	struct chunk c;
	uint32_t index;
	int rc;

	pthread_mutex_lock(&s->lock);
	if (!s->n_closed) {
		pthread_mutex_unlock(&s->lock);
		return 1;
	}
	index = s->closed[--s->n_closed];
	c = s->chunk[index];
	rc = spill_reserve(&s->spill, c.size - c.bottom, &c.file, err);
	pthread_mutex_unlock(&s->lock);
	if (!rc)
		rc = spill_write(&s->spill, c.file, c.base + c.bottom, c.size - c.bottom, err);

	pthread_mutex_lock(&s->lock);
	if (rc) {
		s->closed[s->n_closed++] = index; /* there was room for it before */
	} else {
		s->chunk[index].base = NULL;
		s->chunk[index].file = c.file - c.bottom;
	}
	pthread_mutex_unlock(&s->lock);
	if (rc)
		return rc;
	munmap(c.base, c.size);
	store_uncharge(s, c.size);
	atomic_fetch_add(&s->spilled, c.size - c.bottom);
	return 0;
}

int store_charge(struct store *s, uint64_t bytes, const char *what, struct err *err)
{
	while (!try_charge(s, bytes)) {
		int rc = s->spills ? evict(s, err) : 1;

		if (rc > 0) {
			err_set(err, ERR_LIMIT, -ENOMEM,
				"rows: %" PRIu64 " bytes for %s are needed, %" PRIu64
				" of memory = %" PRIu64 " are used%s",
				bytes, what, store_memory(s), s->limit,
				s->spills ? "" : " and there is no spill_dir");
			err_hint(err, s->spills ? "Give the job more memory."
						: "Set spill_dir, or give the job more memory.");
			return -ENOMEM;
		}
		if (rc)
			return rc;
	}
	return 0;
}

/* Anonymous memory of whole huge pages where that is possible, kept out of core files and forks. */
static uint8_t *map_chunk(uint64_t size)
{
	uint64_t slack = size >= HUGE_PAGE ? HUGE_PAGE : 0;
	uint8_t *p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t lead;

	if (p == MAP_FAILED)
		return NULL;
	if (slack) {
		lead = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
		if (lead)
			munmap(p, lead);
		if (slack - lead)
			munmap(p + lead + size, slack - lead);
		p += lead;
		madvise(p, size, MADV_HUGEPAGE);
	}
	madvise(p, size, MADV_DONTDUMP);
	madvise(p, size, MADV_DONTFORK);
	return p;
}

/* Room for one more in both tables. */
static int grow_tables(struct store *s)
{
	uint32_t capacity = s->capacity ? 2 * s->capacity : 64;
	struct chunk *chunk;
	uint32_t *closed;

	if (s->n < s->capacity)
		return 0;
	if (s->capacity >= 1u << (64 - OFFSET_BITS - 1))
		return -ENOMEM;
	chunk = realloc(s->chunk, capacity * sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	s->chunk = chunk;
	closed = realloc(s->closed, capacity * sizeof(*closed));
	if (!closed)
		return -ENOMEM;
	s->closed = closed;
	s->capacity = capacity;
	return 0;
}

static int open_chunk(struct store *s, struct store_writer *w, uint64_t size, struct err *err)
{
	uint8_t *base;
	int rc = store_charge(s, size, "a chunk of rows", err);

	if (rc)
		return rc;
	base = map_chunk(size);
	pthread_mutex_lock(&s->lock);
	rc = base ? grow_tables(s) : -ENOMEM;
	if (!rc) {
		*w = (struct store_writer){base, s->n, size, size, size};
		s->chunk[s->n++] = (struct chunk){base, size, size, 0};
	}
	pthread_mutex_unlock(&s->lock);
	if (!rc)
		return 0;
	if (base)
		munmap(base, size);
	store_uncharge(s, size);
	return err_set(err, ERR_LIMIT, rc, "out of memory: %" PRIu64 " bytes for rows", size);
}

void store_writer_close(struct store *s, struct store_writer *w)
{
	bool empty = w->bottom == w->size;

	if (!w->base)
		return;
	pthread_mutex_lock(&s->lock);
	s->chunk[w->chunk].bottom = w->bottom;
	if (empty)
		s->chunk[w->chunk] = (struct chunk){0};
	else
		s->closed[s->n_closed++] = w->chunk;
	pthread_mutex_unlock(&s->lock);
	if (empty) {
		munmap(w->base, w->size);
		store_uncharge(s, w->size);
	}
	w->base = NULL;
}

int store_place(struct store *s, struct store_writer *w, uint64_t bytes, void **place,
		struct err *err)
{
	uint64_t size = s->chunk_bytes, end = w->bottom & ~(uint64_t)(ALIGN - 1);
	int rc;

	if (bytes >= (uint64_t)1 << (OFFSET_BITS - 1))
		return err_set(err, ERR_LIMIT, -E2BIG, "a row of %" PRIu64 " bytes", bytes);
	if (!w->base || end < bytes) {
		store_writer_close(s, w);
		if (bytes > size / 8) /* a chunk of its own wastes less */
			size = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
		rc = open_chunk(s, w, size, err);
		if (rc)
			return rc;
		end = size;
	}
	w->place = end;
	*place = w->base + end - bytes;
	return 0;
}

void store_keep(struct store_writer *w, uint64_t x_bytes, uint64_t *where)
{
	w->bottom = w->place - x_bytes;
	*where = (uint64_t)w->chunk << OFFSET_BITS | w->bottom;
}

static const struct chunk *chunk_of(const struct store *s, uint64_t where, uint64_t *offset)
{
	*offset = where & (((uint64_t)1 << OFFSET_BITS) - 1);
	return &s->chunk[where >> OFFSET_BITS];
}

const void *store_pointer(const struct store *s, uint64_t where)
{
	uint64_t offset;
	const struct chunk *c = chunk_of(s, where, &offset);

	return c->base ? c->base + offset : NULL;
}

int store_read(const struct store *s, uint64_t where, void *to, uint64_t bytes, struct err *err)
{
	uint64_t offset;
	const struct chunk *c = chunk_of(s, where, &offset);

	if (!c->base)
		return spill_read(&s->spill, c->file + offset, to, bytes, err);
	memcpy(to, c->base + offset, bytes);
	return 0;
}

void store_advise(const struct store *s, uint64_t where, uint64_t bytes)
{
	uint64_t offset;
	const struct chunk *c = chunk_of(s, where, &offset);

	if (!c->base)
		spill_advise(&s->spill, c->file + offset, bytes);
}

int store_blocks(const struct store *s,
		 int (*each)(void *context, const void *memory, size_t bytes), void *context)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->n && !rc; i++) {
		const struct chunk *c = &s->chunk[i];
		uint64_t unused = c->bottom & ~(uint64_t)(PAGE - 1);

		if (c->base && unused < c->size)
			rc = each(context, c->base + unused, c->size - unused);
	}
	return rc;
}

uint32_t store_chunks(const struct store *s)
{
	return s->n;
}

uint32_t store_chunk(uint64_t where)
{
	return (uint32_t)(where >> OFFSET_BITS);
}

void store_release(struct store *s, uint32_t chunk)
{
	struct chunk c;
	bool in_file;

	pthread_mutex_lock(&s->lock);
	c = s->chunk[chunk];
	in_file = !c.base && c.size; /* size 0: released, or never used */
	s->chunk[chunk] = (struct chunk){0};
	for (uint32_t i = 0; i < s->n_closed; i++)
		if (s->closed[i] == chunk) {
			s->closed[i] = s->closed[--s->n_closed];
			break;
		}
	if (in_file)
		spill_release(&s->spill, c.file + c.bottom, c.size - c.bottom);
	pthread_mutex_unlock(&s->lock);
	if (in_file)
		atomic_fetch_sub(&s->spilled, c.size - c.bottom);
	if (!c.base)
		return;
	munmap(c.base, c.size);
	store_uncharge(s, c.size);
}
