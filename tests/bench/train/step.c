/* SPDX-License-Identifier: MIT */
/*
 * step.c: one side of bench-train: trains a built-in model with the cpu back end on rows of a raw
 * uint8 file, shuffled each epoch, and prints images/s of every epoch. The other side is
 * torch_side.py.
 *
 *   step MODEL FILE H W C ROWS BATCH THREADS EPOCHS
 *
 * per_cpu_second: images of the best step per second of processor time, all threads together:
 * steadier on a machine that does other things too.
 *
 * FILE: ROWS * H * W * C bytes, then ROWS label bytes. The first epoch is the warm-up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "../../../kernels/backend.h"
#include "../../../userspace/model/model.h"

struct bench {
	const char *name;
	uint32_t h, w, c, rows, batch, threads, epochs;
	unsigned char *data;
	uint32_t *order;
	const void **x;
	int32_t *label;
	struct backend_pool *pool;
	struct backend *backend;
	struct backend_net *net;
	struct model *model;
	uint64_t t;
};

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const char *why)
{
	fprintf(stderr, "step: %s: %s\n", what, why);
	exit(1);
}

static void read_data(struct bench *b, const char *path)
{
	size_t bytes = (size_t)b->rows * (b->h * b->w * b->c + 1);
	FILE *f = fopen(path, "rb");

	b->data = malloc(bytes);
	b->order = malloc(b->rows * sizeof(*b->order));
	b->x = malloc(b->batch * sizeof(*b->x));
	b->label = malloc(b->batch * sizeof(*b->label));
	if (!f || !b->data || !b->order || !b->x || !b->label ||
	    fread(b->data, 1, bytes, f) != bytes)
		die(path, "cannot be read");
	fclose(f);
	for (uint32_t i = 0; i < b->rows; i++)
		b->order[i] = i;
}

static void open_net(struct bench *b)
{
	static const float mul[4] = {1 / 255.0f, 1 / 255.0f, 1 / 255.0f, 1 / 255.0f}, add[4];
	const struct model_bind bind = {b->h, b->w, b->c, 10};
	const struct backend_graph *graph;
	struct backend_net_options options;
	struct backend_error error = {""};
	struct err err;
	float *param, *stat;

	if (model_open(b->name, strlen(b->name), &bind, &b->model, &err))
		die(b->name, "no such model");
	graph = model_graph(b->model);
	options = (struct backend_net_options){
		.max_batch = b->batch,
		.input = {.dtype = BACKEND_U8, .shape = {b->h, b->w, b->c}, .mul = mul, .add = add},
		.loss = {BACKEND_SPARSE_CROSSENTROPY, 0, false},
		.optimizer = {.kind = BACKEND_SGD, .momentum = 0.9f},
		.deterministic = true,
	};
	param = calloc(graph->param_floats, sizeof(*param));
	stat = calloc(graph->stat_floats + 1, sizeof(*stat));
	if (!param || !stat || model_init(b->model, 1, param, stat, &err))
		die(b->name, "no initial parameters");
	if (backend_pool_create(b->threads, &b->pool))
		die(b->name, "no pool");
	if (backend_open("cpu", &(struct backend_options){b->pool}, &b->backend, &error) ||
	    backend_compile(b->backend, graph, &options, &b->net, &error))
		die(b->name, error.message);
	if (backend_write(b->net, BACKEND_PARAM, 0, graph->param_floats, param) ||
	    backend_write(b->net, BACKEND_STAT, 0, graph->stat_floats, stat))
		die(b->name, "parameters not written");
	free(param);
	free(stat);
	fprintf(stderr, "# %s, net %.1f MB\n", backend_info(b->backend),
		(double)backend_net_bytes(b->net) / 1e6);
}

static void shuffle(struct bench *b)
{
	for (uint32_t i = b->rows; i > 1; i--) {
		uint32_t j = (uint32_t)((double)rand() / ((double)RAND_MAX + 1) * i);
		uint32_t was = b->order[i - 1];

		b->order[i - 1] = b->order[j];
		b->order[j] = was;
	}
}

static void step(struct bench *b, uint32_t first, struct backend_sums *sums)
{
	size_t bytes = (size_t)b->h * b->w * b->c;
	struct backend_applied applied;
	struct backend_error error = {""};
	struct backend_batch batch = {
		.n = b->batch, .x = b->x, .label = b->label, .step = b->t, .seed = 1};

	for (uint32_t i = 0; i < b->batch; i++) {
		uint32_t row = b->order[first + i];

		b->x[i] = b->data + row * bytes;
		b->label[i] = b->data[b->rows * bytes + row];
	}
	if (backend_step(b->net, &batch, 1.0f / (float)b->batch, 0.02, ++b->t, sums, NULL, &applied,
			 &error))
		die("step", error.message);
}

static void epoch(struct bench *b, uint32_t number)
{
	double start, took, best = 1e9, loss = 0;
	uint32_t n = 0;

	shuffle(b);
	start = seconds(CLOCK_MONOTONIC);
	for (; n + b->batch <= b->rows; n += b->batch) {
		struct backend_sums sums;
		double t = seconds(CLOCK_PROCESS_CPUTIME_ID);

		step(b, n, &sums);
		loss += sums.loss;
		t = seconds(CLOCK_PROCESS_CPUTIME_ID) - t;
		best = t < best ? t : best;
	}
	took = seconds(CLOCK_MONOTONIC) - start;
	printf("epoch %u images_per_second %.1f per_cpu_second %.1f loss %.4f\n", number, n / took,
	       b->batch / best, loss / n);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct rusage usage;
	struct bench b;

	if (argc != 10)
		die("usage", "step MODEL FILE H W C ROWS BATCH THREADS EPOCHS");
	b = (struct bench){.name = argv[1],
			   .h = (uint32_t)atoi(argv[3]),
			   .w = (uint32_t)atoi(argv[4]),
			   .c = (uint32_t)atoi(argv[5]),
			   .rows = (uint32_t)atoi(argv[6]),
			   .batch = (uint32_t)atoi(argv[7]),
			   .threads = (uint32_t)atoi(argv[8]),
			   .epochs = (uint32_t)atoi(argv[9])};
	read_data(&b, argv[2]);
	open_net(&b);
	for (uint32_t e = 0; e < b.epochs; e++)
		epoch(&b, e);
	getrusage(RUSAGE_SELF, &usage);
	printf("rss_kb %ld\n", usage.ru_maxrss);
	backend_net_free(b.net);
	backend_close(b.backend);
	backend_pool_free(b.pool);
	model_free(b.model);
	free(b.data);
	free(b.order);
	free(b.x);
	free(b.label);
	return 0;
}
