/* SPDX-License-Identifier: MIT */
/* intra_nccl.h: what the two files of the NCCL all-reduce share. */
#ifndef INTRA_NCCL_H
#define INTRA_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

#include "../intra.h"

struct bucket {
	uint64_t offset, length;
	cudaEvent_t ready; /* NULL: final when it is announced */
};

/* One replica: its GPU, its communicator, the thread that launches. */
struct seat {
	struct nccl *team;
	uint32_t rank;
	int device;
	float *arena;
	pthread_t thread;
	bool started;
	cudaStream_t stream;
	cudaEvent_t end;
	ncclComm_t comm;
	void *registration;
	ncclWindow_t window;
	/* under the team's lock */
	struct bucket *bucket; /* by number modulo max */
	uint64_t announced, waited, done;
};

enum state { STARTING = 0, RUNNING, STOPPING, ABORTED };

struct nccl {
	struct merge_intra base;
	pthread_mutex_t lock;
	pthread_cond_t change;
	enum state state;
	uint32_t max, timeout_ms, up; /* up: seats with a communicator */
	bool symmetric;
	ncclUniqueId id;
	struct seat *seat;
	struct merge_error why; /* of the first fault */
};

/* launch.c: the thread of a seat. */
void *nccl_seat_main(void *seat);
/* Notes the first fault and ends everybody's work; the lock is not held. Returns code. */
int nccl_fault(struct nccl *team, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
