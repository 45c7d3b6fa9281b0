// SPDX-License-Identifier: MIT
/*
 * args.c: the arguments of gpu_cnn_train by name, read from the catalog, and the spec made of them:
 * one JSON object that cnnd checks (names, types, ranges), so that a rule stands in one place.
 */
#include "gpu_cnn.h"

#include "catalog/pg_proc.h"
#include "utils/json.h"

#include <math.h>

/* Arguments that cnnd does not need to know. */
static const char *const coordinator_only[] = {
	"source",    "dependent",  "independent",   "validation_source", "id_column",
	"on_exists", "warm_start", "sample_weight", "queue_timeout",	 NULL};

void arguments_read(FunctionCallInfo fcinfo, struct arguments *out)
{
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	char *mode;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	get_func_arg_info(tuple, &out->type, &out->name, &mode);
	ReleaseSysCache(tuple);
	out->fcinfo = fcinfo;
	out->n = PG_NARGS(); /* input arguments stand first */
	if (!out->name)
		elog(ERROR, "the arguments of function %u have no names", fcinfo->flinfo->fn_oid);
}

static int find(const struct arguments *args, const char *name)
{
	int i;

	for (i = 0; i < args->n; i++)
		if (!strcmp(args->name[i], name))
			return i;
	elog(ERROR, "no argument is called \"%s\"", name);
	return -1;
}

char *arguments_text(const struct arguments *args, const char *name)
{
	FunctionCallInfo fcinfo = args->fcinfo;
	int i = find(args, name);

	return PG_ARGISNULL(i) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(i));
}

char *arguments_wanted(const struct arguments *args, const char *name)
{
	char *s = arguments_text(args, name);

	if (!s || !*s)
		ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				errmsg("%s must be given", name)));
	return s;
}

static double number(const struct arguments *args, int i)
{
	FunctionCallInfo fcinfo = args->fcinfo;

	switch (args->type[i]) {
	case INT4OID:
		return PG_GETARG_INT32(i);
	case INT8OID:
		return (double)PG_GETARG_INT64(i);
	case FLOAT8OID:
		return PG_GETARG_FLOAT8(i);
	default:
		elog(ERROR, "argument \"%s\" is no number", args->name[i]);
		return 0;
	}
}

bool arguments_number(const struct arguments *args, const char *name, double *out)
{
	FunctionCallInfo fcinfo = args->fcinfo;
	int i = find(args, name);

	if (PG_ARGISNULL(i))
		return false;
	*out = number(args, i);
	return true;
}

bool arguments_flag(const struct arguments *args, const char *name, bool otherwise)
{
	FunctionCallInfo fcinfo = args->fcinfo;
	int i = find(args, name);

	return PG_ARGISNULL(i) ? otherwise : PG_GETARG_BOOL(i);
}

void json_text(StringInfo out, const char *s)
{
	escape_json(out, s);
}

void json_number(StringInfo out, double v)
{
	char text[COMPAT_FLOAT8];

	if (isfinite(v))
		appendStringInfoString(out, compat_float8(v, text));
	else
		appendStringInfoString(out, "null");
}

/* from_logits is true, false or 'auto', and so a text in SQL. */
static bool is_boolean_text(const char *name, const char *value)
{
	return !strcmp(name, "from_logits") && (!strcmp(value, "true") || !strcmp(value, "false"));
}

static void add_value(const struct arguments *args, int i, StringInfo out)
{
	FunctionCallInfo fcinfo = args->fcinfo;
	double v;
	char *s;

	switch (args->type[i]) {
	case BOOLOID:
		appendStringInfoString(out, PG_GETARG_BOOL(i) ? "true" : "false");
		break;
	case INT4OID:
		appendStringInfo(out, "%d", PG_GETARG_INT32(i));
		break;
	case INT8OID:
		appendStringInfo(out, INT64_FORMAT, PG_GETARG_INT64(i));
		break;
	case FLOAT8OID:
		v = PG_GETARG_FLOAT8(i);
		if (!isfinite(v))
			ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("%s must be a finite number", args->name[i])));
		json_number(out, v);
		break;
	default:
		s = text_to_cstring(PG_GETARG_TEXT_PP(i));
		if (is_boolean_text(args->name[i], s))
			appendStringInfoString(out, s);
		else
			json_text(out, s);
	}
}

char *arguments_spec(const struct arguments *args, const char *architecture)
{
	FunctionCallInfo fcinfo = args->fcinfo;
	StringInfoData out;
	int i, k;

	initStringInfo(&out);
	appendStringInfoChar(&out, '{');
	if (architecture) {
		appendStringInfoString(&out, "\"architecture\":");
		json_text(&out, architecture);
	}
	for (i = 0; i < args->n; i++) {
		for (k = 0; coordinator_only[k]; k++)
			if (!strcmp(args->name[i], coordinator_only[k]))
				break;
		if (coordinator_only[k] || PG_ARGISNULL(i) ||
		    !strcmp(args->name[i], "architecture"))
			continue;
		if (out.len > 1)
			appendStringInfoChar(&out, ',');
		json_text(&out, args->name[i]);
		appendStringInfoChar(&out, ':');
		add_value(args, i, &out);
	}
	appendStringInfoChar(&out, '}');
	return out.data;
}
