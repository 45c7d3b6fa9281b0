// SPDX-License-Identifier: MIT
/* plan.c: early stopping and plateau sequences against Keras' callbacks. */
#include <errno.h>

#include "../../../userspace/train/internal.h"
#include "golden.h"

static struct metric accuracy = {.kind = TRAIN_ACCURACY, .name = "accuracy"};

static int start(struct plan *plan, const char *key, const char *value, double lr, bool validation,
		 struct err *err)
{
	struct train_config config;
	char spec[256];
	int rc;

	snprintf(spec, sizeof(spec), "{\"%s\": \"%s\", \"learning_rate\": %g}", key, value, lr);
	rc = train_config_parse(spec, strlen(spec), &config, err);
	if (rc)
		BAIL("%s: %s", spec, err->message);
	rc = train_plan_init(plan, &config, &accuracy, 1, validation, lr, err);
	train_config_free(&config);
	return rc;
}

static struct ctl_run_row row_with(const char *monitor, double value, double factor)
{
	struct ctl_run_row row = {.loss = NAN, .validation_loss = NAN, .lr_factor = factor};

	row.metrics = 1;
	snprintf(row.metric[0].name, sizeof(row.metric[0].name), "accuracy");
	row.metric[0].train = row.metric[0].validation = NAN;
	if (!strcmp(monitor, "loss"))
		row.loss = value;
	else if (!strcmp(monitor, "val_loss"))
		row.validation_loss = value;
	else if (!strcmp(monitor, "val_accuracy"))
		row.metric[0].validation = value;
	else
		row.metric[0].train = value;
	return row;
}

static void early(json_t *one)
{
	json_t *figures = json_object_get(one, "figures");
	size_t epochs = (size_t)json_integer_value(json_object_get(one, "epochs")), e;
	long best = -1, wanted = (long)json_integer_value(json_object_get(one, "best"));
	const char *name = golden_text(one, "name");
	bool stopped = false, restore = false;
	struct err err = {0};
	struct plan plan;

	start(&plan, "early_stop", golden_text(one, "spec"), .1, true, &err);
	for (e = 0; e < json_array_size(figures) && !stopped; e++) {
		struct ctl_run_row row =
			row_with(golden_text(one, "monitor"), golden_at(figures, e), 1);

		train_plan_advise(&plan, &row);
		if (row.flags & CTL_ROW_IMPROVED)
			best = (long)e;
		stopped = row.flags & CTL_ROW_FINISH;
		restore = row.flags & CTL_ROW_RESTORE;
	}
	ok(e == epochs && stopped == json_is_true(json_object_get(one, "stopped")),
	   "%s: stops as Keras, after %zu epochs (%zu)", name, epochs, e);
	ok(best == wanted, "%s: best epoch as Keras, %ld (%ld)", name, wanted, best);
	ok(restore == (best != (long)e - 1), "%s: RESTORE unless the best is the last", name);
}

static void plateau(json_t *one)
{
	json_t *figures = json_object_get(one, "figures"), *lr = json_object_get(one, "lr");
	double factor = 1, worst = 0;
	struct err err = {0};
	struct plan plan;

	start(&plan, "lr_schedule", golden_text(one, "spec"), .1, true, &err);
	for (size_t e = 0; e < json_array_size(figures); e++) {
		struct ctl_run_row row = row_with("val_loss", golden_at(figures, e), factor);

		train_plan_advise(&plan, &row);
		factor = row.lr_factor;
		worst = fmax(worst, fabs(factor * .1 - golden_at(lr, e)) / golden_at(lr, e));
	}
	ok(worst < 1e-5 && factor < 1, "plateau, %s: rates as Keras (%.2g)",
	   golden_text(one, "name"), worst);
}

static void refusals(void)
{
	struct err err = {0};
	struct plan plan;
	struct ctl_run_row row;

	ok(start(&plan, "early_stop", "monitor=val_loss", .1, false, &err) == -EINVAL,
	   "monitoring val_loss without validation rows is refused");
	ok(err.kind == ERR_PARAM, "as a parameter");
	like(err.message, "early_stop monitors 'val_loss', must be one of loss, accuracy",
	     "by name");
	like(err.hint, "validation_source", "with a hint");
	start(&plan, "early_stop", "monitor=val_auc", .1, true, &err);
	like(err.message, "must be one of loss, val_loss, accuracy, val_accuracy",
	     "a metric that is not measured is refused");
	is(start(&plan, "early_stop", "patience=1", .1, false, &err), 0,
	   "no monitor and no validation rows:");
	is_str(plan.early.monitor, "loss", "the training loss is taken");
	start(&plan, "early_stop", "patience=1", .1, true, &err);
	is_str(plan.early.monitor, "val_loss", "with validation rows: val_loss");

	row = row_with("val_loss", NAN, 1);
	train_plan_advise(&plan, &row);
	is(row.flags, 0, "NaN at first: neither better nor a reason to stop");
	row = row_with("val_loss", 1, 1);
	train_plan_advise(&plan, &row);
	is(row.flags, CTL_ROW_IMPROVED, "a first number is an improvement");
	row = row_with("val_loss", NAN, 1);
	train_plan_advise(&plan, &row);
	is(row.flags, CTL_ROW_FINISH | CTL_ROW_RESTORE, "NaN later counts as no improvement");
	start(&plan, "early_stop", "patience=1, restore_best=false", .1, true, &err);
	row = row_with("val_loss", 1, 1);
	train_plan_advise(&plan, &row);
	row = row_with("val_loss", 2, 1);
	train_plan_advise(&plan, &row);
	is(row.flags, CTL_ROW_FINISH, "restore_best=false never asks for it");
}

int main(void)
{
	json_t *root = golden_load("plan.json"), *one;
	size_t i;

	json_array_foreach(json_object_get(root, "early"), i, one)
	{
		early(one);
	}
	json_array_foreach(json_object_get(root, "plateau"), i, one)
	{
		plateau(one);
	}
	json_decref(root);
	refusals();
	return done();
}
