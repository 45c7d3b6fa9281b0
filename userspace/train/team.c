// SPDX-License-Identifier: MIT
/*
 * team.c: the threads of the replicas. A replica computes its gradient, tells the all-reduce of
 * each bucket on the way, waits for the sum and applies it, without meeting the others but in the
 * all-reduce. Whoever fails ends that for all of them and looks whether its device is still good.
 */
#include "team.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TIMEOUT_MS 60000u
#define PATIENCE 4u    /* gradient, sum, copies, update: each has a deadline of its own */
#define LOOK_MS 50u    /* between two looks at a cancel */
#define GRACE_MS 2000u /* past all deadlines: a call of the driver that does not return */

struct seat {
	struct team *team;
	uint32_t k;
	pthread_t thread;
	bool started;
	struct team_part part;
	struct merge_error merge; /* of the bucket that was not taken */
	bool back;		  /* from the order */
	int rc;
	uint64_t turn; /* which fault this was, from 1 */
	struct err err;
};

struct team {
	struct train *t;
	pthread_mutex_t lock;
	pthread_cond_t go, back;
	struct team_order order;
	uint64_t number; /* of the order */
	uint32_t working;
	uint64_t faults;
	bool stop, broken;
	bool refused; /* the order, because of an earlier fault */
	struct seat seat[];
};

/* ---- what a replica does, on its own thread ---- */

static int merge_failed(struct seat *s, int rc, const struct merge_error *error)
{
	if (rc == -ECANCELED)
		return err_set(&s->err, ERR_CANCELED, rc, "the all-reduce was ended");
	return err_set(&s->err, rc == -ENOMEM ? ERR_LIMIT : ERR_INTERNAL, rc,
		       "the all-reduce of the replicas: %s",
		       *error->message ? error->message : strerror(-rc));
}

static int on_bucket(void *context, uint64_t offset, uint64_t length, void *ready)
{
	struct seat *s = context;

	return merge_intra_bucket_ready(s->team->t->intra, s->k, offset, length, ready, &s->merge);
}

static int gradient(struct seat *s, const struct team_order *o)
{
	struct train *t = s->team->t;
	bool tell = t->on_the_way && (o->what & TEAM_SUM);
	struct backend_error error = {""};
	int rc;

	s->part.sums = (struct backend_sums){0};
	*s->merge.message = 0;
	rc = backend_gradient(t->replica[s->k], &s->part.rows.batch, o->scale, o->accumulate,
			      tell ? on_bucket : NULL, s, &s->part.sums, s->part.rows.outputs,
			      &error);
	if (rc && *s->merge.message)
		return merge_failed(s, rc, &s->merge);
	return rc ? train_backend_err(&s->err, rc, &error, "training") : 0;
}

static int sum(struct seat *s, const struct team_order *o)
{
	struct train *t = s->team->t;
	uint64_t n = t->graph->param_floats;
	struct merge_error error = {0};
	int rc = 0;

	if (!t->on_the_way && n) {
		rc = train_stage_in(t, s->k, BACKEND_GRAD, &s->err);
		if (rc)
			return rc;
		rc = merge_intra_bucket(t->intra, s->k, 0, n, &error);
	}
	if (!rc)
		rc = merge_intra_wait(t->intra, s->k, &error);
	if (rc)
		return merge_failed(s, rc, &error);
	if (o->keep)
		return t->on_the_way && s->k == 0 ? train_stage_in(t, 0, BACKEND_GRAD, &s->err) : 0;
	return t->on_the_way ? 0 : train_stage_out(t, s->k, BACKEND_GRAD, &s->err);
}

/* What the hosts have summed lies in the host arena of replica 0. */
static int take(struct seat *s)
{
	struct train *t = s->team->t;
	const float *from = train_host_arena(t, 0, BACKEND_GRAD);
	int rc;

	if (!t->graph->param_floats)
		return 0;
	if (!t->stage && s->k == 0) {
		backend_touch(t->replica[0], BACKEND_GRAD);
		return 0;
	}
	rc = backend_write(t->replica[s->k], BACKEND_GRAD, 0, t->graph->param_floats, from);
	return rc ? train_device_err(t, s->k, &s->err, rc, "writing to the device") : 0;
}

static int apply(struct seat *s, const struct team_order *o)
{
	struct backend_error error = {""};
	int rc = backend_apply(s->team->t->replica[s->k], o->lr, o->t, &s->part.applied, &error);

	return rc ? train_backend_err(&s->err, rc, &error, "training") : 0;
}

