// SPDX-License-Identifier: MIT
/*
 * layer.c: what every layer has in common: finding its class, checking the keys of its
 * configuration, dtype and data_format, declared input shapes; and InputLayer itself.
 */
#include <string.h>

#include "internal.h"

#define COMMON                                                                               \
	"name trainable dtype batch_input_shape batch_shape input_shape input_dtype sparse " \
	"ragged optional autocast dynamic activity_regularizer data_format"

static const struct layer_class *const tables[] = {layer_conv, layer_pool, layer_norm, layer_merge,
						   layer_augment};

const struct layer_class *layer_class_find(const char *name)
{
	/* TensorFlow 1.14 and 1.15 */
	if (!strcmp(name, "BatchNormalizationV1") || !strcmp(name, "BatchNormalizationV2"))
		name = "BatchNormalization";
	if (!strcmp(name, layer_input.name))
		return &layer_input;
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		for (const struct layer_class *c = tables[i]; c->name; c++)
			if (!strcmp(c->name, name))
				return c;
	return NULL;
}

static bool has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = list; p && (p = strstr(p, word)); p += n)
		if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
			return n > 0;
	return false;
}

/* Names of Keras 1 and what Keras 2 calls them. */
static const char *const keras1[][2] = {
	{"nb_filter", "filters"},
	{"nb_row", "kernel_size"},
	{"nb_col", "kernel_size"},
	{"subsample", "strides"},
	{"border_mode", "padding"},
	{"dim_ordering", "data_format"},
	{"output_dim", "units"},
	{"init", "kernel_initializer"},
	{"W_regularizer", "kernel_regularizer"},
	{"b_regularizer", "bias_regularizer"},
	{"W_constraint", "kernel_constraint"},
	{"b_constraint", "bias_constraint"},
	{"bias", "use_bias"},
	{"p", "rate"},
	{"atrous_rate", "dilation_rate"},
	{"input_dim", "batch_input_shape"},
};

static bool ends(const char *text, const char *with)
{
	size_t n = strlen(text), m = strlen(with);

	return n >= m && !strcmp(text + n - m, with);
}

static int check_key(struct reader *r, const struct layer_class *cls, struct place config,
		     const char *key, const json_t *value)
{
	struct place at = jread_key(r, config, key);

	if (!strcmp(key, "activity_regularizer") && !jread_trivial(value))
		return jread_error(r, at.path, "activity regularizers are not supported");
	if (has_word(COMMON, key) || has_word(cls->keys, key))
		return 0;
	for (size_t i = 0; i < sizeof(keras1) / sizeof(keras1[0]); i++)
		if (!strcmp(keras1[i][0], key))
			return jread_error(r, at.path,
					   "'%s' is a key of Keras 1 ('%s' since Keras 2): load "
					   "and save the model with Keras 2 first",
					   key, keras1[i][1]);
	if (jread_trivial(value))
		return 0;
	if (ends(key, "_constraint"))
		return jread_error(r, at.path, "constraints on weights are not supported");
	return jread_error(r, at.path, "unknown key of %s", cls->name);
}

static int check_dtype(struct reader *r, const struct layer_class *cls, struct place config)
{
	static const char *const fine[] = {"float32", "mixed_float16", "mixed_bfloat16"};
	struct place at = jread_key(r, config, "dtype");
	const char *name = json_string_value(at.value);

	if (jread_absent(at) || cls == &layer_input)
		return 0; /* whatever arrives is converted to f32 */
	if (json_is_object(at.value)) {
		struct place inner = jread_key(r, at, "config");

		name = json_string_value(json_object_get(inner.value, "name"));
		if (!name &&
		    json_is_string(inner.value)) /* {"class_name": "Policy", "config": "float32"} */
			name = json_string_value(inner.value);
	}
	for (size_t i = 0; name && i < sizeof(fine) / sizeof(fine[0]); i++)
		if (!strcmp(fine[i], name))
			return 0;
	return jread_error(r, at.path, "dtype '%.40s' is not supported; float32 is",
			   name ? name : "(not a name)");
}

static int check_format(struct reader *r, struct place config)
{
	struct place at = jread_key(r, config, "data_format");
	const char *format = json_string_value(at.value);

	if (jread_absent(at) || (format && !strcmp(format, "channels_last")))
		return 0;
	return jread_error(r, at.path, "data_format must be 'channels_last'%s",
			   format && !strcmp(format, "channels_first")
				   ? ", not 'channels_first': convert the model first"
				   : "");
}

