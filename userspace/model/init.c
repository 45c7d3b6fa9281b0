// SPDX-License-Identifier: MIT
/*
 * init.c: initializers: reading them, and filling the arenas. The formulas are Keras 3's
 * (keras/src/initializers/random_initializers.py): fans by compute_fans, a variance-scaling
 * truncated normal widened by 1 / .87962566103423978 so that its deviation after the cut is the
 * wanted one. Random numbers are Philox blocks of (seed, tensor, element): the same on every host
 * and for every number of threads.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "internal.h"

#define FLOAT_MAX 3.4e38
#define TRUNCATED_STDDEV 0.87962566103423978
#define TRIES 64 /* of a truncated draw: 4.6 % are outside, .046^64 never happens */

struct named {
	const char *class_name, *name;
	enum init_kind kind;
	double a, b;
	enum init_fan fan;
	enum init_kind distribution;
};

static const struct named known[] = {
	{"Zeros", "zeros", INIT_CONSTANT, 0, 0, 0, 0},
	{"zero", "zero", INIT_CONSTANT, 0, 0, 0, 0},
	{"Ones", "ones", INIT_CONSTANT, 1, 0, 0, 0},
	{"one", "one", INIT_CONSTANT, 1, 0, 0, 0},
	{"Constant", "constant", INIT_CONSTANT, 0, 0, 0, 0},
	{"RandomUniform", "random_uniform", INIT_UNIFORM, -0.05, 0.05, 0, 0},
	{"uniform", "uniform", INIT_UNIFORM, -0.05, 0.05, 0, 0},
	{"RandomNormal", "random_normal", INIT_NORMAL, 0, 0.05, 0, 0},
	{"normal", "normal", INIT_NORMAL, 0, 0.05, 0, 0},
	{"TruncatedNormal", "truncated_normal", INIT_TRUNCATED, 0, 0.05, 0, 0},
	{"VarianceScaling", "variance_scaling", INIT_SCALING, 1, 0, FAN_IN, INIT_TRUNCATED},
	{"GlorotUniform", "glorot_uniform", INIT_SCALING, 1, 0, FAN_AVG, INIT_UNIFORM},
	{"GlorotNormal", "glorot_normal", INIT_SCALING, 1, 0, FAN_AVG, INIT_TRUNCATED},
	{"HeUniform", "he_uniform", INIT_SCALING, 2, 0, FAN_IN, INIT_UNIFORM},
	{"HeNormal", "he_normal", INIT_SCALING, 2, 0, FAN_IN, INIT_TRUNCATED},
	{"LecunUniform", "lecun_uniform", INIT_SCALING, 1, 0, FAN_IN, INIT_UNIFORM},
	{"LecunNormal", "lecun_normal", INIT_SCALING, 1, 0, FAN_IN, INIT_TRUNCATED},
};

static int read_number(struct reader *r, struct place config, const char *key, double min,
		       double *out)
{
	struct place at = jread_key(r, config, key);

	return jread_absent(at) ? 0 : jread_double(r, at, min, FLOAT_MAX, out);
}

/* An integer, or the seed inside a SeedGenerator object. */
static int read_seed(struct reader *r, struct place config, struct init *out)
{
	struct place at = jread_key(r, config, "seed");
	int64_t seed;
	int rc;

	if (json_is_object(at.value))
		at = jread_key(r, jread_key(r, at, "config"), "seed");
	if (jread_absent(at))
		return 0;
	rc = jread_integer(r, at, INT64_MIN, INT64_MAX, &seed);
	if (rc)
		return rc;
	out->seeded = true;
	out->seed = (uint64_t)seed;
	return 0;
}

