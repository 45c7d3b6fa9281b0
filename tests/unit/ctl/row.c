// SPDX-License-Identifier: MIT
/* row.c: the row head and prediction rows, byte by byte, and against damaged input. */
#include "../../../userspace/ctl/row.h"
#include "../../tap.h"

#include <errno.h>

static const struct row_head sample = {
	.id_bytes = 3,
	.y_bytes = 8,
	.x_bytes = 0x102030405,
	.flags = ROW_W_NULL,
	.x_dims = 3,
	.x_dim = {0x11223344, 2, 1},
	.weight = -2.0, /* 0xc000000000000000 */
};

/* The bytes of sample, written down from row.h's description. */
static const uint8_t golden[ROW_HEAD] = {
	[0] = 3,								/* id_bytes */
	[4] = 8,								/* y_bytes */
	[8] = 5,     [9] = 4,	  [10] = 3,    [11] = 2,    [12] = 1,		/* x_bytes */
	[16] = 4,    [17] = 3,							/* flags, x_dims */
	[20] = 0x44, [21] = 0x33, [22] = 0x22, [23] = 0x11, [24] = 2, [28] = 1, /* x_dim */
	[55] = 0xc0,								/* weight */
};

static const uint64_t golden_total = ROW_HEAD + 3 + 8 + 0x102030405;

static void test_head(void)
{
	struct row_head got;
	struct err err = {0};
	uint8_t raw[ROW_HEAD];

	row_head_encode(&sample, raw);
	ok(!memcmp(raw, golden, sizeof(raw)), "head: the bytes are those of the description");
	is(row_head_decode(golden, golden_total, &got, &err), 0, "head: decodes");
	is(got.id_bytes, 3, "id_bytes");
	is(got.y_bytes, 8, "y_bytes");
	is(got.x_bytes, 0x102030405, "x_bytes");
	is(got.flags, ROW_W_NULL, "flags");
	is(got.x_dims, 3, "x_dims");
	is(got.x_dim[0], 0x11223344, "x_dim[0]");
	is(got.x_dim[2], 1, "x_dim[2]");
	is(got.x_dim[3], 0, "x_dim[3] is not used");
	ok(got.weight == -2.0, "weight");
}

static void refuse(struct row_head head, uint64_t total, const char *piece, const char *name)
{
	struct row_head got = {.id_bytes = 77};
	struct err err = {0};
	uint8_t raw[ROW_HEAD];

	row_head_encode(&head, raw);
	ok(row_head_decode(raw, total, &got, &err) == -EPROTO && got.id_bytes == 77, "%s", name);
	like(err.message, piece, name);
	is(err.kind, ERR_PROTOCOL, "... is an ERR_PROTOCOL");
}

static void test_head_bad(void)
{
	struct row_head h = {.id_bytes = 1, .y_bytes = 2, .x_bytes = 3, .weight = 1};
	struct row_head got;
	struct err err = {0};
	uint8_t raw[ROW_HEAD];

	refuse(h, ROW_HEAD - 1, "head alone", "shorter than a head");
	refuse(h, ROW_HEAD + 5, "add up", "one byte less than announced");
	refuse(h, ROW_HEAD + 7, "add up", "one byte more than announced");
	h.x_bytes = UINT64_MAX;
	refuse(h, ROW_HEAD + 2, "add up", "lengths that wrap to the right sum");
	h.x_bytes = 3;
	h.flags = 0x10;
	refuse(h, ROW_HEAD + 6, "flags", "an unknown flag");
	h.flags = ROW_X_NULL;
	refuse(h, ROW_HEAD + 6, "NULL", "x is NULL and has bytes");
	h.flags = ROW_Y_NULL;
	refuse(h, ROW_HEAD + 6, "NULL", "y is NULL and has bytes");
	h.flags = 0;
	h.x_dims = ROW_MAX_DIMS + 1;
	refuse(h, ROW_HEAD + 6, "dimensions", "seven dimensions of x");
	h.x_dims = 255;
	refuse(h, ROW_HEAD + 6, "dimensions", "255 dimensions of x");
	h.x_dims = 0;
	h.y_dims = ROW_MAX_DIMS + 1;
	refuse(h, ROW_HEAD + 6, "dimensions", "seven dimensions of y");
	h.y_dims = 0;
	h.x_dims = 3;
	h.x_dim[0] = h.x_dim[1] = h.x_dim[2] = UINT32_MAX;
	refuse(h, ROW_HEAD + 6, "overflow", "dimensions whose product overflows");
	h.x_dims = 0;
	h.id_bytes = ROW_MAX_ID + 1;
	refuse(h, ROW_HEAD + 5 + ROW_MAX_ID + 1, "id of 1025", "an id too long");

	h = (struct row_head){.weight = 1, .x_dims = 2, .x_dim = {1, 1}};
	for (int i = 0; i < ROW_HEAD; i++) {
		if (i != 19 && !(i >= 28 && i < 48) && i < 56)
			continue;
		row_head_encode(&h, raw);
		raw[i] = 1;
		if (row_head_decode(raw, ROW_HEAD, &got, &err) != -EPROTO)
			ok(false, "padding byte %d must be zero", i);
	}
	ok(true, "all padding was tried");
}

