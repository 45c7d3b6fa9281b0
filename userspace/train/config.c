// SPDX-License-Identifier: MIT
/*
 * config.c: the spec (the SQL arguments as one JSON object) to struct train_config. A table of keys
 * with type and range; every refusal names key, value and what is legal.
 */
#include "config.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* "key is value, must be ..." */
static int refuse(const struct config_key *key, const json_t *value, const char *wanted,
		  struct err *err)
{
	char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(12));
	bool cut = shown && strlen(shown) > 60;

	err_set(err, ERR_PARAM, -EINVAL, "%s is %.60s%s, must be %s", key->name,
		shown ? shown : "unreadable", cut ? "..." : "", wanted);
	free(shown);
	return -EINVAL;
}

static bool inside(struct options_bound b, double v)
{
	return isfinite(v) && v >= b.low && v <= b.high && !(b.low_open && v == b.low) &&
	       !(b.high_open && v == b.high);
}

static int take_integer(const struct config_key *key, const json_t *value, void *to,
			struct err *err)
{
	char wanted[96];
	double v = json_number_value(value);
	bool whole = json_is_integer(value) || (json_is_real(value) && v == floor(v) && v < 1e15);
	long long i = json_is_integer(value) ? json_integer_value(value) : whole ? (long long)v : 0;

	snprintf(wanted, sizeof(wanted), "an integer in [%.0f, %lld]", key->bound.low,
		 key->bound.high < 9e18 ? (long long)key->bound.high : INT64_MAX);
	if (!whole || !inside(key->bound, v))
		return refuse(key, value, wanted, err);
	if (!to)
		return 0;
	if (key->kind == KEY_U64)
		*(uint64_t *)to = (uint64_t)i;
	else
		*(uint32_t *)to = (uint32_t)i;
	return 0;
}

static int take_number(const struct config_key *key, const json_t *value, void *to, struct err *err)
{
	char range[64], wanted[96];
	double v = json_number_value(value);

	/* An open bound must still be one in the type that it is kept in. */
	if (key->kind == KEY_FLOAT)
		v = (double)(float)v;
	train_options_range(key->bound, range, sizeof(range));
	snprintf(wanted, sizeof(wanted), "a number in %s", range);
	if (!json_is_number(value) || !inside(key->bound, v))
		return refuse(key, value, wanted, err);
	if (key->kind == KEY_FLOAT)
		*(float *)to = (float)v;
	else
		*(double *)to = v;
	return 0;
}

static int take_choice(const struct config_key *key, const json_t *value, void *to, struct err *err)
{
	const char *text = json_string_value(value), *near = NULL;
	const char *names[24];
	char wanted[512] = "one of ";
	size_t n = 0, used = strlen(wanted);

	for (const struct config_choice *c = key->choice; c->name; c++) {
		if (text ? !strcasecmp(text, c->name)
			 : key->number && json_is_integer(value) &&
				    json_integer_value(value) == c->value) {
			if (to)
				*(uint32_t *)to = c->value;
			return 0;
		}
		names[n++] = c->name;
		used += (size_t)snprintf(wanted + used, sizeof(wanted) - used, "%s'%s'",
					 n == 1 ? "" : ", ", c->name);
	}
	names[n] = NULL;
	refuse(key, value, n == 1 ? wanted + strlen("one of ") : wanted, err);
	near = text ? train_options_nearest(text, names) : NULL;
	if (near)
		err_hint(err, "Did you mean '%s'?", near);
	return -EINVAL;
}

static int take_text(const struct config_key *key, const json_t *value, char **to, struct err *err)
{
	if (!json_is_string(value))
		return refuse(key, value, "a text", err);
	if (!to)
		return 0;
	*to = strdup(json_string_value(value));
	return *to ? 0 : err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
}

/* The name as the table spells it. */
static int keep_choice(const struct config_key *key, const json_t *value, char **to,
		       struct err *err)
{
	const struct config_choice *c = key->choice;

	while (c->name && strcasecmp(c->name, json_string_value(value)) != 0)
		c++;
	*to = c->name ? strdup(c->name) : NULL;
	return *to ? 0 : err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
}

static int take_call(const struct config_key *key, const json_t *value, struct train_config *c,
		     struct err *err)
{
	char *text;
	int rc;

