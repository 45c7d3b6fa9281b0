// SPDX-License-Identifier: MIT
/* config_text.c: the spec's keys whose value is a text with a grammar of its own (options.c). */
#include "internal.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_none(const char *text)
{
	return !*text || !strcasecmp(text, "none");
}

/* ---- lr_schedule ---- */

static const char *const schedules[] = {"constant", "step",    "exponential",
					"cosine",   "plateau", NULL};

static const char *const *schedule_options(enum train_schedule kind)
{
	static const char *const constant[] = {"warmup", NULL};
	static const char *const step[] = {"every", "gamma", "warmup", NULL};
	static const char *const exponential[] = {"gamma", "warmup", NULL};
	static const char *const cosine[] = {"min_lr", "warmup", NULL};
	static const char *const plateau[] = {"monitor",  "factor", "patience", "min_delta",
					      "cooldown", "min_lr", "warmup",	NULL};

	switch (kind) {
	case TRAIN_STEP:
		return step;
	case TRAIN_EXPONENTIAL:
		return exponential;
	case TRAIN_COSINE:
		return cosine;
	case TRAIN_PLATEAU:
		return plateau;
	default:
		return constant;
	}
}

static int unknown_name(const char *key, const char *what, const char *name,
			const char *const *names, struct err *err)
{
	char legal[256] = "";
	size_t used = 0;
	const char *near = train_options_nearest(name, names);

	for (const char *const *p = names; *p && used < sizeof(legal); p++)
		used += (size_t)snprintf(legal + used, sizeof(legal) - used, "%s'%s'",
					 p == names ? "" : ", ", *p);
	err_set(err, ERR_PARAM, -EINVAL, "%s: %s'%.60s', must be one of %s", key, what, name,
		legal);
	if (near)
		err_hint(err, "Did you mean '%s'?", near);
	return -EINVAL;
}

static int schedule_values(struct train_config *c, struct options *o, struct err *err)
{
	int rc = train_options_number(o, "warmup", (struct options_bound){0, 100000, 0, 0},
				      &c->warmup, err);

	switch (rc ? TRAIN_CONSTANT : c->schedule) {
	case TRAIN_STEP:
		c->schedule_every = 10;
		c->gamma = .1;
		rc = train_options_number(o, "every", (struct options_bound){0, 100000, 1, 0},
					  &c->schedule_every, err);
		break;
	case TRAIN_EXPONENTIAL:
		c->gamma = .95;
		break;
	case TRAIN_PLATEAU:
		rc = train_options_number(o, "factor", (struct options_bound){0, 1, 1, 1},
					  &c->plateau_factor, err);
		if (!rc)
			rc = train_options_integer(o, "patience", 0, 100000, &c->plateau_patience,
						   err);
		if (!rc)
			rc = train_options_integer(o, "cooldown", 0, 100000, &c->plateau_cooldown,
						   err);
		if (!rc)
			rc = train_options_number(o, "min_delta",
						  (struct options_bound){0, 1e9, 0, 0},
						  &c->plateau_min_delta, err);
		if (!rc)
			rc = train_options_text(o, "monitor", c->plateau_monitor,
						sizeof(c->plateau_monitor), err);
		break;
	default:
		break;
	}
	if (!rc && (c->schedule == TRAIN_STEP || c->schedule == TRAIN_EXPONENTIAL))
		rc = train_options_number(o, "gamma", (struct options_bound){0, 1, 1, 0}, &c->gamma,
					  err);
	if (!rc && (c->schedule == TRAIN_COSINE || c->schedule == TRAIN_PLATEAU))
		rc = train_options_number(o, "min_lr", (struct options_bound){0, 1e6, 0, 0},
					  &c->min_lr, err);
	return rc;
}

