// SPDX-License-Identifier: MIT
/*
 * run.c: the step loop. One iteration = `count` epochs, then an evaluation and the advice of
 * plan.c. Before each epoch the state is copied; NaN or Inf in loss, gradient or weights brings
 * that copy back and ends the run with a row that says where it happened. Nothing is allocated in a
 * step.
 */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
	struct train *t;
	struct data_reader *reader;
	double lr_factor, lr;
	uint32_t epoch;
	uint64_t epoch_rows, step; /* step: of this epoch, in work */
	double loss;		   /* sum over the epoch's rows, regularisers included */
	uint64_t rows, steps;	   /* of the whole run */
	const char *bad;	   /* what was NaN or Inf */
	double bad_value;
};

/* ---- state ---- */

static int keep_good(struct train *t, struct err *err)
{
	t->good_t = t->t;
	return train_read_net(t, t->param, t->stat, t->slot, err);
}

static int restore_good(struct train *t, struct err *err)
{
	t->t = t->good_t;
	return train_write_net(t, t->param, t->stat, t->slot, err);
}

/* The net's weights, looked at piece by piece: the copies hold the last good ones. */
static int weights_finite(struct train *t, bool *finite, struct err *err)
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
	rc = train_read_net(t, t->best_param, t->best_stat, NULL, err);
	t->has_best = !rc;
	return rc;
}

/* ---- a step ---- */

static void count_batch(struct run *r, const struct metric_batch *mb, double loss, double penalty)
{
	struct train *t = r->t;
	double mean;
	uint64_t bits;

	r->loss += loss + penalty * mb->n;
	r->epoch_rows += mb->n;
	r->rows += mb->n;
	r->steps++;
	for (uint32_t i = 0; mb->n && i < t->n_metrics; i++)
		train_metric_update(&t->metric[i], &t->metric[i].train, mb);
	mean = r->epoch_rows ? r->loss / (double)r->epoch_rows : 0;
	memcpy(&bits, &mean, sizeof(bits));
	atomic_store_explicit(&t->at_loss, bits, memory_order_relaxed);
	atomic_store_explicit(&t->at_rows, r->rows, memory_order_relaxed);
	atomic_store_explicit(&t->at_step, r->step + 1, memory_order_relaxed);
}

struct update {
	uint64_t first, last; /* steps [first, last) */
	float scale;
	double penalty;
};

static int one_step(struct run *r, const struct update *u, uint64_t s, struct err *err)
{
	struct train *t = r->t;
	struct steps_range host = train_steps_of_host(t->rows, t->steps, s);
	struct steps_range mine = train_steps_of_replica(host, 1, 0);
	struct backend_applied applied = {.finite = true};
	struct backend_error error = {""};
	struct backend_sums sums = {0};
	struct backend_batch batch = {0};
	struct metric_batch mb = {0};
	bool alone = u->last - u->first == 1;
	int rc = 0;

	if (mine.n)
		rc = train_batch(t, r->reader, mine.first, (uint32_t)mine.n, &batch, &mb, err);
	if (rc)
		return rc;
	batch.seed = t->setup.config->seed;
	batch.epoch = r->epoch;
	batch.step = (uint64_t)r->epoch * t->steps + s;
	batch.position = mine.first - host.first;
	r->step = s;
	if (alone) {
		rc = backend_step(t->net, &batch, u->scale, r->lr, t->t + 1, &sums, t->outputs,
				  &applied, &error);
	} else {
		rc = backend_gradient(t->net, &batch, u->scale, s > u->first, NULL, NULL, &sums,
				      t->outputs, &error);
		if (!rc && isfinite(sums.loss) && s + 1 == u->last)
			rc = backend_apply(t->net, r->lr, t->t + 1, &applied, &error);
	}
	if (rc)
		return train_backend_err(err, rc, &error, "training");
	if (s + 1 == u->last && applied.finite)
		t->t++;
	count_batch(r, &mb, sums.loss, u->penalty);
	if (!isfinite(sums.loss)) {
		r->bad = "loss";
		r->bad_value = sums.loss;
	} else if (!applied.finite) {
		r->bad = "gradient";
		r->bad_value = NAN;
	}
	return 0;
}

