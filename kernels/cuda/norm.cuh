/* SPDX-License-Identifier: MIT */
/*
 * norm.cuh: batch normalisation over n, h, w with Keras' statistics (biased variance), fused with
 * an addend and an activation. The formulas are in kernels/ref/norm.c. Chunks of rows give mean and
 * sum of squared distances in f32 around a value of their own; they are pooled in double.
 */
#include "act.cuh"

template <class T, int VEC> DEVICE void norm_stats_walk(const struct norm_stats_args &a)
{
	const struct walk w = walk_of(a.m);
	const float rows = (float)(w.end - w.begin);
	float shift[VEC] = {0}, sum[VEC] = {0}, square[VEC] = {0};
	uint64_t at = (uint64_t)blockIdx.y * a.m.c + w.col;

	if (w.inside)
		load<VEC>((const T *)a.x + w.begin * a.m.c + w.col, shift);
	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		float v[VEC];

		load<VEC>((const T *)a.x + r * a.m.c + w.col, v);
		for (int k = 0; k < VEC; k++) {
			v[k] -= shift[k];
			sum[k] += v[k];
			square[k] += v[k] * v[k];
		}
	}
	walk_sum<VEC>(w, sum);
	walk_sum<VEC>(w, square);
	for (int k = 0; w.inside && w.ty == 0 && k < VEC; k++) {
		a.partial[at + k] = shift[k] + sum[k] / rows;
		a.partial[(uint64_t)a.m.chunks * a.m.c + at + k] =
			fmaxf(square[k] - sum[k] * (sum[k] / rows), 0.0f);
	}
}

template <class T> DEVICE void norm_stats(const struct norm_stats_args &a)
{
	if (a.m.vec == 4)
		norm_stats_walk<T, 4>(a);
	else
		norm_stats_walk<T, 1>(a);
}
KERNEL_SYNC_TYPES(norm_stats, struct norm_stats_args)

/* Sum over the eight threads of a column, known to all of them (32 columns by 8 threads). */
DEVICE double eight_sum(double v)
{
	__shared__ double part[256];
	double sum = 0;

	__syncthreads();
	part[threadIdx.x] = v;
	__syncthreads();
	for (int k = 0; k < 8; k++)
		sum += part[threadIdx.x % 32 + 32 * k];
	return sum;
}

/* Pooled moments of the chunks: mean = sum n_k mean_k / n, M = sum M_k + n_k (mean_k - mean)^2 */
DEVICE void pooled(const struct norm_finish_args &a, uint32_t ch, double *mean, double *var)
{
	const float *square = a.partial + (uint64_t)a.chunks * a.c;
	double sum = 0, around = 0, m = (double)a.rows, first;

	first = ch < a.c ? a.partial[ch] : 0.0;
	for (uint32_t k = threadIdx.x / 32; ch < a.c && k < a.chunks; k += 8) {
		uint64_t left = a.rows - k * a.chunk, n = left < a.chunk ? left : a.chunk;

		sum += (double)n * (a.partial[(uint64_t)k * a.c + ch] - first);
	}
	*mean = first + eight_sum(sum) / m;
	for (uint32_t k = threadIdx.x / 32; ch < a.c && k < a.chunks; k += 8) {
		uint64_t left = a.rows - k * a.chunk, n = left < a.chunk ? left : a.chunk;
		double d = a.partial[(uint64_t)k * a.c + ch] - *mean;

		around += square[(uint64_t)k * a.c + ch] + (double)n * d * d;
	}
	*var = eight_sum(around) / m;
}

DEVICE float moved(float moving, double batch, float momentum)
{
	return (float)((double)moving * momentum + batch * (1.0 - (double)momentum));
}

KERNEL_SYNC(norm_finish, struct norm_finish_args)
{
	const uint32_t ch = blockIdx.x * 32 + threadIdx.x % 32;
	double mean = 0, var = 0;

	if (!a.frozen)
		pooled(a, ch, &mean, &var);
	if (ch >= a.c || threadIdx.x >= 32)
		return;
	if (a.frozen) {
		mean = a.moving_mean[ch];
		var = a.moving_var[ch];
	} else {
		a.moving_mean[ch] = moved(a.moving_mean[ch], mean, a.momentum);
		a.moving_var[ch] = moved(a.moving_var[ch], var, a.momentum);
	}
	a.mean[ch] = (float)mean;
	a.scale[ch] = (float)(1.0 / sqrt(var + (double)a.epsilon));
}

/* What a thread knows of its columns. */
template <int VEC> struct norm_cols {
	float mean[VEC], scale[VEC], gamma[VEC], beta[VEC];
};

template <int VEC, class A>
DEVICE void norm_load(const A &a, const struct walk &w, norm_cols<VEC> *c)
{
	for (int k = 0; w.inside && k < VEC; k++) {
		c->mean[k] = a.mean[w.col + k];
		c->scale[k] = a.scale[w.col + k];
		c->gamma[k] = a.gamma ? a.gamma[w.col + k] : 1.0f;
		c->beta[k] = a.beta ? a.beta[w.col + k] : 0.0f;
	}
}

