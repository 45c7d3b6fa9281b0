/* SPDX-License-Identifier: MIT */
/*
 * stage.c: batches on their way to the device. Rows are gathered into pinned memory and copied on a
 * stream of their own, in two slots, so that the next batch travels while this one is computed; or
 * all rows of a data set lie on the device and a batch brings their numbers only.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static uint64_t align(uint64_t bytes)
{
	return (bytes + 255) & ~255ull;
}

/* Offsets of a slot's parts; pinned and device memory have the same. */
struct parts {
	uint64_t hash, weight, label, index, rows, target, end;
};

static struct parts parts_of(const struct cuda_net *net)
{
	uint64_t n = net->base.options.max_batch;
	bool sparse = net->base.options.loss.loss == BACKEND_SPARSE_CROSSENTROPY;
	struct parts p = {0};

	p.weight = align(n * sizeof(uint64_t));
	p.label = p.weight + align(n * sizeof(float));
	p.index = p.label + align(n * sizeof(int32_t));
	p.rows = p.index + align(n * sizeof(uint32_t));
	p.target = p.rows + align(n * net->pitch);
	p.end = p.target + align(sparse ? 0 : n * net->base.outputs * sizeof(float));
	return p;
}

uint64_t stage_bytes(const struct cuda_net *net)
{
	return parts_of(net).end;
}

uint64_t stage_row(const struct cuda_net *net)
{
	const struct backend_input *in = &net->base.options.input;

	return backend_shape_count(in->shape) * backend_dtype_bytes(in->dtype);
}

static void gather(struct cuda_net *net, struct slot *s, const struct parts *p,
		   const struct backend_batch *b, bool want)
{
	uint64_t outputs = net->base.outputs;

	if (b->hash)
		memcpy(s->host + p->hash, b->hash, b->n * sizeof(*b->hash));
	if (b->weight)
		memcpy(s->host + p->weight, b->weight, b->n * sizeof(*b->weight));
	if (want && b->label)
		memcpy(s->host + p->label, b->label, b->n * sizeof(*b->label));
	if (want && b->target && p->end > p->target)
		memcpy(s->host + p->target, b->target, b->n * outputs * sizeof(float));
	if (b->index)
		memcpy(s->host + p->index, b->index, b->n * sizeof(*b->index));
	else
		memcpy(s->x, b->x, b->n * sizeof(*b->x));
}

static int send(struct cuda_net *net, struct slot *s, uint64_t at, uint64_t bytes)
{
	return bytes ? cudaMemcpyAsync(s->device + at, s->host + at, bytes, cudaMemcpyHostToDevice,
				       net->copy)
		     : 0;
}

/* Rows that lie in pinned memory are copied from there, all others are gathered first. */
static int send_rows(struct cuda_net *net, struct slot *s, uint64_t at,
		     const struct backend_batch *b)
{
	uint64_t bytes = stage_row(net), sent = 0; /* rows before that one are on their way */
	bool pins = bytes >= BACKEND_PIN_ROW && net->gpu->n_pins;
	int rc = 0;

	for (uint64_t i = 0; i < b->n && !rc; i++) {
		if (!pins || !pin_holds(net->gpu, b->x[i], bytes)) {
			memcpy(s->host + at + i * net->pitch, b->x[i], bytes);
			continue;
		}
		rc = send(net, s, at + sent * net->pitch, (i - sent) * net->pitch);
		if (!rc)
			rc = cudaMemcpyAsync(s->device + at + i * net->pitch, b->x[i], bytes,
					     cudaMemcpyHostToDevice, net->copy);
		sent = i + 1;
	}
	return rc ? rc : send(net, s, at + sent * net->pitch, (b->n - sent) * net->pitch);
}

static int fill(struct cuda_net *net, struct slot *s, const struct backend_batch *b, bool want,
		struct backend_error *error)
{
	struct parts p = parts_of(net);
	bool targets = want && b->target && p.end > p.target;
	int rc;

	if (s->sent) { /* a batch that nobody came for */
		rc = cuda_wait(net->gpu, s->ready, "copy of a batch", error);
		if (rc)
			return rc;
	}
	gather(net, s, &p, b, want);
	rc = send(net, s, 0, p.rows);
	if (!rc && !b->index)
		rc = send_rows(net, s, p.rows, b);
	if (!rc && targets)
		rc = send(net, s, p.target, b->n * net->base.outputs * sizeof(float));
	if (!rc)
		rc = cudaEventRecord(s->ready, net->copy);
	if (rc)
		return cuda_failed(net->gpu, rc, "copy of a batch", error);
	s->sent = s->full = true;
	s->want = want;
	s->batch = *b;
	memset(&s->block, 0, sizeof(s->block));
	s->block.raw = b->index ? net->resident : s->device + p.rows;
	s->block.index = b->index ? (uint32_t *)(s->device + p.index) : NULL;
	s->block.hash = b->hash ? (uint64_t *)(s->device + p.hash) : NULL;
	s->block.weight = b->weight ? (float *)(s->device + p.weight) : NULL;
	s->block.label = want && b->label ? (int32_t *)(s->device + p.label) : NULL;
	s->block.target = targets ? (float *)(s->device + p.target) : NULL;
	return 0;
}

