// SPDX-License-Identifier: MIT
/*
 * train.c: making a training of its parts: checks that model, rows and arguments fit, plans memory,
 * compiles the net, writes the first weights, collects what the user should know.
 */
#include "internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
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

bool train_finite(const float *value, uint64_t n)
{
	bool good = true;

	for (uint64_t i = 0; i < n; i++)
		good &= isfinite(value[i]) != 0;
	return good;
}

/* ---- what fits what ---- */

static int check_shape(struct train *t, struct err *err)
{
	const struct data_set *data = t->setup.data;
	struct backend_shape want = t->info->input, have;

	if (!data)
		return 0;
	have = data_shape(data);
	if (!have.h && !have.w && !have.c)
		return 0; /* no rows here */
	if (have.h != want.h || have.w != want.w || have.c != want.c)
		return err_set(err, ERR_ARCH, -EINVAL,
			       "the rows are %ux%ux%u, the architecture's input is %ux%ux%u",
			       have.h, have.w, have.c, want.h, want.w, want.c);
	return 0;
}

static int check_labels(struct train *t, struct err *err)
{
	const struct agree_block *a = t->setup.agreed;
	uint32_t outputs = t->info->outputs;

	if (a->n_channels != t->info->input.c || !a->mul || !a->add)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "the normalisation has %u channels, the input %u", a->n_channels,
			       t->info->input.c);
	if (a->labels == AGREE_VECTOR && a->outputs != outputs)
		return err_set(err, ERR_ARCH, -EINVAL,
			       "the dependent column holds arrays of %u, the architecture has %u "
			       "outputs",
			       a->outputs, outputs);
	if (outputs > 1 && a->n_labels > outputs) {
		err_set(err, ERR_ARCH, -EINVAL,
			"there are %u classes, the architecture has %u outputs", a->n_labels,
			outputs);
		err_hint(err, "End it with %u outputs.", a->n_labels);
		return -EINVAL;
	}
	return train_policy_check(t->setup.config, a, err);
}

/* What only makes sense with this many rows of this size. */
static int check_rows(struct train *t, struct err *err)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	struct backend_shape in = t->info->input;

	if (!a->rows[ROW_TRAIN]) {
		err_set(err, ERR_DATA, -ENODATA,
			"there are no training rows: validation_fraction %g keeps all %" PRIu64
			" for validation",
			c->validation_fraction, a->rows[ROW_VALIDATION]);
		err_hint(err, "Lower validation_fraction, or give more rows.");
		return -ENODATA;
	}
	if (c->augment_pad > in.h || c->augment_pad > in.w)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "augment: pad_crop is %u, the images are %ux%u", c->augment_pad,
			       in.w, in.h);
	if (c->augment_cutout > in.h && c->augment_cutout > in.w)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "augment: cutout is %u, the images are %ux%u", c->augment_cutout,
			       in.w, in.h);
	return 0;
}

static int check_metric(struct train *t, const struct metric *m, struct err *err)
{
	enum backend_loss loss = t->loss.loss.loss;
	bool distance = loss == BACKEND_MSE || loss == BACKEND_MAE;

	if (distance && t->setup.agreed->labels == AGREE_FLOAT && m->kind != TRAIN_RMSE) {
		err_set(err, ERR_PARAM, -EINVAL, "metrics: '%s' needs classes, the loss is '%s'",
			m->name, train_loss_name(loss));
		err_hint(err, "Use metrics := 'rmse'.");
		return -EINVAL;
	}
	if (m->kind == TRAIN_TOP_K && m->k >= t->info->outputs)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "metrics: top_k(k=%u) must have k below the number of outputs, %u",
			       m->k, t->info->outputs);
	return 0;
}

