// SPDX-License-Identifier: MIT
/* pool.c: see pool.h. */
#include "pool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define READY_MS 10000 /* from fork to the sandbox: milliseconds, unless the machine is dead */
#define LOOK_MS 200    /* longer between two looks, and it was us who slept */
#define WALL_FACTOR 10 /* an image that uses no processor time gets this many times its time */

uint64_t pool_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void head_begins(struct pool_worker *w)
{
	w->waited = 0;
	w->checked = pool_now();
	w->cpu_known = false;
}

void pool_free_slot(struct data_decoder *d, uint32_t worker, uint32_t slot)
{
	struct pool_worker *w = &d->worker[worker];

	w->state[slot] = SLOT_FREE;
	w->job[slot] = NULL;
	if (slot == WORKER_LARGE)
		d->large_used--;
	worker_bell_ring(d->bell);
}

/* The slot's job is done; its result is set. */
static void finish(struct data_decoder *d, uint32_t worker, uint32_t slot)
{
	struct pool_worker *w = &d->worker[worker];
	struct decode_job *job = w->job[slot];

	if (!job->queue) { /* its feeder is gone */
		free(job);
		pool_free_slot(d, worker, slot);
		return;
	}
	w->state[slot] = SLOT_DONE;
	job->next = NULL;
	*job->queue->last = job;
	job->queue->last = &job->next;
}

/* What the worker says, checked against what was asked. */
static void take_result(const struct data_decoder *d, struct pool_worker *w, uint32_t slot)
{
	struct decode_job *job = w->job[slot];
	struct image_result *r = &job->result;
	uint64_t room = worker_out_bytes(&d->sizes, slot);

	memcpy(r, (const void *)&w->control->slot[slot].result, sizeof(*r));
	r->reason[sizeof(r->reason) - 1] = '\0';
	if (r->code == IMAGE_TOO_LARGE && slot != WORKER_LARGE)
		return;
	if (r->code == IMAGE_BAD && r->reason[0])
		return;
	if (r->code == IMAGE_OK && r->h && r->w && r->h <= IMAGE_MAX_SIDE &&
	    r->w <= IMAGE_MAX_SIDE && (r->c == 1 || r->c == 3) &&
	    (uint64_t)r->h * r->w * r->c <= room && (!job->request.h || job->request.h == r->h) &&
	    (!job->request.w || job->request.w == r->w) &&
	    (!job->request.c || job->request.c == r->c))
		return;
	image_fail(r, "made the decoder give an impossible answer");
	job->crash = true;
}

/* Stores the positions that the worker reads, and wakes it. */
static void publish(struct pool_worker *w)
{
	atomic_store(&w->control->submitted, w->submitted);
	if (atomic_load(&w->control->asleep))
		futex_wake(&w->control->submitted, 1);
}

static void enqueue(struct pool_worker *w, uint32_t slot)
{
	const struct decode_job *job = w->job[slot];

	w->control->slot[slot].bytes = job->bytes;
	w->control->slot[slot].request = job->request;
	memset(&w->control->slot[slot].result, 0, sizeof(w->control->slot[slot].result));
	w->queue[w->submitted % WORKER_QUEUE] = slot;
	w->control->queue[w->submitted % WORKER_QUEUE] = slot;
	w->submitted++;
}

/* Waits until the new process says that it is in its sandbox. */
static int wait_ready(struct data_decoder *d, uint32_t i, struct err *err)
{
	struct pool_worker *w = &d->worker[i];
	uint64_t until = pool_now() + READY_MS;
	int status, code;

	for (;;) {
		uint32_t count = atomic_load(&d->bell->count);

		if (atomic_load(&w->control->ready))
			return 0;
		if (atomic_load(&d->status[i].exited) == w->generation)
			break;
		if (pool_now() > until)
			return err_set(err, ERR_INTERNAL, -ETIMEDOUT,
				       "a decode worker was not ready within %d ms", READY_MS);
		atomic_fetch_add(&d->bell->waiters, 1);
		futex_wait(&d->bell->count, count, 20);
		atomic_fetch_sub(&d->bell->waiters, 1);
	}
	status = atomic_load(&d->status[i].wait_status);
	code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	err_set(err, ERR_INTERNAL, -EPERM, "a decode worker cannot enter its sandbox: %s",
		code ? strerror(code) : "it was ended by a signal");
	err_hint(err, "Where the kernel has no seccomp filters, set decode_sandbox = off.");
	return -EPERM;
}

/* Without the helper no worker can be started, and those that run have ended with it. */
static void helper_gone(struct data_decoder *d, int code)
{
	d->broken = true;
	err_set(&d->trouble, ERR_INTERNAL, code,
		"images cannot be decoded: the helper process of cnnd is gone");
	err_hint(&d->trouble, "Restart cnnd; its log or the kernel's says what ended it.");
}

