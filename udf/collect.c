// SPDX-License-Identifier: MIT
/*
 * collect.c: gpu_cnn_collect: the predictions of a job's rows, streamed from cnnd. Either whole
 * vectors, or the classes of each row by falling probability.
 */
#include "gpu_cnn.h"

struct collect {
	struct rows rows;
	int classes;	  /* 0: whole vectors */
	int top;	  /* at most so many classes a row */
	double threshold; /* only classes with more than this */
};

static int by_value(const void *a, const void *b)
{
	const struct ranked_class *x = a, *y = b;

	if (x->value != y->value)
		return x->value > y->value ? -1 : 1;
	return x->class - y->class;
}

int rank_classes(const float4 *value, int outputs, int classes, struct ranked_class *out)
{
	int n = 0, i;

	if (outputs == 1 && classes == 2) {
		/* one sigmoid: the probability of the second class */
		out[n++] = (struct ranked_class){1 - value[0], 0};
		out[n++] = (struct ranked_class){value[0], 1};
	} else {
		/* outputs beyond the classes belong to nothing that was ever seen */
		for (i = 0; i < outputs && i < classes; i++)
			out[n++] = (struct ranked_class){value[i], i};
	}
	qsort(out, (size_t)n, sizeof(*out), by_value);
	return n;
}

float4 *prediction_values(const struct row_prediction *p)
{
	float4 *v = palloc(sizeof(float4) * (size_t)(p->outputs + 1));

	memcpy(v, p->value, sizeof(float4) * p->outputs);
	return v;
}

static void add_vector(struct collect *c, const struct row_prediction *p, Datum id, bool no_id)
{
	float4 *value = prediction_values(p);
	Datum *v = palloc(sizeof(Datum) * (size_t)(p->outputs + 1));
	Datum row[5] = {0};
	bool null[5] = {false, true, true, true, false};
	uint32 i;

	for (i = 0; i < p->outputs; i++)
		v[i] = Float4GetDatum(value[i]);
	row[0] = id;
	null[0] = no_id;
	row[4] = PointerGetDatum(
		construct_array(v, (int)p->outputs, FLOAT4OID, sizeof(float4), true, 'i'));
	rows_add(&c->rows, row, null);
}

static void add_ranked(struct collect *c, const struct row_prediction *p, Datum id, bool no_id)
{
	struct ranked_class *r = palloc(sizeof(*r) * (size_t)(c->classes + 1));
	int n = rank_classes(prediction_values(p), (int)p->outputs, c->classes, r), i;
	Datum row[5] = {0};
	bool null[5] = {false, false, false, false, true};

	row[0] = id;
	null[0] = no_id;
	for (i = 0; i < n && i < c->top && r[i].value > c->threshold; i++) {
		row[1] = Int32GetDatum(i + 1);
		row[2] = Int32GetDatum(r[i].class);
		row[3] = Float8GetDatum((double)r[i].value);
		rows_add(&c->rows, row, null);
	}
}

static void add_frame(struct collect *c, struct ctl_str blob)
{
	struct row_prediction p;
	long at = 0;
	MemoryContext context = compat_context(CurrentMemoryContext, "gpu_cnn prediction"), old;

	old = MemoryContextSwitchTo(context);
	while ((at = row_prediction_decode(blob.p, blob.n, (size_t)at, &p)) > 0) {
		Datum id =
			p.id_bytes ? PointerGetDatum(text_of(ctl_str(p.id, p.id_bytes))) : (Datum)0;

		if (p.outputs > MaxAllocSize / 32)
			elog(ERROR, "a prediction of %u values", p.outputs);
		if (c->classes)
			add_ranked(c, &p, id, !p.id_bytes);
		else
			add_vector(c, &p, id, !p.id_bytes);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	if (at < 0)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("cnnd sent malformed predictions")));
}

static void collect_here(struct collect *c, const struct job *job)
{
	struct daemon *d = daemon_open();
	struct ctl_msg m;

	daemon_message(&m, CTL_COLLECT, job);
	daemon_send(d, &m, "collect");
	while (daemon_next(d, &m, CTL_ROWS, "collect"))
		add_frame(c, m.u.blob.blob);
	daemon_close(d);
}

/* gpu_cnn_collect(job, speakers, classes, top, threshold) */
SQL_FUNCTION(gpu_cnn_collect);
Datum gpu_cnn_collect(PG_FUNCTION_ARGS)
{
	struct collect c;
	struct job job;
	bool speaks;

	memset(&c, 0, sizeof(c));
	speaks = call_open(fcinfo, &c.rows, &job, 2);
	c.classes = PG_GETARG_INT32(2);
	c.top = PG_GETARG_INT32(3);
	c.threshold = PG_GETARG_FLOAT8(4);
	rows_ask_nodes(fcinfo, &job, "gpu_cnn_collect");
	if (speaks)
		collect_here(&c, &job);
	rows_take_nodes(&c.rows, &job, "gpu_cnn_collect");
	return (Datum)0;
}
