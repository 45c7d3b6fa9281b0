// SPDX-License-Identifier: MIT
/*
 * replicas.c: R replicas of batch B are one replica of batch R B, whatever the optimizer, weights
 * of rows, dropout and augmentation; they stay equal to the last bit; their batch-norm statistics
 * are pooled, without disturbing them.
 */
#include "rig.h"

#define ROWS 203
#define PIXELS RIG_PIXELS

static uint8_t image[ROWS * PIXELS];
static int32_t label[ROWS];
static double weight[ROWS];

static void make_rows(void)
{
	rig_pictures(image, label, weight, ROWS);
}

static struct rig_rows table(void)
{
	return (struct rig_rows){
		.n = ROWS, .h = 8, .w = 8, .c = 1, .u8 = image, .y_int = label, .weight = weight};
}

static struct ctl_run_row start(struct rig *r, const char *spec, const char *layers,
				uint32_t epochs)
{
	char *architecture = rig_dense(PIXELS, layers);
	struct rig_rows rows = table();
	struct ctl_run_row row;
	struct err err;

	if (rig_start(r, spec, architecture, &rows, &rows, &err) ||
	    rig_run(r, 0, epochs, &row, &err))
		BAIL("%s: %s", spec, err.message);
	free(architecture);
	return row;
}

static bool replicas_equal(struct rig *r, enum backend_arena arena, uint64_t floats)
{
	struct train *t = r->train;

	for (uint32_t k = 1; k < t->replicas; k++)
		if (memcmp(backend_host_arena(t->replica[0], arena),
			   backend_host_arena(t->replica[k], arena), floats * sizeof(float)))
			return false;
	return true;
}

#define COMMON                                                                                    \
	"{\"backend\": \"%s\", \"epochs\": 3, \"optimizer\": \"%s\", \"learning_rate\": 0.01, "   \
	"%s \"lr_schedule\": \"cosine(warmup=1)\", \"augment\": \"flip, pad_crop=1, cutout=2\", " \
	"\"class_weight\": {\"1\": 2}, \"clipnorm\": 5, "

/* 203 rows by 48: 5 steps of 40 or 41 rows, over 3 replicas. */
static void one_of_all(const char *backend, const char *optimizer, const char *more,
		       uint32_t replicas, uint32_t accumulate)
{
	const char *layers = "dense:24:relu,dropout:25,dense:12:tanh,dropout:10,dense:4:softmax";
	struct ctl_run_row p, q;
	char spec[640];
	struct rig a, b;
	double d;

	snprintf(spec, sizeof(spec), COMMON "\"batch_size\": 48, \"accumulate\": %u}", backend,
		 optimizer, more, accumulate);
	p = start(&a, spec, layers, 3);
	snprintf(spec, sizeof(spec),
		 COMMON "\"batch_size\": %u, \"replicas\": %u, \"accumulate\": %u}", backend,
		 optimizer, more, 48 / replicas, replicas, accumulate);
	q = start(&b, spec, layers, 3);
	d = rig_distance(&a, &b);
	ok(d < (optimizer[0] == 'a' ? 2e-5 : 2e-6),
	   "%s, %s%s, accumulate %u: %u replicas of batch %u = one of batch 48 (%.1e)", backend,
	   optimizer, more, accumulate, replicas, 48 / replicas, d);
	ok(p.steps == q.steps && p.rows == q.rows && p.steps == 15 && p.rows == 3 * ROWS,
	   "the same steps and rows");
	near(p.loss, q.loss, 1e-5, "the same loss");
	near(p.validation_loss, q.validation_loss, 1e-5, "validation loss");
	near(p.metric[0].train, q.metric[0].train, 1e-9, "and accuracy");
	ok(replicas_equal(&b, BACKEND_PARAM, b.train->graph->param_floats) &&
		   replicas_equal(&b, BACKEND_SLOT, b.train->graph->param_floats * b.train->slots),
	   "replicas hold the same bits");
	rig_end(&a);
	rig_end(&b);
}

