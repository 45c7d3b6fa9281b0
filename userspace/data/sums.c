// SPDX-License-Identifier: MIT
/*
 * sums.c: see sums.h. Bytes are summed in lanes, 16 at a time: element i of a row goes to lane i
 * mod `lanes`, a multiple of the channels; lanes are folded into the totals before they could
 * overflow.
 */
#include "sums.h"

#include <stdlib.h>
#include <string.h>

#include "exact.h"

#define VECTOR 16u
#define FAST 48u       /* lanes kept in registers: channels 1, 2, 3, 4, 6 ... */
#define BLOCK 256u     /* periods after which a 16-bit sum of bytes is full */
#define PENDING 65536u /* periods after which a 32-bit sum of squares is: 2^32 / 255^2 = 66,051 */

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

struct sums {
	enum backend_dtype dtype;
	uint32_t channels;
	struct total {
		__int128 sum;
		unsigned __int128 sum2;
	} * total;	     /* integers: one a channel */
	struct exact *exact; /* floats: sum and sum2, two a channel */
	double *row;	     /* floats: sum and sum2 of this row, two a channel */
	uint32_t lanes;	     /* bytes */
	uint32_t *lane;	     /* lanes sums, then lanes sums of squares */
	uint32_t pending;    /* periods in the lanes */
};

static int is_float(enum backend_dtype dtype)
{
	return dtype == BACKEND_F32 || dtype == BACKEND_F64;
}

static uint32_t lanes_of(enum backend_dtype dtype, uint32_t channels)
{
	if (dtype != BACKEND_U8)
		return 0;
	if (FAST % channels == 0)
		return FAST;
	return channels % VECTOR ? channels * VECTOR : channels;
}

size_t sums_bytes(enum backend_dtype dtype, uint32_t channels)
{
	size_t each = is_float(dtype) ? 2 * (sizeof(struct exact) + sizeof(double))
				      : sizeof(struct total);

	return sizeof(struct sums) + channels * each +
	       2 * sizeof(uint32_t) * lanes_of(dtype, channels);
}

struct sums *sums_create(enum backend_dtype dtype, uint32_t channels)
{
	struct sums *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->dtype = dtype;
	s->channels = channels;
	s->lanes = lanes_of(dtype, channels);
	if (is_float(dtype)) {
		s->exact = calloc(2 * (size_t)channels, sizeof(*s->exact));
		s->row = calloc(2 * (size_t)channels, sizeof(*s->row));
	} else {
		s->total = calloc(channels, sizeof(*s->total));
		s->lane = calloc(2 * (size_t)s->lanes + 1, sizeof(*s->lane));
	}
	if (is_float(dtype) ? !s->exact || !s->row : !s->total || !s->lane) {
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
	free(s->lane);
	free(s);
}

static void fold_lanes(struct sums *s)
{
	if (!s->pending)
		return;
	for (uint32_t i = 0; i < s->lanes; i++) {
		s->total[i % s->channels].sum += s->lane[i];
		s->total[i % s->channels].sum2 += s->lane[s->lanes + i];
	}
	memset(s->lane, 0, 2 * (size_t)s->lanes * sizeof(*s->lane));
	s->pending = 0;
}

static void add_to_lanes(uint32_t *lane, const u32x16 *v)
{
	u32x16 sum;

	memcpy(&sum, lane, sizeof(sum));
	sum += *v;
	memcpy(lane, &sum, sizeof(sum));
}

/* At most BLOCK periods of FAST bytes; sums stay in registers. */
static void add_block(struct sums *s, const uint8_t *x, uint32_t periods)
{
	for (uint32_t j = 0; j < FAST; j += VECTOR) {
		u16x16 sum = {0};
		u32x16 sum2 = {0}, wide;

		for (uint32_t p = 0; p < periods; p++) {
			u8x16 bytes;
			u16x16 v;

			memcpy(&bytes, x + (size_t)p * FAST + j, sizeof(bytes));
			v = __builtin_convertvector(bytes, u16x16);
			sum += v;
			sum2 += __builtin_convertvector(v * v, u32x16);
		}
		wide = __builtin_convertvector(sum, u32x16);
		add_to_lanes(s->lane + j, &wide);
		add_to_lanes(s->lane + FAST + j, &sum2);
	}
	s->pending += periods;
}

/* n bytes, not more than there are lanes, to lanes 0, 1, 2 ... */
static void add_period(struct sums *s, const uint8_t *x, uint32_t n)
{
	uint32_t *sum = s->lane, *sum2 = s->lane + s->lanes, i = 0;

	for (; i + VECTOR <= n; i += VECTOR) {
		u8x16 bytes;
		u16x16 v;
		u32x16 wide;

		memcpy(&bytes, x + i, sizeof(bytes));
		v = __builtin_convertvector(bytes, u16x16);
		wide = __builtin_convertvector(v, u32x16);
		add_to_lanes(sum + i, &wide);
		wide = __builtin_convertvector(v * v, u32x16);
		add_to_lanes(sum2 + i, &wide);
	}
	for (; i < n; i++) {
		sum[i] += x[i];
		sum2[i] += (uint32_t)x[i] * x[i];
	}
	s->pending++;
}

static void add_u8(struct sums *s, const uint8_t *x, uint64_t n)
{
	uint64_t i = 0;

	while (i < n) {
		uint64_t periods = (n - i) / s->lanes;

		if (s->pending > PENDING - BLOCK)
			fold_lanes(s);
		if (s->lanes == FAST && periods) {
			periods = periods < BLOCK ? periods : BLOCK;
			add_block(s, x + i, (uint32_t)periods);
			i += periods * FAST;
		} else {
			uint32_t take = n - i < s->lanes ? (uint32_t)(n - i) : s->lanes;

			add_period(s, x + i, take);
			i += take;
		}
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
	fold_lanes(s);
	fold_lanes(other);
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
	fold_lanes(s);
	for (uint32_t c = 0; c < s->channels; c++) {
		sum[c] = s->exact ? exact_value(&s->exact[2 * c]) : (double)s->total[c].sum;
		sum2[c] = s->exact ? exact_value(&s->exact[2 * c + 1]) : (double)s->total[c].sum2;
	}
}
