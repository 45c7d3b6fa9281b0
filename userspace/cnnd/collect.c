// SPDX-License-Identifier: MIT
/* collect.c: rows that go back to the client: COLLECT (predictions of the rows that were fed),
 * PREDICT (one row in, one out) and BAD_ROWS. On the job's thread; streams wait for a slow reader,
 * whom the control thread closes when it reads nothing at all. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../ctl/row.h"
#include "work.h"

/* ---- COLLECT ---- */

struct stream {
	struct job *job;
	struct call *call;
	uint8_t *rows; /* CTL_ROWS_MAX bytes */
	size_t used;
	int code;
};

static int stream_flush(struct stream *s)
{
	struct ctl_msg m;
	int rc;

	if (!s->used)
		return 0;
	work_message(s->job, &m, CTL_ROWS);
	m.u.blob.blob = ctl_str((char *)s->rows, s->used);
	rc = session_stream(s->call, &m);
	s->used = 0;
	return rc;
}

static int sink(void *context, const char *id, uint32_t id_bytes, const float *value,
		uint32_t outputs)
{
	struct stream *s = context;
	struct row_prediction row = {.id = id, .id_bytes = id_bytes, .outputs = outputs};
	long n = row_prediction_encode(&row, value, s->rows + s->used, CTL_ROWS_MAX - s->used);

	if (n == -ENOSPC && s->used) {
		s->code = stream_flush(s);
		if (s->code)
			return s->code;
		n = row_prediction_encode(&row, value, s->rows, CTL_ROWS_MAX);
	}
	if (n < 0)
		return s->code = (int)n;
	s->used += (size_t)n;
	return 0;
}

int work_collect(struct job *job, struct call *c, struct err *err)
{
	struct stream s = {.job = job, .call = c};
	struct ctl_msg m;
	int rc = work_need_ready(job, err);

	if (rc)
		return rc;
	if (job->kind != CTL_PREDICTION)
		return err_set(err, ERR_PARAM, -EINVAL, "a %s has no predictions to collect",
			       job_kind_name[job->kind]);
	s.rows = malloc(CTL_ROWS_MAX);
	if (!s.rows)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for predictions");
	rc = train_predict(job->train, sink, &s, err);
	if (!rc)
		rc = stream_flush(&s);
	if (s.code == -ENOSPC)
		err_set(err, ERR_LIMIT, -ENOSPC, "one row's prediction is more than %u bytes",
			CTL_ROWS_MAX);
	else if (rc && !err->kind)
		err_set(err, ERR_LOST, rc, "the predictions could not be sent: %s", strerror(-rc));
	free(s.rows);
	if (rc)
		return rc;
	work_message(job, &m, CTL_DONE);
	call_answer(c, &m, NULL, 0);
	return 0;
}

/* ---- PREDICT ---- */

/*
 * Element type of x: of the last feed of this job where there was one (it may have been of no
 * rows), else from the row itself: bytea where x has no dimensions, else by the size of an element
 * (2 bytes int2, 4 real, 8 double precision).
 */
static int types_of(struct job *job, const struct ctl_str *blob, struct data_feed *out,
		    struct err *err)
{
	struct daemon *d = job->daemon;
	struct row_head head;
	uint64_t elements = 1;
	bool known;
	int rc;

	pthread_mutex_lock(&d->lock);
	known = job->has_feed_types;
	*out = job->feed_types;
	pthread_mutex_unlock(&d->lock);
	if (blob->n < ROW_HEAD)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "PREDICT with a row of %u bytes",
			       blob->n);
	rc = row_head_decode((const uint8_t *)blob->p, blob->n, &head, err);
	if (rc || known)
		return rc;
	memset(out, 0, sizeof(*out));
	out->set = ROW_PREDICT;
	out->x_type = ROW_BYTES;
	if (!head.x_dims)
		return 0;
	for (unsigned int i = 0; i < head.x_dims; i++)
		elements *= head.x_dim[i]; /* no overflow: row_head_decode has checked */
	out->x_array = true;
	out->x_type = elements && head.x_bytes == 8 * elements	 ? ROW_F64
		      : elements && head.x_bytes == 4 * elements ? ROW_F32
		      : elements && head.x_bytes == 2 * elements ? ROW_I16
								 : ROW_NONE;
	if (out->x_type == ROW_NONE)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "PREDICT: %" PRIu64 " elements do not take %" PRIu64 " bytes",
			       elements, head.x_bytes);
	return 0;
}

