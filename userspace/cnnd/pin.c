// SPDX-License-Identifier: MIT
/* pin.c: see pin.h. */
#include "pin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "log.h"

#define SHARE 2 /* of the memory of all jobs that may be pinned: one in so many parts */

struct pins {
	size_t n, capacity;
	uint64_t bytes;
	bool full; /* the share is used up */
	struct backend_error why;
	struct {
		const void *memory;
		size_t bytes;
	} * block;
};

static bool take(struct job *job, uint64_t bytes)
{
	struct daemon *d = job->daemon;
	uint64_t limit;
	bool fits;

	pthread_mutex_lock(&d->lock);
	limit = memory_limit(d->memory) / SHARE;
	fits = d->pinned <= limit && bytes <= limit - d->pinned;
	if (fits)
		d->pinned += bytes;
	pthread_mutex_unlock(&d->lock);
	return fits;
}

static void give(struct job *job, uint64_t bytes)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	d->pinned -= bytes;
	pthread_mutex_unlock(&d->lock);
}

/* The one that pinned it comes last. */
static void unregister(struct job *job, uint32_t n, const void *memory)
{
	while (n)
		backend_host_unregister(job->device.backend[--n], memory);
}

static int room(struct pins *p)
{
	size_t capacity = p->capacity ? 2 * p->capacity : 64;
	void *more;

	if (p->n < p->capacity)
		return 0;
	more = realloc(p->block, capacity * sizeof(*p->block));
	if (!more)
		return -ENOMEM;
	p->block = more;
	p->capacity = capacity;
	return 0;
}

static int pin_block(void *context, const void *memory, size_t bytes)
{
	struct job *job = context;
	struct pins *p = job->pins;
	uint32_t k = 0;
	int rc = atomic_load(&job->canceled) ? -ECANCELED : room(p);

	if (rc)
		return rc;
	if (!take(job, bytes)) {
		p->full = true;
		return -ENOSPC;
	}
	while (k < job->device.n && !rc)
		rc = backend_host_register(job->device.backend[k++], memory, bytes, &p->why);
	if (rc) {
		unregister(job, k - 1, memory);
		give(job, bytes);
		return rc;
	}
	p->block[p->n].memory = memory;
	p->block[p->n++].bytes = bytes;
	p->bytes += bytes;
	return 0;
}

static void tell(const struct job *job, int rc)
{
	const struct pins *p = job->pins;
	struct log_tag tag;

	job_log_tag(job, &tag, "pin");
	if (p->full)
		log_info(&tag,
			 "%llu MB of rows are pinned for %s, the others are copied: half of the "
			 "memory of all jobs may be",
			 (unsigned long long)(p->bytes >> 20), job->device.name);
	else if (rc && rc != -EOPNOTSUPP && rc != -ECANCELED)
		log_warn(&tag, "%llu MB of rows are pinned for %s, the others are copied: %s",
			 (unsigned long long)(p->bytes >> 20), job->device.name,
			 p->why.message[0] ? p->why.message : strerror(-rc));
	else if (!rc)
		log_info(&tag, "%llu kB of rows are pinned for %s",
			 (unsigned long long)(p->bytes >> 10), job->device.name);
}

/* One pass over rows takes no longer than pinning them: so trainings alone. */
void pin_rows(struct job *job)
{
	int rc;

	if (!job->device.gpus || job->kind != CTL_TRAIN || job->pins)
		return;
	job->pins = calloc(1, sizeof(*job->pins));
	if (!job->pins)
		return;
	rc = data_blocks(job->data, pin_block, job);
	tell(job, rc);
}

void pin_release(struct job *job)
{
	struct pins *p = job->pins;

	if (!p)
		return;
	for (size_t i = 0; i < p->n; i++)
		unregister(job, job->device.n, p->block[i].memory);
	give(job, p->bytes);
	free(p->block);
	free(p);
	job->pins = NULL;
}