static int keep_rows(struct seat *s, const struct team_order *o)
{
	struct backend_error error = {""};
	int rc = backend_resident(s->team->t->replica[s->k], o->x, o->n, &error);

	s->part.kept = !rc;
	if (!rc || rc == -ENOSPC || rc == -EOPNOTSUPP)
		return 0;
	return train_backend_err(&s->err, rc, &error, "taking the rows in");
}

static int compile(struct seat *s, const struct team_order *o)
{
	struct train *t = s->team->t;
	struct backend_error error = {""};
	int rc;

	if (t->replica[s->k])
		return 0;
	rc = backend_compile(t->setup.backends[s->k % t->setup.n_backends], t->graph, o->options,
			     &t->replica[s->k], &error);
	return rc ? train_backend_err(&s->err, rc, &error, "the network cannot be compiled") : 0;
}

static int put(struct seat *s, const struct team_order *o)
{
	int rc = 0;

	for (uint32_t a = BACKEND_PARAM; a <= BACKEND_SLOT && !rc; a++)
		if (o->arenas & 1u << a)
			rc = train_stage_out(s->team->t, s->k, (enum backend_arena)a, &s->err);
	return rc;
}

/* An all-reduce may be the first to meet what has broken the device for good. */
static int look_at_device(struct seat *s, int rc)
{
	struct train *t = s->team->t;
	float one;

	if (rc == -ENOTRECOVERABLE || rc == -ECANCELED || !t->stage || !t->graph->param_floats ||
	    backend_read(t->replica[s->k], BACKEND_PARAM, 0, 1, &one) != -ENOTRECOVERABLE)
		return rc;
	err_prefix(&s->err, "%s is lost",
		   backend_info(t->setup.backends[s->k % t->setup.n_backends]));
	return -ENOTRECOVERABLE;
}

static int work(struct seat *s, const struct team_order *o)
{
	int rc = 0;

	if (o->what & TEAM_COMPILE)
		rc = compile(s, o);
	if (!rc && (o->what & TEAM_ROWS))
		rc = keep_rows(s, o);
	if (!rc && (o->what & TEAM_PUT))
		rc = put(s, o);
	if (!rc && (o->what & TEAM_GRADIENT))
		rc = gradient(s, o);
	if (!rc && (o->what & TEAM_SUM))
		rc = sum(s, o);
	if (!rc && (o->what & TEAM_TAKE))
		rc = take(s);
	if (!rc && (o->what & TEAM_APPLY))
		rc = apply(s, o);
	return rc;
}

/* The first fault has its number before the others can fail because of it. */
static int failed(struct seat *s, int rc)
{
	struct team *team = s->team;

	pthread_mutex_lock(&team->lock);
	s->turn = ++team->faults;
	team->broken = true;
	pthread_mutex_unlock(&team->lock);
	if (team->t->intra)
		merge_intra_abort(team->t->intra);
	return look_at_device(s, rc);
}

static void *seat_main(void *context)
{
	struct seat *s = context;
	struct team *team = s->team;
	uint64_t seen = 0;

	pthread_mutex_lock(&team->lock);
	for (;;) {
		struct team_order order;
		int rc;

		while (!team->stop && team->number == seen)
			pthread_cond_wait(&team->go, &team->lock);
		if (team->stop)
			break;
		seen = team->number;
		order = team->order;
		pthread_mutex_unlock(&team->lock);
		rc = work(s, &order);
		if (rc)
			rc = failed(s, rc);
		pthread_mutex_lock(&team->lock);
		s->rc = rc;
		s->back = true;
		if (!--team->working)
			pthread_cond_signal(&team->back);
	}
	pthread_mutex_unlock(&team->lock);
	return NULL;
}

/* ---- the thread of the training ---- */

struct team_part *train_team_part(struct train *t, uint32_t k)
{
	return &t->team->seat[k].part;
}

bool train_team_broken(const struct train *t)
{
	bool broken;

	if (!t->team)
		return false;
	pthread_mutex_lock(&t->team->lock);
	broken = t->team->broken;
	pthread_mutex_unlock(&t->team->lock);
	return broken;
}

void train_team_start(struct train *t, const struct team_order *order)
{
	struct team *team = t->team;

	pthread_mutex_lock(&team->lock);
	team->refused = team->broken;
	if (!team->refused) {
		team->order = *order;
		team->working = t->replicas;
		for (uint32_t k = 0; k < t->replicas; k++)
			team->seat[k].back = false;
		team->number++;
		pthread_cond_broadcast(&team->go);
	}
	pthread_mutex_unlock(&team->lock);
}

