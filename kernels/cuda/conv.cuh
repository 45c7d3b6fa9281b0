/* SPDX-License-Identifier: MIT */
/*
 * conv.cuh: convolutions as matrix products whose operands are gathered on the way, for every shape
 * that cuDNN does not take; and the packing of filters. Tiles of 64 x 64 in steps of 16; 256
 * threads with 4 x 4 sums each.
 */
#include "device.cuh"

#define TILE 64
#define STEP 16

/* C[m][n] = sum over k in [begin, end) of A(m, k) B(k, n), stored by the operands P. */
template <class P> DEVICE void product(const P &p, uint64_t begin, uint64_t end)
{
	__shared__ float at[STEP][TILE + 1], bt[STEP][TILE + 1];
	const uint64_t m0 = (uint64_t)blockIdx.x * TILE;
	const uint32_t n0 = blockIdx.y * TILE, row = threadIdx.x / 16, col = threadIdx.x % 16;
	float sum[4][4] = {{0}};

	for (uint64_t k0 = begin; k0 < end; k0 += STEP) {
		for (uint32_t e = threadIdx.x; e < TILE * STEP; e += blockDim.x) {
			/* A is contiguous along k, or along m (backward filter); B along n or k */
			uint32_t am = P::A_ALONG_K ? e / STEP : e % TILE;
			uint32_t ak = P::A_ALONG_K ? e % STEP : e / TILE;
			uint32_t bn = P::B_ALONG_K ? e / STEP : e % TILE;
			uint32_t bk = P::B_ALONG_K ? e % STEP : e / TILE;

			at[ak][am] = k0 + ak < end ? p.a(m0 + am, k0 + ak) : 0.0f;
			bt[bk][bn] = k0 + bk < end ? p.b(k0 + bk, n0 + bn) : 0.0f;
		}
		__syncthreads();
		for (int k = 0; k < STEP; k++)
			for (int i = 0; i < 4; i++)
				for (int j = 0; j < 4; j++)
					sum[i][j] += at[k][row + 16 * i] * bt[k][col + 16 * j];
		__syncthreads();
	}
	for (int i = 0; i < 4; i++)
		for (int j = 0; j < 4; j++)
			p.store(m0 + row + 16 * i, n0 + col + 16 * j, sum[i][j]);
}

/* Output pixel m as (row, y, x). */
struct pixel {
	uint32_t i;
	int32_t y, x;
};
DEVICE struct pixel pixel_of(uint64_t m, const struct image &s)
{
	uint32_t p = (uint32_t)(m % (s.h * s.w));

	return pixel{(uint32_t)(m / (s.h * s.w)), (int32_t)(p / s.w), (int32_t)(p % s.w)};
}

/* x at tap (ky, kx) of output pixel o, channel ch; zero in the padding. */
template <class T>
DEVICE float gathered(const struct conv_args &c, const struct pixel &o, uint32_t tap, uint32_t ch)
{
	const int32_t y =
		o.y * (int32_t)c.win.sh + (int32_t)(tap / c.win.kw * c.win.dh) - (int32_t)c.win.pt;
	const int32_t x =
		o.x * (int32_t)c.win.sw + (int32_t)(tap % c.win.kw * c.win.dw) - (int32_t)c.win.pl;

	if (y < 0 || y >= (int32_t)c.in.h || x < 0 || x >= (int32_t)c.in.w)
		return 0.0f;
	return get(((const T *)c.x)[(((uint64_t)o.i * c.in.h + y) * c.in.w + x) * c.in.c + ch]);
}

