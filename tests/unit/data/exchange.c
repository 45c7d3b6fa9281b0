// SPDX-License-Identifier: MIT
/*
 * exchange.c: three data sets exchange their training rows. What comes out must not depend on where
 * rows lay before, and must be what a set has that was fed with these rows; no row is lost or
 * doubled; memory stays in its bounds. Hostile blocks: exchange_hostile.c.
 */
#include "exchange_test.h"

static char spill_dir[64] = "/var/tmp/cnn-spill-XXXXXX";

static uint32_t by_class(const struct world *w, uint32_t i)
{
	return (uint32_t)((uint64_t)i * HOSTS / w->n);
}

static uint32_t in_turn(const struct world *w, uint32_t i)
{
	return i / 7 % HOSTS;
}

static uint32_t all_on_one(const struct world *w, uint32_t i)
{
	return 1;
}

static uint32_t at_home(const struct world *w, uint32_t i)
{
	struct made m;

	make_row(w, i, &m);
	return home_of(w, &m, HOSTS, NULL);
}

/* Rounds as daemons make them: each host takes a block for every other, then gets theirs. */
static int rounds(struct cluster *c, size_t size, uint32_t *n_rounds, struct err *err)
{
	uint8_t *block[HOSTS][HOSTS];
	size_t bytes[HOSTS][HOSTS];
	bool more = true;
	int rc = 0;

	for (int a = 0; a < HOSTS; a++)
		for (int b = 0; b < HOSTS; b++)
			block[a][b] = malloc(size);
	for (uint32_t k = 0; k < HOSTS && !rc; k++)
		rc = data_exchange_begin(c->data[k], HOSTS, k, err);
	for (*n_rounds = 0; more && !rc; ++*n_rounds) {
		more = false;
		for (uint32_t a = 0; a < HOSTS && !rc; a++)
			for (uint32_t b = 0; b < HOSTS && !rc; b++) {
				bytes[a][b] = 0;
				if (a != b)
					rc = data_exchange_take(c->data[a], b, block[a][b], size,
								&bytes[a][b], err);
				more |= bytes[a][b] > 0;
			}
		for (uint32_t a = 0; a < HOSTS && !rc; a++)
			for (uint32_t b = 0; b < HOSTS && !rc; b++)
				rc = data_exchange_give(c->data[b], block[a][b], bytes[a][b], err);
	}
	for (uint32_t k = 0; k < HOSTS && !rc; k++)
		rc = data_exchange_end(c->data[k], &c->counts[k], err);
	for (int a = 0; a < HOSTS; a++)
		for (int b = 0; b < HOSTS; b++)
			free(block[a][b]);
	return rc;
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
	const uint8_t *b = p;

	while (n--)
		h = (h ^ *b++) * 0x100000001b3ull; /* FNV-1a */
	return h;
}

/* Everything a training sees of a pass over a set. */
static uint64_t pass(struct data_set *data, enum row_set set, bool shuffle, uint32_t epoch)
{
	uint64_t h = 0xcbf29ce484222325ull, n = data_rows(data, set);
	size_t x_bytes = shape_elements(data->rows_shape) * backend_dtype_bytes(data->dtype);
	struct data_reader *r;
	struct backend_batch b = {0};
	struct err err;

	if (data_reader_open(data, set, 64, shuffle, &r, &err))
		BAIL("%s", err.message);
	data_reader_epoch(r, 4, epoch);
	for (uint64_t first = 0; first < n; first += 64) {
		uint32_t m = n - first < 64 ? (uint32_t)(n - first) : 64;

		if (data_reader_batch(r, first, m, &b, &err))
			BAIL("%s", err.message);
		for (uint32_t i = 0; i < m; i++)
			h = mix(h, b.x[i], x_bytes);
		if (b.label)
			h = mix(h, b.label, m * sizeof(*b.label));
		if (b.target)
			h = mix(h, b.target, m * data->outputs * sizeof(*b.target));
		h = mix(h, b.weight, m * sizeof(*b.weight));
		h = mix(h, b.hash, m * sizeof(*b.hash));
	}
	data_reader_close(r);
	return h;
}

