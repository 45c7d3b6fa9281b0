/* SPDX-License-Identifier: MIT */
/*
 * pool.h: the part of the thread pool that only the cpu back end sees. A run calls one function on
 * every thread of the pool, the caller being worker 0; runs of several callers take turns in the
 * order of their arrival.
 */
#ifndef CPU_POOL_H
#define CPU_POOL_H

#include "../backend.h"

typedef void (*pool_fn)(void *arg, unsigned int worker);

/* Calls fn(arg, 0..threads-1) at the same time and returns when all have returned. */
void pool_run(struct backend_pool *pool, pool_fn fn, void *arg);
/*
 * The calling thread alone: library calls until pool_leave are single-threaded. oneDNN fixes the
 * number of threads of a primitive when it is made, so primitives are made in between.
 */
int pool_enter(const struct backend_pool *pool);
void pool_leave(const struct backend_pool *pool, int entered);
/* Inside a run: returns when every worker of the run has called it. */
void pool_barrier(struct backend_pool *pool);

#endif
