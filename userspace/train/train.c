// SPDX-License-Identifier: MIT
/*
 * train.c: making a training of its parts: checks that model, rows and arguments fit, plans memory,
 * compiles the net, writes the first weights, collects what the user should know.
 */
#include "hosts.h"
#include "team.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INFERENCE_BATCH 128u
#define EVALUATION_BATCH 32u /* a net is compiled for at least so many, for evaluation's sake */

int train_backend_err(struct err *err, int rc, const struct backend_error *error, const char *what)
{
	enum err_kind kind = rc == -ENOMEM			   ? ERR_LIMIT
			     : rc == -ENOTSUP || rc == -EOPNOTSUPP ? ERR_ARCH
								   : ERR_INTERNAL;

	return err_set(err, kind, rc, "%s: %s", what,
		       error && *error->message ? error->message : strerror(-rc));
}

double train_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* An exponent of ones is NaN or Inf; in pieces of bits, so that the compiler makes vectors of it.
 */
__attribute__((optimize("O3"))) bool train_finite(const float *value, uint64_t n)
{
	const uint32_t ones = 0x7f800000u;
	uint32_t bits, bad = 0;

	for (uint64_t i = 0; i < n; i++) {
		memcpy(&bits, &value[i], sizeof(bits));
		bad |= (bits & ones) == ones;
	}
	return !bad;
}

/* Steps of an epoch. An estimate is made before the hosts know of each other: then by the rows
 * here, which is no fewer rows a step. */
static int plan_steps(struct train *t, struct err *err)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	const struct hosts *h = t->hosts;
	uint64_t rows[MERGE_HOSTS_MAX], need;
	uint32_t replicas[MERGE_HOSTS_MAX];

	t->batch = a->batch_size;
	t->rows = data_rows(t->setup.data, ROW_TRAIN);
	t->validation_rows = data_rows(t->setup.data, ROW_VALIDATION);
	need = train_steps_per_epoch(&t->rows, &t->replicas, 1, t->batch);
	t->steps = t->setup.net ? need : a->steps;
	for (uint32_t i = 0; h && i < h->n; i++) {
		rows[i] = h->fact[i].rows;
		replicas[i] = h->fact[i].replicas;
	}
	if (h)
		t->steps = train_steps_per_epoch(rows, replicas, h->n, t->batch);
	else {
		t->all_rows = a->rows[ROW_TRAIN];
		t->all_validation_rows = t->validation_rows;
	}
	if (!t->batch || t->batch > 65536 || t->steps < need)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "the agreed plan of %" PRIu64
			       " steps of %u rows does not fit %" PRIu64 " rows",
			       t->steps, t->batch, t->rows);
	t->updates = (t->steps + c->accumulate - 1) / c->accumulate;
	return 0;
}

/* Sizes of the calls of a net. */
static void plan_batches(struct train *t)
{
	uint32_t wish = t->setup.config->batch_size;
	uint64_t host, call;

	if (t->setup.inference) {
		t->batch = t->max_batch = wish ? wish : INFERENCE_BATCH;
		return;
	}
	host = t->rows / t->steps + (t->rows % t->steps != 0);
	t->host_batch = train_batches_wanted(t) ? (uint32_t)host : 0;
	call = (host + t->replicas - 1) / t->replicas;
	t->replica_batch = call ? (uint32_t)call : 1;
	if (call < EVALUATION_BATCH)
		call = EVALUATION_BATCH;
	t->max_batch = call < t->batch ? (uint32_t)call : t->batch;
}

static int plan_training(struct train *t, struct err *err)
{
	const struct train_config *c = t->setup.config;
	int rc = plan_steps(t, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < t->graph->n_tensors; i++)
		t->penalty |= t->graph->tensor[i].l1 != 0 || t->graph->tensor[i].l2 != 0;
	train_schedule_init(&t->schedule, c, (double)t->all_rows / (double)t->updates, t->updates);
	return train_plan_init(&t->plan, c, t->metric, t->n_metrics,
			       t->setup.agreed->rows[ROW_VALIDATION] || t->all_validation_rows,
			       t->schedule.lr, err);
}

static int resolve(struct train *t, struct notice *notice, struct err *err)
{
	int rc;

	t->graph = model_graph(t->setup.model);
	t->info = model_info(t->setup.model);
	if (!t->graph)
		return err_set(err, ERR_ARCH, -EINVAL,
			       "the architecture's input shape or number of outputs is not known");
	if (!t->setup.inference && !t->setup.data)
		return err_set(err, ERR_INTERNAL, -EINVAL, "a training without rows");
	rc = train_fit(t, notice, err);
	return rc ? rc : train_table_make(t, err);
}

/* ---- the net ---- */

