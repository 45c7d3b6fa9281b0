// SPDX-License-Identifier: MIT
/*
 * train.c: gpu_cnn_train: checks, output tables, then begin, feed, agree, apply, run by iteration,
 * store, end (docs/architecture.md, "A training run"). Everything happens in the caller's
 * transaction: an error leaves nothing behind.
 */
#include "training.h"

#include <math.h>

/* ---- before the job ---- */

static enum reshuffle reshuffle_argument(const struct training *t)
{
	const char *text = arguments_text(&t->args, "reshuffle");

	if (!text || !pg_strcasecmp(text, "auto"))
		/* rows that are dropped and fed again would have to move again */
		return t->cache ? RESHUFFLE_AUTO : RESHUFFLE_OFF;
	if (!pg_strcasecmp(text, "off"))
		return RESHUFFLE_OFF;
	if (pg_strcasecmp(text, "on"))
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("reshuffle is '%s', must be 'auto', 'on' or 'off'", text)));
	if (!t->cache)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("reshuffle := 'on' and cache := false exclude each other")));
	return RESHUFFLE_ON;
}

static void check_hosts(struct training *t)
{
	double min_hosts;

	t->reshuffle = reshuffle_argument(t);
	if (!arguments_number(&t->args, "min_hosts", &min_hosts))
		return;
	if (min_hosts < 1 || min_hosts > CTL_HOSTS_MAX)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("min_hosts is %d, must be 1 to %u", (int)min_hosts,
				       CTL_HOSTS_MAX)));
	t->driver.min_hosts = (int)min_hosts;
}

static void check_arguments(struct training *t)
{
	const char *source = arguments_wanted(&t->args, "source");
	const char *name = arguments_wanted(&t->args, "model_table");
	const char *architecture = arguments_wanted(&t->args, "architecture");
	const char *on_exists = arguments_text(&t->args, "on_exists");

	model_claim(&t->driver, name, on_exists ? on_exists : "error", &t->model);
	t->architecture = architecture_find(&t->driver, architecture, &t->start_weights);
	source_open(&t->driver, source, "source", &t->source);
	source_columns(&t->source, arguments_text(&t->args, "independent"),
		       arguments_text(&t->args, "dependent"), arguments_text(&t->args, "id_column"),
		       arguments_text(&t->args, "sample_weight"), true, &t->columns);
	warm_start_find(t);
	t->cache = arguments_flag(&t->args, "cache", true);
	check_hosts(t);
	t->spec = arguments_spec(&t->args, t->architecture);
}

/* The validation source has the same columns by name; id and weight only where they are there. */
static void check_validation(struct training *t)
{
	const char *text = arguments_text(&t->args, "validation_source");
	struct source *v = &t->validation;
	struct columns *c = &t->validation_columns;
	double fraction;

	if (!text)
		return;
	if (arguments_number(&t->args, "validation_fraction", &fraction) && fraction > 0)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("validation_source and validation_fraction exclude each "
				       "other")));
	source_open(&t->driver, text, "validation_source", v);
	c->x = source_column(v, source_name(&t->source, t->columns.x), "independent");
	c->y = source_column(v, source_name(&t->source, t->columns.y), "dependent");
	if (t->columns.id)
		c->id = source_column(v, source_name(&t->source, t->columns.id), "id_column");
	if (t->columns.weight)
		c->weight = source_column(v, source_name(&t->source, t->columns.weight),
					  "sample_weight");
	t->has_validation = true;
}

/* ---- the job ---- */

void training_feed(struct training *t)
{
	double start = wait_seconds();

	driver_feed(&t->driver, ROW_TRAIN, &t->source, &t->columns, &t->fed);
	if (t->has_validation)
		driver_feed(&t->driver, ROW_VALIDATION, &t->validation, &t->validation_columns,
			    &t->validation_fed);
	t->seconds_feed += wait_seconds() - start;
}

