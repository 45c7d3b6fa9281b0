/* SPDX-License-Identifier: MIT */
/*
 * common.c: errors, clock, hash, memory, and the table of tensors.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "internal.h"

int merge_fail(struct merge_error *error, int code, uint32_t host, const char *fmt, ...)
{
	va_list ap;

	if (!error)
		return code;
	error->code = code;
	error->host = host;
	va_start(ap, fmt);
	vsnprintf(error->message, sizeof(error->message), fmt, ap);
	va_end(ap);
	return code;
}

double merge_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ (h >> 29);
}

/* Four lanes, so that a checksum of an arena runs at the speed of memory. Not for adversaries. */
uint64_t merge_hash(uint64_t seed, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	uint64_t lane[4] = {seed, seed + 1, seed + 2, seed + 3}, word[4];
	uint64_t h = bytes;
	size_t left = bytes;

	for (; left >= sizeof(word); left -= sizeof(word), p += sizeof(word)) {
		memcpy(word, p, sizeof(word));
		for (int i = 0; i < 4; i++)
			lane[i] = mix(lane[i], word[i]);
	}
	memset(word, 0, sizeof(word));
	if (left)
		memcpy(word, p, left);
	for (int i = 0; i < 4; i++)
		h = mix(mix(h, lane[i]), word[i]);
	return h;
}

float *merge_floats(uint64_t n)
{
	void *p = NULL;

	if (n > SIZE_MAX / sizeof(float) - 64)
		return NULL;
	if (posix_memalign(&p, 64, (size_t)n * sizeof(float) + 64))
		return NULL;
	memset(p, 0, (size_t)n * sizeof(float) + 64);
	return p;
}

static int check_pair(const struct merge_table *t, uint32_t i, struct merge_error *error)
{
	const struct merge_tensor *a = &t->tensor[i], *b;
	enum merge_policy other = a->policy == MERGE_MEAN ? MERGE_VARIANCE : MERGE_MEAN;

	if (a->policy != MERGE_MEAN && a->policy != MERGE_VARIANCE)
		return 0;
	if (!a->statistic)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "tensor '%s': pooled moments belong to the statistics arena",
				  a->name);
	if (a->pair >= t->n)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "tensor '%s': pair %u of %u tensors", a->name, a->pair, t->n);
	b = &t->tensor[a->pair];
	if (b->policy != other || b->pair != i || b->count != a->count || !b->statistic)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "tensors '%s' and '%s' are no pair of mean and variance", a->name,
				  b->name);
	return 0;
}

int merge_table_check(const struct merge_table *table, struct merge_error *error)
{
	uint64_t end[2] = {0, 0};
	int rc;

	if (table->param_floats > (1ull << 40) || table->stat_floats > (1ull << 40))
		return merge_fail(error, -EOVERFLOW, MERGE_NO_HOST, "arena above 2^40 floats");
	for (uint32_t i = 0; i < table->n; i++) {
		const struct merge_tensor *t = &table->tensor[i];
		uint64_t size = t->statistic ? table->stat_floats : table->param_floats;

		if ((unsigned)t->policy >= MERGE_POLICY_COUNT ||
		    !memchr(t->name, 0, sizeof(t->name)))
			return merge_fail(error, -EINVAL, MERGE_NO_HOST, "tensor %u: bad entry", i);
		if (t->offset < end[t->statistic] || t->offset > size ||
		    t->count > size - t->offset)
			return merge_fail(error, -EINVAL, MERGE_NO_HOST,
					  "tensor '%s' overlaps or leaves its arena", t->name);
		end[t->statistic] = t->offset + t->count;
		rc = check_pair(table, i, error);
		if (rc)
			return rc;
	}
	return 0;
}

uint64_t merge_table_hash(const struct merge_table *table)
{
	uint64_t h = mix(mix(mix(1, table->param_floats), table->stat_floats), table->n);

	for (uint32_t i = 0; i < table->n; i++) {
		const struct merge_tensor *t = &table->tensor[i];
		uint64_t facts[5] = {
			t->policy, t->statistic, t->offset, t->count,
			t->policy == MERGE_MEAN || t->policy == MERGE_VARIANCE ? t->pair : 0};

		h = merge_hash(h, t->name, strnlen(t->name, sizeof(t->name)));
		h = merge_hash(h, facts, sizeof(facts));
	}
	return h;
}
