// SPDX-License-Identifier: MIT
/*
 * step.c: the gradient of one update on this host: its steps, and in each step its replicas, in
 * turn on this thread or all at once on theirs. Nothing is allocated here.
 */
#include "run.h"
#include "team.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct bucket {
	struct train *t;
	uint32_t replica;
	struct merge_error error;
};

static int on_bucket(void *context, uint64_t offset, uint64_t length, void *ready)
{
	struct bucket *b = context;

	return merge_intra_bucket(b->t->intra, b->replica, offset, length, &b->error);
}

void train_found(struct run *r, enum bad_what what, bool infinite)
{
	if (r->bad.what)
		return;
	r->bad = (struct run_bad){
		.what = what,
		.host = r->t->hosts ? r->t->hosts->self : 0,
		.epoch = r->epoch,
		.infinite = infinite,
		.step = r->step,
	};
}

static void count_rows(struct run *r, uint32_t k, const struct metric_batch *mb, double loss,
		       double penalty)
{
	struct train *t = r->t;

	r->loss += loss + penalty * mb->n;
	r->epoch_rows += mb->n;
	r->rows += mb->n;
	t->replica_rows[k] += mb->n;
	if (t->hosts)
		t->hosts->samples += mb->n;
	for (uint32_t i = 0; mb->n && i < t->n_metrics; i++)
		train_metric_update(&t->metric[i], &t->metric[i].train, mb);
	if (!isfinite(loss))
		train_found(r, BAD_LOSS, isinf(loss));
}

static void count_step(struct run *r)
{
	struct train *t = r->t;
	double mean = r->epoch_rows ? r->loss / (double)r->epoch_rows : 0;
	uint64_t bits;

	r->steps++;
	r->epoch_steps++;
	memcpy(&bits, &mean, sizeof(bits));
	atomic_store_explicit(&t->at_loss, bits, memory_order_relaxed);
	atomic_store_explicit(&t->at_rows, r->rows, memory_order_relaxed);
	atomic_store_explicit(&t->at_step, r->step + 1, memory_order_relaxed);
}

/* An f16 back end lowers its loss scale where a gradient overflows, and the update is left out. */
static void count_update(struct run *r, bool finite)
{
	struct train *t = r->t;
	bool scaled = t->setup.config->precision == BACKEND_PRECISION_F16;

	if (finite) {
		t->t++;
		t->skipped = 0;
	} else if (!scaled || ++t->skipped > TRAIN_SKIPS_MAX) {
		train_found(r, BAD_GRADIENT, false);
	}
}

/* What the random numbers of a batch depend on. position: of its first row in the global batch. */
static void name_batch(const struct run *r, struct backend_batch *batch, uint64_t position)
{
	const struct train *t = r->t;

	batch->seed = t->setup.config->seed;
	batch->epoch = r->epoch;
	batch->step = (uint64_t)r->epoch * t->steps + r->step;
	batch->position = position;
}

/* ---- in turn ---- */

static int rows_of(struct run *r, uint32_t k, struct steps_range mine, struct batch_part *part,
		   struct err *err)
{
	struct train *t = r->t;
	int rc;

	memset(part, 0, sizeof(*part));
	part->outputs = t->outputs;
	if (!t->batches)
		return mine.n ? train_batch(t, r->reader, mine.first, (uint32_t)mine.n,
					    &part->batch, &part->metrics, err)
			      : 0;
	rc = train_batches_step(t, r->step, err);
	if (!rc)
		train_batches_part(t, r->step, k, part);
	return rc;
}

/* What replica k does in a step. base: place of the host's rows in the global batch. */
static int one_replica(struct run *r, const struct update *u, uint32_t k, struct steps_range host,
		       uint64_t base, bool whole, struct err *err)
{
	struct train *t = r->t;
	struct steps_range mine = train_steps_of_replica(host, t->replicas, k);
	struct bucket bucket = {.t = t, .replica = k};
	bool tell = t->intra && t->on_the_way && r->step + 1 == u->last;
	struct backend_applied applied = {.finite = true};
	struct backend_error error = {""};
	struct backend_sums sums = {0};
	struct batch_part part;
	int rc = rows_of(r, k, mine, &part, err);

	if (rc)
		return rc;
	name_batch(r, &part.batch, base + mine.first - host.first);
	if (whole)
		rc = backend_step(t->net, &part.batch, u->scale, r->lr, t->t + 1, &sums,
				  part.outputs, &applied, &error);
	else
		rc = backend_gradient(t->replica[k], &part.batch, u->scale, r->step > u->first,
				      tell ? on_bucket : NULL, &bucket, &sums, part.outputs,
				      &error);
	if (rc && *bucket.error.message)
		return train_merge_err(t, err, rc, &bucket.error, "the all-reduce of the replicas");
	if (rc)
		return train_backend_err(err, rc, &error, "training");
	count_rows(r, k, &part.metrics, sums.loss, u->penalty);
	if (whole)
		count_update(r, applied.finite);
	return 0;
}

