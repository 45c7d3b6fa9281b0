/* SPDX-License-Identifier: MIT */
/*
 * loss.cuh: losses of Keras 3 with their gradients (kernels/loss.c has the formulas), one block of
 * threads per row of the batch; and the sums over the batch.
 */
#include "device.cuh"

#define LOSS_EPSILON 1e-7f
#define LOG_EPSILON -16.118095650958319f

/* One row of the batch. */
struct loss_row {
	uint64_t base;	     /* of its first element */
	int32_t label;	     /* -1: none */
	const float *target; /* of the row, or NULL */
	float factor;	     /* of the gradient */
};

template <class T> DEVICE float loss_z(const struct loss_args &a, uint64_t at)
{
	return a.z_f32 ? ((const float *)a.z)[at] : get(((const T *)a.z)[at]);
}

/* Target j of a place, smoothed; at: its element within the row. */
DEVICE float target_at(const struct loss_args &a, const struct loss_row &r, uint64_t at, uint32_t j)
{
	float y = r.target ? r.target[at] : (float)(r.label == (int32_t)j);

	return y * (1.0f - a.smoothing) + a.smoothing / (float)a.c;
}

/* Logits, one warp a place: l = sum_j y_j (log sum - z_j), dl/dz_j = p_j sum(y) - y_j */
template <class T>
DEVICE double place_softmax(const struct loss_args &a, const struct loss_row &r, uint64_t at,
			    uint32_t lane)
{
	const bool want = r.target || r.label >= 0;
	float max = -INFINITY, sum = 0, y_sum = 0, loss = 0, factor = r.factor / (float)a.places;

	for (uint32_t j = lane; j < a.c; j += 32)
		max = fmaxf(max, loss_z<T>(a, r.base + at + j));
	max = warp_max(max);
	for (uint32_t j = lane; j < a.c; j += 32)
		sum += expf(loss_z<T>(a, r.base + at + j) - max);
	sum = warp_sum(sum);
	for (uint32_t j = lane; want && j < a.c; j += 32) {
		float y = target_at(a, r, at + j, j);

		y_sum += y;
		if (y != 0.0f)
			loss += y * (logf(sum) - (loss_z<T>(a, r.base + at + j) - max));
	}
	y_sum = warp_sum(y_sum);
	loss = warp_sum(loss);
	for (uint32_t j = lane; j < a.c; j += 32) {
		float p = expf(loss_z<T>(a, r.base + at + j) - max) / sum;

		if (want && a.gradient)
			put((T *)a.gradient + r.base + at + j,
			    factor * (p * y_sum - target_at(a, r, at + j, j)));
		if (a.output)
			a.output[r.base + at + j] = p;
	}
	return loss;
}

DEVICE float clipped(float q)
{
	return q < LOSS_EPSILON ? LOSS_EPSILON : q > 1.0f - LOSS_EPSILON ? 1.0f - LOSS_EPSILON : q;
}

/* Probabilities p: q = p / S, l = -sum_j y_j log clip(q_j) */
template <class T>
DEVICE double place_probability(const struct loss_args &a, const struct loss_row &r, uint64_t at,
				uint32_t lane)
{
	const bool want = r.target || r.label >= 0;
	float sum = 0, g_q = 0, loss = 0, factor = r.factor / (float)a.places;

	for (uint32_t j = lane; j < a.c; j += 32) {
		float v = loss_z<T>(a, r.base + at + j);

		if (a.output)
			a.output[r.base + at + j] = v;
		sum += v;
	}
	sum = warp_sum(sum);
	for (uint32_t j = lane; want && j < a.c; j += 32) {
		float q = loss_z<T>(a, r.base + at + j) / sum, y = target_at(a, r, at + j, j);

		loss -= y * logf(clipped(q));
		g_q -= clipped(q) != q ? 0.0f : y;
	}
	g_q = warp_sum(g_q);
	loss = warp_sum(loss);
	for (uint32_t j = lane; want && a.gradient && j < a.c; j += 32) {
		float q = loss_z<T>(a, r.base + at + j) / sum;
		float g = clipped(q) != q ? 0.0f : -target_at(a, r, at + j, j) / q;

		put((T *)a.gradient + r.base + at + j, factor * (g - g_q) / sum);
	}
	return loss;
}

