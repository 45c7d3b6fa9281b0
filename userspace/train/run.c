// SPDX-License-Identifier: MIT
/*
 * run.c: one iteration: `count` epochs, then an evaluation and the advice of plan.c. NaN or Inf in
 * loss, gradient or weights brings the last good state back and ends the run with a row that says
 * where it happened. Nothing is allocated in a step.
 */
#include "run.h"
#include "team.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static int keep_best(struct train *t, struct err *err)
{
	uint64_t p = t->graph->param_floats, s = t->graph->stat_floats;
	int rc;

	if (!t->best_param) {
		t->extra_best = calloc(p + s + 1, sizeof(float));
		if (!t->extra_best)
			return err_set(err, ERR_LIMIT, -ENOMEM,
				       "out of memory for a copy of the weights, %" PRIu64 " bytes",
				       (p + s) * sizeof(float));
		t->best_param = t->extra_best;
		t->best_stat = t->extra_best + p;
	}
	if (t->model_param) {
		memcpy(t->best_param, t->model_param, p * sizeof(float));
		memcpy(t->best_stat, t->model_stat, s * sizeof(float));
		t->has_best = true;
		return 0;
	}
	rc = train_read_net(t, t->best_param, t->best_stat, NULL, err);
	t->has_best = !rc;
	return rc;
}

/* ---- epochs ---- */

static int start_epoch(struct run *r, struct err *err)
{
	struct train *t = r->t;
	const struct hosts *h = t->hosts;
	int rc = 0;

	/* hosts that are apart go back to their last merge, not to an epoch's start */
	if (!h || !h->apart || h->config.kind == MERGE_NONE)
		rc = train_keep_good(r, 0, err);
	r->epoch_rows = r->epoch_steps = r->step = 0;
	r->loss = 0;
	for (uint32_t i = 0; i < t->n_metrics; i++)
		memset(&t->metric[i].train, 0, sizeof(t->metric[i].train));
	atomic_store_explicit(&t->at_epoch, r->epoch + 1, memory_order_relaxed);
	atomic_store_explicit(&t->at_step, 0, memory_order_relaxed);
	if (rc || !r->reader)
		return rc;
	train_batches_epoch(t);
	rc = data_reader_epoch(r->reader, t->setup.config->seed, r->epoch);
	return rc ? err_set(err, ERR_LIMIT, rc, "ordering the rows of epoch %u: %s", r->epoch + 1,
			    strerror(-rc))
		  : 0;
}

/* With other hosts: what all are told at the end of an epoch, where there was no merge to tell it
 * with. */
static int end_epoch(struct run *r, struct err *err)
{
	struct train *t = r->t;
	uint32_t flags = 0;
	bool finite = true;
	int rc = r->bad.what ? 0 : train_weights_finite(t, &finite, err);

	if (!finite)
		train_found(r, BAD_WEIGHT, false);
	if (atomic_load(&t->stop))
		flags |= MERGE_FLAG_STOP;
	if (r->bad.what)
		flags |= MERGE_FLAG_BAD;
	if (!rc && t->hosts && !r->bad_everywhere)
		rc = train_hosts_word(t, flags, &flags, err);
	r->bad_everywhere |= (flags & MERGE_FLAG_BAD) != 0;
	r->stopped |= (flags & MERGE_FLAG_STOP) != 0;
	return rc;
}

/* *whole: all steps were made. */
static int one_epoch(struct run *r, bool *whole, struct err *err)
{
	struct train *t = r->t;
	uint64_t u = 0;
	int rc = start_epoch(r, err);

	for (; !rc && u < t->updates; u++) {
		if (!t->hosts)
			r->stopped = atomic_load_explicit(&t->stop, memory_order_relaxed);
		if (r->stopped || r->bad_everywhere || (!t->hosts && r->bad.what))
			break;
		rc = train_update(r, u, err);
	}
	*whole = u == t->updates;
	if (!rc)
		rc = end_epoch(r, err);
	if (rc || !*whole || r->bad.what || r->bad_everywhere ||
	    !train_average_wants(t, r->epoch + 1))
		return rc;
	rc = train_model_make(t, err);
	if (!rc)
		train_average_epoch(t, t->model_param);
	t->model_param = t->model_stat = NULL;
	return rc;
}

static int epochs(struct run *r, const struct ctl_run *run, struct ctl_run_row *row,
		  struct err *err)
{
	bool whole = true;
	int rc = 0;

