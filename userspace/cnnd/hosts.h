/* SPDX-License-Identifier: MIT */
/*
 * hosts.h: what a job on several hosts has beside its link (link.h): the listener of its merges
 * from BEGIN on, the mesh from APPLY on, the exchange of rows. On the job's thread; all of it ends
 * with the job.
 */
#ifndef CNND_HOSTS_H
#define CNND_HOSTS_H

#include "daemon.h"

/* BEGIN: links to the leader and opens the listener. */
int hosts_open(struct job *job, struct err *err);
/* APPLY with more than one host: the mesh of all. */
int hosts_connect(struct job *job, const struct ctl_apply *a, struct err *err);
/* An evaluation: which set is evaluated, the same on all hosts. */
int hosts_set(struct job *job, enum row_set *set, struct err *err);
/* Several hosts' setup of a training. */
void hosts_setup(struct job *job, struct train_setup *setup);
/* A call has failed: the other hosts may wait for this one, and learn at once that it does not
 * come. Nothing for a job on this host alone. */
void hosts_failed(struct job *job, const struct err *err);
void hosts_close(struct job *job);
/* An error of the merge library as one of the daemon's. Returns rc. */
int hosts_err(struct err *err, int rc, const struct merge_error *why, const char *what);

/* exchange.c: every host gets an even share of all training rows. */
int exchange_rows(struct job *job, struct err *err);

#endif
