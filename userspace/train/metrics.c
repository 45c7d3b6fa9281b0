// SPDX-License-Identifier: MIT
/*
 * metrics.c: metrics as sums of counts, so that batches, replicas and hosts add up to the figure
 * over all rows. Definitions are Keras 3's (keras/src/metrics), unweighted, as Keras' `metrics`
 * argument is. A class index stands for the one-hot row wherever a metric looks at elements.
 */
#include "internal.h"

#include <math.h>
#include <stdio.h>
#include <strings.h>
#include <string.h>

void train_metric_name(enum train_metric kind, uint32_t k, char *name, size_t size)
{
	static const char *const names[TRAIN_METRIC_COUNT] = {
		"accuracy", "top_k", "binary_accuracy", "auc", "precision", "recall", "rmse",
	};

	if (kind == TRAIN_TOP_K)
		snprintf(name, size, "top_%u", k);
	else
		snprintf(name, size, "%s", names[kind]);
}

bool train_metric_more_is_better(const char *name)
{
	if (!strncmp(name, "val_", 4))
		name += 4;
	return strcmp(name, "loss") != 0 && strcmp(name, "rmse") != 0;
}

/* The truth of element j of row i, as 0..1. */
static inline float truth(const struct metric_batch *b, uint32_t i, uint32_t j)
{
	if (!b->label)
		return b->target[(size_t)i * b->outputs + j];
	if (b->outputs == 1)
		return (float)b->label[i];
	return (uint32_t)b->label[i] == j ? 1.0f : 0.0f;
}

static uint32_t argmax(const float *v, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t j = 1; j < n; j++)
		if (v[j] > v[best])
			best = j;
	return best;
}

/* Class of the row; one output: 0 or 1 at the threshold .5. */
static uint32_t true_class(const struct metric_batch *b, uint32_t i)
{
	if (b->label)
		return (uint32_t)b->label[i];
	if (b->outputs == 1)
		return b->target[i] > 0.5f;
	return argmax(b->target + (size_t)i * b->outputs, b->outputs);
}

static uint32_t predicted_class(const struct metric_batch *b, uint32_t i)
{
	const float *v = b->value + (size_t)i * b->outputs;

	return b->outputs == 1 ? v[0] > 0.5f : argmax(v, b->outputs);
}

/* Keras' in_top_k: fewer than k outputs are larger than that of the true class. */
static bool in_top_k(const struct metric_batch *b, uint32_t i, uint32_t k)
{
	const float *v = b->value + (size_t)i * b->outputs;
	uint32_t class = true_class(b, i), larger = 0;

	if (class >= b->outputs || !isfinite(v[class]))
		return false;
	for (uint32_t j = 0; j < b->outputs; j++)
		larger += v[j] > v[class];
	return larger < k;
}

/* Bucket i counts values in (i/199, (i+1)/199], the first one 0 too: Keras' AUC with
 * num_thresholds = 200, whose threshold i is passed by all buckets from i on. */
static uint32_t bucket(float value)
{
	float x = ceilf(value * (float)(METRIC_BUCKETS - 1)) - 1;

	if (!(x > 0))
		return 0;
	return x < METRIC_BUCKETS - 2 ? (uint32_t)x : METRIC_BUCKETS - 2;
}

static void update_element(const struct metric *metric, struct metric_sums *s, float y, float p)
{
	bool said = p > 0.5f, is = y > 0.5f;

	switch (metric->kind) {
	case TRAIN_BINARY_ACCURACY:
		s->hits += (said ? 1.0f : 0.0f) == y;
		s->total++;
		break;
	case TRAIN_AUC:
		if (is)
			s->positive[bucket(p)]++;
		else
			s->negative[bucket(p)]++;
		break;
	case TRAIN_PRECISION:
	case TRAIN_RECALL:
		s->tp += said && is;
		s->fp += said && !is;
		s->fn += !said && is;
		break;
	case TRAIN_RMSE:
		s->squares += ((double)p - y) * ((double)p - y);
		s->total++;
		break;
	default:
		break;
	}
}

void train_metric_update(const struct metric *metric, struct metric_sums *sums,
			 const struct metric_batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		if (metric->kind == TRAIN_ACCURACY || metric->kind == TRAIN_TOP_K) {
			sums->hits += metric->kind == TRAIN_ACCURACY
					      ? true_class(b, i) == predicted_class(b, i)
					      : in_top_k(b, i, metric->k);
			sums->total++;
			continue;
		}
		for (uint32_t j = 0; j < b->outputs; j++)
			update_element(metric, sums, truth(b, i, j),
				       b->value[(size_t)i * b->outputs + j]);
	}
}

void train_metric_merge(struct metric_sums *into, const struct metric_sums *from)
{
	into->hits += from->hits;
	into->total += from->total;
	into->tp += from->tp;
	into->fp += from->fp;
	into->fn += from->fn;
	into->squares += from->squares;
	for (uint32_t i = 0; i < METRIC_BUCKETS; i++) {
		into->positive[i] += from->positive[i];
		into->negative[i] += from->negative[i];
	}
}

static double ratio(double part, double whole)
{
	return whole > 0 ? part / whole : 0; /* Keras: divide_no_nan */
}

/* Area under the ROC curve by trapezoids over the thresholds. */
static double auc(const struct metric_sums *s)
{
	double positives = 0, negatives = 0, area = 0, x0, y0;
	uint64_t tp = 0, fp = 0;

	for (uint32_t i = 0; i < METRIC_BUCKETS; i++) {
		positives += (double)s->positive[i];
		negatives += (double)s->negative[i];
	}
	x0 = y0 = 0;
	for (uint32_t i = METRIC_BUCKETS; i-- > 0;) {
		double x, y;

		tp += s->positive[i];
		fp += s->negative[i];
		x = ratio((double)fp, negatives);
		y = ratio((double)tp, positives);
		area += (x - x0) * (y + y0) / 2;
		x0 = x;
		y0 = y;
	}
	return area;
}

double train_metric_value(const struct metric *metric, const struct metric_sums *s)
{
	switch (metric->kind) {
	case TRAIN_ACCURACY:
	case TRAIN_TOP_K:
	case TRAIN_BINARY_ACCURACY:
		return s->total ? (double)s->hits / (double)s->total : NAN;
	case TRAIN_AUC:
		return auc(s);
	case TRAIN_PRECISION:
		return ratio((double)s->tp, (double)(s->tp + s->fp));
	case TRAIN_RECALL:
		return ratio((double)s->tp, (double)(s->tp + s->fn));
	case TRAIN_RMSE:
		return s->total ? sqrt(s->squares / (double)s->total) : NAN;
	default:
		return NAN;
	}
}

void train_metric_confusion(uint64_t *matrix, const struct metric_batch *b)
{
	uint32_t classes = b->outputs < 2 ? 2 : b->outputs;

	for (uint32_t i = 0; i < b->n; i++) {
		uint32_t is = true_class(b, i), said = predicted_class(b, i);

		if (is < classes && said < classes)
			matrix[(size_t)is * classes + said]++;
	}
}
