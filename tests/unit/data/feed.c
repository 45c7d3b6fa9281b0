// SPDX-License-Identifier: MIT
/*
 * feed.c: rows of every type, and rows that cannot be used: each with its reason, the others go on.
 */
#include "data_test.h"

static struct data_decoder *decoder;

static struct data_config config_of(uint32_t h, uint32_t w, uint32_t c)
{
	return (struct data_config){.decoder = decoder,
				    .memory = 64 << 20,
				    .shape = {h, w, c},
				    .max_bad_rows = 1000,
				    .need_labels = true};
}

static struct data_set *create(const struct data_config *config)
{
	struct data_set *data;
	struct err err;

	if (data_create(config, &data, &err))
		BAIL("%s", err.message);
	return data;
}

static struct data_feeder *open_feed(struct data_set *data, const struct data_feed *feed)
{
	struct data_feeder *f;
	struct err err;

	if (data_feeder_open(data, feed, &f, &err))
		BAIL("%s", err.message);
	return f;
}

/* close, collect, apply; BAILs on an error. */
static struct agree_block finish(struct data_set *data, struct data_feeder *f, uint32_t outputs)
{
	struct agree_block part, agreed;
	struct data_counts counts;
	struct err err;

	if (data_feeder_close(f, &counts, &err) || data_collect(data, &part, &err))
		BAIL("%s", err.message);
	agreed = agreed_alone(&part);
	if (data_apply(data, &agreed, outputs, &err))
		BAIL("%s", err.message);
	return part;
}

static const char *bad_reason(struct data_set *data, const char *want_id)
{
	enum row_set set;
	const char *id, *reason;

	for (uint64_t i = 0; !data_bad_row(data, i, &set, &id, &reason); i++)
		if (!strcmp(id, want_id))
			return reason;
	return "(not there)";
}

/* ---- element types ---- */

static void test_type(enum row_type type, enum backend_dtype dtype, const char *name)
{
	static const uint32_t dims[][6] = {
		{1, 12}, {3, 2, 3, 2}, {4, 1, 2, 3, 2}, /* count, then dimensions */
	};
	struct data_config config = config_of(2, 3, 2);
	size_t element = row_type_bytes(type);
	struct data_set *data = create(&config);
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
		struct data_config config = config_of(0, 0, 0);
		struct data_set *data = create(&config);
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

/* ---- bytea ---- */

static void test_bad_bytes(void)
{
	static const char *const good[] = {"rgb.png",  "grey8.png",   "cmyk.jpg",	"rgb16.png",
					   "rgba.png", "palette.png", "progressive.jpg"};
	static const struct {
		const char *file, *reason;
	} named[] = {
		{"picture.bmp", "image is BMP: only JPEG, PNG and raw pixels are read"},
		{"picture.gif", "image is GIF:"},
		{"picture.webp", "image is WebP:"},
		{"picture.tiff", "image is TIFF:"},
	};
	struct data_config config = config_of(13, 17, 3);
	struct data_set *data = create(&config);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *f = open_feed(data, &feed);
	struct bytes png = file_read(GOLDEN, "rgb.png"), jpg = file_read(GOLDEN, "rgb444.jpg");
	uint8_t raw[13 * 17 * 3], *other = malloc(20 * 20 * 3);
	struct bytes wrong;
	struct data_counts counts;
	struct agree_block part;
	struct err err;

	memset(raw, 7, sizeof(raw));
	memset(other, 1, 20 * 20 * 3);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct bytes b = file_read(GOLDEN, good[i]);

		feed_bytes(f, good[i], 1, b.data, b.n, &err);
		free(b.data);
	}
	feed_bytes(f, "raw", 0, raw, sizeof(raw), &err);
	raw[0] = 'B'; /* looks like BMP, but has the size of pixels */
	raw[1] = 'M';
	feed_bytes(f, "raw BM", 0, raw, sizeof(raw), &err);
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
		struct bytes b = file_read(GOLDEN, named[i].file);

		feed_bytes(f, named[i].file, 1, b.data, b.n, &err);
		free(b.data);
	}
	feed_bytes(f, "empty", 1, "", 0, &err);
	feed_bytes(f, "short", 1, other, 100, &err);
	feed_bytes(f, "cut png", 1, png.data, png.n / 2, &err);
	feed_bytes(f, "cut jpg", 1, jpg.data, jpg.n / 2, &err);
	png.data[16] = png.data[20] = 0; /* 500 megapixels in the header */
	png.data[18] = 25000 >> 8;
	png.data[19] = 25000 & 255;
	png.data[22] = 20000 >> 8;
	png.data[23] = 20000 & 255;
	feed_bytes(f, "huge", 1, png.data, png.n, &err);
	wrong = make_png(20, 20, PNG_COLOR_TYPE_RGB, false, other);
	feed_bytes(f, "other size", 1, wrong.data, wrong.n, &err);
	is(data_feeder_close(f, &counts, &err), 0, "bad rows do not end the feed");
	ok(counts.rows == 19 && counts.held == 9 && counts.bad == 10,
	   "%llu rows, %llu held, "
	   "%llu bad",
	   (unsigned long long)counts.rows, (unsigned long long)counts.held,
	   (unsigned long long)counts.bad);
	is(data_collect(data, &part, &err), 0, "collect");
	ok(part.rows[0] == 9 && part.bad[0] == 10 && part.sent[0] == 19, "told to the others");
	for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		like(bad_reason(data, named[i].file), named[i].reason, named[i].file);
	like(bad_reason(data, "empty"), "image is empty", "zero bytes");
	like(bad_reason(data, "short"), "image has 100 bytes and is no JPEG or PNG, wanted 13x17x3",
	     "too few bytes");
	like(bad_reason(data, "cut png"), "image is a damaged or unsupported PNG: ends early",
	     "a truncated PNG");
	like(bad_reason(data, "cut jpg"), "image is a damaged or unsupported JPEG",
	     "a truncated JPEG");
	like(bad_reason(data, "huge"), "image is 25000x20000: more than max_image_pixels",
	     "500 megapixels");
	like(bad_reason(data, "other size"), "image is 20x20, wanted 17x13 (width x height)",
	     "another size");
	agree_free(&part);
	data_free(data);
	free(png.data);
	free(jpg.data);
	free(wrong.data);
	free(other);
}

