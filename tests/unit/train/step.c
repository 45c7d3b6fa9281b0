// SPDX-License-Identifier: MIT
/*
 * step.c: what one update is made of: accumulation equals a larger batch, class and sample weights
 * equal rows given more often. Loss = sum w_i l_i / n: the count n does not know weights, so where
 * a table has other rows, the learning rate makes up for it.
 */
#include "rig.h"

#define ROWS 96
#define WIDTH 4

static float x[4 * ROWS * WIDTH];
static int32_t y[4 * ROWS];
static double weight[4 * ROWS];
static char *architecture;

static void make_rows(void)
{
	uint64_t state = 9;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % 3);
		for (uint32_t j = 0; j < WIDTH; j++)
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1 +
					   (j == (uint32_t)y[i] ? .7f : 0);
	}
}

static struct rig_rows table(uint32_t n)
{
	return (struct rig_rows){.n = n, .h = 1, .w = 1, .c = WIDTH, .f32 = x, .y_int = y};
}

static struct ctl_run_row start(struct rig *r, const struct rig_rows *rows, const char *spec,
				uint32_t epochs)
{
	struct ctl_run_row row;
	struct err err;

	if (rig_start(r, spec, architecture, rows, NULL, &err) || rig_run(r, 0, epochs, &row, &err))
		BAIL("%s: %s", spec, err.message);
	return row;
}

static void accumulate(const char *optimizer)
{
	struct rig_rows rows = table(ROWS);
	struct ctl_run_row p, q;
	struct rig a, b;
	char spec[512];

#define COMMON                                                                                   \
	"{\"backend\": \"ref\", \"epochs\": 4, \"optimizer\": \"%s\", \"learning_rate\": 0.05, " \
	"\"lr_schedule\": \"cosine(warmup=1)\", \"lr_scaling\": \"sqrt\", "
	snprintf(spec, sizeof(spec), COMMON "\"batch_size\": 48}", optimizer);
	p = start(&a, &rows, spec, 4);
	snprintf(spec, sizeof(spec), COMMON "\"batch_size\": 12, \"accumulate\": 4}", optimizer);
	q = start(&b, &rows, spec, 4);
	is(p.steps, 8, "two steps an epoch");
	is(q.steps, 32, "eight steps an epoch, four of them one update");
	ok(rig_distance(&a, &b) < 1e-6, "%s: accumulate 4 x 12 rows = 48 rows (%.1e)", optimizer,
	   rig_distance(&a, &b));
	near(p.loss, q.loss, 1e-6, "same loss");
	near(p.lr, q.lr, 1e-12, "same learning rate plan");
	rig_end(&b);
	snprintf(spec, sizeof(spec), COMMON "\"batch_size\": 12}", optimizer);
	start(&b, &rows, spec, 4);
	ok(rig_distance(&a, &b) > 1e-3, "%s: without accumulate it differs", optimizer);
	rig_end(&a);
	rig_end(&b);
#undef COMMON
}

/* 50 rows by 10, two steps an update: groups of 2, 2 and 1. */
static void short_group(void)
{
	struct rig_rows rows = table(50);
	uint64_t bytes, updates = 0;
	uint32_t name = 0;
	uint8_t *state;
	struct rig r;

	start(&r, &rows,
	      "{\"backend\": \"ref\", \"epochs\": 4, \"optimizer\": \"adam\", \"batch_size\": 10, "
	      "\"accumulate\": 2}",
	      2);
	state = rig_get(&r, CTL_OPTIMIZER, &bytes);
	if (state && bytes > 64) {
		memcpy(&name, state, sizeof(name));
		memcpy(&updates, state + 4 + name, sizeof(updates));
	}
	is(updates, 6, "five steps in groups of two are three updates an epoch");
	free(state);
	rig_end(&r);
}

/* Rows of class 1 twice more behind the table. */
static uint32_t repeat_class(uint32_t n, int32_t class, uint32_t times)
{
	uint32_t end = n;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; y[i] == class && k < times; k++, end++) {
			memcpy(x + end * WIDTH, x + i * WIDTH, WIDTH * sizeof(*x));
			y[end] = class;
		}
	return end;
}

