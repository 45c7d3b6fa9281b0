// SPDX-License-Identifier: MIT
/* feed.c: rows of every type; values that are malformed; columns that cannot be used. */
#include "data_test.h"

static struct data_decoder *decoder;

/* ---- element types ---- */

static void test_type(enum row_type type, enum backend_dtype dtype, const char *name)
{
	static const uint32_t dims[][6] = {
		{1, 12}, {3, 2, 3, 2}, {4, 1, 2, 3, 2}, /* count, then dimensions */
	};
	struct data_config config = config_of(decoder, 2, 3, 2);
	size_t element = row_type_bytes(type);
	struct data_set *data = create_set(&config);
	struct data_feed feed = {
		.x_type = type, .x_array = true, .y_type = ROW_I16, .has_y = true, .has_id = true};
	struct data_feeder *f = open_feed(data, &feed);
	struct data_reader *r;
	struct backend_batch batch;
	struct agree_block part;
	uint8_t x[12 * 8];
	uint64_t seed = 4;
	struct err err;
	bool same = true;

	for (size_t i = 0; i < 12; i++) { /* finite, whatever the type */
		float v = (float)(int8_t)next_random(&seed);
		double d = (double)v;

		if (type == ROW_F32)
			memcpy(x + 4 * i, &v, 4);
		else if (type == ROW_F64)
			memcpy(x + 8 * i, &d, 8);
		else
			for (size_t k = 0; k < element; k++)
				x[i * element + k] =
					type == ROW_BOOL ? i & 1 : (uint8_t)next_random(&seed);
	}
	for (size_t i = 0; i < 3; i++) {
		int16_t y = (int16_t)i;
		struct test_row row = {.id = "abc",
				       .y = &y,
				       .y_bytes = 2,
				       .x = x,
				       .x_bytes = 12 * element,
				       .weight = 1};

		row.x_dims = (uint8_t)dims[i][0];
		memcpy(row.dim, dims[i] + 1, 5 * sizeof(uint32_t));
		if (feed_row(f, &row, &err))
			BAIL("%s", err.message);
	}
	part = finish(data, f, 3);
	ok(part.rows[0] == 3 && part.dtype == dtype && data_dtype(data) == dtype,
	   "%s arrays of 1, 3 and 4 dimensions", name);
	data_reader_open(data, ROW_TRAIN, 3, false, &r, &err);
	data_reader_batch(r, 0, 3, &batch, &err);
	for (int i = 0; i < 3; i++)
		same &= !memcmp(batch.x[i], x, 12 * element);
	ok(same, "%s: as they came", name);
	data_reader_close(r);
	agree_free(&part);
	data_free(data);
}

/* Without a shape: 2-D is height x width, flat ones are squares of 1 or 3 channels. */
static void test_unknown_shape(void)
{
	static const struct {
		uint32_t dims, dim[4], h, w, c;
		size_t n;
	} t[] = {
		{2, {4, 5}, 4, 5, 1, 20},	{3, {4, 5, 2}, 4, 5, 2, 40},
		{4, {1, 4, 5, 3}, 4, 5, 3, 60}, {1, {49}, 7, 7, 1, 49},
		{1, {75}, 5, 5, 3, 75},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct data_config config = config_of(decoder, 0, 0, 0);
		struct data_set *data = create_set(&config);
		struct data_feed feed = {
			.x_type = ROW_I16, .x_array = true, .y_type = ROW_BOOL, .has_y = true};
		struct data_feeder *f = open_feed(data, &feed);
		int16_t x[75] = {0};
		uint8_t y = 1;
		struct test_row row = {.y = &y,
				       .y_bytes = 1,
				       .x = x,
				       .x_bytes = 2 * t[i].n,
				       .weight = 1,
				       .x_dims = (uint8_t)t[i].dims};
		struct agree_block part;
		struct err err;

		memcpy(row.dim, t[i].dim, sizeof(t[i].dim));
		feed_row(f, &row, &err);
		part = finish(data, f, 2);
		ok(part.h == t[i].h && part.w == t[i].w && part.c == t[i].c,
		   "%u dimensions, %zu elements: %ux%ux%u", t[i].dims, t[i].n, part.h, part.w,
		   part.c);
		agree_free(&part);
		data_free(data);
	}
}

/* ---- malformed values, wrong types ---- */

