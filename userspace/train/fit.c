// SPDX-License-Identifier: MIT
/* fit.c: whether model, rows and arguments of a training fit each other, and what the user should
 * know of it. */
#include "hosts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

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

int train_fit(struct train *t, struct notice *notice, struct err *err)
{
	int rc = check_shape(t, err);

	if (!rc)
		rc = check_labels(t, err);
	if (!rc && !t->setup.inference)
		rc = check_rows(t, err);
	if (!rc)
		rc = train_loss_choose(t->setup.config, t->info, t->setup.agreed,
				       t->setup.inference, &t->loss, notice, err);
	return rc ? rc : choose_metrics(t, err);
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

static void say_hosts(struct train *t, struct notice *n)
{
	const struct hosts *h = t->hosts;
	char room[32];

	for (uint32_t i = 0; i < h->n; i++)
		if (!h->fact[i].rows)
			train_notice_add(n,
					 "%s has no training rows: it takes part in synchronous "
					 "steps only",
					 train_hosts_name(t, i, room));
	if (h->config.kind == MERGE_NONE)
		train_notice_add(n,
				 "W:merge is 'none': every host trains a model of its own, and "
				 "that of %s is kept",
				 train_hosts_name(t, 0, room));
}

static void say_devices(struct train *t, struct notice *n)
{
	const char *how = t->nccl ? "by NCCL" : "through host memory";

	if (*t->no_nccl)
		train_notice_add(n,
				 "the gradients of the GPUs are summed through host memory, which "
				 "is slow: %s",
				 t->no_nccl);
	if (t->batches)
		snprintf(t->about_devices, sizeof(t->about_devices), "rows %s%s%s",
			 train_resident(t) ? "on the devices" : "in host memory",
			 t->team ? ", gradients summed " : "", t->team ? how : "");
}

void train_say(struct train *t, struct notice *n)
{
	say_devices(t, n);
	say_classes(t, n);
	say_rows(t, n);
	if (t->hosts)
		say_hosts(t, n);
}
