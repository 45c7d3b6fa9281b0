// SPDX-License-Identifier: MIT
/*
 * step.c: the gradient of one update on this host: its steps, and in each step its replicas, in
 * turn on this thread. Nothing is allocated here.
 */
#include "run.h"

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

/* What replica k does in step s. base: place of the host's rows in the global batch. */
static int one_replica(struct run *r, const struct update *u, uint32_t k, struct steps_range host,
		       uint64_t base, bool whole, struct err *err)
{
	struct train *t = r->t;
	struct steps_range mine = train_steps_of_replica(host, t->replicas, k);
	struct bucket bucket = {.t = t, .replica = k};
	bool tell = t->intra && t->gradients->announce && r->step + 1 == u->last;
	struct backend_applied applied = {.finite = true};
	struct backend_error error = {""};
	struct backend_sums sums = {0};
	struct backend_batch batch = {0};
	struct metric_batch mb = {0};
	int rc = 0;

	if (mine.n)
		rc = train_batch(t, r->reader, mine.first, (uint32_t)mine.n, &batch, &mb, err);
	if (rc)
		return rc;
	batch.seed = t->setup.config->seed;
	batch.epoch = r->epoch;
	batch.step = (uint64_t)r->epoch * t->steps + r->step;
	batch.position = base + mine.first - host.first;
	if (whole)
		rc = backend_step(t->net, &batch, u->scale, r->lr, t->t + 1, &sums, t->outputs,
				  &applied, &error);
	else
		rc = backend_gradient(t->replica[k], &batch, u->scale, r->step > u->first,
				      tell ? on_bucket : NULL, &bucket, &sums, t->outputs, &error);
	if (rc && *bucket.error.message)
		return train_merge_err(t, err, rc, &bucket.error, "the all-reduce of the replicas");
	if (rc)
		return train_backend_err(err, rc, &error, "training");
	count_rows(r, k, &mb, sums.loss, u->penalty);
	if (whole)
		count_update(r, applied.finite);
	return 0;
}

int train_gradients(struct run *r, const struct update *u, bool *applied, struct err *err)
{
	struct train *t = r->t;
	bool whole = t->replicas == 1 && u->last - u->first == 1 && !u->shared;
	int rc = 0;

	*applied = whole;
	for (uint64_t s = u->first; !rc && s < u->last; s++) {
		struct steps_range host = train_steps_of_host(t->rows, t->steps, s);
		uint64_t base = u->shared ? train_hosts_position(t, s) : 0;

		r->step = s;
		if (t->hosts && t->setup.on_step)
			t->setup.on_step(t->setup.context);
		rc = train_canceled(t, err);
		/* all replicas, whatever one finds: they announce the same buckets */
		for (uint32_t k = 0; !rc && k < t->replicas; k++)
			rc = one_replica(r, u, k, host, base, whole, err);
		count_step(r);
		if (r->bad.what)
			break;
	}
	if (!rc && !r->bad.what)
		rc = train_replicas_reduce(t, u->shared, err);
	return rc;
}

int train_apply(struct run *r, struct err *err)
{
	struct train *t = r->t;
	struct backend_applied applied;
	struct backend_error error = {""};
	bool finite = true;

	for (uint32_t k = 0; k < t->replicas; k++) {
		int rc = backend_apply(t->replica[k], r->lr, t->t + 1, &applied, &error);

		if (rc)
			return train_backend_err(err, rc, &error, "training");
		finite &= applied.finite;
	}
	count_update(r, finite);
	return 0;
}