/* Both there and equal, or both absent. */
static bool same(const void *staged, const void *pinned, const void *now, size_t bytes)
{
	return !staged == !now && (!now || !memcmp(pinned, now, bytes));
}

/* Does the slot hold just this batch? Rows are known by their addresses. */
static bool holds(const struct cuda_net *net, const struct slot *s, const struct backend_batch *b,
		  bool want)
{
	struct parts p = parts_of(net);
	const struct backend_batch *o = &s->batch;

	if (!s->full || o->n != b->n || s->want != want)
		return false;
	if (!same(o->index, s->host + p.index, b->index, b->n * sizeof(*b->index)))
		return false;
	if (!b->index && memcmp(s->x, b->x, b->n * sizeof(*b->x)))
		return false;
	return same(o->hash, s->host + p.hash, b->hash, b->n * sizeof(*b->hash)) &&
	       same(o->weight, s->host + p.weight, b->weight, b->n * sizeof(*b->weight)) &&
	       (!want || (same(o->label, s->host + p.label, b->label, b->n * sizeof(*b->label)) &&
			  (p.end == p.target || same(o->target, s->host + p.target, b->target,
						     b->n * net->base.outputs * sizeof(float)))));
}

int stage_batch(struct cuda_net *net, const struct backend_batch *batch, bool want,
		struct slot **out, struct backend_error *error)
{
	struct slot *s = &net->slot[net->next_slot];
	int rc;

	if (!holds(net, s, batch, want)) {
		rc = fill(net, s, batch, want, error);
		if (rc)
			return rc;
	}
	s->full = false;
	rc = cudaStreamWaitEvent(net->stream, s->ready, 0);
	if (rc)
		return cuda_failed(net->gpu, rc, "order of streams", error);
	net->next_slot = (net->next_slot + 1) % SLOTS;
	*out = s;
	return 0;
}

int stage_ahead(struct cuda_net *net, const struct backend_batch *next, struct backend_error *error)
{
	bool usable = next && next->n && next->n <= net->base.options.max_batch &&
		      (next->index ? net->resident != NULL : next->x != NULL);

	for (uint32_t i = 0; usable && i < next->n; i++)
		usable =
			next->index ? next->index[i] < net->base.resident_rows : next->x[i] != NULL;
	return usable ? fill(net, &net->slot[net->next_slot], next, true, error) : 0;
}

/* ---- resident rows -------------------------------------------------------------------------- */

/* Left free for others when a data set is taken in. */
#define RESERVE (256ull << 20)

static int upload_rows(struct cuda_net *net, const void *const *x, uint32_t n,
		       struct backend_error *error)
{
	uint64_t bytes = stage_row(net), rows = net->bounce_bytes / net->pitch, at = 0;

	if (!rows) { /* a row is larger than the bounce buffer */
		int rc = 0;

		for (uint32_t i = 0; i < n && !rc; i++)
			rc = cuda_upload(net, (char *)net->resident + i * net->pitch, x[i], bytes,
					 error);
		return rc;
	}
	while (at < n) {
		uint64_t piece = n - at < rows ? n - at : rows;
		int rc;

		for (uint64_t i = 0; i < piece; i++)
			memcpy(net->bounce + i * net->pitch, x[at + i], bytes);
		rc = cudaMemcpyAsync((char *)net->resident + at * net->pitch, net->bounce,
				     piece * net->pitch, cudaMemcpyHostToDevice, net->copy);
		if (!rc)
			rc = cudaEventRecord(net->done, net->copy);
		if (rc)
			return cuda_failed(net->gpu, rc, "copy of the data set", error);
		rc = cuda_wait(net->gpu, net->done, "copy of the data set", error);
		if (rc)
			return rc;
		at += piece;
	}
	return 0;
}

int stage_resident(struct backend_net *base, const void *const *x, uint32_t n,
		   struct backend_error *error)
{
	struct cuda_net *net = (struct cuda_net *)base;
	uint64_t bytes = n * net->pitch;
	size_t available = 0, total = 0;
	int rc = cuda_enter(net->gpu, error);

	if (rc)
		return rc;
	for (int i = 0; i < SLOTS; i++)
		net->slot[i].full = false; /* one may name rows of the old set */
	cuda_release(net->gpu, net->resident, net->resident_bytes);
	net->resident = NULL;
	net->resident_bytes = 0;
	if (!n)
		return 0;
	rc = cuda_failed(net->gpu, cudaMemGetInfo(&available, &total), "free memory", error);
	if (rc)
		return rc;
	if (bytes + RESERVE > available)
		return backend_fail(error, -ENOSPC,
				    "GPU %d: the data set takes %llu bytes, free are %zu",
				    net->gpu->device, (unsigned long long)bytes, available);
	rc = cuda_alloc(net->gpu, bytes, &net->resident, error);
	if (rc)
		return rc == -ENOMEM ? -ENOSPC : rc;
	net->resident_bytes = bytes;
	return upload_rows(net, x, n, error);
}
