// SPDX-License-Identifier: MIT
/* evaluate.c: batches for the net, evaluation over a set, predictions. */
#include "hosts.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int train_reader(struct train *t, enum row_set set, struct data_reader **out, struct err *err)
{
	int rc = 0;

	if (!t->setup.data)
		return err_set(err, ERR_DATA, -ENODATA, "there are no rows");
	if (!t->reader[set])
		rc = data_reader_open(t->setup.data, set, t->max_batch, false, &t->reader[set],
				      err);
	*out = t->reader[set];
	return rc;
}

int train_batch(struct train *t, struct data_reader *reader, uint64_t first, uint32_t n,
		struct backend_batch *batch, struct metric_batch *metrics, struct err *err)
{
	int rc;

	memset(batch, 0, sizeof(*batch));
	rc = data_reader_batch(reader, first, n, batch, err);
	if (rc || !metrics)
		return rc;
	if (t->loss.labels ? !batch->label : !batch->target)
		return err_set(err, ERR_DATA, -ENODATA, "the rows have no %s",
			       t->loss.labels ? "labels" : "targets");
	*metrics = (struct metric_batch){
		.n = n,
		.outputs = t->info->outputs,
		.value = t->outputs,
		.label = t->loss.labels ? batch->label : NULL,
		.target = batch->target,
	};
	return 0;
}

int train_canceled(struct train *t, struct err *err)
{
	if (atomic_load_explicit(&t->cancel, memory_order_relaxed))
		return err_set(err, ERR_CANCELED, -ECANCELED, "the job was ended");
	return 0;
}

#define PULSE_ROWS 256u /* between two words to the other hosts */

/* Sums over a set. */
struct evaluation {
	uint64_t n;
	double loss;
	struct metric_sums metric[CTL_METRICS];
};

static int evaluate_batch(struct train *t, struct data_reader *reader, uint64_t first, uint32_t n,
			  struct evaluation *e, struct err *err)
{
	struct backend_error error = {""};
	struct backend_sums sums = {0};
	struct metric_batch mb;
	struct backend_batch batch;
	int rc = train_batch(t, reader, first, n, &batch, &mb, err);

	if (rc)
		return rc;
	rc = backend_evaluate(t->net, t->model_param, t->model_stat, &batch, &sums, t->outputs,
			      &error);
	if (rc)
		return train_backend_err(err, rc, &error, "evaluation");
	for (uint32_t i = 0; i < t->n_metrics; i++)
		train_metric_update(&t->metric[i], &e->metric[i], &mb);
	if (t->classes)
		train_metric_confusion(t->confusion, &mb);
	e->n += n;
	e->loss += sums.loss;
	return 0;
}

/* Rows of the host that has most; a host without rows waits for it, but never long in one call. */
static uint64_t most_rows(const struct train *t, enum row_set set)
{
	const struct hosts *h = t->hosts;
	uint64_t most = 0;

	for (uint32_t i = 0; h && i < h->n_start; i++) {
		uint64_t rows = set == ROW_TRAIN	? h->fact[i].rows
				: set == ROW_VALIDATION ? h->fact[i].validation_rows
							: 0;

		most = rows > most ? rows : most;
	}
	return most;
}

static int evaluate_here(struct train *t, enum row_set set, struct evaluation *e, struct err *err)
{
	uint64_t rows = data_rows(t->setup.data, set), most = most_rows(t, set), first = 0;
	struct data_reader *reader;
	int rc = rows ? train_reader(t, set, &reader, err) : 0;

	for (uint64_t until = t->hosts ? PULSE_ROWS : rows;; until += PULSE_ROWS) {
		uint32_t word;

		for (; !rc && first < rows && first < until; first += t->max_batch) {
			uint64_t n = rows - first < t->max_batch ? rows - first : t->max_batch;

			rc = train_canceled(t, err);
			if (!rc)
				rc = evaluate_batch(t, reader, first, (uint32_t)n, e, err);
		}
		if (rc || until >= most)
			return rc;
		rc = train_hosts_word(t, 0, &word, err);
	}
}

/* ---- over the hosts ---- */

static int add_sums(struct train *t, struct evaluation *e, struct err *err)
{
	struct evaluation one;
	const uint8_t *out;
	uint32_t n;
	int rc = train_hosts_gather(t, e, sizeof(*e), &out, &n, err);

	if (rc)
		return rc;
	memset(e, 0, sizeof(*e));
	for (uint32_t r = 0; r < n; r++) {
		memcpy(&one, out + r * sizeof(one), sizeof(one));
		e->n += one.n;
		e->loss += one.loss;
		for (uint32_t i = 0; i < t->n_metrics; i++)
			train_metric_merge(&e->metric[i], &one.metric[i]);
	}
	return 0;
}

static int add_confusion(struct train *t, struct err *err)
{
	uint64_t cells = (uint64_t)t->classes * t->classes;
	uint64_t most = t->hosts->gather_bytes / sizeof(uint64_t), one;
	const uint8_t *out;
	uint32_t n;

	for (uint64_t at = 0; at < cells; at += most) {
		uint64_t m = cells - at < most ? cells - at : most;
		int rc = train_hosts_gather(t, t->confusion + at, m * sizeof(one), &out, &n, err);

		if (rc)
			return rc;
		memset(t->confusion + at, 0, m * sizeof(one));
		for (uint64_t i = 0; i < n * m; i++) {
			memcpy(&one, out + i * sizeof(one), sizeof(one));
			t->confusion[at + i % m] += one;
		}
	}
	return 0;
}

