// SPDX-License-Identifier: MIT
/*
 * stored.c: reading the tables of a model. They are the user's, who may have changed them, or made
 * them without gpu_cnn: every column is checked for its type, every value for NULL and range. A
 * column of another type is not cast: a cast may be a function of the table's owner.
 */
#include "gpu_cnn.h"

#include "storage/lmgr.h"

#define SUFFIX_MAX 9 /* _bad_rows */
#define OUTPUTS_MAX (1 << 24)
#define PARTS_MAX (1 << 16) /* 1 TB */

struct stored_column {
	const char *name;
	Oid type;
};

static const struct stored_column weights_columns[] = {
	{"kind", TEXTOID}, {"part", INT4OID}, {"data", BYTEAOID}, {NULL, InvalidOid}};

static const struct stored_column summary_columns[] = {
	{"format_version", INT4OID}, {"architecture", JSONOID}, {"parameters", JSONOID},
	{"task", TEXTOID},	     {"dependent", TEXTOID},	{"independent", TEXTOID},
	{"classes", TEXTARRAYOID},   {"outputs", INT4OID},	{"agreed", BYTEAOID},
	{NULL, InvalidOid}};

static const struct stored_column history_columns[] = {{"epoch", INT4OID},
						       {"loss", FLOAT8OID},
						       {"validation_loss", FLOAT8OID},
						       {"metric_name", TEXTOID},
						       {"metric", FLOAT8OID},
						       {"validation_metric", FLOAT8OID},
						       {"metrics", JSONOID},
						       {"learning_rate", FLOAT8OID},
						       {"steps", INT8OID},
						       {"rows", INT8OID},
						       {"seconds_train", FLOAT8OID},
						       {"seconds_merge", FLOAT8OID},
						       {"seconds_evaluate", FLOAT8OID},
						       {"hosts", INT4OID},
						       {"merges", INT8OID},
						       {"merge_bytes", INT8OID},
						       {"distance", FLOAT8OID},
						       {"note", TEXTOID},
						       {NULL, InvalidOid}};

/* ---- names ---- */

void model_set_names(struct model *m)
{
	m->weights = quote_qualified_identifier(m->nsp, m->name);
	m->summary = quote_qualified_identifier(m->nsp, psprintf("%s_summary", m->name));
	m->history = quote_qualified_identifier(m->nsp, psprintf("%s_history", m->name));
	m->bad_rows = quote_qualified_identifier(m->nsp, psprintf("%s_bad_rows", m->name));
}

void model_parse_name(const char *text, struct model *m)
{
	memset(m, 0, sizeof(*m));
	if (!name_parse(text, &m->nsp, &m->name))
		ereport(ERROR, (errcode(ERRCODE_INVALID_NAME),
				errmsg("model_table: \"%s\" is no name of a table", text)));
	if (strlen(m->name) + SUFFIX_MAX >= NAMEDATALEN)
		ereport(ERROR, (errcode(ERRCODE_NAME_TOO_LONG),
				errmsg("model_table: \"%s\" is too long", m->name),
				errhint("At most %d bytes, so that \"%s_bad_rows\" is a name too.",
					NAMEDATALEN - 1 - SUFFIX_MAX, "<model>")));
}

bool model_table_exists(const struct model *m, const char *suffix, Oid *oid)
{
	*oid = get_relname_relid(psprintf("%s%s", m->name, suffix), m->nsp_oid);
	return OidIsValid(*oid);
}

static bool has_column(Oid relid, const char *name)
{
	return get_attnum(relid, name) != InvalidAttrNumber;
}

/* Do these look like tables that this extension made? */
bool model_looks_like(const struct model *m)
{
	Oid weights, summary;

	return model_table_exists(m, "", &weights) && model_table_exists(m, "_summary", &summary) &&
	       get_rel_relkind(weights) == RELKIND_RELATION &&
	       get_rel_relkind(summary) == RELKIND_RELATION && has_column(weights, "kind") &&
	       has_column(weights, "part") && has_column(weights, "data") &&
	       has_column(summary, "format_version") && has_column(summary, "agreed");
}

/* The table is there and locked. */
static void check_columns(const struct model *m, const char *suffix,
			  const struct stored_column *column)
{
	Oid relid = get_relname_relid(psprintf("%s%s", m->name, suffix), m->nsp_oid);

	for (; column->name; column++) {
		AttrNumber n = get_attnum(relid, column->name);

		if (n == InvalidAttrNumber)
			ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
					errmsg("model \"%s\" is damaged: table %s%s has no column "
					       "\"%s\"",
					       m->name, m->name, suffix, column->name)));
		if (get_atttype(relid, n) != column->type)
			ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("model \"%s\" is damaged: column %s of %s%s is of type %s, "
					"must be %s",
					m->name, column->name, m->name, suffix,
					format_type_be(get_atttype(relid, n)),
					format_type_be(column->type))));
	}
}

