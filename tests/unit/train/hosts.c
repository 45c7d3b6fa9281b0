// SPDX-License-Identifier: MIT
/*
 * hosts.c: a training on several hosts against a small computation of its own (softmax regression
 * in double, with the order of rows that userspace/data gives), against one host with all rows, and
 * against itself: all hosts end with the same bits and the same row.
 */
#include "oracle.h"

#define ROWS 240

static float x[ROWS * WIDTH];
static int32_t y[ROWS];
static char *softmax, *deep, *norm;

static void make_rows(void)
{
	uint64_t state = 77;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % CLASSES);
		for (uint32_t j = 0; j < WIDTH; j++)
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1 +
					   (j == (uint32_t)y[i] ? .8f : 0);
	}
	softmax = rig_dense(WIDTH, "dense:3:softmax");
	deep = rig_dense(WIDTH, "dense:12:relu,dropout:20,dense:3:softmax");
	norm = rig_dense(WIDTH, "dense:12:relu,norm:80,dense:3:softmax");
}

/* Slices of the table, one a host; all rows from first on for the last where n[i] is ~0. */
static void split(uint32_t hosts, const uint32_t *n, struct rig_rows *rows)
{
	uint32_t first = 0;

	for (uint32_t i = 0; i < hosts; i++) {
		rows[i] = (struct rig_rows){.n = n[i],
					    .h = 1,
					    .w = 1,
					    .c = WIDTH,
					    .f32 = x + first * WIDTH,
					    .y_int = y + first};
		first += n[i];
	}
}

#define SPEC(more)                                                                    \
	"{\"backend\": \"ref\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.1, " \
	"\"normalize\": "                                                             \
	"\"none\", \"batch_size\": 10, " more "}"

static void against_oracle(const char *what, const char *spec, const uint32_t *n, uint32_t hosts,
			   bool synchronous, uint64_t every)
{
	struct rig_rows rows[GROUP_MAX];
	struct oracle o;
	struct group g;
	uint64_t s = 0;
	double d;

	split(hosts, n, rows);
	group_start(&g, hosts, spec, softmax, rows, NULL);
	oracle_open(&o, &g, .1, .9);
	for (uint32_t e = 0; e < 4; e++)
		for (uint64_t k = 0; k < o.steps; k++) {
			oracle_step(&o, e, k, synchronous);
			if (!synchronous && ++s % every == 0)
				oracle_merge(&o);
		}
	if (!synchronous)
		oracle_merge(&o);
	ok(group_run(&g, 0, 4), "%s runs", what);
	d = oracle_distance(&o, 0);
	ok(d < 1e-5, "%s: the weights of another computation (%.1e)", what, d);
	ok(group_same_weights(&g) && group_same_rows(&g), "%s: all hosts end alike", what);
	is(g.row[0].rows, 4 * o.all, "rows of all hosts");
	is(g.row[0].hosts, hosts, "hosts");
	ok(g.row[0].merges == (synchronous ? 4 * o.steps : (4 * o.steps + every - 1) / every) &&
		   g.row[0].merge_number == g.row[0].merges && g.row[0].merge_bytes > 0,
	   "%llu merges", (unsigned long long)g.row[0].merges);
	oracle_close(&o);
	group_end(&g);
}

static void other_computation(void)
{
	static const uint32_t even[] = {80, 80, 80}, uneven[] = {120, 37, 83, 0};

	against_oracle("gradient, even", SPEC("\"merge\": \"gradient\""), even, 3, true, 1);
	against_oracle("gradient, uneven and empty", SPEC("\"merge\": \"gradient\""), uneven, 4,
		       true, 1);
	against_oracle("average of 3, uneven and empty",
		       SPEC("\"merge\": \"local_sgd\", \"merge_every\": 3"), uneven, 4, false, 3);
	against_oracle("average of 5 over two replicas",
		       SPEC("\"merge\": \"local_sgd\", \"merge_every\": 5, \"replicas\": 2"), even,
		       3, false, 5);
	against_oracle("warm-up longer than the training",
		       SPEC("\"merge\": \"average\", \"merge_warmup\": 100"), uneven, 4, true, 1);
}

