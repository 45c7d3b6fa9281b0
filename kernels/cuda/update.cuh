/* SPDX-License-Identifier: MIT */
/*
 * update.cuh: the optimizers over the whole parameter arena, a block of threads per chunk of a
 * tensor: gather (regularisers, sums of squares), norms, finish (is it finite, clipping), update.
 * The formulas and their order of operations are those of kernels/update.c; the file that includes
 * this is compiled without contraction, so that equal gradients give equal parameters.
 */
#include "device.cuh"

/* g += l1 sign(w) + 2 l2 w; partial = sum of g^2 */
KERNEL_SYNC(optimizer_gather, struct update_args)
{
	const struct param_chunk c = a.chunk[blockIdx.x];
	const struct param_tensor t = a.tensor[c.tensor];
	float *g = a.g + c.offset;
	const float *w = a.w + c.offset;
	double sum = 0;

	for (uint32_t i = threadIdx.x; i < c.count; i += blockDim.x) {
		float v = g[i];

		if (t.l1 != 0.0f || t.l2 != 0.0f) {
			float sign = (float)(w[i] > 0.0f) - (float)(w[i] < 0.0f);

			v += t.l1 * sign + 2.0f * t.l2 * w[i];
			g[i] = v;
		}
		sum += (double)v * v;
	}
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		a.partial[blockIdx.x] = sum;
}

/* partial = l1 sum |w| + l2 sum w^2 */
KERNEL_SYNC(optimizer_penalty, struct update_args)
{
	const struct param_chunk c = a.chunk[blockIdx.x];
	const struct param_tensor t = a.tensor[c.tensor];
	const float *w = a.w + c.offset;
	double l1 = 0, l2 = 0, sum;

	for (uint32_t i = threadIdx.x; (t.l1 != 0.0f || t.l2 != 0.0f) && i < c.count;
	     i += blockDim.x) {
		l1 += fabs((double)w[i]);
		l2 += (double)w[i] * w[i];
	}
	sum = block_sum(t.l1 * l1 + t.l2 * l2);
	if (threadIdx.x == 0)
		a.partial[blockIdx.x] = sum;
}

/* A block per tensor. */
KERNEL_SYNC(optimizer_norms, struct update_args)
{
	const struct param_tensor t = a.tensor[blockIdx.x];
	double sum = 0;

	for (uint32_t i = threadIdx.x; i < t.chunks; i += blockDim.x)
		sum += a.partial[t.first + i];
	sum = block_sum(sum);
	if (threadIdx.x == 0)
		a.norm2[blockIdx.x] = sum;
}

DEVICE double all_norms(const struct update_args &a)
{
	double sum = 0;

	for (uint32_t i = threadIdx.x; i < a.tensors; i += blockDim.x)
		sum += a.norm2[i];
	return block_sum(sum);
}

/* One block: penalty. */
KERNEL_SYNC(optimizer_penalty_finish, struct update_args)
{
	double sum = all_norms(a);

	if (threadIdx.x == 0)
		a.result->penalty = sum;
}

/* One block: is the gradient finite, and every tensor's factor (update_clip of kernels/update.c).
 */
KERNEL_SYNC(optimizer_finish, struct update_args)
{
	double global = all_norms(a);

	if (threadIdx.x == 0) {
		a.result->norm2 = global;
		a.result->finite = isfinite(global);
	}
	for (uint32_t i = threadIdx.x; i < a.tensors; i += blockDim.x) {
		double limit = a.o.clipnorm, norm = sqrt(a.norm2[i]);

		if (a.o.global_clipnorm > 0.0f) {
			limit = a.o.global_clipnorm;
			norm = sqrt(global);
		}
		a.factor[i] = limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
	}
}

/* What one element needs; slots as kernels/net.c names them. */
struct element {
	float lr, alpha, decay; /* decay: 0 where the tensor has none */
	float d;		/* clipped gradient */
	float w;
	float s[3];
};

