// SPDX-License-Identifier: MIT
/*
 * ends.c: how a training on several hosts begins and ends: refusals that name a host, a stop and
 * NaN on one of them that all follow at the same step, cancel in every wait, the choice of
 * merge_every 'auto', evaluation jobs, what the callback of a merge sees.
 */
#include <unistd.h>

#include "../../../userspace/train/hosts.h"
#include "oracle.h"

#define ROWS 240
#define HOSTS 3

static const char *const names[] = {"alpha", "beta", "gamma"};
static float x[ROWS * WIDTH], odd[ROWS * WIDTH];
static int32_t y[ROWS];
static double target[ROWS];
static char *softmax, *linear, *norm;
static struct rig_rows rows[HOSTS], numbers[HOSTS];

static void make_rows(void)
{
	static const uint32_t n[HOSTS] = {100, 60, 80};
	uint64_t state = 12;
	uint32_t first = 0;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % CLASSES);
		target[i] = 0;
		for (uint32_t j = 0; j < WIDTH; j++) {
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1 +
					   (j == (uint32_t)y[i] ? .8f : 0);
			target[i] += x[i * WIDTH + j];
		}
	}
	memcpy(odd, x, sizeof(x));
	odd[(100 + 30) * WIDTH] = 1e30f; /* a row of beta */
	for (uint32_t i = 0; i < HOSTS; i++) {
		rows[i] = (struct rig_rows){.n = n[i],
					    .h = 1,
					    .w = 1,
					    .c = WIDTH,
					    .f32 = x + first * WIDTH,
					    .y_int = y + first};
		numbers[i] = rows[i];
		numbers[i].f32 = odd + first * WIDTH;
		numbers[i].y_int = NULL;
		numbers[i].y_double = target + first;
		first += n[i];
	}
	softmax = rig_dense(WIDTH, "dense:3:softmax");
	linear = rig_dense(WIDTH, "dense:4:linear,dense:1:linear");
	norm = rig_dense(WIDTH, "dense:8:relu,norm:80,dense:3:softmax");
}

/* ---- the beginning ---- */

static void refused(const char *what, const char *a, const char *b, const char *here,
		    const char *there)
{
	const char *spec[HOSTS] = {a, a, a};
	struct group g;
	struct err err;

	if (group_prepare(&g, HOSTS, spec, softmax, rows, NULL, &err))
		BAIL("%s", err.message);
	/* past the coordinator, which sees some of it in the agreement */
	train_config_free(&g.rig[1].config);
	if (train_config_parse(b, strlen(b), &g.rig[1].config, &err))
		BAIL("%s: %s", b, err.message);
	group_nets(&g);
	g.names = names;
	group_do(&g, group_create_one);
	ok(g.rc[0] && g.rc[1] && g.rc[2], "%s: refused on all hosts", what);
	like(g.err[0].message, there, "named on the others");
	like(g.err[1].message, here, "and where it is");
	group_end(&g);
}