void model_find(struct driver *driver, const char *name, struct model *out)
{
	RangeVar *rv;
	Oid relid, summary;
	int nest;

	model_parse_name(name, out);
	rv = makeRangeVar(out->nsp, out->name, -1);
	driver_caller_path(driver, &nest);
	relid = RangeVarGetRelid(rv, AccessShareLock, true);
	AtEOXact_GUC(true, nest);
	if (!OidIsValid(relid))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("model \"%s\" does not exist", name)));
	out->nsp_oid = get_rel_namespace(relid);
	out->nsp = get_namespace_name(out->nsp_oid);
	if (model_table_exists(out, "_summary", &summary))
		LockRelationOid(summary, AccessShareLock);
	/* only plain tables: a view of somebody else's would run its functions as us */
	if (!model_looks_like(out))
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("\"%s\" is no model of gpu_cnn", name),
				errhint("A model is the table that gpu_cnn_train or "
					"gpu_cnn_import_weights made, beside \"%s_summary\".",
					out->name)));
	model_set_names(out);
	check_columns(out, "", weights_columns);
	check_columns(out, "_summary", summary_columns);
}

void model_check_history(const struct model *m)
{
	Oid relid;

	if (!model_table_exists(m, "_history", &relid))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("model \"%s\" has no history: table %s does not exist",
				       m->name, m->history)));
	LockRelationOid(relid, AccessShareLock);
	if (get_rel_relkind(relid) != RELKIND_RELATION)
		ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("%s is no table", m->history)));
	check_columns(m, "_history", history_columns);
}

/* ---- the summary ---- */

static void damaged(const struct model *m, const char *fmt, ...)
	__attribute__((format(printf, 2, 3), noreturn));

static void damaged(const struct model *m, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
			errmsg("model \"%s\" is damaged: %s", m->name, text)));
	pg_unreachable();
}

static char *wanted_text(const struct model *m, int column, const char *name)
{
	char *s = sql_text(0, column);

	if (!s)
		damaged(m, "%s is NULL", name);
	return s;
}

static int64 wanted_int(const struct model *m, int column, const char *name)
{
	bool null;

	sql_get(0, column, &null);
	if (null)
		damaged(m, "%s is NULL", name);
	return sql_int(0, column);
}

static void read_classes(const struct model *m, int column, struct model_summary *out)
{
	bool null;
	Datum d = sql_get(0, column, &null);
	ArrayType *a;

	if (null)
		return;
	a = DatumGetArrayTypePCopy(d);
	out->n_classes = ArrayGetNItems(ARR_NDIM(a), ARR_DIMS(a));
	if (!out->n_classes)
		return;
	if (ARR_NDIM(a) != 1 || ARR_LBOUND(a)[0] != 1)
		damaged(m, "classes must be one list that begins at 1");
	if (array_contains_nulls(a))
		damaged(m, "classes holds a NULL");
	out->classes = PointerGetDatum(a);
}

/* The scale is copied out of the decoded block, which is malloc'd memory. */
static void copy_block(const struct agree_block *b, struct model_summary *out)
{
	out->n_labels = (int)b->n_labels;
	out->labels = b->labels;
	out->block_outputs = b->outputs;
	out->n_channels = b->n_channels;
	out->normalize = b->normalize;
	out->normalizing_const = b->normalizing_const;
	out->mul = palloc(sizeof(double) * b->n_channels);
	out->add = palloc(sizeof(double) * b->n_channels);
	memcpy(out->mul, b->mul, sizeof(double) * b->n_channels);
	memcpy(out->add, b->add, sizeof(double) * b->n_channels);
}

static void read_agreed(const struct model *m, int column, struct model_summary *out)
{
	Datum d = sql_bytes_or_null(0, column);
	struct agree_block b;
	struct err err = {0};

	if (!d)
		damaged(m, "agreed is NULL");
	out->agreed = (bytea *)DatumGetPointer(d);
	if (agree_decode(VARDATA_ANY(out->agreed), VARSIZE_ANY_EXHDR(out->agreed), &b, &err))
		damaged(m, "%s", err.message);
	if (!b.agreed || !b.n_channels) {
		agree_free(&b);
		damaged(m, "agreed is no block that daemons have agreed on");
	}
	PG_TRY();
	{
		copy_block(&b, out);
	}
	PG_CATCH();
	{
		agree_free(&b);
		PG_RE_THROW();
	}
	PG_END_TRY();
	agree_free(&b);
}

