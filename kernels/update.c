/* SPDX-License-Identifier: MIT */
/*
 * update.c: optimizers of Keras 3, element by element on f32 ranges. One line of maths each; d is
 * the decoupled decay lr * weight_decay, taken from w before the update.
 *
 * sgd:	     v = mu v - lr g;  w += v;	nesterov: w += mu v - lr g;  mu = 0: w -= lr g
 * adam:     m += (g - m)(1 - b1);  v += (g^2 - v)(1 - b2);  w -= alpha m / (sqrt(v) + eps)
 *	     alpha = lr sqrt(1 - b2^t) / (1 - b1^t);  amsgrad: v^ = max(v^, v) in place of v
 * rmsprop:  v = rho v + (1 - rho) g^2;	 centered: a = rho a + (1 - rho) g, v - a^2 in place of v
 *	     i = lr g / sqrt(v + eps);	momentum: m = mu m + i, w -= m;	 else w -= i
 * adagrad:  a += g^2;	w -= lr g / sqrt(a + eps)
 * adadelta: a = rho a + (1 - rho) g^2;	 d = -sqrt(b + eps) / sqrt(a + eps) g
 *	     b = rho b + (1 - rho) d^2;	 w += lr d
 */
#include <math.h>

#include "update.h"

/* One copy per instruction set, chosen when the program is loaded. The sanitizers run resolvers
 * too early, so not there. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
	!defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

void update_prepare(struct update *u, const struct backend_optimizer_config *config, double lr,
		    uint64_t t)
{
	double b1 = config->beta1, b2 = config->beta2;

	u->config = *config;
	u->lr = (float)lr;
	u->decay_lr = (float)lr * config->weight_decay;
	u->alpha = 0.0f;
	if (config->kind == BACKEND_ADAM || config->kind == BACKEND_ADAMW)
		u->alpha =
			(float)(lr * sqrt(1.0 - pow(b2, (double)t)) / (1.0 - pow(b1, (double)t)));
}

/* ---- gradient ---------------------------------------------------------------------------- */

CLONES static void add_penalty(float l1, float l2, const float *restrict w, float *restrict g,
			       uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		float sign = (float)(w[i] > 0.0f) - (float)(w[i] < 0.0f);

		g[i] += l1 * sign + 2.0f * l2 * w[i];
	}
}

/* Eight partial sums, so that the loop is vectorised without reordering by the compiler. */
CLONES static double sum_squares(const float *g, uint64_t n)
{
	double part[8] = {0};
	uint64_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (int k = 0; k < 8; k++)
			part[k] += (double)g[i + k] * g[i + k];
	for (; i < n; i++)
		part[i % 8] += (double)g[i] * g[i];
	return ((part[0] + part[4]) + (part[1] + part[5])) +
	       ((part[2] + part[6]) + (part[3] + part[7]));
}

double update_gather(const struct backend_tensor *tensor, const float *w, float *g, uint64_t n)
{
	if (tensor->l1 != 0.0f || tensor->l2 != 0.0f)
		add_penalty(tensor->l1, tensor->l2, w, g, n);
	return sum_squares(g, n);
}

float update_clip(const struct update *u, double tensor_norm2, double global_norm2)
{
	double limit = u->config.clipnorm, norm = sqrt(tensor_norm2);

	if (u->config.global_clipnorm > 0.0f) {
		limit = u->config.global_clipnorm;
		norm = sqrt(global_norm2);
	}
	return limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
}

/* ---- updates ----------------------------------------------------------------------------- */

/* What every kernel knows; restrict pointers let the loops vectorise. */
struct span {
	float lr, alpha, decay; /* decay: 0 where the tensor has none */
	float factor, clip;	/* clip: INFINITY for none */
	uint64_t n;
};

static inline float clipped(const struct span *s, float g)
{
	g *= s->factor;
	return g > s->clip ? s->clip : g < -s->clip ? -s->clip : g;
}

CLONES static void update_sgd(const struct span *s, float *restrict w, const float *restrict g)
{
	const struct span p = *s;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]), v = w[i] - w[i] * p.decay;

		w[i] = v - p.lr * d;
	}
}

CLONES static void update_momentum(const struct span *s, float mu, bool nesterov, float *restrict w,
				   const float *restrict g, float *restrict m)
{
	const struct span p = *s;
	/* w += a m + b lr g with (a, b) = (1, 0) or, Nesterov, (mu, -1) */
	const float a = nesterov ? mu : 1.0f, b = nesterov ? p.lr : 0.0f;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]), v = w[i] - w[i] * p.decay;
		float next = mu * m[i] - p.lr * d;

		m[i] = next;
		w[i] = v + (a * next - b * d);
	}
}

