// SPDX-License-Identifier: MIT
/*
 * layer_norm.c: layers that keep the shape: BatchNormalization, activations, Dropout, Rescaling.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

/* An axis, or a list of one (or a tuple). */
static int read_axis(struct reader *r, struct place config, int32_t *out)
{
	struct place at = jread_tuple(r, jread_key(r, config, "axis"));
	int64_t axis;
	int rc;

	*out = -1;
	if (jread_absent(at))
		return 0;
	if (json_is_array(at.value)) {
		if (json_array_size(at.value) != 1)
			return jread_error(r, at.path, "must be one axis");
		at = jread_item(r, at, 0);
	}
	rc = jread_integer(r, at, -4, 4, &axis);
	if (!rc)
		*out = (int32_t)axis;
	return rc;
}

static int infer_last_axis(struct reader *r, struct layer *layer, const struct shape *in,
			   uint32_t n, struct shape *out)
{
	*out = *in;
	if (layer->axis != -1 && layer->axis != (int32_t)in->rank)
		return jread_error(r, layer->path, "axis must be the last one (-1 or %u), not %d",
				   in->rank, layer->axis);
	return 0;
}

static int infer_keep(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		      struct shape *out)
{
	*out = *in;
	return 0;
}

/* ---- batch norm -------------------------------------------------------------------------- */

static int read_flags(struct reader *r, struct layer *layer, struct place config)
{
	static const char *const refused[] = {"renorm", "synchronized"};

	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		bool on = false;
		int rc = jread_bool(r, config, refused[i], &on);

		if (rc)
			return rc;
		if (on)
			return jread_error(r, jread_key(r, config, refused[i]).path,
					   "'%s' is not supported", refused[i]);
	}
	return 0;
}

static int read_batchnorm(struct reader *r, struct layer *layer, struct place config)
{
	static const char *const tensor[] = {"gamma", "beta", "moving_mean", "moving_variance"};
	static const char *const standard[] = {"ones", "zeros", "zeros", "ones"};
	int rc = read_axis(r, config, &layer->axis);

	layer->momentum = 0.99f;
	layer->epsilon = 1e-3f;
	layer->center = layer->scaled = true;
	if (!rc)
		rc = jread_float(r, config, "momentum", 0, 1, &layer->momentum);
	if (!rc)
		rc = jread_float(r, config, "epsilon", 1e-30, 1e30, &layer->epsilon);
	if (!rc)
		rc = jread_bool(r, config, "center", &layer->center);
	if (!rc)
		rc = jread_bool(r, config, "scale", &layer->scaled);
	if (!rc)
		rc = read_flags(r, layer, config);
	for (int i = 0; i < 4 && !rc; i++) {
		char *key = arena_printf(r->arena, "%s_initializer", tensor[i]);

		rc = key ? init_read(r, config, key, standard[i], &layer->init[i]) : jread_oom(r);
	}
	if (!rc)
		rc = regularizer_read(r, config, "gamma_regularizer", &layer->regularizer[0]);
	return rc ? rc : regularizer_read(r, config, "beta_regularizer", &layer->regularizer[1]);
}

static int tensors_batchnorm(struct lower *lower, struct layer *layer, const struct shape *in)
{
	uint32_t c = in->dim[in->rank - 1];
	int rc = 0;

	if (layer->scaled)
		rc = lower_tensor(lower, layer, 0, "gamma", 1, &c, true);
	if (!rc && layer->center)
		rc = lower_tensor(lower, layer, 1, "beta", 1, &c, true);
	if (!rc)
		rc = lower_tensor(lower, layer, 2, "moving_mean", 1, &c, false);
	return rc ? rc : lower_tensor(lower, layer, 3, "moving_variance", 1, &c, false);
}

static int lower_batchnorm(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node =
		lower_node(lower, layer, BACKEND_BATCHNORM, lower_call(lower, call->in[0])->node,
			   shape_lower(&call->out));

	if (!node)
		return lower_fail(lower);
	memcpy(node->tensor, layer->tensor, sizeof(node->tensor));
	node->momentum = layer->momentum;
	node->epsilon = layer->epsilon;
	node->frozen = !layer->trainable || call->inference;
	call->node = lower_last(lower);
	return 0;
}

/* ---- activations ------------------------------------------------------------------------- */

static int read_activation(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_axis(r, config, &layer->axis);

	return rc ? rc : activation_layer(r, layer->cls->name, config, &layer->activation);
}

static int lower_activation_layer(struct lower *lower, struct layer *layer, struct call *call)
{
	call->node = lower_call(lower, call->in[0])->node;
	return lower_activation(lower, layer, &layer->activation, &call->node);
}

/* ---- dropout, rescaling ------------------------------------------------------------------ */