/* What stands twice must be the same. */
static void check_summary(const struct model *m, const struct model_summary *s)
{
	bool classification = !strcmp(s->task, "classification");
	const char *p = s->parameters;

	if (!classification && strcmp(s->task, "regression"))
		damaged(m, "task is \"%s\", must be classification or regression", s->task);
	if (classification ? s->labels == AGREE_FLOAT || s->labels == AGREE_NO_LABELS
			   : s->n_labels != 0)
		damaged(m, "task is %s, which its class map is not", s->task);
	/* classes without names are numbers */
	if (s->n_classes != s->n_labels && (s->n_classes || s->labels == AGREE_TEXT))
		damaged(m, "%d classes, but its class map has %d", s->n_classes, s->n_labels);
	if (s->outputs < 1 || s->outputs > OUTPUTS_MAX)
		damaged(m, "outputs is %d, must be 1 to %d", s->outputs, OUTPUTS_MAX);
	if (!s->n_labels && (uint32)s->outputs != s->block_outputs)
		damaged(m, "outputs is %d, but it was trained for %u", s->outputs,
			s->block_outputs);
	if (p && p[strspn(p, " \n\t\r")] != '{')
		damaged(m, "parameters is no JSON object");
}

void model_read(const struct model *m, struct model_summary *out)
{
	int64 version;

	sql(SPI_OK_SELECT,
	    "SELECT format_version, architecture::pg_catalog.text, parameters::pg_catalog.text, "
	    "task, dependent, independent, classes, outputs, agreed FROM %s LIMIT 2",
	    m->summary);
	if (SPI_processed != 1)
		damaged(m, "table %s_summary holds %s", m->name,
			SPI_processed ? "more than one row" : "no row");
	version = wanted_int(m, 1, "format_version");
	if (version > MODEL_FORMAT || version < 1)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("model \"%s\" has format %d, this version reads up to %d",
				       m->name, (int)version, MODEL_FORMAT)));
	memset(out, 0, sizeof(*out));
	out->architecture = wanted_text(m, 2, "architecture");
	out->parameters = sql_text(0, 3);
	out->task = wanted_text(m, 4, "task");
	out->dependent = sql_text(0, 5);
	out->independent = sql_text(0, 6);
	read_classes(m, 7, out);
	out->outputs = (int)wanted_int(m, 8, "outputs");
	read_agreed(m, 9, out);
	SPI_freetuptable(SPI_tuptable);
	check_summary(m, out);
}

/* ---- weights ---- */

int model_parts(const struct model *m, const char *name, int64 *total)
{
	struct args args = {0};
	int64 n, whole;

	args_text(&args, name);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT count(*), count(data), coalesce(sum(length(data)), 0)::bigint FROM %s "
		 "WHERE kind = $1",
		 m->weights);
	n = sql_int(0, 1);
	whole = sql_int(0, 2);
	*total = sql_int(0, 3);
	SPI_freetuptable(SPI_tuptable);
	if (whole != n)
		damaged(m, "a part of its %s is NULL", name);
	if (n > PARTS_MAX)
		damaged(m, "%d parts of its %s", (int)Min(n, PG_INT32_MAX), name);
	return (int)n;
}

Datum model_part(const struct model *m, const char *name, int part, int parts)
{
	struct args args = {0};
	Datum data;

	args_text(&args, name);
	args_add(&args, INT4OID, Int32GetDatum(part), false);
	sql_args(SPI_OK_SELECT, &args, "SELECT data FROM %s WHERE kind = $1 AND part = $2 LIMIT 2",
		 m->weights);
	if (!SPI_processed)
		damaged(m, "part %d of %d of its %s is missing", part, parts, name);
	if (SPI_processed > 1)
		damaged(m, "part %d of %d of its %s is there twice", part, parts, name);
	data = sql_bytes(0, 1); /* NULL: changed since model_parts */
	SPI_freetuptable(SPI_tuptable);
	if (VARSIZE_ANY_EXHDR(DatumGetPointer(data)) > CTL_PART_MAX)
		damaged(m, "part %d of %d of its %s has %zu bytes, at most %u", part, parts, name,
			(size_t)VARSIZE_ANY_EXHDR(DatumGetPointer(data)), CTL_PART_MAX);
	return data;
}

bool model_send(struct driver *driver, const struct model *m, const char *name, enum ctl_kind kind)
{
	int64 total;
	int parts = model_parts(m, name, &total), part;

	for (part = 0; part < parts; part++) {
		Datum data = model_part(m, name, part, parts);

		driver_put(driver, kind, part, parts, total, data);
		pfree(DatumGetPointer(data));
	}
	return parts > 0;
}
