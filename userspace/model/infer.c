// SPDX-License-Identifier: MIT
/*
 * infer.c: the shape of every call. The input's shape comes from the architecture; what it leaves
 * open (None, or all of it) comes from the data. An unknown dimension is 0 and spreads.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

bool shape_complete(const struct shape *shape)
{
	for (uint32_t i = 0; i < shape->rank; i++)
		if (!shape->dim[i])
			return false;
	return shape->rank > 0;
}

/* The product of the dimensions, capped where it would not fit. */
uint64_t shape_elements(const struct shape *shape)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < shape->rank; i++)
		if (__builtin_mul_overflow(n, shape->dim[i], &n))
			return UINT64_MAX;
	return n;
}

const char *shape_text(const struct shape *shape, char out[64])
{
	int used = snprintf(out, 64, "(None");

	for (uint32_t i = 0; i < shape->rank; i++)
		used += shape->dim[i]
				? snprintf(out + used, 64 - (size_t)used, ", %u", shape->dim[i])
				: snprintf(out + used, 64 - (size_t)used, ", None");
	snprintf(out + used, 64 - (size_t)used, ")");
	return out;
}

static bool bound(const struct model_bind *b)
{
	return b->h && b->w && b->c;
}

static uint64_t bind_elements(const struct model_bind *b)
{
	uint64_t n = (uint64_t)b->h * b->w;

	return __builtin_mul_overflow(n, b->c, &n) ? UINT64_MAX : n;
}

static int contradiction(struct reader *r, const struct layer *input, const struct shape *shape,
			 const struct model_bind *b)
{
	char text[64];

	return jread_error(r, input->path,
			   "the input shape is %s, the data's rows are %ux%ux%u (height, width, "
			   "channels)",
			   shape_text(shape, text), b->h, b->w, b->c);
}

/* Nothing declared: rank 1 for rows that are vectors, unless the first layer wants an image. */
static void undeclared(const struct model *model, const struct model_bind *b, struct shape *shape)
{
	bool image = true;

	for (uint32_t i = 1; i < model->n_calls; i++)
		if (model->call[i].n_in && model->call[i].in[0] == 0 &&
		    model->call[i].layer->cls != &layer_input) {
			image = model->call[i].layer->cls->image;
			break;
		}
	if (!image && b->h == 1 && b->w == 1)
		*shape = (struct shape){1, {b->c, 0, 0}};
	else
		*shape = (struct shape){3, {b->h, b->w, b->c}};
}

static bool fill(uint32_t *dim, uint32_t known, bool *filled)
{
	if (!*dim && known) {
		*dim = known;
		*filled = true;
	}
	return !known || *dim == known;
}

static int resolve_image(struct reader *r, struct model *model, const struct model_bind *b,
			 struct shape *shape)
{
	const uint32_t known[3] = {b->h, b->w, b->c};
	struct shape declared = *shape;
	bool fits = true;

	/* rows that are vectors: the architecture says how they fold */
	if (bound(b) && b->h == 1 && b->w == 1 && shape_complete(shape) &&
	    shape_elements(shape) == b->c)
		return 0;
	for (int i = 0; i < 3; i++)
		fits &= fill(&shape->dim[i], known[i], &model->input_filled);
	return fits ? 0 : contradiction(r, model->call[0].layer, &declared, b);
}

/* (c) or (a, c): any rows with as many elements fit. */
static int resolve_flat(struct reader *r, struct model *model, const struct model_bind *b,
			struct shape *shape)
{
	struct shape declared = *shape;
	uint64_t elements = bind_elements(b);

	if (!bound(b))
		return 0;
	if (elements > MAX_ELEMENTS)
		return contradiction(r, model->call[0].layer, &declared, b);
	if (shape->rank == 1) {
		fill(&shape->dim[0], (uint32_t)elements, &model->input_filled);
	} else {
		fill(&shape->dim[0], b->h, &model->input_filled);
		fill(&shape->dim[1], b->w * b->c, &model->input_filled);
	}
	if (shape_elements(shape) != elements)
		return contradiction(r, model->call[0].layer, &declared, b);
	return 0;
}

/* How the rows lie: an image of one channel where the architecture folds it in some other way. */
static struct backend_shape row_shape(const struct shape *shape, const struct model_bind *b)
{
	if (shape->rank == 3)
		return (struct backend_shape){shape->dim[0], shape->dim[1], shape->dim[2]};
	if (bound(b) && !(b->h == 1 && b->w == 1))
		return (struct backend_shape){b->h, b->w, b->c};
	if (shape->rank == 2)
		return (struct backend_shape){shape->dim[0], shape->dim[1], 1};
	return (struct backend_shape){1, 1, shape->dim[0]};
}

static int resolve_input(struct reader *r, struct model *model, const struct model_bind *b)
{
	struct call *call = &model->call[0];
	struct shape shape = call->layer->input;
	int rc = 0;

	if (!shape.rank && (b->h || b->w || b->c)) {
		undeclared(model, b, &shape);
		model->input_filled = bound(b);
	} else if (shape.rank == 3) {
		rc = resolve_image(r, model, b, &shape);
	} else if (shape.rank) {
		rc = resolve_flat(r, model, b, &shape);
	}
	call->out = call->layer->out = shape;
	if (!rc && shape.rank)
		model->input = row_shape(&shape, b);
	return rc;
}

static int infer_call(struct reader *r, struct model *model, struct call *call)
{
	struct layer *layer = call->layer;
	struct shape *in = arena_array(r->arena, call->n_in, sizeof(*in));
	char text[64];
	int rc;

	if (!in)
		return jread_oom(r);
	for (uint32_t i = 0; i < call->n_in; i++) {
		in[i] = model->call[call->in[i]].out;
		if (!in[i].rank)
			return 0; /* nothing known, nothing to check */
	}
	r->layer = layer->name;
	if (layer->cls->image && in->rank != 3)
		return jread_error(r, layer->path,
				   "needs (height, width, channels) as its input, not %s",
				   shape_text(in, text));
	rc = layer->cls->infer(r, layer, in, call->n_in, &call->out);
	for (uint32_t i = 0; i < call->out.rank && !rc; i++)
		if (call->out.dim[i] > MAX_SIZE)
			rc = jread_error(r, layer->path, "its output %s has a size above %u",
					 shape_text(&call->out, text), MAX_SIZE);
	if (!rc && shape_complete(&call->out) && shape_elements(&call->out) > MAX_ELEMENTS)
		rc = jread_error(r, layer->path, "its output %s has more than %llu elements",
				 shape_text(&call->out, text), (unsigned long long)MAX_ELEMENTS);
	layer->out = call->out;
	r->layer = NULL;
	return rc;
}

int model_infer(struct reader *r, struct model *model, const struct model_bind *bind)
{
	static const struct model_bind nothing;
	int rc = resolve_input(r, model, bind ? bind : &nothing);
	bool known = model->call[0].out.rank > 0;

	for (uint32_t i = 1; i < model->n_calls && !rc; i++)
		rc = infer_call(r, model, &model->call[i]);
	for (uint32_t i = 0; i < model->n_calls && !rc; i++)
		known = known && shape_complete(&model->call[i].out);
	if (!rc && known &&
	    (uint64_t)model->input.h * model->input.w > MAX_ELEMENTS / model->input.c)
		rc = jread_error(r, model->call[0].layer->path, "the input is too large");
	model->info.shape_known = !rc && known;
	return rc;
}
