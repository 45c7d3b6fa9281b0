/* SPDX-License-Identifier: MIT */
/*
 * lab_hosts.h: a job on several daemons of this machine, as the coordinator drives it: LEAD to the
 * first, BEGIN to all, MEMBERS, rows, one agreement, APPLY and RUN to all at once.
 */
#ifndef LAB_HOSTS_H
#define LAB_HOSTS_H

#include "lab.h"

#define LAB_HOSTS 4

struct lab_hosts {
	uint32_t n;
	struct lab *lab; /* n */
	char leader[80];
	struct lab_job lead;	       /* its connection keeps the membership */
	struct lab_job job[LAB_HOSTS]; /* the calls of each host */
	int rc[LAB_HOSTS];	       /* of the last call on all */
	struct ctl_apply_ok applied[LAB_HOSTS];
	struct ctl_run_row row[LAB_HOSTS];
	char note[LAB_HOSTS][512];
};

/* n daemons; more: lines of their configuration. */
void lab_hosts_start(struct lab *lab, uint32_t n, const char *more);
/* The daemons that live end cleanly. */
#define lab_hosts_stop(lab_, n_)                                \
	do {                                                    \
		for (uint32_t lab_i = 0; lab_i < (n_); lab_i++) \
			lab_close(&(lab_)[lab_i]);              \
	} while (0)

/* Ids and connections, LEAD alone. */
void lab_hosts_init(struct lab_hosts *h, struct lab *lab, uint32_t n, uint8_t kind);
/* LEAD, BEGIN everywhere, MEMBERS. 1 admitted by all; 0 some are busy (all released, the turn is
 * kept); negative: job[].err says why. */
int lab_hosts_begin(struct lab_hosts *h, struct lab *lab, uint32_t n, uint8_t kind,
		    const char *spec, uint32_t min_hosts);
/* The same after lab_hosts_init, or for a job that was released: id and start stay. */
int lab_hosts_again(struct lab_hosts *h, const char *spec, uint32_t min_hosts);
/* Host i gets the rows whose place(row) is i, of `rows`. */
void lab_hosts_feed(struct lab_hosts *h, uint8_t set, uint32_t rows,
		    uint32_t (*place)(uint32_t row, uint32_t n));
uint32_t lab_round_robin(uint32_t row, uint32_t n);
uint32_t lab_by_label(uint32_t row, uint32_t n);
/* The parts of all, merged. */
int lab_hosts_agree(struct lab_hosts *h, struct agree_block *agreed);
/* Each sends to all, then waits for all; the first negative result. */
int lab_hosts_apply(struct lab_hosts *h, const struct agree_block *agreed, bool reshuffle);
void lab_hosts_send_apply(struct lab_hosts *h, const struct agree_block *agreed, bool reshuffle);
int lab_hosts_wait_apply(struct lab_hosts *h);
void lab_hosts_send_run(struct lab_hosts *h, uint32_t first, uint32_t count);
int lab_hosts_wait_run(struct lab_hosts *h);
int lab_hosts_run(struct lab_hosts *h, uint32_t first, uint32_t count);
/* END everywhere, connections closed. */
void lab_hosts_end(struct lab_hosts *h);
/* Connections closed, nothing said. */
void lab_hosts_drop(struct lab_hosts *h);
/* Feed by round robin, agree, apply. */
int lab_hosts_ready(struct lab_hosts *h, uint32_t rows);
/* begin .. apply with rows by round robin. */
int lab_hosts_prepare(struct lab_hosts *h, struct lab *lab, uint32_t n, const char *spec,
		      uint32_t rows, uint32_t min_hosts);
void lab_hosts_explain(const struct lab_hosts *h);

/* What STATUS says of a job that is over. False: nothing. */
bool lab_ended(const struct lab *lab, const uint8_t id[CTL_ID], struct ctl_job *out,
	       char reason[257]);
/* Descriptors and threads of a daemon. */
unsigned int lab_count(const struct lab *lab, const char *what); /* "fd", "task" */
/* The running job's merges by STATUS, and what it waits for. */
uint32_t lab_merges(const struct lab *lab);
bool lab_waits(const struct lab *lab, char wait[257]);
/* Steps that it has made, over all epochs, and what it waits for; 0: none runs. */
uint64_t lab_steps(const struct lab *lab, char wait[257]);

#endif
