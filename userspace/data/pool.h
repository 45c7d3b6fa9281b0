/* SPDX-License-Identifier: MIT */
/*
 * pool.h: inside of the decoder (decoder.h): its workers, their slots and queues, their death. All
 * calls want the lock held.
 */
#ifndef DATA_POOL_H
#define DATA_POOL_H

#include <pthread.h>

#include "decoder.h"
#include "worker.h"
#include "zygote.h"

enum slot_state {
	SLOT_FREE = 0,
	SLOT_FILLING, /* the image is being copied in */
	SLOT_QUEUED,
	SLOT_DONE,
	SLOT_TAKEN
};

#define SLOT_NONE UINT32_MAX /* job->slot of a job that was moved out */

struct pool_worker {
	int fd;
	struct worker_control *control;
	bool running;
	uint32_t generation;	    /* zygote_status.started of this process */
	uint32_t submitted, reaped; /* our count, not the shared one */
	uint32_t queue[WORKER_QUEUE];
	struct decode_job *job[WORKER_SLOTS];
	enum slot_state state[WORKER_SLOTS];
	uint64_t checked, waited; /* ms: last look; for the image at the head of the queue */
	uint64_t cpu;		  /* ms of processor time at half of its time */
	bool cpu_known;
	bool touched; /* its region holds pages */
};

struct data_decoder {
	pthread_mutex_t lock;
	struct data_limits limits;
	struct worker_sizes sizes;
	struct zygote zygote;
	struct zygote_status *status;
	struct worker_bell *bell;
	uint32_t workers;
	struct pool_worker *worker;
	uint32_t large_used, large_max;
	bool test_images, broken;
	struct err trouble; /* why it is broken, or a worker could not be started */
};

uint64_t pool_now(void); /* ms */
/* A free slot of a running worker (started if need be), now SLOT_FILLING. -EAGAIN or an error. */
int pool_acquire(struct data_decoder *d, bool large, struct decode_job *job, struct err *err);
/* The filled slot of the job to its worker. */
int pool_push(struct data_decoder *d, struct decode_job *job, struct err *err);
void pool_free_slot(struct data_decoder *d, uint32_t worker, uint32_t slot);
bool pool_has_free(const struct data_decoder *d, bool large);
/* Looks at all workers: finished jobs to their queues, deaths, time that is up. */
void pool_poll(struct data_decoder *d);
/* Breaks the pool when the helper process has ended. */
void pool_check_helper(struct data_decoder *d);
/* Moves finished jobs of all queues but one out of their slots. */
void pool_move_done(struct data_decoder *d, const struct decode_queue *but);

#endif
