/* SPDX-License-Identifier: MIT */
/*
 * roofline.c: the own kernels of the CUDA back end that are bound by memory, each against the speed
 * of a copy on the device in the same run: bytes that must move / time / (2 x bytes of the copy /
 * its time).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../kernels/backend.h"
#include "../../../kernels/cuda/launch.h"

#define N 128
#define H 56
#define C 256
#define COUNT ((uint64_t)N * H * H * C)

struct bench {
	cudaStream_t stream;
	char *memory; /* eight buffers of COUNT floats */
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
	return b->memory + (uint64_t)k * COUNT * sizeof(float);
}

/* Thirty launches after three; seconds of one. */
static double timed(const struct bench *b, int (*launch)(const struct bench *b, enum cuda_type t),
		    enum cuda_type t, const char *what)
{
	double begin;

	for (int i = 0; i < 3; i++)
		must(launch(b, t), what);
	must(cudaStreamSynchronize(b->stream), what);
	begin = now();
	for (int i = 0; i < 30; i++)
		must(launch(b, t), what);
	must(cudaStreamSynchronize(b->stream), what);
	return (now() - begin) / 30;
}

static struct cols cols(const struct bench *b)
{
	struct cols m = {.rows = (uint64_t)N * H * H, .c = C, .vec = 4, .tx = 32};
	uint64_t blocks = (uint64_t)b->multiprocessors * 4 / (C / 128);

	m.chunk = (m.rows / 8 + blocks - 1) / blocks * 8;
	m.chunks = (uint32_t)((m.rows + m.chunk - 1) / m.chunk);
	return m;
}

/* ---- the kernels ----------------------------------------------------------------------------- */

static int copy(const struct bench *b, enum cuda_type t)
{
	return cudaMemcpyAsync(buffer(b, 1), buffer(b, 0), COUNT * 4, cudaMemcpyDeviceToDevice,
			       b->stream);
}

static int input(const struct bench *b, enum cuda_type t)
{
	const struct input_args a = {.block = b->block,
				     .y = buffer(b, 1),
				     .mul = buffer(b, 2),
				     .add = buffer(b, 2),
				     .s = {H, H, C},
				     .pitch = (uint64_t)H * H * C,
				     .n = N,
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
				   .count = COUNT,
				   .n_in = 2,
				   .act = relu};

	return launch_sum_nodes(b->stream, t, &a);
}

static struct pool_args pool_args(const struct bench *b)
{
	return (struct pool_args){.from = buffer(b, 0),
				  .to = buffer(b, 1),
				  .index = buffer(b, 2),
				  .in = {H, H, C},
				  .out = {H / 2, H / 2, C},
				  .w = {2, 2, 2, 2, 1, 1, 0, 0},
				  .n = N};
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
				       .n = N,
				       .count = H * H * C,
				       .rate = 0.5f};

	return launch_dropout(b->stream, t, &a);
}

/* what moves: activations of the type, and bytes of another kind per element */
static const struct {
	const char *name;
	int (*launch)(const struct bench *b, enum cuda_type t);
	double activations, bytes;
} kernels[] = {
	{"input u8, flip", input, 1, 1},
	{"bias + relu", bias_act, 2, 0},
	{"relu backward + bias gradient", linear_back, 3, 0},
	{"batch norm: statistics", norm_stats, 1, 0},
	{"batch norm + add + relu", norm_apply, 3, 0},
	{"batch norm: backward sums", norm_back_sums, 3, 0},
	{"batch norm: backward", norm_back, 4, 0},
	{"add + relu", sum_nodes, 3, 0},
	{"max pooling 2x2", maxpool, 1.25, .25},
	{"max pooling 2x2 backward", maxpool_back, 1.25, .25},
	{"dropout", dropout, 2, 0},
};

static void prepare(struct bench *b)
{
	int major = 0, count = 0;

	must(cudaGetDeviceCount(&count), "devices");
	must(cudaSetDevice(0), "device 0");
	must(cudaDeviceGetAttribute(&b->multiprocessors, cudaDevAttrMultiProcessorCount, 0),
	     "device 0");
	must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device 0");
	must(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking), "stream");
	must(cudaMalloc((void **)&b->memory, 8 * COUNT * sizeof(float)), "memory");
	must(cudaMalloc((void **)&b->block, sizeof(*b->block)), "memory");
	must(cudaMemsetAsync(b->memory, 0, 8 * COUNT * sizeof(float), b->stream), "memory");
	must(cudaMemsetAsync(b->block, 0, sizeof(*b->block), b->stream), "memory");
}

int main(void)
{
	static const char *const type[] = {"f32", "f16", "bf16"};
	static const int bytes[] = {4, 2, 2};
	struct bench b = {0};
	struct step_block *pinned;

	prepare(&b);
	must(cudaMallocHost((void **)&pinned, sizeof(*pinned)), "pinned memory");
	memset(pinned, 0, sizeof(*pinned));
	pinned->raw = buffer(&b, 4);
	must(cudaMemcpyAsync(b.block, pinned, sizeof(*pinned), cudaMemcpyHostToDevice, b.stream),
	     "block");
	b.copy = 2.0 * COUNT * 4 / timed(&b, copy, CUDA_T_F32, "copy");
	printf("copy on the device: %.1f GB/s, read and written\n", b.copy / 1e9);
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		for (int t = 0; t < 3; t++) {
			double s = timed(&b, kernels[i].launch, t, kernels[i].name);
			double moved =
				COUNT * (kernels[i].activations * bytes[t] + kernels[i].bytes);

			printf("%-32s %-5s %8.1f us %8.1f GB/s %5.1f %% of the copy\n",
			       kernels[i].name, type[t], s * 1e6, moved / s / 1e9,
			       100 * moved / s / b.copy);
		}
	cudaFree(b.memory);
	cudaFree(b.block);
	cudaFreeHost(pinned);
	cudaStreamDestroy(b.stream);
	return 0;
}