/* Another seed is another mask: the comparison above would see it. */
static void masks_matter(void)
{
	const char *layers = "dense:24:relu,dropout:25,dense:4:softmax";
	struct rig a, b;
	struct err err;
	struct ctl_run_row row;
	struct rig_rows rows = table();
	char *architecture = rig_dense(PIXELS, layers);
	uint64_t n;
	uint8_t *weights;

	if (rig_start(&a, "{\"backend\": \"ref\", \"batch_size\": 203, \"seed\": 0}", architecture,
		      &rows, NULL, &err) ||
	    rig_start(&b, "{\"backend\": \"ref\", \"batch_size\": 203, \"seed\": 1}", architecture,
		      &rows, NULL, &err))
		BAIL("%s", err.message);
	weights = rig_get(&a, CTL_WEIGHTS, &n);
	if (rig_put(&b, CTL_WEIGHTS, weights, n, &err) || rig_run(&a, 0, 1, &row, &err) ||
	    rig_run(&b, 0, 1, &row, &err))
		BAIL("%s", err.message);
	ok(rig_distance(&a, &b) > 1e-4, "other masks make other weights");
	free(weights);
	free(architecture);
	rig_end(&a);
	rig_end(&b);
}

/* ---- batch norm ---- */

static void pooled(const char *backend)
{
	const char *layers = "dense:16:relu,norm:80,dense:4:softmax";
	double mu, var, worst = 0, apart = 0;
	uint64_t n, blob, rows[3];
	struct rig r;
	char spec[256];
	float *got;
	const float *stat[3];

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"%s\", \"epochs\": 4, \"batch_size\": 10, \"replicas\": 3}",
		 backend);
	start(&r, spec, layers, 2);
	n = r.train->graph->stat_floats;
	got = (float *)rig_get(&r, CTL_WEIGHTS, &blob);
	is(n, 32, "16 means, 16 variances");
	for (uint32_t k = 0; k < 3; k++) {
		stat[k] = backend_host_arena(r.train->replica[k], BACKEND_STAT);
		rows[k] = r.train->replica_rows[k];
	}
	is(rows[0] + rows[1] + rows[2], 2 * ROWS, "rows of the replicas since the beginning");
	/* Keras order: kernel, bias, gamma, beta, then the moving mean and variance */
	for (uint32_t i = 0; i < 16; i++) {
		const float *at = got + 64 * 16 + 3 * 16;

		mu = var = 0;
		for (int k = 0; k < 3; k++)
			mu += (double)rows[k] / (2 * ROWS) * stat[k][i];
		for (int k = 0; k < 3; k++)
			var += (double)rows[k] / (2 * ROWS) *
			       (stat[k][16 + i] + (stat[k][i] - mu) * (stat[k][i] - mu));
		worst = fmax(worst, fmax(fabs(at[i] - mu), fabs(at[16 + i] - var) / var));
		apart = fmax(apart, fabs((double)stat[0][i] - stat[1][i]));
	}
	ok(worst < 1e-6 && apart > 1e-3,
	   "%s: the model has the replicas' moments together (%.1e; they are %.1e apart)", backend,
	   worst, apart);
	free(got);
	rig_end(&r);
}

/* Evaluating after every epoch, or once at the end, is the same training. */
static void undisturbed(const char *backend)
{
	const char *layers = "dense:16:relu,norm:80,dropout:20,dense:4:softmax";
	struct ctl_run_row row, last;
	struct rig a, b;
	struct err err;
	char spec[256];

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"%s\", \"epochs\": 4, \"batch_size\": 20, \"replicas\": 2}",
		 backend);
	last = start(&a, spec, layers, 4);
	row = start(&b, spec, layers, 1);
	for (uint32_t e = 1; e < 4; e++) {
		uint64_t n;

		free(rig_get(&b, CTL_WEIGHTS, &n));
		free(rig_get(&b, CTL_OPTIMIZER, &n));
		if (rig_run(&b, e, 1, &row, &err))
			BAIL("%s", err.message);
	}
	ok(rig_same(&a, &b, CTL_WEIGHTS) && rig_same(&a, &b, CTL_OPTIMIZER),
	   "%s: four runs of one epoch = one of four, to the last bit", backend);
	ok(row.validation_loss == last.validation_loss && row.loss == last.loss,
	   "with the same figures");
	ok(replicas_equal(&b, BACKEND_STAT, b.train->graph->stat_floats),
	   "at the end all replicas hold the pooled statistics");
	rig_end(&a);
	rig_end(&b);
}

