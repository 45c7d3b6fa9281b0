// SPDX-License-Identifier: MIT
/*
 * layer_augment.c: RandomFlip, RandomTranslation, RandomCrop: at work in training only. Their draws
 * come from the run's seed; a seed in the layer's configuration has no effect.
 */
#include <math.h>
#include <string.h>

#include "internal.h"

static int read_flip(struct reader *r, struct layer *layer, struct place config)
{
	const char *mode = "horizontal_and_vertical";
	int rc = jread_string(r, config, "mode", &mode);

	if (rc)
		return rc;
	layer->horizontal = !strcmp(mode, "horizontal");
	layer->vertical = !strcmp(mode, "vertical");
	if (!strcmp(mode, "horizontal_and_vertical"))
		layer->horizontal = layer->vertical = true;
	if (!layer->horizontal && !layer->vertical)
		return jread_error(r, jread_key(r, config, "mode").path,
				   "must be 'horizontal', 'vertical' or "
				   "'horizontal_and_vertical'");
	return 0;
}

static int infer_keep(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		      struct shape *out)
{
	*out = *in;
	return 0;
}

/* Called with training=False: an image passes unchanged (a crop is taken from the centre). */
static bool asleep(struct lower *lower, struct call *call)
{
	call->node = lower_call(lower, call->in[0])->node;
	return call->inference;
}

static struct backend_node *node_of(struct lower *lower, struct layer *layer, enum backend_op op,
				    struct call *call)
{
	struct backend_node *node = lower_node(
		lower, layer, op, lower_call(lower, call->in[0])->node, shape_lower(&call->out));

	call->node = lower_last(lower);
	return node;
}

static int lower_flip(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node;

	if (asleep(lower, call))
		return 0;
	node = node_of(lower, layer, BACKEND_FLIP, call);
	if (!node)
		return lower_fail(lower);
	node->horizontal = layer->horizontal;
	node->vertical = layer->vertical;
	return 0;
}

/* A number a for -a..a, or the pair [-a, a]. */
static int read_factor(struct reader *r, struct place config, const char *key, float *out)
{
	struct place at = jread_tuple(r, jread_key(r, config, key));
	double low, high;
	int rc = jread_need(r, config, key);

	if (rc)
		return rc;
	if (!json_is_array(at.value))
		return jread_float(r, config, key, 0, 1, out);
	if (json_array_size(at.value) != 2)
		return jread_error(r, at.path, "must be a number or a pair");
	rc = jread_double(r, jread_item(r, at, 0), -1, 1, &low);
	if (!rc)
		rc = jread_double(r, jread_item(r, at, 1), -1, 1, &high);
	if (!rc && fabs(low + high) > 1e-6)
		rc = jread_error(r, at.path, "must be the same to both sides, like [-0.1, 0.1]");
	if (!rc)
		*out = (float)fabs(high);
	return rc;
}

static int read_translation(struct reader *r, struct layer *layer, struct place config)
{
	const char *fill = "reflect"; /* Keras' default */
	float value = 0;
	int rc = read_factor(r, config, "height_factor", &layer->rate[0]);

	if (!rc)
		rc = read_factor(r, config, "width_factor", &layer->rate[1]);
	if (!rc)
		rc = jread_string(r, config, "fill_mode", &fill);
	if (!rc)
		rc = jread_float(r, config, "fill_value", -3.4e38, 3.4e38, &value);
	if (!rc && (strcmp(fill, "constant") || value != 0))
		rc = jread_error(r, config.path,
				 "fill_mode '%.20s' with fill_value %g is not supported; "
				 "'constant' with 0 is",
				 fill, (double)value);
	return rc;
}

static int lower_translation(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node;

	if (asleep(lower, call))
		return 0;
	node = node_of(lower, layer, BACKEND_SHIFT, call);
	if (!node)
		return lower_fail(lower);
	node->rate = layer->rate[0];
	node->rate_w = layer->rate[1];
	return 0;
}

static int read_crop(struct reader *r, struct layer *layer, struct place config)
{
	int rc = jread_need(r, config, "height");

	if (!rc)
		rc = jread_need(r, config, "width");
	if (!rc)
		rc = jread_u32(r, config, "height", 1, MAX_WINDOW, &layer->kernel[0]);
	return rc ? rc : jread_u32(r, config, "width", 1, MAX_WINDOW, &layer->kernel[1]);
}

static int infer_crop(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		      struct shape *out)
{
	char text[64];

	for (int i = 0; i < 2; i++)
		if (in->dim[i] && layer->kernel[i] > in->dim[i])
			return jread_error(r, layer->path, "cannot crop %ux%u out of %s",
					   layer->kernel[0], layer->kernel[1],
					   shape_text(in, text));
	*out = (struct shape){3, {layer->kernel[0], layer->kernel[1], in->dim[2]}};
	return 0;
}

static int lower_crop(struct lower *lower, struct layer *layer, struct call *call)
{
	struct backend_node *node;

	if (call->inference)
		return jread_error(lower_reader(lower), layer->path,
				   "RandomCrop called with training=False is not supported");
	node = node_of(lower, layer, BACKEND_CROP, call);
	if (!node)
		return lower_fail(lower);
	node->window.kh = layer->kernel[0];
	node->window.kw = layer->kernel[1];
	return 0;
}

const struct layer_class layer_augment[] = {
	{"RandomFlip", "mode seed value_range", true, false, read_flip, infer_keep, NULL,
	 lower_flip},
	{"RandomTranslation",
	 "height_factor width_factor fill_mode fill_value interpolation seed value_range", true,
	 false, read_translation, infer_keep, NULL, lower_translation},
	{"RandomCrop", "height width seed value_range", true, false, read_crop, infer_crop, NULL,
	 lower_crop},
	{.name = NULL},
};
