/* SPDX-License-Identifier: MIT */
/* wino_avx512.c: the loops of wino.h with AVX-512. Vectors run over 16 channels. */
#include "wino.h"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, v) _mm512_storeu_ps(p, v)
#define SET(x) _mm512_set1_ps(x)
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define FMA _mm512_fmadd_ps   /* a b + c */
#define FNMA _mm512_fnmadd_ps /* c - a b */

/* ---- the one-dimensional transforms ------------------------------------------------------ */

/* o = B^T d, 6 -> 6 */
INLINE void transform_in(const __m512 d[6], __m512 o[6])
{
	const __m512 two = SET(2), four = SET(4), five = SET(5);
	__m512 a = FNMA(four, d[2], d[4]), b = FNMA(four, d[1], d[3]);
	__m512 c = SUB(d[4], d[2]), e = SUB(d[3], d[1]);

	o[0] = FMA(four, d[0], FNMA(five, d[2], d[4]));
	o[1] = ADD(a, b);
	o[2] = SUB(a, b);
	o[3] = FMA(two, e, c);
	o[4] = FNMA(two, e, c);
	o[5] = FMA(four, d[1], FNMA(five, d[3], d[5]));
}

/* o = A^T m, 6 -> 4 */
INLINE void transform_out(const __m512 m[6], __m512 o[4])
{
	const __m512 two = SET(2), four = SET(4), eight = SET(8);
	__m512 s = ADD(m[1], m[2]), d = SUB(m[1], m[2]);
	__m512 p = ADD(m[3], m[4]), q = SUB(m[3], m[4]);

	o[0] = ADD(m[0], ADD(s, p));
	o[1] = FMA(two, q, d);
	o[2] = FMA(four, p, s);
	o[3] = ADD(m[5], FMA(eight, q, d));
}

/* o = A y, 4 -> 6 */
INLINE void transform_gradient(const __m512 y[4], __m512 o[6])
{
	const __m512 two = SET(2), four = SET(4);
	__m512 even = ADD(y[0], y[2]), odd = ADD(y[1], y[3]);
	__m512 even4 = FMA(four, y[2], y[0]), odd4 = _mm512_mul_ps(two, FMA(four, y[3], y[1]));

	o[0] = y[0];
	o[1] = ADD(even, odd);
	o[2] = SUB(even, odd);
	o[3] = ADD(even4, odd4);
	o[4] = SUB(even4, odd4);
	o[5] = y[3];
}

/* o = B m, 6 -> 6 */
INLINE void transform_back(const __m512 m[6], __m512 o[6])
{
	const __m512 two = SET(2), four = SET(4), five = SET(5);
	__m512 s = ADD(m[1], m[2]), d = SUB(m[1], m[2]);
	__m512 p = ADD(m[3], m[4]), q = SUB(m[3], m[4]);

	o[0] = _mm512_mul_ps(four, m[0]);
	o[1] = FNMA(two, q, _mm512_mul_ps(four, SUB(m[5], d)));
	o[2] = FNMA(five, m[0], FNMA(four, s, SUB(_mm512_setzero_ps(), p)));
	o[3] = FNMA(five, m[5], FMA(two, q, d));
	o[4] = ADD(m[0], ADD(s, p));
	o[5] = m[5];
}

/* ---- kernels ----------------------------------------------------------------------------- */

static const float wino_g[6][3] = {
	{0.25f, 0, 0},
	{-1 / 6.0f, -1 / 6.0f, -1 / 6.0f},
	{-1 / 6.0f, 1 / 6.0f, -1 / 6.0f},
	{1 / 24.0f, 1 / 12.0f, 1 / 6.0f},
	{1 / 24.0f, -1 / 12.0f, 1 / 6.0f},
	{0, 0, 1},
};

/* u[36] (16 channels each, `stride` apart) = G w G^T of 9 taps */
INLINE void kernel_planes(float *u, size_t stride, const __m512 w[9])
{
	for (int a = 0; a < 6; a++) {
		__m512 g[3];

		for (int x = 0; x < 3; x++)
			g[x] = FMA(SET(wino_g[a][2]), w[6 + x],
				   FMA(SET(wino_g[a][1]), w[3 + x],
				       _mm512_mul_ps(SET(wino_g[a][0]), w[x])));
		for (int b = 0; b < 6; b++)
			STORE(u + (size_t)(a * 6 + b) * stride,
			      FMA(SET(wino_g[b][2]), g[2],
				  FMA(SET(wino_g[b][1]), g[1],
				      _mm512_mul_ps(SET(wino_g[b][0]), g[0]))));
	}
}

