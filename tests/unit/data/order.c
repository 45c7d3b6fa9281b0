// SPDX-License-Identifier: MIT
/*
 * order.c: the same rows give the same training, however they arrive: other order, 1, 2, 4 feeders
 * at once, in memory or spilled, with other ids. And an epoch's order is a fresh one that depends
 * on seed, epoch and rows alone.
 */
#include <pthread.h>

#include "data_test.h"
#include "../../../userspace/data/set.h"

#define N 3000
#define SIDE 12

static struct data_decoder *decoder;
static char spill_dir[64] = "/var/tmp/cnn-spill-XXXXXX";

/* The rows: raw pixels, PNG and JPEG; grey and colour; some equal; some bad. */
static struct {
	struct bytes x;
	int32_t y;
	double weight;
} rows[N];

static void make_rows(void)
{
	uint64_t seed = 11;
	uint8_t p[SIDE * SIDE * 3];
	struct jpeg_spec jpeg = {SIDE, SIDE, 3, JCS_RGB, JCS_YCbCr, false, 90, 0, NULL, false};

	for (int i = 0; i < N; i++) {
		for (size_t k = 0; k < sizeof(p); k++)
			p[k] = (uint8_t)next_random(&seed);
		rows[i].y = i % 10;
		rows[i].weight = 1 + i % 3;
		if (i % 10 == 3) { /* equal to an earlier one in all but its place */
			rows[i] = rows[i - 1];
		} else if (i % 10 == 4 || i % 10 == 6) { /* equal pixels, other label or weight */
			rows[i].x = rows[i - 1].x;
			rows[i].y = i % 10 == 4 ? 5 : rows[i - 1].y;
			rows[i].weight = i % 10 == 6 ? 7 : rows[i - 1].weight;
		} else if (i % 50 == 7) {
			rows[i].x = (struct bytes){memcpy(malloc(9), "no image", 9), 9};
		} else if (i % 5 == 0) {
			rows[i].x = make_png(SIDE, SIDE, PNG_COLOR_TYPE_RGB, false, p);
		} else if (i % 5 == 1) {
			rows[i].x = make_png(SIDE, SIDE, PNG_COLOR_TYPE_GRAY, false, p);
		} else if (i % 5 == 2) {
			rows[i].x = make_jpeg(&jpeg, p);
		} else {
			rows[i].x.n = sizeof(p);
			rows[i].x.data = memcpy(malloc(sizeof(p)), p, sizeof(p));
		}
	}
}

struct plan {
	uint32_t feeders, step; /* step: rows are taken in the order i * step mod N */
	uint64_t memory, seed;
	struct backend_shape shape;
	double fraction;
	bool spill;
	const char *ids;
};

struct feeding {
	struct data_set *data;
	const struct plan *plan;
	uint32_t number;
};

static void *feed(void *context)
{
	struct feeding *g = context;
	struct data_feed f = feed_of_bytes(ROW_TRAIN);
	struct data_feeder *feeder;
	struct data_counts counts;
	struct err err;
	int rc;

	f.feeder = g->number;
	f.has_weight = true;
	f.has_id = g->plan->ids;
	rc = data_feeder_open(g->data, &f, &feeder, &err);
	for (uint32_t i = g->number; i < N && !rc; i += g->plan->feeders) {
		uint32_t at = (uint32_t)((uint64_t)i * g->plan->step % N);
		struct test_row r = {.y = &rows[at].y,
				     .y_bytes = 4,
				     .x = rows[at].x.data,
				     .x_bytes = rows[at].x.n,
				     .weight = rows[at].weight};
		char id[40];

		if (g->plan->ids) {
			snprintf(id, sizeof(id), "%s%u", g->plan->ids, at);
			r.id = id;
		}
		rc = feed_row(feeder, &r, &err);
	}
	if (!rc)
		rc = data_feeder_close(feeder, &counts, &err);
	if (rc)
		BAIL("%s", err.message);
	return NULL;
}

static struct data_set *run(const struct plan *plan, struct agree_block *part)
{
	struct data_config config = {.decoder = decoder,
				     .memory = plan->memory,
				     .spill_dir = plan->spill ? spill_dir : NULL,
				     .shape = plan->shape,
				     .max_bad_rows = N,
				     .need_labels = true,
				     .validation_fraction = plan->fraction,
				     .seed = plan->seed};
	struct feeding g[8];
	pthread_t thread[8];
	struct data_set *data;
	struct agree_block agreed;
	struct err err;