static void check_validation_rows(const struct training *t)
{
	if (t->has_validation && !t->agreed->rows[ROW_VALIDATION])
		ereport(WARNING, (errmsg("nothing is validated: validation_source has no usable "
					 "row")));
}

static void feed(struct training *t)
{
	double start;

	training_feed(t);
	start = wait_seconds();
	driver_agree(&t->driver, &t->agreed, &t->agreed_blob);
	check_validation_rows(t);
	warm_start_agree(t);
	driver_apply(&t->driver, t->agreed_blob, t->reshuffle, &t->apply);
	t->seconds_feed += wait_seconds() - start;
	if (t->agreed->bad[ROW_TRAIN] + t->agreed->bad[ROW_VALIDATION])
		ereport(NOTICE,
			(errmsg(UINT64_FORMAT " of " UINT64_FORMAT " rows were left out",
				t->agreed->bad[ROW_TRAIN] + t->agreed->bad[ROW_VALIDATION],
				t->agreed->sent[ROW_TRAIN] + t->agreed->sent[ROW_VALIDATION]),
			 errhint("%s says which and why.", t->model.bad_rows)));
}

/* ---- store ---- */

static const char *task_of(const struct training *t)
{
	const char *loss = parameter_text(t->spec, "loss");

	switch (t->agreed->labels) {
	case AGREE_INT:
	case AGREE_TEXT:
	case AGREE_BOOL:
		return "classification";
	case AGREE_VECTOR:
		if (loss && strstr(loss, "categorical_crossentropy"))
			return "classification";
		/* 'auto': where cnnd measured an accuracy, it took the arrays for classes */
		if ((!loss || !strcmp(loss, "auto")) && t->last.metrics &&
		    strcmp(t->last.metric[0].name, "rmse"))
			return "classification";
		return "regression";
	default:
		return "regression";
	}
}

static Datum int8_array(const struct agree_block *b)
{
	Datum *v = palloc(sizeof(Datum) * (b->n_labels + 1));
	uint32 i;

	for (i = 0; i < b->n_labels; i++)
		v[i] = Int64GetDatum((int64)b->label[i].count);
	return PointerGetDatum(
		construct_array(v, (int)b->n_labels, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, 'd'));
}

static Datum float8_array(const double *values, const struct agree_label *labels, uint32 n)
{
	Datum *v = palloc(sizeof(Datum) * (n + 1));
	uint32 i;

	for (i = 0; i < n; i++)
		v[i] = Float8GetDatum(values ? values[i] : labels[i].weight);
	return PointerGetDatum(
		construct_array(v, (int)n, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL, 'd'));
}

static char *fetch_architecture(struct training *t)
{
	StringInfoData s;
	int part = 0, parts = 1;
	int64 total;

	initStringInfo(&s);
	for (; part < parts; part++) {
		bytea *b = DatumGetByteaPP(driver_get(&t->driver, CTL_JSON, part, &parts, &total));

		appendBinaryStringInfo(&s, VARDATA_ANY(b), (int)VARSIZE_ANY_EXHDR(b));
	}
	return cstring_of(ctl_str(s.data, (size_t)s.len));
}

#define DEFAULT_MERGE "average" /* userspace/train's; tests/sql/nodes compares */

/* What an argument's default came out as; whether the same call would give the same weights. */
static char *effective(const struct training *t)
{
	StringInfoData s;
	const char *every = arguments_text(&t->args, "merge_every");
	bool measured = t->merge_every != 0 && t->driver.n_hosts > 1;

	initStringInfo(&s);
	appendStringInfo(
		&s, "{\"hosts\": %d, \"replicas\": %u, \"batch_size\": %u, \"effective_batch\": ",
		t->driver.n_hosts, t->agreed->replicas, t->apply.batch_size);
	json_number(&s, t->apply.effective_batch);
	appendStringInfo(&s, ", \"steps_per_epoch\": " UINT64_FORMAT ", \"learning_rate\": ",
			 t->apply.steps);
	json_number(&s, t->learning_rate);
	if (t->driver.n_hosts > 1) {
		const char *merge = arguments_text(&t->args, "merge");

		appendStringInfoString(&s, ", \"merge\": ");
		json_text(&s, merge ? merge : DEFAULT_MERGE);
	}
	if (measured)
		appendStringInfo(&s, ", \"merge_every\": %u", t->merge_every);
	else if (every && t->driver.n_hosts > 1) {
		appendStringInfoString(&s, ", \"merge_every\": ");
		json_text(&s, every);
	}
	appendStringInfo(&s, ", \"reshuffled\": %s, \"reproducible\": %s",
			 t->driver.rows_moved ? "true" : "false",
			 measured || t->driver.n_lost ||
					 !arguments_flag(&t->args, "deterministic", true)
				 ? "false"
				 : "true");
	appendStringInfoChar(&s, '}');
	return s.data;
}

