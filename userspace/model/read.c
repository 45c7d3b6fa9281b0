// SPDX-License-Identifier: MIT
/*
 * read.c: the document: which kind of model, which generation of Keras; one layer or nested model;
 * and Sequential models. Functional ones are in read_functional.c.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "internal.h"

#define NAME_MAX_BYTES 100u /* leaves room for "/depthwise_kernel" in a tensor's name */

static bool is_sequential(const char *class_name)
{
	return !strcmp(class_name, "Sequential");
}

static bool is_model(const char *class_name)
{
	return is_sequential(class_name) || !strcmp(class_name, "Functional") ||
	       !strcmp(class_name, "Model");
}

static bool starts(const char *text, const char *with)
{
	return !strncmp(text, with, strlen(with));
}

static const char *text_of(struct place at, const char *key)
{
	return json_string_value(json_object_get(at.value, key));
}

/* Lambda, classes of the user's own and operations on tensors (x * 2) that are no layers. */
static int refuse_foreign(struct reader *r, struct place at, const char *class_name)
{
	const char *module = text_of(at, "module"), *registered = text_of(at, "registered_name");

	if (!strcmp(class_name, "Lambda"))
		return jread_error(r, at.path, "Lambda layers hold Python code and are refused");
	if (strchr(class_name, '>') || (registered && strchr(registered, '>')) ||
	    (module && !starts(module, "keras") && !starts(module, "tf_keras") &&
	     !starts(module, "tensorflow")))
		return jread_error(r, at.path,
				   "custom class '%s' is refused: only Keras' own layers are read",
				   class_name);
	if ((module && strstr(module, ".ops.") && strcmp(class_name, "Add")) ||
	    !strcmp(class_name, "TFOpLambda") || !strcmp(class_name, "SlicingOpLambda") ||
	    !strcmp(class_name, "TensorFlowOpLayer"))
		return jread_error(r, at.path,
				   "'%s' is an operation on tensors, not a layer; only layers "
				   "(and x + y) are read",
				   class_name);
	return 0;
}

/* The name in the layer object or its configuration. Without one it is made from the class and the
 * number of unnamed layers before, which stays the same when an InputLayer is put in front. */
static const char *member_name(struct reader *r, struct place at, const char *class_name)
{
	const char *name = text_of(at, "name");
	char *made;

	if (!name)
		name = json_string_value(
			json_object_get(json_object_get(at.value, "config"), "name"));
	if (name)
		return name;
	made = arena_printf(r->arena, "%.60s_%u", class_name, ++r->n_unnamed);
	for (char *c = made; c && *c; c++)
		*c = (char)tolower((unsigned char)*c);
	return made;
}

