/* SPDX-License-Identifier: MIT */
/*
 * step.c: gradient, apply, step, evaluate: the block for the device, the sequence of calls, the
 * wait for its end, the dynamic loss scale. A call returns when the device is done.
 */
#include <math.h>
#include <string.h>

#include "../update.h"
#include "cuda.h"

#define SCALE_MAX 16777216.0f
#define SCALE_STEPS 2000u

enum call_kind { CALL_GRADIENT = 1, CALL_APPLY, CALL_STEP, CALL_EVALUATE, CALL_PENALTY };

struct call {
	struct pass pass;
	enum call_kind kind;
	bool segmented;
	backend_bucket_fn on_bucket;
	void *context;
};

/* ---- what a call enqueues -------------------------------------------------------------------- */

static int send_block(const struct call *c)
{
	struct cuda_net *net = c->pass.net;

	return cuda_failed(net->gpu,
			   cudaMemcpyAsync(net->device_block, net->block, sizeof(*net->block),
					   cudaMemcpyHostToDevice, net->stream),
			   "the block of a step", c->pass.error);
}

static int fetch_result(const struct call *c)
{
	struct cuda_net *net = c->pass.net;
	uint64_t bytes = c->pass.shape ? c->pass.shape->n * net->base.outputs * sizeof(float) : 0;
	int rc = cudaMemcpyAsync(net->result, net->device_result, sizeof(*net->result),
				 cudaMemcpyDeviceToHost, net->stream);

	if (!rc && c->pass.outputs)
		rc = cudaMemcpyAsync(net->host_outputs, net->outputs, bytes, cudaMemcpyDeviceToHost,
				     net->stream);
	return cuda_failed(net->gpu, rc, "the result of a step", c->pass.error);
}

/* Backward groups of segment k: down to where its bucket is final, the last one to the end. */
static int backward_segment(const struct call *c, uint32_t k)
{
	const struct plan *plan = &c->pass.net->plan;
	uint32_t begin = plan->n_groups, end = 0; /* groups [end, begin) */

	if (c->segmented && k > 0)
		begin = plan->bucket[k - 1].after;
	if (c->segmented && k + 1 < plan->n_buckets)
		end = plan->bucket[k].after;
	return begin > end ? exec_backward(&c->pass, begin - 1, end) : 0;
}

static int gradient_segment(const struct call *c, uint32_t k)
{
	int rc = 0;

	if (k == 0) {
		rc = send_block(c);
		if (!rc)
			rc = exec_clear(&c->pass);
		if (!rc)
			rc = exec_forward(&c->pass);
		if (!rc)
			rc = exec_loss(&c->pass, true);
		if (!rc && c->kind == CALL_GRADIENT)
			rc = fetch_result(c);
	}
	return rc ? rc : backward_segment(c, k);
}

static int segment(void *context, uint32_t k)
{
	const struct call *c = context;
	struct cuda_net *net = c->pass.net;
	int rc;

	switch (c->kind) {
	case CALL_GRADIENT:
		return gradient_segment(c, k);
	case CALL_STEP:
		rc = gradient_segment(c, k);
		if (!rc)
			rc = exec_update(&c->pass);
		break;
	case CALL_APPLY:
		rc = send_block(c);
		if (!rc)
			rc = exec_update(&c->pass);
		break;
	case CALL_PENALTY:
		rc = cuda_failed(net->gpu, launch_penalty(net->stream, &net->update), "penalty",
				 c->pass.error);
		break;
	default:
		rc = send_block(c);
		if (!rc)
			rc = exec_forward(&c->pass);
		if (!rc)
			rc = exec_loss(&c->pass, false);
		break;
	}
	return rc ? rc : fetch_result(c);
}

