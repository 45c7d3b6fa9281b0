// SPDX-License-Identifier: MIT
/*
 * predict_one.c: gpu_cnn_predict(model, x): the scalar form. The model is loaded into a job of its
 * own at the first row and stays for the query. The watch connection, whose end ends the job, goes
 * with the query's memory, also where a function runs many queries; after an error with its
 * resource owner.
 */
#include "gpu_cnn.h"

struct scalar {
	MemoryContext context;
	char *model;
	uint64 serial; /* of the watch connection */
	struct job job;
	struct column x;
	bool classification;
	int n_classes;
	Datum classes;
};

/* A row in memory. */
struct buffer {
	struct encoder encoder;
	StringInfoData bytes;
};

static void buffer_begin(struct encoder *e, uint64 total)
{
	struct buffer *b = (struct buffer *)e;
	uint64 max = ctl_max_length(CTL_PREDICT) - 64;

	if (total > max)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("an image of " UINT64_FORMAT " bytes, at most " UINT64_FORMAT
				       " in this form of gpu_cnn_predict",
				       total, max),
				errhint("Predict a whole table: gpu_cnn_predict(model, source, "
					"output_table).")));
	resetStringInfo(&b->bytes);
	enlargeStringInfo(&b->bytes, (int)total);
}

static void buffer_write(struct encoder *e, const void *data, size_t n)
{
	appendBinaryStringInfo(&((struct buffer *)e)->bytes, data, (int)n);
}

static void buffer_end(struct encoder *e)
{
	(void)e;
}

static void open_model(FunctionCallInfo fcinfo, struct scalar *s)
{
	struct driver driver;
	struct model model;
	struct model_summary summary;
	MemoryContext old;

	driver_start(fcinfo, &driver);
	model_find(&driver, s->model, &model);
	model_read(&model, &summary);
	driver_begin(&driver, CTL_PREDICTION, model_spec(&summary, "predict"), 600);
	feed_declare(&driver.job, &s->x);
	model_load(&driver, &model, &summary);
	old = MemoryContextSwitchTo(s->context);
	s->classification = !strcmp(summary.task, "classification");
	s->n_classes = summary.n_classes;
	if (summary.n_classes)
		s->classes = PointerGetDatum(DatumGetArrayTypePCopy(summary.classes));
	MemoryContextSwitchTo(old);
	s->job = driver.job;
	s->serial = driver.watch->serial;
	driver_finish(&driver);
}

/* The query has ended, or asks another model now. After an error the connection is gone already. */
static void end_job(void *arg)
{
	struct scalar *s = arg;
	struct daemon *d = daemon_find(s->serial);

	if (d)
		daemon_close(d);
}

static struct scalar *scalar_open(FunctionCallInfo fcinfo, const char *model)
{
	struct scalar *s = fcinfo->flinfo->fn_extra;
	MemoryContext context;

	if (s && !strcmp(s->model, model) && daemon_find(s->serial))
		return s;
	if (s) {
		fcinfo->flinfo->fn_extra = NULL;
		end_job(s);
		MemoryContextDelete(s->context);
	}
	context = compat_context(fcinfo->flinfo->fn_mcxt, "gpu_cnn predict");
	s = MemoryContextAllocZero(context, sizeof(*s));
	s->context = context;
	compat_on_reset(context, end_job, s);
	s->model = MemoryContextStrdup(context, model);
	column_open(get_fn_expr_argtype(fcinfo->flinfo, 1), true, "an image", &s->x);
	open_model(fcinfo, s);
	fcinfo->flinfo->fn_extra = s;
	return s;
}

static text *class_value(struct scalar *s, const struct row_prediction *p)
{
	int n = s->n_classes ? s->n_classes : (int)p->outputs, index[1];
	struct ranked_class *r = palloc(sizeof(*r) * (size_t)(n + 1));
	bool null;
	Datum d;

	if (!rank_classes(prediction_values(p), (int)p->outputs, n, r))
		return NULL;
	if (!s->n_classes)
		return cstring_to_text(psprintf("%d", r[0].class));
	index[0] = r[0].class + 1;
	d = array_ref(DatumGetArrayTypeP(s->classes), 1, index, -1, -1, false, 'i', &null);
	return null ? NULL : DatumGetTextPP(d);
}

static text *number_value(const struct row_prediction *p)
{
	float4 *v = prediction_values(p);
	StringInfoData s;
	uint32 i;

	initStringInfo(&s);
	for (i = 0; i < p->outputs; i++)
		appendStringInfo(
			&s, "%s%s", i ? "," : "",
			DatumGetCString(DirectFunctionCall1(float4out, Float4GetDatum(v[i]))));
	return cstring_to_text(p->outputs == 1 ? s.data : psprintf("{%s}", s.data));
}

SQL_FUNCTION(gpu_cnn_predict_one);
Datum gpu_cnn_predict_one(PG_FUNCTION_ARGS)
{
	struct buffer b = {.encoder = {buffer_begin, buffer_write, buffer_end, 1 << 20}};
	struct piece none = {0}, x;
	struct row_prediction p;
	struct scalar *s;
	struct ctl_msg m;
	text *out;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	s = scalar_open(fcinfo, text_to_cstring(PG_GETARG_TEXT_PP(0)));
	initStringInfo(&b.bytes);
	piece_value(&s->x, PG_GETARG_DATUM(1), false, &x);
	encode_row(&b.encoder, &none, &x, &none, &none, 1);
	daemon_message(&m, CTL_PREDICT, &s->job);
	m.u.blob.blob = ctl_str(b.bytes.data, (size_t)b.bytes.len);
	daemon_call(daemon_find(s->serial), &m, &m, CTL_ROWS, "predict");
	if (row_prediction_decode(m.u.blob.blob.p, m.u.blob.blob.n, 0, &p) <= 0)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg("cnnd sent a malformed prediction")));
	out = s->classification ? class_value(s, &p) : number_value(&p);
	if (!out)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(out);
}