static int read_dropout(struct reader *r, struct layer *layer, struct place config)
{
	int rc = jread_need(r, config, "rate");

	/* 1 would drop everything and scale what is left by 1 / 0 */
	if (!rc)
		rc = jread_float(r, config, "rate", 0, 0.999999, &layer->rate[0]);
	if (!rc && !jread_absent(jread_key(r, config, "noise_shape")))
		rc = jread_error(r, jread_key(r, config, "noise_shape").path,
				 "'noise_shape' is not supported");
	return rc;
}

static int lower_dropout(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node;

	call->node = lower_call(lower, call->in[0])->node;
	if (layer->rate[0] == 0 || call->inference)
		return 0;
	node = lower_node(lower, layer, BACKEND_DROPOUT, call->node, shape_lower(&call->out));
	if (!node)
		return lower_fail(lower);
	node->rate = layer->rate[0];
	call->node = lower_last(lower);
	return 0;
}

/* A number, or one for each channel. */
static int read_factors(struct reader *r, struct place config, const char *key, float standard,
			uint32_t *n, float **out)
{
	struct place at = jread_tuple(r, jread_key(r, config, key));
	size_t count = json_is_array(at.value) ? json_array_size(at.value) : 1;

	if (count < 1 || count > MAX_SIZE)
		return jread_error(r, at.path, "must be a number or a list of numbers");
	*n = (uint32_t)count;
	*out = arena_array(r->arena, count, sizeof(**out));
	if (!*out)
		return jread_oom(r);
	(*out)[0] = standard;
	for (size_t i = 0; i < count && !jread_absent(at); i++) {
		struct place item = json_is_array(at.value) ? jread_item(r, at, i) : at;
		double v;
		int rc = jread_double(r, item, -3.4e38, 3.4e38, &v);

		if (rc)
			return rc;
		(*out)[i] = (float)v;
	}
	return 0;
}

static int read_rescaling(struct reader *r, struct layer *layer, struct place config)
{
	int rc = jread_need(r, config, "scale");

	if (!rc)
		rc = read_factors(r, config, "scale", 1, &layer->n_scale, &layer->rescale);
	return rc ? rc : read_factors(r, config, "offset", 0, &layer->n_offset, &layer->offset);
}

static int infer_rescaling(struct reader *r, struct layer *layer, const struct shape *in,
			   uint32_t n, struct shape *out)
{
	uint32_t c = in->dim[in->rank - 1];

	*out = *in;
	if (c && ((layer->n_scale != 1 && layer->n_scale != c) ||
		  (layer->n_offset != 1 && layer->n_offset != c)))
		return jread_error(r, layer->path, "%u scales and %u offsets for %u channels",
				   layer->n_scale, layer->n_offset, c);
	return 0;
}

/* The node holds either one number for all channels or one for each, for both. */
static const float *spread(struct reader *r, const float *value, uint32_t n, uint32_t c)
{
	float *out;

	if (n == c)
		return value;
	out = arena_array(r->arena, c, sizeof(*out));
	for (uint32_t i = 0; out && i < c; i++)
		out[i] = value[0];
	return out;
}

static int lower_rescaling(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_shape shape = shape_lower(&call->out);
	struct backend_node *node = lower_node(lower, layer, BACKEND_RESCALE,
					       lower_call(lower, call->in[0])->node, shape);
	struct reader *r = lower_reader(lower);

	if (!node)
		return lower_fail(lower);
	node->scale1 = layer->rescale[0];
	node->offset1 = layer->offset[0];
	if (layer->n_scale > 1 || layer->n_offset > 1) {
		node->scale = spread(r, layer->rescale, layer->n_scale, shape.c);
		node->offset = spread(r, layer->offset, layer->n_offset, shape.c);
		if (!node->scale || !node->offset)
			return lower_fail(lower);
	}
	call->node = lower_last(lower);
	return 0;
}

const struct layer_class layer_norm[] = {
	{"BatchNormalization",
	 "axis momentum epsilon center scale renorm renorm_clipping renorm_momentum synchronized "
	 "fused gamma_initializer beta_initializer moving_mean_initializer "
	 "moving_variance_initializer gamma_regularizer beta_regularizer",
	 false, false, read_batchnorm, infer_last_axis, tensors_batchnorm, lower_batchnorm},
	{"Activation", "activation", false, false, read_activation, infer_last_axis, NULL,
	 lower_activation_layer},
	{"ReLU", "max_value negative_slope threshold", false, false, read_activation,
	 infer_last_axis, NULL, lower_activation_layer},
	{"LeakyReLU", "negative_slope alpha", false, false, read_activation, infer_last_axis, NULL,
	 lower_activation_layer},
	{"ELU", "alpha", false, false, read_activation, infer_last_axis, NULL,
	 lower_activation_layer},
	{"Softmax", "axis", false, false, read_activation, infer_last_axis, NULL,
	 lower_activation_layer},
	{"Dropout", "rate seed noise_shape", false, false, read_dropout, infer_keep, NULL,
	 lower_dropout},
	{"Rescaling", "scale offset", false, false, read_rescaling, infer_rescaling, NULL,
	 lower_rescaling},
	{.name = NULL},
};
