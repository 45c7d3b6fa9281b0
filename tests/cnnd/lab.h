/* SPDX-License-Identifier: MIT */
/*
 * lab.h: a cnnd of its own for a test: started as the current user in a new folder under /var/tmp,
 * with a configuration that the test adds to, and stopped at the end, whatever happens. Clients in
 * it are the blocking client of userspace/ctl; rows go through a real ring.
 */
#ifndef LAB_H
#define LAB_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../userspace/ctl/agree.h"
#include "../../userspace/ctl/ctl.h"
#include "../../userspace/ctl/row.h"
#include "../../userspace/ring/ring.h"
#include "../tap.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LAB_SANITIZER 1
#else
#define LAB_SANITIZER 0
#endif

struct lab {
	char dir[64], socket[96], conf[96], log[96];
	pid_t pid;
	double started; /* seconds until the socket answered */
};

double lab_now(void);
void lab_sleep(double seconds);

/* Writes the configuration: the lab's paths, then more (lines, may be ""). */
void lab_configure(struct lab *lab, const char *more);
/* Makes the folder, configures, starts, waits until the socket answers. BAILs when it does not. */
void lab_open(struct lab *lab, const char *more);
/* Starts cnnd in a folder that is there; returns at once. */
void lab_spawn(struct lab *lab);
bool lab_wait_ready(struct lab *lab, double seconds);
/* Sends the signal (0: none), waits for the end; the wait status, or -1 past the time (then
 * killed). */
int lab_stop(struct lab *lab, int sig, double seconds);
/* SIGTERM, waits, removes the folder; the wait status, -1 past the time, -2 the socket is left.
 * show: prints the log. */
int lab_end_all(struct lab *lab, bool show);
/* The counters of tap.h belong to the test's own file. */
static inline void lab_close(struct lab *lab)
{
	is(lab_end_all(lab, tap_failed), 0,
	   "cnnd ends cleanly on SIGTERM and takes its socket along");
}

/* True once the log holds the text. */
bool lab_logged(const struct lab *lab, const char *text, double seconds);
uint64_t lab_rss(const struct lab *lab);  /* bytes, of the daemon alone */
uint64_t lab_held(const struct lab *lab); /* bytes of memory that jobs hold, by DEVICES */
int lab_jobs(const struct lab *lab);	  /* by STATUS */
/* Waits until no job is there; false past the time. */
bool lab_idle(const struct lab *lab, double seconds);

/* A connection without a HELLO; BAILs. */
struct ctl_conn *lab_connect_raw(const struct lab *lab);
/* A greeted connection for a role of a database, as the extension makes it; BAILs. */
struct ctl_conn *lab_connect(const struct lab *lab, const char *role);

/* ---- lab_job.c: requests of a job ---- */

struct lab_job {
	struct ctl_conn *conn;
	uint8_t id[CTL_ID], secret[CTL_ID];
	uint8_t kind;
	uint64_t start_us;
	const char *role;
	const char *leader; /* 'address port' of a job on several hosts; NULL */
	char address[80];   /* where its daemon merges, by BEGIN_OK */
	struct err err;	    /* of the last call */
};

/* A message with the job's id and secret. */
void lab_message(const struct lab_job *job, enum ctl_type type, struct ctl_msg *msg);
/* Request and answer; 0, or negative with job->err. */
int lab_call(struct lab_job *job, struct ctl_msg *msg, enum ctl_type wanted);
/* The two halves of it, for calls on several hosts at once. */
int lab_send(struct lab_job *job, const struct ctl_msg *msg);
int lab_wait(struct lab_job *job, struct ctl_msg *msg, enum ctl_type wanted);

/* A spec: the small network of the tests and more keys ("\"epochs\": 3", or ""). Static buffer. */
const char *lab_spec(const char *more);
extern const char *const lab_architecture; /* 8x8x1, three classes, JSON text */

/* New id and secret; its own connection. */
void lab_job_init(struct lab_job *job, const struct lab *lab, const char *role, uint8_t kind);
void lab_job_free(struct lab_job *job);
/* 1 admitted, 0 busy (reason in err.message), negative error. */
int lab_begin(struct lab_job *job, const char *spec);
int lab_watch(struct lab_job *job);
int lab_end(struct lab_job *job);

/* The producer's end of a feed. */
struct lab_feed {
	struct lab_job *job;
	struct ring *ring;
	uint64_t rows, bytes, max_value;
};
int lab_feed_open(struct lab_job *job, uint8_t set, struct lab_feed *feed);
/* Writes one row value, in pieces where it is large. 0 or -errno. */
int lab_feed_value(struct lab_feed *feed, const void *value, size_t bytes);
/* The i-th row of the test's data: 64 bytes of x, an integer label; 3 classes that can be told
 * apart. */
int lab_feed_row(struct lab_feed *feed, uint32_t i);
int lab_feed_label(struct lab_feed *feed, uint32_t i, int64_t label);
/* FEED_END; counts may be NULL. */
int lab_feed_close(struct lab_feed *feed, struct ctl_feed_done *done);
void lab_feed_drop(struct lab_feed *feed);
/* x of the i-th row, and its class. */
int lab_row(uint32_t i, uint8_t x[64]);
/* Row value in row.h's form: ROW_HEAD + 4 + 8 + 64 bytes at most. */
size_t lab_value(uint32_t i, int64_t label, bool has_label, uint8_t *out);

/* Opens a feed, n rows from the first, FEED_END. */
int lab_feed_rows(struct lab_job *job, uint8_t set, uint32_t first, uint32_t n);
/* AGREE; the agreed block made of the one part. agree_free it. */
int lab_agree(struct lab_job *job, struct agree_block *agreed);
int lab_apply(struct lab_job *job, const struct agree_block *agreed, struct ctl_apply_ok *out);
int lab_run(struct lab_job *job, uint32_t first, uint32_t count, struct ctl_run_row *row);
/* All parts of a kind; malloc'd. */
int lab_get(struct lab_job *job, uint32_t kind, uint8_t **data, uint64_t *bytes);
int lab_put(struct lab_job *job, uint32_t kind, const uint8_t *data, uint64_t bytes);
/* AGREE; the part as it came. agree_free it. */
int lab_part(struct lab_job *job, struct agree_block *part);
/* begin .. apply with n training rows. */
int lab_prepare(struct lab_job *job, const char *spec, uint32_t n, struct agree_block *agreed);

#endif
