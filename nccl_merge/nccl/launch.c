/* SPDX-License-Identifier: MIT */
/*
 * launch.c: the thread that launches one GPU's part of the all-reduces. The communicator does not
 * block: every call is polled against the deadline, and an abort of the team is seen between two
 * polls. Each thread aborts its own communicator; NCCL wants all ranks of the host to do so.
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "intra_nccl.h"

#define SPIN_SECONDS 2e-4
#define INIT_TIMEOUT_MS 60000u
#define DRAIN_SECONDS 2.0

static enum state state_of(struct nccl *team)
{
	enum state state;

	pthread_mutex_lock(&team->lock);
	state = team->state;
	pthread_mutex_unlock(&team->lock);
	return state;
}

int nccl_fault(struct nccl *team, int code, const char *fmt, ...)
{
	va_list ap;

	pthread_mutex_lock(&team->lock);
	if (!team->why.code) {
		team->why.code = code;
		team->why.host = MERGE_NO_HOST;
		va_start(ap, fmt);
		vsnprintf(team->why.message, sizeof(team->why.message), fmt, ap);
		va_end(ap);
	}
	team->state = ABORTED;
	pthread_cond_broadcast(&team->change);
	pthread_mutex_unlock(&team->lock);
	return code;
}

/* ---- polling -------------------------------------------------------------------------------- */

static int cuda_fault(struct seat *s, cudaError_t rc, const char *what)
{
	return nccl_fault(s->team, -EIO, "GPU %d: %s: %s", s->device, what, cudaGetErrorString(rc));
}

static int library_fault(struct seat *s, ncclResult_t rc, const char *what)
{
	const char *more = s->comm ? ncclGetLastError(s->comm) : NULL;

	return nccl_fault(s->team, -EIO, "GPU %d: %s: %s%s%.300s", s->device, what,
			  ncclGetErrorString(rc), more && *more ? ": " : "", more ? more : "");
}

/* A GPU that has announced less than this one; -1: none. */
static int late(struct seat *s)
{
	struct nccl *team = s->team;
	int device = -1;

	pthread_mutex_lock(&team->lock);
	for (uint32_t r = 0; r < team->base.replicas; r++)
		if (team->seat[r].announced < s->announced)
			device = team->seat[r].device;
	pthread_mutex_unlock(&team->lock);
	return device;
}

static void timed_out(struct seat *s, uint32_t timeout_ms, const char *what)
{
	int device = late(s);

	if (device < 0)
		nccl_fault(s->team, -ETIMEDOUT, "GPU %d: %s: no end after %u ms", s->device, what,
			   timeout_ms);
	else
		nccl_fault(s->team, -ETIMEDOUT,
			   "GPU %d: %s: no end after %u ms, GPU %d has not come", s->device, what,
			   timeout_ms, device);
}

/* Gives way to others; false once the deadline has passed or the team is aborted. */
static bool keep_polling(struct seat *s, double begin, uint32_t timeout_ms, const char *what)
{
	double spent = merge_now() - begin;
	const struct timespec nap = {0, spent < .01 ? 20000 : 200000};

	if (state_of(s->team) == ABORTED)
		return false;
	if (spent * 1000 > timeout_ms) {
		timed_out(s, timeout_ms, what);
		return false;
	}
	if (spent < SPIN_SECONDS)
		sched_yield();
	else
		nanosleep(&nap, NULL);
	return true;
}

/* A call on the communicator has returned rc: until it is through. */
static int settled(struct seat *s, ncclResult_t rc, uint32_t timeout_ms, const char *what)
{
	double begin = merge_now();
	ncclResult_t state = rc;

	while (state == ncclInProgress) {
		rc = ncclCommGetAsyncError(s->comm, &state);
		if (rc)
			state = rc;
		else if (state == ncclInProgress && !keep_polling(s, begin, timeout_ms, what))
			return -ECANCELED;
	}
	return state ? library_fault(s, state, what) : 0;
}

/* ---- start ---------------------------------------------------------------------------------- */

/* So that NCCL can use the arena without copies; it works without, too. */
static void register_arena(struct seat *s)
{
	size_t bytes = s->team->base.floats * sizeof(float);
	ncclResult_t rc;

	if (!bytes)
		return;
	if (s->team->symmetric)
		rc = ncclCommWindowRegister(s->comm, s->arena, bytes, &s->window,
					    NCCL_WIN_COLL_SYMMETRIC);
	else
		rc = ncclCommRegister(s->comm, s->arena, bytes, &s->registration);
	if (!rc || rc == ncclInProgress) {
		settled(s, rc, s->team->timeout_ms, "registration of an arena");
		return;
	}
	s->window = NULL; /* refused: plain all-reduces then */
	s->registration = NULL;
}

