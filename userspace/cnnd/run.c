// SPDX-License-Identifier: MIT
/* run.c: RUN (epochs of a training, or an evaluation), GET and PUT (weights and what belongs to a
 * model, in parts). On the job's thread. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "begin.h"
#include "hosts.h"
#include "log.h"
#include "pin.h"
#include "work.h"

/* ---- RUN ---- */

/* Marks the job as running, unless the daemon stops: then no new epoch begins. */
static int start_run(struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	if (d->stopping)
		rc = err_set(err, ERR_DRAINING, -ESHUTDOWN, "the daemon is shutting down");
	else
		job->state = JOB_RUNNING;
	/* a STOP that came between two calls */
	if (!rc && job->stop)
		train_stop(job->train);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static void end_run(struct job *job)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	job->state = JOB_READY;
	train_progress(job->train, &job->last);
	pthread_mutex_unlock(&d->lock);
}

/* Stopped by the daemon's end and not by a user: there is no result to keep. Answers the call. */
static void end_if_stopping(struct job *job)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	if (d->stopping && !job->stop)
		job_end(job, ERR_DRAINING, "the daemon is shutting down");
	pthread_mutex_unlock(&d->lock);
}

static int evaluate(struct job *job, struct ctl_run_row *row, struct err *err)
{
	enum row_set set;
	int rc = hosts_set(job, &set, err);

	memset(row, 0, sizeof(*row));
	if (rc)
		return rc;
	row->loss = NAN;
	row->validation_loss = NAN;
	row->lr_factor = 1;
	row->rows = data_rows(job->data, set);
	return train_evaluate(job->train, set, row, err);
}

static int check_run(const struct job *job, const struct ctl_run *run, struct err *err)
{
	if (job->kind == CTL_PREDICTION)
		return err_set(err, ERR_PARAM, -EINVAL, "a prediction has nothing to run");
	if (job->kind == CTL_EVALUATION)
		return 0;
	if (!run->count || run->count > job->config.epochs ||
	    run->first_epoch > job->config.epochs - run->count)
		return err_set(
			err, ERR_PARAM, -EINVAL, "epochs %u to %u asked for, the training has %u",
			run->first_epoch + 1, run->first_epoch + run->count, job->config.epochs);
	if (!isfinite(run->lr_factor) || run->lr_factor < 0 || run->lr_factor > 1e6)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "learning rate factor %g is no number in "
			       "0 .. 1e6",
			       run->lr_factor);
	return 0;
}

/* cache = false, and another run will come: the rows go, a FEED may bring them again. */
static int drop_rows(struct job *job, const struct ctl_run *run, const struct ctl_run_row *row,
		     struct err *err)
{
	const uint32_t over = CTL_ROW_STOPPED | CTL_ROW_NAN | CTL_ROW_FINISH;
	struct data_set *old = job->data;
	int rc;

	if (job->kind != CTL_TRAIN || job->config.cache || (row->flags & over) ||
	    run->first_epoch + run->count >= job->config.epochs)
		return 0;
	train_drop_rows(job->train);
	pin_release(job);
	pthread_mutex_lock(&job->daemon->lock);
	job->data = NULL;
	pthread_mutex_unlock(&job->daemon->lock);
	data_free(old);
	rc = begin_open_data(job, err);
	if (rc)
		return rc;
	job->collected = false;
	job->refeed = true;
	work_state(job, JOB_FEEDING);
	return 0;
}

/* A merge that was completed after a fault is seen here first. */
static void take_merges(struct job *job, const struct ctl_run_row *row)
{
	struct daemon *d = job->daemon;

	if (!row->merge_number)
		return;
	pthread_mutex_lock(&d->lock);
	job->merges = row->merge_number;
	job->merge_checksum = row->merge_checksum;
	pthread_mutex_unlock(&d->lock);
}

