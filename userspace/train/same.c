// SPDX-License-Identifier: MIT
/*
 * same.c: what must be equal on all hosts of a training, as one hash for each argument, so that one
 * that differs can be named. Numbers and texts only: no padding is hashed.
 */
#include "hosts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* as in SQL; what follows the arguments is agreed upon */
static const char *const names[TRAIN_SAME] = {
	[SAME_EPOCHS] = "epochs",
	[SAME_BATCH] = "batch_size",
	[SAME_ACCUMULATE] = "accumulate",
	[SAME_SEED] = "seed",
	[SAME_LOSS] = "loss",
	[SAME_OPTIMIZER] = "optimizer",
	[SAME_LEARNING_RATE] = "learning_rate",
	[SAME_SCHEDULE] = "lr_schedule",
	[SAME_SCALING] = "lr_scaling",
	[SAME_METRICS] = "metrics",
	[SAME_EVALUATE] = "evaluate_every",
	[SAME_FRACTION] = "validation_fraction",
	[SAME_EARLY_STOP] = "early_stop",
	[SAME_AUGMENT] = "augment",
	[SAME_AVERAGE] = "model_average",
	[SAME_CLASS_WEIGHT] = "class_weight",
	[SAME_NORMALIZE] = "normalize",
	[SAME_PRECISION] = "precision",
	[SAME_DETERMINISTIC] = "deterministic",
	[SAME_CACHE] = "cache",
	[SAME_MERGE] = "merge",
	[SAME_MERGE_EVERY] = "merge_every",
	[SAME_MERGE_WARMUP] = "merge_warmup",
	[SAME_MERGE_MOMENTUM] = "merge_momentum",
	[SAME_MERGE_WIRE] = "merge_wire",
	[SAME_AGREED_ROWS] = "numbers of rows in the agreement",
	[SAME_AGREED_CLASSES] = "classes",
	[SAME_AGREED_WEIGHTS] = "weights of the classes",
	[SAME_AGREED_SCALE] = "normalisation",
};

static uint64_t hash(const double *x, size_t bytes)
{
	return XXH3_64bits(x, bytes);
}

#define HASH(...) hash((const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}))

static uint64_t hash_text(const char *text, uint64_t seed)
{
	return text ? XXH3_64bits_withSeed(text, strlen(text), seed) : seed;
}

static uint64_t hash_metrics(const struct train_config *c)
{
	uint64_t h = HASH(c->metrics_default, c->n_metrics);

	for (uint32_t i = 0; i < c->n_metrics; i++) {
		uint32_t metric[2] = {c->metric[i].kind, c->metric[i].k};

		h = XXH3_64bits_withSeed(metric, sizeof(metric), h);
	}
	return h;
}

static uint64_t hash_optimizer(const struct backend_optimizer_config *o)
{
	return HASH(o->kind, o->momentum, o->nesterov, o->beta1, o->beta2, o->rho, o->epsilon,
		    o->amsgrad, o->centered, o->initial_accumulator, o->weight_decay, o->clipnorm,
		    o->clipvalue, o->global_clipnorm);
}

static void fill_merge(const struct train_config *c, uint64_t *h)
{
	struct merge_config m = {0};

	/* one that these hosts refuse is refused by all of them */
	if (train_config_merge(c, MERGE_HOSTS_MAX, 1, &m, NULL))
		return;
	h[SAME_MERGE] = HASH(m.kind, m.eta, m.mu, m.nesterov, m.b, m.trim);
	h[SAME_MERGE_EVERY] = HASH(m.unit, (double)m.every);
	h[SAME_MERGE_WARMUP] = HASH(isnan(c->merge_warmup) ? -1 : c->merge_warmup);
	h[SAME_MERGE_MOMENTUM] = HASH(m.momentum);
	h[SAME_MERGE_WIRE] = HASH(m.wire);
}