/* ---- a set ---- */

int train_evaluate_set(struct train *t, enum row_set set, struct ctl_run_row *row, struct err *err)
{
	struct evaluation e = {0};
	double start = train_now();
	int rc;

	if (t->classes)
		memset(t->confusion, 0, (size_t)t->classes * t->classes * sizeof(uint64_t));
	t->has_confusion = false;
	rc = evaluate_here(t, set, &e, err);
	if (!rc && t->hosts)
		rc = add_sums(t, &e, err);
	if (!rc && t->hosts)
		rc = add_confusion(t, err);
	if (rc)
		return rc;
	t->has_confusion = true;
	row->validation_loss =
		e.loss / (double)e.n +
		(t->model_param ? train_model_penalty(t, t->model_param) : backend_penalty(t->net));
	row->metrics = t->n_metrics;
	for (uint32_t i = 0; i < t->n_metrics; i++) {
		snprintf(row->metric[i].name, sizeof(row->metric[i].name), "%s", t->metric[i].name);
		row->metric[i].validation = train_metric_value(&t->metric[i], &e.metric[i]);
	}
	row->seconds_evaluate += train_now() - start;
	return 0;
}

struct wish {
	uint64_t set, rows[ROW_SETS];
};

/* Hosts without rows of their own may have asked for another set: validation rows go first. */
static int same_set(struct train *t, enum row_set *set, uint64_t *rows, struct err *err)
{
	struct wish mine = {.set = *set}, one;
	uint64_t sum[ROW_SETS] = {0};
	const uint8_t *out;
	uint32_t n;
	int rc;

	for (int i = 0; i < ROW_SETS; i++)
		mine.rows[i] = data_rows(t->setup.data, (enum row_set)i);
	rc = train_hosts_gather(t, &mine, sizeof(mine), &out, &n, err);
	for (uint32_t r = 0; !rc && r < n; r++) {
		memcpy(&one, out + r * sizeof(one), sizeof(one));
		if (one.set == ROW_VALIDATION)
			*set = ROW_VALIDATION;
		for (int i = 0; i < ROW_SETS; i++)
			sum[i] += one.rows[i];
	}
	*rows = sum[*set];
	return rc;
}

int train_evaluate(struct train *t, enum row_set set, struct ctl_run_row *row, struct err *err)
{
	uint64_t rows = 0;
	int rc = 0;

	if ((unsigned int)set < ROW_SETS && t->setup.data && t->hosts)
		rc = same_set(t, &set, &rows, err);
	else if ((unsigned int)set < ROW_SETS && t->setup.data)
		rows = data_rows(t->setup.data, set);
	if (rc)
		return rc;
	if (!rows)
		return err_set(err, ERR_DATA, -ENODATA, "there are no rows to evaluate");
	memset(row, 0, sizeof(*row));
	row->loss = row->lr = row->distance = NAN;
	row->lr_factor = 1;
	row->rows = rows;
	row->hosts = t->hosts ? t->hosts->n : 1;
	for (uint32_t i = 0; i < CTL_METRICS; i++)
		row->metric[i].train = NAN;
	return train_evaluate_set(t, set, row, err);
}

static int run_forward(struct train *t, const struct backend_batch *batch, float *value,
		       struct err *err)
{
	struct backend_error error = {""};
	int rc = backend_evaluate(t->net, NULL, NULL, batch, NULL, value, &error);

	return rc ? train_backend_err(err, rc, &error, "prediction") : 0;
}

int train_predict(struct train *t, train_sink_fn sink, void *context, struct err *err)
{
	uint64_t rows = t->setup.data ? data_rows(t->setup.data, ROW_PREDICT) : 0;
	uint32_t outputs = t->info->outputs;
	struct data_reader *reader;
	int rc = rows ? train_reader(t, ROW_PREDICT, &reader, err) : 0;

	for (uint64_t first = 0; !rc && first < rows; first += t->max_batch) {
		uint64_t n = rows - first < t->max_batch ? rows - first : t->max_batch;
		struct backend_batch batch;

		rc = train_canceled(t, err);
		if (!rc)
			rc = train_batch(t, reader, first, (uint32_t)n, &batch, NULL, err);
		if (!rc)
			rc = run_forward(t, &batch, t->outputs, err);
		for (uint32_t i = 0; !rc && i < n; i++) {
			uint32_t bytes = 0;
			const char *id = data_reader_id(reader, first + i, &bytes);

			rc = sink(context, id, bytes, t->outputs + (size_t)i * outputs, outputs);
			if (rc > 0)
				rc = -ECANCELED;
			if (rc)
				err_set(err, ERR_CANCELED, rc,
					"the receiver of the predictions ended");
		}
		atomic_store_explicit(&t->at_rows, first + n, memory_order_relaxed);
	}
	return rc;
}

int train_predict_one(struct train *t, const void *row, float *value, struct err *err)
{
	struct backend_batch batch = {.n = 1, .x = &row};

	return run_forward(t, &batch, value, err);
}
