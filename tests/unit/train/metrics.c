// SPDX-License-Identifier: MIT
/* metrics.c: metrics against Keras 3 and by hand; sums merge; the confusion matrix. */
#include "../../../userspace/train/internal.h"
#include "golden.h"

static struct metric make(enum train_metric kind, uint32_t k)
{
	struct metric m = {.kind = kind, .k = k};

	train_metric_name(kind, k, m.name, sizeof(m.name));
	return m;
}

static struct metric by_name(const char *name)
{
	unsigned int k;

	if (sscanf(name, "top_%u", &k) == 1)
		return make(TRAIN_TOP_K, k);
	for (int i = 0; i < TRAIN_METRIC_COUNT; i++) {
		struct metric m = make((enum train_metric)i, 0);

		if (!strcmp(m.name, name))
			return m;
	}
	BAIL("no metric %s", name);
}

/* Over the rows in one batch, or in two that are merged. */
static double measure(struct metric *m, const struct metric_batch *all, uint32_t cut)
{
	struct metric_sums a = {0}, b = {0};
	struct metric_batch first = *all, second = *all;

	first.n = cut;
	second.n = all->n - cut;
	second.value += (size_t)cut * all->outputs;
	if (all->label)
		second.label += cut;
	else
		second.target += (size_t)cut * all->outputs;
	train_metric_update(m, &a, &first);
	train_metric_update(m, &b, &second);
	train_metric_merge(&a, &b);
	return train_metric_value(m, &a);
}

static void one_case(json_t *one)
{
	size_t n, m;
	float *value = golden_floats(json_object_get(one, "value"), &n);
	float *target = golden_floats(json_object_get(one, "target"), &m);
	json_t *label = json_object_get(one, "label"), *want;
	struct metric_batch b = {.value = value, .target = target};
	int32_t *index = calloc(n, sizeof(*index));
	const char *name;

	b.outputs = (uint32_t)json_integer_value(json_object_get(one, "outputs"));
	b.n = (uint32_t)(n / b.outputs);
	for (size_t i = 0; i < json_array_size(label); i++)
		index[i] = (int32_t)golden_at(label, i);
	json_object_foreach(json_object_get(one, "want"), name, want)
	{
		struct metric metric = by_name(name);
		double w = json_number_value(want), got;

		got = measure(&metric, &b, b.n);
		ok(fabs(got - w) < 2e-6, "%s: %s of targets as Keras, %.7f (%.7f)",
		   golden_text(one, "name"), name, got, w);
		near(measure(&metric, &b, b.n / 3), got, 1e-12, "two parts merge to the same");
		if (json_is_null(label))
			continue;
		b.label = index;
		got = measure(&metric, &b, b.n);
		ok(fabs(got - w) < 2e-6, "%s: %s of class indices as Keras",
		   golden_text(one, "name"), name);
		b.label = NULL;
	}
	free(value);
	free(target);
	free(index);
}

static void by_hand(void)
{
	/* three classes, four rows */
	const float value[12] = {.7f, .2f, .1f, .1f, .8f, .1f, .3f, .4f, .3f, .2f, .2f, .6f};
	const int32_t label[4] = {0, 1, 0, 1};
	struct metric_batch b = {4, 3, value, label, NULL};
	struct metric m = make(TRAIN_ACCURACY, 0);
	uint64_t matrix[9] = {0}, sum = 0;
	const float nan_row[2] = {NAN, NAN}, binary[4] = {.4f, .6f, .9f, .2f};
	const int32_t zero[1] = {0}, two[4] = {0, 0, 1, 1};
	struct metric_batch odd = {1, 2, nan_row, zero, NULL};

	near(measure(&m, &b, 4), .5, 0, "accuracy by hand: 2 of 4");
	m = make(TRAIN_TOP_K, 2);
	near(measure(&m, &b, 4), 1, 0, "top 2 by hand: ties at the edge count");
	m = make(TRAIN_PRECISION, 0);
	near(measure(&m, &b, 4), 2. / 3, 1e-12, "precision by hand: 2 of 3 said");
	m = make(TRAIN_RECALL, 0);
	near(measure(&m, &b, 4), .5, 0, "recall by hand: 2 of 4 true");
	m = make(TRAIN_RMSE, 0);
	/* squares: .14 .06 .74 1.04 */
	near(measure(&m, &b, 4), sqrt(1.98 / 12), 1e-7, "rmse by hand");
	train_metric_confusion(matrix, &b);
	for (int i = 0; i < 9; i++)
		sum += matrix[i];
	ok(matrix[0] == 1 && matrix[1] == 1 && matrix[4] == 1 && matrix[5] == 1 && sum == 4,
	   "confusion matrix: row is the truth, column what was said");
	memset(matrix, 0, sizeof(matrix));
	b = (struct metric_batch){4, 1, binary, two, NULL};
	train_metric_confusion(matrix, &b);
	ok(matrix[0] == 1 && matrix[1] == 1 && matrix[2] == 1 && matrix[3] == 1,
	   "confusion matrix of one output is 2 x 2");
	m = make(TRAIN_AUC, 0);
	near(measure(&m, &b, 4), .5, 1e-12, "auc by hand: one of two pairs in order each way");
	near(measure(&m, &odd, 1), .5, 0, "auc of NaN tells nothing apart: a half, not a crash");
	m = make(TRAIN_TOP_K, 1);
	near(measure(&m, &odd, 1), 0, 0, "NaN is in no top k");
	b.n = 0;
	m = make(TRAIN_ACCURACY, 0);
	ok(isnan(measure(&m, &b, 0)), "accuracy of no rows is not measured");
	ok(train_metric_more_is_better("val_accuracy") && train_metric_more_is_better("auc") &&
		   !train_metric_more_is_better("val_loss") &&
		   !train_metric_more_is_better("val_rmse"),
	   "direction of metrics");
}

int main(void)
{
	json_t *root = golden_load("metrics.json"), *one;
	size_t i;

	json_array_foreach(root, i, one)
	{
		one_case(one);
	}
	json_decref(root);
	by_hand();
	return done();
}