static void beginnings(void)
{
	const char *const spec[HOSTS] = {"{\"backend\": \"ref\"}", "{\"backend\": \"ref\"}",
					 "{\"backend\": \"ref\"}"};
	/* what one host of three may be given otherwise, and what all are told of it */
	static const struct {
		const char *given, *name;
	} other[] = {
		{"\"epochs\": 3", "epochs"},
		{"\"batch_size\": 7", "batch_size"},
		{"\"accumulate\": 2", "accumulate"},
		{"\"seed\": 5", "seed"},
		{"\"seed\": 4294967296", "seed"},
		{"\"label_smoothing\": 0.1", "loss"},
		{"\"momentum\": 0.5", "optimizer"},
		{"\"clipnorm\": 2", "optimizer"},
		{"\"optimizer\": \"adagrad\", \"learning_rate\": 0.02", "optimizer"},
		{"\"learning_rate\": 0.5", "learning_rate"},
		{"\"learning_rate\": 0.5, \"seed\": 9", "seed, learning_rate"},
		{"\"lr_schedule\": \"cosine\"", "lr_schedule"},
		{"\"lr_scaling\": \"linear\"", "lr_scaling"},
		{"\"metrics\": \"none\"", "metrics"},
		{"\"evaluate_every\": 2", "evaluate_every"},
		{"\"early_stop\": \"patience=3\"", "early_stop"},
		{"\"augment\": \"flip\"", "augment"},
		{"\"model_average\": \"ema(decay=.99)\"", "model_average"},
		{"\"class_weight\": \"balanced\"", "class_weight"},
		{"\"class_weight\": {\"1\": 3}", "class_weight"},
		{"\"normalize\": \"standardize\"", "normalize"},
		{"\"deterministic\": false", "deterministic"},
		{"\"cache\": false", "cache"},
		{"\"merge\": \"slowmo\", \"merge_momentum\": \"average\"", "merge"},
		{"\"merge_every\": 9", "merge_every"},
		{"\"merge_warmup\": 2", "merge_warmup"},
		{"\"merge_momentum\": \"keep\"", "merge_momentum"},
		{"\"merge_wire\": \"bf16\"", "merge_wire"},
	};
	struct group g;
	struct err err;
	uint64_t bytes;
	uint8_t *weights;

	for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
		char with[256], said[128];

		snprintf(with, sizeof(with), "{\"backend\": \"ref\", %s}", other[i].given);
		snprintf(said, sizeof(said), "alpha and beta have different %s", other[i].name);
		refused(other[i].given, spec[0], with, said, said);
	}
	refused("a metric that one cannot have", "{\"backend\": \"ref\"}",
		"{\"backend\": \"ref\", \"metrics\": \"top_k(k=7)\"}", "metrics: top_k",
		"beta: metrics: top_k");
	refused("a merge of too few",
		"{\"backend\": \"ref\", \"merge\": \"trimmed_mean\", "
		"\"merge_trim\": 2}",
		"{\"backend\": \"ref\", \"merge\": \"trimmed_mean\", \"merge_trim\": 2}",
		"merge is 'trimmed_mean'", "leaves none of 3");

	if (group_prepare(&g, HOSTS, spec, softmax, rows, NULL, &err))
		BAIL("%s", err.message);
	group_nets(&g);
	g.names = names;
	g.rig[1].agreed.label[2].weight *= 2;
	group_do(&g, group_create_one);
	ok(g.rc[0] && g.rc[1] && g.rc[2], "another weight of a class: refused on all hosts");
	like(g.err[2].message, "alpha and beta have different weights of the classes", "by name");
	group_end(&g);

	if (group_prepare(&g, HOSTS, spec, softmax, rows, NULL, &err))
		BAIL("%s", err.message);
	group_nets(&g);
	g.names = names;
	/* as after an exchange of rows */
	for (uint32_t i = 0; i < HOSTS; i++) {
		g.rig[i].agreed.batch_size = 60;
		g.rig[i].agreed.steps = 7;
	}
	group_do(&g, group_create_one);
	ok(!g.rc[0] && g.rig[0].train->steps == 2 && g.rig[1].train->steps == 2,
	   "steps of an epoch follow from the rows that the hosts have, not from those agreed on");
	weights = rig_get(&g.rig[0], CTL_WEIGHTS, &bytes);
	((float *)weights)[2] += 1;
	is(rig_put(&g.rig[2], CTL_WEIGHTS, weights, bytes, &err), 0, "weights for one host only");
	g.run = (struct ctl_run){.count = 1, .lr_factor = 1};
	group_do(&g, group_run_one);
	ok(g.rc[0] && g.rc[1] && g.rc[2], "no run begins");
	like(g.err[0].message, "gamma begins with other weights", "and the host is named");
	for (uint32_t i = 0; i < 2; i++)
		if (rig_put(&g.rig[i], CTL_WEIGHTS, weights, bytes, &err))
			BAIL("%s", err.message);
	ok(group_run(&g, 0, 1) && group_same_weights(&g), "the same weights for all: it does");
	free(weights);
	group_end(&g);
}

