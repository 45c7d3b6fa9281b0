/* SPDX-License-Identifier: MIT */
/* loops_norm.h: the loops of batch norm; a part of loops_body.h, which includes it. */

/* These passes read what left the cache long ago: floats to fetch ahead of the hardware, +2 % of a
 * ResNet-20 step. */
#define AHEAD 256

/* ---- batch norm -------------------------------------------------------------------------- */

/* 16 f32 sums into 16 double ones. */
INLINE void flush(double *to, const vec *from)
{
	const half_at *part = (const half_at *)from;

	*(dvec_at *)to += __builtin_convertvector(part[0], dvec);
	*(dvec_at *)(to + 8) += __builtin_convertvector(part[1], dvec);
}

INLINE void stats_block(const float *x, size_t rows, size_t c, double *s, double *q)
{
	const vec shift = LOAD(x);

	memset(s, 0, LANES * sizeof(*s));
	memset(q, 0, LANES * sizeof(*q));
	for (size_t r = 0; r < rows; r += BLOCK) {
		size_t end = r + BLOCK < rows ? r + BLOCK : rows;
		vec a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0};
		size_t i = r;

		for (; i + 2 <= end; i += 2) {
			vec v0 = LOAD(x + i * c) - shift, v1 = LOAD(x + (i + 1) * c) - shift;

			a0 += v0;
			b0 += v0 * v0;
			a1 += v1;
			b1 += v1 * v1;
		}
		for (; i < end; i++) {
			vec v = LOAD(x + i * c) - shift;

			a0 += v;
			b0 += v * v;
		}
		a0 += a1;
		b0 += b1;
		flush(s, &a0);
		flush(q, &b0);
	}
}

static void loop_norm_stats(const float *x, size_t rows, size_t c, double *s, double *q)
{
	size_t k = 0;

	if (rows == 0) {
		memset(s, 0, c * sizeof(*s));
		memset(q, 0, c * sizeof(*q));
		return;
	}
	for (; k + LANES <= c; k += LANES)
		stats_block(x + k, rows, c, s + k, q + k);
	for (; k < c; k++) {
		double a = 0, b = 0;

		for (size_t r = 0; r < rows; r++) {
			double v = (double)x[r * c + k] - x[k];

			a += v;
			b += v * v;
		}
		s[k] = a;
		q[k] = b;
	}
}

INLINE vec norm_vec(const float *x, const struct loops_norm *m, size_t k)
{
	return (LOAD(x) - LOAD(m->mean + k)) * LOAD(m->scale + k) + LOAD(m->shift + k);
}

INLINE float norm_one(float x, const struct loops_norm *m, size_t k)
{
	return (x - m->mean[k]) * m->scale[k] + m->shift[k];
}

INLINE void apply_rows(float *y, const float *x, const float *other, size_t rows, size_t c,
		       const struct loops_norm *m, const bool relu, const bool sum)
{
	for (size_t i = 0; i < rows * c; i += c) {
		size_t k = 0;

		for (; k + LANES <= c; k += LANES) {
			vec v = norm_vec(x + i + k, m, k);

			__builtin_prefetch(x + i + k + AHEAD);
			if (sum)
				v += LOAD(other + i + k);
			STORE(y + i + k, relu ? RELU(v) : v);
		}
		for (; k < c; k++) {
			float v = norm_one(x[i + k], m, k) + (sum ? other[i + k] : 0.0f);

			y[i + k] = relu ? RELU_ONE(v) : v;
		}
	}
}

static void loop_norm_apply(float *y, const float *x, const float *other, size_t rows, size_t c,
			    const struct loops_norm *m, bool relu)
{
	if (other && relu)
		apply_rows(y, x, other, rows, c, m, true, true);
	else if (other)
		apply_rows(y, x, other, rows, c, m, false, true);
	else if (relu)
		apply_rows(y, x, NULL, rows, c, m, true, false);
	else
		apply_rows(y, x, NULL, rows, c, m, false, false);
}