CLONES static void update_adam(const struct span *s, float b1, float b2, float epsilon,
			       float *restrict w, const float *restrict g, float *restrict m,
			       float *restrict v)
{
	const struct span p = *s;
	const float c1 = 1.0f - b1, c2 = 1.0f - b2;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]);

		m[i] += (d - m[i]) * c1;
		v[i] += (d * d - v[i]) * c2;
		w[i] = w[i] - w[i] * p.decay - m[i] * p.alpha / (sqrtf(v[i]) + epsilon);
	}
}

CLONES static void update_amsgrad(const struct span *s, float b1, float b2, float epsilon,
				  float *restrict w, const float *restrict g, float *restrict m,
				  float *restrict v, float *restrict hat)
{
	const struct span p = *s;
	const float c1 = 1.0f - b1, c2 = 1.0f - b2;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]);

		m[i] += (d - m[i]) * c1;
		v[i] += (d * d - v[i]) * c2;
		hat[i] = v[i] > hat[i] ? v[i] : hat[i];
		w[i] = w[i] - w[i] * p.decay - m[i] * p.alpha / (sqrtf(hat[i]) + epsilon);
	}
}

/* The four forms of RMSprop: m, a may be NULL. */
CLONES static void update_rmsprop(const struct span *s, float mu, float rho, float epsilon,
				  float *restrict w, const float *restrict g, float *restrict v,
				  float *restrict m, float *restrict a)
{
	const struct span p = *s;
	const float keep = 1.0f - rho;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]), x = w[i] - w[i] * p.decay, scale, step;

		v[i] = rho * v[i] + keep * (d * d);
		scale = v[i];
		if (a) {
			a[i] = rho * a[i] + keep * d;
			scale -= a[i] * a[i];
		}
		step = p.lr * d / sqrtf(scale + epsilon);
		if (m) {
			m[i] = mu * m[i] + step;
			step = m[i];
		}
		w[i] = x - step;
	}
}

CLONES static void update_adagrad(const struct span *s, float epsilon, float *restrict w,
				  const float *restrict g, float *restrict a)
{
	const struct span p = *s;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]), x = w[i] - w[i] * p.decay;

		a[i] += d * d;
		w[i] = x - p.lr * d / sqrtf(a[i] + epsilon);
	}
}

CLONES static void update_adadelta(const struct span *s, float rho, float epsilon,
				   float *restrict w, const float *restrict g, float *restrict a,
				   float *restrict b)
{
	const struct span p = *s;
	const float keep = 1.0f - rho;

	for (uint64_t i = 0; i < p.n; i++) {
		float d = clipped(&p, g[i]), x = w[i] - w[i] * p.decay, delta;

		a[i] = rho * a[i] + keep * (d * d);
		delta = -(sqrtf(b[i] + epsilon) * d / sqrtf(a[i] + epsilon));
		b[i] = rho * b[i] + keep * (delta * delta);
		w[i] = x + p.lr * delta;
	}
}

void update_range(const struct update *u, const struct backend_tensor *tensor, float factor,
		  float *w, const float *g, float *const slot[BACKEND_SLOTS_MAX], uint64_t n)
{
	const struct backend_optimizer_config *o = &u->config;
	const struct span s = {
		.lr = u->lr,
		.alpha = u->alpha,
		.decay = tensor->decay ? u->decay_lr : 0.0f,
		.factor = factor,
		.clip = o->clipvalue > 0.0f ? o->clipvalue : INFINITY,
		.n = n,
	};
	float *mom;

	switch (o->kind) {
	case BACKEND_SGD:
		if (o->momentum > 0.0f)
			update_momentum(&s, o->momentum, o->nesterov, w, g, slot[0]);
		else
			update_sgd(&s, w, g);
		break;
	case BACKEND_ADAM:
	case BACKEND_ADAMW:
		if (o->amsgrad)
			update_amsgrad(&s, o->beta1, o->beta2, o->epsilon, w, g, slot[0], slot[1],
				       slot[2]);
		else
			update_adam(&s, o->beta1, o->beta2, o->epsilon, w, g, slot[0], slot[1]);
		break;
	case BACKEND_RMSPROP: /* slots: velocity, [momentum], [average gradient] */
		mom = o->momentum > 0.0f ? slot[1] : NULL;
		update_rmsprop(&s, o->momentum, o->rho, o->epsilon, w, g, slot[0], mom,
			       !o->centered ? NULL
			       : mom	    ? slot[2]
					    : slot[1]);
		break;
	case BACKEND_ADAGRAD:
		update_adagrad(&s, o->epsilon, w, g, slot[0]);
		break;
	case BACKEND_ADADELTA:
		update_adadelta(&s, o->rho, o->epsilon, w, g, slot[0], slot[1]);
		break;
	default:
		break;
	}
}