static void fill_arguments(const struct train_config *c, uint64_t *h)
{
	h[SAME_EPOCHS] = c->epochs;
	h[SAME_BATCH] = c->batch_size;
	h[SAME_ACCUMULATE] = c->accumulate;
	h[SAME_SEED] = c->seed;
	h[SAME_LOSS] = HASH(c->loss.loss, c->loss.label_smoothing, c->loss.from_logits);
	h[SAME_OPTIMIZER] = hash_optimizer(&c->optimizer);
	h[SAME_LEARNING_RATE] = HASH(c->learning_rate);
	h[SAME_SCHEDULE] = hash_text(c->plateau_monitor,
				     HASH(c->schedule, c->gamma, c->schedule_every, c->min_lr,
					  c->warmup, c->plateau_factor, c->plateau_min_delta,
					  c->plateau_patience, c->plateau_cooldown));
	h[SAME_SCALING] = c->lr_scaling;
	h[SAME_METRICS] = hash_metrics(c);
	h[SAME_EVALUATE] = c->evaluate_every;
	h[SAME_FRACTION] = HASH(c->validation_fraction);
	h[SAME_EARLY_STOP] =
		hash_text(c->early_monitor, HASH(c->early_stop, c->early_restore, c->early_patience,
						 c->early_min_delta));
	h[SAME_AUGMENT] = HASH(c->augment_flip, c->augment_pad, c->augment_cutout);
	h[SAME_AVERAGE] = HASH(c->average, c->average_decay, c->average_start);
	h[SAME_CLASS_WEIGHT] = hash_text(c->class_weight, HASH(c->balanced));
	h[SAME_NORMALIZE] = HASH(c->normalize, c->normalizing_const);
	h[SAME_PRECISION] = c->precision;
	h[SAME_DETERMINISTIC] = c->deterministic;
	h[SAME_CACHE] = c->cache;
	fill_merge(c, h);
}

static void fill_agreed(const struct agree_block *a, uint64_t *h)
{
	const uint64_t rows[] = {a->rows[0], a->rows[1]};
	const uint64_t classes[] = {a->labels, a->outputs, a->n_labels};

	h[SAME_AGREED_ROWS] = XXH3_64bits(rows, sizeof(rows));
	h[SAME_AGREED_CLASSES] = XXH3_64bits(classes, sizeof(classes));
	for (uint32_t i = 0; i < a->n_labels; i++) {
		h[SAME_AGREED_CLASSES] = XXH3_64bits_withSeed(a->label[i].value, a->label[i].bytes,
							      h[SAME_AGREED_CLASSES]);
		h[SAME_AGREED_WEIGHTS] = XXH3_64bits_withSeed(
			&a->label[i].weight, sizeof(a->label[i].weight), h[SAME_AGREED_WEIGHTS]);
	}
	if (a->mul && a->add)
		h[SAME_AGREED_SCALE] =
			XXH3_64bits_withSeed(a->mul, a->n_channels * sizeof(*a->mul),
					     XXH3_64bits(a->add, a->n_channels * sizeof(*a->add)));
}

void train_same_fill(const struct train_setup *setup, uint64_t hash_of[TRAIN_SAME])
{
	memset(hash_of, 0, TRAIN_SAME * sizeof(*hash_of));
	if (!setup->inference)
		fill_arguments(setup->config, hash_of);
	fill_agreed(setup->agreed, hash_of);
	/* what it comes to where it is not given */
	hash_of[SAME_BATCH] = hash_of[SAME_BATCH] << 32 | setup->agreed->batch_size;
}

bool train_same_differ(const uint64_t a[TRAIN_SAME], const uint64_t b[TRAIN_SAME], char *text,
		       size_t size)
{
	size_t at = 0;
	bool found = false;

	text[0] = '\0';
	for (int i = 0; i < TRAIN_SAME; i++) {
		if (a[i] == b[i])
			continue;
		if (at < size)
			at += (size_t)snprintf(text + at, size - at, "%s%s", found ? ", " : "",
					       names[i]);
		found = true;
	}
	return found;
}
