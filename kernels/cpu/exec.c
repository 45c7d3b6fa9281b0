/* SPDX-License-Identifier: MIT */
/*
 * exec.c: runs a plan on the pool. Each worker goes through the phases with its own rows; after a
 * barrier it sums its share of the slots' gradients, and worker 0 tells the caller which buckets of
 * the gradient arena have become final.
 */
#include "cpu.h"

struct exec {
	struct cpu_net *net;
	uint32_t bucket; /* the next to be told */
	int bucket_error;
};

static void worker_error(struct cpu_worker *w, int rc)
{
	if (rc && !w->error)
		w->error = rc;
}

/* Buckets that are final after `epoch` barriers; by worker 0 only. */
static void tell_buckets(struct exec *x, uint32_t epoch)
{
	const struct cpu_run *run = &x->net->run;
	const struct cpu_plan *p = run->plan;

	for (; x->bucket < p->n_buckets && p->bucket[x->bucket].epoch <= epoch; x->bucket++) {
		const struct cpu_bucket *b = &p->bucket[x->bucket];

		if (run->on_bucket && !x->bucket_error)
			x->bucket_error = run->on_bucket(run->context, b->offset, b->length, NULL);
	}
}

static void pass_barrier(struct exec *x, struct cpu_worker *w, uint32_t epoch)
{
	const struct cpu_plan *p = w->plan;

	if (w->count > 1)
		pool_barrier(x->net->backend->pool);
	if (w->index == 0 && p->training)
		tell_buckets(x, epoch);
	for (uint32_t r = 0; r < p->n_reduces; r++)
		if (p->reduce[r].epoch == epoch && p->reduce[r].tensor % w->count == w->index)
			worker_error(w, p->reduce[r].run(&p->reduce[r], w));
}

static void run_ops(struct cpu_worker *w, const struct cpu_phase *f, uint32_t row, uint32_t n)
{
	for (uint32_t i = f->first; i < f->first + f->count; i++)
		worker_error(w, w->plan->op[i].run(&w->plan->op[i], w, row, n));
}

static void run_phase(struct cpu_worker *w, const struct cpu_phase *f)
{
	uint32_t chunks;

	w->first = true;
	for (uint32_t i = f->first; i < f->first + f->count; i++)
		if (w->plan->op[i].enter)
			worker_error(w, w->plan->op[i].enter(&w->plan->op[i], w));
	switch (f->mode) {
	case CPU_ROWS:
		chunks = (w->row1 - w->row0 + f->chunk - 1) / f->chunk;
		for (uint32_t k = 0; k < chunks; k++) {
			uint32_t row = w->row0 + (f->reverse ? chunks - 1 - k : k) * f->chunk;

			w->chunk = row;
			w->first = k == 0;
			run_ops(w, f, row, w->row1 - row < f->chunk ? w->row1 - row : f->chunk);
		}
		break;
	case CPU_WIDE:
		if (w->row0 < w->row1)
			run_ops(w, f, w->row0, w->row1 - w->row0);
		break;
	case CPU_SPLIT:
		run_ops(w, f, 0, w->net->run.batch->n);
		break;
	}
}

static void exec_pack(struct exec *x, struct cpu_worker *w)
{
	const struct cpu_plan *p = w->plan;

	for (uint32_t k = w->index; k < p->n_packs; k += w->count)
		worker_error(w, p->pack[k].run(&p->pack[k], w));
	if (w->count > 1)
		pool_barrier(x->net->backend->pool);
}

static void exec_worker(void *arg, unsigned int index)
{
	struct exec *x = arg;
	struct cpu_worker *w = &x->net->worker[index];
	const struct cpu_run *run = &x->net->run;
	const struct cpu_plan *p = run->plan;

	w->plan = p;
	w->row0 = cpu_first_row(run->batch->n, index, w->count);
	w->row1 = cpu_first_row(run->batch->n, index + 1, w->count);
	w->loss = w->weight = 0;
	w->error = 0;
	if (p->packed_version != x->net->version)
		exec_pack(x, w);
	for (uint32_t f = 0; f < p->n_phases; f++) {
		if (p->phase[f].barrier)
			pass_barrier(x, w, p->phase[f].epoch);
		run_phase(w, &p->phase[f]);
	}
	if (p->training)
		pass_barrier(x, w, p->epochs + 1);
}

/* No rows: no gradient. */
static void exec_nothing(struct exec *x)
{
	struct cpu_net *net = x->net;

	if (!net->run.plan->training)
		return;
	if (!net->run.accumulate)
		memset(net->base.arena[BACKEND_GRAD], 0,
		       net->base.graph.param_floats * sizeof(float));
	tell_buckets(x, UINT32_MAX);
}

int cpu_exec(struct cpu_net *net, struct backend_sums *sums)
{
	struct backend_sums total = {.n = net->run.batch->n};
	struct exec x = {.net = net};
	int rc = 0;

	if (net->run.batch->n == 0) {
		exec_nothing(&x);
	} else {
		pool_run(net->backend->pool, exec_worker, &x);
		for (uint32_t t = 0; t < net->workers; t++) {
			total.loss += net->worker[t].loss;
			total.weight += net->worker[t].weight;
			rc = rc ? rc : net->worker[t].error;
		}
		if (net->run.plan->training)
			tell_buckets(&x, UINT32_MAX);
	}
	if (sums)
		*sums = total;
	return rc ? rc : x.bucket_error;
}
