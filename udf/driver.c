// SPDX-License-Identifier: MIT
/*
 * driver.c: the calls of one job, made on the coordinator through SPI on all segments: begin, feed,
 * agree, apply, put, end. Holds the watch connection whose end, however it comes, ends the job.
 * Statements of the extension run with a pinned search_path; the user's queries with the user's.
 */
#include "gpu_cnn.h"

#include "utils/timestamp.h"

#include <errno.h>

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

static void job_args(struct driver *driver, struct args *args)
{
	memset(args, 0, sizeof(*args));
	args_add(args, TEXTOID, driver->token, false);
}

static void call_args(struct driver *driver, struct args *args)
{
	job_args(driver, args);
	args_add(args, INT4ARRAYOID, PointerGetDatum(driver->speakers), !driver->speakers);
}

/* ---- begin ---- */

/* Microseconds since 1970 of the coordinator's clock. */
static int64 clock_us(void)
{
	return GetCurrentTimestamp() +
	       (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * (int64)SECS_PER_DAY * 1000000;
}

/* Columns of gpu_cnn_begin's rows. */
enum {
	BEGIN_SEGINDEX = 1,
	BEGIN_UUID,
	BEGIN_ADMITTED,
	BEGIN_MEMORY,
	BEGIN_RUNNING,
	BEGIN_ADDRESS,
	BEGIN_DEVICES,
	BEGIN_REASON,
	BEGIN_NOTICE
};

static bool same_uuid(uint64 a, uint64 b)
{
	bytea *x = DatumGetByteaPP(sql_bytes(a, BEGIN_UUID));
	bytea *y = DatumGetByteaPP(sql_bytes(b, BEGIN_UUID));

	return VARSIZE_ANY_EXHDR(x) == VARSIZE_ANY_EXHDR(y) &&
	       !memcmp(VARDATA_ANY(x), VARDATA_ANY(y), VARSIZE_ANY_EXHDR(x));
}

/* The lowest segindex of each daemon; the rows come ordered by segindex. */
static ArrayType *find_speakers(void)
{
	Datum *index = palloc(sizeof(Datum) * (size_t)(SPI_processed + 1));
	int n = 0;
	uint64 i, k;

	for (i = 0; i < SPI_processed; i++) {
		for (k = 0; k < i; k++)
			if (same_uuid(k, i))
				break;
		if (k == i)
			index[n++] = Int32GetDatum((int32)sql_int(i, BEGIN_SEGINDEX));
	}
	return construct_array(index, n, INT4OID, sizeof(int32), true, 'i');
}

static void end_all(struct driver *driver)
{
	struct args args;

	job_args(driver, &args);
	sql_args(SPI_OK_SELECT, &args, "SELECT * FROM %s.gpu_cnn_end($1)", driver->schema);
	SPI_freetuptable(SPI_tuptable);
}

/* One try. NULL: admitted everywhere; else why not, and then *some: admitted somewhere. */
static char *begin_all(struct driver *driver, enum ctl_job_kind kind, int64 start_us,
		       const char *spec, bool *some)
{
	struct args args;
	char *reason = NULL;
	uint64 i;

	job_args(driver, &args);
	args_add(&args, INT4OID, Int32GetDatum((int32)kind), false);
	args_add(&args, INT8OID, Int64GetDatum(start_us), false);
	args_add(&args, INT4OID, Int32GetDatum(COMPAT_SEGMENTS), false);
	args_text(&args, spec);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT * FROM %s.gpu_cnn_begin($1, $2, $3, $4, $5) ORDER BY segindex",
		 driver->schema);
	if (SPI_processed != (uint64)COMPAT_SEGMENTS)
		elog(ERROR, "%d segments, but " UINT64_FORMAT " answers to begin", COMPAT_SEGMENTS,
		     (uint64)SPI_processed);
	*some = false;
	for (i = 0; i < SPI_processed; i++) {
		if (sql_int(i, BEGIN_ADMITTED))
			*some = true;
		else if (!reason)
			reason = sql_text(i, BEGIN_REASON);
	}
	if (!reason) {
		driver->speakers = find_speakers();
		for (i = 0; i < SPI_processed; i++) {
			char *notice = sql_text(i, BEGIN_NOTICE);

			if (notice)
				daemon_notice_lines(notice);
		}
	}
	SPI_freetuptable(SPI_tuptable);
	return reason;
}

