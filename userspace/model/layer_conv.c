// SPDX-License-Identifier: MIT
/* layer_conv.c: Conv2D, DepthwiseConv2D, SeparableConv2D, Dense. Kernels are HWIO. */
#include <string.h>
#include <strings.h>

#include "internal.h"

int layer_padding(struct reader *r, struct layer *layer, struct place config)
{
	const char *padding = "valid";
	int rc = jread_string(r, config, "padding", &padding);

	if (rc)
		return rc;
	layer->same = !strcasecmp(padding, "same");
	if (!layer->same && strcasecmp(padding, "valid"))
		return jread_error(r, jread_key(r, config, "padding").path,
				   "must be 'valid' or 'same', not '%.40s'", padding);
	return 0;
}

/* Output size of a convolution or pooling over (h, w, c); c is left to the caller. */
int layer_window(struct reader *r, struct layer *layer, const struct shape *in, struct shape *out)
{
	*out = *in;
	for (int i = 0; i < 2; i++) {
		uint64_t size = in->dim[i], stride = layer->stride[i];
		uint64_t reach = (uint64_t)(layer->kernel[i] - 1) * layer->dilation[i] + 1;

		if (!size)
			continue;
		if (!layer->same && reach > size)
			return jread_error(r, layer->path,
					   "a window of %llu does not fit %s %llu of its input",
					   (unsigned long long)reach,
					   i ? "the width" : "the height",
					   (unsigned long long)size);
		out->dim[i] = (uint32_t)(layer->same ? (size + stride - 1) / stride
						     : (size - reach) / stride + 1);
	}
	return 0;
}

/* 'same' puts the odd pixel at the end. */
static void same_pads(uint64_t in, uint64_t out, uint64_t kernel, uint64_t stride,
		      uint64_t dilation, uint32_t *begin, uint32_t *end)
{
	uint64_t covered = (out - 1) * stride + (kernel - 1) * dilation + 1;
	uint64_t total = covered > in ? covered - in : 0;

	*begin = (uint32_t)(total / 2);
	*end = (uint32_t)(total - total / 2);
}

struct backend_window layer_window_lower(const struct layer *layer, const struct shape *in,
					 const struct shape *out)
{
	struct backend_window w = {
		.kh = layer->kernel[0],
		.kw = layer->kernel[1],
		.stride_h = layer->stride[0],
		.stride_w = layer->stride[1],
		.dilation_h = layer->dilation[0],
		.dilation_w = layer->dilation[1],
	};

	if (layer->same) {
		same_pads(in->dim[0], out->dim[0], w.kh, w.stride_h, w.dilation_h, &w.pad_top,
			  &w.pad_bottom);
		same_pads(in->dim[1], out->dim[1], w.kw, w.stride_w, w.dilation_w, &w.pad_left,
			  &w.pad_right);
	}
	return w;
}

static int read_window(struct reader *r, struct layer *layer, struct place config)
{
	int rc;

	for (int i = 0; i < 2; i++)
		layer->kernel[i] = layer->stride[i] = layer->dilation[i] = 1;
	layer->bias = true;
	rc = jread_need(r, config, "kernel_size");
	if (!rc)
		rc = jread_pair(r, config, "kernel_size", 1, MAX_WINDOW, layer->kernel);
	if (!rc)
		rc = jread_pair(r, config, "strides", 1, MAX_WINDOW, layer->stride);
	if (!rc)
		rc = jread_pair(r, config, "dilation_rate", 1, MAX_WINDOW, layer->dilation);
	if (!rc)
		rc = layer_padding(r, layer, config);
	if (!rc)
		rc = jread_bool(r, config, "use_bias", &layer->bias);
	if (!rc)
		rc = activation_read(r, config, "activation", &layer->activation);
	if (!rc && (layer->stride[0] > 1 || layer->stride[1] > 1) &&
	    (layer->dilation[0] > 1 || layer->dilation[1] > 1))
		rc = jread_error(r, config.path,
				 "'strides' and 'dilation_rate' cannot both be "
				 "above 1");
	return rc;
}

/* Initializer and regularizer of a tensor slot; what: "kernel". */
static int read_weight(struct reader *r, struct layer *layer, struct place config, int slot,
		       const char *what, const char *standard)
{
	char *init = arena_printf(r->arena, "%s_initializer", what);
	char *regularizer = arena_printf(r->arena, "%s_regularizer", what);
	int rc;

	if (!init || !regularizer)
		return jread_oom(r);
	rc = init_read(r, config, init, standard, &layer->init[slot]);
	return rc ? rc : regularizer_read(r, config, regularizer, &layer->regularizer[slot]);
}