/* The bucket of segment k is final once the event comes. */
static int tell_bucket(void *context, uint32_t k)
{
	const struct call *c = context;
	struct cuda_net *net = c->pass.net;
	const struct bucket *b;
	int rc;

	if (!c->segmented || k >= net->plan.n_buckets)
		return 0;
	b = &net->plan.bucket[k];
	rc = cudaEventRecord(net->bucket_ready[k], net->stream);
	if (rc)
		return cuda_failed(net->gpu, rc, "a bucket of gradients", c->pass.error);
	rc = c->on_bucket(c->context, b->offset, b->length, net->bucket_ready[k]);
	return rc ? backend_fail(c->pass.error, rc, "the gradient was not taken") : 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int make_ready(struct cuda_net *net, struct backend_error *error)
{
	int rc = cuda_enter(net->gpu, error);

	if (!rc)
		rc = cudnn_failed(net->gpu, cudnnSetStream(net->gpu->dnn, net->stream),
				  "cudnnSetStream", error);
	if (!rc && net->stale) {
		rc = exec_pack(net, &net->own, error);
		net->stale = rc != 0;
	}
	return rc;
}

/* Waits for all that was enqueued; the next batch travels meanwhile. */
static int finish(struct cuda_net *net, const struct backend_batch *next,
		  struct backend_error *error)
{
	int rc = cuda_failed(net->gpu, cudaEventRecord(net->done, net->stream), "end of a step",
			     error);
	int ahead = rc ? 0 : stage_ahead(net, next, error);

	if (!rc)
		rc = cuda_wait(net->gpu, net->done, "a step", error);
	return rc ? rc : ahead;
}

static int run(struct call *c, const struct backend_batch *next)
{
	struct cuda_net *net = c->pass.net;
	struct sequence q = {segment, c->on_bucket ? tell_bucket : NULL, c, 1};
	struct key key;
	int rc;

	memset(&key, 0, sizeof(key));
	key.kind = c->kind;
	key.flags = (c->pass.accumulate ? KEY_ACCUMULATE : 0) |
		    (c->pass.outputs ? KEY_OUTPUTS : 0) | (c->segmented ? KEY_BUCKETS : 0) |
		    (c->pass.w.param != net->own.param ? KEY_OTHER : 0);
	key.loss_scale = net->loss_scale;
	if (c->segmented)
		q.n = net->plan.n_buckets;
	rc = record_run(net, c->pass.shape, &key, &q, c->pass.error);
	if (rc) {
		/* what was enqueued must not meet the next call */
		if (!net->gpu->lost)
			finish(net, NULL, NULL);
		return rc;
	}
	return finish(net, next, c->pass.error);
}

/* The block of a batch; its rows are on their way. */
static int begin(struct call *c, const struct backend_batch *batch, bool want, float scale)
{
	struct cuda_net *net = c->pass.net;
	struct slot *slot;
	int rc = make_ready(net, c->pass.error);

	if (!rc)
		rc = shape_get(net, batch->n, &c->pass.shape, c->pass.error);
	if (!rc)
		rc = stage_batch(net, batch, want, &slot, c->pass.error);
	if (rc)
		return rc;
	*net->block = slot->block;
	net->block->seed = batch->seed;
	net->block->step = batch->step;
	net->block->position = batch->position;
	net->block->epoch = batch->epoch;
	net->block->n = batch->n;
	net->block->scale = scale * net->loss_scale;
	net->block->unscale = 1.0f / net->loss_scale;
	return 0;
}

static void block_update(struct cuda_net *net, double lr, uint64_t t)
{
	struct update u;

	update_prepare(&u, &net->base.options.optimizer, lr, t);
	net->block->lr = u.lr;
	net->block->alpha = u.alpha;
	net->block->decay = u.decay_lr;
}

static void take_sums(const struct cuda_net *net, uint32_t n, struct backend_sums *sums)
{
	*sums = (struct backend_sums){n, net->result->weight, net->result->loss};
}

static void take_applied(struct cuda_net *net, struct backend_applied *applied)
{
	*applied = (struct backend_applied){net->result->finite, sqrt(net->result->norm2)};
	if (net->gpu->base.options.precision != BACKEND_PRECISION_F16)
		return;
	if (!applied->finite) {
		net->loss_scale = net->loss_scale > 1.0f ? net->loss_scale / 2 : 1.0f;
		net->good_steps = 0;
	} else if (++net->good_steps == SCALE_STEPS) {
		if (net->loss_scale < SCALE_MAX)
			net->loss_scale *= 2;
		net->good_steps = 0;
	}
}

static void take_outputs(const struct cuda_net *net, uint32_t n, float *outputs)
{
	if (outputs)
		memcpy(outputs, net->host_outputs, n * net->base.outputs * sizeof(float));
}

/* No rows: the gradient is zero, or what it was; everyone is told of it all the same. */
static int gradient_of_nothing(struct call *c)
{
	struct cuda_net *net = c->pass.net;
	int rc = make_ready(net, c->pass.error);

	if (!rc && !c->pass.accumulate && net->base.graph.param_floats)
		rc = cuda_failed(net->gpu,
				 cudaMemsetAsync(net->arena[BACKEND_GRAD], 0,
						 net->base.graph.param_floats * sizeof(float),
						 net->stream),
				 "clearing the gradient", c->pass.error);
	for (uint32_t k = 0; c->on_bucket && k < net->plan.n_buckets && !rc; k++)
		rc = tell_bucket(c, k);
	if (rc)
		return rc;
	return finish(net, NULL, c->pass.error);
}

static struct call call_of(struct backend_net *base, enum call_kind kind, bool outputs,
			   struct backend_error *error)
{
	struct cuda_net *net = (struct cuda_net *)base;

	return (struct call){.pass = {.net = net,
				      .w = net->own,
				      .training = true,
				      .outputs = outputs,
				      .error = error},
			     .kind = kind};
}

int cuda_gradient(struct backend_net *base, const struct backend_batch *batch, float scale,
		  bool accumulate, backend_bucket_fn on_bucket, void *context,
		  struct backend_sums *sums, float *outputs, struct backend_error *error)
{
	struct call c = call_of(base, CALL_GRADIENT, outputs != NULL, error);
	int rc;

	c.pass.accumulate = accumulate;
	c.on_bucket = on_bucket;
	c.context = context;
	c.segmented = on_bucket && c.pass.net->plan.n_buckets > 0;
	if (!batch->n) {
		*sums = (struct backend_sums){0};
		return gradient_of_nothing(&c);
	}
	rc = begin(&c, batch, true, scale);
	if (!rc)
		rc = run(&c, batch->next);
	if (rc)
		return rc;
	take_sums(c.pass.net, batch->n, sums);
	take_outputs(c.pass.net, batch->n, outputs);
	return 0;
}

int cuda_apply(struct backend_net *base, double lr, uint64_t t, struct backend_applied *applied,
	       struct backend_error *error)
{
	struct call c = call_of(base, CALL_APPLY, false, error);
	struct cuda_net *net = c.pass.net;
	int rc = make_ready(net, error);

	c.pass.shape = net->no_rows;
	memset(net->block, 0, sizeof(*net->block));
	net->block->unscale = 1.0f;
	block_update(net, lr, t);
	if (!rc)
		rc = run(&c, NULL);
	if (rc)
		return rc;
	take_applied(net, applied);
	return 0;
}

int cuda_step(struct backend_net *base, const struct backend_batch *batch, float scale, double lr,
	      uint64_t t, struct backend_sums *sums, float *outputs,
	      struct backend_applied *applied, struct backend_error *error)
{
	struct call c = call_of(base, CALL_STEP, outputs != NULL, error);
	struct cuda_net *net = c.pass.net;
	int rc;

	if (!batch->n) {
		rc = cuda_gradient(base, batch, scale, false, NULL, NULL, sums, outputs, error);
		return rc ? rc : cuda_apply(base, lr, t, applied, error);
	}
	rc = begin(&c, batch, true, scale);
	if (rc)
		return rc;
	block_update(net, lr, t);
	rc = run(&c, batch->next);
	if (rc)
		return rc;
	take_sums(net, batch->n, sums);
	take_outputs(net, batch->n, outputs);
	take_applied(net, applied);
	return 0;
}

/* Parameters and statistics of the caller to their place on the device. */
static int use_other(struct cuda_net *net, const float *param, const float *stat,
		     struct backend_error *error)
{
	const struct backend_graph *graph = &net->base.graph;
	int rc = cuda_upload(net, (void *)net->other.param, param,
			     param ? graph->param_floats * sizeof(float) : 0, error);

	if (!rc)
		rc = cuda_upload(net, net->other.stat, stat,
				 stat ? graph->stat_floats * sizeof(float) : 0, error);
	return rc ? rc : exec_pack(net, &net->other, error);
}

int cuda_evaluate(struct backend_net *base, const float *param, const float *stat,
		  const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		  struct backend_error *error)
{
	struct call c = call_of(base, CALL_EVALUATE, outputs != NULL, error);
	struct cuda_net *net = c.pass.net;
	int rc;

	if (!batch->n) {
		if (sums)
			*sums = (struct backend_sums){0};
		return 0;
	}
	c.pass.training = false;
	rc = make_ready(net, error);
	if (!rc && (param || stat)) {
		rc = use_other(net, param, stat, error);
		c.pass.w = net->other;
	}
	if (!rc)
		rc = begin(&c, batch, sums != NULL, 0.0f);
	if (!rc)
		rc = run(&c, batch->next);
	if (rc)
		return rc;
	if (sums)
		take_sums(net, batch->n, sums);
	take_outputs(net, batch->n, outputs);
	return 0;
}

double cuda_penalty(struct backend_net *base)
{
	struct call c = call_of(base, CALL_PENALTY, false, NULL);

	if (base->options.inference)
		return 0; /* nothing is trained */
	c.pass.shape = c.pass.net->no_rows;
	return make_ready(c.pass.net, NULL) || run(&c, NULL) ? NAN : c.pass.net->result->penalty;
}