	if (data_create(&config, &data, &err))
		BAIL("%s", err.message);
	for (uint32_t i = 0; i < plan->feeders; i++) {
		g[i] = (struct feeding){data, plan, i};
		pthread_create(&thread[i], NULL, feed, &g[i]);
	}
	for (uint32_t i = 0; i < plan->feeders; i++)
		pthread_join(thread[i], NULL);
	if (data_collect(data, part, &err))
		BAIL("%s", err.message);
	agreed = agreed_alone(part);
	if (data_apply(data, &agreed, 10, &err))
		BAIL("%s", err.message);
	return data;
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n--)
		h = (h ^ *b++) * 0x100000001b3ull; /* FNV-1a */
	return h;
}

/* Everything a training sees of one pass: pixels, labels, weights, keys of augmentation. */
static uint64_t pass(struct data_set *data, enum row_set set, bool shuffle, uint64_t seed,
		     uint32_t epoch, uint32_t batch_rows)
{
	struct backend_shape s = data_shape(data);
	uint64_t h = 0xcbf29ce484222325ull, n = data_rows(data, set);
	struct data_reader *r;
	struct backend_batch b = {0};
	struct err err;

	if (data_reader_open(data, set, batch_rows, shuffle, &r, &err))
		BAIL("%s", err.message);
	data_reader_epoch(r, seed, epoch);
	for (uint64_t first = 0; first < n; first += batch_rows) {
		uint32_t m = n - first < batch_rows ? (uint32_t)(n - first) : batch_rows;

		if (data_reader_batch(r, first, m, &b, &err))
			BAIL("%s", err.message);
		for (uint32_t i = 0; i < m; i++)
			h = mix(h, b.x[i], (size_t)s.h * s.w * s.c);
		h = mix(h, b.label, m * sizeof(*b.label));
		h = mix(h, b.weight, m * sizeof(*b.weight));
		h = mix(h, b.hash, m * sizeof(*b.hash));
		h = mix(h, b.target, m * data->outputs * sizeof(*b.target));
	}
	data_reader_close(r);
	return h;
}

static bool equal_parts(const struct agree_block *a, const struct agree_block *b)
{
	bool same = !memcmp(a->rows, b->rows, sizeof(a->rows)) &&
		    !memcmp(a->bad, b->bad, sizeof(a->bad)) && a->n_labels == b->n_labels &&
		    a->n_channels == b->n_channels && a->pixels == b->pixels && a->h == b->h &&
		    a->w == b->w && a->c == b->c;

	for (uint32_t i = 0; same && i < a->n_labels; i++)
		same = a->label[i].count == b->label[i].count &&
		       a->label[i].bytes == b->label[i].bytes &&
		       !memcmp(a->label[i].value, b->label[i].value, a->label[i].bytes);
	for (uint32_t c = 0; same && c < a->n_channels; c++)
		same = a->sum[c] == b->sum[c] && a->sum2[c] == b->sum2[c];
	return same;
}

static void test_arrival(struct backend_shape shape, double fraction, const char *name)
{
	const uint64_t all = 256 << 20, few = 1 << 20;
	const struct plan plans[] = {
		{1, 1, all, 0, shape, fraction, false, ""},
		{1, 1699, all, 0, shape, fraction, false, "z"},
		{2, 7, all, 0, shape, fraction, false, ""},
		{4, 1, all, 0, shape, fraction, false, NULL},
		{4, 2111, few, 0, shape, fraction, true, ""},
		{1, 1, few, 0, shape, fraction, true, ""},
	};
	struct agree_block first, part;
	uint64_t want[4], got[4];

	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		struct data_set *data = run(&plans[i], i ? &part : &first);

		got[0] = pass(data, ROW_TRAIN, false, 0, 0, 100);
		got[1] = pass(data, ROW_TRAIN, true, 42, 0, 64);
		got[2] = pass(data, ROW_TRAIN, true, 42, 1, 37);
		got[3] = pass(data, ROW_VALIDATION, false, 0, 0, 50);
		if (!i) {
			memcpy(want, got, sizeof(want));
			ok(first.rows[0] + first.rows[1] == N - N / 50,
			   "%s: all good rows are held", name);
			ok(fraction > 0 ? first.rows[1] > 200 && first.rows[1] < 500
					: !first.rows[1],
			   "%s: %llu rows for validation", name, (unsigned long long)first.rows[1]);
		} else {
			ok(equal_parts(&first, &part),
			   "%s: counts, labels and sums with %u feeders, step %u%s", name,
			   plans[i].feeders, plans[i].step, plans[i].spill ? ", spilled" : "");
			ok(!memcmp(want, got, sizeof(want)), "%s: every pass is equal to the bit",
			   name);
			agree_free(&part);
		}
		if (plans[i].spill)
			ok(data_spilled(data) > 0, "rows were spilled");
		data_free(data);
	}
	agree_free(&first);
}

