// SPDX-License-Identifier: MIT
/* bad_rows.c: rows that cannot be used: each with its reason, the others go on. */
#include "data_test.h"

static struct data_decoder *decoder;

static const char *bad_reason(struct data_set *data, const char *want_id)
{
	enum row_set set;
	const char *id, *reason;

	for (uint64_t i = 0; !data_bad_row(data, i, &set, &id, &reason); i++)
		if (!strcmp(id, want_id))
			return reason;
	return "(not there)";
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
	struct data_config config = config_of(decoder, 13, 17, 3);
	struct data_set *data = create_set(&config);
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
	struct data_config config = config_of(decoder, 2, 2, 1);
	struct data_set *data = create_set(&config);
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
	struct data_config config = config_of(decoder, 1, 1, 2);
	struct data_set *data = create_set(&config);
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

	data = create_set(&config);
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
	struct data_config config = config_of(decoder, 2, 2, 1);
	struct data_set *data;
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *f;
	struct data_counts counts;
	struct agree_block part;
	struct err err;
	int rc = 0;

	config.max_bad_rows = 2;
	data = create_set(&config);
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
	config = config_of(decoder, 0, 0, 0);
	config.max_bad_rows = 2;
	data = create_set(&config);
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
	data = create_set(&config);
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

/* Three images that end the decoder end the job. */
static void test_crashes(void)
{
	struct data_limits limits = {.workers = 1, .sandbox = true, .image_ms = 500};
	struct data_config config = config_of(decoder, 2, 2, 1);
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
	data = create_set(&config);
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
	test_bad_bytes();
	test_bad_values();
	test_range();
	test_limit();
	test_crashes();
	data_decoder_free(decoder);
	return done();
}
