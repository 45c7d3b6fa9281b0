// SPDX-License-Identifier: MIT
/* event.c: events, and the waits for them. */
#define _GNU_SOURCE
#include "exec.h"

#include <stdlib.h>
#include <string.h>

static LIST_HEAD(, CUevent_st) events = LIST_HEAD_INITIALIZER(events);

static bool event_good(cudaEvent_t e, const char *what)
{
	struct CUevent_st *i;

	pthread_mutex_lock(&fake.lock);
	LIST_FOREACH (i, &events, link)
		if (i == e)
			break;
	pthread_mutex_unlock(&fake.lock);
	if (i)
		return true;
	fake_violation("%s: %p is no live event", what, (void *)e);
	return false;
}

static void event_unref(cudaEvent_t e)
{
	if (!--e->refs)
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
	e->device = *fake_current();
	e->refs = 1;
	pthread_mutex_lock(&fake.lock);
	LIST_INSERT_HEAD(&events, e, link);
	fake.live[FAKE_EVENTS]++;
	pthread_mutex_unlock(&fake.lock);
	*out = e;
	return cudaSuccess;
}

static void drop(cudaEvent_t e)
{
	LIST_REMOVE(e, link);
	fake.live[FAKE_EVENTS]--;
	event_unref(e);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	if (!event_good(e, __func__))
		return cudaErrorInvalidResourceHandle;
	pthread_mutex_lock(&fake.lock);
	drop(e);
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
	exec_credit = 0; /* who polls for another one asks again */
	fake_wake();	 /* a stream may wait for it */
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	struct mark m = {.event = e};
	struct fake_op *op;
	cudaError_t rc = cudaSuccess;

	if (!event_good(e, __func__) || fake_fault(__func__))
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
		exec_credit = 0; /* nobody waits any more; who does asks again */
	} else {
		rc = fake.device[e->device].sticky ? fake.device[e->device].sticky
						   : cudaErrorNotReady;
		exec_credit += 64;
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

	if (!event_good(e, __func__) || flags || fake_fault(__func__))
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

void exec_reset_events(int device)
{
	struct CUevent_st *e, *next;

	for (e = LIST_FIRST(&events); e; e = next) {
		next = LIST_NEXT(e, link);
		if (e->device == device)
			drop(e);
	}
}
