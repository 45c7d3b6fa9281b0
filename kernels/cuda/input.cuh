/* SPDX-License-Identifier: MIT */
/*
 * input.cuh: stored rows to normalised, augmented activations in one pass. The definition is
 * backend_input_row (kernels/input.c): two f32 roundings, never one fused multiply-add.
 */
#include "device.cuh"

/* Element e of a row. */
DEVICE float raw_element(const void *row, uint32_t dtype, uint32_t e)
{
	switch (dtype) {
	case BACKEND_U8:
		return (float)((const uint8_t *)row)[e];
	case BACKEND_I16:
		return (float)((const int16_t *)row)[e];
	case BACKEND_I32:
		return (float)((const int32_t *)row)[e];
	case BACKEND_F32:
		return ((const float *)row)[e];
	default:
		return (float)((const double *)row)[e];
	}
}

struct augment {
	int32_t flip, dy, dx, cut_y, cut_x;
};

DEVICE void augment_draw(const struct input_args &a, uint32_t i, struct augment *g)
{
	const struct step_block *b = a.block;
	uint64_t hash = b->hash ? b->hash[i] : 0;
	uint32_t r[4];

	philox((uint32_t)hash, (uint32_t)(hash >> 32), b->epoch, BACKEND_RANDOM_AUGMENT, b->seed,
	       r);
	g->flip = a.flip && (r[0] & 1);
	g->dy = (int32_t)(r[1] % (2 * a.pad + 1)) - (int32_t)a.pad;
	g->dx = (int32_t)(r[2] % (2 * a.pad + 1)) - (int32_t)a.pad;
	g->cut_y = (int32_t)((r[3] & 0xffff) % a.s.h) - (int32_t)a.cutout / 2;
	g->cut_x = (int32_t)((r[3] >> 16) % a.s.w) - (int32_t)a.cutout / 2;
}

DEVICE bool within(int32_t v, int32_t begin, uint32_t length)
{
	return v >= begin && v < begin + (int32_t)length;
}

/* Where element e of the output comes from; false: it is zero. */
DEVICE bool augment_source(const struct input_args &a, const struct augment &g, uint32_t e,
			   uint32_t *from)
{
	uint32_t ch = e % a.s.c, p = e / a.s.c;
	int32_t x = (int32_t)(p % a.s.w), y = (int32_t)(p / a.s.w), sx = x + g.dx, sy = y + g.dy;

	if (!within(sy, 0, a.s.h) || !within(sx, 0, a.s.w) ||
	    (within(y, g.cut_y, a.cutout) && within(x, g.cut_x, a.cutout)))
		return false;
	if (g.flip)
		sx = (int32_t)a.s.w - 1 - sx;
	*from = ((uint32_t)sy * a.s.w + (uint32_t)sx) * a.s.c + ch;
	return true;
}

template <class T> DEVICE void input_rows(const struct input_args &a)
{
	const uint32_t count = a.s.h * a.s.w * a.s.c;
	const bool augmented = a.flip || a.pad || a.cutout;
	__shared__ struct augment g;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y) {
		uint32_t at = a.block->index ? a.block->index[i] : i;
		const char *row = (const char *)a.block->raw + (uint64_t)at * a.pitch;
		T *y = (T *)a.y + (uint64_t)i * count;

		__syncthreads();
		if (augmented && threadIdx.x == 0)
			augment_draw(a, i, &g);
		__syncthreads();
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < count;
		     e += gridDim.x * blockDim.x) {
			uint32_t from = e, ch = e % a.s.c;
			float v = 0.0f;

			if (!augmented || augment_source(a, g, e, &from))
				v = __fadd_rn(__fmul_rn(raw_element(row, a.dtype, from), a.mul[ch]),
					      a.add[ch]);
			put(&y[e], v);
		}
	}
}
KERNEL_SYNC_TYPES(input_rows, struct input_args)