/* A call of the driver should have ended long ago. Lock held. */
static int late(struct team *team, uint64_t ms, struct err *err)
{
	struct train *t = team->t;
	uint32_t k = 0;

	while (k + 1 < t->replicas && team->seat[k].back)
		k++;
	team->broken = true;
	return err_set(err, ERR_INTERNAL, -ETIMEDOUT,
		       "training: replica %u does not come back after %llu ms (%s)", k,
		       (unsigned long long)ms,
		       backend_info(t->setup.backends[k % t->setup.n_backends]));
}

/* Lock held. */
static int wait_back(struct team *team, struct err *err)
{
	struct train *t = team->t;
	uint32_t timeout = t->setup.timeout_ms ? t->setup.timeout_ms : TIMEOUT_MS;
	uint32_t patience = team->order.patience ? team->order.patience : PATIENCE;
	uint64_t most = (uint64_t)timeout * patience + GRACE_MS;
	double until = train_now() + (double)most * 1e-3;
	bool told = false;

	while (team->working) {
		struct timespec look;

		clock_gettime(CLOCK_MONOTONIC, &look);
		look.tv_nsec += LOOK_MS * 1000000l;
		if (look.tv_nsec >= 1000000000l) {
			look.tv_sec++;
			look.tv_nsec -= 1000000000l;
		}
		pthread_cond_timedwait(&team->back, &team->lock, &look);
		if (!team->working)
			break;
		if (!told && atomic_load_explicit(&t->cancel, memory_order_relaxed)) {
			told = team->broken = true;
			if (t->intra)
				merge_intra_abort(t->intra);
		}
		if (train_now() > until) {
			if (t->intra)
				merge_intra_abort(t->intra);
			return late(team, most, err);
		}
	}
	return 0;
}

/* Whether a is nearer to where it began than b: a lost device, a fault of its own, the first one.
 */
static bool nearer(const struct seat *a, const struct seat *b)
{
	if ((a->rc == -ENOTRECOVERABLE) != (b->rc == -ENOTRECOVERABLE))
		return a->rc == -ENOTRECOVERABLE;
	if ((a->rc == -ECANCELED) != (b->rc == -ECANCELED))
		return b->rc == -ECANCELED;
	return a->turn < b->turn;
}

int train_team_wait(struct train *t, struct err *err)
{
	struct team *team = t->team;
	const struct seat *found = NULL;
	int rc;

	pthread_mutex_lock(&team->lock);
	rc = team->refused ? err_set(err, ERR_INTERNAL, -EIO,
				     "training: an earlier step on the devices has failed")
			   : wait_back(team, err);
	pthread_mutex_unlock(&team->lock);
	for (uint32_t k = 0; !rc && k < t->replicas; k++)
		if (team->seat[k].rc && (!found || nearer(&team->seat[k], found)))
			found = &team->seat[k];
	if (rc || !found)
		return rc;
	if (found->rc != -ENOTRECOVERABLE && (rc = train_canceled(t, err)))
		return rc;
	if (err)
		*err = found->err;
	return found->rc;
}

int train_team_run(struct train *t, const struct team_order *order, struct err *err)
{
	train_team_start(t, order);
	return train_team_wait(t, err);
}

/* ---- open, close ---- */

static void init_lock(struct team *team)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&team->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&team->back, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&team->go, NULL);
}

int train_team_open(struct train *t, struct err *err)
{
	struct team *team = calloc(1, sizeof(*team) + t->replicas * sizeof(team->seat[0]));
	sigset_t all, old;
	int rc = 0;

	if (!team)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	team->t = t;
	init_lock(team);
	t->team = team;
	sigfillset(&all); /* signals are for the program's own threads */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (uint32_t k = 0; k < t->replicas && !rc; k++) {
		struct seat *s = &team->seat[k];

		s->team = team;
		s->k = k;
		rc = pthread_create(&s->thread, NULL, seat_main, s);
		s->started = !rc;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? err_set(err, ERR_LIMIT, -rc, "no thread for a replica: %s", strerror(rc)) : 0;
}

void train_team_close(struct train *t)
{
	struct team *team = t->team;

	if (!team)
		return;
	if (train_team_broken(t) && t->intra)
		merge_intra_abort(t->intra);
	pthread_mutex_lock(&team->lock);
	team->stop = true;
	pthread_cond_broadcast(&team->go);
	pthread_mutex_unlock(&team->lock);
	/* whoever still works is in a call with a deadline of its own */
	for (uint32_t k = 0; k < t->replicas; k++)
		if (team->seat[k].started)
			pthread_join(team->seat[k].thread, NULL);
	pthread_cond_destroy(&team->go);
	pthread_cond_destroy(&team->back);
	pthread_mutex_destroy(&team->lock);
	free(team);
	t->team = NULL;
}
