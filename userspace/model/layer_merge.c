// SPDX-License-Identifier: MIT
/*
 * layer_merge.c: layers that join or rearrange: Add, Concatenate, Flatten, Reshape, ZeroPadding2D,
 * UpSampling2D.
 */
#include <string.h>

#include "internal.h"

static uint32_t *input_nodes(struct lower *lower, const struct call *call)
{
	uint32_t *in = arena_array(lower_reader(lower)->arena, call->n_in, sizeof(*in));

	for (uint32_t i = 0; in && i < call->n_in; i++)
		in[i] = lower_call(lower, call->in[i])->node;
	return in;
}

static int lower_merge(struct lower *lower, struct layer *layer, struct call *call)
{
	enum backend_op op = layer->cls->name[0] == 'A' ? BACKEND_ADD : BACKEND_CONCAT;
	uint32_t *in = input_nodes(lower, call), rank = call->out.rank;
	struct backend_node *node;

	if (!in)
		return lower_fail(lower);
	node = lower_node(lower, layer, op, in[0], shape_lower(&call->out));
	if (!node)
		return lower_fail(lower);
	node->n_in = call->n_in;
	node->in = in;
	if (op == BACKEND_CONCAT) {
		int32_t axis = layer->axis < 0 ? layer->axis + (int32_t)rank : layer->axis - 1;

		/* in a node the last of three axes is c, whatever the rank */
		node->axis = 3 - rank + (uint32_t)axis;
	}
	call->node = lower_last(lower);
	return 0;
}

static int different(struct reader *r, const struct layer *layer, const struct shape *a,
		     const struct shape *b)
{
	char x[64], y[64];

	return jread_error(r, layer->path, "the inputs %s and %s do not fit together",
			   shape_text(a, x), shape_text(b, y));
}

static int infer_add(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		     struct shape *out)
{
	*out = in[0];
	for (uint32_t i = 1; i < n; i++) {
		if (in[i].rank != out->rank)
			return different(r, layer, out, &in[i]);
		for (uint32_t d = 0; d < out->rank; d++) {
			if (!out->dim[d])
				out->dim[d] = in[i].dim[d];
			else if (in[i].dim[d] && in[i].dim[d] != out->dim[d])
				return different(r, layer, out, &in[i]);
		}
	}
	return 0;
}

static int read_concat(struct reader *r, struct layer *layer, struct place config)
{
	struct place at = jread_key(r, config, "axis");
	int64_t axis = -1;
	int rc = jread_absent(at) ? 0 : jread_integer(r, at, -3, 3, &axis);

	layer->axis = (int32_t)axis;
	if (!rc && axis == 0)
		rc = jread_error(r, at.path, "axis 0 is the batch");
	return rc;
}

static int infer_concat(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			struct shape *out)
{
	int32_t rank = (int32_t)in[0].rank;
	int32_t axis = layer->axis < 0 ? layer->axis + rank : layer->axis - 1;
	uint64_t sum;

	*out = in[0];
	if (axis < 0 || axis >= rank)
		return jread_error(r, layer->path, "axis %d of an input with %d dimensions",
				   layer->axis, rank + 1);
	sum = out->dim[axis];
	for (uint32_t i = 1; i < n; i++) {
		if (in[i].rank != out->rank)
			return different(r, layer, out, &in[i]);
		for (int32_t d = 0; d < rank; d++) {
			if (d == axis)
				sum = sum && in[i].dim[d] ? sum + in[i].dim[d] : 0;
			else if (!out->dim[d])
				out->dim[d] = in[i].dim[d];
			else if (in[i].dim[d] && in[i].dim[d] != out->dim[d])
				return different(r, layer, out, &in[i]);
		}
	}
	if (sum > MAX_ELEMENTS)
		return jread_error(r, layer->path, "the output is too large");
	out->dim[axis] = (uint32_t)sum;
	return 0;
}

/* ---- reshape ----------------------------------------------------------------------------- */

static int lower_reshape(struct lower *lower, struct layer *layer, struct call *call)
{
	const struct call *in = lower_call(lower, call->in[0]);
	struct backend_shape from = shape_lower(&in->out), to = shape_lower(&call->out);

	call->node = in->node;
	if (from.h == to.h && from.w == to.w && from.c == to.c)
		return 0;
	if (!lower_node(lower, layer, BACKEND_RESHAPE, in->node, to))
		return lower_fail(lower);
	call->node = lower_last(lower);
	return 0;
}

static int infer_flatten(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			 struct shape *out)
{
	uint64_t elements = shape_complete(in) ? shape_elements(in) : 0;

	if (elements > MAX_ELEMENTS)
		return jread_error(r, layer->path, "the output is too large");
	*out = (struct shape){1, {(uint32_t)elements, 0, 0}};
	return 0;
}

static int read_reshape(struct reader *r, struct layer *layer, struct place config)
{
	struct place at = jread_tuple(r, jread_key(r, config, "target_shape"));
	size_t n = json_array_size(at.value), rest = 0;

	if (!json_is_array(at.value) || n < 1 || n > 3)
		return jread_error(r, at.value ? at.path : config.path,
				   "'target_shape' must be a list of 1 to 3 sizes");
	layer->n_target = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		int rc = jread_integer(r, jread_item(r, at, i), -1, INT32_MAX, &layer->target[i]);

		if (rc)
			return rc;
		rest += layer->target[i] == -1;
		if (!layer->target[i] || rest > 1)
			return jread_error(r, at.path,
					   "sizes must be positive, one of them may "
					   "be -1");
	}
	return 0;
}