DEVICE void adam(const struct optimizer &o, struct element *e)
{
	float hat;

	e->s[0] += (e->d - e->s[0]) * (1.0f - o.beta1);
	e->s[1] += (e->d * e->d - e->s[1]) * (1.0f - o.beta2);
	hat = e->s[1];
	if (o.amsgrad) {
		e->s[2] = hat > e->s[2] ? hat : e->s[2];
		hat = e->s[2];
	}
	e->w = e->w - e->w * e->decay - e->s[0] * e->alpha / (sqrtf(hat) + o.epsilon);
}

/* Slots: velocity, [momentum], [average gradient]. */
DEVICE void rmsprop(const struct optimizer &o, struct element *e)
{
	const int average = o.momentum > 0.0f ? 2 : 1;
	float x = e->w - e->w * e->decay, scale, step;

	e->s[0] = o.rho * e->s[0] + (1.0f - o.rho) * (e->d * e->d);
	scale = e->s[0];
	if (o.centered) {
		e->s[average] = o.rho * e->s[average] + (1.0f - o.rho) * e->d;
		scale -= e->s[average] * e->s[average];
	}
	step = e->lr * e->d / sqrtf(scale + o.epsilon);
	if (o.momentum > 0.0f) {
		e->s[1] = o.momentum * e->s[1] + step;
		step = e->s[1];
	}
	e->w = x - step;
}

DEVICE void adadelta(const struct optimizer &o, struct element *e)
{
	float x = e->w - e->w * e->decay, delta;

	e->s[0] = o.rho * e->s[0] + (1.0f - o.rho) * (e->d * e->d);
	delta = -(sqrtf(e->s[1] + o.epsilon) * e->d / sqrtf(e->s[0] + o.epsilon));
	e->s[1] = o.rho * e->s[1] + (1.0f - o.rho) * (delta * delta);
	e->w = x + e->lr * delta;
}

DEVICE void sgd(const struct optimizer &o, struct element *e)
{
	float v = e->w - e->w * e->decay;

	if (o.momentum == 0.0f) {
		e->w = v - e->lr * e->d;
		return;
	}
	e->s[0] = o.momentum * e->s[0] - e->lr * e->d;
	e->w = v + (o.nesterov ? o.momentum * e->s[0] - e->lr * e->d : e->s[0]);
}

DEVICE void update_element(const struct optimizer &o, struct element *e)
{
	switch (o.kind) {
	case BACKEND_SGD:
		sgd(o, e);
		break;
	case BACKEND_ADAM:
	case BACKEND_ADAMW:
		adam(o, e);
		break;
	case BACKEND_RMSPROP:
		rmsprop(o, e);
		break;
	case BACKEND_ADAGRAD: {
		float x = e->w - e->w * e->decay;

		e->s[0] += e->d * e->d;
		e->w = x - e->lr * e->d / sqrtf(e->s[0] + o.epsilon);
		break;
	}
	default:
		adadelta(o, e);
		break;
	}
}

KERNEL(optimizer_arena, struct update_args)
{
	const struct param_chunk c = a.chunk[blockIdx.x];
	const struct param_tensor t = a.tensor[c.tensor];
	const float factor = a.factor[c.tensor];
	const float clip = a.o.clipvalue > 0.0f ? a.o.clipvalue : INFINITY;

	if (!a.result->finite)
		return;
	for (uint32_t i = threadIdx.x; i < c.count; i += blockDim.x) {
		const uint64_t at = c.offset + i;
		float d = a.g[at] * factor;
		struct element e;

		e.lr = a.block->lr;
		e.alpha = a.block->alpha;
		e.decay = t.decay ? a.block->decay : 0.0f;
		e.d = d > clip ? clip : d < -clip ? -clip : d;
		e.w = a.w[at];
		for (int s = 0; s < 3; s++)
			e.s[s] = a.slot[s] ? a.slot[s][at] : 0.0f;
		update_element(a.o, &e);
		a.w[at] = e.w;
		for (int s = 0; s < 3; s++)
			if (a.slot[s])
				a.slot[s][at] = e.s[s];
	}
}