/* Waits .5 to 2 s on the latch before the next try. */
static void wait_turn(struct driver *driver, const char *reason, bool first)
{
	uint32 random;
	int64 until;

	if (first)
		ereport(NOTICE, (errmsg("waiting for cnnd: %s", reason)));
	if (!compat_random(&random, sizeof(random)))
		random = 0;
	until = wait_now() + 500 + random % 1500;
	while (wait_now() < until) {
		daemon_poll(driver->watch, "queue");
		wait_for(PGINVALID_SOCKET, 0, until, "queue");
	}
}

static void watch(struct driver *driver)
{
	struct ctl_msg m;

	daemon_message(&m, CTL_WATCH, &driver->job);
	daemon_call(driver->watch, &m, &m, CTL_OK, "watch");
}

void driver_begin(struct driver *driver, enum ctl_job_kind kind, const char *spec,
		  double queue_timeout)
{
	int64 start_us = clock_us(), give_up = wait_now() + (int64)(queue_timeout * 1000);
	bool first = true, some;
	char *reason;

	/* within the source of the other, say: it would wait for itself */
	if (kind == CTL_TRAIN && daemon_trains())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("gpu_cnn_train is running in this session already"),
				errhint("A training cannot run within another one; run it before, "
					"in a statement of its own.")));
	driver->watch = daemon_open();
	driver->watch->training = kind == CTL_TRAIN;
	driver->watch->job = driver->job;
	driver->watch->end_on_abort = true;
	while ((reason = begin_all(driver, kind, start_us, spec, &some))) {
		bool over = wait_now() >= give_up;

		/* an end to a daemon that is busy gives one's turn up */
		if (some || over)
			end_all(driver);
		if (over)
			ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
					errmsg("cnnd did not admit the job within %g s: %s",
					       queue_timeout, reason),
					errhint("gpu_cnn_progress() shows what runs; "
						"queue_timeout says how long to wait.")));
		wait_turn(driver, reason, first);
		first = false;
	}
	watch(driver);
}

/* ---- feed ---- */

static char *column_expression(const struct source *source, int attnum)
{
	return attnum ? psprintf("t.%s", quote_identifier(source_name(source, attnum))) : "NULL";
}

static void read_counts(struct fed *fed)
{
	bool null;
	ArrayType *array = DatumGetArrayTypeP(sql_get(0, 1, &null));
	int64 *v = (int64 *)ARR_DATA_PTR(array);

	fed->rows = v[0];
	fed->held = v[1];
	fed->bad = v[2];
	fed->bytes = v[3];
	fed->feeders = (int)v[4];
	if (fed->rows != fed->held + fed->bad)
		ereport(ERROR, (errcode(ERRCODE_PROTOCOL_VIOLATION),
				errmsg(INT64_FORMAT " rows were fed, but cnnd holds " INT64_FORMAT
						    " and left out " INT64_FORMAT,
				       fed->rows, fed->held, fed->bad)));
}

/*
 * The aggregate takes arguments of any type, so that a function of the same name and with the exact
 * types, made by whoever may create in the extension's schema, would be called instead of it, with
 * the job's secret.
 */
