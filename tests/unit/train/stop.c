// SPDX-License-Identifier: MIT
/*
 * stop.c: how a training ends before its last epoch: NaN and Inf (the last good weights stay, the
 * note names epoch and step), early stopping with the best weights, stop and cancel from another
 * thread.
 */
#include <pthread.h>
#include <unistd.h>

#include "rig.h"

#define ROWS 200
#define WIDTH 8

static float x[ROWS * WIDTH], far_x[ROWS * WIDTH];
static double target[ROWS];
static int32_t label[ROWS];

static void make_rows(void)
{
	uint64_t state = 21;

	for (uint32_t i = 0; i < ROWS; i++) {
		target[i] = 0;
		for (uint32_t j = 0; j < WIDTH; j++) {
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1;
			target[i] += (j + 1.0) * x[i * WIDTH + j];
		}
		label[i] = (int32_t)(rig_random(&state) % 2); /* noise: nothing to learn */
	}
	memcpy(far_x, x, sizeof(x));
	far_x[ROWS / 2 * WIDTH] = 1e30f;
}

static struct rig_rows regression(void)
{
	return (struct rig_rows){
		.n = ROWS, .h = 1, .w = 1, .c = WIDTH, .f32 = x, .y_double = target};
}

static void start(struct rig *r, const char *spec, const char *layers, const struct rig_rows *train,
		  const struct rig_rows *validation)
{
	char *architecture = rig_dense(WIDTH, layers);
	struct err err;

	if (rig_start(r, spec, architecture, train, validation, &err))
		BAIL("%s: %s", spec, err.message);
	free(architecture);
}

static bool weights_are(struct rig *r, const uint8_t *before, uint64_t n)
{
	uint64_t m;
	uint8_t *now = rig_get(r, CTL_WEIGHTS, &m);
	bool same = now && n == m && !memcmp(now, before, n);

	free(now);
	return same;
}

/* Runs epoch by epoch until the row says NaN; the weights must be those before that epoch. */
static void diverge(const char *what, const char *spec, const struct rig_rows *train,
		    uint32_t first, uint32_t last)
{
	struct ctl_run_row row = {0};
	uint32_t epoch = 0, said = 0, step = 0, steps = 0;
	uint8_t *before = NULL, *optimizer = NULL;
	struct err err = {0};
	const char *at;
	uint64_t n = 0, m = 0, k = 0;
	struct rig r;
	int rc = 0;

	start(&r, spec, "dense:6:tanh,dense:1:linear", train, NULL);
	for (; !rc && !(row.flags & CTL_ROW_NAN) && epoch < r.config.epochs; epoch++) {
		free(before);
		free(optimizer);
		before = rig_get(&r, CTL_WEIGHTS, &n);
		optimizer = rig_get(&r, CTL_OPTIMIZER, &m);
		rc = rig_run(&r, epoch, 1, &row, &err);
	}
	ok(!rc && row.flags == CTL_ROW_NAN && epoch >= first && epoch <= last,
	   "%s: stops in epoch %u %s", what, epoch, err.message);
	at = row.note.p ? strstr(row.note.p, "in epoch ") : NULL;
	ok(at && sscanf(at, "in epoch %u, step %u of %u", &said, &step, &steps) == 3 &&
		   said == epoch && step >= 1 && step <= steps && steps == r.agreed.steps,
	   "%s: %.*s", what, (int)row.note.n, row.note.p ? row.note.p : "");
	is(row.epoch, epoch - 1, "epochs done do not count the one that broke");
	ok(before && weights_are(&r, before, n), "%s: the weights are those before that epoch",
	   what);
	free(before);
	before = rig_get(&r, CTL_OPTIMIZER, &k);
	ok(before && optimizer && m == k && !memcmp(before, optimizer, m),
	   "%s: and so is the optimizer state", what);
	free(before);
	free(optimizer);
	rig_end(&r);
}

static void numeric(const char *backend)
{
	struct rig_rows rows = regression();
	char spec[256];

	snprintf(
		spec, sizeof(spec),
		"{\"backend\": \"%s\", \"batch_size\": 20, \"learning_rate\": 1e6, \"epochs\": 50}",
		backend);
	diverge("learning rate 1e6", spec, &rows, 1, 3);
	snprintf(
		spec, sizeof(spec),
		"{\"backend\": \"%s\", \"batch_size\": 20, \"learning_rate\": 1.5, \"epochs\": 50, "
		"\"model_average\": \"ema(decay=0.5)\", \"replicas\": 2}",
		backend);
	diverge("an average, two replicas", spec, &rows, 2, 50);
}