template <class T> struct conv_forward {
	static const bool A_ALONG_K = true, B_ALONG_K = true;
	const struct conv_args &c;
	uint32_t g, cin, cout; /* group, channels of a group */
	uint64_t m_end, k_end;

	DEVICE_MEMBER float a(uint64_t m, uint64_t k) const
	{
		if (m >= m_end)
			return 0.0f;
		return gathered<T>(c, pixel_of(m, c.out), (uint32_t)k / cin,
				   g * cin + (uint32_t)k % cin);
	}
	DEVICE_MEMBER float b(uint64_t k, uint32_t n) const
	{
		return n < cout ? get(((const T *)c.w)[(g * cout + n) * k_end + k]) : 0.0f;
	}
	DEVICE_MEMBER void store(uint64_t m, uint32_t n, float v) const
	{
		if (m < m_end && n < cout)
			put((T *)c.y + m * c.out.c + g * cout + n, v);
	}
};

template <class T> DEVICE void conv_own(const struct conv_args &a)
{
	const uint32_t cin = a.in.c / a.groups, cout = a.out.c / a.groups;
	const uint64_t k = (uint64_t)a.win.kh * a.win.kw * cin;
	const conv_forward<T> p = {a, blockIdx.z, cin, cout, (uint64_t)a.n * a.out.h * a.out.w, k};

	product(p, 0, k);
}
KERNEL_SYNC_TYPES(conv_own, struct conv_args)

/* dx[i,y,x,c] = sum over taps and o of dy w: m = input pixel, k = (tap, o), n = c */
template <class T> struct conv_data {
	static const bool A_ALONG_K = true, B_ALONG_K = false;
	const struct conv_args &c;
	uint32_t g, cin, cout;
	uint64_t m_end;

	DEVICE_MEMBER float a(uint64_t m, uint64_t k) const
	{
		const uint32_t tap = (uint32_t)k / cout, o = (uint32_t)k % cout;
		struct pixel p;

		if (m >= m_end)
			return 0.0f;
		p = pixel_of(m, c.in);
		p.y += (int32_t)c.win.pt - (int32_t)(tap / c.win.kw * c.win.dh);
		p.x += (int32_t)c.win.pl - (int32_t)(tap % c.win.kw * c.win.dw);
		if (p.y < 0 || p.x < 0 || p.y % (int32_t)c.win.sh || p.x % (int32_t)c.win.sw)
			return 0.0f;
		p.y /= (int32_t)c.win.sh;
		p.x /= (int32_t)c.win.sw;
		if (p.y >= (int32_t)c.out.h || p.x >= (int32_t)c.out.w)
			return 0.0f;
		return get(
			((const T *)
				 c.dy)[(((uint64_t)p.i * c.out.h + p.y) * c.out.w + p.x) * c.out.c +
				       g * cout + o]);
	}
	DEVICE_MEMBER float b(uint64_t k, uint32_t n) const
	{
		const uint64_t taps = (uint64_t)c.win.kh * c.win.kw;
		const uint32_t tap = (uint32_t)k / cout, o = (uint32_t)k % cout;

		return n < cin ? get(((const T *)c.w)[((g * cout + o) * taps + tap) * cin + n])
			       : 0.0f;
	}
	DEVICE_MEMBER void store(uint64_t m, uint32_t n, float v) const
	{
		if (m < m_end && n < cin)
			store_add<1>((T *)c.y + m * c.in.c + g * cin + n, &v, c.add);
	}
};

template <class T> DEVICE void conv_own_data(const struct conv_args &a)
{
	const uint32_t cin = a.in.c / a.groups, cout = a.out.c / a.groups;
	const conv_data<T> p = {a, blockIdx.z, cin, cout, (uint64_t)a.n * a.in.h * a.in.w};

	product(p, 0, (uint64_t)a.win.kh * a.win.kw * cout);
}
KERNEL_SYNC_TYPES(conv_own_data, struct conv_args)