static int predict_one(struct job *job, const struct ctl_str *blob, float *value, struct err *err)
{
	struct backend_shape shape = model_info(job->model)->input;
	enum backend_dtype dtype = (enum backend_dtype)job->agreed.dtype;
	struct data_feed types;
	void *row;
	int rc = types_of(job, blob, &types, err);

	if (rc)
		return rc;
	row = malloc((size_t)shape.h * shape.w * shape.c * backend_dtype_bytes(dtype));
	if (!row)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a row");
	rc = data_convert_one(job->daemon->decoder, &types, blob->p, blob->n, shape, dtype, row,
			      err);
	if (!rc)
		rc = train_predict_one(job->train, row, value, err);
	free(row);
	return rc;
}

static int send_one(struct job *job, struct call *c, const float *value, uint32_t outputs,
		    struct err *err)
{
	struct row_prediction row = {.id = "", .outputs = outputs};
	size_t capacity = 8 + 4 * (size_t)outputs;
	uint8_t *out = malloc(capacity);
	struct ctl_msg m;
	long n;

	if (!out)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a prediction");
	n = row_prediction_encode(&row, value, out, capacity);
	if (n < 0 || n > CTL_ROWS_MAX) {
		free(out);
		return err_set(err, ERR_LIMIT, -ENOSPC,
			       "one row's prediction is more than %u bytes", CTL_ROWS_MAX);
	}
	work_message(job, &m, CTL_ROWS);
	m.u.blob.blob = ctl_str((char *)out, (size_t)n);
	call_answer(c, &m, NULL, 0);
	free(out);
	return 0;
}

int work_predict(struct job *job, struct call *c, struct err *err)
{
	uint32_t outputs;
	float *value;
	int rc = work_need_ready(job, err);

	if (rc)
		return rc;
	if (job->kind != CTL_PREDICTION)
		return err_set(err, ERR_PARAM, -EINVAL, "a %s does not predict rows",
			       job_kind_name[job->kind]);
	outputs = model_info(job->model)->outputs;
	value = malloc(((size_t)outputs + 1) * sizeof(*value));
	if (!value)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a prediction");
	rc = predict_one(job, &c->msg.u.blob.blob, value, err);
	if (!rc)
		rc = send_one(job, c, value, outputs, err);
	free(value);
	return rc;
}

/* ---- BAD_ROWS ---- */

static struct ctl_str text(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	return ctl_str(s ? s : "", n < 8192 ? n : 8192);
}

int work_bad_rows(struct job *job, struct call *c, struct err *err)
{
	struct ctl_msg m;
	enum row_set set;
	const char *id, *reason;
	int rc;

	/* before, feeds may be adding to the list */
	if (!job->collected)
		return err_set(err, ERR_PARAM, -EINVAL, "bad rows are known after the agreement");
	for (uint64_t i = 0; !data_bad_row(job->data, i, &set, &id, &reason); i++) {
		work_message(job, &m, CTL_BAD_ROW);
		m.u.bad_row.set = (uint8_t)set;
		m.u.bad_row.id = text(id);
		m.u.bad_row.reason = text(reason);
		rc = session_stream(c, &m);
		if (rc)
			return err_set(err, ERR_LOST, rc, "the bad rows could not be sent: %s",
				       strerror(-rc));
	}
	work_message(job, &m, CTL_DONE);
	call_answer(c, &m, NULL, 0);
	return 0;
}