static void check_feed(struct driver *driver, SPIPlanPtr plan)
{
	Oid types[6] = {TEXTOID, INT4OID, ANYOID, ANYOID, ANYOID, ANYOID};
	List *name = list_make2(makeString(driver->schema_name), makeString("gpu_cnn_feed"));
	CachedPlanSource *source = (CachedPlanSource *)linitial(SPI_plan_get_plan_sources(plan));
	Query *query = (Query *)linitial(source->query_list);
	TargetEntry *entry = (TargetEntry *)linitial(query->targetList);

	if (!IsA(entry->expr, Aggref) ||
	    ((Aggref *)entry->expr)->aggfnoid != LookupFuncName(name, 6, types, false))
		ereport(ERROR,
			(errcode(ERRCODE_AMBIGUOUS_FUNCTION),
			 errmsg("schema %s holds another function gpu_cnn_feed, which would be "
				"called instead",
				driver->schema),
			 errhint("Drop it, and let nobody create functions in that schema.")));
}

void driver_feed(struct driver *driver, enum row_set set, const struct source *source,
		 const struct columns *columns, struct fed *fed)
{
	Oid types[2] = {TEXTOID, INT4OID};
	Datum values[2];
	char *id = columns->id	    ? column_expression(source, columns->id)
		   : source->row_id ? pstrdup(source->row_id)
				    : "NULL";
	char *text;
	int nest, rc;
	SPIPlanPtr plan;

	values[0] = driver->token;
	values[1] = Int32GetDatum((int32)set);
	text = psprintf("SELECT %s.gpu_cnn_feed($1, $2, %s, %s, %s, %s) FROM %s AS t",
			driver->schema, id, column_expression(source, columns->x),
			column_expression(source, columns->y),
			column_expression(source, columns->weight), source->from);
	driver_caller_path(driver, &nest);
	compat_favour_parallel();
	compat_watch_client(nest);
	plan = SPI_prepare_cursor(text, 2, types, CURSOR_OPT_PARALLEL_OK);
	if (!plan)
		elog(ERROR, "cannot prepare \"%s\": %s", text, SPI_result_code_string(SPI_result));
	check_feed(driver, plan);
	rc = SPI_execute_snapshot(plan, values, NULL, driver->snapshot, InvalidSnapshot, true,
				  false, 0);
	if (rc != SPI_OK_SELECT)
		elog(ERROR, "unexpected result %s of the feed", SPI_result_code_string(rc));
	read_counts(fed);
	SPI_freetuptable(SPI_tuptable);
	SPI_freeplan(plan);
	AtEOXact_GUC(true, nest);
}

/* ---- bad rows ---- */

char *driver_bad_reasons(struct driver *driver, int64 *n)
{
	struct args args;
	char *reasons;

	call_args(driver, &args);
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

/* ---- agree ---- */

/* No row is left: the table of bad rows goes with the transaction, so the error says the reasons.
 */
static void raise_no_rows(struct driver *driver, const struct err *err)
{
	int64 n;
	char *reasons = driver_bad_reasons(driver, &n);

	if (n)
		ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("%s", cstring_of(str_of(err->message))), errdetail("%s", reasons)));
	daemon_raise(err);
}

static int decode_and_merge(bytea *const *blob, size_t n, struct agree_block *part,
			    struct agree_block *out, struct err *err)
{
	size_t i, k;
	int rc = 0;

	for (i = 0; i < n && !rc; i++)
		rc = agree_decode(VARDATA_ANY(blob[i]), VARSIZE_ANY_EXHDR(blob[i]), &part[i], err);
	if (!rc)
		rc = agree_merge(part, n, out, err);
	for (k = 0; k < n; k++)
		agree_free(&part[k]);
	return rc;
}

Datum agreed_bytes(const struct agree_block *block)
{
	uint8 *blob = NULL;
	bytea *out = NULL;
	long bytes = agree_encode(block, &blob);

	if (bytes < 0)
		elog(ERROR, "cannot encode the agreed block: %s", strerror((int)-bytes));
	PG_TRY();
	{
		out = bytes_of(blob, (size_t)bytes);
	}
	PG_CATCH();
	{
		free(blob);
		PG_RE_THROW();
	}
	PG_END_TRY();
	free(blob);
	return PointerGetDatum(out);
}

