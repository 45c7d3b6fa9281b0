/* SPDX-License-Identifier: MIT */
/* exec.h: between exec.c (streams, the executor), event.c and graph.c (capture and graphs). */
#ifndef FAKEGPU_EXEC_H
#define FAKEGPU_EXEC_H

#include "fake.h"

#define MAGIC_STREAM 0x5354524541u

struct CUgraph_st {
	struct fake_ops ops;
	int device;
	bool broken;
	struct CUstream_st *origin;
};

struct CUgraphExec_st {
	LIST_ENTRY(CUgraphExec_st) link;
	struct fake_ops ops;
	int device;
};

struct CUstream_st {
	LIST_ENTRY(CUstream_st) link;
	uint64_t magic;
	int device;
	struct fake_ops ops;
	bool running; /* one of its operations is in work */
	struct CUgraph_st *capture;
	pthread_t capturer;
};

struct CUevent_st {
	LIST_ENTRY(CUevent_st) link;
	int device, refs;
	uint64_t wanted, done; /* records submitted, executed */
	struct CUgraph_st *capture;
};

LIST_HEAD(exec_streams, CUstream_st);
extern struct exec_streams exec_streams;

/* Operations that the executor may run though nobody waits for one: a poll asks for some. */
extern unsigned int exec_credit;

void exec_start(void);
bool exec_alive(cudaStream_t stream, const char *what);
/* At the end of a stream, or of the graph it is captured into. */
void exec_put(struct CUstream_st *s, struct fake_op *op);
void exec_captures(int n); /* begun, less ended, by this thread */
/* A device's context ends: what is there of it goes, and off the counts. Lock held. */
void exec_reset(int device);
void exec_reset_events(int device);
void exec_reset_graphs(int device);

#endif