/* ---- NULL, NaN, weights, arrays ---- */

static void test_bad_values(void)
{
	struct data_config config = config_of(2, 2, 1);
	struct data_set *data = create(&config);
	struct data_feed feed = {.x_type = ROW_F32,
				 .x_array = true,
				 .y_type = ROW_F32,
				 .y_array = true,
				 .has_y = true,
				 .has_id = true,
				 .has_weight = true,
				 .segindex = 3,
				 .feeder = 2};
	struct data_feeder *f = open_feed(data, &feed);
	float x[6] = {1, 2, 3, 4, 5, 6}, y[2] = {0, 1};
	struct test_row good = {.y = y,
				.y_bytes = 8,
				.y_dims = 1,
				.x = x,
				.x_bytes = 16,
				.x_dims = 1,
				.dim = {4},
				.weight = 1,
				.id = "good"},
			r;
	struct agree_block part;
	struct err err;

	feed_row(f, &good, &err);
	r = good;
	r.id = "x null";
	r.flags = ROW_X_NULL;
	r.x_bytes = 0;
	r.x_dims = 0;
	r.dim[0] = 0;
	feed_row(f, &r, &err);
	r = good;
	r.id = "y null";
	r.flags = ROW_Y_NULL;
	r.y_bytes = 0;
	feed_row(f, &r, &err);
	r = good;
	r.id = "w null";
	r.flags = ROW_W_NULL;
	feed_row(f, &r, &err);
	r = good;
	r.id = "element null";
	r.flags = ROW_ARRAY_NULL;
	feed_row(f, &r, &err);
	r = good;
	r.id = "w negative";
	r.weight = -1;
	feed_row(f, &r, &err);
	r.id = "w nan";
	r.weight = NAN;
	feed_row(f, &r, &err);
	r.id = NULL; /* numbered by the daemon */
	r.weight = INFINITY;
	feed_row(f, &r, &err);
	r = good;
	r.id = "zero weight";
	r.weight = 0;
	feed_row(f, &r, &err);
	r = good;
	r.id = "x nan";
	x[2] = NAN;
	feed_row(f, &r, &err);
	r.id = "x inf";
	x[2] = -INFINITY;
	feed_row(f, &r, &err);
	x[2] = 1e30f;
	r.id = "x large";
	feed_row(f, &r, &err);
	r.id = "y nan";
	y[1] = NAN;
	feed_row(f, &r, &err);
	y[1] = 1;
	r.id = "2x3";
	r.x_dims = 2;
	r.dim[0] = 2;
	r.dim[1] = 3;
	r.x_bytes = 24;
	feed_row(f, &r, &err);
	r.id = "six";
	r.x_dims = 1;
	r.dim[0] = 6;
	r.dim[1] = 0;
	feed_row(f, &r, &err);
	r.id = "none";
	r.x_dims = 0;
	r.dim[0] = 0;
	r.x_bytes = 0;
	feed_row(f, &r, &err);
	r = good;
	r.id = "y none";
	r.y_bytes = 0;
	r.y_dims = 0;
	feed_row(f, &r, &err);
	part = finish(data, f, 2);
	is(part.rows[0], 3, "good, zero weight, large");
	is_str(bad_reason(data, "x null"), "image is NULL", "NULL image");
	is_str(bad_reason(data, "y null"), "label is NULL", "NULL label");
	is_str(bad_reason(data, "w null"), "weight is NULL", "NULL weight");
	is_str(bad_reason(data, "element null"), "an array has a NULL element", "NULL element");
	like(bad_reason(data, "w negative"), "weight is -1", "negative weight");
	like(bad_reason(data, "w nan"), "weight is nan", "NaN weight");
	like(bad_reason(data, "(3,2,7)"), "weight is inf", "a row without id has a number");
	is_str(bad_reason(data, "x nan"), "element 3 is NaN", "NaN pixel");
	is_str(bad_reason(data, "x inf"), "element 3 is infinite", "infinite pixel");
	like(bad_reason(data, "y nan"), "element 2 of the label array is nan", "NaN target");
	is_str(bad_reason(data, "2x3"), "array is 2x3, wanted 2x2x1", "wrong dimensions");
	is_str(bad_reason(data, "six"), "array has 6 elements, wanted 2x2x1", "wrong length");
	is_str(bad_reason(data, "none"), "image is empty", "empty array");
	is_str(bad_reason(data, "y none"), "label array is empty", "empty label array");
	agree_free(&part);
	data_free(data);
}

