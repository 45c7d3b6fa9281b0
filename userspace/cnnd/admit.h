/* SPDX-License-Identifier: MIT */
/*
 * admit.h: who may begin now. No queue is held: a job that cannot begin is answered busy at once
 * and asks again; the oldest (start time, job id) of those that asked within ADMIT_WINDOW_MS goes
 * first. Trainings and predictions (evaluations with them) have slots of their own. Pure: knows no
 * socket and no clock. Not locked: the callers hold the daemon's lock.
 */
#ifndef CNND_ADMIT_H
#define CNND_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/err.h"
#include "../ctl/ctl.h"

#define ADMIT_WINDOW_MS 5000u
#define ADMIT_REASON 192

enum admit_slot { ADMIT_TRAINING = 0, ADMIT_PREDICTION = 1, ADMIT_SLOTS = 2 };

struct admit;

struct admit_ask {
	uint8_t job[CTL_ID];
	uint64_t start_us;
	enum admit_slot slot;
};

struct admit_limits {
	uint32_t slots[ADMIT_SLOTS]; /* max_trainings, max_predictions */
	uint32_t max_jobs_per_role, max_queue;
};

struct admit_load {
	uint32_t running[ADMIT_SLOTS];
	uint32_t jobs_of_role;	 /* in the slot that is asked for */
	uint32_t jobs_of_client; /* of these and others, those of the process that asks */
	const char *device;	 /* name, for the reason */
};

int admit_create(struct admit **out);
void admit_free(struct admit *a);

/* 1 may begin (and is forgotten as an asker), 0 busy with the reason, -ENOBUFS or -EDQUOT:
 * ERR_LIMIT that names limit and value. */
int admit_try(struct admit *a, const struct admit_ask *ask, const struct admit_limits *limits,
	      const struct admit_load *load, uint64_t now_ms, char reason[ADMIT_REASON],
	      struct err *err);
/* Puts a job on the list of askers: one that was admitted here and released because another host
 * was busy keeps its place, and so does one that could begin but for memory. */
void admit_remember(struct admit *a, const struct admit_ask *ask, uint64_t now_ms);
void admit_forget(struct admit *a, const uint8_t job[CTL_ID]);
/* Distinct jobs that asked within the window. */
uint32_t admit_count(struct admit *a, uint64_t now_ms);

#endif
