/* SPDX-License-Identifier: MIT */
/*
 * cpu.h: inside of the cpu back end. A graph is lowered (lower.c and the files of the operators) to
 * two plans, one for training and one for evaluation: lists of ops on buffers. plan.c cuts a list
 * into phases and lays out the memory, exec.c runs it on the pool.
 *
 * Every worker owns a fixed range of the rows of a batch (its slot) and takes them through a phase
 * in chunks small enough that the activations of a chunk stay in its L2 cache. Workers meet only
 * where the rows of a batch are coupled: batch-norm statistics, gradients of large dense kernels,
 * sums over the slots. Sums are made in slot order, so results depend on the number of threads
 * only.
 *
 * Layout: activations are NHWC everywhere; kernels stand in the arenas as Keras has them, packed
 * copies (blocked, transformed) belong to the ops that want them.
 */
#ifndef CPU_CPU_H
#define CPU_CPU_H

#include "dnn.h"
#include "loops.h"
#include "pool.h"
#include "../loss.h"
#include "../ops.h"
#include "../update.h"

#define CPU_OPERANDS 5
#define CPU_ALIGN 16 /* floats: a cache line */

struct cpu_backend {
	struct backend base; /* first */
	struct backend_pool *pool;
	bool own_pool;
	dnnl_engine_t engine;
	const struct cpu_loops *loops;
	const struct wino_loops *wino; /* NULL: not on this processor */
};

/* How the rows of a batch are taken through an op. */
enum cpu_mode {
	CPU_ROWS, /* a chunk of the worker's rows at a time */
	CPU_WIDE, /* all rows of the worker at once: a large dense kernel is read once */
	CPU_SPLIT /* all rows of the batch; the workers share the features */
};

struct cpu_net;
struct cpu_op;
struct cpu_plan;

/* One thread's part of a net. */
struct cpu_worker {
	struct cpu_net *net;
	const struct cpu_plan *plan;
	uint32_t index, count; /* worker, workers */
	uint32_t row0, row1;   /* its rows of the batch */
	uint32_t chunk;	       /* first row of the chunk, where local buffers begin */
	bool first;	       /* the first chunk of the phase: sums are set, not added to */
	float *local;	       /* local buffers, chunk rows each */
	float *sum;	       /* sums over the worker's rows, batch-norm values */
	float *scratch;	       /* within one call of an op */
	dnnl_stream_t stream;
	double loss, weight; /* sums over the worker's rows */
	int error;	     /* the first one */
} __attribute__((aligned(64)));

struct cpu_op {
	int (*run)(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n);
	/* optional: once per worker and phase, before the rows */
	int (*enter)(const struct cpu_op *op, struct cpu_worker *w);
	const struct backend_node *node;
	const void *state;	    /* of the operator's file */
	struct backend_shape in;    /* of the first input */
	int32_t buf[CPU_OPERANDS];  /* buffers; -1: none */
	int32_t share_to, share_of; /* operand share_to may lie where share_of did; -1 */
	enum cpu_mode mode;
	bool sync;	 /* needs what all workers did before */
	bool accumulate; /* adds to what operand 0 holds */
	bool relu;	 /* fused ReLU (its mask in backward) */
	uint64_t sum;	 /* offset in w->sum */
};

/* An activation or gradient: `row` floats for each row of the batch. */
struct cpu_buffer {
	uint64_t row;
	int32_t first, last; /* ops that use it */
	int32_t same;	     /* lies where this other buffer does; -1 */
	bool local;	     /* of one chunk, per worker; else of the whole batch */
	uint64_t offset;     /* floats */
};

struct cpu_phase {
	uint32_t first, count; /* ops */
	enum cpu_mode mode;
	uint32_t chunk; /* rows; CPU_ROWS */
	bool barrier;	/* before it */
	bool reverse; /* last rows first: what the phase before it ended with is still in the cache
		       */
	uint32_t epoch; /* barriers before its ops */
};

/* Sums the slots' part of one tensor's gradient into the gradient arena. */
struct cpu_reduce {
	int (*run)(const struct cpu_reduce *r, struct cpu_worker *w);
	const void *state;
	uint32_t tensor;
	uint32_t op;	/* complete after this one */
	uint32_t epoch; /* done after this many barriers */
	uint64_t sum, count;
	bool again; /* a second node with the same tensor: added */
};

struct cpu_bucket {
	uint64_t offset, length;
	uint32_t epoch; /* final after this many barriers */
};

/* Prepares the packed copy of a kernel; done again whenever parameters have changed. */
struct cpu_pack {
	int (*run)(const struct cpu_pack *p, struct cpu_worker *w);
	const void *state;
	uint64_t packed; /* offset in plan->packed */
	uint32_t tensor;
};

/* Life of an operator's own state. Each may be NULL. */
struct cpu_state_class {
	/* the phases are known; makes primitives, asks for sums, scratch, packed memory */
	int (*prepare)(void *state, struct cpu_net *net, struct cpu_plan *plan,
		       struct backend_error *error);
	/* the memory is there */
	int (*bind)(void *state, struct cpu_net *net, struct cpu_plan *plan);
	void (*undo)(void *state);
};
struct cpu_owned {
	struct cpu_owned *next;
	const struct cpu_state_class *class;
	void *state;
};

