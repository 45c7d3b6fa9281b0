/* SPDX-License-Identifier: MIT */
/*
 * perf.h: merge_perf measures merges and prints them as nccl-tests does, so that scripts which read
 * the one read the other. docs/merge.md derives every column.
 */
#ifndef MERGE_PERF_H
#define MERGE_PERF_H

#include <stdatomic.h>
#include <stdio.h>
#include "../merge.h"

enum perf_level { PERF_INTRA, PERF_INTER, PERF_HIER };

struct perf_options {
	uint64_t min_bytes, max_bytes, step_bytes, step_factor;
	uint64_t iters, warmup, aggregate, cycles;
	uint64_t check; /* checked runs */
	int average;	/* 0 rank 0, 1 mean, 2 smallest, 3 largest */
	uint32_t threads, per_thread, hosts;
	unsigned int timeout; /* seconds, 0: the library's */
	bool cpu_time, timestamps, no_mac, gpus;
	enum merge_op op_first, op_last; /* -o all: more than one */
	const char *json, *merge;	 /* merge: a preset, NULL: plain all-reduce */
	enum perf_level level;
	enum merge_wire wire;
	enum merge_transport transport;
	const char *ucx_tls, *ucx_devices;
	uint64_t ring_from;
	const char *netns, *address, *cpus; /* lists with commas, one per host */
	int argc;
	char **argv;
};

/* 0: go on, 1: help was printed, 2: an error was printed */
int perf_parse(int argc, char **argv, struct perf_options *out);

#define PERF_RANKS 64

/* One measurement of one rank. */
struct perf_sample {
	double seconds, cpu; /* per operation; of the whole measurement */
	double wall;
	uint64_t wrong;
};

/* Memory that all ranks share: threads here, or processes. */
struct perf_shared {
	_Atomic uint32_t port[PERF_RANKS];
	_Atomic uint32_t failed;
	char error[PERF_RANKS][512];
	struct perf_sample sample[PERF_RANKS][2]; /* out of place, in place */
};

struct perf_row {
	uint64_t bytes, count;
	const char *redop;
	struct perf_sample place[2];
	bool has[2];
	double algbw[2], busbw[2], cores;
};

struct perf_rank;
struct perf_team;
struct perf_level_ops {
	/* everything that is done once; arenas of count floats */
	int (*open)(struct perf_rank *k);
	/* one operation, in place or not */
	int (*run)(struct perf_rank *k, bool in_place);
	/* all ranks meet */
	int (*meet)(struct perf_rank *k);
	void (*close)(struct perf_rank *k);
	/* before a checked run: merges start at zero again; may be NULL */
	void (*fresh)(struct perf_rank *k);
	bool place[2]; /* which of the two columns there are */
	/* arenas that lie elsewhere: own[] goes there, and comes from there; may be NULL */
	int (*push)(struct perf_rank *k);
	int (*pull)(struct perf_rank *k);
};

struct perf_rank {
	const struct perf_options *o;
	struct perf_shared *shared;
	const struct perf_level_ops *ops;
	uint32_t rank, ranks;	  /* threads, of all hosts; each is timed */
	uint32_t hosts, per_host; /* replicas of a host; intra: one host */
	uint32_t mine;		  /* replicas of this rank */
	bool speaker;		  /* the first thread of its process */
	float **own;		  /* mine of them */
	uint64_t count;		  /* of the row at hand */
	enum merge_op op;	  /* likewise */
	float *in, *out;	  /* of the largest row */
	struct merge_net *net;
	struct merge *merge;
	struct merge_table table;
	struct merge_tensor tensor;
	struct perf_team *team; /* the threads of this process: intra, hier */
	struct merge_error error;
	void (*row)(void *context, struct perf_row *row); /* rank 0 */
	void *context;
};

const char *perf_op_name(enum merge_op op);
/* All rows of one rank; 0 or -errno with error. */
int perf_rank_run(struct perf_rank *k);

/* hosts.c: what hosts do with each other; k->in and k->out */
int perf_host_open(struct perf_rank *k);
int perf_host_run(struct perf_rank *k, bool in_place);
int perf_host_meet(struct perf_rank *k);
void perf_host_close(struct perf_rank *k);
void perf_host_fresh(struct perf_rank *k);
int perf_hosts_start(const struct perf_options *o, struct perf_rank k);

/* team.c: threads of one process, as replicas (intra), and as those of one host (hier) */
int perf_team_run(const struct perf_options *o, struct perf_rank base, bool hier);
/* Starts the ranks, prints through row() in this process; 0 or -errno. */
int perf_start(const struct perf_options *o, struct perf_shared *shared,
	       void (*row)(void *context, struct perf_row *row), void *context);

#endif
