// SPDX-License-Identifier: MIT
/*
 * exchange_hostile.c: blocks that were cut, stretched, changed or made up. A block is refused, or
 * every row that it adds belongs to the host; nothing is read or written out of place (run with
 * SAN=address).
 */
#include <math.h>

#include "exchange_test.h"

static uint32_t in_turn(const struct world *w, uint32_t i)
{
	return i % HOSTS;
}

/* 1 has no rows, and takes what it holds from the first block. */
static uint32_t none_on_1(const struct world *w, uint32_t i)
{
	return i % 2 ? 2 : 0;
}

static struct data_set *receiver(const struct world *w, place_fn place)
{
	struct agree_block part;
	struct data_set *data = world_set(w, place, 1, &part);
	struct err err;

	agree_free(&part);
	if (data_exchange_begin(data, HOSTS, 1, &err))
		BAIL("%s", err.message);
	return data;
}

/* A block of a few rows from host 0 for host 1. */
static size_t good_block(const struct world *w, uint8_t *block, size_t size)
{
	struct agree_block part;
	struct data_set *data = world_set(w, in_turn, 0, &part);
	size_t bytes;
	struct err err;

	agree_free(&part);
	if (data_exchange_begin(data, HOSTS, 0, &err) ||
	    data_exchange_take(data, 1, block, size, &bytes, &err) || !bytes)
		BAIL("%s", err.message);
	data_free(data);
	return bytes;
}

/* In a buffer of just this size, so that a read past its end is seen. */
static int give(struct data_set *data, const uint8_t *block, size_t bytes, struct err *err)
{
	uint8_t *copy = malloc(bytes ? bytes : 1);
	int rc;

	memcpy(copy, block, bytes);
	rc = data_exchange_give(data, copy, bytes, err);
	free(copy);
	return rc;
}

static int give_to_new(const struct world *w, place_fn place, const uint8_t *block, size_t bytes)
{
	struct data_set *data = receiver(w, place);
	struct err err = {0};
	int rc = give(data, block, bytes, &err);

	if (rc && (err.kind != ERR_PROTOCOL || rc != -EPROTO))
		printf("# %d %s\n", rc, err.message);
	data_free(data);
	return rc;
}

static void test_cut(const struct world *w, const uint8_t *block, size_t bytes, const char *name)
{
	uint8_t *longer = calloc(1, bytes + 64);
	uint32_t taken = 0;

	for (size_t n = 1; n < bytes; n++) {
		uint64_t stated = n;

		memcpy(longer, block, bytes);
		taken += !give_to_new(w, none_on_1, longer, n);
		if (n < 32)
			continue;
		memcpy(longer + 24, &stated, 8); /* a length that says so */
		taken += !give_to_new(w, none_on_1, longer, n);
	}
	is(taken, 0, name);
	for (uint64_t n = 1, stated; n <= 64; n++) {
		memcpy(longer, block, bytes);
		taken += !give_to_new(w, in_turn, longer, bytes + n);
		stated = bytes + n;
		memcpy(longer + 24, &stated, 8);
		taken += !give_to_new(w, in_turn, longer, bytes + n);
	}
	is(taken, 0, "... or longer than it should be: refused");
	free(longer);
}

/* Every bit of the first row's head, and every fifth behind it, changed one at a time. */
static void test_flips(const struct world *w, const uint8_t *block, size_t bytes, const char *name)
{
	uint8_t *other = malloc(bytes);
	struct data_exchange_counts counts;
	uint32_t refused = 0, taken = 0, equal = 0, wrong = 0;
	uint64_t want = 0; /* checksum with the block as it was */
	struct err err;

	for (size_t bit = 0; bit < 8 * bytes + 1; bit += bit < 1000 ? 1 : 5) {
		struct data_set *data = receiver(w, in_turn);

		memcpy(other, block, bytes);
		if (bit)
			other[(bit - 1) / 8] ^= (uint8_t)(1 << (bit - 1) % 8);
		if (give(data, other, bytes, &err)) {
			refused++;
			data_free(data);
			continue;
		}
		/* the sum must differ from that of the rows that were sent */
		for (uint32_t k = 0; k < HOSTS; k += 2) {
			uint8_t *sink = malloc(DATA_EXCHANGE_BLOCK);
			size_t n = 1;

			while (n &&
			       !data_exchange_take(data, k, sink, DATA_EXCHANGE_BLOCK, &n, &err))
				;
			free(sink);
		}
		if (data_exchange_end(data, &counts, &err))
			wrong++;
		else if (!bit)
			want = counts.sum_after;
		else if (counts.sum_after == want)
			equal++;
		else
			taken++;
		data_free(data);
	}
	is(wrong, 0, name);
	is(equal, 0, "... and where it is taken, the checksum tells");
	ok(refused > taken, "... %u are refused at once, %u leave another checksum", refused,
	   taken);
	free(other);
}

static void put32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, 4);
}