static void insert_summary(struct training *t)
{
	const struct agree_block *b = t->agreed;
	struct args args = {0};
	Datum classes = model_classes(b), shape[3];
	char *validation = arguments_text(&t->args, "validation_source");

	shape[0] = Int32GetDatum((int32)t->apply.h);
	shape[1] = Int32GetDatum((int32)t->apply.w);
	shape[2] = Int32GetDatum((int32)t->apply.c);
	args_text(&args, t->model.name);
	args_text(&args, t->source.text);
	args_text(&args, validation);
	args_text(&args, source_name(&t->source, t->columns.y));
	args_text(&args, source_name(&t->source, t->columns.x));
	args_text(&args, t->source.type[t->columns.y - 1]);
	args_text(&args, task_of(t));
	args_add(&args, TEXTARRAYOID, classes, !classes);
	args_add(&args, INT8ARRAYOID, int8_array(b), !classes);
	args_add(&args, FLOAT8ARRAYOID, float8_array(NULL, b->label, b->n_labels), !classes);
	args_add(&args, INT4OID, Int32GetDatum((int32)t->apply.outputs), false);
	args_add(&args, INT4ARRAYOID,
		 PointerGetDatum(construct_array(shape, 3, INT4OID, sizeof(int32), true, 'i')),
		 false);
	args_add(&args, FLOAT8ARRAYOID, float8_array(b->mul, NULL, b->n_channels), false);
	args_add(&args, FLOAT8ARRAYOID, float8_array(b->add, NULL, b->n_channels), false);
	args_text(&args, fetch_architecture(t));
	args_text(&args, arguments_spec(&t->args, NULL));
	args_add(&args, INT8OID, Int64GetDatum((int64)t->apply.parameters), false);
	args_add(&args, INT8OID, Int64GetDatum((int64)b->rows[ROW_TRAIN]), false);
	args_add(&args, INT8OID, Int64GetDatum((int64)b->bad[ROW_TRAIN]), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)t->epochs), false);
	args_add(&args, INT4OID, Int32GetDatum((int32)t->apply.batch_size), false);
	args_number(&args, t->kept.loss);
	args_number(&args, t->kept.validation_loss);
	args_text(&args, t->kept.metrics);
	args_add(&args, BYTEAOID, t->agreed_blob, false);
	args_text(&args, effective(t));
	sql_args(
		SPI_OK_INSERT, &args,
		"INSERT INTO %s (model, source, validation_source, dependent, independent, "
		"dependent_type, task, classes, class_counts, class_weights, outputs, input_shape, "
		"scale, \"offset\", architecture, parameters, weights_count, rows, skipped, "
		"epochs, "
		"batch_size, loss, validation_loss, metrics, extension_version, format_version, "
		"agreed, effective) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, "
		"$13, $14, "
		"$15::json, $16::json, $17, $18, $19, $20, $21, $22, $23, $24::json, "
		"'" CNN_VERSION "', %d, $25, $26::json)",
		t->model.summary, MODEL_FORMAT);
}

