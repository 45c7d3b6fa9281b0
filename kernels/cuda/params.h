/* SPDX-License-Identifier: MIT */
/*
 * params.h: the arguments of every kernel, one struct each, plain C. All pointers are device
 * pointers. x, y, dx, dy: activations of the element type of the launch (T), NHWC, n rows of the
 * batch; the shapes stand beside them. add: the result is added to what is there.
 */
#ifndef CUDA_PARAMS_H
#define CUDA_PARAMS_H

#include "block.h"

struct act {
	int kind; /* enum backend_activation */
	float alpha, max_value, threshold;
};

/* A matrix (rows, c) cut into columns and chunks of rows (device.cuh). */
struct cols {
	uint64_t rows, chunk;
	uint32_t c, vec, tx;
	uint32_t chunks;
};

struct window {
	uint32_t kh, kw, sh, sw, dh, dw;
	uint32_t pt, pl;
};

struct image {
	uint32_t h, w, c;
};

/* ---- input, element-wise ------------------------------------------------------------------ */

struct input_args {
	const struct step_block *block;
	void *y;		/* (n, h, w, c) T */
	const float *mul, *add; /* c */
	struct image s;
	uint32_t n, dtype, pitch;   /* pitch: bytes from row to row */
	uint32_t flip, pad, cutout; /* 0 outside training */
};

/* y = f(x + bias), pre = x + bias where given; bias may be NULL. x may be y or pre. */
struct bias_act_args {
	struct cols m;
	const void *x;
	void *y, *pre;
	const float *bias;
	struct act act;
};

/*
 * dz = f'(.) dy, the slope from `from`: the value before (pre) or, post, the value after a plain
 * ReLU. dz may be dy. partial (chunks, c), where given: sums of dz over the rows of a chunk.
 */
struct linear_back_args {
	struct cols m;
	const void *dy, *from;
	void *dz;
	float *partial;
	struct act act;
	uint32_t post;
};

/* out[k] = sum over chunks of partial[chunk][k], times the loss scale's inverse unless raw. */
struct partial_args {
	const struct step_block *block; /* NULL: times 1 */
	const float *partial;
	float *out;
	uint64_t count, chunks;
	uint32_t add;
};

/* y = f(x), and dx (+)= f'(x) dy */
struct act_args {
	const void *x, *dy;
	void *y;
	uint64_t count;
	struct act act;
	uint32_t backward, add;
};

/* Softmax or its logarithm over rows of c. Backward: x is the output of forward. */
struct softmax_args {
	const void *x, *dy;
	void *y;
	uint64_t rows;
	uint32_t c, logarithm, backward, add;
};

#define SUM_INPUTS 4
/* y = f(sum of the inputs), or y += the sum */
struct sum_args {
	const void *x[SUM_INPUTS];
	void *y;
	uint64_t count;
	uint32_t n_in, add;
	struct act act;
};

/* y[e] (+)= x[e] scale[e % c] + offset[e % c] */
struct rescale_args {
	const void *x;
	void *y;
	const float *scale, *offset; /* NULL: the numbers */
	float scale1, offset1;
	uint64_t count;
	uint32_t c, add;
};

/* y (+)= factor x; factors drawn from the block. count: elements of a row. */
struct dropout_args {
	const struct step_block *block;
	const void *x;
	void *y;
	uint32_t n, count, layer, add;
	float rate;
};

/* ---- moves -------------------------------------------------------------------------------- */

/* to[o * to_stride + k] (+)= from[o * from_stride + k], k < width, o < outer */
struct strided_args {
	const void *from;
	void *to;
	uint64_t outer, width, from_stride, to_stride;
	uint32_t add;
};

/*
 * Pixel (y, x) of `to` gets pixel (mirror(y) + dy, mirror(x) + dx) of `from`, zero outside. random:
 * enum backend_op FLIP, SHIFT or CROP, drawn per row from the block; 0: dy, dx as given. inverse:
 * `from` is a gradient of what this made, and `to` gets what came from it.
 */
struct place_args {
	const struct step_block *block;
	const void *from;
	void *to;
	struct image in, out; /* of the forward direction */
	uint32_t n, add, inverse;
	int32_t dy, dx;
	uint32_t random, layer, horizontal, vertical;
	uint32_t my, mx; /* shift: largest shift in pixels */
};

struct upsample_args {
	const void *from;
	void *to;
	struct image in; /* the smaller one */
	uint32_t n, fh, fw, bilinear, backward, add;
};

/* ---- pooling ------------------------------------------------------------------------------ */

/* index: tap of the largest, u8 or (wide) u32, of the output's shape; NULL: not kept. */
struct pool_args {
	const void *from; /* forward x, backward dy */
	void *to;	  /* forward y, backward dx */
	void *index;
	struct image in, out;
	struct window w;
	uint32_t n, wide, add;
};

struct global_args {
	const void *from;
	void *to;
	uint32_t *index; /* max: place of the largest (n, c) */
	uint32_t n, places, c, max, add;
};

/* ---- batch normalisation ------------------------------------------------------------------ */

struct norm_stats_args {
	struct cols m;
	const void *x;
	float *partial; /* (2, chunks, c): mean of the chunk, sum of squared distances from it */
};