/* ---- one host with all rows ---- */

static void against_one(const char *backend, const char *optimizer)
{
	static const uint32_t n[] = {100, 0, 60, 80};
	struct rig_rows rows[GROUP_MAX], all;
	const char *specs[GROUP_MAX];
	struct ctl_run_row row;
	char spec[3][320];
	struct group g;
	struct err err;
	struct rig one;
	double d;

	/* one step an epoch: the same rows in it, whatever their order */
	for (int i = 0; i < 3; i++)
		snprintf(spec[i], sizeof(spec[i]),
			 "{\"backend\": \"%s\", \"epochs\": 6, \"seed\": 3, \"optimizer\": \"%s\", "
			 "\"learning_rate\": 0.05, \"batch_size\": 500, \"merge\": \"gradient\", "
			 "\"lr_scaling\": \"sqrt\", \"class_weight\": {\"1\": 3}, \"replicas\": "
			 "%d}",
			 backend, optimizer, i + 1);
	split(4, n, rows);
	all = rows[0];
	all.n = ROWS;
	for (int i = 0; i < 4; i++)
		specs[i] = spec[i % 3];
	if (rig_start(&one, spec[0], norm, &all, &all, &err) || rig_run(&one, 0, 6, &row, &err) ||
	    group_prepare(&g, 4, specs, softmax, rows, rows, &err))
		BAIL("%s", err.message);
	rig_end(&one);
	if (rig_start(&one, spec[0], softmax, &all, &all, &err) || rig_run(&one, 0, 6, &row, &err))
		BAIL("%s", err.message);
	group_nets(&g);
	group_do(&g, group_create_one);
	ok(group_run(&g, 0, 6), "%s, %s: hosts with 1, 2 and 3 replicas", backend, optimizer);
	d = rig_distance(&one, &g.rig[0]);
	ok(d < 2e-5, "synchronous hosts = one host with all rows (%.1e)", d);
	near(g.row[0].loss, row.loss, 1e-5, "the same loss");
	near(g.row[0].validation_loss, row.validation_loss, 1e-5, "validation loss");
	near(g.row[0].metric[0].validation, row.metric[0].validation, 1e-12, "accuracy");
	near(g.row[0].lr, row.lr, 0, "learning rate");
	ok(g.row[0].steps == row.steps && g.row[0].rows == row.rows, "steps and rows");
	ok(rig_same(&one, &g.rig[0], CTL_CONFUSION) || row.metric[0].validation < 1,
	   "confusion matrix");
	ok(group_same_weights(&g) && group_same_rows(&g), "on all hosts");
	rig_end(&one);
	group_end(&g);
}

/* Averaging after every step is synchronous gradients where every step has as many rows. */
static void every_step(void)
{
	static const uint32_t even[] = {80, 80, 80}, uneven[] = {120, 40, 80};
	const char *momentum[] = {"keep", "average", "reset"};
	struct rig_rows rows[GROUP_MAX];
	struct group g, h;
	char spec[320];
	double d;

	for (int i = 0; i < 4; i++) {
		split(3, i == 3 ? uneven : even, rows);
		snprintf(spec, sizeof(spec),
			 SPEC("\"merge\": \"local_sgd\", \"merge_every\": 1, \"merge_momentum\": "
			      "\"%s\""),
			 momentum[i % 3]);
		group_start(&g, 3, spec, softmax, rows, NULL);
		group_start(&h, 3, SPEC("\"merge\": \"gradient\""), softmax, rows, NULL);
		ok(group_run(&g, 0, 4) && group_run(&h, 0, 4), "H = 1 and gradient");
		d = rig_distance(&g.rig[0], &h.rig[0]);
		if (i < 2)
			ok(d < 1e-5, "momenta %s: the same (%.1e)", momentum[i], d);
		else
			ok(d > 1e-3, "%s: not the same (%.1e)",
			   i == 2 ? "momenta reset" : "other rows a host, momenta kept", d);
		group_end(&g);
		group_end(&h);
	}
}

/* ---- what a merge does to a run ---- */