struct cpu_plan {
	bool training;
	uint32_t n_ops, n_buffers, n_phases, n_reduces, n_buckets, n_packs;
	struct cpu_op *op;
	struct cpu_buffer *buffer;
	struct cpu_phase *phase;
	struct cpu_reduce *reduce;
	struct cpu_bucket *bucket;
	struct cpu_pack *pack;
	uint32_t epochs;     /* barriers of a run */
	uint32_t *tensor_op; /* [tensor] */
	uint64_t shared_floats, local_floats, sum_floats, scratch_floats, packed_floats;
	float *packed;
	uint64_t packed_version; /* of net->version; 0: none */
	struct cpu_owned *owned;
};

/* What a run of a plan works on; set by the caller before pool_run. */
struct cpu_run {
	const struct cpu_plan *plan;
	const struct backend_batch *batch;
	const float *param, *stat;
	float *stat_out; /* training: statistics are updated there */
	bool want_loss, accumulate;
	float scale;
	float *outputs;
	backend_bucket_fn on_bucket;
	void *context;
};

struct cpu_net {
	struct backend_net base; /* first */
	struct cpu_backend *backend;
	struct loss_plan loss;
	struct cpu_plan train, eval;
	struct cpu_worker *worker;
	uint32_t workers;
	float *memory; /* shared buffers */
	void *arena;   /* everything, one mapping */
	uint64_t arena_bytes;
	uint64_t version; /* + 1 whenever parameters change */
	float *table;	  /* u8 input: 256 values for each channel */
	struct cpu_run run;
	struct cpu_apply *apply;
};

/* Rows [row, ..) of a buffer; for local ones row lies in the current chunk. */
static inline float *cpu_at(const struct cpu_worker *w, int32_t buffer, uint32_t row)
{
	const struct cpu_buffer *b = &w->plan->buffer[buffer];

	if (b->local)
		return w->local + b->offset + (uint64_t)(row - w->chunk) * b->row;
	return w->net->memory + b->offset + (uint64_t)row * b->row;
}

/* Operand k of an op; NULL where absent. */
static inline float *cpu_operand(const struct cpu_op *op, const struct cpu_worker *w, int k,
				 uint32_t row)
{
	return op->buf[k] < 0 ? NULL : cpu_at(w, op->buf[k], row);
}

static inline const struct cpu_loops *cpu_loops_of(const struct cpu_worker *w)
{
	return w->net->backend->loops;
}

/* Tensor k of a node in the parameters of the run; NULL where absent. */
static inline const float *cpu_param(const struct cpu_worker *w, const struct backend_node *node,
				     int k)
{
	int32_t t = node->tensor[k];

	return t < 0 ? NULL : w->net->run.param + w->net->base.graph.tensor[t].offset;
}

static inline const float *cpu_stat(const struct cpu_worker *w, const struct backend_node *node,
				    int k)
{
	return w->net->run.stat + w->net->base.graph.tensor[node->tensor[k]].offset;
}

/* Rows of worker t: [n * t / T, n * (t + 1) / T). */
static inline uint32_t cpu_first_row(uint32_t n, uint32_t t, uint32_t count)
{
	return (uint32_t)((uint64_t)n * t / count);
}

static inline bool cpu_has_rows(const struct cpu_worker *w, uint32_t t)
{
	uint32_t n = w->net->run.batch->n;

	return cpu_first_row(n, t, w->count) != cpu_first_row(n, t + 1, w->count);
}

/* ---- files ------------------------------------------------------------------------------- */

/* plan.c: keeps, for each tensor, the op + 1 that last writes its gradient (0: none). */
int cpu_plan_tensors(struct cpu_plan *plan, const struct backend_graph *graph,
		     const uint32_t *tensor_op, struct backend_error *error);
/* phases and memory of a lowered plan; then the operators make their primitives. */
int cpu_plan_finish(struct cpu_net *net, struct cpu_plan *plan, struct backend_error *error);
int cpu_plan_bind(struct cpu_net *net, struct cpu_plan *plan);
void cpu_plan_free(struct cpu_plan *plan);
/* Most rows that a call of an op with this state is given. */
uint32_t cpu_plan_rows(const struct cpu_net *net, const struct cpu_plan *plan, const void *state);
/* More memory for a state being prepared; sums and packed return the offset. */
uint64_t cpu_plan_sum(struct cpu_plan *plan, uint64_t floats);
uint64_t cpu_plan_packed(struct cpu_plan *plan, uint64_t floats);
void cpu_plan_scratch(struct cpu_plan *plan, uint64_t floats);

/* lower.c */
int cpu_lower(struct cpu_net *net, struct cpu_plan *plan, struct backend_error *error);

/* exec.c: runs the plan of net->run on the pool; the sums of the workers in slot order. */
int cpu_exec(struct cpu_net *net, struct backend_sums *sums);

/* apply.c */
struct cpu_apply *cpu_apply_create(struct cpu_net *net);
void cpu_apply_free(struct cpu_apply *apply);
int cpu_apply(struct backend_net *base, double lr, uint64_t t, struct backend_applied *applied,
	      struct backend_error *error);

/* input.c */
int cpu_input_table(struct cpu_net *net);

#endif
