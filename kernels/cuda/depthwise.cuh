/* SPDX-License-Identifier: MIT */
/*
 * depthwise.cuh: depthwise convolutions (kernels/ref/conv.c); output channel o = c * mult + j reads
 * channel o / mult. The filter is the f32 one of the parameter arena, (kh, kw, c * mult).
 */
#include "device.cuh"

/* Input position of tap k at output o on one axis; false: in the padding. */
DEVICE bool tap_at(uint32_t o, uint32_t stride, uint32_t k, uint32_t dilation, uint32_t pad,
		   uint32_t size, uint32_t *at)
{
	*at = o * stride + k * dilation - pad; /* wraps below zero */
	return *at < size;
}

template <class T> DEVICE void depthwise(const struct depthwise_args &a)
{
	const uint32_t count = a.out.h * a.out.w * a.out.c, in = a.in.h * a.in.w * a.in.c;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y)
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < count;
		     e += gridDim.x * blockDim.x) {
			const uint32_t o = e % a.out.c, p = e / a.out.c, oy = p / a.out.w;
			const T *x = (const T *)a.x + (uint64_t)i * in + o / a.mult;
			uint32_t iy, ix;
			float sum = 0;

			for (uint32_t ky = 0; ky < a.win.kh; ky++) {
				if (!tap_at(oy, a.win.sh, ky, a.win.dh, a.win.pt, a.in.h, &iy))
					continue;
				for (uint32_t kx = 0; kx < a.win.kw; kx++)
					if (tap_at(p % a.out.w, a.win.sw, kx, a.win.dw, a.win.pl,
						   a.in.w, &ix))
						sum += get(x[(iy * a.in.w + ix) * a.in.c]) *
						       a.w[(ky * a.win.kw + kx) * a.out.c + o];
			}
			put((T *)a.y + (uint64_t)i * count + e, sum);
		}
}
KERNEL_TYPES(depthwise, struct depthwise_args)

/* Output position whose tap k reads position i on one axis; false: there is none. */
DEVICE bool output_at(uint32_t i, uint32_t stride, uint32_t k, uint32_t dilation, uint32_t pad,
		      uint32_t size, uint32_t *at)
{
	const uint32_t v = i + pad;

	if (v < k * dilation || (v - k * dilation) % stride)
		return false;
	*at = (v - k * dilation) / stride;
	return *at < size;
}

/* dx[c] = sum over taps and j of dy[c mult + j] w */
template <class T> DEVICE void depthwise_data(const struct depthwise_args &a)
{
	const uint32_t count = a.in.h * a.in.w * a.in.c, out = a.out.h * a.out.w * a.out.c;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y)
		for (uint32_t e = blockIdx.x * blockDim.x + threadIdx.x; e < count;
		     e += gridDim.x * blockDim.x) {
			const uint32_t c = e % a.in.c, p = e / a.in.c;
			const T *dy = (const T *)a.dy + (uint64_t)i * out + c * a.mult;
			uint32_t oy, ox;
			float sum = 0;

			for (uint32_t ky = 0; ky < a.win.kh; ky++) {
				if (!output_at(p / a.in.w, a.win.sh, ky, a.win.dh, a.win.pt,
					       a.out.h, &oy))
					continue;
				for (uint32_t kx = 0; kx < a.win.kw; kx++) {
					const float *w =
						a.w + (ky * a.win.kw + kx) * a.out.c + c * a.mult;

					if (!output_at(p % a.in.w, a.win.sw, kx, a.win.dw, a.win.pl,
						       a.out.w, &ox))
						continue;
					for (uint32_t j = 0; j < a.mult; j++)
						sum += get(dy[(oy * a.out.w + ox) * a.out.c + j]) *
						       w[j];
				}
			}
			store_add<1>((T *)a.y + (uint64_t)i * count + e, &sum, a.add);
		}
}
KERNEL_TYPES(depthwise_data, struct depthwise_args)

/* dw[tap, o] = sum over output pixels of x dy; block z: the tap */
template <class T> DEVICE void depthwise_filter(const struct depthwise_args &a)
{
	const struct walk w = walk_of(a.m);
	const uint32_t tap = blockIdx.z, taps = a.win.kh * a.win.kw, plane = a.out.h * a.out.w;
	const uint32_t ky = tap / a.win.kw, kx = tap % a.win.kw;
	float sum = 0;

	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		const uint32_t p = (uint32_t)(r % plane);
		const uint64_t i = r / plane;
		uint32_t iy, ix;

		if (tap_at(p / a.out.w, a.win.sh, ky, a.win.dh, a.win.pt, a.in.h, &iy) &&
		    tap_at(p % a.out.w, a.win.sw, kx, a.win.dw, a.win.pl, a.in.w, &ix))
			sum += get(((const T *)a.x)[((i * a.in.h + iy) * a.in.w + ix) * a.in.c +
						    w.col / a.mult]) *
			       get(((const T *)a.dy)[r * a.out.c + w.col]);
	}
	walk_sum<1>(w, &sum);
	if (w.inside && w.ty == 0)
		a.partial[((uint64_t)blockIdx.y * taps + tap) * a.out.c + w.col] = sum;
}
KERNEL_SYNC_TYPES(depthwise_filter, struct depthwise_args)