/* ---- stop ---- */

struct stopper {
	struct train *train;
	uint64_t at;
	bool stop;
	uint64_t merges;
	uint64_t checksum;
};

static void count_merge(void *context, const struct merge_result *result)
{
	struct stopper *s = context;

	s->merges++;
	s->checksum = result->checksum;
	if (s->stop && result->number == s->at)
		train_stop(s->train);
}

#define SPEC(more)                                                                    \
	"{\"backend\": \"ref\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.1, " \
	"\"batch_size\": "                                                            \
	"10, " more "}"

/* One host is stopped in the callback of merge `at`; all must stop at the next one. */
static void stopped(const char *spec, uint64_t at, uint64_t steps)
{
	struct stopper s[HOSTS] = {{0}};
	struct group g;
	char want[96];

	group_start(&g, HOSTS, spec, norm, rows, rows);
	for (uint32_t i = 0; i < HOSTS; i++) {
		s[i] = (struct stopper){.train = g.rig[i].train, .at = at, .stop = i == 1};
		g.rig[i].train->setup.on_merge = count_merge;
		g.rig[i].train->setup.context = &s[i];
	}
	ok(group_run(&g, 0, 4), "%s, stopped on one host", spec);
	is(g.row[0].steps, steps, "steps");
	ok(g.row[0].flags == CTL_ROW_STOPPED && group_same_rows(&g) && group_same_weights(&g),
	   "all stop there, with the same row and weights");
	if (steps % 10)
		snprintf(want, sizeof(want), "stopped in epoch %u, after step %u of 10",
			 (unsigned int)steps / 10 + 1, (unsigned int)steps % 10);
	else
		snprintf(want, sizeof(want), "stopped after epoch %u", (unsigned int)steps / 10);
	is_str(g.note[2], want, "and the same note");
	is(g.row[0].epoch, steps / 10, "whole epochs");
	ok(s[0].merges == g.row[0].merges && s[0].checksum == g.row[0].merge_checksum &&
		   s[0].checksum == s[2].checksum && g.row[0].merge_number == s[0].merges,
	   "callbacks for %llu merges", (unsigned long long)s[0].merges);
	ok(isfinite(g.row[0].validation_loss), "evaluated");
	group_end(&g);
}

static void *stop_soon(void *context)
{
	struct train_progress p = {0};

	for (int i = 0; i < 20000 && !p.rows; i++) {
		train_progress(context, &p);
		usleep(100);
	}
	train_stop(context);
	return NULL;
}

static void stops(void)
{
	pthread_t thread;
	struct group g;

	stopped(SPEC("\"merge\": \"gradient\""), 5, 6);
	stopped(SPEC("\"merge\": \"local_sgd\", \"merge_every\": 2"), 2, 6);
	stopped(SPEC("\"merge\": \"average\", \"merge_warmup\": 1"), 3, 4);
	stopped(SPEC("\"merge\": \"average\", \"merge_warmup\": 0.2"), 3, 10);
	/* an epoch's end carries it too */
	stopped(SPEC("\"merge\": \"easgd\", \"merge_warmup\": 0"), 1, 10);
	stopped(SPEC("\"merge\": \"madlib\""), 1, 10);
	stopped(SPEC("\"merge\": \"local_sgd\", \"merge_every\": 13, \"replicas\": 1"), 1, 20);

	group_start(&g, HOSTS, SPEC("\"merge\": \"average\""), norm, rows, NULL);
	train_stop(g.rig[2].train);
	ok(group_run(&g, 0, 4) && g.row[0].steps == 0 && g.row[0].flags == CTL_ROW_STOPPED &&
		   group_same_rows(&g) && group_same_weights(&g),
	   "stopped on one host before the run: nobody begins");
	is_str(g.note[0], "stopped before the first step", "with a note");
	group_end(&g);

	group_start(
		&g, HOSTS,
		"{\"backend\": \"ref\", \"epochs\": 3000, \"merge\": \"none\", \"batch_size\": 1}",
		softmax, rows, NULL);
	if (pthread_create(&thread, NULL, stop_soon, g.rig[1].train))
		BAIL("no thread");
	ok(group_run(&g, 0, 3000), "merge 'none', stopped on one host");
	pthread_join(thread, NULL);
	ok(g.row[0].epoch < 3000 && g.row[0].steps == 100ull * g.row[0].epoch && g.row[0].epoch &&
		   group_same_rows(&g) && g.row[0].flags == CTL_ROW_STOPPED,
	   "all stop at the end of the same epoch, %u", g.row[0].epoch);
	ok(group_same_weights(&g) && g.rig[0].notice &&
		   strstr(g.rig[0].notice, "W:merge is 'none'"),
	   "the model is rank 0's, and a warning says so");
	ok(memcmp(backend_host_arena(g.rig[0].train->net, BACKEND_PARAM),
		  backend_host_arena(g.rig[1].train->net, BACKEND_PARAM), 64) != 0,
	   "the hosts' own weights are apart");
	group_end(&g);
}

