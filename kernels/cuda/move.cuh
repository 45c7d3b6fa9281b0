/* SPDX-License-Identifier: MIT */
/*
 * move.cuh: concatenation, padding, flips, shifts, crops and upsampling, and their backward forms:
 * every thread gathers, so that nothing is added twice and the order is fixed.
 */
#include "device.cuh"

template <class T> DEVICE void strided(const struct strided_args &a)
{
	for (uint64_t o = blockIdx.y; o < a.outer; o += gridDim.y)
		for (uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; k < a.width;
		     k += (uint64_t)gridDim.x * blockDim.x) {
			float v = get(((const T *)a.from)[o * a.from_stride + k]);

			store_add<1>((T *)a.to + o * a.to_stride + k, &v, a.add);
		}
}
KERNEL_TYPES(strided, struct strided_args)

/* Geometry of one row (random_geometry of kernels/random.c). */
struct placement {
	int32_t mirror_y, mirror_x, dy, dx;
};

DEVICE void place_draw(const struct place_args &a, uint32_t i, struct placement *g)
{
	uint32_t word[4];

	*g = placement{0, 0, a.dy, a.dx};
	if (!a.random)
		return;
	philox_layer(a.block, i, BACKEND_RANDOM_LAYER, a.layer, 0, word);
	switch (a.random) {
	case BACKEND_FLIP:
		g->mirror_x = a.horizontal && (word[0] & 1);
		g->mirror_y = a.vertical && (word[1] & 1);
		break;
	case BACKEND_SHIFT:
		g->dy = (int32_t)(word[0] % (2 * a.my + 1)) - (int32_t)a.my;
		g->dx = (int32_t)(word[1] % (2 * a.mx + 1)) - (int32_t)a.mx;
		break;
	default: /* crop */
		g->dy = (int32_t)(word[0] % (a.in.h - a.out.h + 1));
		g->dx = (int32_t)(word[1] % (a.in.w - a.out.w + 1));
		break;
	}
}

/* Source on one axis: forward t = mirror(y) + d of the input; inverse: the y that shows t. */
DEVICE bool place_axis(uint32_t at, int32_t mirror, int32_t d, uint32_t in, uint32_t out,
		       bool inverse, uint32_t *from)
{
	int64_t v = at;

	if (inverse)
		v -= d;
	if (mirror)
		v = (int64_t)in - 1 - v;
	if (!inverse)
		v += d;
	*from = (uint32_t)v;
	return v >= 0 && v < (inverse ? out : in);
}

template <class T> DEVICE void place(const struct place_args &a)
{
	const struct image to = a.inverse ? a.in : a.out, from = a.inverse ? a.out : a.in;
	const uint32_t count = to.h * to.w * to.c;
	__shared__ struct placement g;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y) {
		__syncthreads();
		if (threadIdx.x == 0)
			place_draw(a, i, &g);
		__syncthreads();
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < count;
		     e += gridDim.x * blockDim.x) {
			uint32_t p = e / to.c, y, x;
			float v = 0.0f;

			if (place_axis(p / to.w, g.mirror_y, g.dy, a.in.h, a.out.h, a.inverse,
				       &y) &&
			    place_axis(p % to.w, g.mirror_x, g.dx, a.in.w, a.out.w, a.inverse, &x))
				v = get(((const T *)a.from)[(((uint64_t)i * from.h + y) * from.w +
							     x) * from.c +
							    e % to.c]);
			store_add<1>((T *)a.to + (uint64_t)i * count + e, &v, a.add);
		}
	}
}
KERNEL_SYNC_TYPES(place, struct place_args)

/* The share of source position `in` in output position o on one axis (kernels/ref/upsample.c). */
DEVICE float blend_share(uint32_t o, uint32_t factor, uint32_t size, bool bilinear, uint32_t in)
{
	double s = (o + 0.5) / factor - 0.5, low = floor(s), t = s - low;
	uint32_t a, b;

	if (!bilinear)
		return o / factor == in ? 1.0f : 0.0f;
	a = low < 0.0 ? 0 : (uint32_t)low;
	b = low + 1.0 > size - 1.0 ? size - 1 : (uint32_t)(low + 1.0);
	return (float)((a == in ? 1.0 - t : 0.0) + (b == in ? t : 0.0));
}

/* Output positions that source position i has a share in: [begin, end). */
DEVICE void blend_reach(uint32_t i, uint32_t factor, uint32_t size, bool bilinear, uint32_t *begin,
			uint32_t *end)
{
	uint32_t before = bilinear && i > 0 ? factor : 0, after = bilinear ? factor : 0;

	*begin = i * factor - before;
	*end = (i + 1) * factor + after;
	if (*end > size * factor)
		*end = size * factor;
}

template <class T>
DEVICE float upsample_forward(const struct upsample_args &a, const T *x, uint32_t oy, uint32_t ox,
			      uint32_t ch)
{
	uint32_t y0 = oy / a.fh, x0 = ox / a.fw, y1, x1;
	float sum = 0;

	if (!a.bilinear)
		return get(x[(y0 * a.in.w + x0) * a.in.c + ch]);
	y1 = y0 + 2 < a.in.h ? y0 + 2 : a.in.h;
	x1 = x0 + 2 < a.in.w ? x0 + 2 : a.in.w;
	for (uint32_t y = y0 > 0 ? y0 - 1 : 0; y < y1; y++) {
		float part = blend_share(oy, a.fh, a.in.h, true, y);

		for (uint32_t xx = x0 > 0 ? x0 - 1 : 0; part != 0.0f && xx < x1; xx++) {
			float both = part * blend_share(ox, a.fw, a.in.w, true, xx);

			if (both != 0.0f)
				sum += both * get(x[(y * a.in.w + xx) * a.in.c + ch]);
		}
	}
	return sum;
}

template <class T>
DEVICE float upsample_backward(const struct upsample_args &a, const T *dy, uint32_t iy, uint32_t ix,
			       uint32_t ch)
{
	uint32_t y0, y1, x0, x1;
	float sum = 0;

	blend_reach(iy, a.fh, a.in.h, a.bilinear, &y0, &y1);
	blend_reach(ix, a.fw, a.in.w, a.bilinear, &x0, &x1);
	for (uint32_t y = y0; y < y1; y++) {
		float part = blend_share(y, a.fh, a.in.h, a.bilinear, iy);

		for (uint32_t x = x0; part != 0.0f && x < x1; x++)
			sum += part * blend_share(x, a.fw, a.in.w, a.bilinear, ix) *
			       get(dy[((uint64_t)y * a.in.w * a.fw + x) * a.in.c + ch]);
	}
	return sum;
}

template <class T> DEVICE void upsample(const struct upsample_args &a)
{
	const uint32_t small = a.in.h * a.in.w * a.in.c;
	const uint32_t to_w = a.backward ? a.in.w : a.in.w * a.fw;
	const uint64_t large = (uint64_t)small * a.fh * a.fw;
	const uint32_t count = a.backward ? small : (uint32_t)large;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y)
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < count;
		     e += gridDim.x * blockDim.x) {
			const T *from = (const T *)a.from + i * (a.backward ? large : small);
			uint32_t ch = e % a.in.c, p = e / a.in.c;
			float v = a.backward ? upsample_backward(a, from, p / to_w, p % to_w, ch)
					     : upsample_forward(a, from, p / to_w, p % to_w, ch);

			store_add<1>((T *)a.to + (uint64_t)i * count + e, &v, a.add);
		}
}
KERNEL_TYPES(upsample, struct upsample_args)
