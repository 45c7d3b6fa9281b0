/* SPDX-License-Identifier: MIT */
/*
 * conv_choose.c: which of cuDNN's algorithms a convolution uses. Deterministic nets take the first
 * deterministic one of cuDNN's own ranking; others have cuDNN try all of them once per shape, which
 * is remembered for the device. An algorithm must fit the workspace, and f32 never means TF32.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define RESULTS 16

/* All that the choice depends on. */
struct question {
	struct image in, out;
	struct window win;
	uint32_t n, groups, direction, precision, deterministic, fuse;
	uint64_t limit;
};
struct choice {
	struct question question;
	struct algorithm algorithm;
};

/* The three results of cuDNN have the same members. */
struct candidate {
	int algo;
	cudnnStatus_t status;
	cudnnDeterminism_t determinism;
	cudnnMathType_t math;
	size_t memory;
};

#define CANDIDATES(perf, n)                                                                       \
	for (int i = 0; i < (n); i++)                                                             \
		out[i] = (struct candidate)                                                       \
		{                                                                                 \
			(int)perf[i].algo, perf[i].status, perf[i].determinism, perf[i].mathType, \
				perf[i].memory                                                    \
		}

static cudnnStatus_t ranked(struct cuda_net *net, const struct conv *c, const struct conv_shape *s,
			    enum direction d, struct candidate out[RESULTS], int *n)
{
	union {
		cudnnConvolutionFwdAlgoPerf_t f[RESULTS];
		cudnnConvolutionBwdDataAlgoPerf_t d[RESULTS];
		cudnnConvolutionBwdFilterAlgoPerf_t w[RESULTS];
	} perf;
	cudnnHandle_t h = net->gpu->dnn;
	cudnnStatus_t rc;

	*n = 0;
	switch (d) {
	case FORWARD:
		rc = cudnnGetConvolutionForwardAlgorithm_v7(h, s->x, c->filter, c->conv, s->y,
							    RESULTS, n, perf.f);
		CANDIDATES(perf.f, rc ? 0 : *n);
		break;
	case DATA:
		rc = cudnnGetConvolutionBackwardDataAlgorithm_v7(h, c->filter, s->y, c->conv, s->x,
								 RESULTS, n, perf.d);
		CANDIDATES(perf.d, rc ? 0 : *n);
		break;
	default:
		rc = cudnnGetConvolutionBackwardFilterAlgorithm_v7(h, s->x, s->y, c->conv,
								   c->filter, RESULTS, n, perf.w);
		CANDIDATES(perf.w, rc ? 0 : *n);
		break;
	}
	return rc;
}

/* Runs them; x, y and their gradients hold nothing of value between two calls of a net. */
static cudnnStatus_t measured(struct cuda_net *net, uint32_t group, const struct shape *shape,
			      enum direction d, struct candidate out[RESULTS], int *n)
{
	const struct group *g = &net->plan.group[group];
	const struct backend_node *node = net_node(net, g->node);
	const struct conv *c = &net->conv[group];
	const struct conv_shape *s = &shape->conv[group];
	union {
		cudnnConvolutionFwdAlgoPerf_t f[RESULTS];
		cudnnConvolutionBwdDataAlgoPerf_t d[RESULTS];
		cudnnConvolutionBwdFilterAlgoPerf_t w[RESULTS];
	} perf;
	const void *w =
		(char *)net->own.packed + net->packed_at[node->tensor[0]] * net->plan.element;
	void *x = c->padded ? net->scratch : net_value(net, node->in[0]);
	void *dx = c->padded ? net->scratch : net_gradient(net, node->in[0]);
	void *dw = net->scratch + conv_padded_bytes(net, node, shape->n);
	void *y = net_value(net, g->pre ? g->node : g->last), *dy = net_gradient(net, g->last);
	cudnnHandle_t h = net->gpu->dnn;
	cudnnStatus_t rc;

	*n = 0;
	switch (d) {
	case FORWARD:
		rc = cudnnFindConvolutionForwardAlgorithmEx(h, s->x, x, c->filter, w, c->conv, s->y,
							    y, RESULTS, n, perf.f, net->workspace,
							    net->workspace_bytes);
		CANDIDATES(perf.f, rc ? 0 : *n);
		break;
	case DATA:
		rc = cudnnFindConvolutionBackwardDataAlgorithmEx(
			h, c->filter, w, s->y, dy, c->conv, s->x, dx, RESULTS, n, perf.d,
			net->workspace, net->workspace_bytes);
		CANDIDATES(perf.d, rc ? 0 : *n);
		break;
	default:
		rc = cudnnFindConvolutionBackwardFilterAlgorithmEx(
			h, s->x, x, s->y, dy, c->conv, c->filter, dw, RESULTS, n, perf.w,
			net->workspace, net->workspace_bytes);
		CANDIDATES(perf.w, rc ? 0 : *n);
		break;
	}
	return rc;
}

static cudnnStatus_t workspace_of(struct cuda_net *net, const struct conv *c,
				  const struct conv_shape *s, enum direction d, int algo,
				  size_t *bytes)
{
	cudnnHandle_t h = net->gpu->dnn;

	switch (d) {
	case FORWARD:
		return cudnnGetConvolutionForwardWorkspaceSize(
			h, s->x, c->filter, c->conv, s->y, (cudnnConvolutionFwdAlgo_t)algo, bytes);
	case DATA:
		return cudnnGetConvolutionBackwardDataWorkspaceSize(
			h, c->filter, s->y, c->conv, s->x, (cudnnConvolutionBwdDataAlgo_t)algo,
			bytes);
	default:
		return cudnnGetConvolutionBackwardFilterWorkspaceSize(
			h, s->x, s->y, c->conv, c->filter, (cudnnConvolutionBwdFilterAlgo_t)algo,
			bytes);
	}
}

