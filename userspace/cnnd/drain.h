/* SPDX-License-Identifier: MIT */
/*
 * drain.h: the consumer's end of one ring: takes records, puts pieces together to row values and
 * hands these to the data set. Everything in a record is hostile. After an error it keeps taking
 * records and drops them. Used by one thread.
 */
#ifndef CNND_DRAIN_H
#define CNND_DRAIN_H

#include "../data/data.h"
#include "../ring/ring.h"

#define DRAIN_LARGE (4u << 20) /* a value past this is accounted for while it is put together */

struct drain {
	struct ring *ring;
	struct data_feeder *feeder; /* NULL after an error */
	uint64_t max_value;
	/* Accounts for a large value; 0 or -ENOMEM. give is called for every take that gave 0. */
	int (*take)(void *context, uint64_t bytes, struct err *err);
	void (*give)(void *context, uint64_t bytes);
	void *context;

	uint64_t rows;	/* whole values seen, dropped ones too */
	struct err err; /* the first error; kind ERR_NONE: none */
	bool dead;	/* the ring cannot be read any more: closed, or broken */

	/* the value in work */
	bool inside;
	uint8_t *place;
	uint64_t total, have, taken;
};

/* Takes up to max records. 1: took that many, there may be more; 0: empty for now; -EPIPE: dead. */
int drain_some(struct drain *d, unsigned int max);
/* Drops the feeder and what it holds of the value in work. */
void drain_abort(struct drain *d);
/* No more records will come: closes the feeder. 0, or the first error of all. */
int drain_finish(struct drain *d, struct data_counts *counts, struct err *err);

#endif