/* Merges that are far apart: words in between carry the stop. */
static void stopped_between(void)
{
	pthread_t thread;
	struct group g;

	group_start(&g, HOSTS,
		    "{\"backend\": \"ref\", \"epochs\": 3000, \"merge\": \"madlib\", "
		    "\"merge_every\": \"3000 epochs\", \"batch_size\": 1}",
		    softmax, rows, NULL);
	for (uint32_t i = 0; i < HOSTS; i++)
		g.rig[i].train->hosts->pulse_seconds = 1e-9;
	if (pthread_create(&thread, NULL, stop_soon, g.rig[1].train))
		BAIL("no thread");
	ok(group_run(&g, 0, 3000), "merges 3000 epochs apart, stopped on one host");
	pthread_join(thread, NULL);
	ok(g.row[0].steps && g.row[0].steps < 300000 && g.row[0].flags == CTL_ROW_STOPPED &&
		   group_same_rows(&g) && g.row[0].merges == 1 && group_same_weights(&g),
	   "all stop after %llu steps and merge", (unsigned long long)g.row[0].steps);
	group_end(&g);
}

/* Processors that round differently: the weights are made equal where they must be. */
static void rounding(const char *spec, uint32_t last_sync)
{
	struct group g;
	float w;

	group_start(&g, HOSTS, spec, norm, rows, rows);
	for (uint32_t e = 0; e < 4; e++) {
		struct train *t = g.rig[1].train;

		ok(group_run(&g, e, 1) && group_same_weights(&g) && group_same_rows(&g),
		   "%s: after epoch %u one model on all hosts", spec, e + 1);
		if (e >= last_sync)
			continue;
		backend_read(t->net, BACKEND_PARAM, 3, 1, &w);
		w = nextafterf(w, 2);
		backend_write(t->net, BACKEND_PARAM, 3, 1, &w);
	}
	ok(!memcmp(backend_host_arena(g.rig[0].train->net, BACKEND_PARAM),
		   backend_host_arena(g.rig[1].train->net, BACKEND_PARAM),
		   g.rig[0].train->graph->param_floats * sizeof(float)),
	   "and at the end the hosts hold it");
	group_end(&g);
}

/* ---- NaN ---- */

struct keeper {
	struct rig *rig;
	uint8_t *weights;
	uint64_t bytes;
};

static void keep(void *context, const struct merge_result *result)
{
	struct keeper *k = context;

	free(k->weights);
	k->weights = rig_get(k->rig, CTL_WEIGHTS, &k->bytes);
}