/* One update: accumulate steps, fewer at the epoch's end. Their rows are n_step. */
static int one_update(struct run *r, uint64_t number, struct err *err)
{
	struct train *t = r->t;
	uint32_t k = t->setup.config->accumulate;
	struct update u = {.first = number * k, .last = number * k + k};
	struct steps_range end;
	uint64_t n_step;
	int rc = 0;

	if (u.last > t->steps)
		u.last = t->steps;
	end = train_steps_of_host(t->rows, t->steps, u.last - 1);
	n_step = end.first + end.n - train_steps_of_host(t->rows, t->steps, u.first).first;
	r->lr = train_schedule_lr(&t->schedule, (uint64_t)r->epoch * t->updates + number,
				  r->lr_factor);
	if (!n_step)
		return 0; /* no rows: no decay, no momentum either */
	u.scale = (float)(1.0 / (double)n_step);
	u.penalty = t->penalty ? backend_penalty(t->net) : 0;
	for (uint64_t s = u.first; !rc && !r->bad && s < u.last; s++) {
		rc = train_canceled(t, err);
		if (!rc)
			rc = one_step(r, &u, s, err);
	}
	return rc;
}

static int one_epoch(struct run *r, bool *stopped, struct err *err)
{
	struct train *t = r->t;
	bool finite = true;
	int rc = keep_good(t, err);

	r->epoch_rows = r->step = 0;
	r->loss = 0;
	for (uint32_t i = 0; i < t->n_metrics; i++)
		memset(&t->metric[i].train, 0, sizeof(t->metric[i].train));
	atomic_store_explicit(&t->at_epoch, r->epoch + 1, memory_order_relaxed);
	atomic_store_explicit(&t->at_step, 0, memory_order_relaxed);
	if (!rc && r->reader) {
		rc = data_reader_epoch(r->reader, t->setup.config->seed, r->epoch);
		if (rc)
			err_set(err, ERR_LIMIT, rc, "ordering the rows of epoch %u: %s",
				r->epoch + 1, strerror(-rc));
	}
	for (uint64_t u = 0; !rc && !r->bad && u < t->updates; u++) {
		*stopped = atomic_load_explicit(&t->stop, memory_order_relaxed);
		if (*stopped)
			break;
		rc = one_update(r, u, err);
	}
	if (!rc && !r->bad)
		rc = weights_finite(t, &finite, err);
	if (!finite) {
		r->bad = "weight";
		r->bad_value = NAN;
	}
	return rc;
}

/* ---- the row ---- */

static void say_bad(struct run *r, struct ctl_run_row *row, bool validation)
{
	struct train *t = r->t;
	const char *value = isnan(r->bad_value) ? "NaN" : "infinite";
	char where[96], kept[64];

	if (!strcmp(r->bad, "gradient") || !strcmp(r->bad, "weight"))
		value = "NaN or infinite";
	if (validation)
		snprintf(where, sizeof(where), "after epoch %u", r->epoch + 1);
	else
		snprintf(where, sizeof(where), "in epoch %u, step %" PRIu64 " of %" PRIu64,
			 r->epoch + 1, r->step + 1, t->steps);
	if (r->epoch)
		snprintf(kept, sizeof(kept), "those after epoch %u", r->epoch);
	else
		snprintf(kept, sizeof(kept), "the initial ones");
	snprintf(t->note, sizeof(t->note),
		 "%s is %s %s, learning rate %g; the weights are %s. A lower learning_rate, "
		 "clipnorm "
		 "or a look at extreme values in the rows may help.",
		 r->bad, value, where, r->lr, kept);
	row->note = ctl_str(t->note, strlen(t->note));
	row->flags |= CTL_ROW_NAN;
	if (t->plan.restore && t->plan.early.on && t->has_best)
		row->flags |= CTL_ROW_RESTORE;
}

/* Asked to stop: in the middle of an epoch the row counts complete epochs only. */
static void say_stopped(struct run *r, struct ctl_run_row *row)
{
	struct train *t = r->t;

	if (r->epoch_rows && row->epoch == r->epoch)
		snprintf(t->note, sizeof(t->note),
			 "stopped in epoch %u, after step %" PRIu64 " of %" PRIu64, r->epoch + 1,
			 r->step + 1, t->steps);
	else if (row->epoch)
		snprintf(t->note, sizeof(t->note), "stopped after epoch %u", row->epoch);
	else
		snprintf(t->note, sizeof(t->note), "stopped before the first step");
	row->note = ctl_str(t->note, strlen(t->note));
}

