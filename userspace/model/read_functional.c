// SPDX-License-Identifier: MIT
/*
 * read_functional.c: the layers of a Functional model and their connections, in the forms of Keras
 * 2
 * ([["conv", 0, 0, {}], ...]) and Keras 3 ({"args": [{"class_name": "__keras_tensor__", ...}]}).
 */
#include <errno.h>
#include <string.h>

#include "internal.h"

struct names {
	const struct net *net;
	json_t *index; /* name -> member */
};

/* What refers to a tensor, before the number of calls of each member is known. */
static int read_ref(struct reader *r, const struct names *names, struct place at, bool shift,
		    struct ref *out)
{
	struct place name = jread_item(r, at, 0);
	int64_t node = 0, tensor = 0;
	json_t *found;
	int rc = 0;

	if (!json_is_array(at.value) || json_array_size(at.value) < 3 ||
	    !json_is_string(name.value))
		return jread_error(r, at.path,
				   "must be a list of a layer's name, call number and output");
	found = json_object_get(names->index, json_string_value(name.value));
	if (!found)
		return jread_error(r, name.path, "there is no layer '%.100s'",
				   json_string_value(name.value));
	rc = jread_integer(r, jread_item(r, at, 1), 0, UINT32_MAX, &node);
	if (!rc)
		rc = jread_integer(r, jread_item(r, at, 2), 0, UINT32_MAX, &tensor);
	if (rc)
		return rc;
	if (tensor)
		return jread_error(r, at.path, "layer '%.100s' has one output, not %lld",
				   json_string_value(name.value), (long long)tensor + 1);
	out->member = (uint32_t)json_integer_value(found);
	/* A model inside the model has, in its own count, a call 0 that is its definition. */
	if (names->net->member[out->member].net && shift && node > 0)
		node--;
	out->node = (uint32_t)node;
	return 0;
}

static int add_ref(struct reader *r, struct inbound *node, uint32_t *room, struct ref ref)
{
	if (node->n == *room) {
		uint32_t more = *room ? *room * 2 : 2;
		struct ref *bigger = arena_array(r->arena, more, sizeof(*bigger));

		if (!bigger)
			return jread_oom(r);
		if (node->n)
			memcpy(bigger, node->ref, node->n * sizeof(*bigger));
		node->ref = bigger;
		*room = more;
	}
	node->ref[node->n++] = ref;
	return 0;
}

/*
 * Arguments of the call besides its tensors. training: in Keras 3 fit() and predict() override it,
 * so that it says nothing; in Keras 2 False holds the layer in inference mode, and True is refused.
 */
static int check_kwargs(struct reader *r, struct place kwargs, bool keras3, bool *inference)
{
	const char *key;
	json_t *value;

	if (jread_absent(kwargs))
		return 0;
	if (!json_is_object(kwargs.value))
		return jread_error(r, kwargs.path, "must be an object");
	json_object_foreach(kwargs.value, key, value)
	{
		bool training = !strcmp(key, "training") && json_is_boolean(value);

		if (training && !keras3)
			*inference = json_is_false(value);
		if (!jread_trivial(value) && !(training && keras3))
			return jread_error(r, jread_key(r, kwargs, key).path,
					   "calling a layer with the argument '%.60s' is not "
					   "supported",
					   key);
	}
	return 0;
}

/* Keras 2: one call. */
static int read_node2(struct reader *r, const struct names *names, struct place at,
		      struct inbound *node)
{
	bool single = json_is_string(json_array_get(at.value, 0));
	size_t n = single ? 1 : json_array_size(at.value);
	uint32_t room = 0;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		struct place item = single ? at : jread_item(r, at, i);
		struct ref ref;

		rc = read_ref(r, names, item, true, &ref);
		if (!rc)
			rc = check_kwargs(r, jread_item(r, item, 3), false, &node->inference);
		if (!rc)
			rc = add_ref(r, node, &room, ref);
	}
	return rc;
}

/* Keras 3: one argument, a tensor or a list of tensors. */
static int read_argument(struct reader *r, const struct names *names, struct place at,
			 struct inbound *node, uint32_t *room, uint32_t depth)
{
	const char *class_name = json_string_value(json_object_get(at.value, "class_name"));
	struct ref ref;
	int rc = 0;

	if (class_name && !strcmp(class_name, "__keras_tensor__")) {
		struct place config = jread_key(r, at, "config");

		rc = read_ref(r, names, jread_tuple(r, jread_key(r, config, "keras_history")),
			      false, &ref);
		return rc ? rc : add_ref(r, node, room, ref);
	}
	at = jread_tuple(r, at);
	if (!json_is_array(at.value) || depth > 1)
		return jread_error(r, at.path, "only tensors can be a layer's input");
	for (size_t i = 0; i < json_array_size(at.value) && !rc; i++)
		rc = read_argument(r, names, jread_item(r, at, i), node, room, depth + 1);
	return rc;
}

static int read_node3(struct reader *r, const struct names *names, struct place at,
		      struct inbound *node)
{
	struct place args = jread_tuple(r, jread_key(r, at, "args"));
	uint32_t room = 0;
	int rc = 0;

	if (!json_is_array(args.value))
		return jread_error(r, args.path, "'args' must be a list");
	for (size_t i = 0; i < json_array_size(args.value) && !rc; i++)
		rc = read_argument(r, names, jread_item(r, args, i), node, &room, 0);
	return rc ? rc : check_kwargs(r, jread_key(r, at, "kwargs"), true, &node->inference);
}

static int read_inbound(struct reader *r, const struct names *names, struct place layer,
			struct member *m)
{
	struct place nodes = jread_tuple(r, jread_key(r, layer, "inbound_nodes"));
	bool input = m->layer && m->layer->cls == &layer_input;
	size_t n = json_array_size(nodes.value);

