// SPDX-License-Identifier: MIT
/*
 * model_json.c: libFuzzer target for architecture JSON. Opens the text with several input shapes
 * and does all that can be done with a model; a model that opens must open again from its own JSON
 * with the same tensors. Two of three mutations work on the parsed document (swap, copy or drop a
 * value), since random bytes seldom stay JSON.
 */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "../../userspace/model/model.h"

#define MAX_FLOATS 200000u /* larger models are opened, not filled */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

static void weights(const struct model *m)
{
	const struct backend_graph *g = model_graph(m);
	uint64_t bytes = model_blob_bytes(m);
	float *param, *stat;
	char *a, *b;

	if (!g || g->param_floats + g->stat_floats > MAX_FLOATS)
		return;
	param = calloc(g->param_floats + 1, sizeof(float));
	stat = calloc(g->stat_floats + 1, sizeof(float));
	a = malloc(bytes + 1);
	b = malloc(bytes + 1);
	assert(!model_init(m, 7, param, stat, NULL));
	assert(!model_blob_read(m, param, stat, 0, a, bytes));
	memset(param, 0, g->param_floats * sizeof(float));
	memset(stat, 0, g->stat_floats * sizeof(float));
	assert(!model_blob_write(m, param, stat, 0, a, bytes));
	assert(!model_blob_read(m, param, stat, 0, b, bytes));
	assert(!memcmp(a, b, bytes));
	free(param);
	free(stat);
	free(a);
	free(b);
}

static void again(const struct model *m)
{
	char *json = model_json(m);
	struct model *second;
	struct err err;

	if (json && model_graph(m)) {
		assert(!model_open(json, strlen(json), NULL, &second, &err));
		assert(model_graph(second));
		assert(backend_graph_hash(model_graph(m)) ==
		       backend_graph_hash(model_graph(second)));
		model_free(second);
	}
	free(json);
}

static void all(const uint8_t *data, size_t size, const struct model_bind *bind)
{
	struct model *m;
	struct err err = {0};

	if (model_open((const char *)data, size, bind, &m, &err)) {
		assert(err.kind != ERR_NONE && err.kind != ERR_INTERNAL && err.message[0]);
		return;
	}
	assert(model_graph(m) != NULL == model_info(m)->shape_known);
	free(model_summary(m));
	model_blob_check(m, 12, &err);
	weights(m);
	again(m);
	model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct model_bind binds[] = {
		{0, 0, 0, 0}, {28, 28, 1, 10}, {1, 1, 784, 2}, {0, 0, 3, 0}};

	for (size_t i = 0; i < sizeof(binds) / sizeof(binds[0]); i++)
		all(data, size, &binds[i]);
	return 0;
}

/* ---- mutation of the document ------------------------------------------------------------ */

struct pick {
	uint64_t state;
	json_t *parent, *value; /* value: owned by the parent */
	const char *key;
	size_t index, seen;
};

static uint32_t draw(uint64_t *state, uint32_t below)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33) % below;
}

/* Chooses one value of the document, each as likely as the next. */
static void choose(struct pick *p, json_t *at)
{
	const char *key;
	json_t *value;
	size_t i;

	if (json_is_object(at)) {
		json_object_foreach(at, key, value)
		{
			if (draw(&p->state, (uint32_t)++p->seen) == 0) {
				p->parent = at;
				p->value = value;
				p->key = key;
			}
			choose(p, value);
		}
	} else if (json_is_array(at)) {
		json_array_foreach(at, i, value)
		{
			if (draw(&p->state, (uint32_t)++p->seen) == 0) {
				p->parent = at;
				p->value = value;
				p->index = i;
			}
			choose(p, value);
		}
	}
}

static json_t *odd_value(uint64_t *state)
{
	static const char *const texts[] = {"null",
					    "true",
					    "0",
					    "1",
					    "2",
					    "-1",
					    "3",
					    "65536",
					    "16777216",
					    "2147483647",
					    "4294967296",
					    "1e300",
					    "0.5",
					    "\"same\"",
					    "\"relu\"",
					    "\"softmax\"",
					    "\"Sequential\"",
					    "\"Functional\"",
					    "\"InputLayer\"",
					    "\"Add\"",
					    "\"Concatenate\"",
					    "\"Flatten\"",
					    "\"Conv2D\"",
					    "\"Dense\"",
					    "\"Reshape\"",
					    "\"SeparableConv2D\"",
					    "\"\"",
					    "[]",
					    "{}",
					    "[null, 4, 4, 3]",
					    "[null, null, null, 1]",
					    "[[1, 2], [3, 4]]",
					    "[3, 3]",
					    "{\"class_name\": \"__tuple__\", \"items\": [2, 2]}"};
	size_t n = sizeof(texts) / sizeof(texts[0]);

	return json_loads(texts[draw(state, (uint32_t)n)], JSON_DECODE_ANY, NULL);
}

static void mutate(json_t *root, uint64_t *state)
{
	struct pick to = {.state = *state}, from = {.state = *state ^ 0x9e3779b97f4a7c15ull};
	uint32_t how;
	json_t *value;

	choose(&to, root);
	choose(&from, root);
	*state = to.state;
	how = draw(state, 4);
	if (!to.parent || !from.parent)
		return;
	value = how == 0 ? json_deep_copy(from.value) : odd_value(state);
	if (json_is_object(to.parent) && how == 1)
		json_object_del(to.parent, to.key);
	else if (json_is_object(to.parent))
		json_object_set(to.parent, to.key, value);
	else if (how == 1)
		json_array_remove(to.parent, to.index);
	else if (how == 2)
		json_array_insert_new(to.parent, to.index, json_deep_copy(from.value));
	else
		json_array_set(to.parent, to.index, value);
	json_decref(value);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
	uint64_t state = seed;
	json_t *root = json_loadb((const char *)data, size, 0, NULL);
	char *text = NULL;
	size_t length = 0;

	if (root && draw(&state, 3)) {
		for (uint32_t n = 1 + draw(&state, 3); n; n--)
			mutate(root, &state);
		text = json_dumps(root, draw(&state, 2) ? JSON_INDENT(1) : 0);
		length = text ? strlen(text) : 0;
	}
	json_decref(root);
	if (length && length <= max_size)
		memcpy(data, text, length);
	else
		length = LLVMFuzzerMutate(data, size, max_size);
	free(text);
	return length;
}