static int choose_metrics(struct train *t, struct err *err)
{
	const struct train_config *c = t->setup.config;
	bool distance = t->loss.loss.loss == BACKEND_MSE || t->loss.loss.loss == BACKEND_MAE;

	t->n_metrics = c->metrics_default ? 1 : c->n_metrics;
	for (uint32_t i = 0; i < t->n_metrics; i++) {
		struct metric *m = &t->metric[i];
		int rc;

		m->kind = !c->metrics_default ? c->metric[i].kind
			  : distance	      ? TRAIN_RMSE
					      : TRAIN_ACCURACY;
		m->k = c->metrics_default ? 0 : c->metric[i].k;
		train_metric_name(m->kind, m->k, m->name, sizeof(m->name));
		rc = check_metric(t, m, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* Rows, steps and the size of a call. */
static int plan_steps(struct train *t, struct err *err)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	uint64_t need, call;

	if (t->setup.inference) {
		t->batch = t->max_batch = c->batch_size ? c->batch_size : INFERENCE_BATCH;
		return 0;
	}
	t->batch = a->batch_size;
	t->rows = data_rows(t->setup.data, ROW_TRAIN);
	t->validation_rows = data_rows(t->setup.data, ROW_VALIDATION);
	t->steps = a->steps;
	need = train_steps_per_epoch(&t->rows, &c->replicas, 1, t->batch);
	if (!t->batch || t->batch > 65536 || t->steps < need)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "the agreed plan of %" PRIu64
			       " steps of %u rows does not fit %" PRIu64 " rows",
			       t->steps, t->batch, t->rows);
	t->updates = (t->steps + c->accumulate - 1) / c->accumulate;
	call = t->rows / t->steps + (t->rows % t->steps != 0);
	if (call < EVALUATION_BATCH)
		call = EVALUATION_BATCH;
	t->max_batch = call < t->batch ? (uint32_t)call : t->batch;
	return 0;
}

static int resolve(struct train *t, struct notice *notice, struct err *err)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	bool validation;
	int rc;

	t->graph = model_graph(t->setup.model);
	t->info = model_info(t->setup.model);
	if (!t->graph)
		return err_set(err, ERR_ARCH, -EINVAL,
			       "the architecture's input shape or number of outputs is not known");
	if (!t->setup.inference && !t->setup.data)
		return err_set(err, ERR_INTERNAL, -EINVAL, "a training without rows");
	rc = check_shape(t, err);
	if (!rc)
		rc = check_labels(t, err);
	if (!rc && !t->setup.inference)
		rc = check_rows(t, err);
	if (!rc)
		rc = train_loss_choose(c, t->info, a, t->setup.inference, &t->loss, notice, err);
	if (!rc)
		rc = choose_metrics(t, err);
	if (!rc)
		rc = plan_steps(t, err);
	if (rc || t->setup.inference)
		return rc;
	for (uint32_t i = 0; i < t->graph->n_tensors; i++)
		t->penalty |= t->graph->tensor[i].l1 != 0 || t->graph->tensor[i].l2 != 0;
	train_schedule_init(&t->schedule, c, (double)a->rows[ROW_TRAIN] / (double)t->updates,
			    t->updates);
	validation = a->rows[ROW_VALIDATION] || data_rows(t->setup.data, ROW_VALIDATION);
	return train_plan_init(&t->plan, c, t->metric, t->n_metrics, validation, t->schedule.lr,
			       err);
}

/* ---- memory and net ---- */

static uint32_t slots_of(const struct backend_optimizer_config *o)
{
	switch (o->kind) {
	case BACKEND_SGD:
		return o->momentum > 0;
	case BACKEND_ADAM:
	case BACKEND_ADAMW:
		return 2 + o->amsgrad;
	case BACKEND_RMSPROP:
		return 1 + (o->momentum > 0) + o->centered;
	case BACKEND_ADAGRAD:
		return 1;
	default:
		return 2;
	}
}

/* Counts (arena.base NULL) or places everything. */
static void plan_memory(struct train *t)
{
	struct arena *a = &t->arena;
	uint64_t p = t->graph->param_floats, s = t->graph->stat_floats;
	uint64_t part = model_blob_bytes(t->setup.model), slots = t->setup.inference ? 0 : t->slots;
	uint64_t row = t->info->outputs;

	a->used = 0;
	t->param = train_arena_take(a, p, sizeof(float));
	t->stat = train_arena_take(a, s, sizeof(float));
	t->slot = train_arena_take(a, slots * p, sizeof(float));
	if (!t->setup.inference && t->setup.config->early_stop) {
		t->best_param = train_arena_take(a, p, sizeof(float));
		t->best_stat = train_arena_take(a, s, sizeof(float));
	}
	t->outputs = train_arena_take(a, t->max_batch * row, sizeof(float));
	t->classes = !t->loss.classes ? 0 : row < 2 ? 2 : (uint32_t)row;
	if (t->classes > TRAIN_CONFUSION_MAX)
		t->classes = 0;
	if (t->classes)
		t->confusion =
			train_arena_take(a, (uint64_t)t->classes * t->classes, sizeof(uint64_t));
	part = part * (slots + 1) + 4096 + (uint64_t)t->classes * t->classes * sizeof(uint64_t);
	t->io_bytes = part < CTL_PART_MAX ? part : CTL_PART_MAX;
	t->io = train_arena_take(a, t->io_bytes, 1);
}

