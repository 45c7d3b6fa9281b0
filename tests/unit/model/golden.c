// SPDX-License-Identifier: MIT
/*
 * golden.c: architectures written by Keras 2 and Keras 3, against the shapes, parameter counts and
 * the order of weights that Keras gives, and the graph's outputs against those of Keras
 * (tests/golden/model/make.py).
 */
#include <dirent.h>
#include <unistd.h>

#include "../../../userspace/model/internal.h"
#include "../../tap.h"

#define FOLDER "tests/golden/model/"

static char *slurp(const char *path, size_t *length)
{
	FILE *f = fopen(path, "r");
	char *text = malloc(1 << 20);

	if (!f || !text)
		BAIL("cannot read %s", path);
	*length = fread(text, 1, (1 << 20) - 1, f);
	text[*length] = '\0';
	fclose(f);
	return text;
}

static uint32_t numbers(const char *text, uint32_t *out, uint32_t most)
{
	uint32_t n = 0;
	int used;

	while (n < most && sscanf(text, "%u%n", &out[n], &used) == 1) {
		text += used;
		n++;
	}
	return n;
}

static bool same(const uint32_t *a, const uint32_t *b, uint32_t n)
{
	return !memcmp(a, b, n * sizeof(*a));
}

static bool check_input(const struct model_info *info, const char *rest)
{
	uint32_t dim[4], n = numbers(rest, dim, 4);
	uint64_t product = 1;

	for (uint32_t i = 0; i < n; i++)
		product *= dim[i];
	if (n == 3)
		return info->input.h == dim[0] && info->input.w == dim[1] &&
		       info->input.c == dim[2];
	return product == (uint64_t)info->input.h * info->input.w * info->input.c;
}

/* Keras 2 calls the kernel of DepthwiseConv2D depthwise_kernel. */
static bool check_tensor(const struct backend_graph *g, uint32_t i, const char *rest)
{
	const struct backend_tensor *t = &g->tensor[i];
	const char *ours = strrchr(t->name, '/') + 1;
	char name[64];
	unsigned int trainable;
	uint32_t dim[5], n;
	int used;
	bool named;

	if (i >= g->n_tensors || sscanf(rest, "%63s %u%n", name, &trainable, &used) != 2)
		return false;
	n = numbers(rest + used, dim, 5);
	named = !strcmp(name, ours) ||
		(!strcmp(name, "depthwise_kernel") && !strcmp(ours, "kernel"));
	return named && t->trainable == trainable && t->rank == n && same(t->dim, dim, n);
}

static bool check_layer(const struct model *model, uint32_t i, const char *rest)
{
	const struct layer *layer;
	const char *ours;
	uint32_t dim[4], n;
	char name[64];
	int used;

	if (i >= model->n_layers || sscanf(rest, "%63s%n", name, &used) != 1)
		return false;
	layer = model->layer[i];
	ours = strrchr(layer->name, '/') ? strrchr(layer->name, '/') + 1 : layer->name;
	n = numbers(rest + used, dim, 4);
	return !strcmp(name, ours) && layer->out.rank == n && same(layer->out.dim, dim, n);
}

