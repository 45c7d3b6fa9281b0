// SPDX-License-Identifier: MIT
/*
 * arena.c: the one block of memory that a training takes beside its net: copies of the weights,
 * staging buffers, sums. Huge pages where large; left out of core dumps and of forked children.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define HUGE_PAGE (2u << 20)
#define GAP BACKEND_ALIGN /* between pieces; poisoned under ASan */

void *train_arena_take(struct arena *arena, uint64_t count, uint64_t each)
{
	uint64_t bytes, at = arena->used;

	if (__builtin_mul_overflow(count, each, &bytes) || bytes > UINT64_MAX / 4 ||
	    at > UINT64_MAX / 4) {
		arena->overflow = true;
		return NULL;
	}
	bytes = (bytes + BACKEND_ALIGN - 1) & ~(uint64_t)(BACKEND_ALIGN - 1);
	arena->used = at + bytes + GAP;
	if (!arena->base)
		return NULL;
	if (arena->used > arena->size) {
		arena->overflow = true;
		return NULL;
	}
#ifdef __SANITIZE_ADDRESS__
	ASAN_POISON_MEMORY_REGION(arena->base + at + bytes, GAP);
#endif
	return arena->base + at;
}

int train_arena_allocate(struct arena *arena, uint64_t bytes, struct err *err)
{
	uint64_t size =
		bytes >= HUGE_PAGE ? (bytes + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1) : bytes;
	void *base;

	memset(arena, 0, sizeof(*arena));
	base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED)
		return err_set(err, ERR_LIMIT, -ENOMEM,
			       "out of memory: %llu bytes for the copies of the weights and the "
			       "staging buffers",
			       (unsigned long long)size);
	/* Advice only: a kernel without huge pages trains as well. */
	if (size >= HUGE_PAGE)
		(void)madvise(base, size, MADV_HUGEPAGE);
	(void)madvise(base, size, MADV_DONTDUMP);
	(void)madvise(base, size, MADV_DONTFORK);
	arena->base = base;
	arena->size = size;
	return 0;
}

void train_arena_free(struct arena *arena)
{
	if (!arena->base)
		return;
#ifdef __SANITIZE_ADDRESS__
	ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->size);
#endif
	munmap(arena->base, arena->size);
	memset(arena, 0, sizeof(*arena));
}
