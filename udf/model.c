// SPDX-License-Identifier: MIT
/*
 * model.c: the four tables of a model: <model> (kind, part, data), <model>_summary,
 * <model>_history, <model>_bad_rows; in the caller's schema, owned by the caller, part of the
 * caller's transaction.
 */
#include "gpu_cnn.h"

#include "access/hash.h"

#define SUFFIX_MAX 9 /* _bad_rows */

static void set_names(struct model *m)
{
	m->weights = quote_qualified_identifier(m->nsp, m->name);
	m->summary = quote_qualified_identifier(m->nsp, psprintf("%s_summary", m->name));
	m->history = quote_qualified_identifier(m->nsp, psprintf("%s_history", m->name));
	m->bad_rows = quote_qualified_identifier(m->nsp, psprintf("%s_bad_rows", m->name));
}

static void parse_name(const char *text, struct model *m)
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

/* ---- a new model ---- */

static int32 lock_key(const char *name)
{
	return (int32)DatumGetUInt32(hash_any((const unsigned char *)name, (int)strlen(name)));
}

/* One session makes a model; the lock goes with the transaction. */
static void lock_name(const struct model *m)
{
	struct args args = {0};
	int32 key = lock_key(m->name);

	args_add(&args, INT4OID, Int32GetDatum((int32)m->nsp_oid), false);
	args_add(&args, INT4OID, Int32GetDatum(key), false);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT pg_catalog.pg_try_advisory_xact_lock($1, $2), (SELECT pid FROM "
		 "pg_catalog.pg_locks l WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
		 "AND "
		 "l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = "
		 "pg_catalog.current_database()) AND classid = ($1::bigint & 4294967295)::oid AND "
		 "objid = ($2::bigint & 4294967295)::oid LIMIT 1)");
	if (!sql_int(0, 1)) {
		char *pid = sql_text(0, 2);

		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("model \"%s\" is being trained by session %s", m->name,
				       pid ? pid : "(just ended)")));
	}
}

static bool table_exists(const struct model *m, const char *suffix, Oid *oid)
{
	*oid = get_relname_relid(psprintf("%s%s", m->name, suffix), m->nsp_oid);
	return OidIsValid(*oid);
}

static bool has_column(Oid relid, const char *name)
{
	return get_attnum(relid, name) != InvalidAttrNumber;
}

/* Do these look like tables that this extension made? */
static bool is_model(const struct model *m)
{
	Oid weights, summary;

	return table_exists(m, "", &weights) && table_exists(m, "_summary", &summary) &&
	       get_rel_relkind(weights) == RELKIND_RELATION &&
	       get_rel_relkind(summary) == RELKIND_RELATION && has_column(weights, "kind") &&
	       has_column(weights, "part") && has_column(weights, "data") &&
	       has_column(summary, "format_version") && has_column(summary, "agreed");
}

static void check_absent(struct model *m, const char *on_exists)
{
	static const char *const suffix[] = {"", "_summary", "_history", "_bad_rows"};
	bool replace = !strcmp(on_exists, "replace");
	Oid oid;
	int i;

	if (!replace && strcmp(on_exists, "error"))
		ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("on_exists is '%s', must be 'error' or 'replace'", on_exists)));
	m->replace = replace && is_model(m);
	for (i = 0; i < (int)lengthof(suffix); i++) {
		if (!table_exists(m, suffix[i], &oid))
			continue;
		if (!m->replace)
			ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_TABLE),
				 errmsg("relation \"%s%s\" already exists", m->name, suffix[i]),
				 replace ? errdetail("It is no model of gpu_cnn, and so is not "
						     "replaced.")
					 : errhint("Choose another name, or on_exists := "
						   "'replace'.")));
		if (!compat_owns_class(oid, GetUserId()))
			ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					errmsg("must be owner of table %s%s", m->name, suffix[i])));
	}
}

