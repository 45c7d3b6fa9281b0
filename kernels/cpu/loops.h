/* SPDX-License-Identifier: MIT */
/*
 * loops.h: the back end's own inner loops, compiled once for each instruction set from one source
 * (loops_body.h) and chosen when the back end is opened. Pixels are rows of c channels; n and rows
 * may be 0; pointers need the alignment of a float only.
 */
#ifndef CPU_LOOPS_H
#define CPU_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Per channel: value of a batch norm is (x - mean) * scale + shift. */
struct loops_norm {
	const float *mean, *scale, *shift;
};

/* Window of a pooling, one image. Sizes and strides in pixels. */
struct loops_pool {
	uint32_t h, w, c, out_h, out_w;
	uint32_t kh, kw, stride_h, stride_w, pad_top, pad_left;
};

struct cpu_loops {
	const char *isa;
	/* to += from */
	void (*add)(float *to, const float *from, size_t n);
	/* y = a + b, relu: max(0, .); y may be a or b */
	void (*sum2)(float *y, const float *a, const float *b, size_t n, bool relu);
	/* y = max(0, x), NaN stays; y may be x */
	void (*relu)(float *y, const float *x, size_t n);
	/* d = y > 0 ? g : 0; d may be g */
	void (*mask)(float *d, const float *g, const float *y, size_t n);
	/* y += bias (may be NULL), relu: max(0, .) */
	void (*bias)(float *y, const float *bias, size_t rows, size_t c, bool relu);
	/* sum[k] (+)= sum of column k */
	void (*columns)(float *sum, const float *x, size_t rows, size_t c, bool add);
	/* s[k] = sum of x - first row, q[k] = sum of its square; double sums of f32 blocks */
	void (*norm_stats)(const float *x, size_t rows, size_t c, double *s, double *q);
	/* y = norm(x) [+ other] [relu] */
	void (*norm_apply)(float *y, const float *x, const float *other, size_t rows, size_t c,
			   const struct loops_norm *norm, bool relu);
	/*
	 * g1 = g, masked where relu: by y > 0 if y is there, else by norm(x) > 0. s[k] = sum of g1,
	 * q[k] = sum of g1 * (x - mean). d: where g1 goes; NULL: nowhere; may be g.
	 */
	void (*norm_sums)(float *d, const float *g, const float *x, const float *y, size_t rows,
			  size_t c, const struct loops_norm *norm, bool relu, double *s, double *q);
	/* dx (+)= k1 * g1 + k2 * (x - mean) + k3; relu: g1 = g masked by norm(x) > 0 */
	void (*norm_back)(float *dx, const float *g, const float *x, size_t rows, size_t c,
			  const struct loops_norm *norm, const float *k1, const float *k2,
			  const float *k3, bool relu, bool add);
	/* index (may be NULL): place of the first maximum in its window */
	void (*max_pool)(float *y, uint8_t *index, const float *x, const struct loops_pool *p);
	/* dx += gradient of max_pool; relu: only where y > 0; set: dx = it, where every pixel is in
	 * exactly one window */
	void (*max_pool_back)(float *dx, const float *g, const uint8_t *index, const float *y,
			      const struct loops_pool *p, bool relu, bool set);
	/* v = momentum * v - lr * g; w += v, nesterov: w += momentum * v - lr * g */
	void (*momentum)(float *w, float *v, const float *g, size_t n, float momentum, float lr,
			 bool nesterov);
	/* sum of squares in double; finite exactly if every element is */
	double (*square_sum)(const float *g, size_t n);
};

extern const struct cpu_loops cpu_loops_plain;
#if defined(__x86_64__)
extern const struct cpu_loops cpu_loops_avx2;
extern const struct cpu_loops cpu_loops_avx512;
#endif

/* The best that this processor runs; isa (NULL: any): "plain", "avx2" or "avx512", not more than
 * that. */
const struct cpu_loops *cpu_loops_best(const char *isa);

#endif