static int take_normalization(struct train *t, struct err *err)
{
	const struct agree_block *a = t->setup.agreed;
	uint32_t c = t->info->input.c;

	t->mul = calloc(2 * (size_t)c, sizeof(float));
	if (!t->mul)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	t->add = t->mul + c;
	for (uint32_t i = 0; i < c; i++) {
		t->mul[i] = (float)a->mul[i];
		t->add[i] = (float)a->add[i];
	}
	return 0;
}

static int check_devices(const struct train *t, struct err *err)
{
	if (backend_on_device(t->setup.backend) && t->replicas > t->setup.n_backends)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "replicas is %u, and a device runs one: there are %u", t->replicas,
			       t->setup.n_backends);
	return 0;
}

int train_new(const struct train_setup *setup, bool join, struct train **out, struct notice *notice,
	      struct err *err)
{
	struct train *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	t->setup = *setup;
	if (setup->net && merge_net_size(setup->net) == 1)
		t->setup.net = NULL;
	if (setup->backends) {
		t->setup.backend = setup->backends[0];
	} else {
		t->setup.backends = &t->setup.backend;
		t->setup.n_backends = 1;
	}
	t->replicas = setup->inference		? 1
		      : setup->config->replicas ? setup->config->replicas
						: t->setup.n_backends;
	t->several = !setup->inference && (t->replicas > 1 || t->setup.net ||
					   setup->config->average != TRAIN_NO_AVERAGE);
	rc = check_devices(t, err);
	if (!rc)
		rc = resolve(t, notice, err);
	if (t->setup.net && join) {
		int joined = train_hosts_open(t, rc ? err : NULL, err);

		rc = rc ? rc : joined;
	}
	if (!rc && !setup->inference)
		rc = plan_training(t, err);
	if (!rc)
		plan_batches(t);
	if (!rc && !setup->inference)
		train_replicas_choose(t);
	if (!rc)
		rc = take_normalization(t, err);
	if (rc)
		train_free(t);
	else
		*out = t;
	return rc;
}

static int canceled(const struct train *t, struct err *err)
{
	if (t->setup.canceled && atomic_load(t->setup.canceled))
		return err_set(err, ERR_CANCELED, -ECANCELED, "the job was ended");
	return 0;
}

static int compile(struct train *t, struct err *err)
{
	struct backend_net_options options;
	const struct team_order all = {.what = TEAM_COMPILE, .options = &options, .patience = 60};
	struct backend_error error = {""};
	int rc = 0;

	train_net_options(t, &options);
	for (uint32_t k = 0; k < t->replicas && !rc; k++) {
		rc = canceled(t, err);
		if (rc)
			return rc;
		rc = backend_compile(t->setup.backends[k % t->setup.n_backends], t->graph, &options,
				     &t->replica[k], &error);
		options.max_batch = t->replica_batch;
		if (t->team)
			break;
	}
	if (rc)
		return train_backend_err(err, rc, &error, "the network cannot be compiled");
	/* the first one has shown that it can be done; the others at once */
	if (t->team)
		rc = train_team_run(t, &all, err);
	if (rc)
		return rc;
	t->net = t->replica[0];
	t->slots = backend_slot_count(t->net);
	if (t->slots > TRAIN_SLOTS_MAX)
		return err_set(err, ERR_INTERNAL, -E2BIG, "an optimizer with %u slots", t->slots);
	for (uint32_t i = 0; i < t->slots; i++)
		if (strlen(backend_slot_name(t->net, i)) > TRAIN_HEAD_MAX - 16)
			return err_set(err, ERR_INTERNAL, -ENAMETOOLONG, "the name of slot %u", i);
	return 0;
}

static int make_net(struct train *t, struct err *err)
{
	uint64_t bytes;
	int rc = train_replicas_apart(t) ? train_team_open(t, err) : 0;

	if (!rc)
		rc = compile(t, err);
	if (!rc)
		rc = train_replicas_open(t, err);
	if (!rc && t->hosts)
		rc = train_hosts_merge_open(t, err);
	if (rc)
		return rc;
	train_memory_plan(t);
	bytes = t->arena.used;
	if (t->arena.overflow)
		return err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	rc = train_arena_allocate(&t->arena, bytes, err);
	if (rc)
		return rc;
	train_memory_plan(t);
	rc = model_init(t->setup.model, t->setup.config->seed, t->param, t->stat, err);
	if (!rc)
		rc = train_write_net(t, t->param, t->stat, NULL, err);
	t->held_weights = !rc;
	if (!rc && t->average.mean)
		rc = train_average_reset(t, err);
	return rc;
}

static int usable(const struct train *t, struct err *err)
{
	return train_team_broken(t)
		       ? err_set(err, ERR_INTERNAL, -EIO,
				 "a step on the devices has failed: they hold nothing of use")
		       : 0;
}

