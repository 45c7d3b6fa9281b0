// SPDX-License-Identifier: MIT
/* begin.c: see begin.h. */
#include "begin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "files.h"
#include "hosts.h"
#include "job.h"
#include "log.h"
#include "work.h"

#define MIN_ROWS (4u << 20) /* a job gets at least so much memory for its rows */

struct begin {
	struct call *call;
	struct daemon *daemon;
	struct session *session;
	const struct ctl_msg *msg;
	struct job *job;	/* new, not in the table yet */
	uint64_t weights, rows; /* bytes to reserve */
	bool admitted;
	char reason[ADMIT_REASON];
	bool handed; /* to the job's thread, which links the job to its leader and answers */
};

static uint64_t spec_hash(const struct ctl_begin *b)
{
	return XXH3_64bits_withSeed(b->spec.p ? b->spec.p : "", b->spec.n, b->kind);
}

static int check_rights(const struct session *s, const struct ctl_begin *b, struct err *err)
{
	char role[CNND_NAME];

	if (!session_text(b->role, role, sizeof(role)) || !role[0])
		return err_set(err, ERR_PROTOCOL, -EPROTO, "BEGIN without an owner's role");
	if (strcmp(role, s->role))
		return err_set(err, ERR_RIGHTS, -EPERM,
			       "a job of role \"%s\" asked for by role \"%s\"", role, s->role);
	return 0;
}

/* ---- a job that another segment has begun ---- */

static int join(struct begin *b, struct job *job, struct err *err)
{
	const struct ctl_begin *m = &b->msg->u.begin;

	if (!job_secret_fits(job, m->secret))
		return err_set(err, ERR_RIGHTS, -EPERM, "wrong secret for this job");
	if (strcmp(job->role, b->session->role))
		return err_set(err, ERR_RIGHTS, -EPERM, "this job belongs to role \"%s\"",
			       job->role);
	if (job->spec_hash != spec_hash(m) || job->kind != m->kind || job->start_us != m->start_us)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "segment %d begins this job with another specification",
			       m->segindex);
	if (strlen(job->leader) != m->leader.n ||
	    (m->leader.n && memcmp(job->leader, m->leader.p, m->leader.n)))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "segment %d begins this job with another leader", m->segindex);
	if (job->ended) {
		snprintf(b->reason, sizeof(b->reason),
			 "the job's previous try is being cleaned "
			 "up");
		return 0;
	}
	if (job->state > JOB_FEEDING)
		return err_set(err, ERR_PARAM, -EINVAL, "this job is already %s",
			       job_state_name(job));
	job->begun++;
	b->admitted = true;
	return 0;
}

/* ---- a new job ---- */

static int use_devices(struct job *job, struct err *err)
{
	const struct train_config *c = &job->config;
	struct device_ask ask = {
		.backend = c->backend,
		.devices = c->devices,
		.precision = c->precision,
		.replicas = c->replicas,
		.inference = job->kind != CTL_TRAIN,
	};
	int rc = devices_use(job->daemon->devices, &ask, &job->device, err);

	/* A model brings what it was trained with; where there is no such device, any will do. */
	if (rc && ask.inference) {
		memset(err, 0, sizeof(*err));
		ask.backend = ask.devices = NULL;
		ask.precision = BACKEND_PRECISION_F32;
		rc = devices_use(job->daemon->devices, &ask, &job->device, err);
	}
	if (!rc && job->kind == CTL_TRAIN)
		job->config.replicas = job->device.replicas;
	return rc;
}

/* What needs no lock: spec, model, device. */
static int prepare(struct begin *b, struct err *err)
{
	const struct ctl_begin *m = &b->msg->u.begin;
	struct job *job = job_new(b->daemon, b->session, b->msg);
	struct model_bind bind = {0};
	const struct model_info *info;
	const char *name;
	int rc;

	if (!job)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a job");
	b->job = job;
	if (!session_text(m->leader, job->leader, sizeof(job->leader)))
		return err_set(err, ERR_PARAM, -EINVAL, "leader is no 'address port'");
	job->spec_hash = spec_hash(m);
	rc = train_config_parse(m->spec.p ? m->spec.p : "", m->spec.n, &job->config, err);
	if (rc)
		return rc;
	job->config.kind = m->kind;
	name = job->config.model_name ? job->config.model_name : "";
	snprintf(job->model_name, sizeof(job->model_name), "%s", name);
	if (!job->config.architecture || !job->config.architecture[0])
		return err_set(err, ERR_PARAM, -EINVAL, "the specification has no architecture");
	rc = model_open(job->config.architecture, strlen(job->config.architecture), &bind,
			&job->model, err);
	if (rc)
		return rc;
	info = model_info(job->model);
	/* weights; gradient and two optimizer slots with them for a training */
	b->weights =
		(info->trainable + info->frozen) * sizeof(float) * (m->kind == CTL_TRAIN ? 4 : 1);
	return use_devices(job, err);
}

/* What a job that is let in gets for its rows: a share of what its role has left, so that the net,
 * the rings and another job find room, too. Rows past it are spilled. */
