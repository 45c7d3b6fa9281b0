/* SPDX-License-Identifier: MIT */
/*
 * roofline.c: the own kernels of the CUDA back end that are bound by memory, each against the speed
 * of a copy on the device in the same run: bytes that must move / time / (2 x bytes of the copy /
 * its time).
 *
 * roofline [small]	small: sizes for a trial on simulated libraries, whose figures mean nothing
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../kernels/backend.h"
#include "../../../kernels/cuda/launch.h"

#define CLASSES 1000 /* of the loss */
#define CHUNK 4096   /* of the optimizer's arena */

struct bench {
	uint32_t n, h, c; /* activations (n, h, h, c) */
	uint64_t count;
	int rounds;
	cudaStream_t stream;
	char *memory; /* eight buffers of count floats */
	uint32_t chunks;
	struct param_chunk *chunk;
	struct param_tensor *tensor;
	struct step_result *result;
	double *sums;
	struct step_block *block;
	double copy; /* bytes/s, read and written */
	int multiprocessors;
};

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "roofline: %s: %s\n", what, cudaGetErrorString((cudaError_t)rc));
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *buffer(const struct bench *b, int k)
{
	return b->memory + (uint64_t)k * b->count * sizeof(float);
}

/* So many launches after three; seconds of one. */
static double timed(const struct bench *b, int (*launch)(const struct bench *b, enum cuda_type t),
		    enum cuda_type t, const char *what)
{
	double begin;

	for (int i = 0; i < 3; i++)
		must(launch(b, t), what);
	must(cudaStreamSynchronize(b->stream), what);
	begin = now();
	for (int i = 0; i < b->rounds; i++)
		must(launch(b, t), what);
	must(cudaStreamSynchronize(b->stream), what);
	return (now() - begin) / b->rounds;
}

static struct cols cols(const struct bench *b)
{
	struct cols m = {.rows = (uint64_t)b->n * b->h * b->h, .c = b->c, .vec = 4, .tx = 32};
	uint64_t blocks = (uint64_t)b->multiprocessors * 4 / (b->c / 128);