void driver_agree(struct driver *driver, struct agree_block **out, Datum *blob)
{
	struct args args;
	struct err err = {0};
	struct agree_block *part;
	bytea **parts;
	uint64 i, n;

	call_args(driver, &args);
	sql_args(SPI_OK_SELECT, &args, "SELECT * FROM %s.gpu_cnn_agree($1, $2) ORDER BY segindex",
		 driver->schema);
	n = SPI_processed;
	parts = palloc(sizeof(*parts) * (size_t)(n + 1));
	part = palloc0(sizeof(*part) * (size_t)(n + 1));
	for (i = 0; i < n; i++)
		parts[i] = (bytea *)DatumGetPointer(sql_bytes(i, 2));
	SPI_freetuptable(SPI_tuptable);
	/* malloc'd memory: nothing is raised in between; the watch connection owns the result */
	if (decode_and_merge(parts, (size_t)n, part, &driver->watch->block, &err)) {
		if (err.kind == ERR_DATA)
			raise_no_rows(driver, &err);
		daemon_raise(&err);
	}
	*blob = agreed_bytes(&driver->watch->block);
	*out = &driver->watch->block;
}

void driver_apply(struct driver *driver, Datum blob, struct ctl_apply_ok *out)
{
	struct args args;
	char *notice;

	call_args(driver, &args);
	args_add(&args, BYTEAOID, blob, false);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT * FROM %s.gpu_cnn_apply($1, $2, $3) ORDER BY segindex", driver->schema);
	memset(out, 0, sizeof(*out));
	out->parameters = (uint64)sql_int(0, 2);
	out->h = (uint32)sql_int(0, 3);
	out->w = (uint32)sql_int(0, 4);
	out->c = (uint32)sql_int(0, 5);
	out->outputs = (uint32)sql_int(0, 6);
	out->batch_size = (uint32)sql_int(0, 7);
	out->steps = (uint64)sql_int(0, 8);
	out->effective_batch = sql_double(0, 9);
	out->bytes = (uint64)sql_int(0, 10);
	notice = sql_text(0, 11);
	if (notice)
		daemon_notice_lines(notice);
	SPI_freetuptable(SPI_tuptable);
}

/* ---- parts ---- */

void driver_put(struct driver *driver, enum ctl_kind kind, int part, int parts, int64 total,
		Datum data)
{
	struct args args;

	call_args(driver, &args);
	args_add(&args, INT4OID, Int32GetDatum((int32)kind), false);
	args_add(&args, INT4OID, Int32GetDatum(part), false);
	args_add(&args, INT4OID, Int32GetDatum(parts), false);
	args_add(&args, INT8OID, Int64GetDatum(total), false);
	args_add(&args, BYTEAOID, data, false);
	sql_args(SPI_OK_SELECT, &args, "SELECT * FROM %s.gpu_cnn_put($1, $2, $3, $4, $5, $6, $7)",
		 driver->schema);
	SPI_freetuptable(SPI_tuptable);
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
	struct args args;
	Datum data;

	call_args(driver, &args);
	args_add(&args, INT4OID, Int32GetDatum((int32)kind), false);
	args_add(&args, INT4OID, Int32GetDatum(part), false);
	sql_args(SPI_OK_SELECT, &args, "SELECT * FROM %s.gpu_cnn_get($1, $2, $3, $4)",
		 driver->schema);
	if (!SPI_processed) { /* there is nothing of that kind */
		*parts = 0;
		*total = 0;
		return (Datum)0;
	}
	*parts = (int)sql_int(0, 3);
	*total = sql_int(0, 4);
	data = sql_bytes(0, 5);
	SPI_freetuptable(SPI_tuptable);
	return data;
}

/* ---- end ---- */

void driver_end(struct driver *driver)
{
	end_all(driver);
	daemon_close(driver->watch);
	driver->watch = NULL;
}

void driver_finish(struct driver *driver)
{
	UnregisterSnapshot(driver->snapshot);
	AtEOXact_GUC(true, driver->nest);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	MemoryContextSwitchTo(driver->outer);
}
