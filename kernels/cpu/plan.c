/* SPDX-License-Identifier: MIT */
/*
 * plan.c: a list of ops -> phases, buckets and memory.
 *
 * An epoch is what lies between two barriers. Within an epoch the workers run apart, so buffers of
 * the whole batch may share memory only if their epochs do not overlap; in-place sharing (same
 * rows, same size) is the exception. Buffers used in one phase only hold one chunk and belong to a
 * worker.
 */
#include <stdlib.h>

#include "cpu.h"

/* The same on every machine, so that sums are made in the same pieces everywhere. */
#define PLAN_L2_FLOATS (1u << 18) /* 1 MB: activations of a chunk */
#define PLAN_MAX_CHUNK 16u
#define PLAN_BUCKET_FLOATS (1u << 14) /* smaller buckets are joined with a neighbour */

static uint64_t plan_round(uint64_t floats)
{
	return (floats + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
}

uint64_t cpu_plan_sum(struct cpu_plan *plan, uint64_t floats)
{
	uint64_t at = plan->sum_floats;

	plan->sum_floats += plan_round(floats) + CPU_ALIGN;
	return at;
}

uint64_t cpu_plan_packed(struct cpu_plan *plan, uint64_t floats)
{
	uint64_t at = plan->packed_floats;

	plan->packed_floats += plan_round(floats) + CPU_ALIGN;
	return at;
}

void cpu_plan_scratch(struct cpu_plan *plan, uint64_t floats)
{
	floats = plan_round(floats) + CPU_ALIGN;
	if (plan->scratch_floats < floats)
		plan->scratch_floats = floats;
}

/* ---- phases ------------------------------------------------------------------------------ */

/* Does the op at i need what other workers did since op `since`? */
static bool needs_barrier(const struct cpu_plan *p, uint32_t i, uint32_t since)
{
	const struct cpu_op *op = &p->op[i];

	if (op->mode != CPU_SPLIT && !op->sync)
		return false;
	for (uint32_t k = since; k < i; k++) {
		if (op->mode == CPU_SPLIT && p->op[k].mode != CPU_SPLIT)
			return true;
		if (op->sync && p->op[k].state == op->state)
			return true;
	}
	return false;
}

static int plan_phases(struct cpu_plan *p)
{
	uint32_t since = 0;

	p->phase = calloc(p->n_ops + 1, sizeof(*p->phase));
	if (!p->phase)
		return -ENOMEM;
	for (uint32_t i = 0; i < p->n_ops; i++) {
		struct cpu_phase *f = p->n_phases ? &p->phase[p->n_phases - 1] : NULL;
		bool barrier = needs_barrier(p, i, since);
		bool reverse = f && !f->reverse;

		if (barrier) {
			p->epochs++;
			since = i;
		}
		if (!f || barrier || f->mode != p->op[i].mode || f->mode == CPU_SPLIT) {
			f = &p->phase[p->n_phases++];
			*f = (struct cpu_phase){.first = i,
						.mode = p->op[i].mode,
						.barrier = barrier,
						.reverse = reverse,
						.epoch = p->epochs};
		}
		f->count++;
	}
	return 0;
}

static const struct cpu_phase *phase_of(const struct cpu_plan *p, uint32_t op)
{
	uint32_t low = 0, high = p->n_phases;

	while (high - low > 1) {
		uint32_t mid = (low + high) / 2;

		if (p->phase[mid].first <= op)
			low = mid;
		else
			high = mid;
	}
	return &p->phase[low];
}

/* ---- sharing ----------------------------------------------------------------------------- */

static int32_t buffer_root(const struct cpu_plan *p, int32_t b)
{
	while (p->buffer[b].same >= 0)
		b = p->buffer[b].same;
	return b;
}

/* A split op of this epoch reads the memory: other workers may still be at it. */
static bool split_reads(const struct cpu_plan *p, int32_t root, uint32_t epoch)
{
	for (uint32_t f = 0; f < p->n_phases; f++) {
		const struct cpu_op *op = &p->op[p->phase[f].first];

		if (p->phase[f].mode != CPU_SPLIT || p->phase[f].epoch != epoch)
			continue;
		for (int k = 0; k < CPU_OPERANDS; k++)
			if (op->buf[k] >= 0 && buffer_root(p, op->buf[k]) == root)
				return true;
	}
	return false;
}

static void plan_share(struct cpu_plan *p)
{
	for (uint32_t i = 0; i < p->n_ops; i++) {
		const struct cpu_op *op = &p->op[i];
		int32_t to, of, root;

		if (op->share_to < 0 || op->buf[op->share_to] < 0 || op->buf[op->share_of] < 0)
			continue;
		to = op->buf[op->share_to];
		of = op->buf[op->share_of];
		root = buffer_root(p, of);
		if (p->buffer[of].last != (int32_t)i || p->buffer[to].first != (int32_t)i ||
		    p->buffer[of].row != p->buffer[to].row || p->buffer[to].same >= 0 ||
		    split_reads(p, root, phase_of(p, i)->epoch))
			continue;
		p->buffer[to].same = root;
		p->buffer[root].last = p->buffer[to].last;
	}
}

/* ---- chunks and places ------------------------------------------------------------------- */

static void plan_local(struct cpu_plan *p)
{
	for (uint32_t b = 0; b < p->n_buffers; b++) {
		struct cpu_buffer *v = &p->buffer[b];

		if (v->same < 0 && v->first >= 0)
			v->local =
				phase_of(p, (uint32_t)v->first) == phase_of(p, (uint32_t)v->last) &&
				phase_of(p, (uint32_t)v->first)->mode == CPU_ROWS;
	}
}

/* Rows whose activations fit into the cache, a power of two. */
static void plan_chunks(struct cpu_plan *p, uint32_t most)
{
	for (uint32_t f = 0; f < p->n_phases; f++) {
		struct cpu_phase *phase = &p->phase[f];
		uint64_t floats = 1;

		/* counted once for each op that begins to use it: good enough for a budget */
		for (uint32_t i = phase->first; i < phase->first + phase->count; i++)
			for (int k = 0; k < CPU_OPERANDS; k++) {
				const struct cpu_buffer *v;

				if (p->op[i].buf[k] < 0)
					continue;
				v = &p->buffer[buffer_root(p, p->op[i].buf[k])];
				if (v->first == (int32_t)i || v->last == (int32_t)i)
					floats += v->row;
			}
		phase->chunk = PLAN_MAX_CHUNK;
		while (phase->chunk > 1 &&
		       (phase->chunk * floats > PLAN_L2_FLOATS || phase->chunk > most))
			phase->chunk /= 2;
	}
}

struct place {
	uint64_t begin, end;
	uint32_t first, last;
};

struct places {
	struct place *at; /* by begin */
	uint32_t n;
};

/* Lowest free place among those in use at the same time. */
static uint64_t place_find(struct places *s, uint64_t size, uint32_t first, uint32_t last)
{
	uint64_t begin = 0;
	uint32_t k;

	for (k = 0; k < s->n; k++) {
		const struct place *o = &s->at[k];

		if (o->last < first || o->first > last)
			continue;
		if (o->begin >= begin + size)
			break;
		begin = o->end > begin ? o->end : begin;
	}
	for (k = s->n; k > 0 && s->at[k - 1].begin > begin; k--)
		s->at[k] = s->at[k - 1];
	s->at[k] = (struct place){begin, begin + size, first, last};
	s->n++;
	return begin;
}

/* Largest first; equal ones in the order of their making. */
struct sized {
	uint64_t size;
	uint32_t buffer;
};

static int by_size(const void *a, const void *b)
{
	const struct sized *x = a, *y = b;

	if (x->size != y->size)
		return x->size < y->size ? 1 : -1;
	return x->buffer < y->buffer ? -1 : 1;
}

/* Places the buffers that are local (to one phase) or not; returns the memory they take. */
static uint64_t plan_place(struct cpu_plan *p, const struct sized *order, uint32_t n,
			   const struct cpu_phase *local, uint32_t rows, struct places *s)
{
	uint64_t total = 0;

	s->n = 0;
	for (uint32_t k = 0; k < n; k++) {
		struct cpu_buffer *v = &p->buffer[order[k].buffer];
		const struct cpu_phase *phase = phase_of(p, (uint32_t)v->first);
		uint64_t size = plan_round(v->row * rows) + CPU_ALIGN;

		if (v->local != !!local || (local && phase != local))
			continue;
		if (local)
			v->offset = place_find(s, size, (uint32_t)v->first, (uint32_t)v->last);
		else
			v->offset = place_find(s, size, phase->epoch,
					       phase_of(p, (uint32_t)v->last)->epoch);
		total = v->offset + size > total ? v->offset + size : total;
	}
	return total;
}

static int plan_memory(struct cpu_plan *p, uint32_t max_batch)
{
	struct sized *order = calloc(p->n_buffers + 1, sizeof(*order));
	struct places s = {.at = calloc(p->n_buffers + 1, sizeof(*s.at))};
	uint32_t n = 0;

	for (uint32_t b = 0; order && b < p->n_buffers; b++)
		if (p->buffer[b].same < 0 && p->buffer[b].first >= 0)
			order[n++] = (struct sized){p->buffer[b].row, b};
	if (!order || !s.at) {
		free(order);
		free(s.at);
		return -ENOMEM;
	}
	qsort(order, n, sizeof(*order), by_size);
	p->shared_floats = plan_place(p, order, n, NULL, max_batch, &s);
	for (uint32_t f = 0; f < p->n_phases; f++) {
		uint64_t floats = plan_place(p, order, n, &p->phase[f], p->phase[f].chunk, &s);

		p->local_floats = floats > p->local_floats ? floats : p->local_floats;
	}
	free(order);
	free(s.at);
	for (uint32_t b = 0; b < p->n_buffers; b++) {
		const struct cpu_buffer *root = &p->buffer[buffer_root(p, (int32_t)b)];

		p->buffer[b].offset = root->offset;
		p->buffer[b].local = root->local;
	}
	return 0;
}

/* ---- buckets ----------------------------------------------------------------------------- */

int cpu_plan_tensors(struct cpu_plan *plan, const struct backend_graph *graph,
		     const uint32_t *tensor_op, struct backend_error *error)
{
	plan->tensor_op = calloc(graph->n_tensors + 1, sizeof(*plan->tensor_op));
	if (!plan->tensor_op)
		return backend_fail(error, -ENOMEM, "no memory to compile the network");
	memcpy(plan->tensor_op, tensor_op, graph->n_tensors * sizeof(*tensor_op));
	return 0;
}

/* Barriers after which the tensor's gradient is final; UINT32_MAX: nobody writes it. */
static uint32_t tensor_epoch(const struct cpu_plan *p, uint32_t tensor)
{
	uint32_t epoch;

	if (!p->tensor_op[tensor])
		return UINT32_MAX;
	epoch = phase_of(p, p->tensor_op[tensor] - 1)->epoch + 1;
	for (uint32_t r = 0; r < p->n_reduces; r++)
		if (p->reduce[r].tensor == tensor && p->reduce[r].epoch >= epoch)
			epoch = p->reduce[r].epoch + 1;
	return epoch;
}

static int by_epoch(const void *a, const void *b)
{
	const struct cpu_bucket *x = a, *y = b;

	if (x->epoch != y->epoch)
		return x->epoch < y->epoch ? -1 : 1;
	return x->offset > y->offset ? -1 : 1;
}

/* Neighbours in the arena that become final together, or that are small, are one bucket. All of
 * the arena is in a bucket; tensors without gradient go with their neighbours. */
static int plan_buckets(struct cpu_plan *p, const struct backend_graph *g)
{
	p->bucket = calloc(g->n_tensors + 1, sizeof(*p->bucket));
	if (!p->bucket)
		return -ENOMEM;
	for (uint32_t r = 0; r < p->n_reduces; r++)
		p->reduce[r].epoch = phase_of(p, p->reduce[r].op)->epoch + 1;
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		struct cpu_bucket *last = p->n_buckets ? &p->bucket[p->n_buckets - 1] : NULL;
		uint64_t length = plan_round(g->tensor[i].count);
		uint32_t epoch = tensor_epoch(p, i);

		if (g->tensor[i].arena != BACKEND_PARAM)
			continue;
		if (!last) {
			p->bucket[p->n_buckets++] =
				(struct cpu_bucket){g->tensor[i].offset, length, epoch};
			continue;
		}
		if (last->epoch != epoch && last->epoch != UINT32_MAX && epoch != UINT32_MAX &&
		    last->length >= PLAN_BUCKET_FLOATS && length >= PLAN_BUCKET_FLOATS) {
			p->bucket[p->n_buckets++] =
				(struct cpu_bucket){g->tensor[i].offset, length, epoch};
			continue;
		}
		last->length = g->tensor[i].offset + length - last->offset;
		if (last->epoch == UINT32_MAX || (epoch != UINT32_MAX && epoch > last->epoch))
			last->epoch = epoch;
	}
	qsort(p->bucket, p->n_buckets, sizeof(*p->bucket), by_epoch);
	return 0;
}

