// SPDX-License-Identifier: MIT
/*
 * driver.c: a job that is driven from here: its start, the parts that go in and out, its bad rows,
 * its end; begin.c, hosts.c, drive_feed.c, agreement.c and iteration.c have the calls in between.
 * Statements of the extension run with a pinned search_path; the user's queries with the user's.
 */
#include "nodes.h"

#define PINNED_PATH "pg_catalog, pg_temp"

void driver_start(FunctionCallInfo fcinfo, struct driver *driver)
{
	char token[JOB_TOKEN + 1];
	Oid nsp = get_func_namespace(fcinfo->flinfo->fn_oid);

	if (compat_on_segment())
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("%s cannot run on a segment",
				       get_func_name(fcinfo->flinfo->fn_oid)),
				errhint("CREATE TABLE AS and INSERT run it there; call it by "
					"SELECT alone.")));
	memset(driver, 0, sizeof(*driver));
	driver->outer = CurrentMemoryContext;
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	driver->context = CurrentMemoryContext; /* SPI's, until driver_finish */
	driver->schema_name = get_namespace_name(nsp);
	driver->schema = pstrdup(quote_identifier(driver->schema_name));
	driver->caller_path = pstrdup(namespace_search_path);
	driver->nest = NewGUCNestLevel();
	compat_set_config("search_path", PINNED_PATH);
	job_new(&driver->job);
	job_token(&driver->job, token);
	driver->token = CStringGetTextDatum(token);
	driver->snapshot = RegisterSnapshot(GetActiveSnapshot());
}

void driver_caller_path(struct driver *driver, int *nest)
{
	*nest = NewGUCNestLevel();
	compat_set_config("search_path", driver->caller_path);
}

/* This server's own number among the nodes; -1: it is none of them. */
void driver_nodes(struct driver *driver)
{
	struct node_login *login;
	int n = node_logins(driver, &login);

	if (!n)
		return;
	if (COMPAT_GREENPLUM)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("gpu_cnn_nodes is not empty"),
				errhint("On Greenplum a job runs on all segments of the cluster; "
					"nodes are for PostgreSQL.")));
	driver->nodes = nodes_open(driver, login, n);
	compat_set_config("gpu_cnn.segindex", psprintf("%d", driver->nodes->here));
}

void driver_args(struct driver *driver, struct args *args)
{
	memset(args, 0, sizeof(*args));
	args_add(args, TEXTOID, driver->token, false);
	args_add(args, INT4ARRAYOID, PointerGetDatum(driver->speakers), !driver->speakers);
}

/* ---- bad rows ---- */

char *driver_bad_reasons(struct driver *driver, int64 *n)
{
	struct args args;
	char *reasons;

	driver_args(driver, &args);
	sql_args(
		SPI_OK_SELECT, &args,
		"WITH b AS (SELECT * FROM %s.gpu_cnn_bad_rows($1, $2)) SELECT (SELECT count(*) "
		"FROM "
		"b), (SELECT string_agg(r, '; ') FROM (SELECT coalesce('row ' || nullif(min(id), "
		"'') || ': ', '') || reason || CASE WHEN count(*) > 1 THEN ' (' || count(*) || ' "
		"rows)' ELSE '' END FROM b GROUP BY reason ORDER BY count(*) DESC, reason LIMIT 5) "
		"AS s(r))",
		driver->schema);
	*n = sql_int(0, 1);
	reasons = sql_text(0, 2);
	SPI_freetuptable(SPI_tuptable);
	return reasons;
}

void driver_bad_rows(struct driver *driver, const char *what)
{
	int64 n;
	char *reasons = driver_bad_reasons(driver, &n);

	if (n)
		ereport(NOTICE, (errmsg(INT64_FORMAT " rows were left out of %s", n, what),
				 errdetail("%s", reasons)));
}

/* ---- parts ---- */

void driver_put(struct driver *driver, enum ctl_kind kind, int part, int parts, int64 total,
		Datum data)
{
	struct args args;
	struct answer answer;

	driver_args(driver, &args);
	args_add(&args, INT4OID, Int32GetDatum((int32)kind), false);
	args_add(&args, INT4OID, Int32GetDatum(part), false);
	args_add(&args, INT4OID, Int32GetDatum(parts), false);
	args_add(&args, INT8OID, Int64GetDatum(total), false);
	args_add(&args, BYTEAOID, data, false);
	driver_call(driver, "gpu_cnn_put", &args, &answer);
	answer_free(&answer);
}

void driver_put_bytes(struct driver *driver, enum ctl_kind kind, bytea *data)
{
	int64 total = (int64)VARSIZE_ANY_EXHDR(data), at;
	int parts = (int)((total + CTL_PART_MAX - 1) / CTL_PART_MAX), part = 0;

	if (!parts)
		parts = 1;
	for (at = 0; part < parts; at += CTL_PART_MAX, part++) {
		size_t n = (size_t)Min(total - at, (int64)CTL_PART_MAX);
		bytea *piece = bytes_of(VARDATA_ANY(data) + at, n);

		driver_put(driver, kind, part, parts, total, PointerGetDatum(piece));
		pfree(piece);
	}
}

Datum driver_get(struct driver *driver, enum ctl_kind kind, int part, int *parts, int64 *total)
{
	int32 speaker = ((int32 *)ARR_DATA_PTR(driver->speakers))[0];
	Datum first = Int32GetDatum(speaker), data = (Datum)0;
	struct args args = {0};
	struct answer answer;

	args_add(&args, TEXTOID, driver->token, false);
	args_add(&args, INT4ARRAYOID,
		 PointerGetDatum(construct_array(&first, 1, INT4OID, sizeof(int32), true, 'i')),
		 false);
	args_add(&args, INT4OID, Int32GetDatum((int32)kind), false);
	args_add(&args, INT4OID, Int32GetDatum(part), false);
	driver_call_one(driver, speaker, "gpu_cnn_get", &args, &answer);
	*parts = 0;
	*total = 0;
	if (answer.n) { /* else there is nothing of that kind */
		*parts = (int)answer_int(&answer, 0, 3);
		*total = answer_int(&answer, 0, 4);
		data = PointerGetDatum(answer_bytes(&answer, 0, 5));
	}
	answer_free(&answer);
	return data;
}

/* ---- end ---- */

void driver_end(struct driver *driver)
{
	driver_end_job(driver, false);
	daemon_close(driver->watch);
	driver->watch = NULL;
	if (driver->nodes)
		nodes_close(driver->nodes);
	driver->nodes = NULL;
}

void driver_finish(struct driver *driver)
{
	UnregisterSnapshot(driver->snapshot);
	AtEOXact_GUC(true, driver->nest);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	MemoryContextSwitchTo(driver->outer);
}