/* Weights and optimizer state from another training reach every replica. */
static void resumed(void)
{
	const char *spec =
		"{\"backend\": \"cpu\", \"epochs\": 4, \"batch_size\": 20, \"replicas\": 3, "
		"\"optimizer\": \"adam\"}";
	const char *layers = "dense:16:relu,dense:4:softmax";
	char *architecture = rig_dense(PIXELS, layers);
	struct rig_rows rows = table();
	uint8_t *weights, *state;
	struct ctl_run_row row;
	struct rig a, b;
	struct err err;
	uint64_t n, m;

	start(&a, spec, layers, 2);
	weights = rig_get(&a, CTL_WEIGHTS, &n);
	state = rig_get(&a, CTL_OPTIMIZER, &m);
	if (rig_start(&b, spec, architecture, &rows, &rows, &err) ||
	    rig_put(&b, CTL_WEIGHTS, weights, n, &err) ||
	    rig_put(&b, CTL_OPTIMIZER, state, m, &err) || rig_run(&a, 2, 2, &row, &err) ||
	    rig_run(&b, 2, 2, &row, &err))
		BAIL("%s", err.message);
	ok(rig_same(&a, &b, CTL_WEIGHTS) && rig_same(&a, &b, CTL_OPTIMIZER),
	   "a training that is put into another goes on as if it had stayed");
	ok(replicas_equal(&b, BACKEND_PARAM, b.train->graph->param_floats), "on all replicas");
	free(weights);
	free(state);
	free(architecture);
	rig_end(&a);
	rig_end(&b);
}

/* Weights that hardly move, and the same rows in both sets: the same loss, regularisers included.
 */
static void penalties(void)
{
	const char *layers = "ridge:16:relu,ridge:4:softmax";
	struct ctl_run_row row, plain;
	struct rig r;

	row = start(&r, "{\"backend\": \"ref\", \"learning_rate\": 1e-9, \"replicas\": 3}", layers,
		    1);
	rig_end(&r);
	plain = start(&r, "{\"backend\": \"ref\", \"learning_rate\": 1e-9}",
		      "dense:16:relu,dense:4:softmax", 1);
	/* sample weights are of both sets, class weights are not given */
	near(row.loss, row.validation_loss, 1e-5, "regularisers are in both losses");
	ok(row.loss > plain.loss + .1, "by %.3f", row.loss - plain.loss);
	rig_end(&r);
}

/* What is asked for is what is taken, and what was foreseen. */
static void memory(void)
{
	struct train_setup setup;
	struct ctl_apply_ok apply;
	uint64_t one = 0, four = 0;
	struct err err;
	struct rig r;

	for (int k = 0; k < 2; k++) {
		start(&r,
		      k ? "{\"backend\": \"cpu\", \"batch_size\": 8, \"replicas\": 4}"
			: "{\"backend\": \"cpu\", \"batch_size\": 32}",
		      "dense:64:relu,dense:4:softmax", 1);
		setup = rig_setup(&r);
		is(train_estimate(&setup, k ? &four : &one, &err), 0, "an estimate");
		train_apply_ok(r.train, &apply);
		ok(apply.bytes <= (k ? four : one) + 4096 && apply.bytes * 2 > (k ? four : one),
		   "%llu bytes foreseen, %llu taken", (unsigned long long)(k ? four : one),
		   (unsigned long long)apply.bytes);
		rig_end(&r);
	}
	ok(four > one + 3 * 64 * 64 * 4 * 3, "four replicas take more than one");
}

int main(void)
{
	const char *const backends[] = {"ref", "cpu"};

	make_rows();
	for (int i = 0; i < 2; i++) {
		one_of_all(backends[i], "sgd", "\"momentum\": 0,", 3, 1);
		one_of_all(backends[i], "sgd", "", 2, 1);
		one_of_all(backends[i], "sgd", "\"nesterov\": true,", 4, 3);
		one_of_all(backends[i], "adam", "", 4, 1);
		one_of_all(backends[i], "adam", "", 3, 2);
		pooled(backends[i]);
		undisturbed(backends[i]);
	}
	masks_matter();
	penalties();
	resumed();
	memory();
	return done();
}