static void wino_kernel(float *u, const float *w, uint32_t c, uint32_t k, bool transposed)
{
	const __m512i lane = _mm512_mullo_epi32(
		_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
		_mm512_set1_epi32((int)k));
	uint32_t ci = transposed ? k : c, co = transposed ? c : k;
	size_t stride = (size_t)c * k;
	__m512 tap[9];

	for (uint32_t i = 0; i < ci; i++)
		for (uint32_t o = 0; o < co; o += 16) {
			for (uint32_t t = 0; t < 9; t++)
				tap[t] = transposed ? _mm512_i32gather_ps(
							      lane,
							      w + t * stride + (size_t)o * k + i, 4)
						    : LOAD(w + t * stride + (size_t)i * k + o);
			kernel_planes(u + (size_t)i * co + o, stride, tap);
		}
}

static void wino_kernel_gradient(float *dw, const float *du, uint32_t c, uint32_t k, bool add)
{
	size_t stride = (size_t)c * k;

	for (size_t at = 0; at < stride; at += 16) {
		__m512 g[6][3];

		for (int a = 0; a < 6; a++)
			for (int x = 0; x < 3; x++) {
				g[a][x] = _mm512_setzero_ps();
				for (int b = 0; b < 6; b++)
					g[a][x] = FMA(SET(wino_g[b][x]),
						      LOAD(du + (size_t)(a * 6 + b) * stride + at),
						      g[a][x]);
			}
		for (int y = 0; y < 3; y++)
			for (int x = 0; x < 3; x++) {
				float *to = dw + (size_t)(y * 3 + x) * stride + at;
				__m512 sum = add ? LOAD(to) : _mm512_setzero_ps();

				for (int a = 0; a < 6; a++)
					sum = FMA(SET(wino_g[a][y]), g[a][x], sum);
				STORE(to, sum);
			}
	}
}

/* ---- images ------------------------------------------------------------------------------ */

/* Where a tile's pixels are: in the image, or copied with zeros around to `edge`. */
struct patch {
	const float *at;
	size_t row, pixel; /* floats from one row, one pixel to the next */
};

/* size x size pixels from (top, left) on, 16 channels from k on. */
INLINE struct patch patch_of(const float *x, const struct wino_image *s, int32_t top, int32_t left,
			     uint32_t k, const int32_t size, float *edge)
{
	struct patch p = {x + ((ptrdiff_t)top * (int32_t)s->w + left) * (ptrdiff_t)s->c + k,
			  (size_t)s->w * s->c, s->c};

	if (top >= 0 && left >= 0 && top + size <= (int32_t)s->h && left + size <= (int32_t)s->w)
		return p;
	for (int32_t y = 0; y < size; y++)
		for (int32_t q = 0; q < size; q++) {
			bool in = top + y >= 0 && top + y < (int32_t)s->h && left + q >= 0 &&
				  left + q < (int32_t)s->w;
			const float *from = p.at + (ptrdiff_t)y * (ptrdiff_t)p.row +
					    (ptrdiff_t)q * (ptrdiff_t)p.pixel;

			STORE(edge + (y * size + q) * 16, in ? LOAD(from) : _mm512_setzero_ps());
		}
	return (struct patch){edge, (size_t)size * 16, 16};
}