/* Every training row once, on the host where it belongs, under the name it was fed with. */
static void check_names(const struct world *w, struct cluster *c, place_fn place, const char *name)
{
	uint8_t *seen = calloc(w->n, 1);
	uint32_t wrong = 0, rows = 0, ordinal[HOSTS] = {0},
		 *number = malloc(w->n * sizeof(*number));
	struct made m;

	for (uint32_t i = 0; i < w->n; i++) /* place in its feed, for rows without an id */
		number[i] = ordinal[place(w, i)]++;
	for (uint32_t k = 0; k < HOSTS; k++)
		for (uint64_t at = 0; at < c->data[k]->rows[ROW_TRAIN]; at++, rows++) {
			uint32_t index = c->data[k]->order[ROW_TRAIN][at], i = w->n;
			uint32_t at_feed = UINT32_MAX;
			char text[SET_NAME];

			set_row_name(c->data[k], index, text);
			if (w->ids)
				sscanf(text, "row-%u", &i);
			else
				sscanf(text, "(5,2,%u)", &at_feed);
			for (uint32_t j = 0; j < w->n && !w->ids && i == w->n; j++) {
				if (number[j] != at_feed || seen[j])
					continue;
				make_row(w, j, &m);
				if (home_of(w, &m, HOSTS, NULL) == k &&
				    !memcmp(store_pointer(c->data[k]->store,
							  set_row(c->data[k], index)->where),
					    m.x, m.x_bytes))
					i = j;
			}
			if (i >= w->n || seen[i]++) {
				wrong++;
				continue;
			}
			make_row(w, i, &m);
			wrong += home_of(w, &m, HOSTS, NULL) != k;
		}
	is(wrong, 0, name);
	for (uint32_t i = 0; i < w->n; i++) {
		uint64_t hash[2];

		make_row(w, i, &m);
		home_of(w, &m, HOSTS, hash);
		rows += (double)(hash[1] >> 11) * 0x1p-53 < w->fraction; /* held back */
	}
	is(rows, w->n, "... and all of them, with those held back for validation");
	free(seen);
	free(number);
}

static void check_counts(const struct world *w, const struct cluster *c)
{
	uint64_t before = 0, after = 0, sent = 0, received = 0, held = 0;

	for (uint32_t k = 0; k < HOSTS; k++) {
		before += c->counts[k].sum_before;
		after += c->counts[k].sum_after;
		sent += c->counts[k].sent;
		received += c->counts[k].received;
		held += c->counts[k].kept + c->counts[k].received;
	}
	ok(before == after && before, "checksums of all rows before and after are equal");
	ok(sent == received && held == c->agreed.rows[0], "%llu of %llu rows moved",
	   (unsigned long long)sent, (unsigned long long)held);
}

/* The same rows in another placement, and fed where they belong: three ways, one result. */
static void test_world(const struct world *w, size_t block, const char *name)
{
	static const place_fn placement[] = {at_home, by_class, in_turn, all_on_one};
	uint64_t want[HOSTS][3], got[HOSTS][3];
	struct err err;

	for (size_t p = 0; p < 4; p++) {
		struct cluster c;
		uint32_t n_rounds = 0;
		bool even = true;

		cluster_fill(w, placement[p], &c);
		/* a set that is fed directly does not exchange at all */
		if (p && rounds(&c, block, &n_rounds, &err))
			BAIL("%s: %s", name, err.message);
		if (p == 2 && !w->spill)
			check_names(w, &c, in_turn, "each row is where it belongs, by its name");
		if (w->spill && p)
			ok(data_spilled(c.data[1]) > 0, "%s: spilled", name);
		if (p)
			check_counts(w, &c);
		cluster_apply(w, &c);
		for (uint32_t k = 0; k < HOSTS; k++) {
			got[k][0] = pass(c.data[k], ROW_TRAIN, false, 0);
			got[k][1] = pass(c.data[k], ROW_TRAIN, true, 0);
			got[k][2] = pass(c.data[k], ROW_TRAIN, true, 1);
			even &= data_rows(c.data[k], ROW_TRAIN) > c.agreed.rows[0] / HOSTS * 8 / 10;
		}
		if (!p)
			memcpy(want, got, sizeof(want));
		else
			ok(!memcmp(want, got, sizeof(want)) && even,
			   "%s, placement %zu, %u rounds: as if fed where they belong", name, p,
			   n_rounds);
		cluster_free(&c);
	}
}

