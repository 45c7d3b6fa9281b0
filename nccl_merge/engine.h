/* SPDX-License-Identifier: MIT */
/*
 * engine.h: the state of one merging replica, shared by engine.c (what is computed), commit.c (when
 * it becomes true) and recover.c (after a fault).
 */
#ifndef MERGE_ENGINE_H
#define MERGE_ENGINE_H

#include "internal.h"

#define MERGE_MAX_SLOTS 4

/* What a merge has computed and nobody has seen yet. */
struct merge_stage {
	bool valid, gradient;
	uint64_t number, checksum;
	double lr;
	float *x, *m; /* next common start (easgd: c) and outer momentum */
	float *param; /* easgd: next x_i; gradient: the sum; else unused */
	float *stat;
	float *carry, *carry_owner; /* bf16 residuals */
	float *slot[MERGE_MAX_SLOTS];
	uint32_t n_slots;
};

/* What every host tells before a merge; equal in all but samples. */
struct merge_info {
	uint64_t number, config, samples, stat;
	uint32_t slots, flags;
};

/* What is said, and what came of it. */
struct merge_tell {
	uint64_t number, config, samples;
	uint32_t slots, flags; /* flags: in and out, of all hosts together */
	const float *stat;     /* of this host, or NULL: none are sent */
	float *stat_out;       /* pooled; of rank 0 if first */
	bool first;
	uint64_t *all_samples; /* out, by rank */
};

/* What every host tells when it has staged. */
struct merge_report {
	uint64_t number, checksum;
	double distance2; /* |x_i - xbar|^2 */
};

struct merge {
	struct merge_config config;
	struct merge_table table;
	float *block;	/* all of the state: x, m, .. and the staging copies */
	float *work;	/* what depends on the number of hosts: */
	uint32_t hosts; /* for which it is enough */
	char *told;	/* statistics of all */
	float *scratch; /* of the all-reduce */
	struct merge_adasum adasum;
	float *more_slot[MERGE_MAX_SLOTS]; /* past config.slots */
	uint64_t config_hash;
	uint64_t number, checksum; /* committed */
	uint32_t number_epoch;	   /* of the membership that committed it */
	double lr_previous;
	bool started;
	float *x, *m, *carry, *carry_owner;
	uint32_t carry_epoch; /* owners change with the membership */
	float *delta;	      /* work: what this host sends */
	uint16_t *half, *half_out;
	struct merge_stage stage;
};

/* Work for n hosts; allocates only if there were never so many. */
int merge_work(struct merge *m, uint32_t n, struct merge_error *error);
/* Samples, flags and statistics of all hosts, and that all mean the same merge. */
int merge_tell(struct merge *m, struct merge_net *net, struct merge_tell *tell,
	       struct merge_error *error);

/* Everything below stages only. */
int merge_stage_weights(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
			const uint64_t *samples, double lr, double *distance2, bool *ring,
			struct merge_error *error);
/* The barrier: all hosts have staged the same; then it becomes true here. */
int merge_commit(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		 const uint64_t *samples, double distance2, double *distance,
		 struct merge_error *error);
void merge_apply_stage(struct merge *m, const struct merge_arenas *arenas);
uint64_t merge_stage_checksum(const struct merge *m);

#endif