static int check_name(struct reader *r, struct place at, const char *name)
{
	if (!*name || strlen(name) > NAME_MAX_BYTES)
		return jread_error(r, at.path, "a layer's name must have 1 to %u bytes",
				   NAME_MAX_BYTES);
	for (const char *c = name; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			return jread_error(r, at.path, "control character in a layer's name");
	return 0;
}

static int net_read(struct reader *r, struct place at, const char *class_name, const char *name,
		    const char *prefix, bool trainable, uint32_t depth, struct net **out);

int net_read_member(struct reader *r, struct place at, const char *prefix, bool trainable,
		    uint32_t depth, struct member *member)
{
	const char *class_name = text_of(at, "class_name"), *name;
	int rc;

	member->path = at.path;
	if (!json_is_object(at.value))
		return jread_error(r, at.path, "must be an object that describes a layer");
	if (!class_name)
		return jread_error(r, at.path, "'class_name' is missing or no string");
	if (r->n_layers++ >= MODEL_MAX_LAYERS)
		return jread_error(r, at.path, "more than %u layers", MODEL_MAX_LAYERS);
	member->name = member_name(r, at, class_name);
	if (!member->name)
		return jread_oom(r);
	/* a copy: the document goes when the model has been made */
	name = arena_printf(r->arena, "%s%s%s", prefix ? prefix : "", prefix ? "/" : "",
			    member->name);
	if (!name)
		return jread_oom(r);
	r->layer = name;
	rc = check_name(r, at, name);
	if (!rc)
		rc = refuse_foreign(r, at, class_name);
	if (rc)
		return rc;
	if (is_model(class_name)) {
		rc = net_read(r, at, class_name, member->name, name, trainable, depth + 1,
			      &member->net);
	} else {
		member->layer = arena_alloc(r->arena, sizeof(*member->layer));
		if (!member->layer)
			return jread_oom(r);
		rc = layer_read(r, at, class_name, name, trainable, member->layer);
	}
	if (!rc)
		r->layer = NULL;
	return rc;
}

static int chain(struct reader *r, struct net *net)
{
	for (uint32_t i = 0; i < net->n; i++) {
		struct member *m = &net->member[i];
		bool input = m->layer && m->layer->cls == &layer_input;

		m->n_nodes = 1;
		m->node = arena_alloc(r->arena, sizeof(*m->node));
		if (!m->node)
			return jread_oom(r);
		if (i == 0)
			continue;
		if (input)
			return jread_error(r, m->path, "an InputLayer must come first");
		m->node->n = 1;
		m->node->ref = arena_alloc(r->arena, sizeof(*m->node->ref));
		if (!m->node->ref)
			return jread_oom(r);
		m->node->ref->member = i - 1;
	}
	net->output.member = net->n - 1;
	return 0;
}

static int unique_names(struct reader *r, const struct net *net)
{
	json_t *names = json_object();
	int rc = names ? 0 : jread_oom(r);

	for (uint32_t i = 0; i < net->n && !rc; i++) {
		const struct member *m = &net->member[i];

		if (json_object_get(names, m->name))
			rc = jread_error(r, m->path, "two layers have the name '%.100s'", m->name);
		else if (json_object_set_new(names, m->name, json_true()))
			rc = jread_oom(r);
	}
	json_decref(names);
	return rc;
}

/* The shape that a Sequential model without InputLayer was built with: its first layer's, that of
 * a nested model in front, or build_input_shape. */
static int implicit_input(struct reader *r, struct place at, struct place config, struct net *net)
{
	const struct member *first = &net->member[1];
	struct place built = jread_key(r, config, "build_input_shape");
	struct layer *layer = arena_alloc(r->arena, sizeof(*layer));

	if (!layer)
		return jread_oom(r);
	layer->cls = &layer_input;
	layer->name = "input";
	layer->path = first->path;
	if (first->net)
		layer->input = first->net->member[first->net->input].layer->input;
	else
		layer->input = first->layer->input;
	net->member[0].layer = layer;
	net->member[0].name = "";
	net->member[0].path = first->path;
	if (layer->input.rank)
		return 0;
	if (jread_absent(built))
		built = jread_key(r, jread_key(r, at, "build_config"), "input_shape");
	return layer_read_shape(r, built, &layer->input);
}

static int net_read_sequential(struct reader *r, struct place at, struct place config,
			       const char *prefix, bool trainable, uint32_t depth, struct net *net)
{
	struct place layers = config;
	const char *first;
	uint32_t skip, n;
	int rc;

	if (json_is_object(config.value))
		layers = jread_tuple(r, jread_key(r, config, "layers"));
	if (!json_is_array(layers.value))
		return jread_error(r, layers.path, "a Sequential model needs a list of layers");
	n = (uint32_t)json_array_size(layers.value);
	first = text_of((struct place){json_array_get(layers.value, 0), NULL}, "class_name");
	skip = first && !strcmp(first, "InputLayer") ? 0 : 1;
	if (n + skip < 2)
		return jread_error(r, layers.path, "the model has no layers");
	net->n = n + skip;
	net->member = arena_array(r->arena, net->n, sizeof(*net->member));
	if (!net->member)
		return jread_oom(r);
	for (uint32_t i = 0; i < n; i++) {
		rc = net_read_member(r, jread_item(r, layers, i), prefix, trainable, depth,
				     &net->member[i + skip]);
		if (rc)
			return rc;
	}
	r->layer = NULL;
	rc = skip ? implicit_input(r, at, config, net) : 0;
	if (!rc)
		rc = chain(r, net);
	return rc ? rc : unique_names(r, net);
}

static int net_read(struct reader *r, struct place at, const char *class_name, const char *name,
		    const char *prefix, bool trainable, uint32_t depth, struct net **out)
{
	struct place config = jread_key(r, at, "config");
	struct net *net = arena_alloc(r->arena, sizeof(*net));
	bool own = true;
	int rc;

	if (!net)
		return jread_oom(r);
	if (depth > MAX_NESTED)
		return jread_error(r, at.path, "models are nested more than %u deep", MAX_NESTED);
	if (jread_absent(config))
		return jread_error(r, at.path, "'config' is missing");
	net->name = name;
	net->path = at.path;
	net->sequential = is_sequential(class_name);
	rc = json_is_object(config.value) ? jread_bool(r, config, "trainable", &own) : 0;
	if (rc)
		return rc;
	if (net->sequential)
		rc = net_read_sequential(r, at, config, prefix, trainable && own, depth, net);
	else if (!json_is_object(config.value))
		rc = jread_error(r, config.path, "must be an object");
	else
		rc = net_read_functional(r, config, prefix, trainable && own, depth, net);
	if (!rc)
		rc = net_order(r, net);
	*out = net;
	return rc;
}

/* Keras 3 writes "module"; older ones "keras_version". */
static int generation(struct reader *r, struct place root)
{
	const char *version = text_of(root, "keras_version");

	r->generation = text_of(root, "module") && !version ? 3 : 2;
	if (!version)
		return 0;
	if (version[0] == '3')
		r->generation = 3;
	if (version[0] == '0' || version[0] == '1')
		return jread_error(r, jread_key(r, root, "keras_version").path,
				   "written by Keras %.20s; Keras 2 and 3 are read: load and save "
				   "it with Keras 2 first",
				   version);
	return 0;
}

int model_read(struct reader *r, json_t *json, struct net **out)
{
	struct place root = {json, NULL};
	const char *class_name = text_of(root, "class_name"), *name;
	int rc;

	if (!json_is_object(json))
		return jread_error(r, NULL, "must be an object with 'class_name' and 'config'");
	if (!class_name)
		return jread_error(r, NULL,
				   "'class_name' is missing or no string: this is no "
				   "Keras architecture (model.to_json())");
	rc = generation(r, root);
	if (rc)
		return rc;
	if (!is_model(class_name)) {
		rc = jread_error(r, jread_key(r, root, "class_name").path,
				 "'%.80s' is neither Sequential nor Functional (Model)",
				 class_name);
		err_hint(r->err, "a subclassed model keeps its structure in Python code, which "
				 "its JSON does not hold");
		return rc;
	}
	name = json_string_value(json_object_get(json_object_get(json, "config"), "name"));
	if (!name)
		name = is_sequential(class_name) ? "sequential" : "model";
	return net_read(r, root, class_name, name, NULL, true, 0, out);
}