/* Whatever 64 bytes say: no overflow, and what is accepted adds up and encodes back. */
static void test_head_random(void)
{
	unsigned int seed = 7, accepted = 0, wrong = 0;

	for (int i = 0; i < 200000; i++) {
		struct row_head h = {.id_bytes = 1, .y_bytes = 2, .x_bytes = 3, .weight = 1};
		struct row_head got;
		uint8_t raw[ROW_HEAD], again[ROW_HEAD];

		row_head_encode(&h, raw);
		for (int k = 0; k < 1 + i % 3; k++)
			raw[rand_r(&seed) % ROW_HEAD] ^= (uint8_t)(1u << (rand_r(&seed) % 8));
		if (row_head_decode(raw, ROW_HEAD + 6, &got, NULL))
			continue;
		accepted++;
		row_head_encode(&got, again);
		wrong += memcmp(raw, again, ROW_HEAD) != 0;
		wrong += (uint64_t)got.id_bytes + got.y_bytes + got.x_bytes != 6;
	}
	ok(accepted > 1000, "random flips: some heads are still good (%u)", accepted);
	is(wrong, 0, "random flips: what is accepted is consistent");
}

static void test_types(void)
{
	static const size_t wanted[ROW_TYPE_COUNT] = {0, 1, 1, 2, 4, 8, 4, 8, 1};

	for (int t = 0; t < ROW_TYPE_COUNT; t++)
		is(row_type_bytes((enum row_type)t), wanted[t], "bytes of a type");
	is(row_type_bytes((enum row_type)99), 0, "an unknown type has 0 bytes");
}

static void test_prediction(void)
{
	static const uint8_t want[] = {
		2, 0, 0, 0, 'a', 'b', 2, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0, /* 1, -2 */
		0, 0, 0, 0, 0,	 0,   0, 0,
	};
	const float value[2] = {1.0f, -2.0f};
	struct row_prediction row = {.id = "ab", .id_bytes = 2, .outputs = 2}, got;
	uint8_t raw[sizeof(want)];
	long n, at;

	n = row_prediction_encode(&row, value, raw, 18);
	is(n, 18, "prediction: 18 bytes");
	is(row_prediction_encode(&row, value, raw, 17), -ENOSPC, "prediction: 17 are too few");
	row = (struct row_prediction){0};
	is(row_prediction_encode(&row, NULL, raw + 18, 8), 8, "prediction without id and outputs");
	ok(!memcmp(raw, want, sizeof(want)), "prediction: the bytes are those of the description");
	row.id_bytes = ROW_MAX_ID + 1;
	is(row_prediction_encode(&row, NULL, raw, sizeof(raw)), -EINVAL, "an id too long");

	at = row_prediction_decode(raw, sizeof(raw), 0, &got);
	is(at, 18, "decode: next offset");
	ok(got.id_bytes == 2 && !memcmp(got.id, "ab", 2) && got.outputs == 2, "decode: fields");
	ok(!memcmp(got.value, value, 8), "decode: values");
	is(row_prediction_decode(raw, sizeof(raw), 18, &got), sizeof(raw), "decode: second row");
	ok(!got.id_bytes && !got.outputs, "decode: empty fields");
	is(row_prediction_decode(raw, sizeof(raw), sizeof(raw), &got), 0, "decode: the end");
	is(row_prediction_decode(raw, sizeof(raw), sizeof(raw) + 1, &got), -EPROTO, "past the end");
	for (size_t n_bytes = 1; n_bytes < 18; n_bytes++) {
		uint8_t *cut = malloc(n_bytes); /* exact size: a sanitizer sees any byte too far */

		memcpy(cut, raw, n_bytes);
		if (row_prediction_decode(cut, n_bytes, 0, &got) != -EPROTO)
			ok(false, "%zu bytes of 18 must be refused", n_bytes);
		free(cut);
	}
	memset(raw + 6, 0xff, 4);
	is(row_prediction_decode(raw, sizeof(raw), 0, &got), -EPROTO, "4 Gi outputs");
	memset(raw, 0xff, 4);
	is(row_prediction_decode(raw, sizeof(raw), 0, &got), -EPROTO, "an id of 4 GiB");
}

int main(void)
{
	test_head();
	test_head_bad();
	test_head_random();
	test_types();
	test_prediction();
	return done();
}
