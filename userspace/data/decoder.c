// SPDX-License-Identifier: MIT
/* decoder.c: see decoder.h and pool.h. */
#include "decoder.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

#define PAGE 4096u
_Static_assert(DECODER_SMALL == WORKER_SMALL_IN, "size of a small slot");
#define MAX_WORKERS 256u
#define LARGE_BYTES ((uint64_t)1 << 30) /* of large slots in use at a time, at least one */
#define POLL_MS 100u
#define LOST_MS 60000u /* nothing came back for so long, beyond the time that images may take */

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static uint32_t cores(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

	return n < 1 ? 1 : (uint32_t)n;
}

static void set_defaults(struct data_decoder *d)
{
	struct data_limits *l = &d->limits;

	if (!l->max_image_pixels)
		l->max_image_pixels = (uint64_t)64 << 20;
	if (!l->max_image_bytes)
		l->max_image_bytes = (uint64_t)64 << 20;
	if (!l->image_ms)
		l->image_ms = 2000;
	d->workers = l->workers ? l->workers : cores();
	if (d->workers > MAX_WORKERS)
		d->workers = MAX_WORKERS;
	if (l->max_image_pixels > (uint64_t)IMAGE_MAX_SIDE * IMAGE_MAX_SIDE)
		l->max_image_pixels = (uint64_t)IMAGE_MAX_SIDE * IMAGE_MAX_SIDE;
	d->sizes.large_in = pages(l->max_image_bytes);
	d->sizes.large_out = pages(l->max_image_pixels * 3);
	d->large_max = (uint32_t)(LARGE_BYTES / (d->sizes.large_in + d->sizes.large_out));
	if (!d->large_max)
		d->large_max = 1;
}

