// SPDX-License-Identifier: MIT
/*
 * architecture.c: the table of architectures (extension data, kept by pg_dump), descriptions by
 * cnnd, and models that come from or go to elsewhere as Keras JSON and a weight blob.
 */
#include "gpu_cnn.h"

#include "access/xact.h"

static Oid class_owner(Oid relid)
{
	HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "the extension's table gpu_cnn_architectures is gone");
	owner = ((Form_pg_class)GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

void architecture_describe(const char *architecture, const struct ctl_describe *shape,
			   struct daemon **d, struct ctl_msg *m)
{
	char *utf8 = pg_server_to_any(architecture, (int)strlen(architecture), PG_UTF8);

	*d = daemon_open();
	memset(m, 0, sizeof(*m));
	m->type = CTL_DESCRIBE;
	m->u.describe = *shape;
	m->u.describe.architecture = str_of(utf8);
	daemon_call(*d, m, m, CTL_DESCRIBE_OK, "describe");
}

char *architecture_find(struct driver *driver, const char *text, Datum *weights)
{
	const char *p = text + strspn(text, " \t\r\n");
	struct args args = {0};
	char *found;

	*weights = (Datum)0;
	if (*p == '{' || *p == '[')
		return pstrdup(text);
	args_text(&args, text);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT architecture, weights FROM %s.gpu_cnn_architectures WHERE name = $1",
		 driver->schema);
	if (!SPI_processed) /* a name that is built in, or an error that cnnd words */
		return pstrdup(text);
	found = sql_text(0, 1);
	*weights = sql_bytes_or_null(0, 2);
	SPI_freetuptable(SPI_tuptable);
	return found;
}

/* ---- gpu_cnn_summary ---- */

static uint32 count_argument(FunctionCallInfo fcinfo, int i, const char *name)
{
	int32 v;

	if (PG_ARGISNULL(i))
		return 0;
	v = PG_GETARG_INT32(i);
	if (v < 1)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("%s is %d, must be positive", name, v)));
	return (uint32)v;
}

SQL_FUNCTION(gpu_cnn_summary);
Datum gpu_cnn_summary(PG_FUNCTION_ARGS)
{
	struct driver driver;
	struct ctl_describe shape = {0};
	struct daemon *d;
	struct ctl_msg m;
	char *architecture;
	Datum weights;
	text *out;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	architecture = text_to_cstring(PG_GETARG_TEXT_PP(0));
	shape.h = count_argument(fcinfo, 1, "height");
	shape.w = count_argument(fcinfo, 2, "width");
	shape.c = count_argument(fcinfo, 3, "channels");
	shape.outputs = count_argument(fcinfo, 4, "outputs");
	driver_start(fcinfo, &driver);
	architecture = MemoryContextStrdup(driver.outer,
					   architecture_find(&driver, architecture, &weights));
	driver_finish(&driver);
	architecture_describe(architecture, &shape, &d, &m);
	out = text_of(m.u.describe_ok.summary);
	daemon_close(d);
	PG_RETURN_TEXT_P(out);
}

/* ---- gpu_cnn_load_architecture ---- */

void architecture_check_weights(const struct ctl_describe_ok *r, const bytea *weights)
{
	uint64 bytes;

	if (!weights)
		return;
	bytes = VARSIZE_ANY_EXHDR(weights);
	if (r->blob_bytes && r->blob_bytes != bytes)
		ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("weights of " UINT64_FORMAT " bytes do not fit the architecture, "
				"which has " UINT64_FORMAT,
				bytes, (uint64)r->blob_bytes),
			 errdetail("\n%s", cstring_of(r->summary)),
			 errhint("The blob is model.get_weights() concatenated, 4-byte floats.")));
}

