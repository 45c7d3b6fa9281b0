/* SPDX-License-Identifier: MIT */
/*
 * internal.h: what the files of nccl_merge/ share. A net is a table of a few calls; everything
 * above it (direct and ring all-reduce, adasum, the commit) is written once in terms of rounds.
 */
#ifndef MERGE_INTERNAL_H
#define MERGE_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include "merge.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Same results on both: no contraction, f64 sums in a fixed order. */
#define MERGE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define MERGE_CLONES
#endif

int merge_fail(struct merge_error *error, int code, uint32_t host, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
double merge_now(void); /* seconds, monotonic */
uint64_t merge_hash(uint64_t seed, const void *data, size_t bytes);
/* n zeroed floats on a 64-byte boundary, or NULL; free() them */
float *merge_floats(uint64_t n);

/* ---- rounds ------------------------------------------------------------------------------- */

/*
 * One exchange with one peer: send_len bytes out, recv_len bytes in, both known beforehand; then,
 * in a round of two parts, send2_len and recv2_len, of which *ready bytes may be sent so far.
 */
struct merge_xfer {
	uint32_t peer; /* rank */
	const void *send;
	size_t send_len;
	void *recv;
	size_t recv_len;
	const void *send2;
	size_t send2_len;
	void *recv2;
	size_t recv2_len;
	const size_t *ready;
	size_t sent,
		received; /* progress over both parts; what counts as received has been verified */
};

struct merge_round {
	const char *what; /* for messages: "reduce-scatter" */
	uint64_t merge;	  /* number, checked by the peers */
	struct merge_xfer *x;
	uint32_t n;
	bool two_parts;			 /* on all ranks */
	void (*progress)(void *context); /* something was received; may be NULL */
	void *context;
};

struct merge_net_ops {
	int (*round)(struct merge_net *net, struct merge_round *round, struct merge_error *error);
	int (*recover)(struct merge_net *net, struct merge_error *error);
	void (*close)(struct merge_net *net);
	/* Breaks what waits in the others; any thread. May be NULL. */
	void (*abort)(struct merge_net *net);
	/* Ends this membership for all and names who is to blame. May be NULL. */
	void (*fault)(struct merge_net *net, int code, uint32_t rank, const char *text);
	/* Name and identity of a rank, for messages. May be NULL: the rank itself. */
	uint32_t (*identity)(const struct merge_net *net, uint32_t rank, const char **name);
};

struct merge_net {
	const struct merge_net_ops *ops;
	uint32_t rank, size, epoch;
	uint64_t ring_from; /* bytes; 0: by the fixed table */
	uint64_t sent;	    /* payload bytes */
	uint64_t number;    /* of the merge at hand, put into every frame */
	atomic_bool aborted;
	void *scratch, *lent;
	size_t scratch_bytes, lent_bytes;
};

/* What a merge lends, if it is enough, else memory that the net keeps. NULL: no memory */
void *merge_net_scratch(struct merge_net *net, size_t bytes);
/* One round; -ECANCELED once the net was aborted. */
int merge_net_round(struct merge_net *net, struct merge_round *round, struct merge_error *error);
/* Ends this membership for all: rank did what text says. Returns code. */
int merge_net_fault(struct merge_net *net, int code, uint32_t rank, const char *text,
		    struct merge_error *error);

/* ---- reductions ---------------------------------------------------------------------------- */

enum merge_reduction {
	MERGE_REDUCE_SUM = 0,
	MERGE_REDUCE_MEAN,
	MERGE_REDUCE_MAX,
	MERGE_REDUCE_MIN,
	MERGE_REDUCE_FIRST,
	MERGE_REDUCE_MEDIAN,
	MERGE_REDUCE_TRIMMED
};

struct merge_reduce {
	enum merge_reduction op;
	uint32_t n;		/* inputs */
	const uint64_t *weight; /* mean: n counts */
	uint32_t trim;
	const struct merge_table *table; /* policies of a parameter arena, or NULL */
	bool delta;	       /* inputs are x - x_i: a counter's largest is the smallest */
	bool bf16;	       /* inputs and output are bf16 */
	const float *carry_in; /* bf16: residual of the owner, by arena offset */
	float *carry_out;
};

/* out[i] = reduction of in[k][i]; in and out start at element `offset` of the arena. */
void merge_reduce_range(const struct merge_reduce *reduce, uint64_t offset, uint64_t count,
			const void *const in[], void *out);

/* Largest number of bytes for which direct is used with n hosts. */
uint64_t merge_ring_threshold(uint32_t n);
uint64_t merge_algorithm_hash(uint64_t ring_from);
/* All-reduce over a net, direct or ring; *ring tells which. in and out differ. */
int merge_reduce_all(struct merge_net *net, const struct merge_reduce *reduce, const void *in,
		     void *out, uint64_t count, bool *ring, struct merge_error *error);
/* Bytes that merge_reduce_all takes of the scratch for count floats, at most n hosts. */
size_t merge_reduce_scratch(uint64_t count, uint32_t n);

/* other: count floats; dots: 3 * table->n; all: that for the largest power of two of hosts. */
struct merge_adasum {
	float *other;
	double *dots, *all;
};
int merge_adasum_all(struct merge_net *net, const struct merge_table *table,
		     const struct merge_adasum *work, float *delta, uint64_t count,
		     struct merge_error *error);

#endif