/* The shared memory of one worker; only the control page is mapped here. */
static int create_region(const struct data_decoder *d, struct pool_worker *w)
{
	w->fd = memfd_create("cnnd-decode", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (w->fd < 0 || ftruncate(w->fd, (off_t)worker_region(&d->sizes)) ||
	    fcntl(w->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -errno;
	if (fallocate(w->fd, 0, 0, WORKER_CONTROL))
		return -errno;
	w->control = mmap(NULL, WORKER_CONTROL, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
	if (w->control == MAP_FAILED) {
		w->control = NULL;
		return -errno;
	}
	return 0;
}

static void *map_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int create_memory(struct data_decoder *d)
{
	int rc = 0;

	d->worker = calloc(d->workers, sizeof(*d->worker));
	d->status = map_shared(d->workers * sizeof(*d->status));
	d->bell = map_shared(sizeof(*d->bell));
	if (!d->worker || !d->status || !d->bell)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->workers; i++)
		d->worker[i].fd = -1;
	for (uint32_t i = 0; i < d->workers && !rc; i++)
		rc = create_region(d, &d->worker[i]);
	return rc;
}

static int start_zygote(struct data_decoder *d, struct err *err)
{
	struct zygote_setup setup = {.workers = d->workers, .status = d->status};
	int *fd = calloc(d->workers, sizeof(*fd));
	int rc;

	if (!fd)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < d->workers; i++)
		fd[i] = d->worker[i].fd;
	setup.fd = fd;
	setup.worker.sizes = d->sizes;
	setup.worker.bell = d->bell;
	/* coefficients of a progressive JPEG take six bytes a pixel */
	setup.worker.memory = ((uint64_t)64 << 20) + 8 * d->limits.max_image_pixels;
	setup.worker.sandbox = d->limits.sandbox;
	setup.worker.test_images = d->test_images;
	rc = zygote_start(&setup, &d->zygote, err);
	free(fd);
	return rc;
}

int decoder_create(const struct data_limits *limits, bool test_images, struct data_decoder **out,
		   struct err *err)
{
	struct data_decoder *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	pthread_mutex_init(&d->lock, NULL);
	d->zygote.socket = -1;
	d->limits = *limits;
	d->test_images = test_images;
	set_defaults(d);
	rc = create_memory(d);
	if (rc)
		err_set(err, ERR_LIMIT, rc, "shared memory for %u decode workers: %s", d->workers,
			strerror(-rc));
	else
		rc = start_zygote(d, err);
	if (rc) {
		data_decoder_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

int data_decoder_create(const struct data_limits *limits, struct data_decoder **out,
			struct err *err)
{
	return decoder_create(limits, false, out, err);
}

void data_decoder_free(struct data_decoder *d)
{
	if (!d)
		return;
	zygote_stop(&d->zygote);
	for (uint32_t i = 0; d->worker && i < d->workers; i++) {
		struct pool_worker *w = &d->worker[i];

		for (uint32_t s = 0; s < WORKER_SLOTS; s++)
			if (w->job[s] && !w->job[s]->queue)
				free(w->job[s]);
		if (w->control)
			munmap(w->control, WORKER_CONTROL);
		if (w->fd >= 0)
			close(w->fd);
	}
	if (d->status)
		munmap(d->status, d->workers * sizeof(*d->status));
	if (d->bell)
		munmap(d->bell, sizeof(*d->bell));
	pthread_mutex_destroy(&d->lock);
	free(d->worker);
	free(d);
}

uint64_t decoder_max_bytes(const struct data_decoder *d)
{
	return d->limits.max_image_bytes;
}

bool decoder_test_images(const struct data_decoder *d)
{
	return d && d->test_images;
}

/* A slot for the job; makes room by looking at the workers and by moving done jobs of others. */
static int acquire(struct data_decoder *d, bool large, struct decode_job *job,
		   const struct decode_queue *own, struct err *err)
{
	int rc = pool_acquire(d, large, job, err);

	if (rc != -EAGAIN)
		return rc;
	pool_poll(d);
	rc = pool_acquire(d, large, job, err);
	if (rc != -EAGAIN)
		return rc;
	pool_move_done(d, own);
	return pool_acquire(d, large, job, err);
}

/* Copies the image into the slot and sends it off; on failure the slot is free again. */
static int fill(struct data_decoder *d, struct decode_job *job, const void *image, struct err *err)
{
	int fd = d->worker[job->worker].fd, rc = 0;
	const uint8_t *p = image;
	uint64_t at = worker_in(&d->sizes, job->slot), left = job->bytes;

	while (left) {
		ssize_t n = pwrite(fd, p, left, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			rc = err_set(err, ERR_LIMIT, n ? -errno : -EIO,
				     "no memory for an image of %llu bytes: %s",
				     (unsigned long long)job->bytes, strerror(n ? errno : EIO));
			break;
		}
		p += n;
		at += (uint64_t)n;
		left -= (uint64_t)n;
	}
	pthread_mutex_lock(&d->lock);
	if (!rc)
		rc = pool_push(d, job, err);
	if (rc)
		pool_free_slot(d, job->worker, job->slot);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

int decoder_submit(struct data_decoder *d, struct decode_queue *q, struct decode_job *job,
		   const void *image, struct err *err)
{
	int rc;

	if (job->bytes > d->limits.max_image_bytes)
		return err_set(err, ERR_INTERNAL, -EMSGSIZE, "image past max_image_bytes");
	job->request.max_pixels = d->limits.max_image_pixels;
	job->queue = q;
	job->moved = NULL;
	job->crash = false;
	pthread_mutex_lock(&d->lock);
	if (!q->last)
		q->last = &q->first;
	rc = acquire(d, job->bytes > DECODER_SMALL, job, q, err);
	pthread_mutex_unlock(&d->lock);
	if (!rc)
		rc = fill(d, job, image, err);
	if (rc)
		return rc;
	q->in_flight++;
	q->idle_since = 0;
	return 0;
}

struct decode_job *decoder_take(struct data_decoder *d, struct decode_queue *q)
{
	uint32_t count = atomic_load(&d->bell->count);
	struct decode_job *job;

	if (!q->in_flight)
		return NULL;
	pthread_mutex_lock(&d->lock);
	if (!q->first && count != q->seen)
		pool_poll(d);
	q->seen = count;
	job = q->first;
	if (job) {
		q->first = job->next;
		if (!q->first)
			q->last = &q->first;
		if (job->slot != SLOT_NONE)
			d->worker[job->worker].state[job->slot] = SLOT_TAKEN;
		q->in_flight--;
		q->idle_since = 0;
	}
	pthread_mutex_unlock(&d->lock);
	return job;
}

int decoder_pixels(struct data_decoder *d, const struct decode_job *job, void *to, struct err *err)
{
	const struct image_result *r = &job->result;
	uint64_t n = (uint64_t)r->h * r->w * r->c, at = 0;

	if (job->moved) {
		memcpy(to, job->moved, n);
		return 0;
	}
	while (at < n) {
		off_t from = (off_t)(worker_out(&d->sizes, job->slot) + at);
		ssize_t k = pread(d->worker[job->worker].fd, (uint8_t *)to + at, n - at, from);

		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return err_set(err, ERR_INTERNAL, -EIO, "decoded pixels cannot be read: %s",
				       strerror(k ? errno : EIO));
		at += (uint64_t)k;
	}
	return 0;
}

void decoder_release(struct data_decoder *d, struct decode_job *job)
{
	if (job->slot != SLOT_NONE) {
		pthread_mutex_lock(&d->lock);
		pool_free_slot(d, job->worker, job->slot);
		pthread_mutex_unlock(&d->lock);
		job->slot = SLOT_NONE;
	}
	free(job->moved);
	job->moved = NULL;
}

int decoder_again(struct data_decoder *d, struct decode_queue *q, struct decode_job *job,
		  struct err *err)
{
	struct decode_job target = {0};
	uint8_t *image = job->moved;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = acquire(d, true, &target, NULL, err);
	if (!rc) /* the slot is to know the real job */
		d->worker[target.worker].job[target.slot] = job;
	pthread_mutex_unlock(&d->lock);
	if (rc)
		return rc;
	if (!image) {
		image = malloc(job->bytes);
		if (!image ||
		    pread(d->worker[job->worker].fd, image, job->bytes,
			  (off_t)worker_in(&d->sizes, job->slot)) != (ssize_t)job->bytes) {
			free(image);
			pthread_mutex_lock(&d->lock);
			pool_free_slot(d, target.worker, target.slot);
			pthread_mutex_unlock(&d->lock);
			return err_set(err, ERR_LIMIT, -ENOMEM, "no memory for an image");
		}
	}
	job->moved = image; /* released with the small slot once it was copied */
	if (job->slot != SLOT_NONE) {
		pthread_mutex_lock(&d->lock);
		pool_free_slot(d, job->worker, job->slot);
		pthread_mutex_unlock(&d->lock);
	}
	job->worker = target.worker;
	job->slot = target.slot;
	job->moved = NULL;
	rc = fill(d, job, image, err);
	free(image);
	if (rc) {
		job->slot = SLOT_NONE;
		return rc;
	}
	q->in_flight++;
	q->idle_since = 0;
	return 0;
}

static bool wait_over(const struct data_decoder *d, const struct decode_queue *q,
		      enum decode_wait what)
{
	switch (what) {
	case DECODE_DONE:
		return q->first;
	case DECODE_SLOT:
		return q->first || pool_has_free(d, false);
	case DECODE_SLOT_LARGE:
		return q->first || pool_has_free(d, true);
	default:
		return pool_has_free(d, true);
	}
}

int decoder_wait(struct data_decoder *d, struct decode_queue *q, enum decode_wait what,
		 struct err *err)
{
	uint64_t now = pool_now(), limit = LOST_MS;
	unsigned int pause = d->limits.image_ms / 4 + 1;
	bool ready, broken, late;
	uint32_t count;

	limit += (uint64_t)10 * d->limits.image_ms * WORKER_SLOTS;
	if (!q->idle_since)
		q->idle_since = now;
	atomic_fetch_add(&d->bell->waiters, 1);
	count = atomic_load(&d->bell->count);
	pthread_mutex_lock(&d->lock);
	pool_check_helper(d);
	pool_poll(d);
	ready = wait_over(d, q, what);
	broken = d->broken && (!q->first || what == DECODE_LARGE);
	late = !ready && !broken && now - q->idle_since > limit;
	if (late)
		err_set(err, ERR_INTERNAL, -ETIMEDOUT,
			"no image came back from the decode workers for %llu s%s%.200s",
			(unsigned long long)(limit / 1000), d->trouble.kind ? ": " : "",
			d->trouble.kind ? d->trouble.message : "");
	if (broken && err)
		*err = d->trouble;
	pthread_mutex_unlock(&d->lock);
	if (!ready && !broken && !late)
		futex_wait(&d->bell->count, count, pause < POLL_MS ? pause : POLL_MS);
	atomic_fetch_sub(&d->bell->waiters, 1);
	return broken ? -EIO : late ? -ETIMEDOUT : 0;
}

/* Gives the memory of an idle worker's slots back. */
static void trim(struct pool_worker *w, const struct worker_sizes *sizes)
{
	for (uint32_t s = 0; s < WORKER_SLOTS; s++)
		if (w->state[s] != SLOT_FREE)
			return;
	fallocate(w->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, WORKER_CONTROL,
		  (off_t)(worker_region(sizes) - WORKER_CONTROL));
	w->touched = false;
}

void decoder_close(struct data_decoder *d, struct decode_queue *q)
{
	struct decode_job *job;

	pthread_mutex_lock(&d->lock);
	while ((job = q->first)) {
		q->first = job->next;
		if (job->slot != SLOT_NONE)
			pool_free_slot(d, job->worker, job->slot);
		free(job->moved);
		free(job);
	}
	for (uint32_t i = 0; i < d->workers; i++) {
		struct pool_worker *w = &d->worker[i];

		for (uint32_t s = 0; s < WORKER_SLOTS; s++)
			if (w->state[s] == SLOT_QUEUED && w->job[s]->queue == q)
				w->job[s]->queue = NULL;
		if (w->touched)
			trim(w, &d->sizes);
	}
	pthread_mutex_unlock(&d->lock);
	*q = (struct decode_queue){0};
}
