/* SPDX-License-Identifier: MIT */
/* random.c: dropout masks and the geometry of the random layers (random.h). */
#include <math.h>
#include <string.h>

#include "random.h"

void random_dropout(uint64_t seed, uint64_t step, uint64_t position, uint32_t layer, float rate,
		    uint32_t begin, uint32_t end, float *factor)
{
	const float keep = 1.0f / (1.0f - rate);
	uint32_t word[4];

	for (uint32_t i = begin; i < end; i += 4) {
		random_layer(seed, step, position, BACKEND_RANDOM_DROPOUT, layer, i / 4, word);
		for (uint32_t k = 0; k < 4 && i + k < end; k++)
			factor[i - begin + k] = backend_uniform(word[k]) < rate ? 0.0f : keep;
	}
}

/* Uniform in -m..m, m the rounded share of the size. */
static int32_t random_shift(float share, uint32_t size, uint32_t word)
{
	uint32_t m = (uint32_t)lrint((double)share * size);

	return (int32_t)(word % (2 * m + 1)) - (int32_t)m;
}

void random_geometry(const struct backend_node *node, struct backend_shape in, bool training,
		     uint64_t seed, uint64_t step, uint64_t position, struct random_geometry *g)
{
	uint32_t word[4];

	memset(g, 0, sizeof(*g));
	if (node->op == BACKEND_CROP && !training) {
		g->dy = (int32_t)((in.h - node->out.h) / 2);
		g->dx = (int32_t)((in.w - node->out.w) / 2);
	}
	if (!training)
		return;
	random_layer(seed, step, position, BACKEND_RANDOM_LAYER, node->layer, 0, word);
	switch (node->op) {
	case BACKEND_FLIP:
		g->mirror_x = node->horizontal && (word[0] & 1);
		g->mirror_y = node->vertical && (word[1] & 1);
		break;
	case BACKEND_SHIFT:
		g->dy = random_shift(node->rate, in.h, word[0]);
		g->dx = random_shift(node->rate_w, in.w, word[1]);
		break;
	case BACKEND_CROP:
		g->dy = (int32_t)(word[0] % (in.h - node->out.h + 1));
		g->dx = (int32_t)(word[1] % (in.w - node->out.w + 1));
		break;
	default:
		break;
	}
}
