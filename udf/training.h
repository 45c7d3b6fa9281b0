/* SPDX-License-Identifier: MIT */
/*
 * training.h: what the files of gpu_cnn_train share: train.c (checks, feed, store, result), warm.c
 * (the start from another model) and epochs.c (the iterations).
 */
#ifndef GPU_CNN_TRAINING_H
#define GPU_CNN_TRAINING_H

#include "gpu_cnn.h"

/* Of an iteration; NaN: there is none. */
struct figures {
	uint32 epoch;
	double loss, validation_loss;
	char *metrics; /* JSON, palloc'd; NULL: none */
};

struct training {
	struct driver driver;
	struct arguments args;
	struct model model;
	struct source source, validation;
	struct columns columns, validation_columns;
	bool has_validation;
	bool cache; /* false: cnnd drops the rows after each run, and is fed again */
	char *architecture, *spec;
	Datum start_weights; /* from the table of architectures, 0: none */
	struct fed fed, validation_fed;
	struct model warm_model; /* warm_start: another model */
	struct model_summary warm;
	bool has_warm;
	struct agree_block *agreed;
	Datum agreed_blob;
	struct ctl_apply_ok apply;
	enum reshuffle reshuffle;

	/* of the run */
	struct ctl_run_row last; /* its note is not kept */
	uint32 epochs;		 /* complete ones */
	struct figures kept;	 /* of the weights that are stored */
	struct figures best;	 /* of the iteration that improved last, by what cnnd monitors */
	bool has_best, restore;
	uint32 merge_every;   /* of merge_every = 'auto', once it is chosen */
	double learning_rate; /* of the first iteration */
	uint64 merges, merge_bytes;
	double seconds_feed, seconds_train, seconds_merge, seconds_evaluate, seconds_store;
};

/* train.c: rows of all sources to the daemons. */
void training_feed(struct training *t);

/* warm.c: reads the other model's summary, before the job. */
void warm_start_find(struct training *t);
/* Between agreement and apply: the other model's normalization, unless another one was asked for.
 */
void warm_start_agree(struct training *t);
/* After apply: weights, and the optimizer's state where the optimizer is the same. */
void warm_start_put(struct training *t);
/* A value of a JSON object, as text; NULL: not there. */
char *parameter_text(const char *json, const char *key);

/* epochs.c: all iterations, each with its row in MODEL_history. */
void training_run(struct training *t);

void args_number(struct args *args, double v); /* NaN: null */
double milliseconds(double seconds);	       /* seconds, rounded to .001 */

#endif