void pool_check_helper(struct data_decoder *d)
{
	struct pollfd p = {.fd = d->zygote.socket, .events = POLLIN};

	if (!d->broken && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)))
		helper_gone(d, -EPIPE);
}

/* A new process for a worker whose queue may hold jobs. The old one, if any, is ended first. */
static int start_worker(struct data_decoder *d, uint32_t i, struct err *err)
{
	struct pool_worker *w = &d->worker[i];
	int rc;

	w->running = false;
	rc = zygote_end(&d->zygote, i);
	if (!rc) { /* nobody writes to the control page now */
		atomic_store(&w->control->ready, 0);
		atomic_store(&w->control->asleep, 0);
		atomic_store(&w->control->done, w->reaped);
		atomic_store(&w->control->submitted, w->submitted);
		rc = zygote_begin(&d->zygote, i);
	}
	if (rc == -EPIPE || rc == -ETIMEDOUT)
		helper_gone(d, rc);
	if (rc) {
		if (d->broken && err)
			*err = d->trouble;
		else
			err_set(err, ERR_LIMIT, rc, "a decode worker cannot be started: %s",
				strerror(-rc));
		return rc;
	}
	w->generation = atomic_load(&d->status[i].started);
	rc = wait_ready(d, i, err);
	w->running = !rc;
	head_begins(w);
	return rc;
}

static void reap(struct data_decoder *d, uint32_t i, uint32_t n)
{
	struct pool_worker *w = &d->worker[i];

	for (; n; n--) {
		uint32_t slot = w->queue[w->reaped++ % WORKER_QUEUE];

		take_result(d, w, slot);
		finish(d, i, slot);
		head_begins(w);
	}
}

/* The worker is dead or to die: the image at the head of its queue did it, the others go again. */
static void fall(struct data_decoder *d, uint32_t i, const char *reason)
{
	struct pool_worker *w = &d->worker[i];
	uint32_t waiting[WORKER_QUEUE], n = 0;

	if (w->submitted != w->reaped) {
		uint32_t slot = w->queue[w->reaped++ % WORKER_QUEUE];

		memset(&w->job[slot]->result, 0, sizeof(w->job[slot]->result));
		image_fail(&w->job[slot]->result, "%s", reason);
		w->job[slot]->crash = true;
		finish(d, i, slot);
	}
	while (w->reaped != w->submitted)
		waiting[n++] = w->queue[w->reaped++ % WORKER_QUEUE];
	zygote_end(&d->zygote, i);
	for (uint32_t k = 0; k < n; k++)
		enqueue(w, waiting[k]);
	w->reaped = w->submitted - n;
	start_worker(d, i, &d->trouble); /* failed: pool_poll tries again while jobs wait for it */
}

