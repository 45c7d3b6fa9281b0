// SPDX-License-Identifier: MIT
/*
 * nccl.c: NCCL inside one process: communicators of the same unique id form a clique; an all-reduce
 * runs when every rank's is at the head of its stream. Mismatched counts, a call on another
 * device's stream and use after abort are violations; faults make a collective fail or never end.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#define RANKS_MAX FAKE_DEVICES_MAX
#define WINDOW 64 /* collectives of one clique in flight */

struct slot {
	uint64_t seq;
	bool arrived[RANKS_MAX], done;
	const float *in[RANKS_MAX];
	float *out[RANKS_MAX];
	size_t count[RANKS_MAX];
};

struct clique {
	LIST_ENTRY(clique) link;
	ncclUniqueId id;
	int ranks, joined, refs;
	bool present[RANKS_MAX];
	struct slot slot[WINDOW];
};

struct ncclComm {
	LIST_ENTRY(ncclComm) link;
	struct clique *clique;
	int rank, device;
	uint64_t seq;
	bool aborted, finalized;
	ncclResult_t async;
	int registered;
	unsigned int pending; /* operations on streams that still point here */
	bool gone;	      /* destroyed while some were pending */
};

static LIST_HEAD(, clique) cliques = LIST_HEAD_INITIALIZER(cliques);
static void end_device(int device);
static LIST_HEAD(, ncclComm) comms = LIST_HEAD_INITIALIZER(comms);

ncclResult_t ncclGetVersion(int *v)
{
	*v = NCCL_VERSION_CODE;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
	static const char *const text[ncclNumResults] = {
		"no error",
		"unhandled cuda error",
		"unhandled system error",
		"internal error",
		"invalid argument",
		"invalid usage",
		"remote process exited or there was a network error",
		"NCCL operation in progress"};

	return (unsigned int)r < ncclNumResults ? text[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return "simulated";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	static uint64_t next = 1;

	fake_init();
	if (fake_fault(__func__))
		return ncclSystemError;
	memset(id, 0, sizeof(*id));
	pthread_mutex_lock(&fake.lock);
	snprintf(id->internal, sizeof(id->internal), "fakegpu %llu", (unsigned long long)next++);
	pthread_mutex_unlock(&fake.lock);
	return ncclSuccess;
}

static bool good(ncclComm_t c, const char *what)
{
	ncclComm_t i;

	pthread_mutex_lock(&fake.lock);
	LIST_FOREACH (i, &comms, link)
		if (i == c)
			break;
	pthread_mutex_unlock(&fake.lock);
	if (i)
		return true;
	fake_violation("%s: no live communicator", what);
	return false;
}

/* Lock held. */
static struct clique *clique_of(const ncclUniqueId *id, int ranks)
{
	struct clique *q;

	LIST_FOREACH (q, &cliques, link)
		if (!memcmp(&q->id, id, sizeof(*id)))
			return q;
	q = calloc(1, sizeof(*q));
	if (!q)
		abort();
	q->id = *id;
	q->ranks = ranks;
	for (int i = 0; i < WINDOW; i++)
		q->slot[i].seq = UINT64_MAX;
	LIST_INSERT_HEAD(&cliques, q, link);
	return q;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	enum fake_fault f = fake_fault(__func__);
	struct clique *q;
	ncclComm_t c;

	fake_init();
	fake_on_reset(end_device);
	if (!config || config->magic != 0xcafebeef || config->size != sizeof(*config)) {
		fake_violation("%s: configuration not initialised", __func__);
		return ncclInvalidArgument;
	}
	if (config->blocking != 0)
		fake_violation("%s: a blocking communicator", __func__);
	if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks)
		return ncclInvalidArgument;
	c = calloc(1, sizeof(*c));
	if (!c)
		return ncclSystemError;
	c->rank = rank;
	c->device = *fake_current();
	pthread_mutex_lock(&fake.lock);
	q = clique_of(&id, ranks);
	if (q->ranks != ranks || q->present[rank]) {
		pthread_mutex_unlock(&fake.lock);
		fake_violation("%s: rank %d of %d joins twice, or with another number of ranks",
			       __func__, rank, ranks);
		free(c);
		return ncclInvalidUsage;
	}
	if (f == FAKE_ERROR)
		c->async = ncclSystemError;
	if (f != FAKE_HANG && f != FAKE_ERROR) {
		q->present[rank] = true;
		q->joined++;
	}
	q->refs++;
	c->clique = q;
	fake.live[FAKE_COMMS]++;
	LIST_INSERT_HEAD(&comms, c, link);
	pthread_mutex_unlock(&fake.lock);
	*out = c;
	return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
	if (!good(c, __func__))
		return ncclInvalidArgument;
	pthread_mutex_lock(&fake.lock);
	*error = c->async						 ? c->async
		 : c->clique->joined < c->clique->ranks && !c->finalized ? ncclInProgress
									 : ncclSuccess;
	pthread_mutex_unlock(&fake.lock);
	return ncclSuccess;
}

