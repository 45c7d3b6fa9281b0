/* SPDX-License-Identifier: MIT */
/*
 * history.h: the last jobs that have ended here: why, and the checksum of the weights they gave
 * out. Lets a late request learn what became of its job, and SIGUSR1 print the list. Callers hold
 * the daemon's lock, except for history_sum.
 */
#ifndef CNND_HISTORY_H
#define CNND_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/err.h"
#include "../ctl/ctl.h"

#define HISTORY_JOBS 16

struct history_entry {
	uint8_t id[CTL_ID];
	char role[257];
	char database[257], model[257], device[64];
	enum ctl_job_kind job_kind;
	uint64_t merges, merge_checksum; /* of the last committed merge */
	enum err_kind kind;
	char reason[256];
	bool has_checksum;
	uint64_t checksum;
	double seconds;
};

struct history;

int history_create(struct history **out);
void history_free(struct history *h);
void history_add(struct history *h, const struct history_entry *entry);
/* NULL: not among the last HISTORY_JOBS. */
const struct history_entry *history_find(const struct history *h, const uint8_t id[CTL_ID]);
/* The i-th, newest first; NULL past the end. */
const struct history_entry *history_at(const struct history *h, unsigned int i);

/* XXH3-64 over the parts of a weight blob as they are sent out. */
struct history_sum;
struct history_sum *history_sum_new(void);
void history_sum_free(struct history_sum *sum);
void history_sum_add(struct history_sum *sum, const void *data, uint64_t bytes);
uint64_t history_sum_value(const struct history_sum *sum);

#endif