/* Doubles that f32 cannot hold. */
static void test_range(void)
{
	struct data_config config = config_of(1, 1, 2);
	struct data_set *data = create(&config);
	struct data_feed feed = {.x_type = ROW_F64,
				 .x_array = true,
				 .y_type = ROW_F64,
				 .has_y = true,
				 .has_id = true};
	struct data_feeder *f = open_feed(data, &feed);
	double x[2] = {1, 1e300}, y = 3;
	struct test_row r = {.y = &y,
			     .y_bytes = 8,
			     .x = x,
			     .x_bytes = 16,
			     .x_dims = 1,
			     .dim = {2},
			     .weight = 1,
			     .id = "range"};
	struct agree_block part;
	struct err err;

	feed_row(f, &r, &err);
	x[1] = 1;
	feed_row(f, &r, &err);
	y = NAN;
	r.id = "label nan";
	feed_row(f, &r, &err);
	part = finish(data, f, 1);
	like(bad_reason(data, "range"), "element 2 is 1e+300, out of the range of real",
	     "out of range");
	is_str(bad_reason(data, "label nan"), "label is NaN", "NaN label");
	ok(part.labels == AGREE_INT && part.n_labels == 1, "whole doubles are class labels");
	agree_free(&part);
	data_free(data);

	data = create(&config);
	f = open_feed(data, &feed);
	y = 2.5;
	r.id = "row 7";
	ok(feed_row(f, &r, &err) && err.kind == ERR_DATA, "a label of 2.5 ends the feed");
	like(err.message, "row row 7: label 2.5 is not a whole number", "names row and value");
	data_feeder_abort(f);
	data_free(data);
}