/* ---- all-reduce ---- */

struct reduce {
	ncclComm_t comm;
	uint64_t seq;
	bool hang;
};

/* Lock held. */
static bool reduce_ready(struct fake_op *op)
{
	struct reduce *r = (struct reduce *)op->data;
	struct clique *q = r->comm->clique;
	struct slot *s = &q->slot[r->seq % WINDOW];
	int n = 0;

	if (r->comm->aborted)
		return true;
	if (r->hang)
		return false;
	s->arrived[r->comm->rank] = true;
	for (int i = 0; i < q->ranks; i++)
		n += s->arrived[i];
	return n == q->ranks;
}

/* The first rank that runs does the work of all: the others' buffers are waiting, too. */
static cudaError_t reduce_run(struct fake_op *op)
{
	struct reduce *r = (struct reduce *)op->data;
	struct clique *q = r->comm->clique;
	struct slot *s = &q->slot[r->seq % WINDOW];
	size_t n = s->count[0];
	float *sum;

	if (r->comm->aborted || s->done)
		return cudaSuccess;
	s->done = true;
	for (int i = 0; i < q->ranks; i++) {
		if (s->count[i] != n) {
			fake_violation("ncclAllReduce: rank 0 has %zu elements, rank %d %zu", n, i,
				       s->count[i]);
			return cudaErrorIllegalAddress;
		}
		if (!fake_device_range(-1, s->in[i], n * sizeof(float), "ncclAllReduce, input") ||
		    !fake_device_range(-1, s->out[i], n * sizeof(float), "ncclAllReduce, output"))
			return cudaErrorIllegalAddress;
	}
	sum = calloc(n ? n : 1, sizeof(*sum));
	if (!sum)
		abort();
	for (int i = 0; i < q->ranks; i++)
		for (size_t k = 0; k < n; k++)
			sum[k] += s->in[i][k];
	for (int i = 0; i < q->ranks; i++)
		memcpy(s->out[i], sum, n * sizeof(float));
	free(sum);
	return cudaSuccess;
}

/* Lock held. */
static void unref(ncclComm_t c)
{
	struct clique *q = c->clique;

	if (c->pending || !c->gone)
		return;
	if (!--q->refs) {
		LIST_REMOVE(q, link);
		free(q);
	}
	free(c);
}

static void reduce_end(struct fake_op *op)
{
	struct reduce *r = (struct reduce *)op->data;

	r->comm->pending--;
	unref(r->comm);
}

