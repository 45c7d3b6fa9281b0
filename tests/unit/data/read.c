// SPDX-License-Identifier: MIT
/*
 * read.c: labels to classes and the errors that name a row; targets, weights, ids and batches as a
 * training gets them; the scalar conversion.
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

static struct data_config config_of(uint32_t h, uint32_t w, uint32_t c)
{
	return (struct data_config){.decoder = decoder,
				    .memory = 64 << 20,
				    .shape = {h, w, c},
				    .max_bad_rows = 100,
				    .need_labels = true};
}

/* One row of 4 pixels a label; text labels are UTF-8 bytes, others as their type. */
struct labels {
	enum row_type type;
	bool array;
	uint32_t n;
	const void *value[12];
	uint32_t bytes[12];
};

static struct data_set *feed_labels(const struct data_config *config, const struct labels *l,
				    enum row_set set, struct err *err)
{
	struct data_feed feed = {.set = set,
				 .x_type = ROW_BYTES,
				 .y_type = l->type,
				 .y_array = l->array,
				 .has_y = true,
				 .has_id = true};
	struct data_feeder *f;
	struct data_counts counts;
	struct data_set *data;
	int rc = data_create(config, &data, err);

	if (!rc)
		rc = data_feeder_open(data, &feed, &f, err);
	for (uint32_t i = 0; i < l->n && !rc; i++) {
		uint8_t x[4] = {(uint8_t)i, 1, 2, 3};
		char id[16];
		struct test_row r = {.id = id,
				     .y = l->value[i],
				     .y_bytes = l->bytes[i],
				     .x = x,
				     .x_bytes = 4,
				     .weight = i + 1};

		snprintf(id, sizeof(id), "row%u", i);
		if (l->array)
			r.y_dims = 1;
		rc = feed_row(f, &r, err);
	}
	if (rc || data_feeder_close(f, &counts, err))
		BAIL("%s", err->message);
	return data;
}

/* collect, agree as one daemon, apply */
static int apply(struct data_set *data, uint32_t outputs, struct agree_block *agreed,
		 struct err *err)
{
	struct agree_block part;
	int rc = data_collect(data, &part, err);

	if (rc)
		BAIL("%s", err->message);
	part.replicas = 1;
	rc = agree_merge(&part, 1, agreed, err);
	agree_free(&part);
	if (rc)
		return rc;
	return data_apply(data, agreed, outputs, err);
}

static struct labels ints(const int32_t *v, uint32_t n)
{
	struct labels l = {.type = ROW_I32, .n = n};

	for (uint32_t i = 0; i < n; i++) {
		l.value[i] = &v[i];
		l.bytes[i] = 4;
	}
	return l;
}

static struct labels texts(const char *const *v, uint32_t n)
{
	struct labels l = {.type = ROW_TEXT, .n = n};

	for (uint32_t i = 0; i < n; i++) {
		l.value[i] = v[i];
		l.bytes[i] = (uint32_t)strlen(v[i]);
	}
	return l;
}

/* Label of the row "rowI" in a reader that holds all rows. */
static int32_t label_of(struct data_reader *r, const struct backend_batch *b, uint32_t i)
{
	char want[16];

	snprintf(want, sizeof(want), "row%u", i);
	for (uint32_t k = 0; k < b->n; k++) {
		uint32_t n;
		const char *id = data_reader_id(r, k, &n);

		if (n == strlen(want) && !memcmp(id, want, n))
			return b->label[k];
	}
	return -99;
}

static void test_int_labels(void)
{
	static const int32_t v[] = {1, 2, 2, 1, 2}, far[] = {0, 1, 2, 10, 1, -1};
	struct data_config config = config_of(2, 2, 1);
	struct labels l = ints(v, 5);
	struct err err;
	struct data_set *data = feed_labels(&config, &l, ROW_TRAIN, &err);
	struct agree_block agreed;
	struct data_reader *r;
	struct backend_batch b;
	bool right = true;

	is(apply(data, 2, &agreed, &err), 0, "labels 1 and 2 for two outputs");
	data_reader_open(data, ROW_TRAIN, 5, false, &r, &err);
	data_reader_batch(r, 0, 5, &b, &err);
	for (uint32_t i = 0; i < 5; i++)
		right &= label_of(r, &b, i) == v[i] - 1;
	ok(right, "are classes 0 and 1");
	for (uint32_t k = 0; k < 5; k++)
		right &= b.target[2 * k] == (b.label[k] == 0) &&
			 b.target[2 * k + 1] == (b.label[k] == 1);
	ok(right, "one-hot targets");
	data_reader_batch(r, 1, 3, &b, &err);
	for (uint32_t k = 0; k < 3; k++)
		right &= b.target[2 * k] + b.target[2 * k + 1] == 1 &&
			 b.target[2 * k + (uint32_t)b.label[k]] == 1;
	ok(right, "also in the next batch");
	data_reader_close(r);
	agree_free(&agreed);
	data_free(data);

	l = ints(far, 6);
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	ok(apply(data, 3, &agreed, &err) == -ERANGE && err.kind == ERR_DATA, "five labels, three "
									     "outputs");
	ok(strstr(err.message, "row row3: label 10 is outside 0..2") ||
		   strstr(err.message, "row row5: label -1 is outside 0..2"),
	   "a label outside 0..2 and its row are named: %s", err.message);
	like(err.message, "the network has 3 outputs, the rows have 5 different labels", "and why");
	agree_free(&agreed);
	data_free(data);
}