	/* class_weight may come as an object too */
	if (json_is_object(value) && key->call == train_config_class_weight) {
		text = json_dumps(value, JSON_COMPACT);
		rc = text ? key->call(c, text, err)
			  : err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
		free(text);
		return rc;
	}
	if (json_is_integer(value) && key->call == train_config_merge_every) {
		char number[32];

		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
		return key->call(c, number, err);
	}
	if (!json_is_string(value))
		return refuse(key, value, "a text", err);
	return key->call(c, json_string_value(value), err);
}

static int take(const struct config_key *key, const json_t *value, struct train_config *c,
		struct err *err)
{
	void *to = key->offset == CONFIG_NOWHERE ? NULL : (char *)c + key->offset;
	int rc;

	switch (key->kind) {
	case KEY_U32:
	case KEY_U64:
		return take_integer(key, value, to, err);
	case KEY_DOUBLE:
	case KEY_FLOAT:
		return take_number(key, value, to, err);
	case KEY_BOOL:
		if (to == &c->loss.from_logits && json_is_string(value) &&
		    !strcasecmp(json_string_value(value), "auto"))
			return 0;
		if (!json_is_boolean(value))
			return refuse(key, value,
				      to == &c->loss.from_logits ? "true, false or 'auto'"
								 : "true or false",
				      err);
		*(bool *)to = json_is_true(value);
		return 0;
	case KEY_CHOICE:
		rc = take_choice(key, value, key->keep ? NULL : to, err);
		return rc || !key->keep ? rc : keep_choice(key, value, to, err);
	case KEY_TEXT:
	case KEY_OTHER:
		return take_text(key, value, to, err);
	case KEY_CALL:
		return take_call(key, value, c, err);
	}
	return -EINVAL;
}

static int unknown(const char *name, struct err *err)
{
	size_t n;
	const struct config_key *key = train_config_keys(&n);
	const char **names = calloc(n + 1, sizeof(*names)), *near = NULL;

	for (size_t i = 0; names && i < n; i++)
		names[i] = key[i].name;
	if (names)
		near = train_options_nearest(name, names);
	err_set(err, ERR_PARAM, -EINVAL, "unknown argument '%.60s'", name);
	if (near)
		err_hint(err, "Did you mean '%s'?", near);
	else
		err_hint(err, "gpu_cnn(7) lists the arguments.");
	free(names);
	return -EINVAL;
}

static int take_named(const char *name, const json_t *value, struct train_config *c,
		      struct err *err)
{
	size_t n;
	const struct config_key *key = train_config_keys(&n);

	for (size_t i = 0; i < n; i++)
		if (!strcmp(key[i].name, name))
			return json_is_null(value) ? 0 : take(&key[i], value, c, err);
	return unknown(name, err);
}

static bool given(const json_t *root, const char *name)
{
	const json_t *v = json_object_get(root, name);

	return v && !json_is_null(v) && !json_is_false(v) &&
	       !(json_is_number(v) && json_number_value(v) == 0);
}

/* Arguments of one optimizer, with another one chosen: an error, or people tune what is not there.
 */
static int check_optimizer(const json_t *root, const struct train_config *c, struct err *err)
{
#define IN(kind) (1u << BACKEND_##kind)
	static const struct {
		const char *name;
		uint32_t in;
		const char *whose;
	} own[] = {
		{"momentum", IN(SGD) | IN(RMSPROP), "sgd and rmsprop"},
		{"nesterov", IN(SGD), "sgd"},
		{"beta_1", IN(ADAM) | IN(ADAMW), "adam and adamw"},
		{"beta_2", IN(ADAM) | IN(ADAMW), "adam and adamw"},
		{"amsgrad", IN(ADAM) | IN(ADAMW), "adam and adamw"},
		{"rho", IN(RMSPROP) | IN(ADADELTA), "rmsprop and adadelta"},
		{"centered", IN(RMSPROP), "rmsprop"},
		{"initial_accumulator", IN(ADAGRAD), "adagrad"},
		{"epsilon", ~IN(SGD), "all but sgd"},
	};
#undef IN
	int clips =
		given(root, "clipnorm") + given(root, "clipvalue") + given(root, "global_clipnorm");

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		if (given(root, own[i].name) && !(own[i].in >> c->optimizer.kind & 1))
			return err_set(
				err, ERR_PARAM, -EINVAL,
				"%s has no meaning with optimizer '%s', it belongs to %s",
				own[i].name,
				json_string_value(json_object_get(root, "optimizer"))
					? json_string_value(json_object_get(root, "optimizer"))
					: "sgd",
				own[i].whose);
	if (clips > 1)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "clipnorm, clipvalue and global_clipnorm: at most one may be given");
	return 0;
}