static void test_limit(void)
{
	struct data_config config = config_of(2, 2, 1);
	struct data_set *data;
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *f;
	struct data_counts counts;
	struct agree_block part;
	struct err err;
	int rc = 0;

	config.max_bad_rows = 2;
	data = create(&config);
	f = open_feed(data, &feed);
	for (int i = 0; i < 3 && !rc; i++)
		rc = feed_bytes(f, i == 0 ? "a" : i == 1 ? "b" : "c", 0, "xyz", 3, &err);
	ok(rc == -EBADMSG && err.kind == ERR_DATA, "the third bad row of max_bad_rows = 2");
	like(err.message, "3 rows cannot be used, max_bad_rows is 2; row c: image has 3 bytes",
	     "says why");
	data_feeder_abort(f);
	ok(data_collect(data, &part, &err) && err.kind == ERR_DATA,
	   "a feed that was cut off cannot be trained on");
	data_free(data);

	/* sizes: the third that is not of the most frequent size, while feeding already */
	config = config_of(0, 0, 0);
	config.max_bad_rows = 2;
	data = create(&config);
	f = open_feed(data, &feed);
	for (int i = 0; i < 600; i++) {
		uint8_t x[100] = {0};
		int side = i < 300 ? 2 : 3 + i % 5;

		rc = feed_bytes(f, NULL, 0, x, (size_t)(side * side), &err);
		if (rc)
			break;
	}
	ok(rc == -EBADMSG, "images of many sizes end the feed before it is over");
	like(err.message, "more than max_bad_rows = 2 are not of the most frequent one", "says so");
	data_feeder_abort(f);
	data_free(data);

	config.max_bad_rows = 5;
	data = create(&config);
	f = open_feed(data, &feed);
	for (int i = 0; i < 20; i++) {
		uint8_t x[100] = {0};
		char id[16];

		snprintf(id, sizeof(id), "%d", i);
		feed_bytes(f, id, 0, x, i % 5 ? 16 : 9, &err);
	}
	is(data_feeder_close(f, &counts, &err), 0, "some of another size are kept for now");
	is(data_collect(data, &part, &err), 0, "and are bad rows once the shape is known");
	ok(part.h == 4 && part.rows[0] == 16 && part.bad[0] == 4, "the most frequent size wins");
	like(bad_reason(data, "5"), "image is 3x3x1, wanted 4x4x1", "the others say why");
	agree_free(&part);
	data_free(data);
}

/* ---- malformed values, wrong types ---- */

static void test_malformed(void)
{
	struct data_config config = config_of(2, 2, 1);
	struct data_set *data = create(&config);
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

	data = create(&config);
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
	struct data_config config = config_of(2, 2, 1);
	struct data_set *data;
	struct data_feeder *f;
	struct err err;
	int rc;

	config.regression = regression;
	data = create(&config);
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
	struct data_config config = config_of(2, 2, 1);
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

	data = create(&config);
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

/* Three images that end the decoder end the job. */
static void test_crashes(void)
{
	struct data_limits limits = {.workers = 1, .sandbox = true, .image_ms = 500};
	struct data_config config = config_of(2, 2, 1);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_decoder *evil;
	struct data_set *data;
	struct data_feeder *f;
	struct data_counts counts;
	struct err err;
	int rc = 0;

	if (decoder_create(&limits, true, &evil, &err))
		BAIL("%s", err.message);
	config.decoder = evil;
	data = create(&config);
	f = open_feed(data, &feed);
	for (int i = 0; i < 20 && !rc; i++)
		rc = feed_bytes(f, "good", 1, "1234", 4, &err);
	rc = feed_bytes(f, "e1", 1, "CNNTEST:crash", 13, &err);
	if (!rc)
		rc = feed_bytes(f, "e2", 1, "CNNTEST:open", 12, &err);
	ok(!rc, "two are quarantined");
	rc = feed_bytes(f, "e3", 1, "CNNTEST:hang", 12, &err);
	if (!rc)
		rc = data_feeder_close(f, &counts, &err);
	else
		data_feeder_abort(f);
	ok(rc == -EBADMSG && err.kind == ERR_DATA, "the third ends the job");
	like(err.message, "3 images ended or hung the decoder", "says so");
	like(bad_reason(data, "e1"), "image ended the decoder with signal", "with the signal");
	data_free(data);
	data_decoder_free(evil);
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
	test_bad_bytes();
	test_bad_values();
	test_range();
	test_limit();
	test_malformed();
	test_types();
	test_crashes();
	data_decoder_free(decoder);
	return done();
}