static void weights(void)
{
	struct rig_rows plain = table(ROWS), repeated, weighted = table(ROWS);
	struct ctl_run_row p, q;
	char spec[256];
	struct rig a, b;

	repeated = table(repeat_class(ROWS, 1, 2));
	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 9, \"batch_size\": 1000, \"learning_rate\": "
		 "0.1, "
		 "\"class_weight\": {\"1\": 3}}");
	p = start(&a, &plain, spec, 9);
	/* sum / n with n rows, n' rows after repetition */
	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 9, \"batch_size\": 1000, "
		 "\"learning_rate\": %.12g}",
		 .1 * repeated.n / ROWS);
	q = start(&b, &repeated, spec, 9);
	ok(repeated.n > ROWS + 20 && rig_distance(&a, &b) < 1e-5,
	   "class weight 3 = the rows of that class three times (%.1e)", rig_distance(&a, &b));
	near(p.loss * ROWS, q.loss * repeated.n, 1e-3, "the same sum of losses");
	rig_end(&b);
	for (uint32_t i = 0; i < ROWS; i++)
		weight[i] = y[i] == 1 ? 3 : 1;
	weighted.weight = weight;
	start(&b, &weighted,
	      "{\"backend\": \"ref\", \"epochs\": 9, \"batch_size\": 1000, \"learning_rate\": 0.1}",
	      9);
	ok(rig_distance(&a, &b) < 1e-5, "sample weights of 3 = class weight 3 (%.1e)",
	   rig_distance(&a, &b));
	rig_end(&a);
	start(&a, &plain,
	      "{\"backend\": \"ref\", \"epochs\": 9, \"batch_size\": 1000, \"learning_rate\": 0.1}",
	      9);
	ok(rig_distance(&a, &b) > 1e-3, "without weights it differs");
	rig_end(&a);
	rig_end(&b);
}

static void balanced(void)
{
	struct rig_rows rows = table(ROWS);
	uint32_t count[3] = {0};
	char spec[256];
	struct rig a, b;

	for (uint32_t i = 0; i < ROWS; i++)
		count[y[i]]++;
	start(&a, &rows,
	      "{\"backend\": \"ref\", \"epochs\": 3, \"batch_size\": 32, "
	      "\"class_weight\": \"balanced\"}",
	      3);
	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 3, \"batch_size\": 32, "
		 "\"class_weight\": {\"0\": %.17g, \"1\": %.17g, \"2\": %.17g}}",
		 ROWS / 3.0 / count[0], ROWS / 3.0 / count[1], ROWS / 3.0 / count[2]);
	start(&b, &rows, spec, 3);
	ok(rig_same(&a, &b, CTL_WEIGHTS), "balanced = n / (classes * count)");
	rig_end(&a);
	rig_end(&b);
}

/* Class weights are of the training; the validation set does not know them, as in Keras. */
static void validation(void)
{
	struct rig_rows rows = table(ROWS);
	struct ctl_run_row p, q;
	uint64_t bytes;
	uint8_t *end;
	struct err err;
	struct rig a, b;

	if (rig_start(&a, "{\"backend\": \"ref\", \"class_weight\": {\"1\": 3}}", architecture,
		      &rows, &rows, &err) ||
	    rig_start(&b, "{\"backend\": \"ref\"}", architecture, &rows, &rows, &err) ||
	    rig_run(&a, 0, 1, &p, &err))
		BAIL("%s", err.message);
	end = rig_get(&a, CTL_WEIGHTS, &bytes);
	is(rig_put(&b, CTL_WEIGHTS, end, bytes, &err) |
		   train_evaluate(b.train, ROW_VALIDATION, &q, &err),
	   0, "the same weights in two trainings");
	near(p.validation_loss, q.validation_loss, 1e-12, "validation leaves class weights out");
	near(p.metric[0].validation, q.metric[0].validation, 0, "accuracy too");
	ok(fabs(p.loss - p.validation_loss) > .1, "which the training loss has");
	free(end);
	rig_end(&a);
	rig_end(&b);
}

int main(void)
{
	make_rows();
	architecture = rig_dense(WIDTH, "dense:6:tanh,dense:3:softmax");
	accumulate("sgd");
	accumulate("adam");
	short_group();
	weights();
	balanced();
	validation();
	free(architecture);
	return done();
}