/* The first candidate that may be used. */
static int pick(struct cuda_net *net, const struct conv *c, const struct conv_shape *s,
		enum direction d, const struct candidate *list, int n, struct algorithm *out,
		struct backend_error *error)
{
	bool f32 = net->gpu->base.options.precision == BACKEND_PRECISION_F32;

	for (int i = 0; i < n; i++) {
		cudnnMathType_t math = f32 ? CUDNN_FMA_MATH : list[i].math;
		size_t bytes = 0;
		cudnnStatus_t rc;

		if (list[i].status || list[i].memory > net->workspace_limit)
			continue;
		if (net->base.options.deterministic && list[i].determinism != CUDNN_DETERMINISTIC)
			continue;
		if (f32 && list[i].math != CUDNN_FMA_MATH && list[i].math != CUDNN_DEFAULT_MATH)
			continue;
		rc = cudnnSetConvolutionMathType(c->conv, math);
		if (rc)
			return cudnn_failed(net->gpu, rc, "cudnnSetConvolutionMathType", error);
		rc = workspace_of(net, c, s, d, list[i].algo, &bytes);
		if (rc || bytes > net->workspace_limit)
			continue;
		*out = (struct algorithm){
			.ok = true, .algo = list[i].algo, .math = math, .workspace = bytes};
		return 0;
	}
	return 0;
}

/* cuDNN fuses the identity with one algorithm only. */
static bool may_fuse(const struct cuda_net *net, const struct group *g, int algo)
{
	if (net->gpu->base.options.flags & BACKEND_NO_FUSION ||
	    net_node(net, g->node)->tensor[1] < 0)
		return false;
	if (g->act == NONE)
		return algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
	return plan_is_relu(net_node(net, g->act)) && !g->pre;
}

static struct question question_of(const struct cuda_net *net, uint32_t group, uint32_t n,
				   enum direction d)
{
	const struct backend_node *node = net_node(net, net->plan.group[group].node);
	struct question q;

	memset(&q, 0, sizeof(q)); /* compared as bytes */
	q.in = net->conv[group].in;
	q.out = image_of(node->out);
	q.win = window_of(node);
	if (net->conv[group].padded)
		q.win.pt = q.win.pl = 0;
	q.n = n;
	q.groups = node->groups;
	q.direction = d;
	q.precision = net->gpu->base.options.precision;
	q.deterministic = net->base.options.deterministic;
	q.limit = net->workspace_limit;
	return q;
}

static const struct algorithm *known(const struct cuda_backend *gpu, const struct question *q)
{
	for (uint32_t i = 0; i < gpu->n_choices; i++)
		if (!memcmp(&gpu->choice[i].question, q, sizeof(*q)))
			return &gpu->choice[i].algorithm;
	return NULL;
}

/* One that does not fit into memory is only not remembered. */
static void remember(struct cuda_backend *gpu, const struct question *q, const struct algorithm *a)
{
	struct choice *more;

	if (gpu->n_choices >= 4096)
		return;
	if ((gpu->n_choices & (gpu->n_choices - 1)) == 0) {
		more = realloc(gpu->choice,
			       2 * (size_t)(gpu->n_choices ? gpu->n_choices : 1) * sizeof(*more));
		if (!more)
			return;
		gpu->choice = more;
	}
	gpu->choice[gpu->n_choices++] = (struct choice){*q, *a};
}

int conv_choose(struct cuda_net *net, struct shape *shape, uint32_t group,
		struct backend_error *error)
{
	const struct group *g = &net->plan.group[group];
	struct conv_shape *s = &shape->conv[group];
	bool measure = !net->base.options.deterministic && net->memory;

	for (enum direction d = FORWARD; d < DIRECTIONS; d++) {
		struct question q = question_of(net, group, shape->n, d);
		const struct algorithm *before =
			measure || net->base.options.deterministic ? known(net->gpu, &q) : NULL;
		struct candidate list[RESULTS];
		struct algorithm *a = &s->algorithm[d];
		int n = 0, rc;

		if (d != FORWARD && (!net->plan.training || !g->backward))
			break;
		if (d == DATA && !net->plan.edge[g->first_edge].want)
			continue;
		if (before) {
			*a = *before;
		} else {
			const struct conv *c = &net->conv[group];
			cudnnStatus_t st = cudnnSetConvolutionMathType(c->conv, c->math);

			if (!st)
				st = measure ? measured(net, group, shape, d, list, &n)
					     : ranked(net, c, s, d, list, &n);
			if (st && (int)st / 1000 != CUDNN_STATUS_NOT_SUPPORTED / 1000)
				return cudnn_failed(net->gpu, st, "choice of an algorithm", error);
			rc = pick(net, &net->conv[group], s, d, list, n, a, error);
			if (rc)
				return rc;
			if (measure || net->base.options.deterministic)
				remember(net->gpu, &q, a);
		}
		if (d == FORWARD)
			a->fused = a->ok && may_fuse(net, g, a->algo);
	}
	return 0;
}