	for (r->epoch = run->first_epoch; !rc && r->epoch < run->first_epoch + run->count;
	     r->epoch++) {
		rc = one_epoch(r, &whole, err);
		if (rc || r->bad_everywhere)
			break;
		row->epoch += whole;
		if (r->stopped)
			break;
	}
	if (r->epoch == run->first_epoch + run->count)
		r->epoch--; /* for messages */
	return rc;
}

/* ---- with other hosts: the same run everywhere ---- */

struct order {
	uint32_t first, count, flags, merge_every;
	uint64_t lr_factor; /* bits */
	uint64_t checksum;  /* of the parameters; 0 where hosts are apart */
	uint32_t fresh, stop;
};

static int same_order(struct train *t, const uint8_t *all, uint32_t n, bool *stopped,
		      struct err *err)
{
	struct hosts *h = t->hosts;
	struct order first, one;
	bool fresh = false, differ = false;
	uint32_t which = 0;
	char room[32];

	memcpy(&first, all, sizeof(first));
	for (uint32_t i = 0; i < n; i++) {
		memcpy(&one, all + i * sizeof(one), sizeof(one));
		if (one.first != first.first || one.count != first.count ||
		    one.flags != first.flags || one.merge_every != first.merge_every ||
		    one.lr_factor != first.lr_factor)
			return err_set(err, ERR_PROTOCOL, -EPROTO,
				       "%s was asked for another run than the others",
				       train_hosts_name(t, h->member[i], room));
		fresh |= one.fresh != 0;
		if (one.checksum != first.checksum) {
			differ = true;
			which = h->member[i];
		}
		*stopped |= one.stop != 0;
	}
	if (fresh && differ)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "%s begins with other weights than the others",
			       train_hosts_name(t, which, room));
	if (fresh) {
		h->fresh = h->started = h->apart = false;
		h->since = h->samples = 0;
	}
	return 0;
}

static int begin(struct run *r, const struct ctl_run *run, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	struct order mine = {
		.first = run->first_epoch,
		.count = run->count,
		.flags = run->flags,
		.merge_every = run->merge_every,
		.stop = atomic_load(&t->stop),
	};
	const uint8_t *out;
	uint32_t n;
	int rc = 0;

	if (!h)
		return 0;
	h->seconds = 0;
	h->merges = h->bytes = 0;
	h->distance = NAN;
	mine.fresh = h->fresh;
	memcpy(&mine.lr_factor, &run->lr_factor, sizeof(mine.lr_factor));
	if (!h->apart || h->fresh) {
		rc = train_stage_in(t, 0, BACKEND_PARAM, err);
		mine.checksum =
			XXH3_64bits(h->arenas.param, t->graph->param_floats * sizeof(float));
	}
	if (!rc)
		rc = train_hosts_gather(t, &mine, sizeof(mine), &out, &n, err);
	if (!rc)
		rc = same_order(t, out, n, &r->stopped, err);
	if (!rc && h->config.unit == MERGE_AUTO && run->merge_every)
		h->config.every = run->merge_every;
	return rc;
}

/* ---- the end of a run ---- */

/* All go back to the last state in common. */
static int go_back(struct run *r, struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	int rc = train_row_gather_bad(r, err);

	if (!rc)
		rc = train_restore_good(r, err);
	if (!rc && h) {
		h->since = h->samples = 0;
		h->apart = h->started &&
			   (h->config.kind == MERGE_EASGD || h->config.kind == MERGE_NONE);
	}
	if (!rc && t->several)
		rc = train_model_make(t, err);
	if (!rc)
		rc = train_average_model(t, err);
	if (rc)
		return rc;
	if (row->epoch > r->bad.epoch)
		row->epoch = r->bad.epoch;
	train_row_bad(r, row);
	return 0;
}

/* The model to evaluate; at the very end and after a stop it is what all hold. */
static int make_model(struct run *r, const struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;
	bool last = r->stopped || row->epoch == t->setup.config->epochs;
	int rc = 0;

	if (last && h && h->since && h->config.kind != MERGE_NONE)
		rc = train_merge_now(r, err);
	if (rc || r->bad_everywhere || !t->several)
		return rc;
	rc = train_model_make(t, err);
	if (!rc && last && !(h && h->apart))
		rc = train_model_settle(t, err);
	return rc ? rc : train_average_model(t, err);
}