/* Where the order puts beta's row of 1e30 in the first epoch. */
static uint64_t odd_step(struct group *g)
{
	struct data_reader *reader;
	struct backend_batch b;
	struct err err;
	uint64_t place = 60, steps = g->rig[1].train->steps;

	if (data_reader_open(g->rig[1].data, ROW_TRAIN, 64, true, &reader, &err) ||
	    data_reader_epoch(reader, ORACLE_SEED, 0) || data_reader_batch(reader, 0, 60, &b, &err))
		BAIL("rows");
	for (uint64_t i = 0; i < 60; i++)
		if (*(const float *)b.x[i] > 1e29f)
			place = i;
	data_reader_close(reader);
	for (uint64_t s = 0; s < steps; s++)
		if (place < (s + 1) * 60 / steps)
			return s;
	return steps;
}

static void not_a_number(const char *spec, uint64_t every)
{
	struct keeper k[HOSTS] = {{0}};
	uint64_t step, merges, before, bytes;
	uint8_t *start;
	struct group g;
	char want[64];

	group_start(&g, HOSTS, spec, linear, numbers, NULL);
	step = odd_step(&g);
	start = rig_get(&g.rig[0], CTL_WEIGHTS, &before);
	for (uint32_t i = 0; i < HOSTS; i++) {
		k[i].rig = &g.rig[i];
		g.rig[i].train->setup.host_name = names;
		g.rig[i].train->setup.on_merge = keep;
		g.rig[i].train->setup.context = &k[i];
	}
	ok(group_run(&g, 0, 4), "%s: 1e30 on one host", spec);
	ok(g.row[0].flags == CTL_ROW_NAN && g.row[0].epoch == 0 && group_same_rows(&g),
	   "all stop with the same row");
	snprintf(want, sizeof(want), "on beta in epoch 1, step %u of %u", (unsigned int)step + 1,
		 (unsigned int)g.rig[0].train->steps);
	like(g.note[0], want, "the note names host, epoch and step");

	merges = every ? step / every : step;
	is(g.row[0].merges, merges, "merges before");
	ok(group_same_weights(&g), "the same weights on all hosts");
	free(rig_get(&g.rig[0], CTL_OPTIMIZER, &bytes));
	if (every && merges) {
		uint8_t *now = rig_get(&g.rig[2], CTL_WEIGHTS, &bytes);

		ok(k[0].weights && bytes == k[0].bytes && !memcmp(now, k[0].weights, bytes) &&
			   !memcmp(now, k[1].weights, bytes),
		   "those of the last merge");
		snprintf(want, sizeof(want), "those after step %u of epoch 1",
			 (unsigned int)(merges * every));
		like(g.note[1], want, "as the note says");
		free(now);
	} else {
		uint8_t *now = rig_get(&g.rig[2], CTL_WEIGHTS, &bytes);

		ok(bytes == before && !memcmp(now, start, bytes), "the initial ones");
		like(g.note[1], "the initial ones", "as the note says");
		free(now);
	}
	for (uint32_t i = 0; i < HOSTS; i++)
		free(k[i].weights);
	free(start);
	group_end(&g);
}

/* Merges at steps 7 and 14, ten steps an epoch: NaN in the second epoch goes back into the first.
 */
static void back_over_an_epoch(void)
{
	struct keeper k[HOSTS] = {{0}};
	struct group g;
	uint64_t bytes;
	uint8_t *now;
	float bad = NAN;

	group_start(&g, HOSTS, SPEC("\"merge\": \"local_sgd\", \"merge_every\": 7"), norm, rows,
		    rows);
	for (uint32_t i = 0; i < HOSTS; i++) {
		k[i].rig = &g.rig[i];
		g.rig[i].train->setup.host_name = names;
		g.rig[i].train->setup.on_merge = keep;
		g.rig[i].train->setup.context = &k[i];
	}
	ok(group_run(&g, 0, 1) && g.row[0].merges == 1, "an epoch with a merge at step 7 of 10");
	free(rig_get(&g.rig[0], CTL_OPTIMIZER, &bytes));
	free(rig_get(&g.rig[1], CTL_OPTIMIZER, &bytes));
	backend_write(g.rig[1].train->net, BACKEND_PARAM, 1, 1, &bad);
	ok(group_run(&g, 1, 1) && g.row[0].flags == CTL_ROW_NAN && group_same_rows(&g) &&
		   g.row[0].epoch == 1,
	   "NaN on one host in the next");
	like(g.note[2], "on beta in epoch 2, step 1 of 10", "is named");
	like(g.note[2], "those after step 7 of epoch 1", "and so is the merge that is left");
	now = rig_get(&g.rig[2], CTL_WEIGHTS, &bytes);
	ok(group_same_weights(&g) && bytes == k[1].bytes && !memcmp(now, k[1].weights, bytes),
	   "whose weights all hold");
	free(now);
	for (uint32_t i = 0; i < HOSTS; i++)
		free(k[i].weights);
	group_end(&g);
}