	m.chunk = (m.rows / 8 + blocks - 1) / blocks * 8;
	m.chunks = (uint32_t)((m.rows + m.chunk - 1) / m.chunk);
	return m;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static int copy(const struct bench *b, enum cuda_type t)
{
	return cudaMemcpyAsync(buffer(b, 1), buffer(b, 0), b->count * 4, cudaMemcpyDeviceToDevice,
			       b->stream);
}

static int input(const struct bench *b, enum cuda_type t)
{
	const struct input_args a = {.block = b->block,
				     .y = buffer(b, 1),
				     .mul = buffer(b, 2),
				     .add = buffer(b, 2),
				     .s = {b->h, b->h, b->c},
				     .pitch = b->h * b->h * b->c,
				     .n = b->n,
				     .flip = 1};

	return launch_input(b->stream, t, &a);
}

static const struct act relu = {BACKEND_RELU, 0, __builtin_inff(), 0};

static int bias_act(const struct bench *b, enum cuda_type t)
{
	const struct bias_act_args a = {.m = cols(b),
					.x = buffer(b, 0),
					.y = buffer(b, 1),
					.bias = buffer(b, 2),
					.act = relu};

	return launch_bias_act(b->stream, t, &a);
}

static int linear_back(const struct bench *b, enum cuda_type t)
{
	const struct linear_back_args a = {.m = cols(b),
					   .dy = buffer(b, 0),
					   .from = buffer(b, 1),
					   .dz = buffer(b, 2),
					   .partial = buffer(b, 3),
					   .act = relu,
					   .post = 1};

	return launch_linear_back(b->stream, t, &a);
}

static int norm_stats(const struct bench *b, enum cuda_type t)
{
	const struct norm_stats_args a = {.m = cols(b), .x = buffer(b, 0), .partial = buffer(b, 3)};

	return launch_norm_stats(b->stream, t, &a);
}

static int norm_apply(const struct bench *b, enum cuda_type t)
{
	const struct norm_apply_args a = {.m = cols(b),
					  .x = buffer(b, 0),
					  .other = buffer(b, 1),
					  .y = buffer(b, 2),
					  .mean = buffer(b, 3),
					  .scale = buffer(b, 3),
					  .act = relu};

	return launch_norm_apply(b->stream, t, &a);
}

static struct norm_back_args norm_back_args(const struct bench *b)
{
	return (struct norm_back_args){.m = cols(b),
				       .x = buffer(b, 0),
				       .dy = buffer(b, 1),
				       .y = buffer(b, 2),
				       .dx = buffer(b, 3),
				       .mean = buffer(b, 5),
				       .scale = buffer(b, 5),
				       .partial = buffer(b, 6),
				       .sums = buffer(b, 7),
				       .act = relu,
				       .post = 1};
}

static int norm_back_sums(const struct bench *b, enum cuda_type t)
{
	const struct norm_back_args a = norm_back_args(b);

	return launch_norm_back_sums(b->stream, t, &a);
}

static int norm_back(const struct bench *b, enum cuda_type t)
{
	const struct norm_back_args a = norm_back_args(b);

	return launch_norm_back(b->stream, t, &a);
}

static int sum_nodes(const struct bench *b, enum cuda_type t)
{
	const struct sum_args a = {.x = {buffer(b, 0), buffer(b, 1)},
				   .y = buffer(b, 2),
				   .count = b->count,
				   .n_in = 2,
				   .act = relu};

	return launch_sum_nodes(b->stream, t, &a);
}

static struct pool_args pool_args(const struct bench *b)
{
	return (struct pool_args){.from = buffer(b, 0),
				  .to = buffer(b, 1),
				  .index = buffer(b, 2),
				  .in = {b->h, b->h, b->c},
				  .out = {b->h / 2, b->h / 2, b->c},
				  .w = {2, 2, 2, 2, 1, 1, 0, 0},
				  .n = b->n};
}

static int maxpool(const struct bench *b, enum cuda_type t)
{
	const struct pool_args a = pool_args(b);

	return launch_maxpool(b->stream, t, &a);
}

static int maxpool_back(const struct bench *b, enum cuda_type t)
{
	const struct pool_args a = pool_args(b);

	return launch_maxpool_back(b->stream, t, &a);
}

static int dropout(const struct bench *b, enum cuda_type t)
{
	const struct dropout_args a = {.block = b->block,
				       .x = buffer(b, 0),
				       .y = buffer(b, 1),
				       .n = b->n,
				       .count = b->h * b->h * b->c,
				       .rate = 0.5f};

	return launch_dropout(b->stream, t, &a);
}

static int loss(const struct bench *b, enum cuda_type t)
{
	const struct loss_args a = {.block = b->block,
				    .z = buffer(b, 0),
				    .gradient = buffer(b, 1),
				    .row_loss = (double *)buffer(b, 2),
				    .n = (uint32_t)(b->count / CLASSES),
				    .places = 1,
				    .c = CLASSES,
				    .loss = BACKEND_SPARSE_CROSSENTROPY,
				    .activation = BACKEND_SOFTMAX};

	return launch_loss(b->stream, t, &a);
}

/* Momentum SGD: g is read to look for NaN, then w, g, v are read, w, v written. */
static int update(const struct bench *b, enum cuda_type t)
{
	const struct update_args a = {.block = b->block,
				      .result = b->result,
				      .chunk = b->chunk,
				      .tensor = b->tensor,
				      .partial = b->sums,
				      .norm2 = b->sums + b->chunks,
				      .factor = (float *)(b->sums + b->chunks + 1),
				      .w = buffer(b, 0),
				      .g = buffer(b, 1),
				      .slot = {buffer(b, 2)},
				      .o = {.kind = BACKEND_SGD, .momentum = 0.9f},
				      .tensors = 1,
				      .chunks = b->chunks};

	return launch_update(b->stream, &a);
}

static int merge_mean(const struct bench *b, enum cuda_type t)
{
	const struct merge_mean_args a = {.in = {buffer(b, 0), buffer(b, 1)},
					  .weight = {1, 3},
					  .total = 4,
					  .out = buffer(b, 2),
					  .count = b->count,
					  .n = 2};

	return launch_merge_mean(b->stream, &a);
}

static int merge_outer(const struct bench *b, enum cuda_type t)
{
	const struct merge_outer_args a = {.mean = buffer(b, 0),
					   .x = buffer(b, 1),
					   .m = buffer(b, 2),
					   .count = b->count,
					   .eta = 0.7,
					   .mu = 0.9,
					   .nesterov = 1};

	return launch_merge_outer(b->stream, &a);
}

static int merge_encode(const struct bench *b, enum cuda_type t)
{
	const struct merge_delta_args a = {.start = buffer(b, 0),
					   .from = buffer(b, 1),
					   .carry = buffer(b, 2),
					   .wire = buffer(b, 3),
					   .count = b->count};

	return launch_merge_delta(b->stream, &a);
}

/* what moves: activations of the type, and bytes of another kind per element */
static const struct {
	const char *name;
	int (*launch)(const struct bench *b, enum cuda_type t);
	double activations, bytes;
	bool f32; /* there is only this type */
} kernels[] = {
	{"input u8, flip", input, 1, 1, false},
	{"bias + relu", bias_act, 2, 0, false},
	{"relu backward + bias gradient", linear_back, 3, 0, false},
	{"batch norm: statistics", norm_stats, 1, 0, false},
	{"batch norm + add + relu", norm_apply, 3, 0, false},
	{"batch norm: backward sums", norm_back_sums, 3, 0, false},
	{"batch norm: backward", norm_back, 4, 0, false},
	{"add + relu", sum_nodes, 3, 0, false},
	{"max pooling 2x2", maxpool, 1.25, .25, false},
	{"max pooling 2x2 backward", maxpool_back, 1.25, .25, false},
	{"dropout", dropout, 2, 0, false},
	{"softmax cross-entropy, gradient", loss, 2, 0, false},
	{"optimizer: momentum SGD", update, 0, 24, true},
	{"merge: mean of two", merge_mean, 0, 12, true},
	{"merge: outer step", merge_outer, 0, 20, true},
	{"merge: bf16 deltas", merge_encode, 0, 18, true},
};

/* Zeros everywhere but in the tables. */
static void *device(const struct bench *b, size_t bytes)
{
	void *p;

	must(cudaMalloc(&p, bytes), "memory");
	must(cudaMemsetAsync(p, 0, bytes, b->stream), "memory");
	return p;
}

static void upload(const struct bench *b, void *to, const void *pinned, size_t bytes)
{
	must(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, b->stream), "upload");
	must(cudaStreamSynchronize(b->stream), "upload");
}

