/* SPDX-License-Identifier: MIT */
/*
 * work.h: a job's own thread: takes the job's heavy calls one after the other, in the order they
 * came, and takes the job apart when it has ended. Handlers are in prepare.c (AGREE, APPLY), run.c
 * (RUN, GET, PUT) and collect.c (COLLECT, PREDICT, BAD_ROWS); each answers its call.
 */
#ifndef CNND_WORK_H
#define CNND_WORK_H

#include "job.h"
#include "session.h"

void *work_thread(void *job);
/* Is this a request for a job's thread; then where its secret is. */
bool work_takes(const struct ctl_msg *msg, const uint8_t **secret);

/* Each returns 0 after answering, or an error that the caller answers with. The job may have ended
 * meanwhile; then the call is answered already and answering again does nothing. */
int work_begin(struct job *job, struct call *c, struct err *err); /* begin.c */
int work_agree(struct job *job, struct call *c, struct err *err);
int work_apply(struct job *job, struct call *c, struct err *err);
int work_run(struct job *job, struct call *c, struct err *err);
int work_get(struct job *job, struct call *c, struct err *err);
int work_put(struct job *job, struct call *c, struct err *err);
int work_collect(struct job *job, struct call *c, struct err *err);
int work_predict(struct job *job, struct call *c, struct err *err);
int work_bad_rows(struct job *job, struct call *c, struct err *err);

/* Sets what the job waits for, as heartbeats and STATUS tell it. */
void work_wait(struct job *job, const char *wait);
void work_state(struct job *job, enum job_state state);
/* An answer frame with the job's id. */
void work_message(const struct job *job, struct ctl_msg *msg, enum ctl_type type);
/* ERR_PARAM unless the job is ready or running. */
int work_need_ready(const struct job *job, struct err *err);
/* cache = false: takes the rows that were fed again, before the next run. */
int work_rows_again(struct job *job, struct err *err);

#endif