static int choose_rows(struct begin *b, struct err *err)
{
	struct daemon *d = b->daemon;
	uint64_t fixed = b->weights + 2 * d->conf.ring_bytes, need = fixed + MIN_ROWS,
		 left = memory_free_for(d->memory, b->job->role);

	if (need > memory_free_alone(d->memory)) {
		err_set(err, ERR_LIMIT, -ENOMEM,
			"this job needs at least %" PRIu64 " MB, and cnnd gives a job at most "
			"%" PRIu64 " MB (memory = %" PRIu64 " MB, memory_per_role)",
			(need >> 20) + 1, memory_free_alone(d->memory) >> 20,
			memory_limit(d->memory) >> 20);
		err_hint(err, "Raise memory or memory_per_role in cnnd.conf.");
		return -ENOMEM;
	}
	if (need > left) {
		snprintf(b->reason, sizeof(b->reason),
			 "other jobs hold the memory: %" PRIu64 " MB needed, %" PRIu64
			 " MB of memory = %" PRIu64 " MB free for this role",
			 (need >> 20) + 1, left >> 20, memory_limit(d->memory) >> 20);
		return 0;
	}
	b->rows = (left - fixed) / 4 * (b->job->kind == CTL_TRAIN ? 3 : 1);
	if (b->rows < MIN_ROWS)
		b->rows = MIN_ROWS;
	b->admitted = true;
	return 0;
}

static int reserve(struct begin *b, struct err *err)
{
	struct job *job = b->job;
	int rc = memory_account_open(b->daemon->memory, job->role, &job->memory);

	if (rc)
		return err_set(err, ERR_LIMIT, rc, "out of memory");
	rc = memory_take(job->memory, MEMORY_NET, b->weights, err);
	if (!rc)
		rc = memory_take(job->memory, MEMORY_ROWS, b->rows, err);
	return rc;
}

/* Admission, then memory. Lock held. */
static int admit(struct begin *b, struct err *err)
{
	struct daemon *d = b->daemon;
	struct job *job = b->job;
	struct admit_ask ask = {.start_us = job->start_us, .slot = job->slot};
	struct admit_limits limits = {{d->conf.max_trainings, d->conf.max_predictions},
				      d->conf.max_jobs_per_role,
				      d->conf.max_queue};
	struct admit_load load = {
		{job_count(d, ADMIT_TRAINING, true), job_count(d, ADMIT_PREDICTION, true)},
		job_count_role(d, job->slot, job->role),
		job_count_client(d, job->slot, job->client),
		devices_name(d->devices)};
	uint64_t now = now_ms();
	int rc;

	memcpy(ask.job, job->id, CTL_ID);
	if (d->draining || d->stopping) {
		err_set(err, ERR_DRAINING, -ESHUTDOWN, "%s",
			d->stopping ? "the daemon is shutting down"
				    : "the daemon takes no new jobs (it is being drained)");
		err_hint(err, "Try again when the daemon of this host is back.");
		return -ESHUTDOWN;
	}
	rc = admit_try(d->admit, &ask, &limits, &load, now, b->reason, err);
	if (rc <= 0)
		return rc;
	rc = choose_rows(b, err);
	if (rc)
		return rc;
	if (!b->admitted) {
		admit_remember(d->admit, &ask, now);
		return 0;
	}
	return reserve(b, err);
}