/* One output of the losses that are a mean over outputs; *g = dl/dz */
DEVICE float element_loss(const struct loss_args &a, float z, float y, float *g)
{
	float p, log_p, log_q;

	switch (a.loss) {
	case BACKEND_MSE:
		*g = 2.0f * (z - y);
		return (z - y) * (z - y);
	case BACKEND_MAE:
		*g = (float)(z > y) - (float)(z < y);
		return fabsf(z - y);
	default: /* binary cross-entropy */
		y = y * (1.0f - a.smoothing) + 0.5f * a.smoothing;
		if (a.activation == BACKEND_SIGMOID) {
			*g = 1.0f / (1.0f + expf(-z)) - y;
			return fmaxf(z, 0.0f) - z * y + log1pf(expf(-fabsf(z)));
		}
		p = clipped(z);
		*g = p != z ? 0.0f : (1.0f - y) / (1.0f - p) - y / p;
		/* 1 - 1e-7 is 1 - 1.19e-7 in f32: where p is cut, the logarithm is the cut's */
		log_p = z < LOSS_EPSILON ? LOG_EPSILON : logf(p);
		log_q = z > 1.0f - LOSS_EPSILON ? LOG_EPSILON : log1pf(-p);
		return -(y * log_p + (1.0f - y) * log_q);
	}
}

template <class T> DEVICE double loss_elements(const struct loss_args &a, const struct loss_row &r)
{
	const uint32_t n = a.places * a.c;
	double loss = 0;

	for (uint32_t e = threadIdx.x; e < n; e += blockDim.x) {
		float z = loss_z<T>(a, r.base + e), g = 0;

		if (r.target) {
			loss += element_loss(a, z, r.target[e], &g);
			if (a.gradient)
				put((T *)a.gradient + r.base + e, r.factor * g / (float)n);
		}
		if (a.output)
			a.output[r.base + e] =
				a.activation == BACKEND_SIGMOID ? 1.0f / (1.0f + expf(-z)) : z;
	}
	return loss / n;
}

/* Of the places of this warp, counted in lane 0. */
template <class T> DEVICE double loss_places(const struct loss_args &a, const struct loss_row &r)
{
	const uint32_t lane = threadIdx.x % 32;
	double loss = 0;

	for (uint32_t k = threadIdx.x / 32; k < a.places; k += blockDim.x / 32) {
		uint64_t at = (uint64_t)k * a.c;

		loss += a.activation == BACKEND_SOFTMAX ? place_softmax<T>(a, r, at, lane)
							: place_probability<T>(a, r, at, lane);
	}
	return lane == 0 ? loss / a.places : 0;
}

template <class T> DEVICE void loss(const struct loss_args &a)
{
	const struct step_block *b = a.block;
	const uint32_t count = a.places * a.c;
	const bool sparse = a.loss == BACKEND_SPARSE_CROSSENTROPY;

	for (uint32_t i = blockIdx.x; i < a.n; i += gridDim.x) {
		const float w = b->weight ? b->weight[i] : 1.0f;
		struct loss_row r;
		double sum;

		r.base = (uint64_t)i * count;
		r.label = sparse && b->label ? b->label[i] : -1;
		r.target = !sparse && b->target ? b->target + r.base : 0;
		r.factor = b->scale * w;
		if (sparse || a.loss == BACKEND_CATEGORICAL_CROSSENTROPY)
			sum = loss_places<T>(a, r);
		else
			sum = loss_elements<T>(a, r);
		sum = block_sum(sum);
		if (threadIdx.x == 0)
			a.row_loss[i] = w * sum;
	}
}
KERNEL_SYNC_TYPES(loss, struct loss_args)

/* One block. */
KERNEL_SYNC(loss_sums, struct loss_sums_args)
{
	const float *w = a.block->weight;
	double loss = 0, weight = 0;

	for (uint32_t i = threadIdx.x; i < a.n; i += blockDim.x) {
		loss += a.row_loss[i];
		weight += w ? w[i] : 1.0f;
	}
	loss = block_sum(loss);
	weight = block_sum(weight);
	if (threadIdx.x == 0) {
		a.result->loss = loss;
		a.result->weight = weight;
	}
}
