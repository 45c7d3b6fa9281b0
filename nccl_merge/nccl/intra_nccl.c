/* SPDX-License-Identifier: MIT */
/*
 * intra_nccl.c: the all-reduce of merge_intra_* by NCCL, for replicas on the GPUs of one host: a
 * shared object that exports one table. A thread per GPU launches (launch.c); here buckets are
 * announced and waited for. Any fault, and any deadline that passes, ends the communicators of all
 * GPUs; the owner closes and opens again.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "intra_nccl.h"

#define BUCKETS 4096u
#define TIMEOUT_MS 60000u

static void deadline(uint32_t ms, struct timespec *until)
{
	clock_gettime(CLOCK_MONOTONIC, until);
	until->tv_sec += ms / 1000;
	until->tv_nsec += (long)(ms % 1000) * 1000000;
	if (until->tv_nsec >= 1000000000) {
		until->tv_sec++;
		until->tv_nsec -= 1000000000;
	}
}

/* ---- open, close ---------------------------------------------------------------------------- */

static void stop(struct nccl *team, enum state state)
{
	pthread_mutex_lock(&team->lock);
	if (team->state != ABORTED)
		team->state = state;
	pthread_cond_broadcast(&team->change);
	pthread_mutex_unlock(&team->lock);
	for (uint32_t r = 0; r < team->base.replicas; r++)
		if (team->seat[r].started)
			pthread_join(team->seat[r].thread, NULL);
}

static void release(struct nccl *team)
{
	for (uint32_t r = 0; team->seat && r < team->base.replicas; r++)
		free(team->seat[r].bucket);
	free(team->seat);
	pthread_cond_destroy(&team->change);
	pthread_mutex_destroy(&team->lock);
	free(team);
}

static void nccl_close(struct merge_intra *base)
{
	struct nccl *team = (struct nccl *)base;

	stop(team, STOPPING);
	release(team);
}

static int check(const struct merge_intra_config *c, struct merge_error *error)
{
	if (!c->device)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "no GPUs are named");
	for (uint32_t r = 0; r < c->replicas; r++)
		for (uint32_t q = 0; q < r; q++)
			if (c->device[q] == c->device[r])
				return merge_fail(error, -EINVAL, MERGE_NO_HOST,
						  "replicas %u and %u are both on GPU %u", q, r,
						  c->device[r]);
	return 0;
}

static struct nccl *make_team(const struct merge_intra_config *c)
{
	struct nccl *team = calloc(1, sizeof(*team));
	pthread_condattr_t attr;

	if (!team)
		return NULL;
	pthread_mutex_init(&team->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&team->change, &attr);
	pthread_condattr_destroy(&attr);
	team->base.replicas = c->replicas;
	team->base.floats = c->floats;
	team->max = c->buckets_max ? c->buckets_max : BUCKETS;
	team->timeout_ms = c->timeout_ms ? c->timeout_ms : TIMEOUT_MS;
	team->symmetric = c->symmetric;
	team->seat = calloc(c->replicas, sizeof(*team->seat));
	for (uint32_t r = 0; team->seat && r < c->replicas; r++) {
		struct seat *s = &team->seat[r];

		s->team = team;
		s->rank = r;
		s->device = (int)c->device[r];
		s->arena = c->arena[r];
		s->bucket = calloc(team->max, sizeof(*s->bucket));
		if (!s->bucket) {
			release(team);
			return NULL;
		}
	}
	if (!team->seat) {
		release(team);
		return NULL;
	}
	return team;
}

/* Starts the threads and waits for all communicators, or the first fault. */
static int start(struct nccl *team, struct merge_error *error)
{
	int rc = 0;

	for (uint32_t r = 0; r < team->base.replicas && !rc; r++) {
		rc = pthread_create(&team->seat[r].thread, NULL, nccl_seat_main, &team->seat[r]);
		team->seat[r].started = !rc;
	}
	if (rc)
		nccl_fault(team, -EAGAIN, "no thread for a GPU");
	pthread_mutex_lock(&team->lock);
	while (team->state == STARTING) /* the threads keep the deadline */
		pthread_cond_wait(&team->change, &team->lock);
	rc = team->state == RUNNING ? 0 : team->why.code;
	if (rc && error)
		*error = team->why;
	pthread_mutex_unlock(&team->lock);
	return rc;
}

static int nccl_open(const struct merge_intra_config *c, struct merge_intra **out,
		     struct merge_error *error)
{
	struct nccl *team;
	ncclResult_t id;
	int rc = check(c, error);

	if (rc)
		return rc;
	team = make_team(c);
	if (!team)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for %u replicas",
				  c->replicas);
	id = ncclGetUniqueId(&team->id);
	rc = id ? merge_fail(error, -EIO, MERGE_NO_HOST, "ncclGetUniqueId: %s",
			     ncclGetErrorString(id))
		: start(team, error);
	if (rc) {
		stop(team, ABORTED);
		release(team);
		return rc;
	}
	*out = &team->base;
	return 0;
}

static void nccl_abort(struct merge_intra *base)
{
	nccl_fault((struct nccl *)base, -ECANCELED, "the all-reduce was ended");
}

/* ---- buckets -------------------------------------------------------------------------------- */