static void test_text_labels(void)
{
	static const char *const v[] = {"cat", "dog", "bird", "cat", ""};
	static const char *const other[] = {"cat", "worm"};
	struct data_config config = config_of(2, 2, 1);
	struct labels l = texts(v, 5);
	struct err err;
	struct data_set *data = feed_labels(&config, &l, ROW_TRAIN, &err), *more;
	struct agree_block agreed, part;
	struct data_reader *r;
	struct backend_batch b;

	is(apply(data, 7, &agreed, &err), 0, "four text labels, more outputs than classes");
	data_reader_open(data, ROW_TRAIN, 5, false, &r, &err);
	data_reader_batch(r, 0, 5, &b, &err);
	/* bytewise: '' < bird < cat < dog */
	ok(label_of(r, &b, 0) == 2 && label_of(r, &b, 1) == 3 && label_of(r, &b, 2) == 1 &&
		   label_of(r, &b, 4) == 0,
	   "classes in the order of their bytes");
	data_reader_close(r);

	/* evaluation with the model's class map */
	l = texts(other, 2);
	more = feed_labels(&config, &l, ROW_VALIDATION, &err);
	data_collect(more, &part, &err);
	ok(data_apply(more, &agreed, 7, &err) == -ERANGE && err.kind == ERR_DATA,
	   "a label that the model does not know");
	is_str(err.message, "row row1: label 'worm' is not one of the 4 classes of the model",
	       "row and label are named");
	agree_free(&part);
	data_free(more);
	agree_free(&agreed);
	data_free(data);

	l = texts(v, 5);
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	ok(apply(data, 2, &agreed, &err) == -ERANGE, "four labels, two outputs");
	like(err.message, "the rows have 4 different labels, the network has 2 outputs", "says so");
	agree_free(&agreed);
	data_free(data);
}

static void test_weights(void)
{
	static const int32_t v[] = {0, 1, 0, 1};
	struct data_config config = config_of(2, 2, 1);
	struct labels l = ints(v, 4);
	struct err err;
	bool right = true;

	for (enum row_set set = ROW_TRAIN; set <= ROW_VALIDATION; set++) {
		struct data_set *data = feed_labels(&config, &l, set, &err);
		struct agree_block part, agreed;
		struct data_reader *r;
		struct backend_batch b;

		data_collect(data, &part, &err);
		agreed = agreed_alone(&part);
		agreed.label[1].weight = 2.5;
		data_apply(data, &agreed, 2, &err);
		data_reader_open(data, set, 4, false, &r, &err);
		data_reader_batch(r, 0, 4, &b, &err);
		for (uint32_t i = 0; i < 4; i++) {
			uint8_t row = ((const uint8_t *)b.x[i])[0];
			float want = (float)(row + 1);

			if (set == ROW_TRAIN && v[row] == 1)
				want *= 2.5f;
			right &= b.weight[i] == want;
		}
		ok(right, set == ROW_TRAIN ? "sample weight times class weight"
					   : "class weights are not for validation");
		data_reader_close(r);
		agree_free(&part);
		data_free(data);
	}
}

