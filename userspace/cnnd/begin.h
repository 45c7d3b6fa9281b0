/* SPDX-License-Identifier: MIT */
/*
 * begin.h: BEGIN: reads the spec, opens the model with what is known, asks for admission, reserves
 * memory and puts the job into the table; or joins another segment's BEGIN of the same job. Answers
 * admitted, busy, or an error, at once. On a desk thread; the begin of a job on several hosts goes
 * on on the job's thread (work_begin), once it is admitted.
 */
#ifndef CNND_BEGIN_H
#define CNND_BEGIN_H

#include "session.h"

/* False: the job's thread will finish the call. */
bool begin_serve(struct call *c);
/* An empty data set for the job: at BEGIN, and where rows are to be fed again. */
int begin_open_data(struct job *job, struct err *err);

#endif