static int run(struct job *job, struct call *c, struct err *err)
{
	const struct ctl_run *run = &c->msg.u.run;
	struct ctl_msg m;
	int rc = job->refeed ? work_rows_again(job, err) : 0;

	if (!rc)
		rc = work_need_ready(job, err);
	if (!rc)
		rc = check_run(job, run, err);
	if (!rc)
		rc = start_run(job, err);
	if (rc)
		return rc;
	work_message(job, &m, CTL_RUN_ROW);
	work_wait(job, job->kind == CTL_TRAIN ? "training" : "evaluation");
	rc = job->kind == CTL_TRAIN ? train_run(job->train, run, &m.u.run_row, err)
				    : evaluate(job, &m.u.run_row, err);
	end_run(job);
	if (rc)
		return rc;
	take_merges(job, &m.u.run_row);
	if (m.u.run_row.flags & CTL_ROW_STOPPED)
		end_if_stopping(job);
	rc = drop_rows(job, run, &m.u.run_row, err);
	if (rc)
		return rc;
	call_answer(c, &m, NULL, 0);
	return 0;
}

int work_run(struct job *job, struct call *c, struct err *err)
{
	int rc = run(job, c, err);

	if (rc)
		hosts_failed(job, err);
	return rc;
}

/* ---- GET, PUT ---- */

/* Part of a text or block that the job holds whole. */
static int part_of(const struct ctl_get *get, const void *data, uint64_t bytes,
		   struct ctl_part *out, struct err *err)
{
	uint64_t parts = bytes ? (bytes + CTL_PART_MAX - 1) / CTL_PART_MAX : 1, at, n;

	if (get->part >= parts)
		return err_set(err, ERR_PARAM, -EINVAL, "part %u asked for, there are %" PRIu64,
			       get->part, parts);
	at = (uint64_t)get->part * CTL_PART_MAX;
	n = bytes - at < CTL_PART_MAX ? bytes - at : CTL_PART_MAX;
	out->kind = get->kind;
	out->part = get->part;
	out->parts = (uint32_t)parts;
	out->total = bytes;
	out->data = ctl_str((const char *)data + at, (size_t)n);
	return 0;
}

/* Keeps the checksum of a weight blob that is fetched from its first part to its last. */
static void sum_part(struct job *job, const struct ctl_part *part)
{
	if (part->kind != CTL_WEIGHTS && part->kind != CTL_BEST)
		return;
	if (!part->part) {
		history_sum_free(job->sum);
		job->sum = history_sum_new();
	}
	if (!job->sum)
		return;
	history_sum_add(job->sum, part->data.p, part->data.n);
	if (part->part + 1 < part->parts)
		return;
	job->checksum = history_sum_value(job->sum);
	job->has_checksum = true;
	history_sum_free(job->sum);
	job->sum = NULL;
}

static int get_part(struct job *job, const struct ctl_get *get, uint8_t **blob,
		    struct ctl_part *out, struct err *err)
{
	long n;
	int rc;

	switch (get->kind) {
	case CTL_SUMMARY:
		n = agree_encode(&job->agreed, blob);
		if (n < 0)
			return err_set(err, ERR_LIMIT, (int)n, "cannot encode the agreed block");
		return part_of(get, *blob, (uint64_t)n, out, err);
	case CTL_JSON:
		if (!job->json)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
		return part_of(get, job->json, strlen(job->json), out, err);
	default:
		rc = train_get(job->train, get->kind, get->part, out, err);
		if (!rc)
			sum_part(job, out);
		return rc;
	}
}

int work_get(struct job *job, struct call *c, struct err *err)
{
	struct ctl_msg m;
	uint8_t *blob = NULL;
	int rc = work_need_ready(job, err);

	if (rc)
		return rc;
	work_message(job, &m, CTL_PART);
	rc = get_part(job, &c->msg.u.get, &blob, &m.u.part, err);
	if (!rc) {
		memset(m.u.part.secret, 0, sizeof(m.u.part.secret));
		call_answer(c, &m, NULL, 0);
	}
	free(blob);
	return rc;
}

int work_put(struct job *job, struct call *c, struct err *err)
{
	const struct ctl_part *part = &c->msg.u.part;
	struct ctl_msg m;
	int rc = work_need_ready(job, err);

	if (rc)
		return rc;
	if (part->kind != CTL_WEIGHTS && part->kind != CTL_OPTIMIZER && part->kind != CTL_BEST)
		return err_set(err, ERR_PARAM, -EINVAL, "kind %u cannot be put", part->kind);
	rc = train_put(job->train, part, err);
	if (rc)
		return rc;
	work_message(job, &m, CTL_OK);
	call_answer(c, &m, NULL, 0);
	return 0;
}
