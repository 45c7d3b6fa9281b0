// SPDX-License-Identifier: MIT
/* layer_pool.c: MaxPooling2D, AveragePooling2D and their global forms. */
#include <string.h>

#include "internal.h"

static int read_pool(struct reader *r, struct layer *layer, struct place config)
{
	int rc;

	layer->kernel[0] = layer->kernel[1] = 2;
	layer->dilation[0] = layer->dilation[1] = 1;
	rc = jread_pair(r, config, "pool_size", 1, MAX_WINDOW, layer->kernel);
	layer->stride[0] = layer->kernel[0];
	layer->stride[1] = layer->kernel[1];
	if (!rc)
		rc = jread_pair(r, config, "strides", 1, MAX_WINDOW, layer->stride);
	return rc ? rc : layer_padding(r, layer, config);
}

static int infer_pool(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		      struct shape *out)
{
	return layer_window(r, layer, in, out);
}

static int lower_pool(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);
	enum backend_op op = layer->cls->name[0] == 'M' ? BACKEND_MAXPOOL : BACKEND_AVGPOOL;
	struct backend_node *node = lower_node(lower, layer, op, in->node, shape_lower(&call->out));

	if (!node)
		return lower_fail(lower);
	node->window = layer_window_lower(layer, &in->out, &call->out);
	call->node = lower_last(lower);
	return 0;
}

static int read_global(struct reader *r, struct layer *layer, struct place config)
{
	return jread_bool(r, config, "keepdims", &layer->keepdims);
}

static int infer_global(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			struct shape *out)
{
	if (layer->keepdims)
		*out = (struct shape){3, {1, 1, in->dim[2]}};
	else
		*out = (struct shape){1, {in->dim[2], 0, 0}};
	return 0;
}

static int lower_global(struct lower *lower, struct layer *layer, struct call *call)
{
	enum backend_op op =
		strstr(layer->cls->name, "Max") ? BACKEND_GLOBAL_MAXPOOL : BACKEND_GLOBAL_AVGPOOL;

	if (!lower_node(lower, layer, op, lower_call(lower, call->in[0])->node,
			shape_lower(&call->out)))
		return lower_fail(lower);
	call->node = lower_last(lower);
	return 0;
}

const struct layer_class layer_pool[] = {
	{"MaxPooling2D", "pool_size strides padding", true, false, read_pool, infer_pool, NULL,
	 lower_pool},
	{"AveragePooling2D", "pool_size strides padding", true, false, read_pool, infer_pool, NULL,
	 lower_pool},
	{"GlobalAveragePooling2D", "keepdims", true, false, read_global, infer_global, NULL,
	 lower_global},
	{"GlobalMaxPooling2D", "keepdims", true, false, read_global, infer_global, NULL,
	 lower_global},
	{.name = NULL},
};