static int read_scaling(struct reader *r, struct place config, struct init *out)
{
	const char *mode = NULL, *distribution = NULL;
	int rc = read_number(r, config, "scale", 1e-38, &out->a);

	if (!rc)
		rc = jread_string(r, config, "mode", &mode);
	if (!rc)
		rc = jread_string(r, config, "distribution", &distribution);
	if (rc)
		return rc;
	if (mode && !strcmp(mode, "fan_in"))
		out->fan = FAN_IN;
	else if (mode && !strcmp(mode, "fan_out"))
		out->fan = FAN_OUT;
	else if (mode && !strcmp(mode, "fan_avg"))
		out->fan = FAN_AVG;
	else if (mode)
		return jread_error(r, config.path, "'mode' must be fan_in, fan_out or fan_avg");
	if (!distribution)
		return 0;
	if (!strcmp(distribution, "uniform"))
		out->distribution = INIT_UNIFORM;
	else if (!strcmp(distribution, "normal") || !strcmp(distribution, "truncated_normal"))
		out->distribution = INIT_TRUNCATED;
	else if (!strcmp(distribution, "untruncated_normal"))
		out->distribution = INIT_NORMAL;
	else
		return jread_error(r, config.path,
				   "'distribution' must be uniform, "
				   "truncated_normal or untruncated_normal");
	return 0;
}

static int read_config(struct reader *r, struct place config, const char *name, struct init *out)
{
	int rc = read_seed(r, config, out);

	if (rc)
		return rc;
	if (!jread_trivial(json_object_get(config.value, "input_axes")) &&
	    json_object_get(config.value, "input_axes"))
		return jread_error(r, config.path, "'input_axes' is not supported");
	switch (out->kind) {
	case INIT_CONSTANT:
		return strcmp(name, "Constant") && strcmp(name, "constant")
			       ? 0
			       : read_number(r, config, "value", -FLOAT_MAX, &out->a);
	case INIT_UNIFORM:
		rc = read_number(r, config, "minval", -FLOAT_MAX, &out->a);
		if (!rc)
			rc = read_number(r, config, "maxval", -FLOAT_MAX, &out->b);
		if (!rc && out->a > out->b)
			rc = jread_error(r, config.path, "'minval' is above 'maxval'");
		return rc;
	case INIT_NORMAL:
	case INIT_TRUNCATED:
		rc = read_number(r, config, "mean", -FLOAT_MAX, &out->a);
		return rc ? rc : read_number(r, config, "stddev", 0, &out->b);
	case INIT_SCALING:
		/* only the general class has these keys; a Glorot object may repeat its own */
		return strcmp(name, "VarianceScaling") ? 0 : read_scaling(r, config, out);
	}
	return 0;
}

int init_read(struct reader *r, struct place object, const char *key, const char *standard,
	      struct init *out)
{
	struct place at = jread_key(r, object, key), config = {NULL, at.path};
	const char *name = standard;
	int rc;

	if (json_is_string(at.value)) {
		name = json_string_value(at.value);
	} else if (!jread_absent(at)) {
		name = json_string_value(json_object_get(at.value, "class_name"));
		config = jread_key(r, at, "config");
	}
	for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++) {
		const struct named *k = &known[i];

		if (strcmp(name, k->class_name) && strcmp(name, k->name))
			continue;
		*out = (struct init){.kind = k->kind,
				     .a = k->a,
				     .b = k->b,
				     .fan = k->fan,
				     .distribution = k->distribution};
		return read_config(r, config, name, out);
	}
	rc = jread_error(r, at.path, "initializer '%.80s' is not supported",
			 name ? name : "(no name)");
	err_hint(r->err, "supported: zeros ones constant random_uniform random_normal "
			 "truncated_normal variance_scaling, glorot_, he_ and lecun_ uniform and "
			 "normal");
	return rc;
}

/* ---- filling ----------------------------------------------------------------------------- */

struct stream {
	uint32_t key[2], tensor;
};

static void draw(const struct stream *s, uint32_t block, uint32_t attempt, uint32_t word[4])
{
	const uint32_t counter[4] = {block, attempt, s->tensor, BACKEND_RANDOM_INIT};

	backend_philox(counter, s->key, word);
}