void model_claim(struct driver *driver, const char *name, const char *on_exists, struct model *out)
{
	RangeVar *rv;
	int nest;

	parse_name(name, out);
	rv = makeRangeVar(out->nsp, out->name, -1);
	driver_caller_path(driver, &nest);
	out->nsp_oid = RangeVarGetCreationNamespace(rv);
	AtEOXact_GUC(true, nest);
	out->nsp = get_namespace_name(out->nsp_oid);
	if (!compat_may_create(out->nsp_oid, GetUserId()))
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("permission denied for schema %s", out->nsp),
				errhint("The model's tables are made there; name another schema in "
					"model_table.")));
	set_names(out);
	lock_name(out);
	check_absent(out, on_exists);
}

void model_create(const struct model *m)
{
	if (m->replace)
		sql(SPI_OK_UTILITY, "DROP TABLE IF EXISTS %s, %s, %s, %s", m->weights, m->summary,
		    m->history, m->bad_rows);
	sql(SPI_OK_UTILITY,
	    "CREATE TABLE %s (kind text, part integer, data bytea NOT NULL, PRIMARY KEY (kind, "
	    "part))",
	    m->weights);
	sql(SPI_OK_UTILITY, "ALTER TABLE %s ALTER data SET STORAGE EXTERNAL", m->weights);
	sql(SPI_OK_UTILITY,
	    "CREATE TABLE %s (model text, source text, validation_source text, dependent text, "
	    "independent text, dependent_type text, task text, classes text[], class_counts "
	    "bigint[], "
	    "class_weights float8[], outputs integer, input_shape integer[], scale float8[], "
	    "\"offset\" float8[], architecture json, parameters json, weights_count bigint, "
	    "rows bigint, skipped bigint, epochs integer, batch_size integer, loss float8, "
	    "validation_loss float8, metrics json, created timestamptz DEFAULT now(), "
	    "extension_version text, format_version integer NOT NULL, agreed bytea NOT NULL)",
	    m->summary);
	sql(SPI_OK_UTILITY,
	    "CREATE TABLE %s (epoch integer PRIMARY KEY, learning_rate float8, steps bigint, "
	    "rows bigint, loss float8, validation_loss float8, metric_name text, metric float8, "
	    "validation_metric float8, metrics json, seconds_train float8, seconds_merge float8, "
	    "seconds_evaluate float8, note text)",
	    m->history);
	sql(SPI_OK_UTILITY, "CREATE TABLE %s (\"set\" text, id text, reason text)", m->bad_rows);
}

/* ---- a model that is there ---- */

void model_find(struct driver *driver, const char *name, struct model *out)
{
	RangeVar *rv;
	Oid relid;
	int nest;

	parse_name(name, out);
	rv = makeRangeVar(out->nsp, out->name, -1);
	driver_caller_path(driver, &nest);
	relid = RangeVarGetRelid(rv, AccessShareLock, true);
	AtEOXact_GUC(true, nest);
	if (!OidIsValid(relid))
		ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
				errmsg("model \"%s\" does not exist", name)));
	out->nsp_oid = get_rel_namespace(relid);
	out->nsp = get_namespace_name(out->nsp_oid);
	/* only plain tables: a view of somebody else's would run its functions as us */
	if (!is_model(out))
		ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
				errmsg("\"%s\" is no model of gpu_cnn", name),
				errhint("A model is the table that gpu_cnn_train or "
					"gpu_cnn_import_weights made, beside \"%s_summary\".",
					out->name)));
	set_names(out);
}

