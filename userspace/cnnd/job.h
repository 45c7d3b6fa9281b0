/* SPDX-License-Identifier: MIT */
/*
 * job.h: the table of jobs: finding one with its secret, its end, its calls. A job belongs to
 * (job id, daemon), never to a connection; what ends it: END, the end of a connection that watches
 * it or that is inside a call or a feed of it, a deadline, the daemon's stop.
 */
#ifndef CNND_JOB_H
#define CNND_JOB_H

#include "daemon.h"
#include "log.h"

extern const char *const job_kind_name[3];
const char *job_state_name(const struct job *job);
void job_log_tag(const struct job *job, struct log_tag *tag, const char *code);

/* ---- daemon.lock held ---- */

struct job *job_find(struct daemon *d, const uint8_t id[CTL_ID]);
/* With the secret (compared in constant time) and the owner's role. 0, -ENOENT, -EPERM. An ended
 * job that is being torn down is not there any more. */
int job_lookup(struct session *s, const uint8_t id[CTL_ID], const uint8_t secret[CTL_ID],
	       struct job **out, struct err *err);
bool job_secret_fits(const struct job *job, const uint8_t secret[CTL_ID]);

/* Ends a job: its calls are answered with the reason, its training is cancelled, its rings close;
 * its thread then takes it apart. Does nothing to a job that has ended. */
void job_end(struct job *job, enum err_kind kind, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* What the end of a connection does to its jobs. */
void job_session_closed(struct session *s, const char *why);
void job_watch(struct job *job, struct session *s);
/* Puts a call into the queue of the job's thread. */
void job_submit(struct job *job, struct call *c);
/* A job with neither watchers, calls nor feeds is an orphan since job->idle_ms. */
void job_check_idle(struct job *job, uint64_t now);
uint32_t job_count(const struct daemon *d, enum admit_slot slot, bool torn_down_too);
uint32_t job_count_client(const struct daemon *d, enum admit_slot slot, pid_t pid);
uint32_t job_count_role(const struct daemon *d, enum admit_slot slot, const char *role);

/* ---- a job's own thread ---- */

/* Gives back everything and removes it from the table; answers the END calls. No lock held. */
void job_teardown(struct job *job);

/* Makes a job's struct (not in the table). NULL: out of memory. */
struct job *job_new(struct daemon *d, const struct session *s, const struct ctl_msg *begin);
/* Takes apart what job_new and begin.c made, of a job that was never in the table. */
void job_discard(struct job *job);

#endif