static void store(struct training *t)
{
	double start = wait_seconds();
	struct args args = {0};

	args_add(&args, TEXTOID, t->driver.token, false);
	args_add(&args, INT4ARRAYOID, PointerGetDatum(t->driver.speakers), false);
	sql_args(SPI_OK_INSERT, &args, "INSERT INTO %s SELECT * FROM %s.gpu_cnn_bad_rows($1, $2)",
		 t->model.bad_rows, t->driver.schema);
	model_store(&t->driver, &t->model, t->restore ? CTL_BEST : CTL_WEIGHTS, "weights");
	model_store(&t->driver, &t->model, CTL_OPTIMIZER, "optimizer");
	insert_summary(t);
	t->seconds_store = wait_seconds() - start;
}

/* ---- result ---- */

static Datum result(FunctionCallInfo fcinfo, const struct training *t, int64 rows, int64 skipped,
		    uint32 replicas)
{
	const struct driver *d = &t->driver;
	TupleDesc desc;
	Datum v[24];
	bool null[24] = {false};
	int n = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	v[n++] = CStringGetTextDatum(t->model.weights);
	v[n++] = Int64GetDatum(rows);
	v[n++] = Int64GetDatum(skipped);
	v[n++] = Int32GetDatum(d->n_lost);
	v[n++] = Int32GetDatum((int32)t->epochs);
	v[n++] = Float8GetDatum(t->apply.effective_batch);
	null[n] = isnan(t->kept.loss);
	v[n++] = Float8GetDatum(t->kept.loss);
	null[n] = isnan(t->kept.validation_loss);
	v[n++] = Float8GetDatum(t->kept.validation_loss);
	v[n++] = CStringGetTextDatum(t->kept.metrics);
	v[n++] = Int32GetDatum(t->fed.feeders + t->validation_fed.feeders);
	v[n++] = Int32GetDatum(d->n_hosts);
	v[n++] = Int32GetDatum((int32)replicas);
	v[n++] = Int64GetDatum((int64)t->merges);
	v[n++] = Int64GetDatum((int64)t->merge_bytes);
	null[n] = d->n_hosts < 2;
	v[n++] = Float8GetDatum(d->skew_distance);
	null[n] = d->n_hosts < 2;
	v[n++] = Float8GetDatum(d->skew_ratio);
	v[n++] = Int64GetDatum(d->rows_moved);
	v[n++] = Float8GetDatum(milliseconds(t->seconds_feed));
	v[n++] = Float8GetDatum(milliseconds(t->seconds_train));
	v[n++] = Float8GetDatum(milliseconds(t->seconds_merge));
	v[n++] = Float8GetDatum(milliseconds(t->seconds_evaluate));
	v[n++] = Float8GetDatum(milliseconds(t->seconds_store));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), v, null));
}

SQL_FUNCTION(gpu_cnn_train);
Datum gpu_cnn_train(PG_FUNCTION_ARGS)
{
	struct training t;
	double queue_timeout;
	int64 rows, skipped;
	uint32 replicas;

	memset(&t, 0, sizeof(t));
	driver_start(fcinfo, &t.driver);
	arguments_read(fcinfo, &t.args);
	driver_nodes(&t.driver);
	check_arguments(&t);
	check_validation(&t);
	if (!arguments_number(&t.args, "queue_timeout", &queue_timeout))
		queue_timeout = 600;
	if (!t.model.replace)
		model_create(&t.model);
	driver_begin(&t.driver, CTL_TRAIN, t.spec, queue_timeout);
	feed(&t);
	warm_start_put(&t);
	if (t.model.replace)
		model_create(&t.model);
	training_run(&t);
	store(&t);
	rows = (int64)(t.agreed->rows[ROW_TRAIN]);
	skipped = (int64)(t.agreed->bad[ROW_TRAIN]);
	replicas = t.agreed->replicas;
	driver_end(&t.driver);
	t.model.weights = MemoryContextStrdup(t.driver.outer, t.model.weights);
	t.kept.metrics = MemoryContextStrdup(t.driver.outer, t.kept.metrics);
	driver_finish(&t.driver);
	return result(fcinfo, &t, rows, skipped, replicas);
}