static void undisturbed(const char *backend, const char *more, const char *architecture)
{
	static const uint32_t n[] = {90, 50, 100};
	struct rig_rows rows[GROUP_MAX];
	struct group g, h;
	bool good = true;
	char spec[320];

	split(3, n, rows);
	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"%s\", \"epochs\": 5, \"batch_size\": 7, \"seed\": 3, %s}",
		 backend, more);
	group_start(&g, 3, spec, architecture, rows, rows);
	group_start(&h, 3, spec, architecture, rows, rows);
	ok(group_run(&g, 0, 5), "%s: %s in one run", backend, more);
	for (uint32_t e = 0; e < 5; e++) {
		uint64_t bytes;

		good &= group_run(&h, e, 1) && group_same_rows(&h) && group_same_weights(&h);
		free(rig_get(&h.rig[0], CTL_OPTIMIZER, &bytes));
	}
	ok(good, "in five: the same row and model on all hosts after each");
	ok(group_same_weights(&g) && group_same_rows(&g) &&
		   rig_same(&g.rig[0], &h.rig[0], CTL_WEIGHTS) &&
		   rig_same(&g.rig[1], &h.rig[1], CTL_OPTIMIZER),
	   "and the same bits as in one");
	ok(g.row[0].validation_loss == h.row[0].validation_loss && g.row[0].loss == h.row[0].loss &&
		   g.row[0].merge_checksum == h.row[0].merge_checksum &&
		   g.row[0].merge_number == h.row[0].merge_number,
	   "loss %.4f, validation loss %.4f, %llu merges", g.row[0].loss, g.row[0].validation_loss,
	   (unsigned long long)g.row[0].merge_number);
	group_end(&g);
	group_end(&h);
}

/*
 * The epoch's order is a sort by a key of the row, so hosts that hold the first and the second part
 * of one host's order make the same global batch, row by row: dropout and augmentation too.
 */
static void places(const char *backend)
{
	char *architecture = rig_dense(WIDTH, "dense:12:relu,dropout:40,dense:3:softmax");
	static float px[ROWS * WIDTH];
	static int32_t py[ROWS];
	struct rig_rows rows[3],
		all = {.n = ROWS, .h = 1, .w = 1, .c = WIDTH, .f32 = x, .y_int = y};
	static const uint32_t n[3] = {70, 110, 60};
	struct data_reader *reader;
	struct backend_batch b;
	struct ctl_run_row row;
	struct group g;
	struct err err;
	struct rig one;
	char spec[256];
	double d;

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"%s\", \"epochs\": 1, \"seed\": 3, \"learning_rate\": 0.5, "
		 "\"batch_size\": 500, \"normalize\": \"none\", \"merge\": \"gradient\"}",
		 backend);
	if (rig_start(&one, spec, architecture, &all, NULL, &err) ||
	    data_reader_open(one.data, ROW_TRAIN, ROWS, true, &reader, &err) ||
	    data_reader_epoch(reader, 3, 0) || data_reader_batch(reader, 0, ROWS, &b, &err))
		BAIL("%s", err.message);
	for (uint32_t i = 0; i < ROWS; i++) {
		memcpy(px + i * WIDTH, b.x[i], WIDTH * sizeof(float));
		py[i] = b.label[i];
	}
	data_reader_close(reader);
	for (uint32_t i = 0, first = 0; i < 3; first += n[i++]) {
		rows[i] = all;
		rows[i].n = n[i];
		rows[i].f32 = px + first * WIDTH;
		rows[i].y_int = py + first;
	}
	if (rig_run(&one, 0, 1, &row, &err))
		BAIL("%s", err.message);
	group_start(&g, 3, spec, architecture, rows, NULL);
	ok(group_run(&g, 0, 1), "%s: the first, the next and the last rows on three hosts",
	   backend);
	d = rig_distance(&one, &g.rig[0]);
	ok(d < 1e-6, "the same masks of dropout as on one (%.1e)", d);
	near(row.loss, g.row[0].loss, 1e-6, "the same loss");
	rig_end(&one);
	group_end(&g);
	free(architecture);
}