static ncclResult_t check(ncclComm_t c, ncclDataType_t type, ncclRedOp_t op, cudaStream_t stream)
{
	if (!good(c, "ncclAllReduce"))
		return ncclInvalidArgument;
	if (type != ncclFloat || op != ncclSum) {
		fake_violation("ncclAllReduce: type %d, operation %d", (int)type, (int)op);
		return ncclInvalidArgument;
	}
	if (fake_stream_device(stream, "ncclAllReduce") != c->device) {
		fake_violation("ncclAllReduce: a stream of another device");
		return ncclInvalidUsage;
	}
	if (fake_capturing_here()) {
		fake_violation("ncclAllReduce while a stream is being captured");
		return ncclInvalidUsage;
	}
	if (c->aborted || c->finalized || c->clique->joined < c->clique->ranks) {
		fake_violation("ncclAllReduce on a communicator that is not ready");
		return ncclInvalidUsage;
	}
	return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t c, cudaStream_t stream)
{
	enum fake_fault f = fake_fault(__func__);
	ncclResult_t rc = check(c, type, op, stream);
	struct reduce r = {.comm = c, .hang = f == FAKE_HANG || f == FAKE_ERROR};
	struct slot *s;

	if (rc)
		return rc;
	if (f == FAKE_ILLEGAL)
		fake_break(c->device, cudaErrorIllegalAddress);
	pthread_mutex_lock(&fake.lock);
	if (f == FAKE_ERROR)
		c->async = ncclSystemError;
	r.seq = c->seq++;
	s = &c->clique->slot[r.seq % WINDOW];
	if (s->seq != r.seq) {
		memset(s, 0, sizeof(*s));
		s->seq = r.seq;
	}
	s->in[c->rank] = in;
	s->out[c->rank] = out;
	s->count[c->rank] = count;
	c->pending++;
	pthread_mutex_unlock(&fake.lock);
	if (!fake_submit(stream, __func__, reduce_run, reduce_ready, reduce_end, &r, sizeof(r)))
		return ncclSuccess;
	pthread_mutex_lock(&fake.lock);
	c->pending--;
	pthread_mutex_unlock(&fake.lock);
	return ncclUnhandledCudaError;
}

/* ---- the end of a communicator ---- */

/* Lock held. */
static void drop(ncclComm_t c, bool aborted)
{
	c->aborted = c->aborted || aborted;
	c->gone = true;
	LIST_REMOVE(c, link);
	fake.live[FAKE_COMMS]--;
	fake_wake();
	unref(c);
}

/* NCCL cannot give back what it has on a device whose context has ended: it must have been aborted.
 */
static void end_device(int device)
{
	ncclComm_t c, next;

	for (c = LIST_FIRST(&comms); c; c = next) {
		next = LIST_NEXT(c, link);
		if (c->device != device)
			continue;
		fake_violation("cudaDeviceReset of device %d, which has a communicator", device);
		drop(c, true);
	}
}

static ncclResult_t leave(ncclComm_t c, bool aborted, const char *what)
{
	if (!good(c, what))
		return ncclInvalidArgument;
	if (c->registered && !aborted)
		fake_violation("%s: %d buffers are still registered", what, c->registered);
	pthread_mutex_lock(&fake.lock);
	drop(c, aborted);
	pthread_mutex_unlock(&fake.lock);
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
	return leave(c, true, __func__);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
	if (!good(c, __func__))
		return ncclInvalidArgument;
	c->finalized = true;
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	return leave(c, false, __func__);
}

/* ---- memory ---- */

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
	fake_init();
	if (fake_fault(__func__) == FAKE_OOM)
		return ncclUnhandledCudaError;
	return fake_alloc(*fake_current(), (bytes + 4095) & ~(size_t)4095, p)
		       ? ncclUnhandledCudaError
		       : ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
	return fake_free(p) ? ncclInvalidArgument : ncclSuccess;
}

static ncclResult_t enter(ncclComm_t c, void *p, size_t bytes, void **handle, const char *what)
{
	if (!good(c, what) || !fake_device_range(c->device, p, bytes, what))
		return ncclInvalidArgument;
	if (fake_fault(what))
		return ncclInvalidUsage;
	c->registered++;
	*handle = p;
	return ncclSuccess;
}

static ncclResult_t leave_buffer(ncclComm_t c, const char *what)
{
	if (!good(c, what) || c->registered < 1)
		return ncclInvalidArgument;
	c->registered--;
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t bytes, void **handle)
{
	return enter(c, p, bytes, handle, __func__);
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
	(void)handle;
	return leave_buffer(c, __func__);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t c, void *p, size_t bytes, ncclWindow_t *window,
				    int flags)
{
	(void)flags;
	if ((uintptr_t)p % NCCL_WIN_REQUIRED_ALIGNMENT) {
		fake_violation("%s: %p is not aligned", __func__, p);
		return ncclInvalidArgument;
	}
	return enter(c, p, bytes, (void **)window, __func__);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t c, ncclWindow_t window)
{
	(void)window;
	return leave_buffer(c, __func__);
}
