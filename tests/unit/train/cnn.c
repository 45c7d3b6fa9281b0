// SPDX-License-Identifier: MIT
/*
 * cnn.c: the trajectory of a small CNN with batch norm and regularisers against Keras 3: same
 * initial weights, full-batch steps, so that the order of rows does not matter. Loss, accuracy,
 * validation loss and accuracy of each epoch, and all weights at the end.
 */
#include "rig.h"
#include "golden.h"

static uint8_t *bytes_of(json_t *array)
{
	uint8_t *v = malloc(json_array_size(array) + 1);

	for (size_t i = 0; i < json_array_size(array); i++)
		v[i] = (uint8_t)golden_at(array, i);
	return v;
}

struct worst {
	double loss, validation, accuracy;
};

static int epoch(struct rig *r, json_t *run, uint32_t e, struct worst *w, struct err *err)
{
	struct ctl_run_row row;
	int rc = rig_run(r, e, 1, &row, err);

	if (rc)
		return rc;
	w->loss = fmax(w->loss, fabs(row.loss / golden_at(json_object_get(run, "loss"), e) - 1));
	w->validation = fmax(
		w->validation,
		fabs(row.validation_loss / golden_at(json_object_get(run, "val_loss"), e) - 1));
	w->accuracy = fmax(w->accuracy, fabs(row.metric[0].train -
					     golden_at(json_object_get(run, "accuracy"), e)));
	w->accuracy = fmax(w->accuracy, fabs(row.metric[0].validation -
					     golden_at(json_object_get(run, "val_accuracy"), e)));
	return row.epoch == e + 1 && row.rows == 24 && row.steps == 1 ? 0 : -EINVAL;
}

static void compare(struct rig *r, json_t *run, const char *backend)
{
	const char *name = golden_text(run, "name");
	uint32_t epochs = (uint32_t)json_array_size(json_object_get(run, "loss"));
	struct worst w = {0};
	struct err err = {0};
	double weights = 0;
	uint64_t bytes;
	size_t n;
	float *end = golden_floats(json_object_get(run, "weights"), &n), *got;
	int rc = 0;

	for (uint32_t e = 0; !rc && e < epochs; e++)
		rc = epoch(r, run, e, &w, &err);
	ok(!rc, "%s, %s: %u epochs %s", backend, name, epochs, err.message);
	ok(w.loss < 2e-4, "%s, %s: loss as Keras (%.1e)", backend, name, w.loss);
	ok(w.validation < 1e-3, "%s, %s: validation loss as Keras (%.1e)", backend, name,
	   w.validation);
	ok(w.accuracy < 1e-6, "%s, %s: both accuracies as Keras", backend, name);
	got = (float *)rig_get(r, CTL_WEIGHTS, &bytes);
	for (size_t i = 0; got && bytes == n * 4 && i < n; i++)
		weights = fmax(weights, fabs(got[i] - end[i]));
	ok(got && bytes == n * 4 && weights < 2e-4, "%s, %s: %zu weights as Keras (%.1e)", backend,
	   name, n, weights);
	free(got);
	free(end);
}

static void one(json_t *golden, json_t *run, const char *backend, struct rig_rows *train,
		struct rig_rows *validation)
{
	json_t *spec = json_copy(json_object_get(run, "spec"));
	struct err err;
	struct rig r;
	char *text;
	size_t n;
	float *weights = golden_floats(json_object_get(golden, "weights"), &n);
	int rc;

	json_object_set_new(
		spec, "epochs",
		json_integer((json_int_t)json_array_size(json_object_get(run, "loss"))));
	json_object_set_new(spec, "batch_size", json_integer(24));
	json_object_set_new(spec, "backend", json_string(backend));
	text = json_dumps(spec, 0);
	rc = rig_start(&r, text, golden_text(golden, "architecture"), train, validation, &err);
	if (!rc)
		rc = rig_put(&r, CTL_WEIGHTS, weights, n * 4, &err);
	ok(!rc, "%s, %s: starts %s", backend, golden_text(run, "name"), err.message);
	if (!rc)
		compare(&r, run, backend);
	rig_end(&r);
	free(weights);
	free(text);
	json_decref(spec);
}

int main(void)
{
	json_t *golden = golden_load("cnn.json"), *run;
	uint8_t *x = bytes_of(json_object_get(golden, "x"));
	size_t n, i;
	float *label = golden_floats(json_object_get(golden, "y"), &n);
	int32_t *y = malloc(n * sizeof(*y));
	struct rig_rows train = {.n = 24, .h = 8, .w = 8, .c = 2, .u8 = x, .y_int = y};
	struct rig_rows validation = train;

	for (i = 0; i < n; i++)
		y[i] = (int32_t)label[i];
	validation.n = 12;
	validation.u8 += 24 * 128;
	validation.y_int += 24;
	json_array_foreach(json_object_get(golden, "runs"), i, run)
	{
		one(golden, run, "ref", &train, &validation);
		one(golden, run, "cpu", &train, &validation);
	}
	json_decref(golden);
	free(x);
	free(y);
	free(label);
	return done();
}
