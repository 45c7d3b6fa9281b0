// SPDX-License-Identifier: MIT
/*
 * sums.c: see sums.h. A row is cut into periods of `lanes` elements, a multiple of the channels,
 * and every lane is summed by itself, which compilers vectorise; lanes are folded at the end of a
 * row.
 */
#include "sums.h"

#include <stdlib.h>
#include <string.h>

#include "exact.h"

#define LANES 48    /* a multiple of 1, 2, 3, 4 channels */
#define FLUSH 65536 /* periods after which a u32 lane of squares of bytes is full: 2^32 / 255^2 */

struct sums {
	enum backend_dtype dtype;
	uint32_t channels;
	struct total {
		__int128 sum;
		unsigned __int128 sum2;
	} * total;	     /* integers: one a channel */
	struct exact *exact; /* floats: sum and sum2, two a channel */
	double *row;	     /* floats: sum and sum2 of this row, two a channel */
};

static int is_float(enum backend_dtype dtype)
{
	return dtype == BACKEND_F32 || dtype == BACKEND_F64;
}

size_t sums_bytes(enum backend_dtype dtype, uint32_t channels)
{
	size_t each = is_float(dtype) ? 2 * (sizeof(struct exact) + sizeof(double))
				      : sizeof(struct total);

	return sizeof(struct sums) + channels * each;
}

struct sums *sums_create(enum backend_dtype dtype, uint32_t channels)
{
	struct sums *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->dtype = dtype;
	s->channels = channels;
	if (is_float(dtype)) {
		s->exact = calloc(2 * (size_t)channels, sizeof(*s->exact));
		s->row = calloc(2 * (size_t)channels, sizeof(*s->row));
	} else {
		s->total = calloc(channels, sizeof(*s->total));
	}
	if (is_float(dtype) ? !s->exact || !s->row : !s->total) {
		sums_free(s);
		return NULL;
	}
	return s;
}

void sums_free(struct sums *s)
{
	if (!s)
		return;
	free(s->total);
	free(s->exact);
	free(s->row);
	free(s);
}

static void fold_u8(struct sums *s, const uint32_t *sum, const uint32_t *sum2)
{
	for (uint32_t i = 0; i < LANES; i++) {
		s->total[i % s->channels].sum += sum[i];
		s->total[i % s->channels].sum2 += sum2[i];
	}
}

/* Bytes of 1, 2, 3 or 4 channels: whole periods; returns how many elements were taken. */
static uint64_t add_u8_lanes(struct sums *s, const uint8_t *x, uint64_t n)
{
	uint64_t periods = n / LANES;

	for (uint64_t p = 0; p < periods;) {
		uint64_t stop = periods - p > FLUSH ? p + FLUSH : periods;
		uint32_t sum[LANES] = {0}, sum2[LANES] = {0};

		for (; p < stop; p++)
			for (uint32_t i = 0; i < LANES; i++) {
				uint32_t v = x[p * LANES + i];

				sum[i] += v;
				sum2[i] += v * v;
			}
		fold_u8(s, sum, sum2);
	}
	return periods * LANES;
}

static void add_u8(struct sums *s, const uint8_t *x, uint64_t n)
{
	uint64_t i = 0;
	uint32_t c = 0;

	if (LANES % s->channels == 0)
		i = add_u8_lanes(s, x, n);
	for (; i < n; i++) {
		s->total[c].sum += x[i];
		s->total[c].sum2 += (uint32_t)x[i] * x[i];
		c = c + 1 == s->channels ? 0 : c + 1;
	}
}

static void add_i16(struct sums *s, const uint8_t *x, uint64_t pixels)
{
	const uint32_t channels = s->channels;

	for (uint32_t c = 0; c < channels; c++) {
		int64_t sum = 0, sum2 = 0; /* 2^30 * 2^33 elements fit */

		for (uint64_t p = 0; p < pixels; p++) {
			int16_t v;

			memcpy(&v, x + (p * channels + c) * sizeof(v), sizeof(v));
			sum += v;
			sum2 += (int32_t)v * v;
		}
		s->total[c].sum += sum;
		s->total[c].sum2 += (uint64_t)sum2;
	}
}

static void add_i32(struct sums *s, const uint8_t *x, uint64_t pixels)
{
	const uint32_t channels = s->channels;

	for (uint32_t c = 0; c < channels; c++) {
		unsigned __int128 sum2 = 0;
		int64_t sum = 0; /* 2^31 * 2^32 elements fit */

		for (uint64_t p = 0; p < pixels; p++) {
			int32_t v;

			memcpy(&v, x + (p * channels + c) * sizeof(v), sizeof(v));
			sum += v;
			sum2 += (uint64_t)((int64_t)v * v);
		}
		s->total[c].sum += sum;
		s->total[c].sum2 += sum2;
	}
}

/* Sum and sum of squares of a row, per channel, in four strands (fixed, so the result is). */
#define ADD_FLOATS(type)                                                                   \
	do {                                                                               \
		for (uint32_t c = 0; c < channels; c++) {                                  \
			double sum[4] = {0}, sum2[4] = {0};                                \
			for (uint64_t p = 0; p < pixels; p++) {                            \
				type v;                                                    \
				memcpy(&v, x + (p * channels + c) * sizeof(v), sizeof(v)); \
				sum[p & 3] += (double)v;                                   \
				sum2[p & 3] += (double)v * (double)v;                      \
			}                                                                  \
			s->row[2 * c] = (sum[0] + sum[1]) + (sum[2] + sum[3]);             \
			s->row[2 * c + 1] = (sum2[0] + sum2[1]) + (sum2[2] + sum2[3]);     \
		}                                                                          \
	} while (0)

static void add_float(struct sums *s, const uint8_t *x, uint64_t pixels)
{
	const uint32_t channels = s->channels;

	if (s->dtype == BACKEND_F32)
		ADD_FLOATS(float);
	else
		ADD_FLOATS(double);
	for (uint32_t i = 0; i < 2 * channels; i++)
		exact_add(&s->exact[i], s->row[i]);
}

void sums_add(struct sums *s, const void *x, uint64_t pixels)
{
	switch (s->dtype) {
	case BACKEND_U8:
		add_u8(s, x, pixels * s->channels);
		break;
	case BACKEND_I16:
		add_i16(s, x, pixels);
		break;
	case BACKEND_I32:
		add_i32(s, x, pixels);
		break;
	default:
		add_float(s, x, pixels);
		break;
	}
}

void sums_merge(struct sums *s, struct sums *other)
{
	for (uint32_t c = 0; c < s->channels; c++) {
		if (s->exact) {
			exact_merge(&s->exact[2 * c], &other->exact[2 * c]);
			exact_merge(&s->exact[2 * c + 1], &other->exact[2 * c + 1]);
		} else {
			s->total[c].sum += other->total[c].sum;
			s->total[c].sum2 += other->total[c].sum2;
		}
	}
}

void sums_value(struct sums *s, double *sum, double *sum2)
{
	for (uint32_t c = 0; c < s->channels; c++) {
		sum[c] = s->exact ? exact_value(&s->exact[2 * c]) : (double)s->total[c].sum;
		sum2[c] = s->exact ? exact_value(&s->exact[2 * c + 1]) : (double)s->total[c].sum2;
	}
}