template <class T, int VEC> DEVICE void norm_apply_walk(const struct norm_apply_args &a)
{
	const struct walk w = walk_of(a.m);
	norm_cols<VEC> c;

	norm_load<VEC>(a, w, &c);
	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		const uint64_t at = r * a.m.c + w.col;
		float v[VEC], other[VEC] = {0};

		load<VEC>((const T *)a.x + at, v);
		if (a.other)
			load<VEC>((const T *)a.other + at, other);
		for (int k = 0; k < VEC; k++) {
			v[k] = c.gamma[k] * ((v[k] - c.mean[k]) * c.scale[k]) + c.beta[k] +
			       other[k];
			v[k] = act_value(a.act, v[k]);
		}
		store<VEC>((T *)a.y + at, v);
	}
}

template <class T> DEVICE void norm_apply(const struct norm_apply_args &a)
{
	if (a.m.vec == 4)
		norm_apply_walk<T, 4>(a);
	else
		norm_apply_walk<T, 1>(a);
}
KERNEL_TYPES(norm_apply, struct norm_apply_args)

/* dz = f'(.) dy and xh = (x - mean) scale at `at`. */
template <class T, int VEC>
DEVICE void norm_slope(const struct norm_back_args &a, const norm_cols<VEC> &c, uint64_t at,
		       float *dz, float *xh)
{
	float y[VEC];

	load<VEC>((const T *)a.dy + at, dz);
	load<VEC>((const T *)a.x + at, xh);
	for (int k = 0; k < VEC; k++)
		xh[k] = (xh[k] - c.mean[k]) * c.scale[k];
	if (a.act.kind == BACKEND_LINEAR)
		return;
	if (a.post)
		load<VEC>((const T *)a.y + at, y);
	for (int k = 0; k < VEC; k++)
		dz[k] *= a.post ? (y[k] > 0.0f ? 1.0f : 0.0f)
				: act_slope(a.act, c.gamma[k] * xh[k] + c.beta[k]);
}

template <class T, int VEC> DEVICE void norm_back_sums_walk(const struct norm_back_args &a)
{
	const struct walk w = walk_of(a.m);
	const uint64_t to = (uint64_t)blockIdx.y * a.m.c + w.col;
	float sum[VEC] = {0}, with[VEC] = {0};
	norm_cols<VEC> c;

	norm_load<VEC>(a, w, &c);
	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		const uint64_t at = r * a.m.c + w.col;
		float dz[VEC], xh[VEC];

		norm_slope<T, VEC>(a, c, at, dz, xh);
		for (int k = 0; k < VEC; k++) {
			sum[k] += dz[k];
			with[k] += dz[k] * xh[k];
		}
		if (a.other)
			store_add<VEC>((T *)a.other + at, dz, a.add_other);
	}
	walk_sum<VEC>(w, sum);
	walk_sum<VEC>(w, with);
	for (int k = 0; w.inside && w.ty == 0 && k < VEC; k++) {
		a.partial[to + k] = sum[k];
		a.partial[(uint64_t)a.m.chunks * a.m.c + to + k] = with[k];
	}
}

template <class T> DEVICE void norm_back_sums(const struct norm_back_args &a)
{
	if (a.m.vec == 4)
		norm_back_sums_walk<T, 4>(a);
	else
		norm_back_sums_walk<T, 1>(a);
}
KERNEL_SYNC_TYPES(norm_back_sums, struct norm_back_args)

KERNEL_SYNC(norm_sums, struct norm_sums_args)
{
	const uint32_t ch = blockIdx.x * 32 + threadIdx.x % 32;
	double v[2];

	for (int q = 0; q < 2; q++) {
		const float *from = a.partial + (uint64_t)q * a.chunks * a.c;
		double sum = 0;

		for (uint32_t k = threadIdx.x / 32; ch < a.c && k < a.chunks; k += 8)
			sum += from[(uint64_t)k * a.c + ch];
		v[q] = eight_sum(sum);
	}
	if (ch >= a.c || threadIdx.x >= 32)
		return;
	for (int q = 0; q < 2; q++) {
		float *to = q ? a.dgamma : a.dbeta, g = (float)(v[q] * a.block->unscale);

		a.sums[q * a.c + ch] = (float)v[q];
		if (to)
			to[ch] = (q ? a.add_gamma : a.add_beta) ? to[ch] + g : g;
	}
}

/* dx (+)= gamma scale (dz - (dbeta + xh dgamma) / m); frozen: gamma scale dz */
template <class T, int VEC> DEVICE void norm_back_walk(const struct norm_back_args &a)
{
	const struct walk w = walk_of(a.m);
	const float part = 1.0f / (float)a.m.rows;
	float dbeta[VEC] = {0}, dgamma[VEC] = {0};
	norm_cols<VEC> c;

	norm_load<VEC>(a, w, &c);
	for (int k = 0; w.inside && !a.frozen && k < VEC; k++) {
		dbeta[k] = a.sums[w.col + k] * part;
		dgamma[k] = a.sums[a.m.c + w.col + k] * part;
	}
	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		const uint64_t at = r * a.m.c + w.col;
		float dz[VEC], xh[VEC];

		norm_slope<T, VEC>(a, c, at, dz, xh);
		for (int k = 0; k < VEC; k++)
			dz[k] = c.gamma[k] * c.scale[k] * (dz[k] - (dbeta[k] + xh[k] * dgamma[k]));
		store_add<VEC>((T *)a.dx + at, dz, a.add);
	}
}

template <class T> DEVICE void norm_back(const struct norm_back_args &a)
{
	if (a.m.vec == 4)
		norm_back_walk<T, 4>(a);
	else
		norm_back_walk<T, 1>(a);
}
KERNEL_TYPES(norm_back, struct norm_back_args)
