// SPDX-License-Identifier: MIT
/*
 * update.c: one planned update: a step of this host's own, a synchronous one of all hosts, or a
 * step with a merge of weights after it, as merge_schedule says. A host without rows does nothing
 * in a local step, not even decay, and applies the sum like all others in a synchronous one.
 *
 * NaN and Inf, and a stop: who finds NaN computes no further. Both are told with the next call
 * between the hosts; then all stop at that place, after NaN with the last state in common.
 */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PULSE_MOST 100000 /* updates */

/* ---- state ---- */

int train_keep_good(struct run *r, uint64_t done, struct err *err)
{
	struct train *t = r->t;
	uint32_t epochs = r->epoch + (done == t->steps);

	t->good_t = t->t;
	train_average_keep(t);
	if (done && done < t->steps)
		snprintf(t->kept, sizeof(t->kept), "those after step %" PRIu64 " of epoch %u", done,
			 r->epoch + 1);
	else if (epochs)
		snprintf(t->kept, sizeof(t->kept), "those after epoch %u", epochs);
	else
		snprintf(t->kept, sizeof(t->kept), "the initial ones");
	return train_read_net(t, t->param, t->stat, t->slot, err);
}

int train_restore_good(struct run *r, struct err *err)
{
	struct train *t = r->t;

	t->t = t->good_t;
	train_average_back(t);
	return train_write_net(t, t->param, t->stat, t->slot, err);
}

/* The net's weights, looked at piece by piece: the copies hold the last good ones. */
int train_weights_finite(struct train *t, bool *finite, struct err *err)
{
	const enum backend_arena arena[2] = {BACKEND_PARAM, BACKEND_STAT};
	const uint64_t size[2] = {t->graph->param_floats, t->graph->stat_floats};
	uint64_t step = t->io_bytes / sizeof(float);

	*finite = true;
	for (int i = 0; i < 2; i++)
		for (uint64_t at = 0; at < size[i]; at += step) {
			uint64_t n = size[i] - at < step ? size[i] - at : step;
			int rc = backend_read(t->net, arena[i], at, n, (float *)t->io);

			if (rc)
				return err_set(err, ERR_INTERNAL, rc, "reading weights: %s",
					       strerror(-rc));
			*finite &= train_finite((const float *)t->io, n);
		}
	return 0;
}

/* ---- with other hosts ---- */

static uint32_t flags_of(const struct run *r)
{
	return (atomic_load_explicit(&r->t->stop, memory_order_relaxed) ? MERGE_FLAG_STOP : 0) |
	       (r->bad.what ? MERGE_FLAG_BAD : 0);
}

static void take_flags(struct run *r, uint32_t flags)
{
	r->bad_everywhere |= (flags & MERGE_FLAG_BAD) != 0;
	r->stopped |= (flags & MERGE_FLAG_STOP) != 0;
}

/* What train_get gives meanwhile is what was merged. */
static void tell_merge(struct run *r, const float *param, const float *stat)
{
	struct train *t = r->t;

	if (!t->setup.on_merge)
		return;
	t->model_param = param;
	t->model_stat = stat;
	t->setup.on_merge(t->setup.context, &t->hosts->last);
	t->model_param = t->model_stat = NULL;
}

/* The replicas' statistics together, as those of replica 0: what the host gives to a merge. */
static int pool_here(struct train *t, struct err *err)
{
	int rc = train_replicas_pool(t, t->pool_stat, err);

	if (!rc && t->graph->stat_floats)
		memcpy(t->hosts->arenas.stat, t->pool_stat, t->graph->stat_floats * sizeof(float));
	return rc;
}

int train_merge_now(struct run *r, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	bool finite = true;
	uint32_t flags;
	int rc = 0;

	if (!r->bad.what)
		rc = train_weights_finite(t, &finite, err);
	if (!finite)
		train_found(r, BAD_WEIGHT, false);
	if (!rc)
		rc = train_stage_model(t, true, err);
	if (!rc && t->replicas > 1)
		rc = pool_here(t, err);
	flags = flags_of(r);
	if (!rc)
		rc = train_hosts_merge(t, r->lr, &flags, err);
	if (rc)
		return rc;
	take_flags(r, flags);
	if (r->bad_everywhere)
		return 0;
	train_average_update(t, merge_model(h->merge), h->since);
	h->samples = h->since = h->beat = 0;
	h->beat_seconds = 0;
	h->apart = h->config.kind == MERGE_EASGD;
	rc = train_replicas_spread(t, false, true, err);
	if (!rc)
		rc = train_keep_good(r, r->step + 1, err);
	if (!rc)
		tell_merge(r, merge_model(h->merge), t->stat);
	return rc;
}

/* From here on hosts go their own way, until a merge. All begin with the same state; statistics,
 * and parameters of processors that round differently, are not yet. */
static int start_local(struct run *r, uint64_t done, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	int rc = train_model_make(t, err);

	if (!rc)
		rc = train_model_settle(t, err);
	t->model_param = t->model_stat = NULL;
	if (!rc)
		rc = train_keep_good(r, done, err);
	if (!rc)
		rc = train_stage_in(t, 0, BACKEND_PARAM, err);
	if (rc)
		return rc;
	merge_start(h->merge, h->arenas.param);
	h->started = true;
	h->samples = h->since = 0;
	return 0;
}

/* Planned steps without a row. */
static void pass(struct run *r, const struct update *u)
{
	r->steps += u->last - u->first;
	r->epoch_steps += u->last - u->first;
	r->step = u->last - 1;
}

