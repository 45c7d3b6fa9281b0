// SPDX-License-Identifier: MIT
/*
 * exec.c: streams, events, graphs and the one thread that executes. Work that is submitted is not
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
static unsigned int waiters, credit, backlog;
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

		if (waiters || credit || fake.eager || backlog > BACKLOG)
			s = choose();
		if (!s) {
			credit = 0;
			fake_close_memory();
			pthread_cond_wait(&work, &fake.lock);
			continue;
		}
		if (credit)
			credit--;
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

void fake_reset(int device)
{
	struct CUstream_st *s;
	struct fake_op *op;

	pthread_mutex_lock(&fake.lock);
	LIST_FOREACH (s, &exec_streams, link) {
		if (s->device != device)
			continue;
		while ((op = TAILQ_FIRST(&s->ops))) {
			TAILQ_REMOVE(&s->ops, op, link);
			backlog--;
			end_op(op);
		}
	}
	fake.device[device].sticky = cudaSuccess;
	pthread_cond_broadcast(&progress);
	pthread_mutex_unlock(&fake.lock);
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

/* ---- events ---- */

static bool event_good(cudaEvent_t e, const char *what)
{
	if (e && e->magic == MAGIC_EVENT)
		return true;
	fake_violation("%s: %p is no live event", what, (void *)e);
	return false;
}

static void event_unref(cudaEvent_t e)
{
	if (--e->refs)
		return;
	e->magic = 0;
	free(e);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
	struct CUevent_st *e;

	fake_init();
	if (fake_fault(__func__))
		return cudaErrorMemoryAllocation;
	if (flags != cudaEventDisableTiming)
		fake_violation("an event with timing");
	e = calloc(1, sizeof(*e));
	if (!e)
		return cudaErrorMemoryAllocation;
	e->magic = MAGIC_EVENT;
	e->device = *fake_current();
	e->refs = 1;
	fake_add(FAKE_EVENTS, 1);
	*out = e;
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	if (!event_good(e, __func__))
		return cudaErrorInvalidResourceHandle;
	pthread_mutex_lock(&fake.lock);
	fake.live[FAKE_EVENTS]--;
	event_unref(e);
	pthread_mutex_unlock(&fake.lock);
	return cudaSuccess;
}

struct mark {
	cudaEvent_t event;
	uint64_t value;
};

static void end_record(struct fake_op *op)
{
	struct mark *m = (struct mark *)op->data;

	if (m->event->done < m->value)
		m->event->done = m->value;
	event_unref(m->event);
	fake_wake(); /* a stream may wait for it */
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	struct mark m = {.event = e};
	struct fake_op *op;
	cudaError_t rc = cudaSuccess;

	if (!event_good(e, __func__))
		return cudaErrorInvalidResourceHandle;
	op = calloc(1, sizeof(*op) + sizeof(m));
	if (!op)
		return cudaErrorMemoryAllocation;
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (e->device != s->device) {
		fake_violation("%s: event of device %d on a stream of device %d", __func__,
			       e->device, s->device);
		rc = cudaErrorInvalidResourceHandle;
	} else if (s->capture) {
		e->capture = s->capture;
	} else {
		e->capture = NULL;
		e->refs++;
		m.value = ++e->wanted;
		op->name = __func__;
		op->device = s->device;
		op->end = end_record;
		op->bytes = sizeof(m);
		memcpy(op->data, &m, sizeof(m));
		exec_start();
		exec_put(s, op);
		op = NULL;
	}
	pthread_mutex_unlock(&fake.lock);
	free(op);
	return rc;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
	cudaError_t rc;

	if (!event_good(e, __func__))
		return cudaErrorInvalidResourceHandle;
	pthread_mutex_lock(&fake.lock);
	if (e->capture) {
		e->capture->broken = true;
		rc = cudaErrorCapturedEvent;
	} else if (e->done >= e->wanted) {
		rc = fake.device[e->device].sticky;
		credit = 0; /* nobody waits any more; who does asks again */
	} else {
		rc = fake.device[e->device].sticky ? fake.device[e->device].sticky
						   : cudaErrorNotReady;
		credit += 4;
		fake_wake();
	}
	pthread_mutex_unlock(&fake.lock);
	return rc;
}

static bool mark_reached(struct fake_op *op)
{
	struct mark *m = (struct mark *)op->data;

	return m->event->done >= m->value;
}

static void end_wait(struct fake_op *op)
{
	event_unref(((struct mark *)op->data)->event);
}

/* A wait for an event that is being captured draws the stream into that capture. */
static cudaError_t wait_captured(cudaStream_t s, cudaEvent_t e)
{
	if (s->capture && s->capture != e->capture)
		return cudaErrorStreamCaptureMerge;
	if (!s->capture) {
		s->capture = e->capture;
		s->capturer = pthread_self();
	}
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags)
{
	struct mark m = {.event = e};
	struct fake_op *op;
	cudaError_t rc = cudaSuccess;

	if (!event_good(e, __func__) || flags)
		return cudaErrorInvalidValue;
	op = calloc(1, sizeof(*op) + sizeof(m));
	if (!op)
		return cudaErrorMemoryAllocation;
	pthread_mutex_lock(&fake.lock);
	if (!exec_alive(s, __func__)) {
		rc = cudaErrorInvalidResourceHandle;
	} else if (e->capture) {
		rc = wait_captured(s, e);
	} else if (s->capture) {
		if (e->done < e->wanted) {
			s->capture->broken = true;
			rc = cudaErrorStreamCaptureIsolation;
		}
	} else {
		e->refs++;
		m.value = e->wanted;
		op->name = __func__;
		op->device = s->device;
		op->ready = mark_reached;
		op->end = end_wait;
		op->bytes = sizeof(m);
		memcpy(op->data, &m, sizeof(m));
		exec_start();
		exec_put(s, op);
		op = NULL;
	}
	pthread_mutex_unlock(&fake.lock);
	free(op);
	return rc;
}