int train_config_schedule(struct train_config *c, const char *text, struct err *err)
{
	struct options o;
	int rc = train_options_parse("lr_schedule", text, true, &o, err), kind = 0;

	if (rc)
		return rc;
	while (schedules[kind] && strcasecmp(schedules[kind], o.name) != 0)
		kind++;
	if (!schedules[kind]) {
		rc = unknown_name("lr_schedule", "is ", o.name, schedules, err);
	} else {
		c->schedule = (enum train_schedule)kind;
		rc = schedule_values(c, &o, err);
		if (!rc)
			rc = train_options_rest(&o, schedule_options(c->schedule), err);
	}
	train_options_free(&o);
	return rc;
}

/* ---- metrics ---- */

static const char *const metric_names[] = {
	"accuracy", "top_k", "binary_accuracy", "auc", "precision", "recall", "rmse", NULL};

static int metric_kind(const char *name)
{
	static const struct {
		const char *name;
		int kind;
	} alias[] = {
		{"acc", TRAIN_ACCURACY},
		{"categorical_accuracy", TRAIN_ACCURACY},
		{"sparse_categorical_accuracy", TRAIN_ACCURACY},
		{"top_k_categorical_accuracy", TRAIN_TOP_K},
		{"sparse_top_k_categorical_accuracy", TRAIN_TOP_K},
		{"root_mean_squared_error", TRAIN_RMSE},
	};

	for (int i = 0; metric_names[i]; i++)
		if (!strcasecmp(metric_names[i], name))
			return i;
	for (size_t i = 0; i < sizeof(alias) / sizeof(alias[0]); i++)
		if (!strcasecmp(alias[i].name, name))
			return alias[i].kind;
	return -1;
}

static int add_metric(struct train_config *c, const char *item, struct err *err)
{
	static const char *const k_options[] = {"k", NULL}, *const no_options[] = {NULL};
	struct options o;
	uint32_t k = 5;
	int rc = train_options_parse("metrics", item, true, &o, err), kind;

	if (rc)
		return rc;
	kind = metric_kind(o.name);
	if (kind < 0)
		rc = unknown_name("metrics", "", o.name, metric_names, err);
	else if (kind == TRAIN_TOP_K)
		rc = train_options_integer(&o, "k", 1, 65536, &k, err);
	else
		k = 0;
	if (!rc)
		rc = train_options_rest(&o, kind == TRAIN_TOP_K ? k_options : no_options, err);
	train_options_free(&o);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < c->n_metrics; i++)
		if (c->metric[i].kind == (enum train_metric)kind && c->metric[i].k == k)
			return err_set(err, ERR_PARAM, -EINVAL, "metrics: '%.60s' is given twice",
				       item);
	if (c->n_metrics == CTL_METRICS)
		return err_set(err, ERR_PARAM, -EINVAL, "metrics: more than %d", CTL_METRICS);
	c->metric[c->n_metrics].kind = (enum train_metric)kind;
	c->metric[c->n_metrics++].k = k;
	return 0;
}

