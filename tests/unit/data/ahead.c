// SPDX-License-Identifier: MIT
/* ahead.c: readers for devices: what earlier batches point to stays for a while, and rows are named
 * by their place in the canonical order. */
#include "data_test.h"

#define SIDE 16
#define N 3000

static struct data_decoder *decoder;
static char spill_dir[64] = "/var/tmp/cnn-spill-XXXXXX";

static struct data_set *make(uint64_t memory, struct agree_block *part)
{
	struct data_config config = config_of(decoder, SIDE, SIDE, 3);
	struct data_feed feed = feed_of_bytes(ROW_TRAIN);
	struct data_set *data;
	struct data_feeder *f;
	uint8_t x[SIDE * SIDE * 3];
	uint64_t seed = 3;
	struct err err;

	config.memory = memory;
	config.spill_dir = spill_dir;
	data = create_set(&config);
	f = open_feed(data, &feed);
	for (int i = 0; i < N; i++) {
		for (size_t k = 0; k < sizeof(x); k++)
			x[k] = (uint8_t)next_random(&seed);
		if (feed_bytes(f, "r", i % 4, x, sizeof(x), &err))
			BAIL("%s", err.message);
	}
	*part = finish(data, f, 4);
	return data;
}

/* What two earlier batches point to is still there after the third. */
static void test_kept(struct data_set *data)
{
	struct data_reader *r, *once;
	struct backend_batch b[3], again;
	uint64_t hash[3][16];
	float weight[3][16];
	struct err err;
	bool same = true;

	if (data_reader_open(data, ROW_TRAIN, 16, true, &r, &err) ||
	    data_reader_open(data, ROW_TRAIN, 16, true, &once, &err))
		BAIL("%s", err.message);
	is(data_reader_keep(r, DATA_READER_KEEP + 1), -EINVAL, "too many batches to keep");
	is(data_reader_keep(r, 3), 0, "three batches are kept");
	data_reader_epoch(r, 5, 1);
	data_reader_epoch(once, 5, 1);
	for (uint32_t i = 0; i < 3; i++) {
		data_reader_batch(once, 16 * i, 16, &again, &err);
		memcpy(hash[i], again.hash, sizeof(hash[i]));
		memcpy(weight[i], again.weight, sizeof(weight[i]));
		data_reader_batch(r, 16 * i, 16, &b[i], &err);
		same &= !memcmp(again.x, b[i].x, 16 * sizeof(*again.x));
	}
	for (uint32_t i = 0; i < 3; i++)
		same &= !memcmp(b[i].hash, hash[i], sizeof(hash[i])) &&
			!memcmp(b[i].weight, weight[i], sizeof(weight[i]));
	ok(same, "and stay as they were, those of a reader that keeps one");
	data_reader_close(r);
	data_reader_close(once);
}

/* Rows by their numbers are the rows by their addresses. */
static void test_by_index(struct data_set *data)
{
	uint32_t n = (uint32_t)data_rows(data, ROW_TRAIN);
	struct data_reader *r, *plain, *canonical;
	struct backend_batch a, b, c;
	bool same = true;
	struct err err;

	if (data_reader_open(data, ROW_TRAIN, n, true, &r, &err) ||
	    data_reader_open(data, ROW_TRAIN, n, true, &plain, &err) ||
	    data_reader_open(data, ROW_TRAIN, n, false, &canonical, &err))
		BAIL("%s", err.message);
	is(data_reader_by_index(canonical), -EOPNOTSUPP, "rows by number are for epochs");
	is(data_reader_by_index(r), 0, "rows by number");
	data_reader_batch(canonical, 0, n, &c, &err);
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		data_reader_epoch(r, 5, epoch);
		data_reader_epoch(plain, 5, epoch);
		data_reader_batch(r, 0, n, &a, &err);
		data_reader_batch(plain, 0, n, &b, &err);
		same &= !a.x && a.index && !b.index;
		for (uint32_t i = 0; same && i < n; i++)
			same = a.index[i] < n && c.x[a.index[i]] == b.x[i] &&
			       a.hash[i] == b.hash[i];
	}
	ok(same, "are the rows of the same order");
	data_reader_close(r);
	data_reader_close(plain);
	data_reader_close(canonical);
}

int main(void)
{
	struct data_limits limits = {.workers = 1, .sandbox = true};
	struct agree_block part;
	struct data_set *data;
	struct data_reader *r;
	struct err err;

	if (data_decoder_create(&limits, &decoder, &err) || !mkdtemp(spill_dir))
		BAIL("cannot begin");
	data = make(64 << 20, &part);
	test_kept(data);
	test_by_index(data);
	agree_free(&part);
	data_free(data);
	data = make(1 << 20, &part);
	if (data_reader_open(data, ROW_TRAIN, 16, true, &r, &err))
		BAIL("%s", err.message);
	ok(data_spilled(data) && data_reader_keep(r, 2) == -EOPNOTSUPP &&
		   data_reader_by_index(r) == -EOPNOTSUPP,
	   "rows in the spill file are read as they come");
	data_reader_close(r);
	agree_free(&part);
	data_free(data);
	rmdir(spill_dir);
	data_decoder_free(decoder);
	return done();
}
