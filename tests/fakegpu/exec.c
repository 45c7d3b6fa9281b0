// SPDX-License-Identifier: MIT
/*
 * exec.c: streams and the one thread that executes. Work that is submitted is not
 * run until somebody waits for something (or 256 operations have gathered), and among the streams
 * that can go on, one is chosen by the seed: so a missing synchronisation shows as a wrong result.
 */
#define _GNU_SOURCE
#include "exec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BACKLOG 256

struct exec_streams exec_streams = LIST_HEAD_INITIALIZER(exec_streams);
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, progress = PTHREAD_COND_INITIALIZER;
static bool started;
static unsigned int waiters, backlog;
unsigned int exec_credit;
static _Thread_local unsigned int captures;

/* ---- operations ---- */

void exec_captures(int n)
{
	captures += (unsigned int)n;
}

static void end_op(struct fake_op *op)
{
	if (op->end)
		op->end(op);
	free(op);
}

bool fake_capturing_here(void)
{
	return captures > 0;
}

/* ---- the executor ---- */

static bool can_run(const struct CUstream_st *s)
{
	struct fake_op *op = TAILQ_FIRST(&s->ops);

	if (!op)
		return false;
	return fake.device[s->device].sticky || !op->ready || op->ready(op);
}

static struct CUstream_st *choose(void)
{
	struct CUstream_st *s;
	unsigned int n = 0, pick;

	LIST_FOREACH (s, &exec_streams, link)
		n += can_run(s);
	if (!n)
		return NULL;
	pick = (unsigned int)(fake_random() % n);
	LIST_FOREACH (s, &exec_streams, link)
		if (can_run(s) && !pick--)
			return s;
	return NULL;
}

static void *executor(void *unused)
{
	(void)unused;
	if (fake.pkey >= 0)
		pkey_set(fake.pkey, 0);
	pthread_mutex_lock(&fake.lock);
	for (;;) {
		struct CUstream_st *s = NULL;
		struct fake_op *op;
		cudaError_t rc = cudaSuccess;

		if (waiters || exec_credit || fake.eager || backlog > BACKLOG)
			s = choose();
		if (!s) {
			exec_credit = 0;
			fake_close_memory();
			pthread_cond_wait(&work, &fake.lock);
			continue;
		}
		if (exec_credit)
			exec_credit--;
		op = TAILQ_FIRST(&s->ops);
		TAILQ_REMOVE(&s->ops, op, link);
		backlog--;
		s->running = true;
		if (!fake.device[s->device].sticky && op->run) {
			fake_open_memory();
			pthread_mutex_unlock(&fake.lock);
			rc = op->run(op);
			pthread_mutex_lock(&fake.lock);
		}
		if (rc && !fake.device[s->device].sticky)
			fake.device[s->device].sticky = rc;
		s->running = false;
		end_op(op);
		pthread_cond_broadcast(&progress);
	}
	return NULL;
}

void exec_start(void)
{
	pthread_t thread;

	if (started)
		return;
	started = true;
	if (pthread_create(&thread, NULL, executor, NULL))
		abort();
	pthread_detach(thread);
}

void fake_wake(void)
{
	pthread_cond_broadcast(&work);
}

cudaError_t fake_break(int device, cudaError_t error)
{
	pthread_mutex_lock(&fake.lock);
	if (!fake.device[device].sticky)
		fake.device[device].sticky = error;
	fake_wake();
	pthread_mutex_unlock(&fake.lock);
	return error;
}