/* ---- all at once ---- */

/* The sum is applied in the same breath, unless other hosts have a part in it. */
static int team_step(struct run *r, const struct update *u, struct steps_range host, uint64_t base,
		     struct err *err)
{
	struct train *t = r->t;
	bool last = r->step + 1 == u->last, finite = true;
	struct team_order order = {
		.what = TEAM_GRADIENT | (last ? TEAM_SUM : 0) |
			(last && !u->shared ? TEAM_APPLY : 0),
		.accumulate = r->step > u->first,
		.keep = u->shared,
		.scale = u->scale,
		.lr = r->lr,
		.t = t->t + 1,
	};
	int rc = train_batches_step(t, r->step, err), ahead;

	if (rc)
		return rc;
	for (uint32_t k = 0; k < t->replicas; k++) {
		struct batch_part *part = &train_team_part(t, k)->rows;

		train_batches_part(t, r->step, k, part);
		name_batch(r, &part->batch,
			   base + train_steps_of_replica(host, t->replicas, k).first - host.first);
	}
	train_team_start(t, &order);
	ahead = train_batches_ahead(t, r->step, err);
	rc = train_team_wait(t, ahead ? NULL : err);
	if (rc || ahead)
		return ahead ? ahead : rc;
	for (uint32_t k = 0; k < t->replicas; k++) {
		const struct team_part *part = train_team_part(t, k);

		count_rows(r, k, &part->rows.metrics, part->sums.loss, u->penalty);
		finite &= part->applied.finite;
	}
	if (order.what & TEAM_APPLY)
		count_update(r, finite);
	return 0;
}

/* ---- an update ---- */

static int one_step(struct run *r, const struct update *u, bool whole, struct err *err)
{
	struct train *t = r->t;
	struct steps_range host = train_steps_of_host(t->rows, t->steps, r->step);
	uint64_t base = u->shared ? train_hosts_position(t, r->step) : 0;
	int rc;

	if (t->hosts && t->setup.on_step)
		t->setup.on_step(t->setup.context);
	rc = train_canceled(t, err);
	if (!rc && t->team)
		return team_step(r, u, host, base, err);
	/* all replicas, whatever one finds: they announce the same buckets */
	for (uint32_t k = 0; !rc && k < t->replicas; k++)
		rc = one_replica(r, u, k, host, base, whole, err);
	return rc;
}

int train_gradients(struct run *r, const struct update *u, bool *applied, struct err *err)
{
	struct train *t = r->t;
	bool whole = t->replicas == 1 && u->last - u->first == 1 && !u->shared;
	int rc = 0;

	*applied = whole || (t->team && !u->shared);
	for (uint64_t s = u->first; !rc && s < u->last; s++) {
		r->step = s;
		rc = one_step(r, u, whole, err);
		count_step(r);
		if (r->bad.what)
			break;
	}
	if (!rc && !r->bad.what && !t->team)
		rc = train_replicas_reduce(t, u->shared, err);
	return rc;
}

int train_apply(struct run *r, bool take, struct err *err)
{
	struct train *t = r->t;
	struct team_order order = {.what = take ? TEAM_TAKE : 0, .lr = r->lr, .t = t->t + 1};
	struct backend_applied applied;
	struct backend_error error = {""};
	bool finite = true;
	int rc = 0;

	/* in host memory replica 0 takes it from its own arena, which an update may write to */
	if (t->team && take && !t->stage) {
		rc = train_team_run(t, &order, err);
		order.what = 0;
	}
	order.what |= TEAM_APPLY;
	if (t->team)
		rc = rc ? rc : train_team_run(t, &order, err);
	else if (take)
		rc = train_replicas_spread(t, true, false, err);
	for (uint32_t k = 0; k < t->replicas && !rc; k++) {
		if (t->team)
			applied = train_team_part(t, k)->applied;
		else
			rc = backend_apply(t->replica[k], r->lr, t->t + 1, &applied, &error);
		if (rc)
			return train_backend_err(err, rc, &error, "training");
		finite &= applied.finite;
	}
	if (!rc)
		count_update(r, finite);
	return rc;
}