static void fill_row(struct run *r, struct ctl_run_row *row)
{
	struct train *t = r->t;

	row->steps = r->steps;
	row->rows = r->rows;
	row->loss = r->epoch_rows ? r->loss / (double)r->epoch_rows : NAN;
	row->lr = r->lr;
	row->metrics = t->n_metrics;
	for (uint32_t i = 0; i < t->n_metrics; i++) {
		snprintf(row->metric[i].name, sizeof(row->metric[i].name), "%s", t->metric[i].name);
		row->metric[i].train =
			r->epoch_rows ? train_metric_value(&t->metric[i], &t->metric[i].train)
				      : NAN;
	}
}

static int check_run(struct train *t, const struct ctl_run *run, struct err *err)
{
	uint32_t epochs = t->setup.config->epochs;

	if (t->setup.inference)
		return err_set(err, ERR_PARAM, -EINVAL, "this job does not train");
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

/* At the end of an early-stopped training: which weights are kept, and why it is the end. */
static void say_best(struct train *t, struct ctl_run_row *row)
{
	const struct plan *plan = &t->plan;
	bool finish = row->flags & CTL_ROW_FINISH;
	size_t n = row->note.n;

	if (!finish && !(row->flags & CTL_ROW_STOPPED) && row->epoch < t->setup.config->epochs)
		return;
	if (!finish && !(row->flags & CTL_ROW_RESTORE))
		return;
	if (finish)
		n += (size_t)snprintf(t->note + n, sizeof(t->note) - n,
				      "%sstopped early, %s is no better than %.6g", n ? "; " : "",
				      plan->early.monitor, plan->early.best);
	if (row->flags & CTL_ROW_RESTORE)
		n += (size_t)snprintf(t->note + n, sizeof(t->note) - n,
				      "%sthe best weights are those after epoch %u", n ? "; " : "",
				      plan->best_epoch);
	row->note = ctl_str(t->note, n);
}

/* Evaluation and advice after the last epoch of the run. */
static int conclude(struct run *r, struct ctl_run_row *row, struct err *err)
{
	struct train *t = r->t;
	int rc = 0;

	if (data_rows(t->setup.data, ROW_VALIDATION))
		rc = train_evaluate_set(t, ROW_VALIDATION, row, err);
	if (rc)
		return rc;
	if (isinf(row->validation_loss) ||
	    (isnan(row->validation_loss) && data_rows(t->setup.data, ROW_VALIDATION))) {
		r->bad = "validation loss";
		r->bad_value = row->validation_loss;
		return 0;
	}
	train_plan_advise(&t->plan, row);
	say_best(t, row);
	return 0;
}

static void start_row(const struct ctl_run *run, struct ctl_run_row *row)
{
	memset(row, 0, sizeof(*row));
	row->epoch = run->first_epoch;
	row->loss = row->validation_loss = row->lr = NAN;
	row->lr_factor = run->lr_factor;
	for (uint32_t i = 0; i < CTL_METRICS; i++)
		row->metric[i].train = row->metric[i].validation = NAN;
}

int train_run(struct train *t, const struct ctl_run *run, struct ctl_run_row *row, struct err *err)
{
	struct run r = {.t = t, .reader = t->shuffled, .lr_factor = run->lr_factor, .lr = NAN};
	double start = train_now();
	bool stopped = false;
	int rc = check_run(t, run, err);

	if (rc)
		return rc;
	start_row(run, row);
	t->put.active = t->held_weights = t->held_optimizer = false;
	t->has_confusion = false;
	atomic_store_explicit(&t->at_rows, 0, memory_order_relaxed);
	if (run->flags & CTL_RUN_SNAPSHOT)
		rc = keep_best(t, err);
	for (r.epoch = run->first_epoch; !rc && r.epoch < run->first_epoch + run->count;
	     r.epoch++) {
		rc = one_epoch(&r, &stopped, err);
		if (rc || r.bad || stopped)
			break;
		row->epoch++;
		stopped = atomic_load(&t->stop);
		if (stopped)
			break;
	}
	if (r.epoch == run->first_epoch + run->count)
		r.epoch--; /* for the message about the validation loss */
	row->seconds_train = train_now() - start;
	if (rc)
		return rc;
	fill_row(&r, row);
	if (stopped) {
		row->flags |= CTL_ROW_STOPPED;
		say_stopped(&r, row);
	}
	if (!r.bad) {
		rc = conclude(&r, row, err);
		if (!rc && r.bad) {
			row->epoch = r.epoch;
			say_bad(&r, row, true);
		}
	} else {
		say_bad(&r, row, false);
	}
	if (!rc && r.bad)
		rc = restore_good(t, err);
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