/* Sums and counts against plain loops over the rows that were made. */
static void test_sums(void)
{
	const struct plan plan = {2, 1, 256 << 20, 0, {SIDE, SIDE, 3}, .1, false, ""};
	struct agree_block part;
	struct data_set *data = run(&plan, &part);
	uint64_t sum[3] = {0}, sum2[3] = {0}, count[10] = {0}, n = data_rows(data, ROW_TRAIN);
	struct data_reader *r;
	struct backend_batch b;
	struct err err;
	bool right = true;

	data_reader_open(data, ROW_TRAIN, 1, false, &r, &err);
	for (uint64_t i = 0; i < n; i++) {
		data_reader_batch(r, i, 1, &b, &err);
		for (size_t k = 0; k < SIDE * SIDE * 3; k++) {
			uint32_t v = ((const uint8_t *)b.x[0])[k];

			sum[k % 3] += v;
			sum2[k % 3] += v * v;
		}
		count[b.label[0]]++;
	}
	for (int c = 0; c < 3; c++)
		right &= part.sum[c] == (double)sum[c] && part.sum2[c] == (double)sum2[c];
	ok(right && part.n_channels == 3 && part.pixels == n * SIDE * SIDE, "sums of all pixels");
	for (uint32_t i = 0; i < part.n_labels; i++) {
		int64_t v;

		memcpy(&v, part.label[i].value, 8);
		/* 3, 4, 6 never occur: those rows are copies of others */
		right &= v == (int64_t[]){0, 1, 2, 5, 7, 8, 9}[i % 7] &&
			 part.label[i].count == count[i];
	}
	ok(right && part.n_labels == 7, "labels in order, with their counts");
	data_reader_close(r);
	agree_free(&part);
	data_free(data);
}

