/* SPDX-License-Identifier: MIT */
/*
 * block.h: what the host part and the kernels share: the block that is written before every call,
 * the result that is read after it, and the tables of the optimizer.
 */
#ifndef CUDA_BLOCK_H
#define CUDA_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum cuda_type { CUDA_T_F32 = 0, CUDA_T_F16, CUDA_T_BF16 };

/* All that changes between two calls of one shape. Pointers are device pointers, NULL: absent. */
struct step_block {
	uint64_t seed, step, position;
	uint32_t epoch, n;
	float scale;   /* of the gradient, times the loss scale */
	float unscale; /* 1 / loss scale */
	float lr, alpha, decay;
	uint32_t pad;
	const void *raw;       /* rows as stored: those of the batch, or the resident set */
	const uint32_t *index; /* of the batch's rows in the resident set; NULL: 0, 1, 2, .. */
	const uint64_t *hash;
	const int32_t *label;
	const float *weight;
	const float *target;
};

struct step_result {
	double weight, loss;
	double norm2, penalty;
	uint32_t finite, pad;
};

/* A piece of one tensor of the parameter arena, the work of one block of threads. */
struct param_chunk {
	uint64_t offset;
	uint32_t count, tensor;
};
struct param_tensor {
	float l1, l2;
	uint32_t decay;
	uint32_t first, chunks; /* in the table of chunks */
};

/* A 32 x 32 tile of a matrix to transpose, or 1,024 elements to copy (cols 0), f32 to packed. */
struct pack_tile {
	uint64_t from, to; /* elements: start of the tensor in the arena, of its packed copy */
	uint32_t rows, cols;
	uint32_t row, col; /* of the tile; copy: row = first element / 1024, rows = elements */
};

#endif
