/* SPDX-License-Identifier: MIT */
/*
 * pool.cuh: pooling over windows and over the whole image (kernels/ref/pool.c). The largest value's
 * tap is kept by forward; backward gathers from the windows that cover a pixel.
 */
#include "device.cuh"

/* a is to be taken in place of b: larger, or the first NaN */
DEVICE bool beats(float a, float b)
{
	return a > b || (isnan(a) && !isnan(b));
}

/* Position of the output element e of a row. */
struct spot {
	uint32_t y, x, ch;
};
DEVICE struct spot spot_of(uint32_t e, const struct image &s)
{
	uint32_t p = e / s.c;

	return spot{p / s.w, p % s.w, e % s.c};
}

/* Taps of a window that lie inside on one axis: [begin, end), and the position of tap 0. */
struct taps {
	uint32_t begin, end;
	int32_t origin;
};
DEVICE struct taps taps_of(uint32_t o, uint32_t stride, uint32_t k, uint32_t pad, uint32_t size)
{
	int32_t origin = (int32_t)(o * stride) - (int32_t)pad;
	uint32_t left = size - (uint32_t)(origin > 0 ? origin : 0);
	uint32_t begin = origin < 0 ? (uint32_t)-origin : 0;

	left += begin;
	return taps{begin, left < k ? left : k, origin};
}

/* Windows that cover position i on one axis: [begin, end). */
DEVICE void windows_of(uint32_t i, uint32_t stride, uint32_t k, uint32_t pad, uint32_t out,
		       uint32_t *begin, uint32_t *end)
{
	uint32_t at = i + pad;

	*begin = at < k ? 0 : (at - k) / stride + 1;
	*end = at / stride + 1 < out ? at / stride + 1 : out;
}

DEVICE void keep_tap(void *index, bool wide, uint64_t at, uint32_t tap)
{
	if (wide)
		((uint32_t *)index)[at] = tap;
	else
		((uint8_t *)index)[at] = (uint8_t)tap;
}

DEVICE uint32_t kept_tap(const void *index, bool wide, uint64_t at)
{
	return wide ? ((const uint32_t *)index)[at] : ((const uint8_t *)index)[at];
}

#define FOR_ELEMENTS(i, n, e, count)                                                  \
	for (uint32_t i = blockIdx.y; i < (n); i += gridDim.y)                        \
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < (count); \
		     e += gridDim.x * blockDim.x)

template <class T> DEVICE void maxpool(const struct pool_args &a)
{
	const uint32_t count = a.out.h * a.out.w * a.out.c, in = a.in.h * a.in.w * a.in.c;

	FOR_ELEMENTS(i, a.n, e, count)
	{
		const struct spot o = spot_of(e, a.out);
		const struct taps ty = taps_of(o.y, a.w.sh, a.w.kh, a.w.pt, a.in.h);
		const struct taps tx = taps_of(o.x, a.w.sw, a.w.kw, a.w.pl, a.in.w);
		const T *x = (const T *)a.from + (uint64_t)i * in + o.ch;
		uint64_t at = (uint64_t)i * count + e;
		uint32_t best = UINT32_MAX;
		float max = 0;

		for (uint32_t ky = ty.begin; ky < ty.end; ky++)
			for (uint32_t kx = tx.begin; kx < tx.end; kx++) {
				uint32_t p = (uint32_t)(ty.origin + (int32_t)ky) * a.in.w +
					     (uint32_t)(tx.origin + (int32_t)kx);
				float v = get(x[p * a.in.c]);

				if (best == UINT32_MAX || beats(v, max)) {
					max = v;
					best = ky * a.w.kw + kx;
				}
			}
		put((T *)a.to + at, max);
		if (a.index)
			keep_tap(a.index, a.wide, at, best);
	}
}
KERNEL_TYPES(maxpool, struct pool_args)

template <class T> DEVICE void maxpool_back(const struct pool_args &a)
{
	const uint32_t count = a.in.h * a.in.w * a.in.c, out = a.out.h * a.out.w * a.out.c;

	FOR_ELEMENTS(i, a.n, e, count)
	{
		const struct spot p = spot_of(e, a.in);
		uint32_t y0, y1, x0, x1;
		float sum = 0;

		windows_of(p.y, a.w.sh, a.w.kh, a.w.pt, a.out.h, &y0, &y1);
		windows_of(p.x, a.w.sw, a.w.kw, a.w.pl, a.out.w, &x0, &x1);
		for (uint32_t oy = y0; oy < y1; oy++)
			for (uint32_t ox = x0; ox < x1; ox++) {
				uint64_t at =
					(uint64_t)i * out + (oy * a.out.w + ox) * a.out.c + p.ch;
				uint32_t tap = (p.y + a.w.pt - oy * a.w.sh) * a.w.kw + p.x +
					       a.w.pl - ox * a.w.sw;

				if (kept_tap(a.index, a.wide, at) == tap)
					sum += get(((const T *)a.from)[at]);
			}
		store_add<1>((T *)a.to + (uint64_t)i * count + e, &sum, a.add);
	}
}
KERNEL_TYPES(maxpool_back, struct pool_args)