/* A pixel of 1e30 in a linear network: the loss is infinite at that row's step. */
static void pixels(void)
{
	struct rig_rows rows = regression(), odd = regression();
	struct ctl_run_row row;
	struct err err = {0};
	uint8_t *before;
	uint64_t n;
	struct rig r;

	odd.f32 = far_x;
	start(&r, "{\"backend\": \"ref\", \"batch_size\": 20}", "dense:4:linear,dense:1:linear",
	      &odd, NULL);
	before = rig_get(&r, CTL_WEIGHTS, &n);
	is(rig_run(&r, 0, 2, &row, &err), 0, "pixels of 1e30");
	ok(row.flags == CTL_ROW_NAN && row.epoch == 0, "stop in the first epoch: %.*s",
	   (int)row.note.n, row.note.p ? row.note.p : "");
	ok(weights_are(&r, before, n), "the initial weights stay");
	free(before);
	rig_end(&r);

	start(&r, "{\"backend\": \"ref\", \"batch_size\": 20}", "dense:4:linear,dense:1:linear",
	      &rows, &odd);
	odd.f32 = x;
	is(rig_run(&r, 0, 1, &row, &err), 0, "finite training, validation pixels of 1e30:");
	ok(!(row.flags & CTL_ROW_NAN) && row.validation_loss > 1e40,
	   "a huge but finite validation loss is a loss (%g)", row.validation_loss);
	rig_end(&r);
}

/* Loss and gradient are finite, the step itself overflows: the last one of the epoch. */
static void overflow(void)
{
	static const float huge[WIDTH] = {1e18f};
	static const double goal[1];
	struct rig_rows row_1e18 = {
		.n = 1, .h = 1, .w = 1, .c = WIDTH, .f32 = huge, .y_double = goal};
	struct ctl_run_row row;
	struct err err = {0};
	uint8_t *before;
	uint64_t n;
	struct rig r;

	start(&r, "{\"backend\": \"ref\", \"learning_rate\": 1e6}", "dense:1:linear", &row_1e18,
	      NULL);
	before = rig_get(&r, CTL_WEIGHTS, &n);
	is(rig_run(&r, 0, 1, &row, &err), 0, "an update that overflows");
	ok(row.flags == CTL_ROW_NAN && row.note.p && !strncmp(row.note.p, "weight is", 9),
	   "is found at the epoch's end: %.*s", (int)row.note.n, row.note.p ? row.note.p : "");
	ok(weights_are(&r, before, n), "the initial weights stay");
	free(before);
	rig_end(&r);
}

/* The coordinator's part of early stopping. */
static void early(void)
{
	struct rig_rows train = {
		.n = ROWS / 2, .h = 1, .w = 1, .c = WIDTH, .f32 = x, .y_int = label};
	struct rig_rows validation = train;
	struct ctl_run run = {.count = 1, .lr_factor = 1};
	struct ctl_run_row row;
	uint8_t *best = NULL, *got;
	double least = INFINITY;
	struct err err = {0};
	uint64_t n = 0, m;
	uint32_t best_epoch = 0, said = 0;
	char want[160];
	struct rig r;

	validation.f32 += ROWS / 2 * WIDTH;
	validation.y_int += ROWS / 2;
	start(&r,
	      "{\"backend\": \"ref\", \"batch_size\": 10, \"epochs\": 200, \"optimizer\": "
	      "\"adam\", "
	      "\"learning_rate\": 0.02, \"early_stop\": \"patience=4\"}",
	      "dense:16:tanh,dense:2:softmax", &train, &validation);
	do {
		if (train_run(r.train, &run, &row, &err))
			BAIL("early stopping: %s", err.message);
		run.flags = row.flags & CTL_ROW_IMPROVED ? CTL_RUN_SNAPSHOT : 0;
		said += row.note.n && !(row.flags & CTL_ROW_FINISH);
		if (row.validation_loss < least) {
			least = row.validation_loss;
			free(best);
			best = rig_get(&r, CTL_WEIGHTS, &n);
			best_epoch = run.first_epoch;
		}
		run.first_epoch++;
	} while (!(row.flags & CTL_ROW_FINISH) && run.first_epoch < 200);
	is(said, 0, "no note before the end");
	is(run.first_epoch, best_epoch + 5, "stops four epochs after the best one");
	ok(row.flags & CTL_ROW_RESTORE, "and asks for the best weights");
	snprintf(want, sizeof(want),
		 "stopped early, val_loss is no better than %.6g; the best weights are those after "
		 "epoch %u",
		 least, best_epoch + 1);
	ok(row.note.n == strlen(want) && !memcmp(row.note.p, want, row.note.n), "and says so: %.*s",
	   (int)row.note.n, row.note.n ? row.note.p : "");
	got = rig_get(&r, CTL_BEST, &m);
	ok(got && n == m && !memcmp(got, best, n), "which are the snapshot");
	free(got);
	free(best);
	rig_end(&r);
}

