// SPDX-License-Identifier: MIT
/*
 * order.c: see order.h. Radix passes over the high bits of the key, as many as the number of rows
 * asks for; what they leave unsorted are short runs, put right by insertion, or by merging where
 * the keys were not spread after all.
 */
#include "order.h"

#include <stdbool.h>
#include <string.h>

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)
#define INSERTION 24

struct sorting {
	int (*compare)(uint32_t a, uint32_t b, void *context);
	void *context;
};

static bool before(const struct sorting *s, const struct order_key *a, const struct order_key *b)
{
	if (a->key != b->key)
		return a->key < b->key;
	return s->compare && s->compare(a->row, b->row, s->context) < 0;
}

static void insertion(const struct sorting *s, struct order_key *key, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		struct order_key k = key[i];
		uint32_t j = i;

		for (; j && before(s, &k, &key[j - 1]); j--)
			key[j] = key[j - 1];
		key[j] = k;
	}
}

/* Stable merge sort for a run, in place with scratch of the same length. */
static void merge_sort(const struct sorting *s, struct order_key *key, struct order_key *scratch,
		       uint32_t n)
{
	for (uint32_t i = 0; i < n; i += INSERTION)
		insertion(s, key + i, n - i < INSERTION ? n - i : INSERTION);
	for (uint64_t width = INSERTION; width < n; width *= 2) {
		for (uint64_t i = 0; i + width < n; i += 2 * width) {
			uint64_t end = i + 2 * width < n ? i + 2 * width : n;
			uint64_t a = i, b = i + width, to = i;

			memcpy(scratch + i, key + i, (end - i) * sizeof(*key));
			while (a < i + width && b < end)
				key[to++] = before(s, &scratch[b], &scratch[a]) ? scratch[b++]
										: scratch[a++];
			while (a < i + width)
				key[to++] = scratch[a++];
			while (b < end)
				key[to++] = scratch[b++];
		}
	}
}

/* Bits of the key that leave about one row a bucket, in whole digits. */
static unsigned int passes_for(uint32_t n)
{
	unsigned int passes = 1;

	while (passes < 3 && (uint64_t)1 << (passes * DIGIT_BITS) < n)
		passes++;
	return passes;
}

struct order_key *order_sort(struct order_key *key, struct order_key *scratch, uint32_t n,
			     int (*compare)(uint32_t a, uint32_t b, void *context), void *context)
{
	const struct sorting s = {compare, context};
	unsigned int passes = passes_for(n), low = 64 - passes * DIGIT_BITS;

	if (n <= INSERTION) {
		insertion(&s, key, n);
		return key;
	}
	for (unsigned int p = 0; p < passes; p++) {
		unsigned int shift = low + p * DIGIT_BITS;
		uint32_t at[DIGITS] = {0}, sum = 0;
		struct order_key *swap = key;

		for (uint32_t i = 0; i < n; i++)
			at[(key[i].key >> shift) & (DIGITS - 1)]++;
		for (uint32_t d = 0; d < DIGITS; d++) {
			uint32_t count = at[d];

			at[d] = sum;
			sum += count;
		}
		for (uint32_t i = 0; i < n; i++)
			scratch[at[(key[i].key >> shift) & (DIGITS - 1)]++] = key[i];
		key = scratch;
		scratch = swap;
	}
	for (uint32_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && key[end].key >> low == key[i].key >> low;)
			end++;
		if (end - i > INSERTION)
			merge_sort(&s, key + i, scratch + i, end - i);
		else if (end - i > 1)
			insertion(&s, key + i, end - i);
	}
	return key;
}
