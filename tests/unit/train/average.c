// SPDX-License-Identifier: MIT
/*
 * average.c: EMA and SWA against a computation of their own in double, on one host and on several;
 * the training does not notice them; SWA's statistics are those of the training rows.
 */
#include "oracle.h"

#define ROWS 150
#define HOSTS 3
#define EPOCHS 4

static float x[ROWS * WIDTH];
static int32_t y[ROWS];
static char *softmax, *deep, *norm;
static struct rig_rows rows[HOSTS], all;

static void make_rows(void)
{
	static const uint32_t n[HOSTS] = {50, 60, 40};
	uint64_t state = 8;
	uint32_t first = 0;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % CLASSES);
		for (uint32_t j = 0; j < WIDTH; j++)
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1 +
					   (float)j / 2 + (j == (uint32_t)y[i] ? .8f : 0);
	}
	all = (struct rig_rows){.n = ROWS, .h = 1, .w = 1, .c = WIDTH, .f32 = x, .y_int = y};
	for (uint32_t i = 0; i < HOSTS; i++) {
		rows[i] = all;
		rows[i].n = n[i];
		rows[i].f32 = x + first * WIDTH;
		rows[i].y_int = y + first;
		first += n[i];
	}
	softmax = rig_dense(WIDTH, "dense:3:softmax");
	deep = rig_dense(WIDTH, "dense:9:relu,norm:70,dense:3:softmax");
	norm = rig_dense(WIDTH, "norm:90,dense:3:softmax");
}

#define SPEC(more)                                                                    \
	"{\"backend\": \"ref\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.1, " \
	"\"normalize\": "                                                             \
	"\"none\", \"batch_size\": 10, " more "}"

/* decay > 0: EMA, else SWA from epoch `from` on. every 0: synchronous. */
static void against_oracle(const char *spec, double decay, uint32_t from, uint64_t every)
{
	double mean[SIZE], worst = 0, far = 0;
	uint64_t step = 0, t = 0, bytes, states = 0;
	struct oracle o;
	struct group g;
	float *got;

	group_start(&g, HOSTS, spec, softmax, rows, rows);
	oracle_open(&o, &g, .1, .9);
	memcpy(mean, o.w[0], sizeof(mean));
	for (uint32_t e = 0; e < EPOCHS; e++) {
		for (uint64_t k = 0; k < o.steps; k++) {
			uint64_t updates = every ? every : 1;
			double keep = pow(decay, (double)updates);

			oracle_step(&o, e, k, !every);
			if (every && ++step % every)
				continue;
			if (every)
				oracle_merge(&o);
			keep = fmin(keep, (1. + (double)t) / (10. + (double)t));
			for (int i = 0; decay > 0 && i < SIZE; i++)
				mean[i] = keep * mean[i] + (1 - keep) * o.w[0][i];
			t += updates;
		}
		if (decay == 0 && e >= from) {
			for (int i = 0; i < SIZE; i++)
				mean[i] = states ? mean[i] + (o.w[0][i] - mean[i]) /
								     (double)(states + 1)
						 : o.w[0][i];
			states++;
		}
	}
	ok(group_run(&g, 0, EPOCHS), "%s", spec);
	got = (float *)rig_get(&g.rig[0], CTL_WEIGHTS, &bytes);
	for (int i = 0; i < SIZE; i++) {
		worst = fmax(worst, fabs(got[i] - mean[i]));
		far = fmax(far, fabs(mean[i] - o.w[0][i]));
	}
	ok(worst < 1e-5 && far > 1e-2,
	   "the model is the average (%.1e; the weights are %.1e from it)", worst, far);
	ok(group_same_weights(&g) && group_same_rows(&g), "on all hosts");
	free(got);
	oracle_close(&o);
	group_end(&g);
}

