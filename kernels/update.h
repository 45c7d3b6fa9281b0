/* SPDX-License-Identifier: MIT */
/*
 * update.h: optimizer arithmetic on ranges of the arenas, shared by the CPU back ends. Ranges lie
 * within one tensor; threads may split a tensor at any element. Order of a whole update:
 * update_gather over all trainable tensors (Inf/NaN check, l1/l2, norms), update_clip,
 * update_range.
 */
#ifndef BACKEND_UPDATE_H
#define BACKEND_UPDATE_H

#include "ops.h"

/* The scalars of one update. */
struct update {
	struct backend_optimizer_config config;
	float lr;
	float alpha;	/* adam: lr * sqrt(1 - beta2^t) / (1 - beta1^t) */
	float decay_lr; /* lr of the decoupled decay, the same lr */
};
void update_prepare(struct update *u, const struct backend_optimizer_config *config, double lr,
		    uint64_t t);

/*
 * g += l1 * sign(w) + 2 * l2 * w over n elements; returns the sum of squares of the result in
 * double, which is finite exactly when every element is.
 */
double update_gather(const struct backend_tensor *tensor, const float *w, float *g, uint64_t n);

/*
 * Factor of the gradient of a tensor: clipnorm by the tensor's sum of squares, global_clipnorm by
 * the sum over all trainable tensors, else 1. clipvalue is done in update_range.
 */
float update_clip(const struct update *u, double tensor_norm2, double global_norm2);

/* One update of n elements. slot[i]: the same range of slot arena i. factor: of update_clip. */
void update_range(const struct update *u, const struct backend_tensor *tensor, float factor,
		  float *w, const float *g, float *const slot[BACKEND_SLOTS_MAX], uint64_t n);

#endif