static void net_options(struct train *t, struct backend_net_options *o)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	bool rows = t->setup.data && data_shape(t->setup.data).c;

	*o = (struct backend_net_options){
		.max_batch = t->max_batch,
		.input =
			{
				.dtype = rows ? data_dtype(t->setup.data)
					      : (enum backend_dtype)a->dtype,
				.shape = t->info->input,
				.mul = t->mul,
				.add = t->add,
				.flip = c->augment_flip,
				.pad = c->augment_pad,
				.cutout = c->augment_cutout,
			},
		.loss = t->loss.loss,
		.optimizer = c->optimizer,
		.inference = t->setup.inference,
		.deterministic = c->deterministic,
	};
}

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

static int new_train(const struct train_setup *setup, struct train **out, struct notice *notice,
		     struct err *err)
{
	struct train *t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	t->setup = *setup;
	rc = resolve(t, notice, err);
	if (!rc)
		rc = take_normalization(t, err);
	if (rc)
		train_free(t);
	else
		*out = t;
	return rc;
}

int train_estimate(const struct train_setup *setup, uint64_t *bytes, struct err *err)
{
	struct backend_net_options options;
	struct notice notice = {0};
	struct train *t;
	uint64_t net;
	int rc = new_train(setup, &t, &notice, err);

	free(notice.text);
	if (rc)
		return rc;
	net_options(t, &options);
	rc = backend_estimate(setup->backend, t->graph, &options, &net);
	t->slots = slots_of(&options.optimizer);
	plan_memory(t);
	if (rc)
		err_set(err, rc == -ENOMEM || rc == -EOVERFLOW ? ERR_LIMIT : ERR_ARCH, rc,
			"the memory of the network cannot be estimated");
	else if (t->arena.overflow || __builtin_add_overflow(net, t->arena.used, &net))
		rc = err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	else
		*bytes = net + sizeof(*t);
	train_free(t);
	return rc;
}

static int make_net(struct train *t, struct err *err)
{
	struct backend_net_options options;
	struct backend_error error = {""};
	uint64_t bytes;
	int rc;

	net_options(t, &options);
	rc = backend_compile(t->setup.backend, t->graph, &options, &t->net, &error);
	if (rc)
		return train_backend_err(err, rc, &error, "the network cannot be compiled");
	t->slots = backend_slot_count(t->net);
	if (t->slots > TRAIN_SLOTS_MAX)
		return err_set(err, ERR_INTERNAL, -E2BIG, "an optimizer with %u slots", t->slots);
	for (uint32_t i = 0; i < t->slots; i++)
		if (strlen(backend_slot_name(t->net, i)) > TRAIN_HEAD_MAX - 16)
			return err_set(err, ERR_INTERNAL, -ENAMETOOLONG, "the name of slot %u", i);
	plan_memory(t);
	bytes = t->arena.used;
	if (t->arena.overflow)
		return err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	rc = train_arena_allocate(&t->arena, bytes, err);
	if (rc)
		return rc;
	plan_memory(t);
	rc = model_init(t->setup.model, t->setup.config->seed, t->param, t->stat, err);
	if (!rc)
		rc = train_write_net(t, t->param, t->stat, NULL, err);
	t->held_weights = !rc;
	return rc;
}

int train_read_net(struct train *t, float *param, float *stat, float *slot, struct err *err)
{
	int rc = backend_read(t->net, BACKEND_PARAM, 0, t->graph->param_floats, param);

	if (!rc)
		rc = backend_read(t->net, BACKEND_STAT, 0, t->graph->stat_floats, stat);
	if (!rc && slot && t->slots)
		rc = backend_read(t->net, BACKEND_SLOT, 0, t->graph->param_floats * t->slots, slot);
	return rc ? err_set(err, ERR_INTERNAL, rc, "reading weights from the back end: %s",
			    strerror(-rc))
		  : 0;
}

int train_write_net(struct train *t, const float *param, const float *stat, const float *slot,
		    struct err *err)
{
	int rc = backend_write(t->net, BACKEND_PARAM, 0, t->graph->param_floats, param);