/* Single fields with values that an attacker would choose; block: its first row at 32. */
static void test_fields(const struct world *w, const uint8_t *block, size_t bytes)
{
	static const struct {
		size_t at;
		uint32_t value;
		const char *what;
	} field[] = {
		{0, 0, "magic"},
		{4, 2, "version"},
		{4, 1 | 200u << 16 | 2u << 24, "type of elements"},
		{4, 1 | 200u << 24, "kind of labels"},
		{8, 0, "no height"},
		{8, UINT32_MAX, "height 2^32 - 1"},
		{12, UINT32_MAX, "width 2^32 - 1"},
		{16, UINT32_MAX, "channels 2^32 - 1"},
		{8, 1u << 31, "height 2^31"},
		{8, SIDE + 1, "one more line"},
		{8, SIDE - 1, "one line less"},
		{20, 0, "no rows"},
		{20, UINT32_MAX, "2^32 - 1 rows"},
		{32, UINT32_MAX, "label of 2^32 - 1 bytes"},
		{32, UINT32_MAX - 40, "label of nearly 2^32 bytes"},
		{32, 2000, "label of 2,000 bytes"},
		{36, UINT32_MAX, "id of 2^32 - 1 bytes"},
		{36, ROW_MAX_ID + 1, "id of 1,025 bytes"},
		{36, 0, "no id"},
		{40, 0x7fc00000, "weight NaN"},
		{40, 0x7f800000, "weight infinite"},
		{40, 0xbf800000, "weight -1"},
	};
	uint8_t *other = malloc(bytes);

	for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++)
		for (int empty = 0; empty < 2; empty++) {
			memcpy(other, block, bytes);
			put32(other + field[i].at, field[i].value);
			is(give_to_new(w, empty ? none_on_1 : in_turn, other, bytes), -EPROTO,
			   field[i].what);
		}
	memcpy(other, block, bytes); /* h * w * c that wraps to 0 and to SIDE * SIDE in 64 bits */
	put32(other + 8, 1u << 31);
	put32(other + 12, 1u << 31);
	put32(other + 16, 4);
	is(give_to_new(w, none_on_1, other, bytes), -EPROTO, "2^64 elements");
	free(other);
}

static void test_values(void)
{
	struct world w = {.kind = FLOATS, .f32 = true, .n = 60};
	uint8_t block[4096], other[4096];
	const uint32_t nan = 0x7fc00000, infinite = 0x7f800000;
	size_t bytes = good_block(&w, block, sizeof(block));

	ok(!give_to_new(&w, in_turn, block, bytes), "targets and arrays of floats");
	memcpy(other, block, bytes);
	put32(other + 44, nan);
	is(give_to_new(&w, in_turn, other, bytes), -EPROTO, "a target NaN");
	memcpy(other, block, bytes);
	put32(other + 44 + 4 + 16, infinite);
	is(give_to_new(&w, in_turn, other, bytes), -EPROTO, "an element infinite");

	w.kind = VECTORS;
	bytes = good_block(&w, block, sizeof(block));
	memcpy(other, block, bytes);
	put32(other + 44 + 8, nan);
	is(give_to_new(&w, in_turn, other, bytes), -EPROTO, "an element of a target NaN");
	memcpy(other, block, bytes);
	put32(other + 32, 11);
	is(give_to_new(&w, in_turn, other, bytes), -EPROTO, "a target of 11 bytes");

	w = (struct world){.kind = BOOLS, .n = 60};
	bytes = good_block(&w, block, sizeof(block));
	memcpy(other, block, bytes);
	other[44] = 2;
	is(give_to_new(&w, in_turn, other, bytes), -EPROTO, "a boolean 2");

	w = (struct world){.kind = INTS, .n = 60, .fraction = .5};
	bytes = good_block(&w, block, sizeof(block));
	w.fraction = .9;
	is(give_to_new(&w, in_turn, block, bytes), -EPROTO, "a row that is one for validation");
}

/* Labels without end, and rows past memory. */
static void test_limits(void)
{
	struct world w = {.kind = INTS, .n = 3000, .memory = 512 << 10};
	uint8_t *block = malloc(DATA_EXCHANGE_BLOCK);
	struct data_set *data;
	size_t bytes;
	struct err err;
	int rc = 0;

	w.memory = 0;
	bytes = good_block(&w, block, 60 << 10);
	w.memory = 256 << 10;
	data = receiver(&w, none_on_1);
	for (int i = 0; i < 100 && !rc; i++)
		rc = give(data, block, bytes, &err);
	is(rc, -ENOMEM, "rows that come again and again: memory ends");
	is(err.kind, ERR_LIMIT, "... a limit");
	is(data_exchange_give(data, block, bytes, &err), -EINVAL, "... and that is the end");
	ok(data_memory(data) <= w.memory, "... within the budget");
	data_free(data);
	free(block);
}

static void test_noise(void)
{
	const struct world w = {.kind = TEXTS, .n = 60, .ids = true};
	uint64_t seed = 5;
	uint8_t block[2048];
	size_t bytes = good_block(&w, block, sizeof(block));
	uint32_t taken = 0;

	for (int i = 0; i < 3000; i++) { /* true heads, then noise */
		uint8_t other[2048];

		memcpy(other, block, bytes);
		for (size_t k = i % 3 ? 32 : 44; k < bytes; k++)
			other[k] = (uint8_t)(next_random(&seed) >> 20);
		taken += !give_to_new(&w, i % 2 ? in_turn : none_on_1, other, bytes);
	}
	ok(taken < 10, "noise behind a true head: %u of 3,000 taken", taken);
}

int main(void)
{
	const struct world w = {.kind = TEXTS, .n = 60, .ids = true, .weights = true};
	const struct world named = {.kind = INTS, .n = 60};
	uint8_t block[1024];
	size_t bytes = good_block(&w, block, sizeof(block));

	ok(!give_to_new(&w, in_turn, block, bytes) && !give_to_new(&w, none_on_1, block, bytes),
	   "%zu bytes as they were sent: taken", bytes);
	ok(!give_to_new(&w, in_turn, block, 0), "an empty block is nothing");
	test_fields(&w, block, bytes);
	test_cut(&w, block, bytes, "cut at any byte: refused");
	test_flips(&w, block, bytes, "any bit changed: no harm");
	bytes = good_block(&named, block, sizeof(block));
	test_flips(&named, block, bytes, "the same without ids");
	is(give_to_new(&w, in_turn, block, bytes), -EPROTO, "labels of another kind");
	test_values();
	test_limits();
	test_noise();
	return done();
}