	if (!jread_absent(nodes) && !json_is_array(nodes.value))
		return jread_error(r, nodes.path, "must be a list");
	if (input && n)
		return jread_error(r, nodes.path, "an InputLayer has no input");
	if (n > MAX_CALLS)
		return jread_error(r, nodes.path, "more than %u calls of one layer", MAX_CALLS);
	m->n_nodes = input ? 1 : (uint32_t)n;
	m->node = arena_array(r->arena, m->n_nodes + 1, sizeof(*m->node));
	if (!m->node)
		return jread_oom(r);
	for (size_t i = 0; i < n; i++) {
		struct place node = jread_item(r, nodes, i);
		int rc;

		if (json_is_object(node.value))
			rc = read_node3(r, names, node, &m->node[i]);
		else if (json_is_array(node.value))
			rc = read_node2(r, names, node, &m->node[i]);
		else
			rc = jread_error(r, node.path, "must be a list or an object");
		if (rc)
			return rc;
	}
	return 0;
}

/* input_layers or output_layers: ["a", 0, 0] or [["a", 0, 0]] or {"a": ["a", 0, 0]}; one only. */
static int read_end(struct reader *r, const struct names *names, struct place config,
		    const char *key, struct ref *out)
{
	struct place at = jread_tuple(r, jread_key(r, config, key));
	size_t n =
		json_is_object(at.value) ? json_object_size(at.value) : json_array_size(at.value);
	bool shift;

	if (jread_absent(at))
		return jread_error(r, config.path, "'%s' is missing", key);
	if (json_is_object(at.value) && n == 1)
		at = jread_key(r, at, json_object_iter_key(json_object_iter(at.value)));
	else if (!json_is_string(json_array_get(at.value, 0)) && n == 1)
		at = jread_item(r, at, 0);
	else if (!json_is_string(json_array_get(at.value, 0)))
		return jread_error(r, at.path,
				   "the model has %zu of them; models with one input "
				   "and one output are supported",
				   n);
	at = jread_tuple(r, at);
	/* Here Keras 3 counts a nested Functional's definition, but not a nested Sequential's. */
	shift = true;
	if (r->generation == 3 && json_is_string(json_array_get(at.value, 0))) {
		json_t *found = json_object_get(names->index,
						json_string_value(json_array_get(at.value, 0)));
		const struct net *sub =
			found ? names->net->member[json_integer_value(found)].net : NULL;

		shift = sub && !sub->sequential;
	}
	return read_ref(r, names, at, shift, out);
}

static int check_refs(struct reader *r, const struct net *net)
{
	for (uint32_t i = 0; i < net->n; i++) {
		const struct member *m = &net->member[i];

		for (uint32_t k = 0; k < m->n_nodes; k++)
			for (uint32_t j = 0; j < m->node[k].n; j++) {
				struct ref *ref = &m->node[k].ref[j];
				const struct member *from = &net->member[ref->member];

				if (from->net && from->n_nodes == 1)
					ref->node = 0;
				if (ref->node >= from->n_nodes)
					return jread_error(r, m->path,
							   "refers to call %u of layer '%.100s', "
							   "which is called %u times",
							   ref->node, from->name, from->n_nodes);
			}
	}
	return 0;
}

static int read_connections(struct reader *r, struct place config, struct place layers,
			    struct net *net, const struct names *names)
{
	struct ref input;
	const struct member *m;
	int rc = 0;

	for (uint32_t i = 0; i < net->n && !rc; i++) {
		r->layer = net->member[i].name;
		rc = read_inbound(r, names, jread_item(r, layers, i), &net->member[i]);
	}
	if (rc)
		return rc;
	r->layer = NULL;
	rc = check_refs(r, net);
	if (!rc)
		rc = read_end(r, names, config, "input_layers", &input);
	if (!rc)
		rc = read_end(r, names, config, "output_layers", &net->output);
	if (rc)
		return rc;
	m = &net->member[input.member];
	if (!m->layer || m->layer->cls != &layer_input)
		return jread_error(r, m->path, "the input '%.100s' is no InputLayer", m->name);
	net->input = input.member;
	m = &net->member[net->output.member];
	if (m->net && m->n_nodes == 1)
		net->output.node = 0;
	if (net->output.node >= m->n_nodes)
		return jread_error(r, m->path, "the output '%.100s' is not connected", m->name);
	return 0;
}

int net_read_functional(struct reader *r, struct place config, const char *prefix, bool trainable,
			uint32_t depth, struct net *net)
{
	struct place layers = jread_tuple(r, jread_key(r, config, "layers"));
	struct names names = {net, NULL};
	int rc = 0;

	if (!json_is_array(layers.value) || !json_array_size(layers.value))
		return jread_error(r, layers.path, "a Functional model needs a list of layers");
	net->n = (uint32_t)json_array_size(layers.value);
	net->member = arena_array(r->arena, net->n, sizeof(*net->member));
	names.index = json_object();
	if (!net->member || !names.index) {
		json_decref(names.index);
		return jread_oom(r);
	}
	for (uint32_t i = 0; i < net->n && !rc; i++) {
		struct member *m = &net->member[i];

		rc = net_read_member(r, jread_item(r, layers, i), prefix, trainable, depth, m);
		if (rc)
			break;
		if (json_object_get(names.index, m->name))
			rc = jread_error(r, m->path, "two layers have the name '%.100s'", m->name);
		else if (json_object_set_new(names.index, m->name, json_integer(i)))
			rc = jread_oom(r);
	}
	if (!rc)
		rc = read_connections(r, config, layers, net, &names);
	json_decref(names.index);
	return rc;
}
