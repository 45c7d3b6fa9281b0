// SPDX-License-Identifier: MIT
/* export.c: the architecture as JSON; the user's own text unless an input shape was filled in. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static json_t *shape_json(const struct shape *shape)
{
	json_t *list = json_array();

	if (!list || json_array_append_new(list, json_null()))
		return json_decref(list), NULL;
	for (uint32_t i = 0; i < shape->rank; i++)
		if (json_array_append_new(list, json_integer(shape->dim[i])))
			return json_decref(list), NULL;
	return list;
}

/* The list of layers of a model object; borrowed. */
static json_t *layers_of(json_t *model)
{
	json_t *config = json_object_get(model, "config"), *layers = config;

	if (json_is_object(config))
		layers = json_object_get(config, "layers");
	if (json_is_object(layers))
		layers = json_object_get(layers, "items");
	return layers;
}

static const char *class_of(const json_t *layer)
{
	const char *name = json_string_value(json_object_get(layer, "class_name"));

	return name ? name : "";
}

static bool taken(json_t *layers, const char *name)
{
	json_t *layer;
	size_t i;

	json_array_foreach(layers, i, layer)
	{
		const json_t *own = json_object_get(layer, "name");
		const json_t *config = json_object_get(json_object_get(layer, "config"), "name");

		if ((own && json_is_string(own) && !strcmp(json_string_value(own), name)) ||
		    (config && json_is_string(config) && !strcmp(json_string_value(config), name)))
			return true;
	}
	return false;
}

/* In Keras 3 an InputLayer goes in front; Keras 2 keeps the shape in its first layer. */
static int insert_input(struct reader *r, json_t *layers, json_t *shape)
{
	json_t *first = json_array_get(layers, 0), *input;
	char name[40] = "input_layer";

	for (unsigned int i = 1; taken(layers, name); i++)
		snprintf(name, sizeof(name), "input_layer_%u", i);
	if (r->generation == 2 && strcmp(class_of(first), "Sequential") &&
	    strcmp(class_of(first), "Functional") && strcmp(class_of(first), "Model"))
		return json_object_set(json_object_get(first, "config"), "batch_input_shape",
				       shape);
	input = json_pack("{s:s, s:s, s:{s:O, s:s, s:s}, s:n}", "module", "keras.layers",
			  "class_name", "InputLayer", "config",
			  r->generation == 2 ? "batch_input_shape" : "batch_shape", shape, "name",
			  name, "dtype", "float32", "registered_name");
	return input ? json_array_insert_new(layers, 0, input) : -1;
}

/* Sets the shape of the layer whose name the reader knows as the input's. */
static int set_shape(struct reader *r, const struct model *model, json_t *root, json_t *shape)
{
	const struct layer *input = model->call[0].layer;
	json_t *layers = layers_of(root), *config, *layer;
	size_t i;

	json_array_foreach(layers, i, layer)
	{
		static const char *const keys[] = {"batch_shape", "batch_input_shape"};
		const char *name = json_string_value(json_object_get(layer, "name"));

		config = json_object_get(layer, "config");
		if (!name)
			name = json_string_value(json_object_get(config, "name"));
		if (model->sequential ? i > 0 : !name || strcmp(name, input->name))
			continue;
		for (size_t k = 0; k < 2; k++)
			if (json_object_get(config, keys[k]))
				return json_object_set(config, keys[k], shape);
		if (!strcmp(class_of(layer), "InputLayer"))
			return json_object_set(config, keys[r->generation == 2], shape);
	}
	return model->sequential ? insert_input(r, layers, shape) : 0;
}

int model_fill_json(struct reader *r, struct model *model, json_t *root)
{
	json_t *shape = shape_json(&model->call[0].out);
	int rc = shape ? set_shape(r, model, root, shape) : -1;

	json_decref(shape);
	if (!rc)
		model->json = json_dumps(root, JSON_REAL_PRECISION(17));
	return model->json ? 0 : jread_oom(r);
}

char *model_json(const struct model *model)
{
	if (model->info.builtin && !model->info.shape_known)
		return NULL; /* without the number of classes it is no architecture yet */
	return strdup(model->json ? model->json : model->text);
}