/* The table belongs to the extension; its owner writes, on behalf of the role that calls. */
static void write_row(struct driver *driver, FunctionCallInfo fcinfo, const char *name)
{
	Oid user, table;
	int context;
	struct args args = {0};
	const char *role = compat_user_name(GetUserId());
	bool admin = role_is_admin(GetUserId());

	args_text(&args, name);
	args_text(&args, text_to_cstring(PG_GETARG_TEXT_PP(1)));
	args_add(&args, BYTEAOID, PG_ARGISNULL(2) ? (Datum)0 : PG_GETARG_DATUM(2), PG_ARGISNULL(2));
	args_text(&args, PG_ARGISNULL(3) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(3)));
	args_text(&args, role);
	args_add(&args, BOOLOID, BoolGetDatum(admin), false);
	GetUserIdAndSecContext(&user, &context);
	table = get_relname_relid("gpu_cnn_architectures",
				  get_func_namespace(fcinfo->flinfo->fn_oid));
	SetUserIdAndSecContext(class_owner(table), context | SECURITY_LOCAL_USERID_CHANGE);
	sql_args(SPI_OK_DELETE, &args,
		 "DELETE FROM %s.gpu_cnn_architectures WHERE name = $1 AND (owner = $5 OR $6)",
		 driver->schema);
	sql_args(SPI_OK_SELECT, &args, "SELECT owner FROM %s.gpu_cnn_architectures WHERE name = $1",
		 driver->schema);
	if (SPI_processed)
		ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				errmsg("architecture \"%s\" belongs to role \"%s\"", name,
				       sql_text(0, 1))));
	sql_args(SPI_OK_INSERT, &args,
		 "INSERT INTO %s.gpu_cnn_architectures (name, architecture, weights, description, "
		 "owner) VALUES ($1, $2, $3, $4, $5)",
		 driver->schema);
	SetUserIdAndSecContext(user, context);
}

SQL_FUNCTION(gpu_cnn_load_architecture);
Datum gpu_cnn_load_architecture(PG_FUNCTION_ARGS)
{
	struct driver driver;
	struct ctl_describe shape = {0};
	struct daemon *d;
	struct ctl_msg m;
	char *name;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("name and architecture must be given")));
	name = text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (!*name || *name == '{' || *name == '[')
		ereport(ERROR, (errcode(ERRCODE_INVALID_NAME),
				errmsg("\"%s\" cannot be the name of an architecture", name)));
	architecture_describe(text_to_cstring(PG_GETARG_TEXT_PP(1)), &shape, &d, &m);
	architecture_check_weights(&m.u.describe_ok,
				   PG_ARGISNULL(2) ? NULL : PG_GETARG_BYTEA_PP(2));
	daemon_close(d);
	driver_start(fcinfo, &driver);
	write_row(&driver, fcinfo, name);
	driver_finish(&driver);
	PG_RETURN_TEXT_P(cstring_to_text(name));
}

/* ---- gpu_cnn_export ---- */

static bytea *export_weights(const struct model *model)
{
	int64 total, at = 0;
	int parts = model_parts(model, "weights", &total), part;
	bytea *out;

	if (!parts)
		ereport(ERROR, (errcode(ERRCODE_DATA_CORRUPTED),
				errmsg("model \"%s\" holds no weights", model->name)));
	if (total > (int64)(MaxAllocSize - VARHDRSZ))
		ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg("the weights have " INT64_FORMAT " bytes, more than a value holds",
				total),
			 errhint("Read them in parts from %s.", model->weights)));
	out = palloc(VARHDRSZ + (size_t)total);
	for (part = 0; part < parts; part++) {
		bytea *b = (bytea *)DatumGetPointer(model_part(model, "weights", part, parts));
		int64 n = (int64)VARSIZE_ANY_EXHDR(b);

		if (n > total - at)
			elog(ERROR, "the weights changed while they were read");
		memcpy(VARDATA(out) + at, VARDATA_ANY(b), (size_t)n);
		at += n;
		pfree(b);
	}
	SET_VARSIZE(out, VARHDRSZ + at);
	return out;
}

SQL_FUNCTION(gpu_cnn_export);
Datum gpu_cnn_export(PG_FUNCTION_ARGS)
{
	struct driver driver;
	struct model model;
	struct model_summary summary;
	char *format, *utf8;
	bytea *out, *copy;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	format = text_to_cstring(PG_GETARG_TEXT_PP(1));
	driver_start(fcinfo, &driver);
	model_find(&driver, text_to_cstring(PG_GETARG_TEXT_PP(0)), &model);
	model_read(&model, &summary);
	if (!strcmp(format, "keras_json")) {
		utf8 = pg_server_to_any(summary.architecture, (int)strlen(summary.architecture),
					PG_UTF8);
		out = bytes_of(utf8, strlen(utf8));
	} else if (!strcmp(format, "weights")) {
		out = export_weights(&model);
	} else {
		ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("format is '%s', must be 'keras_json' or 'weights'", format)));
	}
	copy = MemoryContextAlloc(driver.outer, VARSIZE_ANY(out));
	memcpy(copy, out, VARSIZE_ANY(out));
	driver_finish(&driver);
	PG_RETURN_BYTEA_P(copy);
}
