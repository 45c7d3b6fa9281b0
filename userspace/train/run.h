/* SPDX-License-Identifier: MIT */
/* run.h: a run under way, between run.c, step.c, update.c and row.c only. */
#ifndef TRAIN_RUN_H
#define TRAIN_RUN_H

#include "hosts.h"

enum bad_what { BAD_NONE = 0, BAD_LOSS, BAD_GRADIENT, BAD_WEIGHT, BAD_VALIDATION };

/* Where NaN or Inf was found. Travels between hosts. */
struct run_bad {
	uint32_t what; /* enum bad_what */
	uint32_t host; /* identity */
	uint32_t epoch;
	uint32_t infinite;
	uint64_t step;
};

struct run {
	struct train *t;
	struct data_reader *reader;
	double lr_factor, lr;
	uint32_t epoch;
	uint64_t step;			  /* of this epoch, in work */
	uint64_t epoch_rows, epoch_steps; /* of the epoch; rows: of this host */
	uint64_t rows, steps;		  /* of the run */
	double loss;			  /* sum over the epoch's rows, regularisers included */
	bool stopped;
	bool bad_everywhere; /* all hosts know of bad */
	struct run_bad bad;
	double compute; /* seconds in steps, without calls between hosts */
};

struct update {
	uint64_t number;      /* over the whole training */
	uint64_t first, last; /* its steps of the epoch, [first, last) */
	uint64_t rows;	      /* behind it, over everyone who synchronises it */
	bool shared;	      /* synchronous over the hosts */
	float scale;
	double penalty;
};

/* ---- step.c: gradients of one update on this host ---- */

/* The gradients' sum in every replica's arena; applied already where *applied. Of an update that is
 * shared with other hosts: in the host arena of replica 0. */
int train_gradients(struct run *run, const struct update *update, bool *applied, struct err *err);
/* take: what is in that arena becomes the gradient of all replicas first. */
int train_apply(struct run *run, bool take, struct err *err);
void train_found(struct run *run, enum bad_what what, bool infinite);

/* ---- update.c: one update, here or with the other hosts ---- */

int train_update(struct run *run, uint64_t number, struct err *err);
/* A merge of weights at once, whatever the schedule says. */
int train_merge_now(struct run *run, struct err *err);
/* The state to go back to. done: steps of the epoch that are behind it. */
int train_keep_good(struct run *run, uint64_t done, struct err *err);
int train_restore_good(struct run *run, struct err *err);
int train_weights_finite(struct train *train, bool *finite, struct err *err);

/* ---- row.c ---- */

void train_row_start(const struct ctl_run *run, struct ctl_run_row *row);
void train_row_bad(struct run *run, struct ctl_run_row *row);
void train_row_stopped(struct run *run, struct ctl_run_row *row);
void train_row_best(struct train *train, struct ctl_run_row *row);
/* What the hosts found; run->bad becomes that of the first. */
int train_row_gather_bad(struct run *run, struct err *err);
/* Figures of the run, over all hosts. */
int train_row_fill(struct run *run, struct ctl_run_row *row, struct err *err);

#endif
