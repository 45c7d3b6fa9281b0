// SPDX-License-Identifier: MIT
/* readahead.c: see readahead.h. Two stages: one is the reader's, the other the thread's. */
#include "readahead.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEADLINE_S 60 /* for a disk to give one batch */
#define FAR 4	      /* batches ahead, the disk is told what will be read */

struct stage {
	uint8_t *buffer;
	uint64_t first;
	uint32_t n; /* 0: nothing there */
	int rc;
	struct err err;
};

struct readahead {
	const struct data_set *data;
	const uint32_t *order;
	uint64_t rows, stride;
	uint32_t max_batch;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t change;
	struct stage stage[2];
	unsigned int mine; /* the reader's stage */
	bool wanted, stop; /* the thread is to fill the other one; to end */
};

uint64_t readahead_stride(const struct data_set *data)
{
	uint64_t bytes = shape_elements(data->rows_shape) * backend_dtype_bytes(data->dtype);

	return (bytes + BACKEND_ALIGN - 1) & ~(uint64_t)(BACKEND_ALIGN - 1);
}

uint64_t readahead_bytes(const struct data_set *data, uint32_t max_batch)
{
	return 2 * max_batch * readahead_stride(data);
}

static void advise(const struct readahead *a, uint64_t first, uint64_t n)
{
	uint64_t bytes = shape_elements(a->data->rows_shape) * backend_dtype_bytes(a->data->dtype);

	for (uint64_t i = first; i < first + n && i < a->rows; i++)
		store_advise(a->data->store, set_row(a->data, a->order[i])->where, bytes);
}

static void load(const struct readahead *a, struct stage *s)
{
	uint64_t bytes = shape_elements(a->data->rows_shape) * backend_dtype_bytes(a->data->dtype);

	s->rc = 0;
	advise(a, s->first, s->n);
	for (uint32_t i = 0; i < s->n && !s->rc; i++) {
		uint64_t where = set_row(a->data, a->order[s->first + i])->where;

		if (!store_pointer(a->data->store, where))
			s->rc = store_read(a->data->store, where, s->buffer + i * a->stride, bytes,
					   &s->err);
	}
}

static void *run(void *context)
{
	struct readahead *a = context;

	pthread_mutex_lock(&a->lock);
	while (!a->stop) {
		struct stage *s = &a->stage[1 - a->mine];

		if (!a->wanted) {
			pthread_cond_wait(&a->change, &a->lock);
			continue;
		}
		pthread_mutex_unlock(&a->lock);
		load(a, s);
		advise(a, s->first + FAR * (uint64_t)s->n, s->n);
		pthread_mutex_lock(&a->lock);
		a->wanted = false;
		pthread_cond_broadcast(&a->change);
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

int readahead_create(const struct data_set *data, const uint32_t *order, uint64_t n,
		     uint32_t max_batch, struct readahead **out, struct err *err)
{
	struct readahead *a = calloc(1, sizeof(*a));
	pthread_condattr_t attr;
	sigset_t all, old;
	int rc;

	if (!a)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	a->data = data;
	a->order = order;
	a->rows = n;
	a->stride = readahead_stride(data);
	a->max_batch = max_batch;
	for (int i = 0; i < 2; i++)
		a->stage[i].buffer = aligned_alloc(BACKEND_ALIGN, max_batch * a->stride);
	pthread_mutex_init(&a->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&a->change, &attr);
	pthread_condattr_destroy(&attr);
	rc = a->stage[0].buffer && a->stage[1].buffer ? 0 : ENOMEM;
	if (!rc) {
		sigfillset(&all); /* signals are for the daemon's main thread */
		pthread_sigmask(SIG_SETMASK, &all, &old);
		rc = pthread_create(&a->thread, NULL, run, a);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	if (rc) {
		a->stop = true;
		readahead_free(a);
		return err_set(err, ERR_LIMIT, -rc, "no buffers or thread for reading ahead: %s",
			       strerror(rc));
	}
	*out = a;
	return 0;
}

void readahead_free(struct readahead *a)
{
	bool running;

	if (!a)
		return;
	pthread_mutex_lock(&a->lock);
	running = !a->stop;
	a->stop = true;
	pthread_cond_broadcast(&a->change);
	pthread_mutex_unlock(&a->lock);
	if (running)
		pthread_join(a->thread, NULL);
	pthread_cond_destroy(&a->change);
	pthread_mutex_destroy(&a->lock);
	free(a->stage[0].buffer);
	free(a->stage[1].buffer);
	free(a);
}

/* With the lock held: until the thread rests. */
static int wait_thread(struct readahead *a, struct err *err)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += DEADLINE_S;
	while (a->wanted)
		if (pthread_cond_timedwait(&a->change, &a->lock, &until) == ETIMEDOUT && a->wanted)
			return err_set(err, ERR_IO, -ETIMEDOUT,
				       "the spill file gives no rows for %d s", DEADLINE_S);
	return 0;
}

int readahead_rest(struct readahead *a)
{
	int rc;

	pthread_mutex_lock(&a->lock);
	rc = wait_thread(a, NULL);
	if (!rc)
		a->stage[0].n = a->stage[1].n = 0;
	pthread_mutex_unlock(&a->lock);
	return rc;
}

/* With the lock held and the thread at rest: a batch like this one will be wanted next. Batches of
 * an epoch differ by one row. */
static void want_next(struct readahead *a, uint64_t first, uint32_t n)
{
	struct stage *s = &a->stage[1 - a->mine];
	uint64_t left = a->rows - first - n;

	s->first = first + n;
	s->n = n < a->max_batch ? n + 1 : n;
	if (s->n > left)
		s->n = (uint32_t)left;
	if (!s->n)
		return;
	a->wanted = true;
	pthread_cond_broadcast(&a->change);
}

int readahead_get(struct readahead *a, uint64_t first, uint32_t n, const uint8_t **base,
		  struct err *err)
{
	struct stage *mine, *other;
	int rc = 0;

	pthread_mutex_lock(&a->lock);
	other = &a->stage[1 - a->mine];
	if (other->n >= n && other->first == first) {
		rc = wait_thread(a, err);
		if (!rc)
			a->mine = 1 - a->mine;
		mine = other;
	} else {
		mine = &a->stage[a->mine];
		mine->first = first;
		mine->n = n;
		pthread_mutex_unlock(&a->lock);
		load(a, mine);
		pthread_mutex_lock(&a->lock);
	}
	if (!rc && mine->rc) {
		rc = mine->rc;
		if (err)
			*err = mine->err;
		mine->n = 0;
	}
	if (!rc) {
		*base = mine->buffer;
		if (!a->wanted)
			want_next(a, first, n);
	}
	pthread_mutex_unlock(&a->lock);
	return rc;
}