int train_read_net(struct train *t, float *param, float *stat, float *slot, struct err *err)
{
	int rc = usable(t, err);

	if (rc)
		return rc;
	rc = backend_read(t->net, BACKEND_PARAM, 0, t->graph->param_floats, param);

	if (!rc && slot && t->slots)
		rc = backend_read(t->net, BACKEND_SLOT, 0, t->graph->param_floats * t->slots, slot);
	return rc ? train_device_err(t, 0, err, rc, "reading weights from the back end")
		  : train_replicas_pool(t, stat, err);
}

static int write_replica(struct train *t, struct backend_net *net, const float *param,
			 const float *stat, const float *slot)
{
	int rc = 0;

	if (param)
		rc = backend_write(net, BACKEND_PARAM, 0, t->graph->param_floats, param);
	if (!rc)
		rc = backend_write(net, BACKEND_STAT, 0, t->graph->stat_floats, stat);
	if (!rc && slot && t->slots)
		rc = backend_write(net, BACKEND_SLOT, 0, t->graph->param_floats * t->slots, slot);
	return rc;
}

int train_write_net(struct train *t, const float *param, const float *stat, const float *slot,
		    struct err *err)
{
	int rc = usable(t, err);

	for (uint32_t k = 0; !rc && k < t->replicas; k++) {
		rc = write_replica(t, t->replica[k], param, stat, slot);
		if (rc)
			return train_device_err(t, k, err, rc, "writing weights to the back end");
	}
	return rc;
}

static int open_rows(struct train *t, struct data_set *data, struct err *err)
{
	uint32_t most = t->host_batch > t->max_batch ? t->host_batch : t->max_batch;
	int rc = 0;

	if (t->rows)
		rc = data_reader_open(data, ROW_TRAIN, most, true, &t->shuffled, err);
	return !rc && train_batches_wanted(t) ? train_batches_open(t, err) : rc;
}

int train_create(const struct train_setup *setup, struct train **out, char **notice,
		 struct err *err)
{
	struct notice n = {0};
	struct train *t = NULL;
	int rc = train_new(setup, true, &t, &n, err);

	if (!rc)
		rc = make_net(t, err);
	if (!rc && !setup->inference)
		rc = open_rows(t, setup->data, err);
	if (rc) {
		train_free(t);
		free(n.text);
		return rc;
	}
	if (!setup->inference)
		train_say(t, &n);
	*notice = n.text;
	*out = t;
	return 0;
}

void train_drop_rows(struct train *t)
{
	train_batches_drop(t);
	if (t->shuffled)
		data_reader_close(t->shuffled);
	t->shuffled = NULL;
	for (int i = 0; i < ROW_SETS; i++) {
		if (t->reader[i])
			data_reader_close(t->reader[i]);
		t->reader[i] = NULL;
	}
	t->setup.data = NULL;
}

int train_rows(struct train *t, struct data_set *data, struct err *err)
{
	if (data_rows(data, ROW_TRAIN) != t->rows ||
	    data_rows(data, ROW_VALIDATION) != t->validation_rows)
		return err_set(err, ERR_DATA, -EINVAL,
			       "the source has other rows than in the first pass: %" PRIu64
			       " for training and %" PRIu64 " for validation, not %" PRIu64
			       " and %" PRIu64,
			       data_rows(data, ROW_TRAIN), data_rows(data, ROW_VALIDATION), t->rows,
			       t->validation_rows);
	t->setup.data = data;
	return open_rows(t, data, err);
}

void train_free(struct train *t)
{
	if (!t)
		return;
	/* after a fault somebody may still be using rows and nets */
	if (train_team_broken(t)) {
		train_team_close(t);
		train_batches_close(t);
	}
	train_drop_rows(t);
	train_hosts_free(t);
	train_replicas_close(t);
	train_batches_close(t);
	train_arena_free(&t->arena);
	free(t->tensor);
	free(t->extra_best);
	free(t->mul);
	free(t);
}

const char *train_devices(const struct train *t)
{
	return t->about_devices;
}

void train_apply_ok(const struct train *t, struct ctl_apply_ok *out)
{
	const struct model_info *info = t->info;
	uint64_t rows = t->setup.inference ? 0 : t->all_rows, bytes = t->arena.size + sizeof(*t);
	uint64_t hosts = 0;

	bytes += train_stage_bytes(t);
	for (uint32_t k = 0; k < t->replicas; k++)
		bytes += backend_net_bytes(t->replica[k]);
	if (t->hosts && !train_hosts_memory((struct train *)t, &hosts, NULL))
		bytes += hosts;

	*out = (struct ctl_apply_ok){
		.parameters = info->trainable + info->frozen,
		.h = info->input.h,
		.w = info->input.w,
		.c = info->input.c,
		.outputs = info->outputs,
		.batch_size = t->batch,
		.steps = t->steps,
		.effective_batch = t->steps ? (double)rows / (double)t->steps : 0,
		.bytes = bytes,
		.rows = t->rows,
	};
}
