/* SPDX-License-Identifier: MIT */
/*
 * pin.h: the memory that a training's rows lie in, pinned for its GPUs, so that they fetch large
 * rows by themselves. It is a help and no condition: what cannot be pinned is copied by the
 * processor.
 *
 * Not the pages of a ring: every record is copied out of its ring once, before anything looks at
 * it, since its producer could still change it; the rows of a job are read from that copy.
 */
#ifndef CNND_PIN_H
#define CNND_PIN_H

#include "daemon.h"

/* Pins rows that were applied, up to half of the memory of all jobs. On the job's thread, while no
 * run is under way. */
void pin_rows(struct job *job);
/* Before the rows are freed. */
void pin_release(struct job *job);

#endif
