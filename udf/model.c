// SPDX-License-Identifier: MIT
/*
 * model.c: making the four tables of a model: <model> (kind, part, data), <model>_summary,
 * <model>_history, <model>_bad_rows; in the caller's schema, owned by the caller, part of the
 * caller's transaction. stored.c reads them.
 */
#include "gpu_cnn.h"

#include "access/hash.h"

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
	m->replace = replace && model_looks_like(m);
	for (i = 0; i < (int)lengthof(suffix); i++) {
		if (!model_table_exists(m, suffix[i], &oid))
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

	model_parse_name(name, out);
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
	model_set_names(out);
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
	    "extension_version text, format_version integer NOT NULL, agreed bytea NOT NULL, "
	    "effective json)" COMPAT_RANDOMLY,
	    m->summary);
	sql(SPI_OK_UTILITY,
	    "CREATE TABLE %s (epoch integer PRIMARY KEY, learning_rate float8, steps bigint, "
	    "rows bigint, loss float8, validation_loss float8, metric_name text, metric float8, "
	    "validation_metric float8, metrics json, seconds_train float8, seconds_merge float8, "
	    "seconds_evaluate float8, hosts integer, merges bigint, merge_bytes bigint, "
	    "distance float8, note text)",
	    m->history);
	sql(SPI_OK_UTILITY, "CREATE TABLE %s (\"set\" text, id text, reason text)" COMPAT_RANDOMLY,
	    m->bad_rows);
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