/* The one who finds a fault gets it; the others are told that it is over. */
static int over(struct nccl *team, struct merge_error *error)
{
	if (error)
		*error = team->why;
	return team->why.code;
}

/* All replicas announce the same buckets, or NCCL would wait for ever. */
static bool agrees(const struct nccl *team, uint64_t number, uint64_t offset, uint64_t length)
{
	for (uint32_t r = 0; r < team->base.replicas; r++) {
		const struct seat *s = &team->seat[r];
		const struct bucket *b = &s->bucket[number % team->max];

		if (s->announced > number && s->announced - number <= team->max &&
		    (b->offset != offset || b->length != length))
			return false;
	}
	return true;
}

static int nccl_bucket(struct merge_intra *base, uint32_t replica, uint64_t offset, uint64_t length,
		       void *ready, struct merge_error *error)
{
	struct nccl *team = (struct nccl *)base;
	struct seat *s = &team->seat[replica];
	int rc = 0;

	pthread_mutex_lock(&team->lock);
	if (team->state == ABORTED) {
		rc = over(team, error);
	} else if (s->announced - s->waited == team->max) {
		rc = merge_fail(error, -ENOSPC, MERGE_NO_HOST, "more than %u buckets before a wait",
				team->max);
	} else if (!agrees(team, s->announced, offset, length)) {
		rc = merge_fail(error, -EINVAL, MERGE_NO_HOST,
				"replica %u announces other buckets than the replicas before it",
				replica);
	} else {
		s->bucket[s->announced++ % team->max] =
			(struct bucket){offset, length, (cudaEvent_t)ready};
		pthread_cond_broadcast(&team->change);
	}
	pthread_mutex_unlock(&team->lock);
	if (rc == -EINVAL)
		nccl_fault(team, -ECANCELED, "replica %u announced another bucket", replica);
	return rc;
}

static int nccl_wait(struct merge_intra *base, uint32_t replica, struct merge_error *error)
{
	struct nccl *team = (struct nccl *)base;
	struct seat *s = &team->seat[replica];
	struct timespec until;
	int rc = 0;

	/* the launch thread keeps the deadline and names what is late; this one is for its absence
	 */
	deadline(team->timeout_ms + team->timeout_ms / 2 + 1000, &until);
	pthread_mutex_lock(&team->lock);
	while (!rc && team->state != ABORTED && s->done < s->announced)
		rc = pthread_cond_timedwait(&team->change, &team->lock, &until);
	if (s->done >= s->announced) {
		s->waited = s->announced;
		rc = 0;
	} else if (team->state == ABORTED) {
		rc = over(team, error);
	} else {
		rc = merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST,
				"replica %u: the launch thread of GPU %d does not answer", replica,
				s->device);
	}
	pthread_mutex_unlock(&team->lock);
	if (rc == -ETIMEDOUT)
		nccl_fault(team, -ECANCELED, "an all-reduce did not end");
	return rc;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int nccl_alloc(int device, size_t bytes, void **out)
{
	if (device >= 0 && cudaSetDevice(device))
		return -ENODEV;
	return ncclMemAlloc(out, bytes) ? -ENOMEM : 0;
}

static void nccl_release(void *memory)
{
	ncclMemFree(memory);
}

#define BOUNCE (4u << 20)

/* One piece through pinned memory. */
static int copy_piece(cudaStream_t stream, char *bounce, char *to, const char *from, size_t n,
		      bool to_device)
{
	cudaError_t rc;

	if (to_device)
		memcpy(bounce, from, n);
	rc = to_device ? cudaMemcpyAsync(to, bounce, n, cudaMemcpyHostToDevice, stream)
		       : cudaMemcpyAsync(bounce, from, n, cudaMemcpyDeviceToHost, stream);
	if (!rc)
		rc = cudaStreamSynchronize(stream);
	if (!rc && !to_device)
		memcpy(to, bounce, n);
	return rc ? -EIO : 0;
}

static int nccl_copy(int device, void *to, const void *from, size_t bytes, bool to_device)
{
	cudaStream_t stream = NULL;
	void *bounce = NULL;
	int rc = 0;

	if (cudaSetDevice(device))
		return -ENODEV;
	if (cudaMallocHost(&bounce, BOUNCE) ||
	    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
		rc = -ENOMEM;
	for (size_t at = 0; at < bytes && !rc; at += BOUNCE)
		rc = copy_piece(stream, bounce, (char *)to + at, (const char *)from + at,
				bytes - at < BOUNCE ? bytes - at : BOUNCE, to_device);
	if (stream)
		cudaStreamDestroy(stream);
	if (bounce)
		cudaFreeHost(bounce);
	return rc;
}

static const struct merge_intra_ops nccl_ops = {
	.version = MERGE_INTRA_VERSION,
	.open = nccl_open,
	.bucket = nccl_bucket,
	.wait = nccl_wait,
	.abort = nccl_abort,
	.close = nccl_close,
	.alloc = nccl_alloc,
	.release = nccl_release,
	.copy = nccl_copy,
};

/* The only name that the shared object exports. */
const struct merge_intra_ops *merge_intra_entry(uint32_t version);
const struct merge_intra_ops *merge_intra_entry(uint32_t version)
{
	return version == MERGE_INTRA_VERSION ? &nccl_ops : NULL;
}