	if (!rc)
		rc = backend_write(t->net, BACKEND_STAT, 0, t->graph->stat_floats, stat);
	if (!rc && slot && t->slots)
		rc = backend_write(t->net, BACKEND_SLOT, 0, t->graph->param_floats * t->slots,
				   slot);
	return rc ? err_set(err, ERR_INTERNAL, rc, "writing weights to the back end: %s",
			    strerror(-rc))
		  : 0;
}

/* ---- notices ---- */

static void say_classes(struct train *t, struct notice *n)
{
	const struct agree_block *a = t->setup.agreed;
	uint32_t outputs = t->info->outputs, absent = 0;

	if (!t->loss.classes || a->labels == AGREE_VECTOR)
		return;
	if (a->n_labels == 1)
		train_notice_add(n,
				 "W:all rows have the same label: a model that always says so is "
				 "all that can be learned");
	if (outputs > 1 && a->n_labels + 1 == outputs)
		train_notice_add(n,
				 "the architecture has %u outputs, the rows %u class%s: output %u "
				 "never occurs",
				 outputs, a->n_labels, a->n_labels == 1 ? "" : "es", outputs);
	else if (outputs > 1 && a->n_labels < outputs)
		train_notice_add(
			n,
			"the architecture has %u outputs, the rows %u class%s: outputs %u to "
			"%u never occur",
			outputs, a->n_labels, a->n_labels == 1 ? "" : "es", a->n_labels + 1,
			outputs);
	for (uint32_t i = 0; i < a->n_labels; i++)
		absent += !a->label[i].count;
	if (absent)
		train_notice_add(n, "%u of the %u classes have no training row", absent,
				 a->n_labels);
}

static void say_rows(struct train *t, struct notice *n)
{
	const struct train_config *c = t->setup.config;
	uint64_t rows = t->setup.agreed->rows[ROW_TRAIN];

	if (c->validation_fraction > 0 && !t->setup.agreed->rows[ROW_VALIDATION])
		train_notice_add(n,
				 "W:no row is kept for validation: validation_fraction is %g, the "
				 "rows are %" PRIu64,
				 c->validation_fraction, rows);
	if (!c->batch_size && t->batch < 128)
		train_notice_add(n,
				 "batch_size is %u, chosen for %" PRIu64
				 " training rows; give batch_size for another",
				 t->batch, rows);
	if (c->batch_size && c->batch_size > rows)
		train_notice_add(n,
				 "batch_size is %u, the training rows are %" PRIu64
				 ": an epoch is one step of all rows",
				 c->batch_size, rows);
	if (c->accumulate > t->steps)
		train_notice_add(n,
				 "accumulate is %u, an epoch has %" PRIu64
				 " steps: an epoch is one update",
				 c->accumulate, t->steps);
}

int train_create(const struct train_setup *setup, struct train **out, char **notice,
		 struct err *err)
{
	struct notice n = {0};
	struct train *t = NULL;
	int rc = new_train(setup, &t, &n, err);

	if (!rc)
		rc = make_net(t, err);
	if (!rc && !setup->inference && t->rows)
		rc = data_reader_open(setup->data, ROW_TRAIN, t->max_batch, true, &t->shuffled,
				      err);
	if (rc) {
		train_free(t);
		free(n.text);
		return rc;
	}
	if (!setup->inference) {
		say_classes(t, &n);
		say_rows(t, &n);
	}
	*notice = n.text;
	*out = t;
	return 0;
}

void train_drop_rows(struct train *t)
{
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
	return t->rows ? data_reader_open(data, ROW_TRAIN, t->max_batch, true, &t->shuffled, err)
		       : 0;
}

void train_free(struct train *t)
{
	if (!t)
		return;
	train_drop_rows(t);
	if (t->net)
		backend_net_free(t->net);
	train_arena_free(&t->arena);
	free(t->extra_best);
	free(t->mul);
	free(t);
}

void train_apply_ok(const struct train *t, struct ctl_apply_ok *out)
{
	const struct model_info *info = t->info;
	uint64_t rows = t->setup.inference ? 0 : t->setup.agreed->rows[ROW_TRAIN];

	*out = (struct ctl_apply_ok){
		.parameters = info->trainable + info->frozen,
		.h = info->input.h,
		.w = info->input.w,
		.c = info->input.c,
		.outputs = info->outputs,
		.batch_size = t->batch,
		.steps = t->steps,
		.effective_batch = t->steps ? (double)rows / (double)t->steps : 0,
		.bytes = backend_net_bytes(t->net) + t->arena.size + sizeof(*t),
	};
}