/* dw[tap,c,o] = sum over output pixels of x dy: m = (tap, c), k = output pixel, n = o */
template <class T> struct conv_filter {
	static const bool A_ALONG_K = false, B_ALONG_K = false;
	const struct conv_args &c;
	uint32_t g, cin, cout;
	uint64_t m_end;
	float *to;

	DEVICE_MEMBER float a(uint64_t m, uint64_t k) const
	{
		return m < m_end ? gathered<T>(c, pixel_of(k, c.out), (uint32_t)(m / cin),
					       g * cin + (uint32_t)(m % cin))
				 : 0.0f;
	}
	DEVICE_MEMBER float b(uint64_t k, uint32_t n) const
	{
		return n < cout ? get(((const T *)c.dy)[k * c.out.c + g * cout + n]) : 0.0f;
	}
	DEVICE_MEMBER void store(uint64_t m, uint32_t n, float v) const
	{
		if (m < m_end && n < cout)
			to[m * c.out.c + g * cout + n] = v;
	}
};

/* Block z: chunk z / groups, group z % groups. */
template <class T> DEVICE void conv_own_filter(const struct conv_args &a)
{
	const uint32_t cin = a.in.c / a.groups, cout = a.out.c / a.groups;
	const uint64_t rows = (uint64_t)a.win.kh * a.win.kw * cin, chunk = blockIdx.z / a.groups;
	const uint64_t pixels = (uint64_t)a.n * a.out.h * a.out.w;
	const uint64_t end = (chunk + 1) * a.chunk;
	const conv_filter<T> p = {a,	cin ? blockIdx.z % a.groups : 0,   cin, cout,
				  rows, a.partial + chunk * rows * a.out.c};

	product(p, chunk * a.chunk, end < pixels ? end : pixels);
}
KERNEL_SYNC_TYPES(conv_own_filter, struct conv_args)

/* ---- packing ------------------------------------------------------------------------------ */

/* One tile of the table: (rows, cols) f32 to (cols, rows) T, or a copy. */
template <class T> DEVICE void pack(const struct pack_args &a)
{
	const struct pack_tile t = a.tile[blockIdx.x];
	const float *from = a.from + t.from;
	__shared__ float tile[32][33];
	T *to = (T *)a.to + t.to;

	if (t.cols == 0) {
		for (uint32_t k = threadIdx.x; k < 1024; k += blockDim.x)
			if (t.row * 1024 + k < t.rows)
				put(&to[t.row * 1024 + k], from[t.row * 1024 + k]);
	} else {
		for (uint32_t y = threadIdx.x / 32; y < 32; y += blockDim.x / 32) {
			uint32_t r = t.row + y, c = t.col + threadIdx.x % 32;

			if (r < t.rows && c < t.cols)
				tile[y][threadIdx.x % 32] = from[(uint64_t)r * t.cols + c];
		}
	}
	__syncthreads();
	for (uint32_t y = threadIdx.x / 32; t.cols && y < 32; y += blockDim.x / 32) {
		uint32_t r = t.row + threadIdx.x % 32, c = t.col + y;

		if (r < t.rows && c < t.cols)
			put(&to[(uint64_t)c * t.rows + r], tile[threadIdx.x % 32][y]);
	}
}
KERNEL_SYNC_TYPES(pack, struct pack_args)

template <class T> DEVICE void unpack(const struct unpack_args &a)
{
	const uint32_t row = blockIdx.y * 32, col = blockIdx.x * 32, lane = threadIdx.x % 32;
	const float unscale = a.block->unscale;
	__shared__ float tile[32][33];

	for (uint32_t y = threadIdx.x / 32; y < 32; y += blockDim.x / 32) {
		uint32_t c = col + y, r = row + lane;

		if (r < a.rows && c < a.cols)
			tile[y][lane] = get(((const T *)a.from)[(uint64_t)c * a.rows + r]);
	}
	__syncthreads();
	for (uint32_t y = threadIdx.x / 32; y < 32; y += blockDim.x / 32) {
		uint32_t c = col + lane, r = row + y;

		if (r < a.rows && c < a.cols) {
			float *to = a.to + (uint64_t)r * a.cols + c, v = tile[lane][y] * unscale;

			*to = a.add ? *to + v : v;
		}
	}
}
KERNEL_SYNC_TYPES(unpack, struct unpack_args)