static int infer_reshape(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			 struct shape *out)
{
	bool known = shape_complete(in);
	uint64_t elements = known ? shape_elements(in) : 0, fixed = 1;
	uint32_t rest = 3;
	char text[64];

	*out = (struct shape){layer->n_target, {0}};
	for (uint32_t i = 0; i < layer->n_target; i++) {
		if (layer->target[i] < 0) {
			rest = i;
			continue;
		}
		out->dim[i] = (uint32_t)layer->target[i];
		if (__builtin_mul_overflow(fixed, layer->target[i], &fixed))
			return jread_error(r, layer->path, "the output is too large");
	}
	if (!known)
		return 0;
	if (rest < 3 ? elements % fixed != 0 || elements / fixed > MAX_ELEMENTS : elements != fixed)
		return jread_error(r, layer->path,
				   "%s with its %llu elements cannot take the "
				   "target shape",
				   shape_text(in, text), (unsigned long long)elements);
	if (rest < 3)
		out->dim[rest] = (uint32_t)(elements / fixed);
	return 0;
}

/* ---- padding, upsampling ----------------------------------------------------------------- */

static int read_sides(struct reader *r, struct place at, uint32_t out[2])
{
	int rc = 0;

	at = jread_tuple(r, at);
	if (!json_is_array(at.value) || json_array_size(at.value) != 2)
		return jread_error(r, at.path, "must be a number, two, or two pairs");
	for (size_t i = 0; i < 2 && !rc; i++) {
		int64_t v = 0;

		rc = jread_integer(r, jread_item(r, at, i), 0, MAX_WINDOW, &v);
		out[i] = (uint32_t)v;
	}
	return rc;
}

/* 1, [h, w] or [[top, bottom], [left, right]] */
static int read_pad(struct reader *r, struct layer *layer, struct place config)
{
	struct place at = jread_tuple(r, jread_key(r, config, "padding"));
	struct place first = jread_tuple(r, jread_item(r, at, 0));
	uint32_t both[2] = {1, 1};
	int rc;

	if (json_is_array(first.value) && json_array_size(at.value) == 2) {
		rc = read_sides(r, first, layer->pad);
		return rc ? rc : read_sides(r, jread_item(r, at, 1), layer->pad + 2);
	}
	rc = jread_pair(r, config, "padding", 0, MAX_WINDOW, both);
	layer->pad[0] = layer->pad[1] = both[0];
	layer->pad[2] = layer->pad[3] = both[1];
	return rc;
}

static int infer_pad(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		     struct shape *out)
{
	*out = *in;
	for (int i = 0; i < 2; i++)
		if (in->dim[i])
			out->dim[i] += layer->pad[2 * i] + layer->pad[2 * i + 1];
	return 0;
}

static int lower_pad(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node =
		lower_node(lower, layer, BACKEND_PAD, lower_call(lower, call->in[0])->node,
			   shape_lower(&call->out));

	if (!node)
		return lower_fail(lower);
	node->window.pad_top = layer->pad[0];
	node->window.pad_bottom = layer->pad[1];
	node->window.pad_left = layer->pad[2];
	node->window.pad_right = layer->pad[3];
	call->node = lower_last(lower);
	return 0;
}

static int read_upsample(struct reader *r, struct layer *layer, struct place config)
{
	const char *how = "nearest";
	int rc;

	layer->stride[0] = layer->stride[1] = 2;
	rc = jread_pair(r, config, "size", 1, 1024, layer->stride);
	if (!rc)
		rc = jread_string(r, config, "interpolation", &how);
	layer->bilinear = !strcmp(how, "bilinear");
	if (!rc && !layer->bilinear && strcmp(how, "nearest"))
		rc = jread_error(r, jread_key(r, config, "interpolation").path,
				 "must be 'nearest' or 'bilinear', not '%.40s'", how);
	return rc;
}

static int infer_upsample(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
			  struct shape *out)
{
	*out = *in;
	for (int i = 0; i < 2; i++) {
		uint64_t size = (uint64_t)in->dim[i] * layer->stride[i];

		if (size > MAX_ELEMENTS)
			return jread_error(r, layer->path, "the output is too large");
		out->dim[i] = (uint32_t)size;
	}
	return 0;
}

static int lower_upsample(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node =
		lower_node(lower, layer, BACKEND_UPSAMPLE, lower_call(lower, call->in[0])->node,
			   shape_lower(&call->out));

	if (!node)
		return lower_fail(lower);
	node->window.stride_h = layer->stride[0];
	node->window.stride_w = layer->stride[1];
	node->bilinear = layer->bilinear;
	call->node = lower_last(lower);
	return 0;
}

const struct layer_class layer_merge[] = {
	{"Add", "", false, true, NULL, infer_add, NULL, lower_merge},
	{"Concatenate", "axis", false, true, read_concat, infer_concat, NULL, lower_merge},
	{"Flatten", "", false, false, NULL, infer_flatten, NULL, lower_reshape},
	{"Reshape", "target_shape", false, false, read_reshape, infer_reshape, NULL, lower_reshape},
	{"ZeroPadding2D", "padding", true, false, read_pad, infer_pad, NULL, lower_pad},
	{"UpSampling2D", "size interpolation", true, false, read_upsample, infer_upsample, NULL,
	 lower_upsample},
	{.name = NULL},
};