static void compare(const char *name, const struct model *model, char *expect)
{
	const struct backend_graph *g = model_graph(model);
	const struct model_info *info = model_info(model);
	uint32_t tensors = 0, layers = model->layer[0]->cls == &layer_input, first = layers;
	unsigned long long trainable, frozen;
	char *save = NULL;
	bool good = true;

	for (char *line = strtok_r(expect, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		const char *rest = strchr(line, ' ');
		bool fine = false;

		if (!strncmp(line, "input", 5))
			fine = check_input(info, rest);
		else if (!strncmp(line, "output", 6))
			fine = info->outputs == strtoul(rest, NULL, 10);
		else if (sscanf(line, "params %llu %llu", &trainable, &frozen) == 2)
			fine = info->trainable == trainable && info->frozen == frozen;
		else if (!strncmp(line, "tensor", 6))
			fine = check_tensor(g, tensors++, rest);
		else if (!strncmp(line, "layer", 5))
			fine = check_layer(model, layers++, rest);
		if (!fine)
			printf("# %s: Keras has '%s'\n", name, line);
		good &= fine;
	}
	ok(good, "%s: shapes, counts and order as in Keras", name);
	ok(tensors == g->n_tensors && (layers == first || layers == model->n_layers),
	   "%s: no tensors or layers beyond Keras'", name);
}

/* The graph on a back end against what Keras computed. */
static double run(const char *backend, const struct model *model, const float *weights,
		  const float *x, const float *y)
{
	const struct backend_graph *g = model_graph(model);
	const struct model_info *info = model_info(model);
	float mul[64], add[64] = {0}, *param = calloc(g->param_floats + 1, sizeof(float));
	float *stat = calloc(g->stat_floats + 1, sizeof(float));
	float *out = calloc(2 * info->outputs, sizeof(float));
	size_t row = (size_t)info->input.h * info->input.w * info->input.c;
	const void *rows[2] = {x, x + row};
	struct backend_batch batch = {.n = 2, .x = rows};
	struct backend_net_options options = {
		.max_batch = 2,
		.input = {BACKEND_F32, info->input, mul, add, false, 0, 0},
		.loss = {.loss = BACKEND_MSE},
		.inference = true,
	};
	struct backend_error error = {""};
	struct backend_net *net = NULL;
	struct backend *open = NULL;
	double worst = 0;

	for (int i = 0; i < 64; i++)
		mul[i] = 1;
	if (model_blob_write(model, param, stat, 0, weights, model_blob_bytes(model)) ||
	    backend_open(backend, NULL, &open, &error) ||
	    backend_compile(open, g, &options, &net, &error) ||
	    backend_evaluate(net, param, stat, &batch, NULL, out, &error)) {
		printf("# %s\n", error.message);
		worst = INFINITY;
	}
	for (uint32_t i = 0; i < 2 * info->outputs; i++) {
		double off = fabs((double)out[i] - (double)y[i]) / (1 + fabs((double)y[i]));

		worst = off > worst || isnan(off) ? off : worst;
	}
	if (net)
		backend_net_free(net);
	if (open)
		backend_close(open);
	free(param);
	free(stat);
	free(out);
	return worst;
}

static void check_values(const char *name, const struct model *model)
{
	const struct model_info *info = model_info(model);
	size_t row = (size_t)info->input.h * info->input.w * info->input.c, length;
	size_t weights = model_blob_bytes(model) / sizeof(float);
	const float *data;
	char path[300], *text;
	double worst;

	snprintf(path, sizeof(path), FOLDER "%.200s.values", name);
	if (access(path, F_OK))
		return;
	text = slurp(path, &length);
	data = (const float *)text;
	if (ok(length == (weights + 2 * row + 2 * info->outputs) * sizeof(float),
	       "%s: as many numbers as Keras has", name)) {
		worst = run("ref", model, data, data + weights, data + weights + 2 * row);
		ok(worst < 2e-5, "%s: outputs of ref as Keras', off by %.2g", name, worst);
		worst = run("cpu", model, data, data + weights, data + weights + 2 * row);
		ok(worst < 2e-5, "%s: outputs of cpu as Keras', off by %.2g", name, worst);
	}
	free(text);
}

static void one(const char *name)
{
	struct err err;
	struct model *model;
	char path[300], *text, *expect;
	size_t length, ignored;
	int rc;

	snprintf(path, sizeof(path), FOLDER "%.200s.json", name);
	text = slurp(path, &length);
	snprintf(path, sizeof(path), FOLDER "%.200s.expect", name);
	expect = slurp(path, &ignored);
	rc = model_open(text, length, NULL, &model, &err);
	if (!ok(rc == 0 && model_graph(model), "%s is read", name)) {
		printf("# %s\n", err.message);
	} else {
		char *json = model_json(model);

		compare(name, model, expect);
		check_values(name, model);
		ok(json && !strcmp(json, text), "%s: JSON goes out as it came", name);
		free(json);
		model_free(model);
	}
	free(text);
	free(expect);
}

/* 'same' padding: outputs over the ramp 1, 2, ... tell which elements a window covers. */
static void same_padding(void)
{
	FILE *f = fopen(FOLDER "k3_same.txt", "r");
	uint32_t n, k, s, d, outs, cases = 0, wrong = 0;
	double first, last;

	if (!f)
		BAIL("cannot read k3_same.txt");
	while (fscanf(f, "%u %u %u %u %u %lf %lf", &n, &k, &s, &d, &outs, &first, &last) == 7) {
		struct layer layer = {
			.kernel = {1, k}, .stride = {1, s}, .dilation = {1, d}, .same = true};
		struct shape in = {3, {1, n, 1}}, out;
		struct backend_window w;
		double sum[2] = {0, 0};

		layer_window(NULL, &layer, &in, &out);
		w = layer_window_lower(&layer, &in, &out);
		for (uint32_t j = 0; j < k; j++) {
			int64_t a = (int64_t)j * d - w.pad_left;
			int64_t b = a + (int64_t)(out.dim[1] - 1) * s;

			sum[0] += a >= 0 && a < n ? (double)a + 1 : 0;
			sum[1] += b >= 0 && b < n ? (double)b + 1 : 0;
		}
		/* the pads must hold the last window exactly */
		wrong += out.dim[1] != outs || sum[0] != first || sum[1] != last ||
			 (n + w.pad_left + w.pad_right - (k - 1) * d - 1) / s + 1 != outs;
		cases++;
	}
	fclose(f);
	ok(cases == 100 && wrong == 0, "same padding: %u of %u cases differ from Keras", wrong,
	   cases);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(a, b);
}

int main(void)
{
	DIR *dir = opendir(FOLDER);
	struct dirent *entry;
	char names[64][64];
	size_t n = 0;

	if (!dir)
		BAIL("run from the root of the tree: no " FOLDER);
	while ((entry = readdir(dir))) {
		char *dot = strrchr(entry->d_name, '.');

		if (!dot || strcmp(dot, ".json") || n == 64)
			continue;
		*dot = '\0';
		snprintf(names[n++], sizeof(names[0]), "%.60s", entry->d_name);
	}
	closedir(dir);
	qsort(names, n, sizeof(names[0]), by_name);
	ok(n >= 20, "%zu golden architectures", n);
	for (size_t i = 0; i < n; i++)
		one(names[i]);
	same_padding();
	return done();
}
