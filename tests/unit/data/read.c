// SPDX-License-Identifier: MIT
/* read.c: batches, ids and orders as a training or a prediction gets them; the scalar conversion.
 */
#include "data_test.h"

static struct data_decoder *decoder;
static char spill_dir[64] = "/var/tmp/cnn-spill-XXXXXX";

/* Counts allocations of the calling thread: a batch must make none. */
static _Thread_local unsigned long allocations;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTED 1
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

void *malloc(size_t n)
{
	allocations++;
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
	allocations++;
	return __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
	allocations++;
	return __libc_realloc(p, n);
}
#else
#define COUNTED 0
#endif

/* Prediction: feeding order within a feeder, whatever the images cost; ids; spilled or not. */
static void test_predict(bool spill)
{
	enum { N = 400, SIDE = 24 };
	struct data_config config = config_of(decoder, SIDE, SIDE, 3);
	struct data_feed feed = feed_of_bytes(ROW_PREDICT);
	struct agree_block part, agreed = {0};
	struct data_feeder *f[2];
	struct data_counts counts;
	struct data_set *data;
	struct data_reader *r;
	struct backend_batch b;
	uint8_t p[SIDE * SIDE * 3];
	unsigned long before;
	struct err err;
	uint64_t at = 0;
	bool right = true;

	config.need_labels = false;
	config.memory = spill ? 512 << 10 : 64 << 20;
	config.spill_dir = spill ? spill_dir : NULL;
	data_create(&config, &data, &err);
	for (uint32_t i = 0; i < 2; i++) {
		feed.feeder = i;
		data_feeder_open(data, &feed, &f[i], &err);
	}
	for (int i = 0; i < N; i++) {
		char id[16];
		struct bytes x;

		memset(p, i, sizeof(p));
		p[0] = (uint8_t)(i >> 8);
		x = i % 3 ? make_png(SIDE, SIDE, PNG_COLOR_TYPE_RGB, i % 2, p)
			  : (struct bytes){memcpy(malloc(sizeof(p)), p, sizeof(p)), sizeof(p)};
		snprintf(id, sizeof(id), "i%d", i);
		if (feed_bytes(f[i % 2], i % 10 ? id : NULL, 0, x.data, i == 100 ? 5 : x.n, &err))
			BAIL("%s", err.message);
		free(x.data);
	}
	if (data_feeder_close(f[1], &counts, &err) || data_feeder_close(f[0], &counts, &err) ||
	    data_collect(data, &part, &err))
		BAIL("%s", err.message);
	ok(part.rows[ROW_PREDICT] == N - 1 && part.bad[ROW_PREDICT] == 1, "%s: rows to predict",
	   spill ? "spilled" : "in memory");
	agreed.h = agreed.w = SIDE;
	agreed.c = 3;
	is(data_apply(data, &agreed, 10, &err), 0, "apply");
	data_reader_open(data, ROW_PREDICT, 7, true, &r, &err);
	data_reader_epoch(r, 3, 3); /* no effect */
	before = allocations;
	for (int i = 0; i < N; i++) {
		int n = i < N / 2 ? 2 * i : 2 * (i - N / 2) + 1; /* feeder 0, then feeder 1 */
		char id[16];
		const char *got;
		uint32_t bytes;
		const uint8_t *x;

		if (n == 100)
			continue;
		if (at % 7 == 0) {
			uint64_t left = data_rows(data, ROW_PREDICT) - at;

			if (data_reader_batch(r, at, left < 7 ? (uint32_t)left : 7, &b, &err))
				BAIL("%s", err.message);
		}
		x = b.x[at % 7];
		snprintf(id, sizeof(id), "i%d", n);
		got = data_reader_id(r, at, &bytes);
		right &= x[0] == n >> 8 && x[1] == (n & 255) && x[SIDE * SIDE * 3 - 1] == (n & 255);
		right &= n % 10 ? bytes == strlen(id) && !memcmp(got, id, bytes) : !bytes;
		at++;
	}
	ok(right && at == N - 1, "in the order of feeding, with their ids");
	ok(!b.label && !b.target, "no labels");
	if (COUNTED)
		is(allocations - before, 0, "no batch allocates");
	ok(!spill || data_spilled(data) > 0, "spilled as asked");
	data_reader_close(r);
	agree_free(&part);
	data_free(data);
}