/* ---- cancel ---- */

struct canceler {
	struct group *g;
	atomic_bool flag;
};

static void *cancel_soon(void *context)
{
	struct canceler *c = context;

	usleep(100000);
	atomic_store(&c->flag, true);
	if (c->g->rig[0].train)
		train_cancel(c->g->rig[0].train);
	merge_net_abort(c->g->rig[0].net);
	return NULL;
}

static void create_first(struct group *g, uint32_t i)
{
	if (!i)
		group_create_one(g, i);
}

static void run_first(struct group *g, uint32_t i)
{
	if (!i)
		group_run_one(g, i);
}

/* One host waits for others that do not come. */
static void canceled(const char *what, const char *spec, bool create)
{
	const char *const all[HOSTS] = {spec, spec, spec};
	struct canceler c;
	struct group g;
	struct err err;
	double begin;
	pthread_t thread;

	if (create) {
		if (group_prepare(&g, HOSTS, all, softmax, rows, NULL, &err))
			BAIL("%s", err.message);
		group_nets(&g);
	} else {
		group_start(&g, HOSTS, spec, softmax, rows, NULL);
	}
	c = (struct canceler){.g = &g};
	g.run = (struct ctl_run){.count = 1, .lr_factor = 1};
	begin = train_now();
	if (pthread_create(&thread, NULL, cancel_soon, &c))
		BAIL("no thread");
	group_do(&g, create ? create_first : run_first);
	pthread_join(thread, NULL);
	ok(g.rc[0] == -ECANCELED && g.err[0].kind == ERR_CANCELED && train_now() - begin < 1,
	   "%s is broken by cancel: %s", what, g.err[0].message);
	group_end(&g);
}

/* ---- merge_every = 'auto' ---- */

static void automatic(void)
{
	struct group g;

	group_start(&g, HOSTS, SPEC("\"merge\": \"local_sgd\", \"merge_every\": \"auto\""), softmax,
		    rows, NULL);
	ok(group_run(&g, 0, 1), "merge_every 'auto'");
	ok(g.row[0].merges == 10 && g.row[0].merge_auto >= 1 && group_same_rows(&g),
	   "synchronous until chosen; %u is advised, the same on all", g.row[0].merge_auto);
	g.run.merge_every = 4;
	ok(group_run(&g, 1, 1) && g.row[0].merges == 3, "chosen: 4, counted over the training");
	ok(group_run(&g, 2, 2) && g.row[0].merges == 5 && group_same_weights(&g),
	   "steps 24 to 40, and the last one");
	group_end(&g);
	group_start(&g, HOSTS, SPEC("\"merge\": \"local_sgd\""), softmax, rows, NULL);
	ok(group_run(&g, 0, 1) && g.row[0].merge_auto == 0 && g.row[0].merges == 1,
	   "no advice where it was not asked for");
	group_end(&g);
}

/* ---- evaluation jobs ---- */

static void evaluate_one(struct group *g, uint32_t i)
{
	/* as the daemon does: rows for validation where it has some */
	enum row_set set = data_rows(g->rig[i].data, ROW_VALIDATION) ? ROW_VALIDATION : ROW_TRAIN;

	g->rc[i] = train_evaluate(g->rig[i].train, set, &g->row[i], &g->err[i]);
}

