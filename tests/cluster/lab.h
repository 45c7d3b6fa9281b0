/* SPDX-License-Identifier: MIT */
/*
 * lab.h: a cluster on one machine: a network namespace per host around a bridge in one of its own,
 * a process per host that merges on command, and this process as their coordinator. Needs root.
 */
#ifndef CLUSTER_LAB_H
#define CLUSTER_LAB_H

#include <errno.h>
#include <stdint.h>
#include <sys/types.h>
#include "../../nccl_merge/merge.h"
#include "../tap.h"

#define LAB_HOSTS 4

struct lab_spec {
	const char *preset;
	uint64_t floats;
	uint32_t n, min_hosts;
	uint64_t ring_from;
	uint32_t rate_mbit; /* of each host's link, 0: as fast as it goes */
	bool bf16, ucx;
	uint32_t merge_timeout_ms, user_timeout_ms; /* 0: as they are */
	/* one host that differs */
	uint32_t odd;
	bool odd_secret;
	uint32_t odd_epoch;
};

enum lab_type { LAB_READY = 1, LAB_CONNECTED, LAB_ASK, LAB_MERGED, LAB_ERROR, LAB_ENDED };

/* from a host */
struct lab_report {
	enum lab_type type;
	uint64_t number, checksum, held; /* held: of the parameter arena itself */
	uint32_t epoch, hosts, at_fault, threads;
	int code, files;
	bool untouched, rolled_forward, adopted;
	uint8_t lost[LAB_HOSTS];
	double seconds, failed_after; /* of the merge; until its fault was reported */
	float x0;
	char text[512];
};

struct lab_host {
	pid_t pid;
	int fd;
	bool alive; /* the process, as far as this side knows */
	bool asking, busy;
	bool stopped;		       /* by lab_signal */
	struct lab_report last, error; /* error: text and code of the first fault, code 0: none */
};

struct lab {
	struct lab_spec spec;
	struct lab_host host[LAB_HOSTS];
	uint32_t epoch;
	bool member[LAB_HOSTS];
	uint32_t ignore; /* 1 + a host that lab_serve does not wait for */
	bool rejoin;	 /* late askers are let in again */
	double asked;	 /* when the first of a row of questions came, 0: none */
};

double lab_now(void);
/* Namespaces for LAB_HOSTS hosts; once per program. They go at exit. */
void lab_network(void);
void lab_link(uint32_t host, bool up);
void lab_rate(uint32_t mbit);

/* Starts the processes and meshes; returns the number of hosts that connected. */
uint32_t lab_start(struct lab *lab, const struct lab_spec *spec);
/* Orders a merge of all who are not busy; delay_ms[i]: host i works so long before it. No wait. */
void lab_merge(struct lab *lab, const uint32_t *delay_ms);
/* Serves as coordinator until no member is busy, or seconds have passed; true: nobody is busy. */
bool lab_serve(struct lab *lab, double seconds);
/* Ends the hosts; true: those alive ended at once and left no file and no thread. */
bool lab_stop(struct lab *lab);
void lab_signal(struct lab *lab, uint32_t host, int signal);
/* Lets a stopped host go on, and take part again. */
bool lab_come_back(struct lab *lab, uint32_t host);
/* Until a host that is no member any more has ended with an error. */
bool lab_hear_error(struct lab *lab, uint32_t host, double seconds);
/* All members hold the same bits at the same merge. */
bool lab_equal(const struct lab *lab);

/* host.c: the process of one host */
struct lab_command {
	enum { LAB_GO = 1, LAB_DO_MERGE, LAB_DO_RECOVER, LAB_DECISION, LAB_END } type;
	uint32_t delay_ms;
	int rc;
	struct merge_decision decision;
};
int lab_host_main(const struct lab_spec *spec, uint32_t self, int fd);

#endif