/* Mask of a gradient: by y where it is there, else by the value recomputed from x. */
INLINE vec masked_vec(const float *g, const float *x, const float *y, const struct loops_norm *m,
		      size_t k, bool relu)
{
	vec v = LOAD(g);

	if (!relu)
		return v;
	return y ? KEEP(POSITIVE(LOAD(y)), v) : KEEP(POSITIVE(norm_vec(x, m, k)), v);
}

INLINE float masked_one(float g, float x, const float *y, const struct loops_norm *m, size_t k,
			bool relu)
{
	if (!relu)
		return g;
	return (y ? *y : norm_one(x, m, k)) > 0.0f ? g : 0.0f;
}

INLINE void sums_block(float *d, const float *g, const float *x, const float *y, size_t rows,
		       size_t c, const struct loops_norm *m, size_t k, bool relu, double *s,
		       double *q)
{
	const vec mean = LOAD(m->mean + k);

	memset(s, 0, LANES * sizeof(*s));
	memset(q, 0, LANES * sizeof(*q));
	for (size_t r = 0; r < rows; r += BLOCK) {
		size_t end = r + BLOCK < rows ? r + BLOCK : rows;
		vec a = {0}, b = {0};

		for (size_t i = r * c; i < end * c; i += c) {
			vec v = masked_vec(g + i, x + i, y ? y + i : NULL, m, k, relu);

			a += v;
			b += v * (LOAD(x + i) - mean);
			if (d)
				STORE(d + i, v);
		}
		flush(s, &a);
		flush(q, &b);
	}
}

static void loop_norm_sums(float *d, const float *g, const float *x, const float *y, size_t rows,
			   size_t c, const struct loops_norm *m, bool relu, double *s, double *q)
{
	size_t k = 0;

	for (; k + LANES <= c; k += LANES) {
		if (d)
			sums_block(d + k, g + k, x + k, y ? y + k : NULL, rows, c, m, k, relu,
				   s + k, q + k);
		else
			sums_block(NULL, g + k, x + k, y ? y + k : NULL, rows, c, m, k, relu, s + k,
				   q + k);
	}
	for (; k < c; k++) {
		double a = 0, b = 0;

		for (size_t i = k; i < rows * c; i += c) {
			float v = masked_one(g[i], x[i], y ? y + i : NULL, m, k, relu);

			a += v;
			b += (double)v * ((double)x[i] - m->mean[k]);
			if (d)
				d[i] = v;
		}
		s[k] = a;
		q[k] = b;
	}
}

INLINE void back_rows(float *dx, const float *g, const float *x, size_t rows, size_t c,
		      const struct loops_norm *m, const float *k1, const float *k2, const float *k3,
		      const bool relu, const bool add)
{
	for (size_t i = 0; i < rows * c; i += c) {
		size_t k = 0;

		for (; k + LANES <= c; k += LANES) {
			vec v = masked_vec(g + i + k, x + i + k, NULL, m, k, relu);

			__builtin_prefetch(x + i + k + AHEAD);
			__builtin_prefetch(g + i + k + AHEAD);
			v = LOAD(k1 + k) * v +
			    LOAD(k2 + k) * (LOAD(x + i + k) - LOAD(m->mean + k)) + LOAD(k3 + k);
			STORE(dx + i + k, add ? LOAD(dx + i + k) + v : v);
		}
		for (; k < c; k++) {
			float v = masked_one(g[i + k], x[i + k], NULL, m, k, relu);

			v = k1[k] * v + k2[k] * (x[i + k] - m->mean[k]) + k3[k];
			dx[i + k] = add ? dx[i + k] + v : v;
		}
	}
}

static void loop_norm_back(float *dx, const float *g, const float *x, size_t rows, size_t c,
			   const struct loops_norm *m, const float *k1, const float *k2,
			   const float *k3, bool relu, bool add)
{
	if (relu && !add)
		back_rows(dx, g, x, rows, c, m, k1, k2, k3, true, false);
	else if (!relu && !add)
		back_rows(dx, g, x, rows, c, m, k1, k2, k3, false, false);
	else
		back_rows(dx, g, x, rows, c, m, k1, k2, k3, relu, add);
}