static int read_units(struct reader *r, struct layer *layer, struct place config, const char *key)
{
	int rc = r->builtin ? 0 : jread_need(r, config, key);

	return rc ? rc : jread_u32(r, config, key, 1, MAX_SIZE, &layer->units);
}

static int read_kernel_and_bias(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_weight(r, layer, config, 0, "kernel", "glorot_uniform");

	return rc ? rc : read_weight(r, layer, config, 1, "bias", "zeros");
}

static int read_conv2d(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_units(r, layer, config, "filters");

	layer->groups = 1;
	if (!rc)
		rc = read_window(r, layer, config);
	if (!rc)
		rc = jread_u32(r, config, "groups", 1, MAX_SIZE, &layer->groups);
	if (!rc && layer->units % layer->groups)
		rc = jread_error(r, config.path, "%u filters cannot be divided into %u groups",
				 layer->units, layer->groups);
	return rc ? rc : read_kernel_and_bias(r, layer, config);
}

static int infer_conv2d(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			struct shape *out)
{
	int rc = layer_window(r, layer, in, out);

	out->dim[2] = layer->units;
	if (!rc && in->dim[2] % layer->groups)
		rc = jread_error(r, layer->path,
				 "%u input channels cannot be divided into %u groups", in->dim[2],
				 layer->groups);
	return rc;
}

static int bias_tensor(struct lower *lower, struct layer *layer, int slot, uint32_t n)
{
	return layer->bias ? lower_tensor(lower, layer, slot, "bias", 1, &n, true) : 0;
}

static int tensors_conv2d(struct lower *lower, struct layer *layer, const struct shape *in)
{
	const uint32_t dim[] = {layer->kernel[0], layer->kernel[1], in->dim[2] / layer->groups,
				layer->units};
	int rc = lower_tensor(lower, layer, 0, "kernel", 4, dim, true);

	return rc ? rc : bias_tensor(lower, layer, 1, layer->units);
}

/* The common end: kernel and bias of the node, then the activation. */
static int finish(struct lower *lower, struct layer *layer, struct call *call,
		  struct backend_node *node, int kernel, int bias)
{
	if (!node)
		return lower_fail(lower);
	node->tensor[0] = layer->tensor[kernel];
	node->tensor[1] = layer->bias ? layer->tensor[bias] : -1;
	call->node = lower_last(lower);
	return lower_activation(lower, layer, &layer->activation, &call->node);
}

static int lower_conv2d(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);
	struct backend_node *node =
		lower_node(lower, layer, BACKEND_CONV2D, in->node, shape_lower(&call->out));

	if (node) {
		node->window = layer_window_lower(layer, &in->out, &call->out);
		node->groups = layer->groups;
	}
	return finish(lower, layer, call, node, 0, 1);
}

/* ---- depthwise and separable ------------------------------------------------------------- */

static int read_depthwise(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_window(r, layer, config);

	layer->multiplier = 1;
	if (!rc)
		rc = jread_u32(r, config, "depth_multiplier", 1, MAX_SIZE, &layer->multiplier);
	if (!rc)
		rc = read_weight(r, layer, config, 0, "depthwise", "glorot_uniform");
	return rc ? rc : read_weight(r, layer, config, 1, "bias", "zeros");
}

static int infer_depthwise(struct reader *r, struct layer *layer, const struct shape *in,
			   uint32_t n, struct shape *out)
{
	uint64_t channels = (uint64_t)in->dim[2] * layer->multiplier;
	int rc = layer_window(r, layer, in, out);

	out->dim[2] = (uint32_t)channels;
	if (!rc && channels > MAX_SIZE)
		rc = jread_error(r, layer->path, "%llu output channels, at most %u",
				 (unsigned long long)channels, MAX_SIZE);
	return rc;
}

static int tensors_depthwise(struct lower *lower, struct layer *layer, const struct shape *in)
{
	const uint32_t dim[] = {layer->kernel[0], layer->kernel[1], in->dim[2], layer->multiplier};
	int rc = lower_tensor(lower, layer, 0, "kernel", 4, dim, true);

	return rc ? rc : bias_tensor(lower, layer, 1, in->dim[2] * layer->multiplier);
}

static int lower_depthwise(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);
	struct backend_node *node =
		lower_node(lower, layer, BACKEND_DEPTHWISE, in->node, shape_lower(&call->out));

	if (node) {
		node->window = layer_window_lower(layer, &in->out, &call->out);
		node->multiplier = layer->multiplier;
	}
	return finish(lower, layer, call, node, 0, 1);
}