static void defaults(struct train_config *c)
{
	memset(c, 0, sizeof(*c));
	c->epochs = 10;
	c->evaluate_every = c->accumulate = 1;
	c->optimizer.kind = BACKEND_SGD;
	c->optimizer.momentum = -1; /* settled in finish() */
	c->optimizer.beta1 = .9f;
	c->optimizer.beta2 = .999f;
	c->optimizer.rho = -1;
	c->optimizer.epsilon = 1e-7f;
	c->optimizer.initial_accumulator = .1f;
	c->optimizer.weight_decay = -1;
	c->loss.loss = (enum backend_loss)CONFIG_LOSS_AUTO;
	c->gamma = 1;
	c->schedule_every = 1;
	c->plateau_factor = .1;
	c->plateau_patience = 3;
	c->plateau_min_delta = 1e-4;
	c->early_patience = 5;
	c->early_restore = true;
	c->metrics_default = true;
	c->logits_auto = true;
	c->max_bad_rows = UINT64_MAX;
	c->deterministic = c->cache = true;
	c->merge_momentum = c->merge_wire = UINT32_MAX;
	c->merge_warmup = c->merge_eta = c->merge_mu = c->merge_b = NAN;
}

/* What depends on other keys. */
static int finish(const json_t *root, struct train_config *c, struct err *err)
{
	struct backend_optimizer_config *o = &c->optimizer;
	int rc = check_optimizer(root, c, err);

	if (rc)
		return rc;
	if (o->momentum < 0)
		o->momentum = o->kind == BACKEND_SGD ? .9f : 0;
	if (o->kind != BACKEND_SGD && o->kind != BACKEND_RMSPROP)
		o->momentum = 0;
	if (o->rho < 0)
		o->rho = o->kind == BACKEND_ADADELTA ? .95f : .9f;
	if (o->weight_decay < 0)
		o->weight_decay = o->kind == BACKEND_ADAMW ? .004f : 0;
	if (c->learning_rate == 0)
		c->learning_rate = o->kind == BACKEND_SGD ? .02 : .001;
	if (c->loss.loss == (enum backend_loss)CONFIG_LOSS_AUTO) {
		c->loss_auto = true;
		c->loss.loss = BACKEND_SPARSE_CROSSENTROPY;
	}
	c->logits_auto = !json_is_boolean(json_object_get(root, "from_logits"));
	if (c->min_lr > c->learning_rate)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "lr_schedule: min_lr is %g, must be at most the learning rate, %g",
			       c->min_lr, c->learning_rate);
	if (c->warmup > c->epochs)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "lr_schedule: warmup is %g, must be at most epochs, %u", c->warmup,
			       c->epochs);
	if (c->backend && strcasecmp(c->backend, "cpu") != 0 && strcasecmp(c->backend, "ref") != 0)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "backend is '%.40s', must be one of 'cpu', 'ref'", c->backend);
	return train_config_merge_keys(c, err);
}

int train_config_parse(const char *json, size_t length, struct train_config *out, struct err *err)
{
	struct train_config c;
	json_error_t where;
	const char *name;
	json_t *root, *value;
	int rc = 0;

	root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &where);
	if (!root)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "the arguments are not valid JSON: line %d, column %d: %s",
			       where.line, where.column, where.text);
	defaults(&c);
	if (!json_is_object(root))
		rc = err_set(err, ERR_PARAM, -EINVAL, "the arguments are not a JSON object");
	else
		json_object_foreach(root, name, value)
		{
			rc = take_named(name, value, &c, err);
			if (rc)
				break;
		}
	if (!rc)
		rc = finish(root, &c, err);
	json_decref(root);
	if (rc)
		train_config_free(&c);
	else
		*out = c;
	return rc;
}

void train_config_free(struct train_config *config)
{
	free(config->class_weight);
	free(config->architecture);
	free(config->devices);
	free(config->backend);
	free(config->model_name);
	free(config->merge);
	free(config->merge_every);
	memset(config, 0, sizeof(*config));
}