/* Batches of changing size over spilled rows, jumps, ends, and a disk that fails. */
static void test_spilled_batches(void)
{
	enum { N = 4000, ROW = 1000 };
	struct data_config config = config_of(decoder, ROW, 1, 1);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct agree_block agreed;
	struct data_feeder *f;
	struct data_counts counts;
	struct data_set *data;
	struct data_reader *r;
	struct backend_batch b;
	uint8_t x[ROW];
	uint64_t seed = 12, first = 0, memory;
	struct err err;
	bool right = true;
	unsigned long before;

	config.memory = 1 << 20;
	config.spill_dir = spill_dir;
	data_create(&config, &data, &err);
	data_feeder_open(data, &feed, &f, &err);
	for (int i = 0; i < N; i++) {
		char id[16];

		snprintf(id, sizeof(id), "%d", i);
		for (int k = 0; k < ROW; k++)
			x[k] = (uint8_t)(i * 31 + k * (i >> 8));
		if (feed_bytes(f, id, i % 2, x, ROW, &err))
			BAIL("%s", err.message);
	}
	data_feeder_close(f, &counts, &err);
	if (apply(data, 2, &agreed, &err))
		BAIL("%s", err.message);
	memory = data_memory(data);
	ok(memory <= 1 << 20, "%llu bytes in memory", (unsigned long long)memory);
	data_reader_open(data, ROW_TRAIN, 50, true, &r, &err);
	ok(data_memory(data) >= memory + 2 * 50 * ROW, "staging is counted");
	before = allocations;
	for (int step = 0; step < 400; step++) {
		uint32_t n = step % 40 == 39 ? 0 : 20 + (uint32_t)(next_random(&seed) % 2);

		if (step % 50 == 49) /* in the middle: what was read ahead is of the old order */
			data_reader_epoch(r, 1, (uint32_t)step);
		if (step % 30 == 29)
			first = next_random(&seed) % (N - 60);
		if (first + n > N)
			first = 0;
		if (data_reader_batch(r, first, n, &b, &err))
			BAIL("%s", err.message);
		for (uint32_t i = 0; i < n; i++) {
			uint32_t bytes;
			const char *text = data_reader_id(r, first + i, &bytes);
			char copy[16];
			int id;

			snprintf(copy, sizeof(copy), "%.*s", (int)bytes, text);
			id = atoi(copy);
			for (int k = 0; k < ROW; k++)
				x[k] = (uint8_t)(id * 31 + k * (id >> 8));
			right &= !memcmp(b.x[i], x, ROW);
		}
		first += n;
	}
	ok(right, "rows are whole and the right ones");
	if (COUNTED)
		is(allocations - before, 0, "no batch and no epoch allocates");
	ok(data_reader_batch(r, N - 10, 11, &b, &err) == -EINVAL, "past the end");
	ok(data_reader_batch(r, 0, 51, &b, &err) == -EINVAL, "more than max_batch");
	data_reader_close(r);
	is(data_memory(data), memory, "and given back");
	agree_free(&agreed);
	data_free(data);
}