/* How far apart are equal rows in an epoch, and is every row there once? */
static void test_epochs(void)
{
	const struct plan plan = {1, 1, 256 << 20, 0, {SIDE, SIDE, 3}, 0, false, ""};
	struct agree_block part;
	struct data_set *data = run(&plan, &part);
	uint32_t n = (uint32_t)data_rows(data, ROW_TRAIN), neighbours = 0, moved = 0, equal = 0;
	uint64_t *hash = malloc(2 * n * sizeof(*hash));
	char(*id)[16] = malloc(n * sizeof(*id));
	uint8_t *seen = calloc(N, 1);
	struct data_reader *r;
	struct backend_batch b;
	struct err err;
	bool once = true;

	data_reader_open(data, ROW_TRAIN, n, true, &r, &err);
	for (uint32_t epoch = 0; epoch < 2; epoch++) {
		data_reader_epoch(r, 5, epoch);
		data_reader_batch(r, 0, n, &b, &err);
		memcpy(hash + epoch * n, b.hash, n * sizeof(*hash));
		for (uint32_t i = 0; i < n; i++) {
			uint32_t bytes;
			const char *p = data_reader_id(r, i, &bytes);

			snprintf(id[i], sizeof(*id), "%.*s", (int)bytes, p);
			once &= atoi(id[i]) < N && !(seen[atoi(id[i])] >> epoch & 1);
			seen[atoi(id[i])] |= (uint8_t)(1 << epoch);
			if (i && !memcmp(b.x[i], b.x[i - 1], SIDE * SIDE * 3))
				neighbours++;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		moved += hash[i] != hash[n + i];
	ok(once, "every row once in each epoch");
	ok(moved > n - 20, "another epoch is another order (%u of %u rows moved)", moved, n);
	ok(neighbours < 10, "equal rows are not put next to each other (%u pairs are)", neighbours);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = i + 1; k < n; k++)
			equal += hash[i] == hash[k];
	is(equal, 0, "equal rows have keys of their own: they are augmented apart");
	ok(pass(data, ROW_TRAIN, true, 5, 0, 64) != pass(data, ROW_TRAIN, true, 6, 0, 64),
	   "another seed is another order");
	data_reader_close(r);
	/* first of the order against the formula: sort by philox(seed, epoch, hash) */
	{
		uint64_t best = UINT64_MAX, best_hash = 0;

		for (uint32_t i = 0; i < n; i++) {
			uint64_t h = set_row(data, data->order[ROW_TRAIN][i])->hash[0];
			const uint32_t counter[4] = {(uint32_t)h, (uint32_t)(h >> 32), 1,
						     BACKEND_RANDOM_ORDER};
			const uint32_t key[2] = {5, 0};
			uint32_t word[4];

			backend_philox(counter, key, word);
			if (((uint64_t)word[0] << 32 | word[1]) < best) {
				best = (uint64_t)word[0] << 32 | word[1];
				best_hash = h;
			}
		}
		ok(best_hash == hash[n], "the first row of an epoch is the one philox says");
	}
	agree_free(&part);
	data_free(data);
	free(hash);
	free(id);
	free(seen);
}

/* A channel count that is not known: the most frequent wins, the others are converted. */
static void test_channels(void)
{
	struct data_config config = {
		.decoder = decoder, .memory = 64 << 20, .max_bad_rows = 0, .need_labels = true};
	struct data_feed f = feed_of_bytes(ROW_TRAIN);
	uint8_t grey[SIDE * SIDE], colour[SIDE * SIDE * 3];
	struct bytes g, c;
	uint64_t seed = 8;

	for (size_t i = 0; i < sizeof(colour); i++)
		colour[i] = (uint8_t)next_random(&seed);
	for (size_t i = 0; i < sizeof(grey); i++)
		grey[i] = (uint8_t)next_random(&seed);
	g = make_png(SIDE, SIDE, PNG_COLOR_TYPE_GRAY, false, grey);
	c = make_png(SIDE, SIDE, PNG_COLOR_TYPE_RGB, false, colour);
	for (int most = 1; most <= 3; most += 2) {
		struct data_set *data[2];
		struct agree_block part[2], agreed;
		struct data_feeder *feeder;
		struct data_counts counts;
		struct err err;

		for (int known = 0; known < 2; known++) {
			config.shape = (struct backend_shape){0};
			if (known)
				config.shape = (struct backend_shape){SIDE, SIDE, (uint32_t)most};
			data_create(&config, &data[known], &err);
			data_feeder_open(data[known], &f, &feeder, &err);
			for (int i = 0; i < 7; i++) {
				const struct bytes *b = (i % 3 == 0) == (most == 1) ? &c : &g;

				feed_bytes(feeder, "r", i % 2, b->data, b->n, &err);
			}
			data_feeder_close(feeder, &counts, &err);
			if (data_collect(data[known], &part[known], &err))
				BAIL("%s", err.message);
			agreed = agreed_alone(&part[known]);
			data_apply(data[known], &agreed, 2, &err);
		}
		ok(part[0].c == (uint32_t)most && part[0].rows[0] == 7, "%d channels by majority",
		   most);
		ok(equal_parts(&part[0], &part[1]) &&
			   pass(data[0], ROW_TRAIN, false, 0, 0, 3) ==
				   pass(data[1], ROW_TRAIN, false, 0, 0, 3),
		   "the same rows as with a known shape");
		for (int known = 0; known < 2; known++) {
			agree_free(&part[known]);
			data_free(data[known]);
		}
	}
	free(g.data);
	free(c.data);
}

int main(void)
{
	struct data_limits limits = {.workers = 2, .sandbox = true};
	struct err err;

	if (data_decoder_create(&limits, &decoder, &err) || !mkdtemp(spill_dir))
		BAIL("cannot begin");
	make_rows();
	test_arrival((struct backend_shape){SIDE, SIDE, 3}, 0, "known shape");
	test_arrival((struct backend_shape){0}, .1, "unknown shape, validation");
	test_sums();
	test_epochs();
	test_channels();
	for (int i = 0; i < N; i++)
		if (i % 10 != 3 && i % 10 != 4 && i % 10 != 6)
			free(rows[i].x.data);
	rmdir(spill_dir);
	data_decoder_free(decoder);
	return done();
}