int train_config_metrics(struct train_config *c, const char *text, struct err *err)
{
	char item[128];
	bool fits;

	c->metrics_default = false;
	if (is_none(text))
		return 0;
	while (train_options_item(&text, item, sizeof(item), &fits)) {
		int rc;

		if (!fits || !*item)
			return err_set(err, ERR_PARAM, -EINVAL, "metrics: %s",
				       fits ? "an empty item in the list" : "an item is too long");
		rc = add_metric(c, item, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- early_stop, augment ---- */

int train_config_early_stop(struct train_config *c, const char *text, struct err *err)
{
	static const char *const names[] = {"monitor", "patience", "min_delta", "restore_best",
					    NULL};
	struct options o;
	int rc;

	if (is_none(text))
		return 0;
	rc = train_options_parse("early_stop", text, false, &o, err);
	if (rc)
		return rc;
	c->early_stop = true;
	rc = train_options_text(&o, "monitor", c->early_monitor, sizeof(c->early_monitor), err);
	if (!rc)
		rc = train_options_integer(&o, "patience", 0, 100000, &c->early_patience, err);
	if (!rc)
		rc = train_options_number(&o, "min_delta", (struct options_bound){0, 1e9, 0, 0},
					  &c->early_min_delta, err);
	if (!rc)
		rc = train_options_flag(&o, "restore_best", &c->early_restore, err);
	if (!rc)
		rc = train_options_rest(&o, names, err);
	train_options_free(&o);
	return rc;
}

int train_config_augment(struct train_config *c, const char *text, struct err *err)
{
	static const char *const names[] = {"flip", "pad_crop", "cutout", NULL};
	struct options o;
	int rc;

	if (is_none(text))
		return 0;
	rc = train_options_parse("augment", text, false, &o, err);
	if (rc)
		return rc;
	rc = train_options_flag(&o, "flip", &c->augment_flip, err);
	if (!rc)
		rc = train_options_integer(&o, "pad_crop", 0, 1024, &c->augment_pad, err);
	if (!rc)
		rc = train_options_integer(&o, "cutout", 0, 65535, &c->augment_cutout, err);
	if (!rc)
		rc = train_options_rest(&o, names, err);
	train_options_free(&o);
	return rc;
}

/* ---- class_weight ---- */

int train_config_class_weight(struct train_config *c, const char *text, struct err *err)
{
	json_error_t where;
	const char *label;
	json_t *map, *value;
	int rc = 0;

	if (is_none(text))
		return 0;
	if (!strcasecmp(text, "balanced")) {
		c->balanced = true;
		return 0;
	}
	map = json_loads(text, JSON_REJECT_DUPLICATES, &where);
	if (!json_is_object(map)) {
		err_set(err, ERR_PARAM, -EINVAL,
			"class_weight is '%.60s', must be 'balanced' or a JSON object of labels "
			"and "
			"weights%s%s",
			text, map ? "" : ": ", map ? "" : where.text);
		err_hint(err, "For example '{\"cat\": 2, \"dog\": 0.5}'.");
		json_decref(map);
		return -EINVAL;
	}
	json_object_foreach(map, label, value)
	{
		double w = json_number_value(value);

		if (!json_is_number(value) || !(w >= 0 && w <= 1e9)) {
			rc = err_set(
				err, ERR_PARAM, -EINVAL,
				"class_weight: the weight of '%.60s' must be a number in [0, 1e9]",
				label);
			break;
		}
	}
	json_decref(map);
	if (rc)
		return rc;
	c->class_weight = strdup(text);
	return c->class_weight ? 0 : err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
}

/* ---- devices ---- */

int train_config_devices(struct train_config *c, const char *text, struct err *err)
{
	unsigned long n;
	char *end;

	struct gpu_list gpus;

	if (!strncasecmp(text, "cuda", 4)) {
		if (gpu_list_parse(text, &gpus))
			return err_set(err, ERR_PARAM, -EINVAL,
				       "devices is '%.60s', must be 'cuda:all', or 'cuda:' and "
				       "numbers of GPUs with commas between them, each once",
				       text);
	} else if (!strncasecmp(text, "cpu:", 4)) {
		n = strtoul(text + 4, &end, 10);
		if (text[4] < '0' || text[4] > '9' || *end || n < 1 || n > 1024)
			return err_set(err, ERR_PARAM, -EINVAL,
				       "devices is '%.60s', N of 'cpu:N' must be an integer in "
				       "[1, 1024]",
				       text);
		c->threads = (uint32_t)n;
	} else if (strcasecmp(text, "auto") != 0 && strcasecmp(text, "cpu") != 0) {
		return err_set(err, ERR_PARAM, -EINVAL,
			       "devices is '%.60s', must be 'auto', 'cpu', 'cpu:N', 'cuda:I,J' or "
			       "'cuda:all'",
			       text);
	}
	c->devices = strdup(text);
	return c->devices ? 0 : err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
}
