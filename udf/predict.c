// SPDX-License-Identifier: MIT
/*
 * predict.c: gpu_cnn_predict over a source into a new table, and gpu_cnn_evaluate. Both load a
 * stored model into a job of their own: begin, put, feed, collect or run, end.
 */
#include "gpu_cnn.h"

#include <errno.h>
#include <math.h>

/* ---- a stored model in a job ---- */

char *model_spec(const struct model_summary *summary, const char *kind)
{
	StringInfoData s;
	const char *rest = summary->parameters;

	initStringInfo(&s);
	appendStringInfo(&s, "{\"kind\":\"%s\",\"architecture\":", kind);
	json_text(&s, summary->architecture);
	/* the arguments that it was trained with: loss, metrics, back end */
	while (rest && (*rest == ' ' || *rest == '\n' || *rest == '\t'))
		rest++;
	if (rest && *rest == '{') {
		rest++;
		rest += strspn(rest, " \n\t\r");
		appendStringInfo(&s, "%s%s", *rest == '}' ? "" : ",", rest);
	} else {
		appendStringInfoChar(&s, '}');
	}
	return s.data;
}

void model_load(struct driver *driver, const struct model *model,
		const struct model_summary *summary)
{
	struct ctl_apply_ok applied;

	driver_apply(driver, PointerGetDatum(summary->agreed), RESHUFFLE_OFF, &applied);
	if (!model_send(driver, model, "weights", CTL_WEIGHTS))
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("model \"%s\" holds no weights", model->name)));
}

/* The model's own column when the source has it. */
static const char *model_column(const struct source *source, const char *given, const char *own)
{
	int i;

	if (given || !own)
		return given;
	for (i = 1; i <= source->desc->natts; i++)
		if (!strcmp(source_name(source, i), own))
			return own;
	return NULL;
}

/* ---- prediction ---- */

struct pred_type {
	int top;
	double threshold;
};

static void parse_pred_type(const char *text, int classes, struct pred_type *out)
{
	char *end;
	double number;
	long rank;

	out->top = classes;
	out->threshold = -1;
	if (!pg_strcasecmp(text, "prob"))
		return;
	if (!pg_strcasecmp(text, "response")) {
		out->top = 1;
		return;
	}
	errno = 0;
	rank = strtol(text, &end, 10);
	if (end != text && !*end && !errno && rank >= 1) {
		out->top = (int)Min(rank, (long)classes);
		return;
	}
	number = strtod(text, &end);
	if (end != text && !*end && strchr(text, '.') && number >= 0 && number < 1) {
		out->threshold = number;
		return;
	}
	ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			errmsg("pred_type is '%s', must be 'response', 'prob', a number of classes "
			       "such as '3', or a probability such as '0.2'",
			       text)));
}

struct prediction {
	struct driver driver;
	struct model model;
	struct model_summary summary;
	struct source source;
	struct columns columns;
	struct fed fed;
	char *output; /* quoted */
	char *id_type;
};

static void claim_output(struct prediction *p, const char *text)
{
	char *nsp, *name;
	Oid nsp_oid;
	int nest;

	if (!name_parse(text, &nsp, &name))
		ereport(ERROR, (errcode(ERRCODE_INVALID_NAME),
				errmsg("output_table: \"%s\" is no name of a table", text)));
	driver_caller_path(&p->driver, &nest);
	nsp_oid = RangeVarGetCreationNamespace(makeRangeVar(nsp, name, -1));
	AtEOXact_GUC(true, nest);
	if (OidIsValid(get_relname_relid(name, nsp_oid)))
		ereport(ERROR, (errcode(ERRCODE_DUPLICATE_TABLE),
				errmsg("relation \"%s\" already exists", text),
				errhint("Drop it, or choose another output_table.")));
	p->output = quote_qualified_identifier(get_namespace_name(nsp_oid), name);
}