/* Batch mean and 1 / sqrt(var + epsilon), and the moving ones. frozen: from the moving ones. */
struct norm_finish_args {
	const float *partial;
	float *moving_mean, *moving_var;
	float *mean, *scale; /* c */
	uint64_t rows, chunk;
	uint32_t chunks, c, frozen;
	float epsilon, momentum;
};

/* y = f(gamma (x - mean) scale + beta + other) */
struct norm_apply_args {
	struct cols m;
	const void *x, *other;
	void *y;
	const float *mean, *scale, *gamma, *beta;
	struct act act;
};

/*
 * Backward of the same. dz = f'(.) dy: the slope from y (post, plain ReLU) or from the value
 * computed again from x. Sums: partial (2, chunks, c) of dz, dz xh; other: gets (or adds) dz.
 */
struct norm_back_args {
	struct cols m;
	const void *x, *dy, *y;
	void *dx, *other;
	const float *mean, *scale, *gamma, *beta;
	float *partial;
	const float *sums; /* (2, c), finished: dbeta, dgamma, loss scale included */
	struct act act;
	uint32_t post, add, add_other, frozen;
};

/* sums[k][c] = over chunks; dbeta, dgamma (+)= sums / loss scale where given */
struct norm_sums_args {
	const struct step_block *block;
	const float *partial;
	float *sums, *dgamma, *dbeta;
	uint32_t chunks, c, add_gamma, add_beta;
};

/* ---- convolutions ------------------------------------------------------------------------- */

/* Own convolutions; the filter is packed (cout, kh, kw, cin / groups) in T. */
struct conv_args {
	const void *x, *w, *dy;
	void *y;	/* forward y, backward data dx */
	float *partial; /* backward filter: (chunks, kh, kw, cin / groups, cout) */
	struct image in, out;
	struct window win;
	uint32_t n, groups, add;
	uint32_t chunks;
	uint64_t chunk; /* output pixels of a chunk */
};

/* Depthwise: the kernel is (kh, kw, c * mult) in f32, in the parameter arena. */
struct depthwise_args {
	const void *x, *dy;
	void *y; /* forward y, backward data dx */
	const float *w;
	float *partial; /* backward filter: (chunks, kh * kw, c * mult) */
	struct image in, out;
	struct window win;
	struct cols m; /* backward filter: rows are output pixels */
	uint32_t n, mult, add;
};

/* f32 arena to packed copies */
struct pack_args {
	const float *from;
	void *to;
	const struct pack_tile *tile;
};

/* Packed filter gradient (cols, rows) T to the arena (rows, cols), times 1 / loss scale. */
struct unpack_args {
	const struct step_block *block;
	const void *from;
	float *to;
	uint32_t rows, cols, add;
};

/* ---- loss --------------------------------------------------------------------------------- */

struct loss_args {
	const struct step_block *block;
	const void *z;	  /* (n, places, c) T, or f32 */
	void *gradient;	  /* T, as z; NULL: none */
	float *output;	  /* (n, places, c) activated; NULL: none */
	double *row_loss; /* n: w_i l_i */
	uint32_t n, places, c;
	uint32_t loss, activation, z_f32; /* enum backend_loss, enum backend_activation */
	float smoothing;
};

struct loss_sums_args {
	const struct step_block *block;
	const double *row_loss;
	struct step_result *result;
	uint32_t n;
};

/* ---- optimizer ---------------------------------------------------------------------------- */

struct optimizer {
	int kind; /* enum backend_optimizer */
	float momentum, beta1, beta2, rho, epsilon;
	uint32_t nesterov, amsgrad, centered;
	float weight_decay;
	float clipnorm, clipvalue, global_clipnorm; /* 0: none */
};

struct update_args {
	const struct step_block *block;
	struct step_result *result;
	const struct param_chunk *chunk;
	const struct param_tensor *tensor;
	double *partial; /* per chunk */
	double *norm2;	 /* per tensor */
	float *factor;	 /* per tensor */
	float *w, *g;
	float *slot[3];
	struct optimizer o;
	uint32_t tensors, chunks;
};

/* ---- merge arithmetic --------------------------------------------------------------------- */

#define MERGE_INPUTS 16 /* BACKEND_MERGE_INPUTS */
/* out = sum_k weight[k] in[k] / total in double, k ascending */
struct merge_mean_args {
	const float *in[MERGE_INPUTS];
	double weight[MERGE_INPUTS], total;
	float *out;
	uint64_t count;
	uint32_t n;
};

/* delta = x - mean; m = mu m + delta; x -= eta m, or (Nesterov) x -= eta (delta + mu m) */
struct merge_outer_args {
	const float *mean;
	float *x, *m;
	uint64_t count;
	double eta, mu;
	uint32_t nesterov;
};

/* mean = sum p_k mean_k, var = sum p_k (var_k + (mean_k - mean)^2), in double */
struct merge_moments_args {
	const float *mean[MERGE_INPUTS], *var[MERGE_INPUTS];
	double weight[MERGE_INPUTS];
	float *mean_out, *var_out;
	uint64_t count;
	uint32_t n;
};

/* encode: d = start - from + carry, wire = bf16(d), carry = d - wire. decode: x = start - wire. */
struct merge_delta_args {
	const float *start;
	const float *from; /* encode */
	float *x;	   /* decode */
	float *carry;
	uint16_t *wire;
	uint64_t count;
	uint32_t decode;
};

#endif
