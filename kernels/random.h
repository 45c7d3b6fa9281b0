/* SPDX-License-Identifier: MIT */
/*
 * random.h: what the layers with random numbers draw, one definition for every back end. All draws
 * are pure functions of (seed, step, layer, position of the row in the global batch, element), so
 * that any split over replicas and threads draws the same.
 */
#ifndef BACKEND_RANDOM_H
#define BACKEND_RANDOM_H

#include "backend.h"

/* Four words for elements 4 * block .. 4 * block + 3 of a row. */
static inline void random_layer(uint64_t seed, uint64_t step, uint64_t position, uint32_t purpose,
				uint32_t layer, uint32_t block, uint32_t out[4])
{
	const uint32_t counter[4] = {block, (uint32_t)position, (uint32_t)step, purpose | layer};
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

	backend_philox(counter, key, out);
}

/*
 * Dropout: factor[i] = 0 where dropped, else 1 / (1 - rate), for elements [begin, end) of one row
 * (NHWC order within the row). begin must be a multiple of 4.
 */
void random_dropout(uint64_t seed, uint64_t step, uint64_t position, uint32_t layer, float rate,
		    uint32_t begin, uint32_t end, float *factor);

/*
 * Geometry of FLIP, SHIFT and CROP for one row: the source pixel of output (y, x) is
 * (flip_h ? h - 1 - y : y) + dy, and likewise x; outside the input it is zero. FLIP: bit 0 of word
 * 0 (horizontal: mirrors x), bit 0 of word 1 (vertical: mirrors y). SHIFT: whole pixels, uniform
 * in -m..m with m = round(rate * h) from word 0, round(rate_w * w) from word 1; zeros come in.
 * CROP: offset word 0 % (h - kh + 1), word 1 % (w - kw + 1) in training, the centre (rounded down)
 * in evaluation. Outside training FLIP and SHIFT do nothing.
 */
struct random_geometry {
	bool mirror_x, mirror_y;
	int32_t dy, dx;
};
void random_geometry(const struct backend_node *node, struct backend_shape in, bool training,
		     uint64_t seed, uint64_t step, uint64_t position, struct random_geometry *g);

#endif