static void test_malformed(void)
{
	struct data_config config = config_of(decoder, 2, 2, 1);
	struct data_set *data = create_set(&config);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *f = open_feed(data, &feed);
	int32_t y = 1;
	struct test_row row = {.y = &y, .y_bytes = 4, .x = "1234", .x_bytes = 4, .weight = 1};
	struct bytes b = row_value(&row);
	struct data_counts counts;
	void *place;
	struct err err;
	int rc;

	is(data_feeder_row_end(f, &err), -EINVAL, "an end without a row");
	is(data_feeder_row(f, 10, &place, &err), -EPROTO, "shorter than a head");
	is(feed_value(f, b.data, b.n - 1, &err), -EPROTO, "parts that do not add up");
	row.y_bytes = 3;
	is(feed_row(f, &row, &err), -EPROTO, "an integer of 3 bytes");
	row.y_bytes = 4;
	row.x_dims = 1;
	row.dim[0] = 4;
	is(feed_row(f, &row, &err), -EPROTO, "bytea with dimensions");
	row.x_dims = 0;
	row.dim[0] = 0;
	/* every byte of the head set to every power of two: an error or a row, nothing else */
	for (size_t i = 0; i < ROW_HEAD; i++)
		for (int bit = 0; bit < 8; bit++) {
			struct bytes c = row_value(&row);

			c.data[i] ^= (uint8_t)(1 << bit);
			rc = feed_value(f, c.data, c.n, &err);
			if (rc && rc != -EPROTO)
				ok(false, "byte %zu: %d", i, rc);
			free(c.data);
		}
	ok(true, "512 damaged heads");
	is(data_feeder_close(f, &counts, &err), -ECANCELED, "a feed with an error is not whole");
	data_free(data);
	free(b.data);

	data = create_set(&config);
	feed = (struct data_feed){
		.x_type = ROW_F32, .x_array = true, .y_type = ROW_I32, .has_y = true};
	f = open_feed(data, &feed);
	row.x_bytes = 16;
	row.x = "1234123412341234";
	row.x_dims = 1;
	row.dim[0] = 5;
	is(feed_row(f, &row, &err), -EPROTO, "dimensions that are not the bytes");
	row.x_dims = 4;
	row.dim[0] = row.dim[1] = row.dim[2] = row.dim[3] = 0x10000;
	is(feed_row(f, &row, &err), -EPROTO, "a product of dimensions that overflows");
	data_feeder_abort(f);
	data_free(data);
}

static void refused(struct data_feed feed, bool regression, const char *what)
{
	struct data_config config = config_of(decoder, 2, 2, 1);
	struct data_set *data;
	struct data_feeder *f;
	struct err err;
	int rc;

	config.regression = regression;
	data = create_set(&config);
	rc = data_feeder_open(data, &feed, &f, &err);
	if (!ok(rc && err.kind == ERR_DATA && strstr(err.message, what), "%s is refused", what))
		printf("# %s\n", rc ? err.message : "taken");
	if (!rc)
		data_feeder_abort(f);
	data_free(data);
}

static void test_types(void)
{
	struct data_feed f = feed_of_bytes(ROW_TRAIN);
	struct data_config config = config_of(decoder, 2, 2, 1);
	struct data_set *data;
	struct data_feeder *a, *b;
	struct agree_block part;
	struct err err;

	f.x_array = true;
	refused(f, false, "bytea[]");
	f.x_type = ROW_I64;
	refused(f, false, "bigint[]");
	f.x_type = ROW_TEXT;
	f.x_array = false;
	refused(f, false, "images are text");
	f.x_type = ROW_F32;
	refused(f, false, "images are real");
	f = feed_of_bytes(ROW_TRAIN);
	f.y_type = ROW_BYTES;
	refused(f, false, "labels are bytea");
	f.y_type = ROW_TEXT;
	f.y_array = true;
	refused(f, false, "text[]");
	f.y_array = false;
	refused(f, true, "labels are text, which cannot be used for a regression");
	f.has_y = false;
	refused(f, false, "no column of labels");

	data = create_set(&config);
	f = feed_of_bytes(ROW_TRAIN);
	a = open_feed(data, &f);
	f.set = ROW_VALIDATION;
	f.y_type = ROW_TEXT;
	ok(data_feeder_open(data, &f, &b, &err) && strstr(err.message, "different kinds"),
	   "text labels beside integers are refused");
	f.y_type = ROW_I64;
	f.x_type = ROW_I16;
	f.x_array = true;
	ok(data_feeder_open(data, &f, &b, &err) && strstr(err.message, "different types"),
	   "arrays beside bytea are refused");
	ok(data_collect(data, &part, &err) == -EINVAL, "collect wants all feeders closed");
	data_feeder_abort(a);
	data_free(data);
}

int main(void)
{
	struct data_limits limits = {.workers = 2, .sandbox = true};
	struct err err;

	if (data_decoder_create(&limits, &decoder, &err))
		BAIL("%s", err.message);
	test_type(ROW_BOOL, BACKEND_U8, "boolean");
	test_type(ROW_I16, BACKEND_I16, "smallint");
	test_type(ROW_I32, BACKEND_I32, "integer");
	test_type(ROW_F32, BACKEND_F32, "real");
	test_type(ROW_F64, BACKEND_F64, "double precision");
	test_unknown_shape();
	test_malformed();
	test_types();
	data_decoder_free(decoder);
	return done();
}
