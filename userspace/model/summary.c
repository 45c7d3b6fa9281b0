// SPDX-License-Identifier: MIT
/* summary.c: the table that Keras' model.summary() prints, one row for each layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LAYER, SHAPE, PARAMETERS, INPUTS, COLUMNS };

static const char *const title[COLUMNS] = {"Layer (type)", "Output Shape", "Param #",
					   "Connected to"};

/* Names of the layers that feed this one, over all its calls, cut at the size of out. */
static void cell_inputs(const struct model *model, const struct layer *layer, char *out,
			size_t size)
{
	uint32_t i = layer->last_call, last;
	size_t used = 0;

	out[0] = '\0';
	do {
		const struct call *call = &model->call[i];

		for (uint32_t k = 0; k < call->n_in && used < size; k++) {
			int n = snprintf(out + used, size - used, "%s%s", used ? ", " : "",
					 model->call[call->in[k]].layer->name);

			used += n > 0 ? (size_t)n : 0;
		}
		last = i;
		i = call->previous;
	} while (i != last && used < size);
}

/* The text of a cell; the number of its bytes. */
static size_t cell(const struct model *model, uint32_t row, int column, char *out, size_t size)
{
	const struct layer *layer = model->layer[row];
	char text[64];

	if (column == LAYER)
		snprintf(out, size, "%s (%s)", layer->name, layer->cls->name);
	else if (column == SHAPE)
		snprintf(out, size, "%s", layer->out.rank ? shape_text(&layer->out, text) : "?");
	else if (column == PARAMETERS && !model->info.shape_known && layer->cls->tensors)
		snprintf(out, size, "?");
	else if (column == PARAMETERS)
		snprintf(out, size, "%llu", (unsigned long long)layer->parameters);
	else
		cell_inputs(model, layer, out, size);
	jread_clean(out); /* it may have been cut inside a character */
	return strlen(out);
}

static void line(FILE *f, size_t width, char c)
{
	while (width--)
		fputc(c, f);
	fputc('\n', f);
}

static void put(FILE *f, const char *text, size_t width, bool last)
{
	if (last)
		fprintf(f, " %s\n", text);
	else
		fprintf(f, " %-*s ", (int)width, text);
}

static void total(FILE *f, const char *what, uint64_t n)
{
	static const char *const unit[] = {"Byte", "KB", "MB", "GB"};
	double bytes = (double)n * sizeof(float);
	int u = 0;

	while (bytes >= 1024 && u < 3) {
		bytes /= 1024;
		u++;
	}
	fprintf(f, "%s params: %llu (%.2f %s)\n", what, (unsigned long long)n, bytes, unit[u]);
}

static void print(FILE *f, const struct model *model)
{
	int columns = model->sequential ? INPUTS : COLUMNS;
	size_t width[COLUMNS], all = 0;
	char text[256];

	for (int c = 0; c < columns; c++) {
		width[c] = strlen(title[c]);
		for (uint32_t i = 0; i < model->n_layers; i++) {
			size_t n = cell(model, i, c, text, sizeof(text));

			width[c] = n > width[c] ? n : width[c];
		}
		all += width[c] + 2;
	}
	fprintf(f, "Model: \"%s\"\n", model->info.name);
	line(f, all, '_');
	for (int c = 0; c < columns; c++)
		put(f, title[c], width[c], c == columns - 1);
	line(f, all, '=');
	for (uint32_t i = 0; i < model->n_layers; i++)
		for (int c = 0; c < columns; c++) {
			cell(model, i, c, text, sizeof(text));
			put(f, text, width[c], c == columns - 1);
		}
	line(f, all, '=');
	if (!model->info.shape_known) {
		fprintf(f, "Total params: not known before the input shape%s\n",
			model->info.builtin ? " and the number of classes are" : " is");
		return;
	}
	total(f, "Total", model->info.trainable + model->info.frozen);
	total(f, "Trainable", model->info.trainable);
	total(f, "Non-trainable", model->info.frozen);
	line(f, all, '_');
}

char *model_summary(const struct model *model)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	bool failed;

	if (!f)
		return NULL;
	print(f, model);
	failed = ferror(f);
	if (fclose(f) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