static void evaluation(void)
{
	const char *spec =
		"{\"backend\": \"cpu\", \"kind\": \"evaluate\", \"metrics\": \"accuracy, "
		"auc\"}";
	const char *const all[HOSTS] = {spec, spec, spec};
	struct rig_rows whole = rows[0], other = rows[0], some[HOSTS];
	static float vx[(100 + 80) * WIDTH];
	static int32_t vy[100 + 80];
	struct ctl_run_row row;
	struct group g;
	struct err err;
	struct rig one;

	/* the second host has no rows for validation: it would take those for training */
	memcpy(vx, rows[0].f32, 100 * WIDTH * sizeof(float));
	memcpy(vx + 100 * WIDTH, rows[2].f32, 80 * WIDTH * sizeof(float));
	memcpy(vy, rows[0].y_int, 100 * sizeof(*vy));
	memcpy(vy + 100, rows[2].y_int, 80 * sizeof(*vy));
	whole.n = ROWS;
	other.n = 180;
	other.f32 = vx;
	other.y_int = vy;
	memcpy(some, rows, sizeof(some));
	some[1].n = 0;
	if (rig_start(&one, spec, softmax, &whole, &other, &err) ||
	    train_evaluate(one.train, ROW_VALIDATION, &row, &err))
		BAIL("%s", err.message);
	if (group_prepare(&g, HOSTS, all, softmax, rows, some, &err))
		BAIL("%s", err.message);
	for (uint32_t i = 0; i < HOSTS; i++)
		g.rig[i].inference = true;
	group_nets(&g);
	group_do(&g, group_create_one);
	group_do(&g, evaluate_one);
	ok(!g.rc[0] && !g.rc[1] && !g.rc[2] && group_same_rows(&g),
	   "evaluation on several hosts: one row %s", g.err[0].message);
	near(g.row[0].validation_loss, row.validation_loss, 1e-6, "the loss of all rows");
	near(g.row[0].metric[0].validation, row.metric[0].validation, 1e-12, "accuracy");
	near(g.row[0].metric[1].validation, row.metric[1].validation, 1e-12, "AUC");
	ok(rig_same(&g.rig[0], &one, CTL_CONFUSION) && rig_same(&g.rig[2], &one, CTL_CONFUSION),
	   "confusion matrix");
	ok(g.row[0].rows == 180 && g.row[0].hosts == HOSTS, "rows and hosts");
	rig_end(&one);
	group_end(&g);
}

int main(void)
{
	make_rows();
	beginnings();
	stops();
	stopped_between();
	rounding(SPEC("\"merge\": \"gradient\""), 3);
	rounding(SPEC("\"merge\": \"slowmo\", \"merge_warmup\": 2"), 2);
#define NUMBERS(backend, more)                                                                  \
	"{\"backend\": \"" backend "\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.001, " \
	"\"normalize\": \"none\", \"batch_size\": 10, " more "}"
	not_a_number(NUMBERS("ref", "\"merge\": \"gradient\""), 0);
	not_a_number(NUMBERS("cpu", "\"merge\": \"gradient\", \"replicas\": 2"), 0);
	not_a_number(NUMBERS("ref", "\"merge\": \"local_sgd\", \"merge_every\": 2"), 2);
	not_a_number(NUMBERS("ref", "\"merge\": \"local_sgd\", \"merge_every\": 50"), 50);
	not_a_number(NUMBERS("cpu",
			     "\"merge\": \"easgd\", \"merge_warmup\": 0, \"merge_every\": 2, "
			     "\"accumulate\": 1"),
		     2);
	back_over_an_epoch();
	canceled("train_create", SPEC("\"merge\": \"average\""), true);
	canceled("a run", SPEC("\"merge\": \"gradient\""), false);
	automatic();
	evaluation();
	free(softmax);
	free(linear);
	free(norm);
	return done();
}