void model_read(const struct model *m, struct model_summary *out)
{
	bool null;
	Datum classes;
	int64 version;

	sql(SPI_OK_SELECT,
	    "SELECT format_version::integer, architecture::text, parameters::text, task::text, "
	    "dependent::text, independent::text, classes::text[], outputs::integer, agreed::bytea "
	    "FROM %s",
	    m->summary);
	if (SPI_processed != 1)
		ereport(ERROR,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("%s holds %d rows, not one", m->summary, (int)SPI_processed)));
	version = sql_int(0, 1);
	if (version > MODEL_FORMAT || version < 1)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("model \"%s\" has format %d, this version reads up to %d",
				       m->name, (int)version, MODEL_FORMAT)));
	memset(out, 0, sizeof(*out));
	out->architecture = sql_text(0, 2);
	out->parameters = sql_text(0, 3);
	out->task = sql_text(0, 4);
	out->dependent = sql_text(0, 5);
	out->independent = sql_text(0, 6);
	classes = sql_get(0, 7, &null);
	if (!null) {
		ArrayType *a = DatumGetArrayTypePCopy(classes);

		out->n_classes = ArrayGetNItems(ARR_NDIM(a), ARR_DIMS(a));
		out->classes = PointerGetDatum(a);
	}
	out->outputs = (int)sql_int(0, 8);
	out->agreed = (bytea *)DatumGetPointer(sql_bytes(0, 9));
	if (!out->architecture || !out->task)
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("%s lacks architecture or task", m->summary)));
	SPI_freetuptable(SPI_tuptable);
}

int64 model_store(struct driver *driver, const struct model *m, enum ctl_kind kind,
		  const char *name)
{
	int part = 0, parts = 1;
	int64 total = 0;

	for (; part < parts; part++) {
		struct args args = {0};
		Datum data = driver_get(driver, kind, part, &parts, &total);

		if (!data)
			break;
		args_text(&args, name);
		args_add(&args, INT4OID, Int32GetDatum(part), false);
		args_add(&args, BYTEAOID, data, false);
		sql_args(SPI_OK_INSERT, &args,
			 "INSERT INTO %s (kind, part, data) VALUES ($1, $2, $3)", m->weights);
		pfree(DatumGetPointer(data));
	}
	return total;
}

bool model_send(struct driver *driver, const struct model *m, const char *name, enum ctl_kind kind)
{
	struct args args = {0};
	int64 total;
	int parts, part;

	args_text(&args, name);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT count(*), coalesce(sum(length(data::bytea)), 0)::bigint FROM %s WHERE "
		 "kind::text = $1",
		 m->weights);
	parts = (int)sql_int(0, 1);
	total = sql_int(0, 2);
	SPI_freetuptable(SPI_tuptable);
	for (part = 0; part < parts; part++) {
		struct args one = {0};
		Datum data;

		args_text(&one, name);
		args_add(&one, INT4OID, Int32GetDatum(part), false);
		sql_args(SPI_OK_SELECT, &one,
			 "SELECT data::bytea FROM %s WHERE kind::text = $1 AND part::integer = $2",
			 m->weights);
		if (SPI_processed != 1)
			ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
					errmsg("model \"%s\": part %d of %d of its %s is missing",
					       m->name, part, parts, name)));
		data = sql_bytes(0, 1);
		SPI_freetuptable(SPI_tuptable);
		driver_put(driver, kind, part, parts, total, data);
		pfree(DatumGetPointer(data));
	}
	return parts > 0;
}

/* ---- class values ---- */

static Datum class_text(uint32 kind, const struct agree_label *label)
{
	int64 v;

	switch (kind) {
	case AGREE_INT:
		memcpy(&v, label->value, sizeof(v));
		return CStringGetTextDatum(psprintf(INT64_FORMAT, v));
	case AGREE_BOOL:
		return CStringGetTextDatum(label->value[0] ? "true" : "false");
	default:
		return PointerGetDatum(text_of(ctl_str((const char *)label->value, label->bytes)));
	}
}

Datum model_classes(const struct agree_block *b)
{
	Datum *v;
	uint32 i;

	if (!b->n_labels)
		return (Datum)0;
	v = palloc(sizeof(Datum) * b->n_labels);
	for (i = 0; i < b->n_labels; i++)
		v[i] = class_text(b->labels, &b->label[i]);
	return PointerGetDatum(construct_array(v, (int)b->n_labels, TEXTOID, -1, false, 'i'));
}