static void plateau(void)
{
	struct rig_rows rows = regression();
	struct ctl_run run = {.count = 1, .lr_factor = 1};
	struct ctl_run_row row;
	struct err err = {0};
	double lr = 0;
	struct rig r;

	start(&r,
	      "{\"backend\": \"ref\", \"batch_size\": 10, \"epochs\": 20, \"learning_rate\": 0.1, "
	      "\"lr_schedule\": \"plateau(factor=0.5, patience=2, min_delta=1e6)\"}",
	      "dense:1:linear", &rows, NULL);
	for (; run.first_epoch < 5; run.first_epoch++) {
		if (train_run(r.train, &run, &row, &err))
			BAIL("plateau: %s", err.message);
		run.lr_factor = row.lr_factor;
		lr = row.lr;
	}
	near(row.lr_factor, .25, 1e-12, "two reductions advised in five epochs without progress");
	near(lr, .05, 1e-12, "the learning rate follows the factor of the run");
	run.lr_factor = 0;
	is(train_run(r.train, &run, &row, &err), -EINVAL, "a factor of 0 is refused");
	run.lr_factor = NAN;
	is(train_run(r.train, &run, &row, &err), -EINVAL, "and NaN");
	run = (struct ctl_run){.first_epoch = 19, .count = 2, .lr_factor = 1};
	is(train_run(r.train, &run, &row, &err), -EINVAL, "epochs past the end are refused");
	like(err.message, "epochs 20 to 21 were asked for, the training has 20", "by number");
	run.first_epoch = UINT32_MAX;
	is(train_run(r.train, &run, &row, &err), -EINVAL, "and far past it");
	run = (struct ctl_run){.first_epoch = 0, .count = 1, .lr_factor = 1, .flags = 0x80};
	is(train_run(r.train, &run, &row, &err), -EPROTO, "unknown flags are refused");
	rig_end(&r);
}

/* ---- from another thread ---- */

struct other {
	struct train *train;
	bool cancel, ordered;
	uint64_t seen;
};

static void *interrupt(void *context)
{
	struct other *o = context;
	struct train_progress p, last = {0};

	o->ordered = true;
	for (int i = 0; i < 20000; i++) {
		train_progress(o->train, &p);
		o->ordered &= p.rows >= last.rows && p.epoch >= last.epoch && p.step <= p.steps;
		last = p;
		if (p.rows >= 40)
			break;
		usleep(500);
	}
	o->seen = last.rows;
	if (o->cancel)
		train_cancel(o->train);
	else
		train_stop(o->train);
	return NULL;
}

static void interrupted(bool cancel)
{
	struct rig_rows rows = regression();
	struct other o = {.cancel = cancel};
	struct ctl_run_row row;
	struct err err = {0};
	char want[96];
	double begin;
	pthread_t thread;
	struct rig r;
	int rc;

	/* far more than would be done in the time of this test */
	start(&r, "{\"backend\": \"ref\", \"batch_size\": 2, \"epochs\": 100000}",
	      "dense:64:tanh,dense:64:tanh,dense:1:linear", &rows, NULL);
	o.train = r.train;
	if (pthread_create(&thread, NULL, interrupt, &o))
		BAIL("no thread");
	begin = train_now();
	rc = rig_run(&r, 0, 100000, &row, &err);
	pthread_join(thread, NULL);
	ok(o.seen >= 40 && o.ordered, "progress is seen from another thread, in order");
	ok(train_now() - begin < 20, "%s ends the run", cancel ? "cancel" : "stop");
	if (cancel) {
		ok(rc == -ECANCELED && err.kind == ERR_CANCELED, "with -ECANCELED");
	} else {
		ok(!rc && row.flags == CTL_ROW_STOPPED && row.epoch < 100000 && row.rows >= 40 &&
			   isfinite(row.loss),
		   "with a row that is good (%u epochs, %llu rows)", row.epoch,
		   (unsigned long long)row.rows);
		/* the row's steps tell where it must have been */
		if (row.steps % (ROWS / 2))
			snprintf(want, sizeof(want), "stopped in epoch %u, after step %llu of %u",
				 row.epoch + 1, (unsigned long long)row.steps % (ROWS / 2),
				 ROWS / 2);
		else
			snprintf(want, sizeof(want), "stopped after epoch %u", row.epoch);
		ok(row.note.n == strlen(want) && !memcmp(row.note.p, want, row.note.n),
		   "that says where: %s", want);
		rc = rig_run(&r, row.epoch, 1, &row, &err);
		ok(!rc && row.flags == CTL_ROW_STOPPED && !row.steps && isnan(row.loss),
		   "a run after stop does nothing and says so");
		ok(row.note.n && !strncmp(row.note.p, "stopped ", 8), "in its note, too");
	}
	rig_end(&r);
}

int main(void)
{
	make_rows();
	numeric("ref");
	numeric("cpu");
	pixels();
	overflow();
	early();
	plateau();
	interrupted(false);
	interrupted(true);
	return done();
}