int layer_read_shape(struct reader *r, struct place at, struct shape *out)
{
	struct shape shape = {0};
	size_t n;

	at = jread_tuple(r, at);
	if (jread_absent(at))
		return 0;
	n = json_array_size(at.value);
	if (!json_is_array(at.value) || n < 2 || n > 4)
		return jread_error(r, at.path, "must be a list of 2 to 4 sizes, the batch first");
	shape.rank = (uint32_t)n - 1;
	for (uint32_t i = 0; i < shape.rank; i++) {
		struct place dim = jread_item(r, at, i + 1);
		int64_t v = 0;
		int rc = json_is_null(dim.value) ? 0 : jread_integer(r, dim, 1, INT32_MAX, &v);

		if (rc)
			return rc;
		shape.dim[i] = (uint32_t)v;
	}
	*out = shape;
	return 0;
}

/* batch_shape (3), batch_input_shape (2), or input_shape without the batch. */
static int read_input_shape(struct reader *r, struct place config, struct shape *out)
{
	struct place without = jread_tuple(r, jread_key(r, config, "input_shape"));
	int rc = layer_read_shape(r, jread_key(r, config, "batch_shape"), out);

	if (!rc && !out->rank)
		rc = layer_read_shape(r, jread_key(r, config, "batch_input_shape"), out);
	if (!rc && !out->rank && json_is_array(without.value)) {
		struct place with = {json_array(), without.path};

		if (!with.value || json_array_append_new(with.value, json_null()) ||
		    json_array_extend(with.value, without.value))
			rc = jread_oom(r);
		else
			rc = layer_read_shape(r, with, out);
		json_decref(with.value);
	}
	return rc;
}

int layer_read(struct reader *r, struct place at, const char *class_name, const char *name,
	       bool trainable, struct layer *layer)
{
	struct place config = jread_key(r, at, "config");
	const char *key;
	json_t *value;
	int rc;

	layer->cls = layer_class_find(class_name);
	layer->name = name;
	layer->path = at.path;
	layer->trainable = true;
	for (int i = 0; i < LAYER_TENSORS; i++)
		layer->tensor[i] = -1;
	if (!layer->cls) {
		rc = jread_error(r, at.path, "layers of class '%.80s' are not supported",
				 class_name);
		err_hint(r->err, "custom classes are refused; see gpu_cnn(7) for the layers that "
				 "are read");
		return rc;
	}
	if (!json_is_object(config.value))
		return jread_error(r, config.path, "'config' must be an object");
	json_object_foreach(config.value, key, value)
	{
		rc = check_key(r, layer->cls, config, key, value);
		if (rc)
			return rc;
	}
	rc = check_dtype(r, layer->cls, config);
	if (!rc)
		rc = check_format(r, config);
	if (!rc)
		rc = jread_bool(r, config, "trainable", &layer->trainable);
	layer->trainable = layer->trainable && trainable;
	if (!rc)
		rc = read_input_shape(r, config, &layer->input);
	if (!rc && layer->cls->read)
		rc = layer->cls->read(r, layer, config);
	return rc;
}

/* ---- InputLayer -------------------------------------------------------------------------- */

static int read_input(struct reader *r, struct layer *layer, struct place config)
{
	bool sparse = false, ragged = false;
	int rc = jread_bool(r, config, "sparse", &sparse);

	if (!rc)
		rc = jread_bool(r, config, "ragged", &ragged);
	if (!rc && (sparse || ragged))
		rc = jread_error(r, config.path, "sparse and ragged inputs are not supported");
	return rc;
}

/* Inside a nested model: what comes in must be what was declared. */
static int infer_input(struct reader *r, struct layer *layer, const struct shape *in, uint32_t n,
		       struct shape *out)
{
	const struct shape *want = &layer->input;
	char a[64], b[64];
	bool same = !want->rank || want->rank == in->rank;

	for (uint32_t i = 0; same && i < want->rank; i++)
		same = !want->dim[i] || !in->dim[i] || want->dim[i] == in->dim[i];
	if (!same)
		return jread_error(r, layer->path, "the nested model wants %s and is given %s",
				   shape_text(want, a), shape_text(in, b));
	*out = *in;
	return 0;
}

static int lower_input(struct lower *lower, struct layer *layer, struct call *call)
{
	call->node = lower_call(lower, call->in[0])->node;
	return 0;
}

const struct layer_class layer_input = {.name = "InputLayer",
					.keys = "",
					.read = read_input,
					.infer = infer_input,
					.lower = lower_input};