/* Shards sorted by class: afterwards every host's labels are a fair sample of all. */
static void test_skew(void)
{
	const struct world w = {.kind = INTS, .ids = true, .n = 6000};
	struct agree_block part[HOSTS] = {0};
	struct cluster c;
	double before[HOSTS], after[HOSTS], ratio;
	uint32_t n_rounds;
	struct err err;
	bool fair = true;

	cluster_fill(&w, by_class, &c);
	if (agree_skew(c.part, HOSTS, before, &ratio, &err) || rounds(&c, 4096, &n_rounds, &err))
		BAIL("%s", err.message);
	for (uint32_t k = 0; k < HOSTS; k++) { /* the parts of the new shards */
		struct agree_label *l = calloc(c.agreed.n_labels, sizeof(*l));

		part[k].labels = AGREE_INT;
		part[k].rows[0] = data_rows(c.data[k], ROW_TRAIN);
		part[k].label = l;
		part[k].n_labels = c.agreed.n_labels;
		memcpy(l, c.agreed.label, c.agreed.n_labels * sizeof(*l));
		for (uint32_t i = 0; i < part[k].n_labels; i++)
			l[i].count = 0;
	}
	cluster_apply(&w, &c);
	for (uint32_t k = 0; k < HOSTS; k++) {
		double n = (double)part[k].rows[0];

		for (uint64_t i = 0; i < part[k].rows[0]; i++)
			part[k].label[set_row(c.data[k], c.data[k]->order[ROW_TRAIN][i])->label]
				.count++;
		for (uint32_t i = 0; i < c.agreed.n_labels; i++) {
			double p = (double)c.agreed.label[i].count / (double)c.agreed.rows[0];

			/* five standard errors of a sample of n; pairs of equal rows go together */
			fair &= fabs((double)part[k].label[i].count / n - p) <
				5 * sqrt(1.2 * p * (1 - p) / n);
		}
	}
	if (agree_skew(part, HOSTS, after, &ratio, &err))
		BAIL("%s", err.message);
	ok(before[0] > .4 && before[2] > .4, "sorted shards: distances %.3f %.3f %.3f", before[0],
	   before[1], before[2]);
	ok(after[0] < .05 && after[1] < .05 && after[2] < .05 && ratio < 1.15,
	   "afterwards %.3f %.3f %.3f, ratio of rows %.3f", after[0], after[1], after[2], ratio);
	ok(fair, "every class within sampling error of its share on every host");
	for (uint32_t k = 0; k < HOSTS; k++)
		free(part[k].label);
	cluster_free(&c);
}

/* Rows that leave make room for those that come: no room for both is needed. */
static void test_memory(void)
{
	struct world w = {.kind = INTS, .ids = true, .n = 40000};
	struct cluster c;
	uint64_t before[HOSTS], most = 0;
	uint32_t n_rounds;
	struct err err;
	int rc;

	cluster_fill(&w, in_turn, &c);
	for (uint32_t k = 0; k < HOSTS; k++) {
		before[k] = data_memory(c.data[k]);
		most = before[k] > most ? before[k] : most;
	}
	cluster_free(&c);

	w.memory = most * 7 / 5; /* rows' heads of what went stay until the end */
	cluster_fill(&w, in_turn, &c);
	rc = rounds(&c, 32 << 10, &n_rounds, &err);
	ok(!rc, "an exchange in little more memory than the rows had (%s)",
	   rc ? err.message : "ok");
	if (!rc)
		cluster_apply(&w, &c);
	cluster_free(&c);

	w.memory = 0;
	cluster_fill(&w, all_on_one, &c);
	before[1] = data_memory(c.data[1]);
	if (rounds(&c, 32 << 10, &n_rounds, &err))
		BAIL("%s", err.message);
	ok(data_memory(c.data[1]) < before[1] * 8 / 10,
	   "two thirds of the rows went away: %llu of %llu bytes are left",
	   (unsigned long long)data_memory(c.data[1]), (unsigned long long)before[1]);
	cluster_free(&c);
}

/* A disk's blocks come back when rows leave the spill file. */
static void test_disk(void)
{
	const struct world w = {
		.kind = INTS, .ids = true, .n = 30000, .memory = 4 << 20, .spill = spill_dir};
	struct cluster c;
	uint64_t before;
	uint32_t n_rounds;
	struct err err;

	cluster_fill(&w, all_on_one, &c);
	before = data_spilled(c.data[1]);
	if (rounds(&c, 32 << 10, &n_rounds, &err))
		BAIL("%s", err.message);
	ok(before > 0 && data_spilled(c.data[1]) < before, "%llu bytes were in the file, %llu are",
	   (unsigned long long)before, (unsigned long long)data_spilled(c.data[1]));
	cluster_free(&c);
}