cudaError_t fake_sticky(int device)
{
	cudaError_t rc;

	pthread_mutex_lock(&fake.lock);
	rc = fake.device[device].sticky;
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

/* ---- submitting ---- */

bool exec_alive(cudaStream_t stream, const char *what)
{
	struct CUstream_st *s;

	LIST_FOREACH (s, &exec_streams, link)
		if (s == stream)
			return true;
	fake_violation("%s: %p is no live stream (the default stream is not simulated)", what,
		       (void *)stream);
	return false;
}

int fake_stream_device(cudaStream_t stream, const char *what)
{
	int device = -1;

	pthread_mutex_lock(&fake.lock);
	if (exec_alive(stream, what))
		device = stream->device;
	pthread_mutex_unlock(&fake.lock);
	return device;
}

void exec_put(struct CUstream_st *s, struct fake_op *op)
{
	if (s->capture) {
		TAILQ_INSERT_TAIL(&s->capture->ops, op, link);
		return;
	}
	TAILQ_INSERT_TAIL(&s->ops, op, link);
	backlog++;
	fake_wake();
}

cudaError_t fake_submit(cudaStream_t stream, const char *name, cudaError_t (*run)(struct fake_op *),
			bool (*ready)(struct fake_op *), void (*end)(struct fake_op *),
			const void *data, size_t bytes)
{
	struct fake_op *op = calloc(1, sizeof(*op) + bytes);
	cudaError_t rc = cudaSuccess;

	if (!op)
		return cudaErrorMemoryAllocation;
	op->name = name;
	op->run = run;
	op->ready = ready;
	op->end = end;
	op->bytes = bytes;
	if (bytes)
		memcpy(op->data, data, bytes);
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(stream, name)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (!stream->capture && fake.device[stream->device].sticky) {
		rc = fake.device[stream->device].sticky;
	} else {
		op->device = stream->device;
		exec_start();
		exec_put(stream, op);
	}
	pthread_mutex_unlock(&fake.lock);
	if (rc)
		free(op);
	return rc;
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
	struct CUstream_st *s;

	fake_init();
	if (fake_fault(__func__))
		return cudaErrorMemoryAllocation;
	if (flags != cudaStreamNonBlocking)
		fake_violation("a stream that waits for the default stream");
	s = calloc(1, sizeof(*s));
	if (!s)
		return cudaErrorMemoryAllocation;
	s->magic = MAGIC_STREAM;
	s->device = *fake_current();
	TAILQ_INIT(&s->ops);
	pthread_mutex_lock(&fake.lock);
	LIST_INSERT_HEAD(&exec_streams, s, link);
	fake.live[FAKE_STREAMS]++;
	pthread_mutex_unlock(&fake.lock);
	*out = s;
	return cudaSuccess;
}

static void drain(struct CUstream_st *s)
{
	waiters++;
	exec_start();
	fake_wake();
	while (!TAILQ_EMPTY(&s->ops) || s->running)
		pthread_cond_wait(&progress, &fake.lock);
	waiters--;
}

/* Work that is still queued is done before the stream goes (as in CUDA, later; here, now). */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__)) {
		pthread_mutex_unlock(&fake.lock);
		return cudaErrorInvalidResourceHandle;
	}
	if (s->capture)
		fake_violation("%s: the stream is being captured", __func__);
	drain(s);
	LIST_REMOVE(s, link);
	fake.live[FAKE_STREAMS]--;
	pthread_mutex_unlock(&fake.lock);
	free(s);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	cudaError_t rc = cudaSuccess;

	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (s->capture) {
		s->capture->broken = true;
		rc = cudaErrorStreamCaptureUnsupported;
	} else {
		int device = s->device;

		drain(s);
		rc = fake.device[device].sticky;
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

/* ---- the end of a device's context ---- */

static bool one_runs(int device)
{
	struct CUstream_st *s;

	LIST_FOREACH (s, &exec_streams, link)
		if (s->device == device && s->running)
			return true;
	return false;
}

/* Work that waits is dropped, what runs is waited for. */
void exec_reset(int device)
{
	struct CUstream_st *s, *next;
	struct fake_op *op;

	LIST_FOREACH (s, &exec_streams, link)
		while (s->device == device && (op = TAILQ_FIRST(&s->ops))) {
			TAILQ_REMOVE(&s->ops, op, link);
			backlog--;
			end_op(op);
		}
	while (one_runs(device))
		pthread_cond_wait(&progress, &fake.lock);
	for (s = LIST_FIRST(&exec_streams); s; s = next) {
		next = LIST_NEXT(s, link);
		if (s->device != device)
			continue;
		LIST_REMOVE(s, link);
		fake.live[FAKE_STREAMS]--;
		free(s);
	}
	pthread_cond_broadcast(&progress);
}
