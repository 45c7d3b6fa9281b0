// SPDX-License-Identifier: MIT
/* prepare.c: AGREE (what rows are here) and APPLY (the one decision for all hosts; the net is
 * made). On the job's thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hosts.h"
#include "job.h"
#include "link.h"
#include "pin.h"
#include "work.h"

/* No rows may come any more, and none may be missing: sets the state that keeps feeds out. */
static int close_feeding(struct job *job, enum job_state limit, struct err *err)
{
	struct daemon *d = job->daemon;
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	if (job->state > limit) {
		rc = err_set(err, ERR_PARAM, -EINVAL, "the job is %s already", job_state_name(job));
	} else if (job->n_feeds) {
		rc = err_set(err, ERR_PARAM, -EBUSY, "%u feeds of this job are not over",
			     job->n_feeds);
	} else if (job->feed_error.kind) {
		*err = job->feed_error;
		rc = -EIO;
	} else {
		job->state = JOB_COLLECTED;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* The part of the rows' memory that was reserved and is not used goes back. */
static void settle_rows(struct job *job)
{
	struct daemon *d = job->daemon;
	uint64_t bytes = data_memory(job->data);

	pthread_mutex_lock(&d->lock);
	memory_shrink(job->memory, MEMORY_ROWS, bytes);
	pthread_mutex_unlock(&d->lock);
}

/* Classes that the given architecture can tell apart; one output (a sigmoid) tells two. */
static uint32_t class_limit(const struct job *job)
{
	const struct model_info *info = model_info(job->model);

	if (info->builtin || !info->shape_known)
		return 0;
	return info->outputs == 1 ? 2 : info->outputs;
}

int work_agree(struct job *job, struct call *c, struct err *err)
{
	struct agree_block part = {0};
	struct ctl_msg m;
	uint8_t *blob = NULL;
	long n;
	int rc = close_feeding(job, JOB_FEEDING, err);

	if (rc)
		return rc;
	rc = data_collect(job->data, &part, err);
	if (rc)
		return rc;
	job->collected = true;
	/* on several hosts rows may still come from the others */
	if (!job->leader[0])
		settle_rows(job);
	rc = train_config_policy(&job->config, &part, err);
	if (rc) {
		agree_free(&part);
		return rc;
	}
	part.class_limit = class_limit(job);
	n = agree_encode(&part, &blob);
	agree_free(&part);
	if (n < 0)
		return err_set(err, ERR_LIMIT, (int)n, "cannot encode what the rows are: %s",
			       strerror((int)-n));
	work_message(job, &m, CTL_AGREE_PART);
	m.u.blob.blob = ctl_str((char *)blob, (size_t)n);
	call_answer(c, &m, NULL, 0);
	free(blob);
	return 0;
}

/* ---- APPLY ---- */

/* A prediction or an evaluation brings the block of its model: its own rows are not agreed upon. */
static int collect_unasked(struct job *job, struct err *err)
{
	struct agree_block part = {0};
	int rc = close_feeding(job, JOB_FEEDING, err);

	if (rc)
		return rc;
	rc = data_collect(job->data, &part, err);
	if (rc)
		return rc;
	agree_free(&part);
	job->collected = true;
	return 0;
}

/* cache = false: the rows of another pass are here, in the order and with the classes of the first.
 */
int work_rows_again(struct job *job, struct err *err)
{
	int rc = collect_unasked(job, err);

	if (!rc && job->reshuffle)
		rc = exchange_rows(job, err);
	settle_rows(job);
	if (!rc)
		rc = data_apply(job->data, &job->agreed, model_info(job->model)->outputs, err);
	if (!rc)
		rc = train_rows(job->train, job->data, err);
	if (rc)
		return rc;
	pin_rows(job);
	job->refeed = false;
	work_state(job, JOB_READY);
	return 0;
}

static int check_order(struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	enum job_state state;

	pthread_mutex_lock(&d->lock);
	state = job->state;
	pthread_mutex_unlock(&d->lock);
	if (job->train)
		return err_set(err, ERR_PARAM, -EINVAL, "APPLY has been done already");
	if (state == JOB_COLLECTED && job->collected)
		return 0;
	if (state == JOB_COLLECTED || job->kind == CTL_TRAIN)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "an AGREE that succeeds comes before APPLY");
	return collect_unasked(job, err);
}

/* The model again, with the shape and the number of classes of the rows. */
static int bind_model(struct job *job, struct err *err)
{
	const struct agree_block *a = &job->agreed;
	struct model_bind bind = {a->h, a->w, a->c, a->outputs};
	struct model *model = NULL;
	const char *text = job->config.architecture;
	int rc = model_open(text, strlen(text), &bind, &model, err);

	if (rc)
		return rc;
	if (!model_info(model)->shape_known) {
		model_free(model);
		return err_set(err, ERR_ARCH, -EINVAL,
			       "the input shape is known neither from the architecture nor from "
			       "rows");
	}
	model_free(job->model);
	job->model = model;
	free(job->json);
	job->json = model_json(model);
	return 0;
}

static int reserve_devices(struct job *job, const struct train_setup *setup, struct err *err)
{
	uint64_t bytes;
	int rc;

	if (!job->device.gpus)
		return 0;
	rc = train_estimate_device(setup, &bytes, err);
	return rc ? rc : devices_reserve(&job->device, bytes, setup->resident, err);
}

/* Sets the reservations for the net, here and on GPUs, to what it will really take. */
static int reserve_net(struct job *job, struct train_setup *setup, struct err *err)
{
	struct daemon *d = job->daemon;
	uint64_t bytes, have;
	int rc = train_estimate(setup, &bytes, err);

	/* on the GPUs with the rows, where there is room for them */
	setup->resident = job->device.gpus && job->kind == CTL_TRAIN;
	if (!rc && setup->resident && reserve_devices(job, setup, NULL))
		setup->resident = false;
	if (!rc && !setup->resident)
		rc = reserve_devices(job, setup, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&d->lock);
	have = memory_used_for(job->memory, MEMORY_NET);
	if (bytes > have)
		rc = memory_take(job->memory, MEMORY_NET, bytes - have, err);
	else
		memory_shrink(job->memory, MEMORY_NET, bytes);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int make_train(struct job *job, char **notice, struct err *err)
{
	struct daemon *d = job->daemon;
	struct train_setup setup = {.config = &job->config,
				    .model = job->model,
				    .backends = job->device.backend,
				    .n_backends = job->device.n,
				    .device = job->device.gpus ? job->device.index : NULL,
				    .data = job->data,
				    .agreed = &job->agreed,
				    .inference = job->kind != CTL_TRAIN,
				    .canceled = &job->canceled};
	struct train *train = NULL;
	struct log_tag tag;
	int rc;

	pthread_mutex_lock(&d->lock);
	job->device.timeout_ms = setup.timeout_ms = d->conf.merge_timeout * 1000;
	pthread_mutex_unlock(&d->lock);
	rc = devices_start(&job->device, err);
	if (rc)
		return rc;
	setup.collective = job->device.collective;
	hosts_setup(job, &setup);
	rc = reserve_net(job, &setup, err);
	if (rc)
		return rc;
	rc = train_create(&setup, &train, notice, err);
	if (rc)
		return rc;
	/* others hold more of the GPUs than this daemon knows of */
	if (setup.resident && !train_resident(train)) {
		setup.resident = false;
		reserve_devices(job, &setup, NULL);
	}
	job_log_tag(job, &tag, "device");
	if (*train_devices(train))
		log_info(&tag, "%s: %s", job->device.name, train_devices(train));
	pthread_mutex_lock(&d->lock);
	job->train = train;
	if (job->ended)
		train_cancel(train);
	job->state = JOB_READY;
	pthread_mutex_unlock(&d->lock);
	pin_rows(job);
	return 0;
}

static int apply(struct job *job, const struct ctl_apply *a, char **notice, struct err *err)
{
	const struct ctl_str *blob = &a->blob;
	int rc = check_order(job, err);

	if (rc)
		return rc;
	if (job->has_agreed)
		agree_free(&job->agreed);
	job->has_agreed = false;
	rc = agree_decode(blob->p, blob->n, &job->agreed, err);
	if (rc)
		return rc;
	job->has_agreed = true;
	if (!job->agreed.agreed)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "APPLY with a block that is not agreed");
	rc = bind_model(job, err);
	/* a prediction needs nothing of the other hosts */
	if (!rc && a->hosts > 1 && job->kind != CTL_PREDICTION)
		rc = hosts_connect(job, a, err);
	job->reshuffle = job->hosts && a->reshuffle && job->kind == CTL_TRAIN;
	if (!rc && job->reshuffle)
		rc = exchange_rows(job, err);
	settle_rows(job);
	if (rc)
		return rc;
	work_wait(job, "compile");
	rc = data_apply(job->data, &job->agreed, model_info(job->model)->outputs, err);
	if (!rc)
		rc = make_train(job, notice, err);
	return rc;
}

int work_apply(struct job *job, struct call *c, struct err *err)
{
	struct ctl_msg m;
	char *notice = NULL;
	int rc = apply(job, &c->msg.u.apply, &notice, err);

	if (rc) {
		free(notice);
		hosts_failed(job, err);
		return rc;
	}
	if (job->hosts)
		link_rank(job, c->msg.u.apply.rank, true);
	work_message(job, &m, CTL_APPLY_OK);
	train_apply_ok(job->train, &m.u.apply_ok);
	m.u.apply_ok.rows = data_rows(job->data, ROW_TRAIN);
	m.u.apply_ok.rows_moved = job->rows_moved;
	m.u.apply_ok.seconds_exchange = job->seconds_exchange;
	if (notice && !m.u.apply_ok.notice.n)
		m.u.apply_ok.notice = ctl_str(notice, strlen(notice));
	/* longer than the frame takes: cut, a notice is no result */
	if (m.u.apply_ok.notice.n > 8192)
		m.u.apply_ok.notice.n = 8192;
	call_answer(c, &m, NULL, 0);
	free(notice);
	return 0;
}