static uint64_t cpu_ms(const struct data_decoder *d, uint32_t i)
{
	clockid_t clock;
	struct timespec t;

	if (clock_getcpuclockid(atomic_load(&d->status[i].pid), &clock) || clock_gettime(clock, &t))
		return 0;
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/*
 * Is the time of the image at the head up? Wall time alone would punish images for a machine that
 * is busy or was stopped: time counts only while we look, and half of it must be processor time.
 */
static bool time_is_up(struct data_decoder *d, uint32_t i)
{
	struct pool_worker *w = &d->worker[i];
	uint64_t now = pool_now(), step = now - w->checked, limit = d->limits.image_ms;

	w->checked = now;
	w->waited += step < LOOK_MS ? step : LOOK_MS;
	if (w->waited < limit / 2)
		return false;
	if (!w->cpu_known) {
		w->cpu = cpu_ms(d, i);
		w->cpu_known = true;
	}
	if (w->waited >= WALL_FACTOR * limit)
		return true;
	return w->waited >= limit && cpu_ms(d, i) - w->cpu >= limit / 2;
}

static void poll_worker(struct data_decoder *d, uint32_t i)
{
	struct pool_worker *w = &d->worker[i];
	bool exited = atomic_load(&d->status[i].exited) == w->generation; /* before done */
	uint32_t done = atomic_load(&w->control->done) - w->reaped;
	int status = atomic_load(&d->status[i].wait_status);
	char text[IMAGE_REASON];

	if (done > w->submitted - w->reaped) {
		fall(d, i, "made the decoder give an impossible answer");
		return;
	}
	reap(d, i, done);
	if (exited) {
		if (WIFSIGNALED(status))
			snprintf(text, sizeof(text), "ended the decoder with signal %d (%s)",
				 WTERMSIG(status), strsignal(WTERMSIG(status)));
		else
			snprintf(text, sizeof(text), "ended the decoder");
		fall(d, i, text);
	} else if (w->submitted != w->reaped && time_is_up(d, i)) {
		snprintf(text, sizeof(text), "took the decoder more than %u ms",
			 d->limits.image_ms);
		fall(d, i, text);
	}
}

void pool_poll(struct data_decoder *d)
{
	for (uint32_t i = 0; i < d->workers && !d->broken; i++)
		if (d->worker[i].running)
			poll_worker(d, i);
		else if (d->worker[i].submitted != d->worker[i].reaped)
			start_worker(d, i, &d->trouble);
}

static uint32_t free_slot(const struct pool_worker *w, bool large)
{
	if (large)
		return w->state[WORKER_LARGE] == SLOT_FREE ? WORKER_LARGE : SLOT_NONE;
	for (uint32_t s = 0; s < WORKER_SMALL; s++)
		if (w->state[s] == SLOT_FREE)
			return s;
	return SLOT_NONE;
}

bool pool_has_free(const struct data_decoder *d, bool large)
{
	if (large && d->large_used >= d->large_max)
		return false;
	for (uint32_t i = 0; i < d->workers; i++)
		if (free_slot(&d->worker[i], large) != SLOT_NONE)
			return true;
	return false;
}

/* The running worker with the shortest queue; an idle one that must be started before a busy one.
 */
int pool_acquire(struct data_decoder *d, bool large, struct decode_job *job, struct err *err)
{
	uint32_t best = SLOT_NONE, shortest = UINT32_MAX, slot;
	int rc;

	if (d->broken) {
		if (err)
			*err = d->trouble;
		return -EIO;
	}
	if (large && d->large_used >= d->large_max)
		return -EAGAIN;
	for (uint32_t i = 0; i < d->workers; i++) {
		const struct pool_worker *w = &d->worker[i];
		uint32_t length = 2 * (w->submitted - w->reaped) + !w->running;

		if (free_slot(w, large) != SLOT_NONE && length < shortest) {
			best = i;
			shortest = length;
		}
	}
	if (best == SLOT_NONE)
		return -EAGAIN;
	/* one that died or lies while idle must not be blamed on the next image */
	if (d->worker[best].running && d->worker[best].submitted == d->worker[best].reaped)
		poll_worker(d, best);
	if (d->broken) {
		if (err)
			*err = d->trouble;
		return -EIO;
	}
	if (!d->worker[best].running) {
		rc = start_worker(d, best, err);
		if (rc)
			return rc;
	}
	slot = free_slot(&d->worker[best], large);
	if (slot == SLOT_NONE)
		return -EAGAIN;
	job->worker = best;
	job->slot = slot;
	d->worker[best].state[slot] = SLOT_FILLING;
	d->worker[best].job[slot] = job;
	d->worker[best].touched = true;
	if (large)
		d->large_used++;
	return 0;
}

int pool_push(struct data_decoder *d, struct decode_job *job, struct err *err)
{
	struct pool_worker *w = &d->worker[job->worker];

	if (d->broken) {
		if (err)
			*err = d->trouble;
		return -EIO;
	}
	if (w->submitted == w->reaped)
		head_begins(w);
	w->state[job->slot] = SLOT_QUEUED;
	enqueue(w, job->slot);
	publish(w);
	return 0;
}

/* Copies pixels, or the image that was too large, to memory of our own. */
static bool move_out(struct data_decoder *d, struct decode_job *job)
{
	bool again = job->result.code == IMAGE_TOO_LARGE;
	uint64_t n = again ? job->bytes : (uint64_t)job->result.h * job->result.w * job->result.c;
	uint64_t from = again ? worker_in(&d->sizes, job->slot) : worker_out(&d->sizes, job->slot);
	int fd = d->worker[job->worker].fd;

	if (again || job->result.code == IMAGE_OK) {
		job->moved = malloc(n);
		if (!job->moved)
			return false;
		if (pread(fd, job->moved, n, (off_t)from) != (ssize_t)n) {
			free(job->moved);
			job->moved = NULL;
			return false;
		}
	}
	pool_free_slot(d, job->worker, job->slot);
	job->slot = SLOT_NONE;
	return true;
}

void pool_move_done(struct data_decoder *d, const struct decode_queue *but)
{
	for (uint32_t i = 0; i < d->workers; i++)
		for (uint32_t s = 0; s < WORKER_SLOTS; s++)
			if (d->worker[i].state[s] == SLOT_DONE && d->worker[i].job[s]->queue != but)
				move_out(d, d->worker[i].job[s]);
}