static void choose_columns(struct prediction *p, const struct arguments *args)
{
	const char *independent = model_column(&p->source, arguments_text(args, "independent"),
					       p->summary.independent);
	const char *id = arguments_text(args, "id_column");

	if (!id)
		id = p->source.key;
	if (!id)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("id_column must be given"),
				errdetail("source is no table with a primary key of one column."),
				errhint("It says which rows the predictions belong to.")));
	source_columns(&p->source, independent, NULL, id, NULL, false, &p->columns);
	p->id_type = p->source.type[p->columns.id - 1];
}

static void store_classes(struct prediction *p, const char *pred_type)
{
	int classes = p->summary.n_classes ? p->summary.n_classes : p->summary.outputs;
	struct pred_type type;
	struct args args = {0};

	parse_pred_type(pred_type, classes, &type);
	sql(SPI_OK_UTILITY,
	    "CREATE TABLE %s (%s %s, class_name text, class_value text, prob float8, rank "
	    "integer)" COMPAT_RANDOMLY,
	    p->output, quote_identifier(source_name(&p->source, p->columns.id)), p->id_type);
	args_add(&args, TEXTOID, p->driver.token, false);
	args_add(&args, INT4ARRAYOID, PointerGetDatum(p->driver.speakers), false);
	args_add(&args, INT4OID, Int32GetDatum(classes), false);
	args_add(&args, INT4OID, Int32GetDatum(type.top), false);
	args_add(&args, FLOAT8OID, Float8GetDatum(type.threshold), false);
	args_text(&args, p->summary.dependent);
	args_add(&args, TEXTARRAYOID, p->summary.classes, !p->summary.n_classes);
	sql_args(SPI_OK_INSERT, &args,
		 "INSERT INTO %s SELECT id::%s, $6, CASE WHEN $7 IS NULL THEN class::text ELSE "
		 "$7[class + 1] END, value, rank FROM %s.gpu_cnn_collect($1, $2, $3, $4, $5)",
		 p->output, p->id_type, p->driver.schema);
}

static void store_values(struct prediction *p)
{
	bool one = p->summary.outputs == 1;
	struct args args = {0};

	sql(SPI_OK_UTILITY, "CREATE TABLE %s (%s %s, prediction %s)" COMPAT_RANDOMLY, p->output,
	    quote_identifier(source_name(&p->source, p->columns.id)), p->id_type,
	    one ? "float8" : "real[]");
	args_add(&args, TEXTOID, p->driver.token, false);
	args_add(&args, INT4ARRAYOID, PointerGetDatum(p->driver.speakers), false);
	sql_args(SPI_OK_INSERT, &args,
		 "INSERT INTO %s SELECT id::%s, vector%s FROM %s.gpu_cnn_collect($1, $2, 0, 0, "
		 "0::float8)",
		 p->output, p->id_type, one ? "[1]::float8" : "", p->driver.schema);
}

SQL_FUNCTION(gpu_cnn_predict_table);
Datum gpu_cnn_predict_table(PG_FUNCTION_ARGS)
{
	struct prediction p;
	struct arguments args;
	char *pred_type, *output;
	double start = wait_seconds();
	TupleDesc desc;
	Datum v[5];
	bool null[5] = {false};

	memset(&p, 0, sizeof(p));
	driver_start(fcinfo, &p.driver);
	arguments_read(fcinfo, &args);
	driver_nodes(&p.driver);
	pred_type = arguments_wanted(&args, "pred_type");
	model_find(&p.driver, arguments_wanted(&args, "model_table"), &p.model);
	model_read(&p.model, &p.summary);
	claim_output(&p, arguments_wanted(&args, "output_table"));
	source_open(&p.driver, arguments_wanted(&args, "source"), "source", &p.source);
	choose_columns(&p, &args);
	driver_begin(&p.driver, CTL_PREDICTION, model_spec(&p.summary, "predict"), 600);
	driver_feed(&p.driver, ROW_PREDICT, &p.source, &p.columns, &p.fed);
	model_load(&p.driver, &p.model, &p.summary);
	if (!strcmp(p.summary.task, "classification"))
		store_classes(&p, pred_type);
	else
		store_values(&p);
	driver_bad_rows(&p.driver, "the prediction");
	driver_end(&p.driver);
	output = MemoryContextStrdup(p.driver.outer, p.output);
	driver_finish(&p.driver);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	v[0] = CStringGetTextDatum(output);
	v[1] = Int64GetDatum(p.fed.held);
	v[2] = Int64GetDatum(p.fed.bad);
	v[3] = Int32GetDatum(p.fed.feeders);
	v[4] = Float8GetDatum(wait_seconds() - start);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), v, null));
}

