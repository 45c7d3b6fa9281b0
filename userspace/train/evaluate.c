// SPDX-License-Identifier: MIT
/* evaluate.c: batches for the net, evaluation over a set, predictions. */
#include "internal.h"

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

struct evaluation {
	uint64_t n;
	double loss;
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
	rc = backend_evaluate(t->net, NULL, NULL, &batch, &sums, t->outputs, &error);
	if (rc)
		return train_backend_err(err, rc, &error, "evaluation");
	for (uint32_t i = 0; i < t->n_metrics; i++)
		train_metric_update(&t->metric[i], &t->metric[i].validation, &mb);
	if (t->classes)
		train_metric_confusion(t->confusion, &mb);
	e->n += n;
	e->loss += sums.loss;
	return 0;
}

int train_evaluate_set(struct train *t, enum row_set set, struct ctl_run_row *row, struct err *err)
{
	uint64_t rows = data_rows(t->setup.data, set);
	struct evaluation e = {0};
	struct data_reader *reader;
	double start = train_now();
	int rc = train_reader(t, set, &reader, err);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < t->n_metrics; i++)
		memset(&t->metric[i].validation, 0, sizeof(t->metric[i].validation));
	if (t->classes)
		memset(t->confusion, 0, (size_t)t->classes * t->classes * sizeof(uint64_t));
	t->has_confusion = false;
	for (uint64_t first = 0; first < rows; first += t->max_batch) {
		uint64_t n = rows - first < t->max_batch ? rows - first : t->max_batch;

		rc = train_canceled(t, err);
		if (!rc)
			rc = evaluate_batch(t, reader, first, (uint32_t)n, &e, err);
		if (rc)
			return rc;
	}
	t->has_confusion = true;
	row->validation_loss = e.loss / (double)e.n + backend_penalty(t->net);
	row->metrics = t->n_metrics;
	for (uint32_t i = 0; i < t->n_metrics; i++) {
		snprintf(row->metric[i].name, sizeof(row->metric[i].name), "%s", t->metric[i].name);
		row->metric[i].validation =
			train_metric_value(&t->metric[i], &t->metric[i].validation);
	}
	row->seconds_evaluate += train_now() - start;
	return 0;
}

int train_evaluate(struct train *t, enum row_set set, struct ctl_run_row *row, struct err *err)
{
	if ((unsigned int)set >= ROW_SETS || !t->setup.data || !data_rows(t->setup.data, set))
		return err_set(err, ERR_DATA, -ENODATA, "there are no rows to evaluate");
	memset(row, 0, sizeof(*row));
	row->loss = row->lr = NAN;
	row->lr_factor = 1;
	row->rows = data_rows(t->setup.data, set);
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
