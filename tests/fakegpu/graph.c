// SPDX-License-Identifier: MIT
/*
 * graph.c: capture and graphs. A graph is the list of what was captured, in the order of the calls,
 * which is one of its topological orders; arguments are those of the time of capture.
 */
#define _GNU_SOURCE
#include "exec.h"

#include <stdlib.h>
#include <string.h>

static LIST_HEAD(, CUgraphExec_st) execs = LIST_HEAD_INITIALIZER(execs);

static struct fake_op *copy_op(const struct fake_op *from)
{
	struct fake_op *op = malloc(sizeof(*op) + from->bytes);

	if (!op)
		abort();
	memcpy(op, from, sizeof(*op) + from->bytes);
	return op;
}

static void free_ops(struct fake_ops *ops)
{
	struct fake_op *op;

	while ((op = TAILQ_FIRST(ops))) {
		TAILQ_REMOVE(ops, op, link);
		free(op);
	}
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	struct CUgraph_st *g = calloc(1, sizeof(*g));
	cudaError_t rc = cudaSuccess;

	if (!g)
		return cudaErrorMemoryAllocation;
	if (mode != cudaStreamCaptureModeThreadLocal)
		fake_violation("%s: mode %d", __func__, (int)mode);
	TAILQ_INIT(&g->ops);
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (s->capture) {
		rc = cudaErrorIllegalState;
	} else {
		g->device = s->device;
		g->origin = s;
		s->capture = g;
		s->capturer = pthread_self();
		exec_captures(1);
		fake.live[FAKE_GRAPHS]++;
		g = NULL;
	}
	pthread_mutex_unlock(&fake.lock);
	free(g);
	return rc;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
	struct CUstream_st *other;
	struct CUgraph_st *g;
	bool broken;

	*out = NULL;
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__) || !s->capture || s->capture->origin != s) {
		pthread_mutex_unlock(&fake.lock);
		return cudaErrorIllegalState;
	}
	if (!pthread_equal(s->capturer, pthread_self()))
		fake_violation("%s: on another thread than the capture began", __func__);
	g = s->capture;
	LIST_FOREACH (other, &exec_streams, link)
		if (other->capture == g)
			other->capture = NULL;
	exec_captures(-1);
	broken = g->broken;
	if (broken)
		fake.live[FAKE_GRAPHS]--;
	pthread_mutex_unlock(&fake.lock);
	if (broken) {
		free_ops(&g->ops);
		free(g);
		return cudaErrorStreamCaptureInvalidated;
	}
	*out = g;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
	struct CUgraphExec_st *x;
	struct fake_op *op;

	if (!g || flags)
		return cudaErrorInvalidValue;
	if (fake_fault(__func__))
		return cudaErrorMemoryAllocation;
	x = calloc(1, sizeof(*x));
	if (!x)
		return cudaErrorMemoryAllocation;
	TAILQ_INIT(&x->ops);
	x->device = g->device;
	TAILQ_FOREACH (op, &g->ops, link) {
		struct fake_op *copy = copy_op(op);

		TAILQ_INSERT_TAIL(&x->ops, copy, link);
	}
	pthread_mutex_lock(&fake.lock);
	LIST_INSERT_HEAD(&execs, x, link);
	fake.live[FAKE_GRAPH_EXECS]++;
	pthread_mutex_unlock(&fake.lock);
	*out = x;
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	if (!g)
		return cudaErrorInvalidValue;
	free_ops(&g->ops);
	free(g);
	fake_add(FAKE_GRAPHS, -1);
	return cudaSuccess;
}

static void drop(cudaGraphExec_t x)
{
	LIST_REMOVE(x, link);
	fake.live[FAKE_GRAPH_EXECS]--;
	free_ops(&x->ops);
	free(x);
}

/* Lock held. */
static bool alive(cudaGraphExec_t x, const char *what)
{
	struct CUgraphExec_st *i;

	LIST_FOREACH (i, &execs, link)
		if (i == x)
			return true;
	fake_violation("%s: %p is no live executable graph", what, (void *)x);
	return false;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
	bool good;

	pthread_mutex_lock(&fake.lock);
	good = alive(x, __func__);
	if (good)
		drop(x);
	pthread_mutex_unlock(&fake.lock);
	return good ? cudaSuccess : cudaErrorInvalidValue;
}

void exec_reset_graphs(int device)
{
	struct CUgraphExec_st *x, *next;

	for (x = LIST_FIRST(&execs); x; x = next) {
		next = LIST_NEXT(x, link);
		if (x->device == device)
			drop(x);
	}
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
	cudaError_t rc = cudaSuccess;
	struct fake_op *op;

	enum fake_fault fault = fake_fault(__func__);

	pthread_mutex_lock(&fake.lock);
	if (!alive(x, __func__)) {
		rc = cudaErrorInvalidValue;
	} else if (fault == FAKE_ILLEGAL) {
		rc = cudaErrorIllegalAddress;
		if (!fake.device[x->device].sticky)
			fake.device[x->device].sticky = rc;
		fake_wake();
	} else if (!exec_alive(s, __func__)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (s->device != x->device) {
		fake_violation("%s: graph of device %d, stream of device %d", __func__, x->device,
			       s->device);
		rc = cudaErrorInvalidValue;
	} else if (fake.device[s->device].sticky) {
		rc = fake.device[s->device].sticky;
	} else {
		exec_start();
		TAILQ_FOREACH (op, &x->ops, link)
			exec_put(s, copy_op(op));
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}