/* The whole buffer is one tensor; the rows of the batch lie in buffer 4, the labels are zeros. */
static void tables(struct bench *b)
{
	size_t bytes = b->chunks * sizeof(*b->chunk) + sizeof(*b->block);
	struct param_tensor *tensor;
	struct param_chunk *chunk;
	struct step_block *block;
	void *pinned;

	must(cudaMallocHost(&pinned, bytes), "pinned memory");
	memset(pinned, 0, bytes);
	block = pinned;
	block->raw = buffer(b, 4);
	block->label = buffer(b, 5);
	block->n = b->n;
	block->scale = block->unscale = 1;
	upload(b, b->block, block, sizeof(*block));
	tensor = pinned;
	*tensor = (struct param_tensor){0, 0, 0, 0, b->chunks};
	upload(b, b->tensor, tensor, sizeof(*tensor));
	chunk = pinned;
	for (uint32_t k = 0; k < b->chunks; k++) {
		uint64_t at = (uint64_t)k * CHUNK, left = b->count - at;

		chunk[k] = (struct param_chunk){at, left < CHUNK ? (uint32_t)left : CHUNK, 0};
	}
	upload(b, b->chunk, chunk, b->chunks * sizeof(*chunk));
	must(cudaFreeHost(pinned), "pinned memory");
}

static void prepare(struct bench *b)
{
	int count = 0;

	must(cudaGetDeviceCount(&count), "devices");
	must(cudaSetDevice(0), "device 0");
	must(cudaDeviceGetAttribute(&b->multiprocessors, cudaDevAttrMultiProcessorCount, 0),
	     "device 0");
	must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "stream");
	b->count = (uint64_t)b->n * b->h * b->h * b->c;
	b->chunks = (uint32_t)((b->count + CHUNK - 1) / CHUNK);
	b->memory = device(b, 8 * b->count * sizeof(float));
	b->block = device(b, sizeof(*b->block));
	b->chunk = device(b, b->chunks * sizeof(*b->chunk));
	b->tensor = device(b, sizeof(*b->tensor));
	b->result = device(b, sizeof(*b->result));
	b->sums = device(b, (b->chunks + 2) * sizeof(*b->sums));
	tables(b);
}

static void finish(struct bench *b)
{
	cudaFree(b->memory);
	cudaFree(b->block);
	cudaFree(b->chunk);
	cudaFree(b->tensor);
	cudaFree(b->result);
	cudaFree(b->sums);
	cudaStreamDestroy(b->stream);
}

int main(int argc, char **argv)
{
	static const char *const type[] = {"f32", "f16", "bf16"};
	static const int bytes[] = {4, 2, 2};
	struct bench b = {.n = 128, .h = 56, .c = 256, .rounds = 30};

	if (argc > 1 && !strcmp(argv[1], "small"))
		b = (struct bench){.n = 2, .h = 6, .c = 256, .rounds = 2};
	prepare(&b);
	b.copy = 2.0 * (double)b.count * 4 / timed(&b, copy, CUDA_T_F32, "copy");
	printf("copy on the device: %.1f GB/s, read and written\n", b.copy / 1e9);
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		for (int t = 0; t < (kernels[i].f32 ? 1 : 3); t++) {
			double s = timed(&b, kernels[i].launch, t, kernels[i].name);
			double moved = (double)b.count *
				       (kernels[i].activations * bytes[t] + kernels[i].bytes);

			printf("%-32s %-5s %8.1f us %8.1f GB/s %5.1f %% of the copy\n",
			       kernels[i].name, type[t], s * 1e6, moved / s / 1e9,
			       100 * moved / s / b.copy);
		}
	finish(&b);
	return 0;
}