static void wino_input(float *v, size_t plane, const float *x, const struct wino_image *s,
		       const struct wino_tiles *tiles)
{
	_Alignas(64) float edge[36 * 16];

	for (uint32_t t = 0; t < tiles->n; t++) {
		uint32_t tile = tiles->first + t;
		int32_t top = (int32_t)(tile / tiles->tw * WINO_TILE) - s->pad_top;
		int32_t left = (int32_t)(tile % tiles->tw * WINO_TILE) - s->pad_left;

		for (uint32_t k = 0; k < s->c; k += 16) {
			struct patch p = patch_of(x, s, top, left, k, 6, edge);
			float *to = v + (size_t)t * s->c + k;
			__m512 r[6][6];

#pragma GCC unroll 6
			for (int j = 0; j < 6; j++) {
				__m512 d[6], o[6];

#pragma GCC unroll 6
				for (int i = 0; i < 6; i++)
					d[i] = LOAD(p.at + (size_t)i * p.row + (size_t)j * p.pixel);
				transform_in(d, o);
#pragma GCC unroll 6
				for (int i = 0; i < 6; i++)
					r[i][j] = o[i];
			}
#pragma GCC unroll 6
			for (int i = 0; i < 6; i++) {
				__m512 o[6];

				transform_in(r[i], o);
#pragma GCC unroll 6
				for (int j = 0; j < 6; j++)
					STORE(to + (size_t)(i * 6 + j) * plane, o[j]);
			}
		}
	}
}

static void wino_gradient(float *z, size_t plane, const float *dy, const struct wino_image *s,
			  const struct wino_tiles *tiles)
{
	_Alignas(64) float edge[16 * 16];

	for (uint32_t t = 0; t < tiles->n; t++) {
		uint32_t tile = tiles->first + t;
		int32_t top = (int32_t)(tile / tiles->tw * WINO_TILE);
		int32_t left = (int32_t)(tile % tiles->tw * WINO_TILE);

		for (uint32_t k = 0; k < s->c; k += 16) {
			struct patch p = patch_of(dy, s, top, left, k, 4, edge);
			float *to = z + (size_t)t * s->c + k;
			__m512 r[6][4];

#pragma GCC unroll 4
			for (int j = 0; j < 4; j++) {
				__m512 d[4], o[6];

#pragma GCC unroll 4
				for (int i = 0; i < 4; i++)
					d[i] = LOAD(p.at + (size_t)i * p.row + (size_t)j * p.pixel);
				transform_gradient(d, o);
#pragma GCC unroll 6
				for (int i = 0; i < 6; i++)
					r[i][j] = o[i];
			}
#pragma GCC unroll 6
			for (int i = 0; i < 6; i++) {
				__m512 o[6];

				transform_gradient(r[i], o);
#pragma GCC unroll 6
				for (int j = 0; j < 6; j++)
					STORE(to + (size_t)(i * 6 + j) * plane, o[j]);
			}
		}
	}
}

/* Columns of m's 36 planes through A^T: r[i][j]. */
INLINE void columns_out(const float *m, size_t plane, __m512 r[4][6])
{
#pragma GCC unroll 6
	for (int j = 0; j < 6; j++) {
		__m512 d[6], o[4];

#pragma GCC unroll 6
		for (int i = 0; i < 6; i++)
			d[i] = LOAD(m + (size_t)(i * 6 + j) * plane);
		transform_out(d, o);
#pragma GCC unroll 4
		for (int i = 0; i < 4; i++)
			r[i][j] = o[i];
	}
}

static void wino_output(float *y, const float *m, size_t plane, const struct wino_image *s,
			const struct wino_tiles *tiles, const float *bias, bool relu)
{
	/* max with the first operand zero keeps NaN of the second */
	const __m512 zero = _mm512_setzero_ps(), low = relu ? zero : SET(-__builtin_inff());

	for (uint32_t t = 0; t < tiles->n; t++) {
		uint32_t tile = tiles->first + t;
		uint32_t top = tile / tiles->tw * WINO_TILE, left = tile % tiles->tw * WINO_TILE;

		for (uint32_t k = 0; k < s->c; k += 16) {
			float *to = y + ((size_t)top * s->w + left) * s->c + k;
			__m512 r[4][6], b = bias ? LOAD(bias + k) : zero;

			columns_out(m + (size_t)t * s->c + k, plane, r);
#pragma GCC unroll 4
			for (uint32_t i = 0; i < 4; i++, to += (size_t)s->w * s->c) {
				__m512 o[4];

				if (top + i >= s->h)
					break;
				transform_out(r[i], o);
#pragma GCC unroll 4
				for (uint32_t j = 0; j < 4; j++)
					if (left + j < s->w)
						STORE(to + j * s->c,
						      _mm512_max_ps(low, ADD(o[j], b)));
			}
		}
	}
}