/* One host: with an average, without, and evaluated each epoch. */
static void undisturbed(const char *average, const char *more)
{
	struct ctl_run_row row, last;
	struct rig a, b, c;
	char with[320], without[256];
	struct err err;
	uint64_t n;

	snprintf(without, sizeof(without),
		 "{\"backend\": \"cpu\", \"epochs\": 4, \"batch_size\": 16%s}", more);
	snprintf(with, sizeof(with),
		 "{\"backend\": \"cpu\", \"epochs\": 4, \"batch_size\": 16, \"model_average\": "
		 "\"%s\"%s}",
		 average, more);
	if (rig_start(&a, without, deep, &all, &all, &err) || rig_run(&a, 0, 4, &row, &err) ||
	    rig_start(&b, with, deep, &all, &all, &err) || rig_run(&b, 0, 4, &last, &err) ||
	    rig_start(&c, with, deep, &all, &all, &err))
		BAIL("%s", err.message);
	for (uint32_t e = 0; e < 4; e++) {
		if (rig_run(&c, e, 1, &row, &err))
			BAIL("%s", err.message);
		free(rig_get(&c, CTL_WEIGHTS, &n));
		free(rig_get(&c, CTL_OPTIMIZER, &n));
	}
	ok(rig_same(&a, &b, CTL_OPTIMIZER) &&
		   !memcmp(backend_host_arena(a.train->net, BACKEND_PARAM),
			   backend_host_arena(b.train->net, BACKEND_PARAM),
			   a.train->graph->param_floats * sizeof(float)) &&
		   !memcmp(backend_host_arena(a.train->net, BACKEND_STAT),
			   backend_host_arena(b.train->net, BACKEND_STAT),
			   a.train->graph->stat_floats * sizeof(float)),
	   "%s%s: the training does not notice", average, more);
	ok(rig_same(&b, &c, CTL_WEIGHTS) && last.validation_loss == row.validation_loss,
	   "nor does the average notice evaluations");
	ok(rig_distance(&a, &b) > 1e-4 && isfinite(last.validation_loss), "it is another model");
	rig_end(&a);
	rig_end(&b);
	rig_end(&c);
}

/* Batch norm on the inputs: whatever the weights, its moments are those of the rows. */
static void statistics(void)
{
	double mu[WIDTH] = {0}, var[WIDTH] = {0}, worst = 0;
	struct group g;
	uint64_t bytes;
	float *got;

	for (uint32_t j = 0; j < WIDTH; j++) {
		for (uint32_t i = 0; i < ROWS; i++)
			mu[j] += x[i * WIDTH + j] / (double)ROWS;
		for (uint32_t i = 0; i < ROWS; i++)
			var[j] += pow(x[i * WIDTH + j] - mu[j], 2) / ROWS;
	}
	group_start(&g, HOSTS,
		    SPEC("\"model_average\": \"swa(start=1)\", \"merge\": \"average\", "
			 "\"merge_every\": 3, \"replicas\": 2"),
		    norm, rows, rows);
	ok(group_run(&g, 0, EPOCHS) && group_same_weights(&g) && group_same_rows(&g),
	   "SWA with batch norm on three hosts of two replicas");
	got = (float *)rig_get(&g.rig[0], CTL_WEIGHTS, &bytes);
	for (uint32_t j = 0; j < WIDTH; j++)
		/* gamma, beta, mean, variance */
		worst = fmax(worst, fmax(fabs(got[2 * WIDTH + j] - mu[j]),
					 fabs(got[3 * WIDTH + j] - var[j])));
	ok(worst < 1e-4, "its statistics are those of all training rows (%.1e)", worst);
	free(got);
	group_end(&g);
}

static void refused(const char *spec, const char *piece)
{
	struct train_config c;
	struct err err = {0};

	is(train_config_parse(spec, strlen(spec), &c, &err), -EINVAL, spec);
	like(err.message, piece, "says what is legal");
}

int main(void)
{
	make_rows();
	against_oracle(SPEC("\"model_average\": \"ema(decay=0.9)\", \"merge\": \"gradient\""), .9,
		       0, 0);
	against_oracle(SPEC("\"model_average\": \"ema(decay=0.97)\", \"merge\": \"local_sgd\", "
			    "\"merge_every\": 3"),
		       .97, 0, 3);
	against_oracle(SPEC("\"model_average\": \"swa(start=1)\", \"merge\": \"gradient\""), 0, 1,
		       0);
	against_oracle(SPEC("\"model_average\": \"swa(start=2)\", \"merge\": \"local_sgd\", "
			    "\"merge_every\": \"epoch\""),
		       0, 2, 6);
	undisturbed("ema(decay=0.95)", "");
	undisturbed("ema(decay=0.95)", ", \"replicas\": 3");
	undisturbed("swa(start=2)", "");
	statistics();
	refused("{\"model_average\": \"mean\"}", "model_average is 'mean', must be 'none', 'ema(");
	refused("{\"model_average\": \"ema(decay=1)\"}", "must be a number in (0, 1)");
	refused("{\"model_average\": \"ema(start=1)\"}", "start");
	refused("{\"model_average\": \"swa(start=10)\"}", "start is 10, must be below epochs, 10");
	free(softmax);
	free(deep);
	free(norm);
	return done();
}