/* ---- whole ------------------------------------------------------------------------------- */

uint32_t cpu_plan_rows(const struct cpu_net *net, const struct cpu_plan *plan, const void *state)
{
	uint32_t rows = 1, all = (net->base.options.max_batch + net->workers - 1) / net->workers;

	for (uint32_t f = 0; f < plan->n_phases; f++) {
		const struct cpu_phase *phase = &plan->phase[f];
		uint32_t most = phase->mode == CPU_ROWS ? phase->chunk : all;

		for (uint32_t i = phase->first; i < phase->first + phase->count; i++)
			if (plan->op[i].state == state && most > rows)
				rows = most;
	}
	return rows;
}

int cpu_plan_finish(struct cpu_net *net, struct cpu_plan *plan, struct backend_error *error)
{
	uint32_t max_batch = net->base.options.max_batch;
	int rc = plan_phases(plan);

	if (!rc) {
		plan_share(plan);
		plan_local(plan);
		plan_chunks(plan, (max_batch + net->workers - 1) / net->workers);
		rc = plan_memory(plan, max_batch);
	}
	if (!rc && plan->training)
		rc = plan_buckets(plan, &net->base.graph);
	if (rc)
		return backend_fail(error, rc, "no memory to compile the network");
	for (struct cpu_owned *o = plan->owned; o && !rc; o = o->next)
		if (o->class && o->class->prepare)
			rc = o->class->prepare(o->state, net, plan, error);
	return rc;
}

int cpu_plan_bind(struct cpu_net *net, struct cpu_plan *plan)
{
	int rc = 0;

	for (struct cpu_owned *o = plan->owned; o && !rc; o = o->next)
		if (o->class && o->class->bind)
			rc = o->class->bind(o->state, net, plan);
	return rc;
}

void cpu_plan_free(struct cpu_plan *plan)
{
	while (plan->owned) {
		struct cpu_owned *o = plan->owned;

		plan->owned = o->next;
		if (o->class && o->class->undo)
			o->class->undo(o->state);
		free(o);
	}
	free(plan->op);
	free(plan->buffer);
	free(plan->phase);
	free(plan->reduce);
	free(plan->bucket);
	free(plan->pack);
	free(plan->tensor_op);
	memset(plan, 0, sizeof(*plan));
}
