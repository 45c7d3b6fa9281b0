/* SPDX-License-Identifier: MIT */
/*
 * zygote.h: the helper process that forks decode workers. It is forked from cnnd before threads are
 * started and holds nothing of cnnd but the shared memory; it starts, ends and buries workers when
 * told so over a socket, and ends them all with itself when the socket closes.
 */
#ifndef DATA_ZYGOTE_H
#define DATA_ZYGOTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../base/err.h"
#include "worker.h"

/* One per worker, shared by cnnd and the zygote; workers do not see it. */
struct zygote_status {
	_Atomic uint32_t started; /* how many times */
	_Atomic uint32_t exited;  /* value of started of the worker that ended by itself last */
	_Atomic int32_t wait_status;
	_Atomic int32_t pid;
};

struct zygote_setup {
	uint32_t workers;
	const int *fd; /* a region each */
	struct zygote_status *status;
	struct worker_setup worker; /* region is mapped by the worker itself */
};

struct zygote {
	pid_t pid;
	int socket;
};

int zygote_start(const struct zygote_setup *setup, struct zygote *out, struct err *err);
/* Ends a worker if it runs; starts one. 0 or -errno; -EPIPE: the zygote is gone. */
int zygote_end(const struct zygote *zygote, uint32_t worker);
int zygote_begin(const struct zygote *zygote, uint32_t worker);
void zygote_stop(struct zygote *zygote);

#endif