/* Evaluation and advice after the last epoch of the run. */
static int conclude(struct run *r, struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	bool validation = t->hosts ? train_hosts_validation(t) : t->validation_rows > 0;
	int rc = validation ? train_evaluate_set(t, ROW_VALIDATION, row, err) : 0;

	if (rc)
		return rc;
	if (validation && !isfinite(row->validation_loss)) {
		train_found(r, BAD_VALIDATION, isinf(row->validation_loss));
		return 0;
	}
	train_plan_advise(&t->plan, row);
	train_row_best(t, row);
	return 0;
}

static int finish(struct run *r, struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	int rc = r->bad.what || r->bad_everywhere ? 0 : make_model(r, row, err);

	if (!rc)
		rc = train_row_fill(r, row, err);
	if (t->hosts)
		row->seconds_merge = t->hosts->seconds;
	if (!rc && r->stopped && !r->bad.what && !r->bad_everywhere)
		train_row_stopped(r, row);
	if (!rc && !r->bad.what && !r->bad_everywhere)
		rc = conclude(r, row, err);
	return !rc && (r->bad.what || r->bad_everywhere) ? go_back(r, row, err) : rc;
}

/* The run has failed: what is left is the last merge. */
static void salvage(struct run *r)
{
	struct train *t = r->t;
	struct hosts *h = t->hosts;

	t->model_param = t->model_stat = NULL;
	if (!h || !h->started || !h->apart || h->config.kind == MERGE_NONE)
		return;
	if (train_restore_good(r, NULL) && !train_team_broken(t))
		return;
	t->model_param = h->config.kind == MERGE_EASGD ? merge_model(h->merge) : t->param;
	t->model_stat = t->stat;
}

static int check_run(struct train *t, const struct ctl_run *run, struct err *err)
{
	uint32_t epochs = t->setup.config->epochs;

	if (t->setup.inference)
		return err_set(err, ERR_PARAM, -EINVAL, "this job does not train");
	if (train_team_broken(t))
		return err_set(err, ERR_INTERNAL, -EIO,
			       "an earlier step on the devices has failed: the training is over");
	if (!run->count || run->first_epoch >= epochs || run->count > epochs - run->first_epoch)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "epochs %u to %" PRIu64 " were asked for, the training has %u",
			       run->first_epoch + 1, (uint64_t)run->first_epoch + run->count,
			       epochs);
	if (!(run->lr_factor > 0 && run->lr_factor <= 1))
		return err_set(err, ERR_PARAM, -EINVAL, "lr_factor is %g, must be in (0, 1]",
			       run->lr_factor);
	if (run->flags & ~CTL_RUN_SNAPSHOT)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "unknown flags 0x%x of a run",
			       run->flags);
	return 0;
}

int train_run(struct train *t, const struct ctl_run *run, struct ctl_run_row *row, struct err *err)
{
	struct run r = {.t = t, .reader = t->shuffled, .lr_factor = run->lr_factor, .lr = NAN};
	double start = train_now();
	int rc = check_run(t, run, err);

	if (rc)
		return rc;
	train_row_start(run, row);
	r.epoch = run->first_epoch;
	t->put.active = t->held_weights = t->held_optimizer = false;
	t->has_confusion = false;
	atomic_store_explicit(&t->at_rows, 0, memory_order_relaxed);
	if (run->flags & CTL_RUN_SNAPSHOT)
		rc = keep_best(t, err);
	if (!rc)
		rc = begin(&r, run, err);
	t->model_param = t->model_stat = NULL;
	if (!rc)
		rc = epochs(&r, run, row, err);
	row->seconds_train = train_now() - start - (t->hosts ? t->hosts->seconds : 0);
	if (!rc)
		rc = finish(&r, row, err);
	if (rc)
		salvage(&r);
	return rc;
}

void train_stop(struct train *t)
{
	atomic_store(&t->stop, true);
}

void train_cancel(struct train *t)
{
	atomic_store(&t->cancel, true);
}

void train_progress(struct train *t, struct train_progress *out)
{
	uint64_t bits = atomic_load_explicit(&t->at_loss, memory_order_relaxed);

	*out = (struct train_progress){
		.epoch = atomic_load_explicit(&t->at_epoch, memory_order_relaxed),
		.epochs = t->setup.config->epochs,
		.step = atomic_load_explicit(&t->at_step, memory_order_relaxed),
		.steps = t->steps,
		.rows = atomic_load_explicit(&t->at_rows, memory_order_relaxed),
	};
	memcpy(&out->loss, &bits, sizeof(bits));
}
