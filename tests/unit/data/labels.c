// SPDX-License-Identifier: MIT
/* labels.c: labels to classes, targets, weights, and the errors that name a row. */
#include "data_test.h"

static struct data_decoder *decoder; /* none: rows are raw pixels */

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
	static const int32_t edge[] = {0, 1, 2, 3};
	struct data_config config = config_of(decoder, 2, 2, 1);
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

	l = ints(edge, 4);
	data = feed_labels(&config, &l, ROW_TRAIN, &err);
	is(apply(data, 3, &agreed, &err), -ERANGE, "labels 0..3, three outputs");
	like(err.message, "row row3: label 3 is outside 0..2", "the first one too many");
	agree_free(&agreed);
	data_free(data);
}

static void test_text_labels(void)
{
	static const char *const v[] = {"cat", "dog", "bird", "cat", ""};
	static const char *const other[] = {"cat", "worm"};
	struct data_config config = config_of(decoder, 2, 2, 1);
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
	struct data_config config = config_of(decoder, 2, 2, 1);
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
	struct data_config config = config_of(decoder, 2, 2, 1);
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
	struct data_config config = config_of(decoder, 2, 2, 1);
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

int main(void)
{
	test_int_labels();
	test_text_labels();
	test_weights();
	test_vectors();
	test_many_labels();
	return done();
}