static int local_update(struct run *r, const struct update *u, struct err *err)
{
	struct train *t = r->t;
	bool applied;
	int rc;

	if (!u->rows) {
		pass(r, u);
		return 0;
	}
	rc = train_gradients(r, u, &applied, err);
	if (!rc && !applied && !r->bad.what)
		rc = train_apply(r, false, err);
	return !rc && !t->hosts && !r->bad.what ? train_average_step(t, err) : rc;
}

static int shared_update(struct run *r, struct update *u, struct err *err)
{
	struct train *t = r->t;
	uint32_t flags;
	bool applied;
	int rc = r->bad.what ? 0 : train_gradients(r, u, &applied, err);

	/* in the sum nobody could tell whose it was; in f16 all leave the update out */
	if (!rc && t->setup.config->precision != BACKEND_PRECISION_F16 &&
	    !train_finite(t->hosts->arenas.grad, t->graph->param_floats))
		train_found(r, BAD_GRADIENT, false);
	flags = flags_of(r);
	if (!rc)
		rc = train_hosts_gradient(t, u->first, u->last, &u->rows, &flags, err);
	if (rc)
		return rc;
	take_flags(r, flags);
	if (r->bad_everywhere || !u->rows)
		return 0;
	rc = train_apply(r, true, err);
	/* the same sum on all hosts: all find it */
	r->bad_everywhere |= r->bad.what != BAD_NONE;
	if (!rc && !r->bad_everywhere && (t->setup.on_merge || t->average.mean))
		rc = train_stage_model(t, false, err);
	if (!rc && !r->bad_everywhere)
		train_average_update(t, t->hosts->arenas.param, 1);
	if (!rc && !r->bad_everywhere)
		tell_merge(r, t->hosts->arenas.param, t->hosts->arenas.stat);
	return rc;
}

/* What this update does. merge_every = 'auto': synchronous until the interval is chosen. */
static enum merge_action action_of(const struct run *r, uint64_t number)
{
	const struct hosts *h = r->t->hosts;

	if (h->config.unit == MERGE_AUTO && !h->config.every && h->config.kind != MERGE_GRADIENT)
		return MERGE_SYNC_STEP;
	return merge_schedule(&h->config, number, r->t->updates);
}

struct said {
	double seconds; /* of a local update here */
	uint32_t flags, zero;
};

/*
 * Between merges that are far apart: every pulse_seconds or so a word, after a number of updates
 * that all know. A host with few rows would else wait for the others longer than a peer may be
 * silent in a call, and a stop would have to wait for the merge.
 */
static int pulse(struct run *r, struct err *err)
{
	struct hosts *h = r->t->hosts;
	struct said mine = {h->beat_seconds / (double)h->beat, flags_of(r), 0}, one;
	double slowest = 0;
	const uint8_t *out;
	uint32_t n, flags = 0;
	int rc = train_hosts_gather(r->t, &mine, sizeof(mine), &out, &n, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		memcpy(&one, out + i * sizeof(one), sizeof(one));
		slowest = fmax(slowest, one.seconds);
		flags |= one.flags;
	}
	take_flags(r, flags);
	h->pulse = PULSE_MOST;
	if (slowest * PULSE_MOST > h->pulse_seconds)
		h->pulse = (uint64_t)(h->pulse_seconds / slowest) + 1;
	h->beat = 0;
	h->beat_seconds = 0;
	return 0;
}

static int hosts_update(struct run *r, struct update *u, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	enum merge_action action = action_of(r, u->number);
	double start;
	int rc = 0;

	u->shared = action == MERGE_SYNC_STEP || action == MERGE_SYNC_STEP_LAST;
	if (u->shared) {
		u->rows = train_hosts_rows(t, u->first, u->last);
		u->scale = u->rows ? (float)(1.0 / (double)u->rows) : 0;
		if (u->rows)
			return shared_update(r, u, err);
		pass(r, u);
		return 0;
	}
	if (!h->started)
		rc = start_local(r, u->first, err);
	h->apart = true;
	h->since++;
	start = train_now();
	if (!rc && !r->bad.what)
		rc = local_update(r, u, err);
	else if (!rc)
		pass(r, u); /* the others compute them */
	r->step = u->last - 1;
	h->beat++;
	h->beat_seconds += train_now() - start;
	if (!rc && action == MERGE_NOW)
		return train_merge_now(r, err);
	return !rc && h->beat >= h->pulse ? pulse(r, err) : rc;
}

int train_update(struct run *r, uint64_t number, struct err *err)
{
	struct train *t = r->t;
	uint32_t k = t->setup.config->accumulate;
	struct update u = {
		.number = (uint64_t)r->epoch * t->updates + number,
		.first = number * k,
		.last = number * k + k,
	};
	double start = train_now(), calls = t->hosts ? t->hosts->seconds : 0;
	int rc;

	if (u.last > t->steps)
		u.last = t->steps;
	u.rows = train_steps_of_host(t->rows, t->steps, u.last).first -
		 train_steps_of_host(t->rows, t->steps, u.first).first;
	u.scale = u.rows ? (float)(1.0 / (double)u.rows) : 0;
	u.penalty = t->penalty ? backend_penalty(t->net) : 0;
	r->lr = train_schedule_lr(&t->schedule, u.number, r->lr_factor);
	rc = t->hosts ? hosts_update(r, &u, err) : local_update(r, &u, err);
	r->compute += train_now() - start - (t->hosts ? t->hosts->seconds - calls : 0);
	return rc;
}