static int start(struct seat *s)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	struct nccl *team = s->team;
	uint32_t limit = team->timeout_ms > INIT_TIMEOUT_MS ? team->timeout_ms : INIT_TIMEOUT_MS;
	cudaError_t rc = cudaSetDevice(s->device);
	ncclResult_t made;

	if (!rc)
		rc = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
	if (!rc)
		rc = cudaEventCreateWithFlags(&s->end, cudaEventDisableTiming);
	if (rc)
		return cuda_fault(s, rc, "stream of the all-reduce");
	config.blocking = 0;
	made = ncclCommInitRankConfig(&s->comm, (int)team->base.replicas, team->id, (int)s->rank,
				      &config);
	if (settled(s, made, limit, "start of NCCL"))
		return -EIO;
	register_arena(s);
	pthread_mutex_lock(&team->lock);
	if (++team->up == team->base.replicas && team->state == STARTING)
		team->state = RUNNING;
	pthread_cond_broadcast(&team->change);
	pthread_mutex_unlock(&team->lock);
	return 0;
}

/* ---- work ----------------------------------------------------------------------------------- */

/* The next announced bucket, or none because of a stop. */
static bool take(struct seat *s, uint64_t number, struct bucket *out)
{
	struct nccl *team = s->team;
	bool there;

	pthread_mutex_lock(&team->lock);
	while (team->state == RUNNING && s->announced == number)
		pthread_cond_wait(&team->change, &team->lock);
	there = team->state == RUNNING;
	if (there)
		*out = s->bucket[number % team->max];
	pthread_mutex_unlock(&team->lock);
	return there;
}

static bool more(struct seat *s, uint64_t number)
{
	bool there;

	pthread_mutex_lock(&s->team->lock);
	there = s->announced > number;
	pthread_mutex_unlock(&s->team->lock);
	return there;
}

static int launch(struct seat *s, const struct bucket *b)
{
	float *at = s->arena + b->offset;
	cudaError_t rc = b->ready ? cudaStreamWaitEvent(s->stream, b->ready, 0) : cudaSuccess;
	ncclResult_t made;

	if (rc)
		return cuda_fault(s, rc, "wait for a bucket");
	made = ncclAllReduce(at, at, b->length, ncclFloat, ncclSum, s->comm, s->stream);
	return settled(s, made, s->team->timeout_ms, "all-reduce");
}

/* All that was launched: until the GPU is through with it. */
static int complete(struct seat *s, uint64_t number)
{
	double begin = merge_now();
	ncclResult_t state = ncclSuccess;
	cudaError_t rc = cudaEventRecord(s->end, s->stream);

	while (!rc && (rc = cudaEventQuery(s->end)) == cudaErrorNotReady) {
		rc = cudaSuccess;
		if (ncclCommGetAsyncError(s->comm, &state) == ncclSuccess && state != ncclSuccess &&
		    state != ncclInProgress)
			return library_fault(s, state, "all-reduce");
		if (!keep_polling(s, begin, s->team->timeout_ms, "all-reduce"))
			return -ECANCELED;
	}
	if (rc)
		return cuda_fault(s, rc, "all-reduce");
	pthread_mutex_lock(&s->team->lock);
	s->done = number;
	pthread_cond_broadcast(&s->team->change);
	pthread_mutex_unlock(&s->team->lock);
	return 0;
}

/* Nothing is left on the stream. What a hung device never ends goes with its context; the end of a
 * stream may wait for it. */
static bool drained(struct seat *s)
{
	const struct timespec nap = {0, 200000};
	double begin = merge_now();
	cudaError_t rc = cudaEventRecord(s->end, s->stream);

	while (!rc && (rc = cudaEventQuery(s->end)) == cudaErrorNotReady &&
	       merge_now() - begin < DRAIN_SECONDS) {
		nanosleep(&nap, NULL);
		rc = cudaSuccess;
	}
	return rc != cudaErrorNotReady;
}

static void finish(struct seat *s, bool clean)
{
	if (s->comm && !clean) {
		ncclCommAbort(s->comm);
	} else if (s->comm) {
		if (s->registration)
			ncclCommDeregister(s->comm, s->registration);
		if (s->window)
			ncclCommWindowDeregister(s->comm, s->window);
		if (settled(s, ncclCommFinalize(s->comm), s->team->timeout_ms, "end of NCCL"))
			ncclCommAbort(s->comm);
		else
			ncclCommDestroy(s->comm);
	}
	if (s->stream && (clean || !s->end || drained(s)))
		cudaStreamDestroy(s->stream);
	if (s->end)
		cudaEventDestroy(s->end);
}

void *nccl_seat_main(void *context)
{
	struct seat *s = context;
	struct bucket b;
	uint64_t number = 0;
	int rc = start(s);

	/* nobody launches before all communicators are there */
	pthread_mutex_lock(&s->team->lock);
	while (!rc && s->team->state == STARTING)
		pthread_cond_wait(&s->team->change, &s->team->lock);
	pthread_mutex_unlock(&s->team->lock);
	while (!rc && take(s, number, &b)) {
		rc = launch(s, &b);
		number++;
		if (!rc && !more(s, number))
			rc = complete(s, number);
	}
	finish(s, !rc && state_of(s->team) == STOPPING);
	return NULL;
}
