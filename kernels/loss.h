/* SPDX-License-Identifier: MIT */
/*
 * loss.h: loss and its gradient for one row of outputs, shared by the CPU back ends. Where loss
 * and output activation form a stable pair (or from_logits), the row handed in holds the logits of
 * node `plan.node`, and the activation of the output node is done here.
 */
#ifndef BACKEND_LOSS_H
#define BACKEND_LOSS_H

#include "backend.h"

struct loss_plan {
	enum backend_loss loss;
	float label_smoothing;
	/* activation that the loss applies: BACKEND_LINEAR, BACKEND_SOFTMAX or BACKEND_SIGMOID */
	enum backend_activation activation;
	uint32_t node;	  /* its values go into loss_row, its gradient comes out */
	bool skip_output; /* the output node itself (a softmax or sigmoid) need not be computed */
	uint32_t places;  /* h * w of the output */
	uint32_t c;	  /* last axis */
};

/* -EINVAL with a message where loss and output do not fit. */
int loss_plan(const struct backend_graph *graph, const struct backend_loss_config *config,
	      struct loss_plan *plan, struct backend_error *error);

/*
 * z: places * c values of plan->node (logits unless activation is linear). label: of the sparse
 * loss; target: places * c values of every other one; with neither (label < 0, target NULL) only
 * output is filled and 0 returned. output, gradient: places * c values, may be NULL; output may be
 * z. gradient = factor * dl/dz. Returns l, the loss of the sample.
 */
double loss_row(const struct loss_plan *plan, const double *z, int32_t label, const float *target,
		double factor, double *output, double *gradient);
/* The same for f32 rows; the arithmetic is done in double. */
double loss_row_f32(const struct loss_plan *plan, const float *z, int32_t label,
		    const float *target, double factor, float *output, float *gradient);

#endif