/* Columns of m's 36 planes through B: r[i][j], row by row ready for the second transform. */
INLINE void columns_back(const float *m, size_t plane, __m512 r[6][6])
{
#pragma GCC unroll 6
	for (int j = 0; j < 6; j++) {
		__m512 d[6], column[6];

#pragma GCC unroll 6
		for (int i = 0; i < 6; i++)
			d[i] = LOAD(m + (size_t)(i * 6 + j) * plane);
		transform_back(d, column);
#pragma GCC unroll 6
		for (int i = 0; i < 6; i++)
			r[i][j] = column[i];
	}
}

static void wino_output_back(float *dx, const float *m, size_t plane, const struct wino_image *s,
			     const struct wino_tiles *tiles)
{
	const ptrdiff_t pixel = s->c, line = (ptrdiff_t)s->w * pixel;

	for (uint32_t t = 0; t < tiles->n; t++) {
		uint32_t tile = tiles->first + t;
		int32_t top = (int32_t)(tile / tiles->tw * WINO_TILE) - s->pad_top;
		int32_t left = (int32_t)(tile % tiles->tw * WINO_TILE) - s->pad_left;

		for (uint32_t k = 0; k < s->c; k += 16) {
			float *at = dx + top * line + left * pixel + k;
			__m512 r[6][6];

			columns_back(m + (size_t)t * s->c + k, plane, r);
#pragma GCC unroll 6
			for (int y = 0; y < 6; y++) {
				float *to = at + y * line;
				__m512 o[6];

				if (top + y < 0 || top + y >= (int32_t)s->h)
					continue;
				transform_back(r[y], o);
#pragma GCC unroll 6
				for (int x = 0; x < 6; x++)
					if (left + x >= 0 && left + x < (int32_t)s->w)
						STORE(to + x * pixel,
						      ADD(LOAD(to + x * pixel), o[x]));
			}
		}
	}
}

/* ---- products ---------------------------------------------------------------------------- */

/*
 * m[r][q] (+)= sum over n of v[r vp + i vi] u[i ui + 16 q]: R x NV vectors of 16 stay in registers.
 * The broadcast is forced into a register of its own: as a memory operand of every product it would
 * be loaded NV times.
 */
INLINE void product(const float *v, const size_t vp, size_t vi, const float *u, size_t ui, float *m,
		    size_t mp, uint32_t n, bool add, const int R, const int NV)
{
	__m512 a[24][4];

#pragma GCC unroll 24
	for (int r = 0; r < R; r++)
#pragma GCC unroll 4
		for (int q = 0; q < NV; q++)
			a[r][q] = add ? LOAD(m + (size_t)r * mp + q * 16) : _mm512_setzero_ps();
	for (uint32_t i = 0; i < n; i++, v += vi, u += ui) {
		__m512 w[4], s;

#pragma GCC unroll 4
		for (int q = 0; q < NV; q++)
			w[q] = LOAD(u + q * 16);
#pragma GCC unroll 24
		for (int r = 0; r < R; r++) {
			if (NV == 1) {
				a[r][0] = FMA(SET(v[(size_t)r * vp]), w[0], a[r][0]);
				continue;
			}
			__asm__("vbroadcastss %1, %0" : "=v"(s) : "m"(v[(size_t)r * vp]));
#pragma GCC unroll 4
			for (int q = 0; q < NV; q++)
				a[r][q] = FMA(s, w[q], a[r][q]);
		}
	}
#pragma GCC unroll 24
	for (int r = 0; r < R; r++)
#pragma GCC unroll 4
		for (int q = 0; q < NV; q++)
			STORE(m + (size_t)r * mp + q * 16, a[r][q]);
}

typedef void (*product_fn)(const float *v, size_t vp, size_t vi, const float *u, size_t ui,
			   float *m, size_t mp, uint32_t n, bool add);

/* Strides that are constants need no registers and no arithmetic: VP, or 0 for any; TIGHT: rows of
 * u and m are as long as the vectors taken. */
#define PRODUCT(R, NV, VP, TIGHT)                                                                 \
	static __attribute__((noinline)) void product_##R##_##NV##_##VP##_##TIGHT(                \
		const float *v, size_t vp, size_t vi, const float *u, size_t ui, float *m,        \
		size_t mp, uint32_t n, bool add)                                                  \
	{                                                                                         \
		product(v, VP ? VP : vp, vi, u, TIGHT ? NV * 16 : ui, m, TIGHT ? NV * 16 : mp, n, \
			add, R, NV);                                                              \
	}