template <class T> DEVICE void avgpool(const struct pool_args &a)
{
	const uint32_t count = a.out.h * a.out.w * a.out.c, in = a.in.h * a.in.w * a.in.c;

	FOR_ELEMENTS(i, a.n, e, count)
	{
		const struct spot o = spot_of(e, a.out);
		const struct taps ty = taps_of(o.y, a.w.sh, a.w.kh, a.w.pt, a.in.h);
		const struct taps tx = taps_of(o.x, a.w.sw, a.w.kw, a.w.pl, a.in.w);
		const T *x = (const T *)a.from + (uint64_t)i * in + o.ch;
		float sum = 0;

		for (uint32_t ky = ty.begin; ky < ty.end; ky++)
			for (uint32_t kx = tx.begin; kx < tx.end; kx++)
				sum += get(x[((uint32_t)(ty.origin + (int32_t)ky) * a.in.w +
					      (uint32_t)(tx.origin + (int32_t)kx)) *
					     a.in.c]);
		sum /= (float)((ty.end - ty.begin) * (tx.end - tx.begin));
		put((T *)a.to + (uint64_t)i * count + e, sum);
	}
}
KERNEL_TYPES(avgpool, struct pool_args)

template <class T> DEVICE void avgpool_back(const struct pool_args &a)
{
	const uint32_t count = a.in.h * a.in.w * a.in.c, out = a.out.h * a.out.w * a.out.c;

	FOR_ELEMENTS(i, a.n, e, count)
	{
		const struct spot p = spot_of(e, a.in);
		uint32_t y0, y1, x0, x1;
		float sum = 0;

		windows_of(p.y, a.w.sh, a.w.kh, a.w.pt, a.out.h, &y0, &y1);
		windows_of(p.x, a.w.sw, a.w.kw, a.w.pl, a.out.w, &x0, &x1);
		for (uint32_t oy = y0; oy < y1; oy++)
			for (uint32_t ox = x0; ox < x1; ox++) {
				struct taps ty = taps_of(oy, a.w.sh, a.w.kh, a.w.pt, a.in.h);
				struct taps tx = taps_of(ox, a.w.sw, a.w.kw, a.w.pl, a.in.w);
				uint64_t at =
					(uint64_t)i * out + (oy * a.out.w + ox) * a.out.c + p.ch;

				sum += get(((const T *)a.from)[at]) /
				       (float)((ty.end - ty.begin) * (tx.end - tx.begin));
			}
		store_add<1>((T *)a.to + (uint64_t)i * count + e, &sum, a.add);
	}
}
KERNEL_TYPES(avgpool_back, struct pool_args)

/* A thread per (row, channel): neighbours read neighbouring channels. */
template <class T> DEVICE void global_pool(const struct global_args &a)
{
	FOR_ELEMENTS(i, a.n, ch, a.c)
	{
		const T *x = (const T *)a.from + (uint64_t)i * a.places * a.c + ch;
		float sum = get(x[0]);
		uint32_t best = 0;

		for (uint32_t p = 1; p < a.places; p++) {
			float v = get(x[(uint64_t)p * a.c]);

			if (!a.max) {
				sum += v;
			} else if (beats(v, sum)) {
				sum = v;
				best = p;
			}
		}
		if (a.max && a.index)
			a.index[(uint64_t)i * a.c + ch] = best;
		put((T *)a.to + (uint64_t)i * a.c + ch, a.max ? sum : sum / (float)a.places);
	}
}
KERNEL_TYPES(global_pool, struct global_args)

template <class T> DEVICE void global_back(const struct global_args &a)
{
	const uint32_t count = a.places * a.c;

	FOR_ELEMENTS(i, a.n, e, count)
	{
		uint64_t at = (uint64_t)i * a.c + e % a.c;
		float v = get(((const T *)a.from)[at]);

		if (a.max)
			v = a.index[at] == e / a.c ? v : 0.0f;
		else
			v /= (float)a.places;
		store_add<1>((T *)a.to + (uint64_t)i * count + e, &v, a.add);
	}
}
KERNEL_TYPES(global_back, struct global_args)
