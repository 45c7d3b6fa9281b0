/* SPDX-License-Identifier: MIT */
/*
 * hosts.h: what one host of a training on several knows of the others, and the calls that all of
 * them make together. A host has an identity, its rank when the training was made, which stays; its
 * rank changes when others are lost.
 *
 * Calls are numbered. Each is made by all or by none: when one fails, the survivors recover
 * (merge_recover), compare the numbers of their calls, and whoever has seen a call's data takes it
 * as made if any survivor does; otherwise all make it again without those that are gone.
 */
#ifndef TRAIN_HOSTS_H
#define TRAIN_HOSTS_H

#include "internal.h"

/* What must be equal on all hosts: arguments by name, then what was agreed. */
enum train_same {
	SAME_EPOCHS = 0,
	SAME_BATCH,
	SAME_ACCUMULATE,
	SAME_SEED,
	SAME_LOSS,
	SAME_OPTIMIZER,
	SAME_LEARNING_RATE,
	SAME_SCHEDULE,
	SAME_SCALING,
	SAME_METRICS,
	SAME_EVALUATE,
	SAME_FRACTION,
	SAME_EARLY_STOP,
	SAME_AUGMENT,
	SAME_AVERAGE,
	SAME_CLASS_WEIGHT,
	SAME_NORMALIZE,
	SAME_PRECISION,
	SAME_DETERMINISTIC,
	SAME_CACHE,
	SAME_MERGE,
	SAME_MERGE_EVERY,
	SAME_MERGE_WARMUP,
	SAME_MERGE_MOMENTUM,
	SAME_MERGE_WIRE,
	SAME_AGREED_ROWS,
	SAME_AGREED_CLASSES,
	SAME_AGREED_WEIGHTS,
	SAME_AGREED_SCALE,
	TRAIN_SAME
};
void train_same_fill(const struct train_setup *setup, uint64_t hash_of[TRAIN_SAME]);
/* Whether they differ; text: the names of what does. */
bool train_same_differ(const uint64_t a[TRAIN_SAME], const uint64_t b[TRAIN_SAME], char *text,
		       size_t size);

struct host_facts {
	uint64_t rows, validation_rows;
	uint32_t replicas;
};

struct hosts {
	struct merge_net *net;
	uint32_t self;				 /* identity of this host */
	uint32_t n_start, n;			 /* hosts at the start, and now */
	uint32_t member[MERGE_HOSTS_MAX];	 /* identity of each rank */
	struct host_facts fact[MERGE_HOSTS_MAX]; /* by identity */

	uint64_t done, staged; /* number of the last call that was made, of one with all data */
	uint32_t flags;	       /* MERGE_FLAG_* of the last call */
	uint8_t *gather;       /* n_start * gather_bytes: what the others said */
	uint8_t *say;	       /* gather_bytes, for what this host says */
	uint64_t gather_bytes;
	double seconds; /* in calls; set to 0 by the user */

	struct merge_config config;
	struct merge *merge;
	struct merge_arenas arenas; /* of replica 0 */
	float *slot[TRAIN_SLOTS_MAX];
	struct merge_result last;
	uint64_t merges, bytes; /* of the run */
	double distance;
	bool started;	      /* local steps have begun, from equal parameters */
	bool apart;	      /* hosts may hold different parameters now */
	bool fresh;	      /* the weights came from outside: not yet known to be equal */
	uint64_t since;	      /* planned local updates since the last merge */
	uint64_t samples;     /* rows of this host since then */
	uint64_t pulse;	      /* local updates between two words, so that nobody waits long */
	uint64_t beat;	      /* local updates since the last call */
	double beat_seconds;  /* of this host in them */
	double pulse_seconds; /* wished between two words */
};

/* Tells all others this host's facts, learns theirs. trouble: what this host failed with, or NULL;
 * then all fail. Fills t->hosts, rows of all, steps. */
int train_hosts_open(struct train *train, const struct err *trouble, struct err *err);
int train_hosts_memory(struct train *train, uint64_t *bytes, struct err *err);
/* After the nets are there. */
int train_hosts_merge_open(struct train *train, struct err *err);
void train_hosts_free(struct train *train);
const char *train_hosts_name(const struct train *train, uint32_t identity, char room[32]);

/* bytes <= gather_bytes from each host, in rank order, n of them; valid until the next call. */
int train_hosts_gather(struct train *train, const void *in, size_t bytes, const uint8_t **out,
		       uint32_t *n, struct err *err);
/* One word from each: all of them or'ed. */
int train_hosts_word(struct train *train, uint32_t word, uint32_t *all, struct err *err);
/*
 * One merge, of weights or of gradients. rows: the rows behind the gradient, over all hosts; if
 * hosts are lost the gradient is scaled to what is left. *flags: in, of this host; out, of all.
 */
int train_hosts_merge(struct train *train, double lr, uint32_t *flags, struct err *err);
int train_hosts_gradient(struct train *train, uint64_t first, uint64_t last, uint64_t *rows,
			 uint32_t *flags, struct err *err);
/* merge_copy into copy_param and copy_stat. stat: this host's. */
int train_hosts_copy(struct train *train, const float *stat, struct err *err);

/* Rows of all hosts in steps [first, last). */
uint64_t train_hosts_rows(const struct train *train, uint64_t first, uint64_t last);
/* Whether the hosts that are left have validation rows. */
bool train_hosts_validation(const struct train *train);
/* Rows of step s on the hosts before this one. */
uint64_t train_hosts_position(const struct train *train, uint64_t s);

#endif