/* A daemon without rows takes shape and type of the others. */
static void test_no_rows(void)
{
	struct data_config config = config_of(decoder, 0, 0, 0);
	struct agree_block part, agreed = {.h = 5,
					   .w = 6,
					   .c = 3,
					   .dtype = BACKEND_I16,
					   .labels = AGREE_INT,
					   .agreed = 1};
	struct data_set *data;
	struct data_reader *r;
	struct backend_batch b;
	struct err err;

	data_create(&config, &data, &err);
	is(data_collect(data, &part, &err), 0, "no rows at all");
	ok(!part.h && !part.n_labels && !part.rows[0], "an empty part");
	is(data_apply(data, &agreed, 3, &err), 0, "apply");
	ok(data_shape(data).w == 6 && data_dtype(data) == BACKEND_I16, "shape and type of the "
								       "others");
	data_reader_open(data, ROW_TRAIN, 4, true, &r, &err);
	is(data_reader_epoch(r, 0, 0), 0, "an epoch of nothing");
	is(data_reader_batch(r, 0, 0, &b, &err), 0, "a batch of nothing");
	is(b.n, 0, "is empty");
	data_reader_close(r);
	agree_free(&part);
	data_free(data);
}

static void test_convert(void)
{
	struct data_feed feed = {.x_type = ROW_BYTES};
	struct bytes png = file_read(GOLDEN, "rgb.png"), want = file_read(GOLDEN, "rgb.rgb"), v;
	struct backend_shape shape = {13, 17, 3}, small = {2, 2, 1};
	uint8_t out[13 * 17 * 3];
	float f[4] = {1, 2, 3, 4}, back[4];
	int32_t n[4] = {1, 2, 300, -4};
	struct test_row r = {.x = png.data, .x_bytes = png.n, .weight = 1};
	struct err err;

	v = row_value(&r);
	is(data_convert_one(decoder, &feed, v.data, v.n, shape, BACKEND_U8, out, &err), 0, "a PNG");
	ok(!memcmp(out, want.data, sizeof(out)), "to its pixels");
	ok(data_convert_one(decoder, &feed, v.data, v.n, small, BACKEND_U8, out, &err) == -EBADMSG,
	   "of another size");
	like(err.message, "image is 17x13, wanted 2x2", "says so");
	ok(data_convert_one(decoder, &feed, v.data, v.n - 1, shape, BACKEND_U8, out, &err) ==
		   -EPROTO,
	   "a value cut short");
	free(v.data);
	r = (struct test_row){.flags = ROW_X_NULL, .weight = 1};
	v = row_value(&r);
	data_convert_one(decoder, &feed, v.data, v.n, shape, BACKEND_U8, out, &err);
	is_str(err.message, "image is NULL", "NULL");
	free(v.data);
	feed = (struct data_feed){.x_type = ROW_F32, .x_array = true};
	r = (struct test_row){.x = f, .x_bytes = 16, .x_dims = 2, .dim = {2, 2}, .weight = 1};
	v = row_value(&r);
	is(data_convert_one(decoder, &feed, v.data, v.n, small, BACKEND_F32, back, &err), 0,
	   "real[]");
	ok(!memcmp(back, f, 16), "as it came");
	is(data_convert_one(decoder, &feed, v.data, v.n, small, BACKEND_U8, out, &err), 0,
	   "to bytes, for a model of bytes");
	ok(out[0] == 1 && out[3] == 4, "whole numbers fit");
	free(v.data);
	feed.x_type = ROW_I32;
	r.x = n;
	v = row_value(&r);
	is(data_convert_one(decoder, &feed, v.data, v.n, small, BACKEND_F32, back, &err), 0,
	   "integer[] to floats");
	ok(back[2] == 300 && back[3] == -4, "as they are");
	ok(data_convert_one(decoder, &feed, v.data, v.n, small, BACKEND_U8, out, &err) == -ERANGE,
	   "but 300 is no byte: %s", err.message);
	free(v.data);
	free(png.data);
	free(want.data);
}

int main(void)
{
	struct data_limits limits = {.workers = 2, .sandbox = true};
	struct err err;

	if (data_decoder_create(&limits, &decoder, &err) || !mkdtemp(spill_dir))
		BAIL("cannot begin");
	test_predict(false);
	test_predict(true);
	test_spilled_batches();
	test_no_rows();
	test_convert();
	rmdir(spill_dir);
	data_decoder_free(decoder);
	return done();
}