/* One local step of all, then the merge: statistics of 2 hosts x 2 replicas together. */
static void statistics(const char *momentum)
{
	static const uint32_t n[] = {90, 150};
	double weight[4], mu, var, worst = 0;
	const float *stat[4];
	struct rig_rows rows[2];
	struct group g, h;
	uint64_t bytes;
	float *got;
	char spec[320];

	split(2, n, rows);
	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 2, \"batch_size\": 500, \"replicas\": 2, "
		 "\"merge\": \"local_sgd\", \"merge_every\": 1, \"merge_momentum\": \"%s\"}",
		 momentum);
	group_start(&g, 2, spec, norm, rows, NULL);
	group_start(&h, 2,
		    "{\"backend\": \"ref\", \"epochs\": 2, \"batch_size\": 500, \"replicas\": 2, "
		    "\"merge\": \"none\"}",
		    norm, rows, NULL);
	ok(group_run(&g, 0, 1) && group_run(&h, 0, 1), "two hosts of two replicas, momenta %s",
	   momentum);
	got = (float *)rig_get(&g.rig[1], CTL_WEIGHTS, &bytes);
	for (int k = 0; k < 4; k++) {
		struct train *t = h.rig[k / 2].train;

		stat[k] = backend_host_arena(t->replica[k % 2], BACKEND_STAT);
		weight[k] = (double)t->replica_rows[k % 2] / ROWS;
	}
	for (uint32_t i = 0; i < 12; i++) {
		/* after kernel, bias, gamma and beta; 12 floats are padded to 16 in an arena */
		const float *at = got + WIDTH * 12 + 3 * 12;

		mu = var = 0;
		for (int k = 0; k < 4; k++)
			mu += weight[k] * stat[k][i];
		for (int k = 0; k < 4; k++)
			var += weight[k] *
			       (stat[k][16 + i] + (stat[k][i] - mu) * (stat[k][i] - mu));
		worst = fmax(worst, fmax(fabs(at[i] - mu), fabs(at[12 + i] - var) / var));
	}
	ok(worst < 1e-6, "the merged statistics are the moments of all four (%.1e)", worst);
	for (int i = 0; i < 2; i++) {
		struct train *t = g.rig[i].train;

		ok(!memcmp(backend_host_arena(t->replica[0], BACKEND_SLOT),
			   backend_host_arena(t->replica[1], BACKEND_SLOT),
			   t->graph->param_floats * sizeof(float)) &&
			   !memcmp(backend_host_arena(t->replica[0], BACKEND_PARAM),
				   backend_host_arena(t->replica[1], BACKEND_PARAM),
				   t->graph->param_floats * sizeof(float)) &&
			   !memcmp(backend_host_arena(t->replica[0], BACKEND_STAT),
				   backend_host_arena(t->replica[1], BACKEND_STAT),
				   t->graph->stat_floats * sizeof(float)),
		   "a merge reaches all replicas of host %d", i);
	}
	free(got);
	group_end(&g);
	group_end(&h);
}

int main(void)
{
	make_rows();
	other_computation();
	against_one("ref", "sgd");
	against_one("ref", "adam");
	against_one("cpu", "adam");
	every_step();
	places("ref");
	places("cpu");
	statistics("keep");
	statistics("average");
	statistics("reset");
	undisturbed("ref", "\"merge\": null", norm);
	undisturbed("cpu", "\"merge\": \"average\", \"merge_every\": \"2 epochs\"", norm);
	undisturbed("ref", "\"merge\": \"gradient\", \"replicas\": 2", norm);
	undisturbed("ref", "\"merge\": \"easgd\", \"merge_warmup\": 0.5", norm);
	undisturbed("ref", "\"merge\": \"slowmo\", \"optimizer\": \"adam\", \"accumulate\": 2",
		    deep);
	undisturbed("cpu", "\"merge\": \"diloco\", \"merge_every\": 7, \"replicas\": 3", deep);
	undisturbed("ref", "\"merge\": \"median\", \"merge_momentum\": \"average\"", norm);
	undisturbed("ref", "\"merge\": \"none\"", norm);
	free(softmax);
	free(deep);
	free(norm);
	return done();
}
