// SPDX-License-Identifier: MIT
/*
 * activation.c: activations as Keras writes them (a name, a function object, a layer object) and
 * regularizers (a name or an object).
 */
#include <math.h>
#include <string.h>

#include "internal.h"

#define FLOAT_MAX 3.4e38

struct named {
	const char *name;
	enum backend_activation kind;
	float alpha, max_value;
};

/* keras/src/activations: names and the constants of each */
static const struct named functions[] = {
	{"linear", BACKEND_LINEAR, 0, 0},
	{"relu", BACKEND_RELU, 0, INFINITY},
	{"relu6", BACKEND_RELU, 0, 6},
	{"leaky_relu", BACKEND_LEAKY_RELU, 0.2f, 0},
	{"elu", BACKEND_ELU, 1, 0},
	{"selu", BACKEND_SELU, 0, 0},
	{"sigmoid", BACKEND_SIGMOID, 0, 0},
	{"hard_sigmoid", BACKEND_HARD_SIGMOID, 0, 0},
	{"tanh", BACKEND_TANH, 0, 0},
	{"softplus", BACKEND_SOFTPLUS, 0, 0},
	{"softsign", BACKEND_SOFTSIGN, 0, 0},
	{"swish", BACKEND_SWISH, 0, 0},
	{"silu", BACKEND_SWISH, 0, 0},
	{"gelu", BACKEND_GELU, 0, 0},
	{"exponential", BACKEND_EXPONENTIAL, 0, 0},
	{"softmax", BACKEND_SOFTMAX, 0, 0},
	{"log_softmax", BACKEND_LOG_SOFTMAX, 0, 0},
};

static void set_kind(struct activation *out, enum backend_activation kind)
{
	*out = (struct activation){.kind = kind, .max_value = INFINITY};
}

static int by_name(struct reader *r, struct place at, const char *name, struct activation *out)
{
	int rc;

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(functions[i].name, name))
			continue;
		set_kind(out, functions[i].kind);
		out->alpha = functions[i].alpha;
		if (out->kind == BACKEND_RELU)
			out->max_value = functions[i].max_value;
		out->keras2_hard_sigmoid = out->kind == BACKEND_HARD_SIGMOID && r->generation == 2;
		return 0;
	}
	rc = jread_error(r, at.path, "activation '%.80s' is not supported", name);
	err_hint(r->err, "supported: linear relu relu6 leaky_relu elu selu sigmoid hard_sigmoid "
			 "tanh softplus softsign swish silu gelu exponential softmax log_softmax");
	return rc;
}

static int read_relu(struct reader *r, struct place config, struct activation *out)
{
	int rc;

	set_kind(out, BACKEND_RELU);
	rc = jread_float(r, config, "max_value", 0, FLOAT_MAX, &out->max_value);
	if (!rc)
		rc = jread_float(r, config, "negative_slope", 0, FLOAT_MAX, &out->alpha);
	if (!rc)
		rc = jread_float(r, config, "threshold", 0, FLOAT_MAX, &out->threshold);
	return rc;
}

/* The axis must be the last one; infer checks a positive number against the rank. */
int activation_layer(struct reader *r, const char *class_name, struct place config,
		     struct activation *out)
{
	int rc;

	if (!strcmp(class_name, "ReLU"))
		return read_relu(r, config, out);
	if (!strcmp(class_name, "LeakyReLU")) {
		set_kind(out, BACKEND_LEAKY_RELU);
		out->alpha = 0.3f;
		rc = jread_float(r, config, "alpha", 0, FLOAT_MAX, &out->alpha);
		if (!rc)
			rc = jread_float(r, config, "negative_slope", 0, FLOAT_MAX, &out->alpha);
		return rc;
	}
	if (!strcmp(class_name, "ELU")) {
		set_kind(out, BACKEND_ELU);
		out->alpha = 1;
		return jread_float(r, config, "alpha", 0, FLOAT_MAX, &out->alpha);
	}
	if (!strcmp(class_name, "Softmax")) {
		set_kind(out, BACKEND_SOFTMAX);
		return 0;
	}
	rc = jread_need(r, config, "activation");
	return rc ? rc : activation_read(r, config, "activation", out);
}

static bool is_activation_layer(const char *class_name)
{
	return !strcmp(class_name, "ReLU") || !strcmp(class_name, "LeakyReLU") ||
	       !strcmp(class_name, "ELU");
}

int activation_read(struct reader *r, struct place object, const char *key, struct activation *out)
{
	struct place at = jread_key(r, object, key), config;
	const char *class_name;

	set_kind(out, BACKEND_LINEAR);
	if (jread_absent(at))
		return 0;
	if (json_is_string(at.value))
		return by_name(r, at, json_string_value(at.value), out);
	class_name = json_string_value(json_object_get(at.value, "class_name"));
	if (!class_name)
		return jread_error(r, at.path, "must be a name or an object with 'class_name'");
	config = jread_key(r, at, "config");
	if (!strcmp(class_name, "function") && json_is_string(config.value))
		return by_name(r, config, json_string_value(config.value), out);
	if (is_activation_layer(class_name))
		return activation_layer(r, class_name, config, out);
	if (!strcmp(class_name, "Activation") && json_is_string(json_object_get(config.value, key)))
		return by_name(r, config, json_string_value(json_object_get(config.value, key)),
			       out);
	return by_name(r, at, class_name, out);
}

static int read_factor(struct reader *r, struct place config, const char *key, float *out)
{
	return jread_float(r, config, key, 0, FLOAT_MAX, out);
}

int regularizer_read(struct reader *r, struct place object, const char *key,
		     struct regularizer *out)
{
	struct place at = jread_key(r, object, key), config = {NULL, at.path};
	const char *name;
	bool l1, l2, both;
	int rc = 0;

	*out = (struct regularizer){0, 0};
	if (jread_absent(at))
		return 0;
	if (json_is_string(at.value)) {
		name = json_string_value(at.value);
	} else {
		name = json_string_value(json_object_get(at.value, "class_name"));
		config = jread_key(r, at, "config");
	}
	l1 = name && (!strcmp(name, "l1") || !strcmp(name, "L1"));
	l2 = name && (!strcmp(name, "l2") || !strcmp(name, "L2"));
	both = name && (!strcmp(name, "l1_l2") || !strcmp(name, "l1l2") || !strcmp(name, "L1L2"));
	if (!l1 && !l2 && !both)
		return jread_error(r, at.path,
				   "regularizer '%.80s' is not supported; l1, l2 and "
				   "l1_l2 are",
				   name ? name : "(no name)");
	/* The defaults of Keras; for the class L1L2 they are 0, for the bare name .01 (Keras 2). */
	if (l1 || (both && json_is_string(at.value)))
		out->l1 = 0.01f;
	if (l2 || (both && json_is_string(at.value)))
		out->l2 = 0.01f;
	if (!l2)
		rc = read_factor(r, config, "l1", &out->l1);
	if (!rc && !l1)
		rc = read_factor(r, config, "l2", &out->l2);
	return rc;
}