#define PRODUCTS(R, NV) \
	PRODUCT(R, NV, 16, 1) PRODUCT(R, NV, 32, 1) PRODUCT(R, NV, 64, 1) PRODUCT(R, NV, 0, 0)
PRODUCTS(24, 1)
PRODUCTS(12, 2)
PRODUCTS(8, 3)
PRODUCTS(6, 4)
PRODUCT(16, 1, 1, 1)
PRODUCT(8, 2, 1, 1)
PRODUCT(8, 3, 1, 1)
PRODUCT(4, 4, 1, 1)
PRODUCT(16, 1, 1, 0)
PRODUCT(8, 2, 1, 0)
PRODUCT(8, 3, 1, 0)
PRODUCT(4, 4, 1, 0)

/* Vectors of k that a product takes at once. */
static uint32_t vectors_of(uint32_t k)
{
	return k % 64 == 0 ? 4 : k % 48 == 0 ? 3 : k % 32 == 0 ? 2 : 1;
}

static void wino_multiply(float *m, size_t m_plane, const float *v, size_t v_plane, const float *u,
			  uint32_t tiles, uint32_t c, uint32_t k)
{
	static const product_fn table[4][4] = {
		{product_24_1_16_1, product_24_1_32_1, product_24_1_64_1, product_24_1_0_0},
		{product_12_2_16_1, product_12_2_32_1, product_12_2_64_1, product_12_2_0_0},
		{product_8_3_16_1, product_8_3_32_1, product_8_3_64_1, product_8_3_0_0},
		{product_6_4_16_1, product_6_4_32_1, product_6_4_64_1, product_6_4_0_0}};
	static const uint32_t rows[4] = {24, 12, 8, 6};
	uint32_t nv = vectors_of(k), r = rows[nv - 1];
	uint32_t fixed = c == 16 ? 0 : c == 32 ? 1 : c == 64 ? 2 : 3;
	product_fn fn = table[nv - 1][k == 16 * nv ? fixed : 3];

	for (uint32_t p = 0; p < WINO_PLANES; p++)
		for (uint32_t o = 0; o < k; o += 16 * nv)
			for (uint32_t t = 0; t < tiles; t += r)
				fn(v + p * v_plane + (size_t)t * c, c, 1,
				   u + ((size_t)p * c) * k + o, k,
				   m + p * m_plane + (size_t)t * k + o, k, c, false);
}

static void wino_weights(float *du, const float *v, size_t v_plane, const float *z, size_t z_plane,
			 uint32_t tiles, uint32_t c, uint32_t k, bool add)
{
	static const product_fn table[4][2] = {{product_16_1_1_0, product_16_1_1_1},
					       {product_8_2_1_0, product_8_2_1_1},
					       {product_8_3_1_0, product_8_3_1_1},
					       {product_4_4_1_0, product_4_4_1_1}};
	static const uint32_t rows[4] = {16, 8, 8, 4};
	uint32_t nv = vectors_of(k), r = rows[nv - 1];
	product_fn fn = table[nv - 1][k == 16 * nv];

	for (uint32_t p = 0; p < WINO_PLANES; p++)
		for (uint32_t o = 0; o < k; o += 16 * nv)
			for (uint32_t i = 0; i < c; i += r)
				fn(v + p * v_plane + i, 1, c, z + p * z_plane + o, k,
				   du + ((size_t)p * c + i) * k + o, k, tiles, add);
}

static const struct wino_loops wino_avx512 = {
	.kernel = wino_kernel,
	.input = wino_input,
	.multiply = wino_multiply,
	.output = wino_output,
	.output_back = wino_output_back,
	.gradient = wino_gradient,
	.weights = wino_weights,
	.kernel_gradient = wino_kernel_gradient,
};

const struct wino_loops *wino_loops_best(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
			       __builtin_cpu_supports("avx512dq") &&
			       __builtin_cpu_supports("avx512vl")
		       ? &wino_avx512
		       : NULL;
}
#else
const struct wino_loops *wino_loops_best(void)
{
	return NULL;
}
#endif
