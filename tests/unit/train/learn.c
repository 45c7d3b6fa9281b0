// SPDX-License-Identifier: MIT
/* learn.c: small problems are learned: classes that a line separates, exclusive or, a plane. */
#include "rig.h"

#define ROWS 240

static float x2[ROWS * 2];
static int32_t y_int[ROWS];
static const char *y_text[ROWS];
static double y_double[ROWS];

static void report(const char *what, const char *backend, const struct ctl_run_row *row,
		   bool learned)
{
	if (!ok(learned, "%s, %s: loss %.4f, %s %.4f after %u epochs", backend, what, row->loss,
		row->metric[0].name, row->metric[0].train, row->epoch))
		printf("#   note: %.*s\n", (int)row->note.n, row->note.p ? row->note.p : "");
}

static bool train_on(const char *spec_format, const char *backend, const char *layers,
		     const struct rig_rows *rows, struct rig *r, struct ctl_run_row *row)
{
	char spec[512], *architecture = rig_dense(2, layers);
	struct err err;
	int rc;

	snprintf(spec, sizeof(spec), spec_format, backend);
	rc = rig_start(r, spec, architecture, rows, NULL, &err);
	if (!rc)
		rc = rig_run(r, 0, r->config.epochs, row, &err);
	free(architecture);
	return ok(!rc, "%s: %s trains %s", backend, layers, err.message);
}

static void separable(const char *backend)
{
	static const char *const names[3] = {"ant", "bee", "cat"};
	static const float centre[3][2] = {{0, 1}, {1, -1}, {-1, -1}};
	struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x2, .y_text = y_text};
	struct ctl_run_row row;
	uint64_t state = 1;
	struct rig r;

	for (int i = 0; i < ROWS; i++) {
		for (int j = 0; j < 2; j++)
			x2[2 * i + j] =
				centre[i % 3][j] + (float)(rig_random(&state) % 1000) / 1250 - .4f;
		y_text[i] = names[i % 3];
	}
	if (train_on("{\"backend\": \"%s\", \"epochs\": 20, \"batch_size\": 16, "
		     "\"learning_rate\": 0.1}",
		     backend, "dense:3:softmax", &rows, &r, &row))
		report("three separable classes with text labels", backend, &row,
		       row.metric[0].train >= .98 && row.loss < .15 && !row.flags);
	rig_end(&r);
}

static void exclusive_or(const char *backend)
{
	struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x2, .y_int = y_int};
	struct ctl_run_row row;
	uint64_t state = 2;
	struct rig r;

	for (int i = 0; i < ROWS; i++) {
		int a = i & 1, b = i >> 1 & 1;

		x2[2 * i] = (float)a + (float)(rig_random(&state) % 1000) / 5000 - .1f;
		x2[2 * i + 1] = (float)b + (float)(rig_random(&state) % 1000) / 5000 - .1f;
		y_int[i] = 1 + (a ^ b); /* labels 1 and 2 */
	}
	if (train_on("{\"backend\": \"%s\", \"epochs\": 60, \"batch_size\": 16, "
		     "\"optimizer\": \"adam\", \"learning_rate\": 0.02}",
		     backend, "dense:8:tanh,dense:1:sigmoid", &rows, &r, &row))
		report("exclusive or", backend, &row, row.metric[0].train == 1 && row.loss < .1);
	rig_end(&r);
	if (train_on("{\"backend\": \"%s\", \"epochs\": 60, \"batch_size\": 16, "
		     "\"optimizer\": \"adam\", \"learning_rate\": 0.02}",
		     backend, "dense:1:sigmoid", &rows, &r, &row))
		report("exclusive or is not learned by one layer", backend, &row,
		       row.metric[0].train < .8);
	rig_end(&r);
}

/* y = 2 a - 3 b + 1: the weights themselves are known. */
static void plane(const char *backend)
{
	struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = 2, .f32 = x2, .y_double = y_double};
	struct ctl_run_row row;
	uint64_t state = 3, bytes;
	float *w = NULL;
	uint8_t *matrix;
	struct err err;
	struct rig r;

	for (int i = 0; i < ROWS; i++) {
		x2[2 * i] = (float)(rig_random(&state) % 1000) / 500 - 1;
		x2[2 * i + 1] = (float)(rig_random(&state) % 1000) / 500 - 1;
		y_double[i] = 2.0 * x2[2 * i] - 3.0 * x2[2 * i + 1] + 1;
	}
	if (train_on("{\"backend\": \"%s\", \"epochs\": 30, \"batch_size\": 16, "
		     "\"learning_rate\": 0.05}",
		     backend, "dense:1:linear", &rows, &r, &row)) {
		report("a plane", backend, &row, row.metric[0].train < 1e-3 && row.loss < 1e-6);
		is_str(row.metric[0].name, "rmse", "the default metric of a regression");
		is(train_evaluate(r.train, ROW_TRAIN, &row, &err), 0, "evaluation of a regression");
		matrix = rig_get(&r, CTL_CONFUSION, &bytes);
		ok(matrix && bytes == 4 && !matrix[0] && !matrix[1] && !matrix[2] && !matrix[3],
		   "has a confusion matrix of no classes");
		free(matrix);
		w = (float *)rig_get(&r, CTL_WEIGHTS, &bytes);
		ok(w && bytes == 12 && fabs(w[0] - 2) < 1e-3 && fabs(w[1] + 3) < 1e-3 &&
			   fabs(w[2] - 1) < 1e-3,
		   "%s: the plane's own coefficients are found", backend);
	}
	free(w);
	rig_end(&r);
}

int main(void)
{
	static const char *const backends[] = {"ref", "cpu"};

	for (int i = 0; i < 2; i++) {
		separable(backends[i]);
		exclusive_or(backends[i]);
		plane(backends[i]);
	}
	return done();
}