static int read_separable(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_units(r, layer, config, "filters");

	if (!rc)
		rc = read_window(r, layer, config);
	layer->multiplier = 1;
	if (!rc)
		rc = jread_u32(r, config, "depth_multiplier", 1, MAX_SIZE, &layer->multiplier);
	if (!rc)
		rc = read_weight(r, layer, config, 0, "depthwise", "glorot_uniform");
	if (!rc)
		rc = read_weight(r, layer, config, 1, "pointwise", "glorot_uniform");
	return rc ? rc : read_weight(r, layer, config, 2, "bias", "zeros");
}

static int infer_separable(struct reader *r, struct layer *layer, const struct shape *in,
			   uint32_t n, struct shape *out)
{
	int rc = infer_depthwise(r, layer, in, n, out);

	out->dim[2] = layer->units;
	return rc;
}

static int tensors_separable(struct lower *lower, struct layer *layer, const struct shape *in)
{
	const uint32_t depth[] = {layer->kernel[0], layer->kernel[1], in->dim[2],
				  layer->multiplier};
	const uint32_t point[] = {1, 1, in->dim[2] * layer->multiplier, layer->units};
	int rc = lower_tensor(lower, layer, 0, "depthwise_kernel", 4, depth, true);

	if (!rc)
		rc = lower_tensor(lower, layer, 1, "pointwise_kernel", 4, point, true);
	return rc ? rc : bias_tensor(lower, layer, 2, layer->units);
}

static int lower_separable(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);
	struct backend_shape middle = shape_lower(&call->out);
	struct backend_node *node;

	middle.c = in->out.dim[2] * layer->multiplier;
	node = lower_node(lower, layer, BACKEND_DEPTHWISE, in->node, middle);
	if (!node)
		return lower_fail(lower);
	node->window = layer_window_lower(layer, &in->out, &call->out);
	node->multiplier = layer->multiplier;
	node->tensor[0] = layer->tensor[0];
	node = lower_node(lower, layer, BACKEND_CONV2D, lower_last(lower), shape_lower(&call->out));
	if (node) {
		node->window = (struct backend_window){1, 1, 1, 1, 1, 1, 0, 0, 0, 0};
		node->groups = 1;
	}
	return finish(lower, layer, call, node, 1, 2);
}

/* ---- dense ------------------------------------------------------------------------------- */

static int read_dense(struct reader *r, struct layer *layer, struct place config)
{
	int rc = read_units(r, layer, config, "units");

	layer->bias = true;
	if (!rc)
		rc = jread_bool(r, config, "use_bias", &layer->bias);
	if (!rc)
		rc = activation_read(r, config, "activation", &layer->activation);
	return rc ? rc : read_kernel_and_bias(r, layer, config);
}

static int infer_dense(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		       struct shape *out)
{
	*out = *in;
	out->dim[in->rank - 1] = layer->units;
	return 0;
}

static int tensors_dense(struct lower *lower, struct layer *layer, const struct shape *in)
{
	const uint32_t dim[] = {in->dim[in->rank - 1], layer->units};
	int rc = lower_tensor(lower, layer, 0, "kernel", 2, dim, true);

	return rc ? rc : bias_tensor(lower, layer, 1, layer->units);
}

static int lower_dense(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);

	return finish(lower, layer, call,
		      lower_node(lower, layer, BACKEND_DENSE, in->node, shape_lower(&call->out)), 0,
		      1);
}

#define WINDOW_KEYS "kernel_size strides padding dilation_rate activation use_bias "

const struct layer_class layer_conv[] = {
	{"Conv2D",
	 WINDOW_KEYS "filters groups kernel_initializer bias_initializer kernel_regularizer "
		     "bias_regularizer",
	 true, false, read_conv2d, infer_conv2d, tensors_conv2d, lower_conv2d},
	/* filters, groups and the kernel's keys: written by some releases, of no meaning here */
	{"DepthwiseConv2D",
	 WINDOW_KEYS "depth_multiplier filters groups kernel_initializer kernel_regularizer "
		     "depthwise_initializer depthwise_regularizer bias_initializer "
		     "bias_regularizer",
	 true, false, read_depthwise, infer_depthwise, tensors_depthwise, lower_depthwise},
	{"SeparableConv2D",
	 WINDOW_KEYS "depth_multiplier filters groups kernel_initializer kernel_regularizer "
		     "depthwise_initializer depthwise_regularizer pointwise_initializer "
		     "pointwise_regularizer bias_initializer bias_regularizer",
	 true, false, read_separable, infer_separable, tensors_separable, lower_separable},
	{"Dense",
	 "units activation use_bias kernel_initializer bias_initializer kernel_regularizer "
	 "bias_regularizer",
	 false, false, read_dense, infer_dense, tensors_dense, lower_dense},
	{.name = NULL},
};
