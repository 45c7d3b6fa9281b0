// SPDX-License-Identifier: MIT
/* model.c: opening a model: built-in name or text, through reading, inference and lowering. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

const struct model_info *model_info(const struct model *model)
{
	return &model->info;
}

const struct backend_graph *model_graph(const struct model *model)
{
	return model->info.shape_known ? &model->graph : NULL;
}

void model_free(struct model *model)
{
	if (!model)
		return;
	arena_free(&model->arena);
	free(model->json);
	free(model);
}

static int no_json(struct err *err)
{
	int rc = err_set(err, ERR_ARCH, -EINVAL,
			 "architecture: neither Keras JSON nor the name of a built-in one");
	size_t used = 0;
	char names[200];

	for (size_t i = 0; i < model_builtin_count(); i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, " '%s'",
					 model_builtin_name(i));
	err_hint(err, "JSON begins with '{' (model.to_json()); built-in are%s", names);
	return rc;
}

/* Keeps the text, or makes that of a built-in. */
static int take_text(struct model *model, const char *text, size_t length,
		     const struct model_bind *bind, struct err *err)
{
	size_t begin = 0, end = length;
	char *made = NULL, *copy;
	const char *name;

	while (begin < end && isspace((unsigned char)text[begin]))
		begin++;
	while (begin < end && isspace((unsigned char)text[end - 1]))
		end--;
	if (builtin_known(text + begin, end - begin, &name)) {
		made = builtin_json(name, bind);
		if (!made)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
		model->info.builtin = true;
		model->info.name = name;
		text = made;
		length = strlen(made);
	} else if (begin == end || text[begin] != '{') {
		return no_json(err);
	}
	copy = arena_alloc(&model->arena, length + 1);
	if (copy)
		memcpy(copy, text, length);
	free(made);
	if (!copy)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	model->text = copy;
	model->length = length;
	return 0;
}

static int build(struct model *model, struct reader *r, json_t *json, const struct model_bind *bind)
{
	struct net *net;
	int rc = model_read(r, json, &net);

	if (rc)
		return rc;
	if (!model->info.name) {
		model->info.name = arena_printf(&model->arena, "%s", net->name);
		if (!model->info.name)
			return jread_oom(r);
	}
	rc = model_flatten(r, model, net);
	if (!rc)
		rc = model_infer(r, model, bind);
	if (!rc && model->info.shape_known)
		rc = model_lower(r, model);
	if (rc)
		return rc;
	model->info.layers = model->n_layers;
	model->info.input = model->input;
	if (shape_complete(&model->call[model->output].out))
		model->info.outputs = (uint32_t)shape_elements(&model->call[model->output].out);
	if (model->info.shape_known && model->input_filled)
		rc = model_fill_json(r, model, json);
	return rc;
}

int model_open(const char *architecture, size_t length, const struct model_bind *bind,
	       struct model **out, struct err *err)
{
	struct model *model;
	struct reader r = {.err = err};
	json_t *json;
	int rc;

	if (length > MODEL_MAX_JSON)
		return err_set(err, ERR_ARCH, -E2BIG,
			       "architecture: %zu bytes; at most %u are read", length,
			       MODEL_MAX_JSON);
	model = calloc(1, sizeof(*model));
	if (!model)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	rc = take_text(model, architecture, length, bind, err);
	if (!rc) {
		r.text = model->text;
		r.length = model->length;
		r.arena = &model->arena;
		r.builtin = model->info.builtin;
		rc = jread_parse(&r, &json);
	}
	if (!rc) {
		rc = build(model, &r, json, bind);
		json_decref(json);
	}
	if (rc) {
		model_free(model);
		return rc;
	}
	*out = model;
	return 0;
}