/* ---- evaluation ---- */

/* u32 classes, then classes * classes u64, a row for each true class. */
static Datum confusion_matrix(struct driver *driver)
{
	int parts, dims[2], lower[2] = {1, 1};
	int64 total;
	bytea *b = DatumGetByteaPP(driver_get(driver, CTL_CONFUSION, 0, &parts, &total));
	uint32 classes, i;
	Datum *v;

	if (VARSIZE_ANY_EXHDR(b) < sizeof(classes))
		return (Datum)0;
	memcpy(&classes, VARDATA_ANY(b), sizeof(classes));
	if (!classes || classes > 2048 ||
	    VARSIZE_ANY_EXHDR(b) != sizeof(classes) + (size_t)classes * classes * 8)
		return (Datum)0;
	v = palloc(sizeof(Datum) * classes * classes);
	for (i = 0; i < classes * classes; i++) {
		uint64 n;

		memcpy(&n, VARDATA_ANY(b) + sizeof(classes) + (size_t)i * 8, sizeof(n));
		v[i] = Int64GetDatum((int64)n);
	}
	dims[0] = dims[1] = (int)classes;
	return PointerGetDatum(construct_md_array(v, NULL, 2, dims, lower, INT8OID, sizeof(int64),
						  FLOAT8PASSBYVAL, 'd'));
}

static Datum keep(struct driver *driver, Datum array)
{
	MemoryContext old;
	Datum copy;

	if (!array)
		return array;
	old = MemoryContextSwitchTo(driver->outer);
	copy = PointerGetDatum(DatumGetArrayTypePCopy(array));
	MemoryContextSwitchTo(old);
	return copy;
}

SQL_FUNCTION(gpu_cnn_evaluate);
Datum gpu_cnn_evaluate(PG_FUNCTION_ARGS)
{
	struct prediction p;
	struct arguments args;
	struct ctl_run run = {.lr_factor = 1};
	struct ctl_run_row row;
	TupleDesc desc;
	char *metrics;
	Datum v[6] = {0};
	bool null[6] = {false};

	memset(&p, 0, sizeof(p));
	driver_start(fcinfo, &p.driver);
	arguments_read(fcinfo, &args);
	driver_nodes(&p.driver);
	model_find(&p.driver, arguments_wanted(&args, "model_table"), &p.model);
	model_read(&p.model, &p.summary);
	source_open(&p.driver, arguments_wanted(&args, "source"), "source", &p.source);
	source_columns(
		&p.source,
		model_column(&p.source, arguments_text(&args, "independent"),
			     p.summary.independent),
		model_column(&p.source, arguments_text(&args, "dependent"), p.summary.dependent),
		NULL, NULL, true, &p.columns);
	driver_begin(&p.driver, CTL_EVALUATION, model_spec(&p.summary, "evaluate"), 600);
	driver_feed(&p.driver, ROW_VALIDATION, &p.source, &p.columns, &p.fed);
	model_load(&p.driver, &p.model, &p.summary);
	driver_run(&p.driver, &run, &row);
	metrics = MemoryContextStrdup(p.driver.outer, driver_metrics(&row, false));
	if (!strcmp(p.summary.task, "classification"))
		v[5] = keep(&p.driver, confusion_matrix(&p.driver));
	v[4] = keep(&p.driver, p.summary.classes);
	driver_bad_rows(&p.driver, "the evaluation");
	driver_end(&p.driver);
	driver_finish(&p.driver);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	v[0] = Int64GetDatum(p.fed.held);
	v[1] = Int64GetDatum(p.fed.bad);
	v[2] = Float8GetDatum(row.validation_loss);
	null[2] = isnan(row.validation_loss);
	v[3] = CStringGetTextDatum(metrics);
	null[4] = !v[4];
	null[5] = !v[5];
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), v, null));
}