static void test_vectors(void)
{
	static const float v[3][3] = {{0, 1, 0}, {.25f, .25f, .5f}, {1, 0, 0}};
	static const double d[] = {1.5, -2, 7};
	static const uint8_t t[] = {0, 1, 1};
	struct data_config config = config_of(2, 2, 1);
	struct labels l = {.type = ROW_F32, .array = true, .n = 3};
	struct agree_block agreed;
	struct data_reader *r;
	struct backend_batch b;
	struct data_set *data;
	struct err err;
	bool right = true;

	for (uint32_t i = 0; i < 3; i++) {
		l.value[i] = v[i];
		l.bytes[i] = 12;
	}
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	is(apply(data, 3, &agreed, &err), 0, "arrays of three");
	ok(agreed.labels == AGREE_VECTOR && agreed.outputs == 3, "agreed: vectors of 3");
	data_reader_open(data, ROW_TRAIN, 3, false, &r, &err);
	data_reader_batch(r, 0, 3, &b, &err);
	for (uint32_t i = 0; i < 3; i++)
		right &= !memcmp(b.target + 3 * i, v[((const uint8_t *)b.x[i])[0]], 12);
	ok(right && !b.label, "targets as they came");
	data_reader_close(r);
	agree_free(&agreed);
	data_free(data);

	l.bytes[1] = 8;
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	ok(apply(data, 3, &agreed, &err) == -ERANGE && err.kind == ERR_DATA, "one array of two");
	is_str(err.message, "row row1: the label array has 2 elements, the network 3 outputs",
	       "is named");
	agree_free(&agreed);
	data_free(data);

	config.regression = true;
	l = (struct labels){.type = ROW_F64, .n = 3};
	for (uint32_t i = 0; i < 3; i++) {
		l.value[i] = &d[i];
		l.bytes[i] = 8;
	}
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	is(apply(data, 1, &agreed, &err), 0, "float targets");
	data_reader_open(data, ROW_TRAIN, 3, true, &r, &err);
	data_reader_epoch(r, 1, 1);
	data_reader_batch(r, 0, 3, &b, &err);
	for (uint32_t i = 0; i < 3; i++)
		right &= b.target[i] == (float)d[((const uint8_t *)b.x[i])[0]];
	ok(right && !b.label && agreed.labels == AGREE_FLOAT, "targets as they came");
	data_reader_close(r);
	agree_free(&agreed);
	data_free(data);
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	ok(apply(data, 2, &agreed, &err) == -ERANGE, "one target for two outputs: %s", err.message);
	agree_free(&agreed);
	data_free(data);

	config.regression = false;
	l = (struct labels){.type = ROW_BOOL, .n = 3};
	for (uint32_t i = 0; i < 3; i++) {
		l.value[i] = &t[i];
		l.bytes[i] = 1;
	}
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	is(apply(data, 1, &agreed, &err), 0, "booleans for one output");
	data_reader_open(data, ROW_TRAIN, 3, false, &r, &err);
	data_reader_batch(r, 0, 3, &b, &err);
	for (uint32_t i = 0; i < 3; i++)
		right &= b.target[i] == (float)t[((const uint8_t *)b.x[i])[0]] &&
			 b.label[i] == t[((const uint8_t *)b.x[i])[0]];
	ok(right, "target 0 and 1");
	data_reader_close(r);
	agree_free(&agreed);
	data_free(data);
}

static void test_many_labels(void)
{
	struct data_config config = config_of(2, 2, 1);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *f;
	struct data_set *data;
	struct err err;
	int rc = 0;

	data_create(&config, &data, &err);
	data_feeder_open(data, &feed, &f, &err);
	for (int32_t i = 0; i < 70000 && !rc; i++)
		rc = feed_bytes(f, NULL, i, "1234", 4, &err);
	ok(rc == -E2BIG && err.kind == ERR_DATA, "70,000 different labels");
	like(err.message, "more than 65536 different labels", "are too many");
	data_feeder_abort(f);
	data_free(data);
}

/* Prediction: feeding order within a feeder, whatever the images cost; ids; spilled or not. */
static void test_predict(bool spill)
{
	enum { N = 400, SIDE = 24 };
	struct data_config config = config_of(SIDE, SIDE, 3);
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
	struct data_config config = config_of(ROW, 1, 1);
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
		for (int k = 0; k < ROW; k++)
			x[k] = (uint8_t)(i * 31 + k * (i >> 8));
		if (feed_bytes(f, NULL, i % 2, x, ROW, &err))
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

		if (step % 100 == 99) {
			data_reader_epoch(r, 1, (uint32_t)step);
			first = 0;
		}
		if (step % 30 == 29)
			first = next_random(&seed) % (N - 60);
		if (first + n > N)
			first = 0;
		if (data_reader_batch(r, first, n, &b, &err))
			BAIL("%s", err.message);
		for (uint32_t i = 0; i < n; i++) {
			const uint8_t *p = b.x[i];
			uint8_t want[ROW];

			/* the row is known by its first byte and its slope: rebuild it */
			for (int k = 0; k < ROW; k++)
				want[k] = (uint8_t)(p[0] + k * (uint8_t)(p[1] - p[0]));
			right &= !memcmp(p, want, ROW);
		}
		first += n;
	}
	ok(right, "rows are whole");
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
	struct data_config config = config_of(0, 0, 0);
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
	test_int_labels();
	test_text_labels();
	test_weights();
	test_vectors();
	test_many_labels();
	test_predict(false);
	test_predict(true);
	test_spilled_batches();
	test_no_rows();
	test_convert();
	rmdir(spill_dir);
	data_decoder_free(decoder);
	return done();
}