/* Two pairs by Box and Muller; (0, 1] keeps the logarithm finite. */
static void draw_normal(const struct stream *s, uint32_t block, uint32_t attempt, double z[4])
{
	uint32_t word[4];

	draw(s, block, attempt, word);
	for (int i = 0; i < 4; i += 2) {
		double radius = sqrt(-2.0 * log(((double)word[i] + 1.0) / 4294967296.0));
		double angle = 2.0 * M_PI * ((double)word[i + 1] / 4294967296.0);

		z[i] = radius * cos(angle);
		z[i + 1] = radius * sin(angle);
	}
}

static void draw_truncated(const struct stream *s, uint32_t block, double z[4])
{
	draw_normal(s, block, 0, z);
	for (uint32_t attempt = 1; attempt < TRIES; attempt++) {
		double again[4];
		bool outside = false;

		for (int i = 0; i < 4; i++)
			outside |= fabs(z[i]) > 2.0;
		if (!outside)
			return;
		draw_normal(s, block, attempt, again);
		for (int i = 0; i < 4; i++)
			if (fabs(z[i]) > 2.0)
				z[i] = again[i];
	}
	for (int i = 0; i < 4; i++)
		z[i] = fabs(z[i]) > 2.0 ? 0.0 : z[i];
}

/* fan_in and fan_out of a kernel: the last two dimensions times the receptive field. */
static double scaling_fan(const struct backend_tensor *t, enum init_fan fan)
{
	double field = 1, in, out;

	if (t->rank == 1) {
		in = out = t->dim[0];
	} else {
		for (uint32_t i = 0; i + 2 < t->rank; i++)
			field *= t->dim[i];
		in = field * t->dim[t->rank - 2];
		out = field * t->dim[t->rank - 1];
	}
	if (fan == FAN_AVG)
		return fmax(1, (in + out) / 2);
	return fmax(1, fan == FAN_IN ? in : out);
}

static struct init resolve(const struct init *init, const struct backend_tensor *t)
{
	struct init out = *init;
	double variance;

	if (init->kind != INIT_SCALING)
		return out;
	variance = init->a / scaling_fan(t, init->fan);
	out.kind = init->distribution;
	out.a = 0;
	out.b = sqrt(variance);
	if (out.kind == INIT_TRUNCATED)
		out.b /= TRUNCATED_STDDEV;
	if (out.kind == INIT_UNIFORM) {
		out.b = sqrt(3 * variance);
		out.a = -out.b;
	}
	return out;
}

static void fill(const struct init *init, const struct stream *s, float *out, uint64_t n)
{
	for (uint64_t i = 0; i < n; i += 4) {
		uint32_t block = (uint32_t)(i / 4), word[4];
		double z[4];

		if (init->kind == INIT_UNIFORM)
			draw(s, block, 0, word);
		else if (init->kind == INIT_NORMAL)
			draw_normal(s, block, 0, z);
		else if (init->kind == INIT_TRUNCATED)
			draw_truncated(s, block, z);
		for (uint64_t k = 0; k < 4 && i + k < n; k++) {
			double v = init->a;

			if (init->kind == INIT_UNIFORM)
				v += (init->b - init->a) * (double)backend_uniform(word[k]);
			else if (init->kind != INIT_CONSTANT)
				v += init->b * z[k];
			out[i + k] = (float)v;
		}
	}
}

int model_init(const struct model *model, uint64_t seed, float *param, float *stat, struct err *err)
{
	const struct backend_graph *g = &model->graph;

	if (!model->info.shape_known)
		return err_set(err, ERR_INTERNAL, -EINVAL, "the model's shape is not known yet");
	memset(param, 0, g->param_floats * sizeof(*param));
	memset(stat, 0, g->stat_floats * sizeof(*stat));
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *t = &g->tensor[i];
		struct init init = resolve(&model->init[i], t);
		uint64_t key = init.seeded ? init.seed : seed;
		/* a seed of the layer's own gives the same values wherever the layer stands */
		struct stream s = {{(uint32_t)key, (uint32_t)(key >> 32)},
				   init.seeded ? UINT32_MAX : i};

		fill(&init, &s, (t->arena == BACKEND_STAT ? stat : param) + t->offset, t->count);
	}
	return 0;
}