/* Calls at the wrong time, blocks too small, an exchange that is broken off. */
static void test_calls(void)
{
	const struct world w = {.kind = INTS, .n = 300};
	struct data_exchange_counts counts;
	uint8_t block[4096];
	struct cluster c;
	size_t bytes;
	struct err err;

	cluster_fill(&w, in_turn, &c);
	is(data_exchange_take(c.data[0], 1, block, sizeof(block), &bytes, &err), -EINVAL,
	   "take before begin");
	is(data_exchange_begin(c.data[0], 3, 3, &err), -EINVAL, "host 3 of 3");
	is(data_exchange_begin(c.data[0], 3, 0, &err), 0, "begin");
	is(data_exchange_begin(c.data[0], 3, 0, &err), -EINVAL, "begin twice");
	is(data_apply(c.data[0], &c.agreed, OUTPUTS, &err), -EINVAL, "apply in the middle");
	is(data_exchange_take(c.data[0], 0, block, sizeof(block), &bytes, &err), -EINVAL,
	   "no block for oneself");
	is(data_exchange_take(c.data[0], 1, block, 32 + 12 + 8 + 16 + SIDE * SIDE, &bytes, &err), 0,
	   "a block of one row");
	is(bytes, 32 + 12 + 8 + 16 + SIDE * SIDE, "... is full");
	is(data_exchange_end(c.data[0], &counts, &err), -EINVAL, "end while rows are left");
	is(data_exchange_take(c.data[0], 1, block, sizeof(block), &bytes, &err), -EINVAL,
	   "after an error there is nothing more");
	is(data_apply(c.data[0], &c.agreed, OUTPUTS, &err), -EINVAL, "... and nothing to train on");

	is(data_exchange_begin(c.data[1], 3, 1, &err), 0, "begin");
	is(data_exchange_take(c.data[1], 0, block, 32 + 12 + 8 + 16 + SIDE * SIDE - 1, &bytes,
			      &err),
	   -E2BIG, "a block too small for one row");
	like(err.message, "323 bytes", "... is said");

	is(data_exchange_begin(c.data[2], 1, 0, &err), 0, "a host alone");
	is(data_exchange_end(c.data[2], &counts, &err), 0, "... has nothing to do");
	ok(counts.kept == c.part[2].rows[0] && counts.sum_before == counts.sum_after &&
		   !counts.sent && !counts.received,
	   "... and keeps all");
	is(data_apply(c.data[2], &c.agreed, OUTPUTS, &err), 0, "... and goes on");
	cluster_free(&c);
}

static void test_cancel(void)
{
	const struct world w = {.kind = INTS, .n = 3000};
	struct data_config config = world_config(&w);
	struct data_set *data = create_set(&config);
	struct data_exchange_counts counts;
	struct agree_block part;
	uint8_t block[4096];
	struct cluster c;
	size_t bytes;
	struct err err;

	data_cancel(data);
	is(data_collect(data, &part, &err), -ECANCELED, "collect of a job that was ended");
	is(err.kind, ERR_CANCELED, "... is its kind");
	data_free(data);
	cluster_fill(&w, in_turn, &c);
	data_cancel(c.data[0]);
	is(data_apply(c.data[0], &c.agreed, OUTPUTS, &err), -ECANCELED, "apply");
	is(data_exchange_begin(c.data[0], 3, 0, &err), -ECANCELED, "begin of an exchange");
	if (data_exchange_begin(c.data[1], 3, 1, &err) ||
	    data_exchange_begin(c.data[2], 3, 2, &err))
		BAIL("%s", err.message);
	if (data_exchange_take(c.data[1], 2, block, sizeof(block), &bytes, &err))
		BAIL("%s", err.message);
	data_cancel(c.data[1]);
	data_cancel(c.data[2]);
	is(data_exchange_take(c.data[1], 0, block, sizeof(block), &bytes, &err), -ECANCELED,
	   "take");
	is(data_exchange_give(c.data[2], block, bytes, &err), -ECANCELED, "give");
	is(data_exchange_end(c.data[2], &counts, &err), -EINVAL, "end");
	cluster_free(&c);
}

int main(void)
{
	if (!mkdtemp(spill_dir))
		BAIL("cannot begin");
	for (int kind = 0; kind < KINDS; kind++) {
		const struct world w = {.kind = (enum kind)kind,
					.f32 = kind % 2,
					.ids = kind != INTS,
					.weights = kind != TEXTS,
					.n = 2000,
					.fraction = kind % 2 ? .1 : 0};

		test_world(&w, 1000 + 100 * (size_t)kind, kind_name[kind]);
	}
	{
		struct world w = {.kind = TEXTS, .n = 20000, .weights = true, .ids = true};

		w.memory = 3 << 20;
		w.spill = spill_dir;
		w.f32 = true;
		test_world(&w, DATA_EXCHANGE_BLOCK, "text, spilled");
	}
	test_skew();
	test_memory();
	test_disk();
	test_calls();
	test_cancel();
	rmdir(spill_dir);
	return done();
}