int begin_open_data(struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	const struct model_info *info = model_info(job->model);
	const struct train_config *config = &job->config;
	struct data_config c = {.decoder = d->decoder,
				.memory = job->row_memory,
				.max_bad_rows = config->max_bad_rows,
				.need_labels = job->kind != CTL_PREDICTION,
				.seed = config->seed};
	struct data_set *data = NULL;
	char spill[CONF_PATH + 16];
	int rc;

	pthread_mutex_lock(&d->lock);
	c.spill_max = d->conf.spill_max;
	c.spill_min_free = d->conf.spill_min_free;
	c.spill_dir = files_spill_dir(&d->conf, spill);
	pthread_mutex_unlock(&d->lock);
	if (info->shape_known || (info->input.h && info->input.w && info->input.c))
		c.shape = info->input;
	c.regression = !config->loss_auto &&
		       (config->loss.loss == BACKEND_MSE || config->loss.loss == BACKEND_MAE);
	if (job->kind == CTL_TRAIN)
		c.validation_fraction = config->validation_fraction;
	rc = data_create(&c, &data, err);
	if (rc)
		return rc;
	pthread_mutex_lock(&d->lock);
	job->data = data;
	if (job->ended)
		data_cancel(data);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

/* Into the table, with its thread. Lock held. */
static int enter(struct begin *b, struct err *err)
{
	struct daemon *d = b->daemon;
	struct job *job = b->job;
	int rc;

	LIST_INSERT_HEAD(&d->jobs, job, link);
	d->n_jobs++;
	job->begun = 1;
	rc = daemon_thread(work_thread, job);
	if (rc) {
		LIST_REMOVE(job, link);
		d->n_jobs--;
		return err_set(err, ERR_LIMIT, rc, "cannot start a thread for the job: %s",
			       strerror(-rc));
	}
	b->job = NULL; /* the table's */
	return 0;
}

static void log_begin(const struct job *job, uint64_t weights, uint64_t rows)
{
	struct log_tag tag;

	job_log_tag(job, &tag, "begin");
	log_info(&tag, "%s admitted on %s, %" PRIu64 " MB for weights, %" PRIu64 " MB for rows",
		 job_kind_name[job->kind], job->device.name, weights >> 20, rows >> 20);
}

/* One BEGIN at a time gets here (daemon.begin_lock): what it has seen of the table stays true. */
static int create(struct begin *b, struct err *err)
{
	struct daemon *d = b->daemon;
	struct job *old;
	int rc;

	pthread_mutex_lock(&d->lock);
	old = job_find(d, b->msg->job);
	rc = old ? join(b, old, err) : admit(b, err);
	pthread_mutex_unlock(&d->lock);
	if (rc || old || !b->admitted)
		return rc;
	b->job->row_memory = b->rows;
	rc = begin_open_data(b->job, err);
	if (rc)
		return rc;
	log_begin(b->job, b->weights, b->rows);
	pthread_mutex_lock(&d->lock);
	rc = enter(b, err);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int serve(struct begin *b, struct err *err)
{
	struct daemon *d = b->daemon;
	struct job *old;
	int rc = check_rights(b->session, &b->msg->u.begin, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&d->lock);
	old = job_find(d, b->msg->job);
	if (old)
		rc = join(b, old, err);
	pthread_mutex_unlock(&d->lock);
	if (old)
		return rc;
	rc = prepare(b, err);
	if (!rc) {
		pthread_mutex_lock(&d->begin_lock);
		rc = create(b, err);
		pthread_mutex_unlock(&d->begin_lock);
	}
	if (rc) {
		/* an error is no request for a place */
		pthread_mutex_lock(&d->lock);
		admit_forget(d->admit, b->msg->job);
		pthread_mutex_unlock(&d->lock);
	}
	if (b->job)
		job_discard(b->job);
	return rc;
}

/* Lock held; reason and address stay the caller's. */
static void fill_answer(struct daemon *d, const struct call *c, bool admitted, const char *reason,
			const char *address, struct ctl_msg *m)
{
	struct ctl_begin_ok *r = &m->u.begin_ok;
	const char *devices = devices_name(d->devices);

	memset(m, 0, sizeof(*m));
	m->type = CTL_BEGIN_OK;
	memcpy(m->job, c->msg.job, CTL_ID);
	memcpy(r->uuid, d->uuid, CTL_ID);
	r->admitted = admitted;
	r->devices = ctl_str(devices, strlen(devices));
	r->reason = ctl_str(reason, strlen(reason));
	r->address = ctl_str(address, strlen(address));
	r->free_memory = memory_limit(d->memory) - memory_total(d->memory);
	r->running = job_count(d, ADMIT_TRAINING, false) + job_count(d, ADMIT_PREDICTION, false);
}

/* A job with a leader: the rest of its begin waits for the network. Lock held. */
static bool hand_over(struct begin *b)
{
	struct job *job = b->admitted ? job_find(b->daemon, b->msg->job) : NULL;

	/* one whose client went away is answered, and ended, by answer() */
	if (!job || job->ended || !job->leader[0] || b->call->answered)
		return false;
	call_attach(b->call, job);
	job_submit(job, b->call);
	return true;
}

static void answer(struct begin *b)
{
	struct daemon *d = b->daemon;
	struct ctl_msg m;
	struct job *job;

	pthread_mutex_lock(&d->lock);
	b->handed = hand_over(b);
	if (b->handed) {
		pthread_mutex_unlock(&d->lock);
		return;
	}
	fill_answer(d, b->call, b->admitted, b->reason, "", &m);
	/* a client that went away in the middle of its BEGIN will not end its job */
	if (!call_answer_locked(b->call, &m) && b->admitted && (job = job_find(d, m.job)))
		job_end(job, ERR_CANCELED, "its client went away in the middle of begin");
	pthread_mutex_unlock(&d->lock);
}

int work_begin(struct job *job, struct call *c, struct err *err)
{
	struct daemon *d = job->daemon;
	char address[sizeof(job->merge_address)];
	struct ctl_msg m;
	int rc;

	if (!job->linked) {
		rc = hosts_open(job, err);
		if (rc) {
			hosts_failed(job, err);
			return rc;
		}
		job->linked = true;
	}
	memcpy(address, job->merge_address, sizeof(address));
	pthread_mutex_lock(&d->lock);
	fill_answer(d, c, true, "", address, &m);
	call_answer_locked(c, &m);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

bool begin_serve(struct call *c)
{
	struct begin b = {
		.call = c, .session = c->session, .daemon = c->session->daemon, .msg = &c->msg};
	struct err err = {0};

	if (serve(&b, &err)) {
		struct log_tag tag = {.code = err_kind_name(err.kind),
				      .job = c->msg.job,
				      .role = c->session->role};

		log_info(&tag, "begin refused: %s", err.message);
		call_error(c, &err);
		return true;
	}
	answer(&b);
	return !b.handed;
}
