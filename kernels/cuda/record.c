/* SPDX-License-Identifier: MIT */
/*
 * record.c: shapes (what depends on the number of rows), and CUDA graphs of the calls on them. The
 * first call of a kind runs as it is, which loads whatever the libraries load late; the second is
 * captured, and from then on one launch repeats it. Where a capture fails the net goes on without.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

/* ---- shapes --------------------------------------------------------------------------------- */

void record_free(struct shape *shape, bool hung)
{
	for (uint32_t i = 0; i < shape->n_recordings; i++) {
		struct recording *r = &shape->recording[i];

		for (uint32_t k = 0; r->segment && k < r->n; k++)
			if (r->segment[k] && !hung)
				cudaGraphExecDestroy(r->segment[k]);
		free(r->segment);
	}
	shape->n_recordings = 0;
}

void shape_free(struct cuda_net *net, struct shape *shape)
{
	if (!shape)
		return;
	record_free(shape, net->gpu->hung);
	for (uint32_t i = 0; i < net->plan.n_groups; i++) {
		if (shape->conv)
			conv_shape_free(&shape->conv[i]);
		if (shape->dense)
			dense_shape_free(&shape->dense[i]);
	}
	free(shape->conv);
	free(shape->dense);
	free(shape);
}

int shape_make(struct cuda_net *net, uint32_t n, bool products, struct shape **out,
	       struct backend_error *error)
{
	const struct plan *plan = &net->plan;
	struct shape *s = calloc(1, sizeof(*s));
	int rc = 0;

	if (s) {
		s->n = n;
		s->conv = calloc(plan->n_groups, sizeof(*s->conv));
		s->dense = calloc(plan->n_groups, sizeof(*s->dense));
	}
	if (!s || !s->conv || !s->dense) {
		shape_free(net, s);
		return backend_fail(error, -ENOMEM, "no memory for a batch of %u rows", n);
	}
	for (uint32_t i = 0; i < plan->n_groups && !rc; i++) {
		if (plan->group[i].kind == GROUP_CONV)
			rc = conv_shape_make(net, s, i, error);
		else if (plan->group[i].kind == GROUP_DENSE && products)
			rc = dense_shape_make(net, s, i, error);
	}
	if (rc) {
		shape_free(net, s);
		return rc;
	}
	*out = s;
	return 0;
}

int shape_get(struct cuda_net *net, uint32_t n, struct shape **out, struct backend_error *error)
{
	uint32_t place = 0;
	int rc;

	for (uint32_t i = 0; i < SHAPES_MAX; i++) {
		struct shape *s = net->shape[i];

		if (s && s->n == n) {
			s->used = ++net->clock;
			*out = s;
			return 0;
		}
		if (!net->shape[place])
			continue;
		if (!s || s->used < net->shape[place]->used)
			place = i;
	}
	shape_free(net, net->shape[place]);
	net->shape[place] = NULL;
	rc = shape_make(net, n, true, &net->shape[place], error);
	if (rc)
		return rc;
	net->shape[place]->used = ++net->clock;
	*out = net->shape[place];
	return 0;
}

/* ---- recordings ----------------------------------------------------------------------------- */

static struct recording *recording_of(struct shape *shape, const struct key *key)
{
	struct recording *r;

	for (uint32_t i = 0; i < shape->n_recordings; i++)
		if (!memcmp(&shape->recording[i].key, key, sizeof(*key)))
			return &shape->recording[i];
	if (shape->n_recordings == RECORDINGS_MAX)
		record_free(shape, false); /* loss scales that have passed */
	r = &shape->recording[shape->n_recordings++];
	memset(r, 0, sizeof(*r));
	r->key = *key;
	return r;
}

static int capture_segment(struct cuda_net *net, const struct sequence *q, uint32_t k,
			   cudaGraphExec_t *out)
{
	cudaGraph_t graph = NULL;
	int rc = cudaStreamBeginCapture(net->stream, cudaStreamCaptureModeThreadLocal), end;

	if (rc)
		return rc;
	rc = q->segment(q->context, k);
	end = cudaStreamEndCapture(net->stream, &graph);
	if (!rc)
		rc = end;
	if (!rc)
		rc = cudaGraphInstantiate(out, graph, 0);
	if (graph)
		cudaGraphDestroy(graph);
	return rc;
}

static void capture(struct cuda_net *net, struct recording *r, const struct sequence *q)
{
	int rc = 0;

	r->segment = calloc(q->n, sizeof(*r->segment));
	r->n = q->n;
	if (!r->segment)
		return;
	for (uint32_t k = 0; k < q->n && !rc; k++)
		rc = capture_segment(net, q, k, &r->segment[k]);
	if (!rc)
		return;
	cudaGetLastError();
	for (uint32_t k = 0; k < q->n; k++)
		if (r->segment[k])
			cudaGraphExecDestroy(r->segment[k]);
	free(r->segment);
	r->segment = NULL;
	net->graphs = false;
}

int record_run(struct cuda_net *net, struct shape *shape, const struct key *key,
	       const struct sequence *q, struct backend_error *error)
{
	struct recording *r = recording_of(shape, key);
	int rc = 0;

	if (net->graphs && r->runs && !r->segment)
		capture(net, r, q);
	if (net->gpu->lost)
		return cuda_enter(net->gpu, error);
	r->runs++;
	for (uint32_t k = 0; k < q->n && !rc; k++) {
		if (r->segment && net->graphs)
			rc = cuda_failed(net->gpu, cudaGraphLaunch(r->segment[k], net->stream),
					 "launch of a captured step", error);
		else
			rc = q->segment(q->context, k);
		if (!rc && q->after)
			rc = q->after(q->context, k);
	}
	return rc;
}
