// SPDX-License-Identifier: MIT
/*
 * segment.c: the calls that every segment's backend makes to its host's cnnd: begin, agree, apply,
 * run, get, put, collect, bad_rows, end. Each is a set-returning function, so that Greenplum can
 * run it on all segments. After begin only the speakers (one segment for each daemon) talk and
 * return rows.
 */
#include "gpu_cnn.h"

#include <errno.h>

struct call {
	struct rows rows;
	struct job job;
};

/* This segment's place in the list of speakers, -1: it is none; *n: how many there are. */
static int rank_of(FunctionCallInfo fcinfo, int *n)
{
	ArrayType *a = PG_GETARG_ARRAYTYPE_P(1);
	int32 *v = (int32 *)ARR_DATA_PTR(a);
	int i;

	*n = ArrayGetNItems(ARR_NDIM(a), ARR_DIMS(a));
	if (ARR_HASNULL(a))
		elog(ERROR, "the list of speakers holds a NULL");
	for (i = 0; i < *n; i++)
		if (v[i] == COMPAT_SEGINDEX)
			return i;
	return -1;
}

/* Opens the result, reads the job; false: this segment has nothing to say. */
bool call_open(FunctionCallInfo fcinfo, struct rows *rows, struct job *job, int n_fixed)
{
	int i, n;

	rows_begin(fcinfo, rows);
	for (i = 0; i < PG_NARGS(); i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					errmsg("argument %d of an internal call must not be NULL",
					       i + 1)));
	job_parse(PG_GETARG_TEXT_PP(0), job);
	return n_fixed < 2 || rank_of(fcinfo, &n) >= 0;
}

SQL_FUNCTION(gpu_cnn_begin);
Datum gpu_cnn_begin(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	const struct ctl_begin_ok *r = &m.u.begin_ok;
	struct ctl_hello_ok hello;
	char *spec;
	Datum v[10];
	bool null[10] = {false};

	call_open(fcinfo, &c.rows, &c.job, 1);
	spec = text_to_cstring(PG_GETARG_TEXT_PP(4));
	spec = pg_server_to_any(spec, (int)strlen(spec), PG_UTF8);
	if (strlen(spec) > ctl_max_length(CTL_BEGIN) - 4096)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("architecture and arguments have %zu bytes, at most %u",
				       strlen(spec), ctl_max_length(CTL_BEGIN) - 4096)));
	d = daemon_open_info(&hello);
	daemon_message(&m, CTL_BEGIN, &c.job);
	m.u.begin.kind = (uint8)PG_GETARG_INT32(1);
	m.u.begin.start_us = (uint64)PG_GETARG_INT64(2);
	m.u.begin.segindex = COMPAT_SEGINDEX;
	m.u.begin.segments = (uint32)PG_GETARG_INT32(3);
	m.u.begin.role = str_of(compat_user_name(GetUserId()));
	m.u.begin.leader = str_of(text_to_cstring(PG_GETARG_TEXT_PP(5)));
	m.u.begin.spec = str_of(spec);
	daemon_call(d, &m, &m, CTL_BEGIN_OK, "begin");
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	v[1] = PointerGetDatum(bytes_of(r->uuid, CTL_ID));
	v[2] = BoolGetDatum(r->admitted != 0);
	v[3] = Int64GetDatum((int64)r->free_memory);
	v[4] = Int32GetDatum((int32)r->running);
	v[5] = PointerGetDatum(text_of(r->address));
	v[6] = PointerGetDatum(text_of(r->devices));
	v[7] = PointerGetDatum(text_of(r->reason));
	v[8] = PointerGetDatum(text_of(r->notice));
	v[9] = PointerGetDatum(text_of(hello.host));
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

SQL_FUNCTION(gpu_cnn_agree);
Datum gpu_cnn_agree(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	Datum v[2];
	bool null[2] = {false};

	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	d = daemon_open();
	daemon_message(&m, CTL_AGREE, &c.job);
	daemon_call(d, &m, &m, CTL_AGREE_PART, "agree");
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	v[1] = PointerGetDatum(bytes_of(m.u.blob.blob.p, m.u.blob.blob.n));
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

SQL_FUNCTION(gpu_cnn_apply);
Datum gpu_cnn_apply(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	const struct ctl_apply_ok *r = &m.u.apply_ok;
	bytea *blob;
	char *peers;
	int rank, hosts;
	Datum v[14];
	bool null[14] = {false};

	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	blob = PG_GETARG_BYTEA_PP(2);
	peers = text_to_cstring(PG_GETARG_TEXT_PP(4));
	peers = pg_server_to_any(peers, (int)strlen(peers), PG_UTF8);
	rank = rank_of(fcinfo, &hosts);
	d = daemon_open();
	daemon_message(&m, CTL_APPLY, &c.job);
	m.u.apply.blob = ctl_str(VARDATA_ANY(blob), VARSIZE_ANY_EXHDR(blob));
	m.u.apply.rank = *peers ? (uint32)rank : 0;
	m.u.apply.hosts = *peers ? (uint32)hosts : 1;
	m.u.apply.reshuffle = PG_GETARG_BOOL(3);
	m.u.apply.peers = str_of(peers);
	daemon_call(d, &m, &m, CTL_APPLY_OK, "apply");
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	v[1] = Int64GetDatum((int64)r->parameters);
	v[2] = Int32GetDatum((int32)r->h);
	v[3] = Int32GetDatum((int32)r->w);
	v[4] = Int32GetDatum((int32)r->c);
	v[5] = Int32GetDatum((int32)r->outputs);
	v[6] = Int32GetDatum((int32)r->batch_size);
	v[7] = Int64GetDatum((int64)r->steps);
	v[8] = Float8GetDatum(r->effective_batch);
	v[9] = Int64GetDatum((int64)r->bytes);
	v[10] = Int64GetDatum((int64)r->rows);
	v[11] = Int64GetDatum((int64)r->rows_moved);
	v[12] = Float8GetDatum(r->seconds_exchange);
	v[13] = PointerGetDatum(text_of(r->notice));
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

/* ---- run ---- */

enum {
	RUN_SEGINDEX,
	RUN_STATE,
	RUN_EPOCH,
	RUN_FLAGS,
	RUN_STEPS,
	RUN_ROWS,
	RUN_LOSS,
	RUN_VALIDATION,
	RUN_LR,
	RUN_LR_FACTOR,
	RUN_TRAIN,
	RUN_MERGE,
	RUN_EVALUATE,
	RUN_HOSTS,
	RUN_MERGE_AUTO,
	RUN_MERGES,
	RUN_MERGE_BYTES,
	RUN_MERGE_NUMBER,
	RUN_MERGE_CHECKSUM,
	RUN_DISTANCE,
	RUN_NAMES,
	RUN_METRIC,
	RUN_METRIC_VALIDATION,
	RUN_NOTE,
	RUN_COLUMNS
};

static void run_metrics(const struct ctl_run_row *r, Datum *v)
{
	Datum name[CTL_METRICS], train[CTL_METRICS], validation[CTL_METRICS];
	int n = (int)Min(r->metrics, CTL_METRICS), i;

	for (i = 0; i < n; i++) {
		name[i] = PointerGetDatum(text_of(ctl_str(
			r->metric[i].name, strnlen(r->metric[i].name, sizeof(r->metric[i].name)))));
		train[i] = Float8GetDatum(r->metric[i].train);
		validation[i] = Float8GetDatum(r->metric[i].validation);
	}
	v[RUN_NAMES] = PointerGetDatum(construct_array(name, n, TEXTOID, -1, false, 'i'));
	v[RUN_METRIC] = PointerGetDatum(
		construct_array(train, n, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL, 'd'));
	v[RUN_METRIC_VALIDATION] = PointerGetDatum(
		construct_array(validation, n, FLOAT8OID, sizeof(float8), FLOAT8PASSBYVAL, 'd'));
}

static void run_row(const struct ctl_run_row *r, Datum *v)
{
	v[RUN_EPOCH] = Int32GetDatum((int32)r->epoch);
	v[RUN_FLAGS] = Int32GetDatum((int32)r->flags);
	v[RUN_STEPS] = Int64GetDatum((int64)r->steps);
	v[RUN_ROWS] = Int64GetDatum((int64)r->rows);
	v[RUN_LOSS] = Float8GetDatum(r->loss);
	v[RUN_VALIDATION] = Float8GetDatum(r->validation_loss);
	v[RUN_LR] = Float8GetDatum(r->lr);
	v[RUN_LR_FACTOR] = Float8GetDatum(r->lr_factor);
	v[RUN_TRAIN] = Float8GetDatum(r->seconds_train);
	v[RUN_MERGE] = Float8GetDatum(r->seconds_merge);
	v[RUN_EVALUATE] = Float8GetDatum(r->seconds_evaluate);
	v[RUN_HOSTS] = Int32GetDatum((int32)r->hosts);
	v[RUN_MERGE_AUTO] = Int32GetDatum((int32)r->merge_auto);
	v[RUN_MERGES] = Int64GetDatum((int64)r->merges);
	v[RUN_MERGE_BYTES] = Int64GetDatum((int64)r->merge_bytes);
	v[RUN_MERGE_NUMBER] = Int64GetDatum((int64)r->merge_number);
	v[RUN_MERGE_CHECKSUM] = Int64GetDatum((int64)r->merge_checksum);
	v[RUN_DISTANCE] = Float8GetDatum(r->distance);
	run_metrics(r, v);
	v[RUN_NOTE] = PointerGetDatum(text_of(r->note));
}

/* A lost daemon is a row here, for the coordinator to decide upon, and so is a daemon that has lost
 * the others; any other error is an error. */
SQL_FUNCTION(gpu_cnn_run);
Datum gpu_cnn_run(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	struct err err = {0};
	Datum v[RUN_COLUMNS] = {0};
	bool null[RUN_COLUMNS] = {false};
	int rc, i;

	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	d = daemon_open();
	daemon_message(&m, CTL_RUN, &c.job);
	m.u.run.first_epoch = (uint32)PG_GETARG_INT32(2);
	m.u.run.count = (uint32)PG_GETARG_INT32(3);
	m.u.run.lr_factor = PG_GETARG_FLOAT8(4);
	m.u.run.flags = (uint32)PG_GETARG_INT32(5);
	m.u.run.merge_every = (uint32)PG_GETARG_INT32(6);
	daemon_send(d, &m, "run");
	rc = daemon_wait(d, &m, NULL, NULL, "run", &err);
	if (rc && err.kind != ERR_LOST)
		daemon_raise(&err);
	if (!rc && m.type != CTL_RUN_ROW)
		elog(ERROR, "cnnd answered run with %s", ctl_type_name((unsigned int)m.type));
	v[RUN_SEGINDEX] = Int32GetDatum(COMPAT_SEGINDEX);
	v[RUN_STATE] = CStringGetTextDatum(!rc ? "done" : rc == -EREMOTEIO ? "out" : "lost");
	if (rc) {
		for (i = RUN_EPOCH; i < RUN_COLUMNS; i++)
			null[i] = true;
		null[RUN_NOTE] = false;
		v[RUN_NOTE] = PointerGetDatum(text_of(str_of(err.message)));
	} else {
		run_row(&m.u.run_row, v);
	}
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

/* ---- parts ---- */

SQL_FUNCTION(gpu_cnn_get);
Datum gpu_cnn_get(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	const struct ctl_part *r = &m.u.part;
	struct err err = {0};
	Datum v[5];
	bool null[5] = {false};
	int rc;

	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	d = daemon_open();
	daemon_message(&m, CTL_GET, &c.job);
	m.u.get.kind = (uint32)PG_GETARG_INT32(2);
	m.u.get.part = (uint32)PG_GETARG_INT32(3);
	daemon_send(d, &m, "get");
	rc = daemon_wait(d, &m, NULL, NULL, "get", &err);
	/* an optimizer without state (plain sgd): no row */
	if (rc && err.kind == ERR_PARAM && PG_GETARG_INT32(2) == CTL_OPTIMIZER) {
		daemon_close(d);
		return (Datum)0;
	}
	if (rc)
		daemon_raise(&err);
	if (m.type != CTL_PART)
		elog(ERROR, "cnnd answered get with %s", ctl_type_name((unsigned int)m.type));
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	v[1] = Int32GetDatum((int32)r->part);
	v[2] = Int32GetDatum((int32)r->parts);
	v[3] = Int64GetDatum((int64)r->total);
	v[4] = PointerGetDatum(bytes_of(r->data.p, r->data.n));
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

SQL_FUNCTION(gpu_cnn_put);
Datum gpu_cnn_put(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	bytea *data;
	Datum v[1];
	bool null[1] = {false};

	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	data = PG_GETARG_BYTEA_PP(6);
	if (VARSIZE_ANY_EXHDR(data) > CTL_PART_MAX)
		elog(ERROR, "a part of %u bytes, at most %u", (unsigned int)VARSIZE_ANY_EXHDR(data),
		     CTL_PART_MAX);
	d = daemon_open();
	daemon_message(&m, CTL_PUT, &c.job);
	m.u.part.kind = (uint32)PG_GETARG_INT32(2);
	m.u.part.part = (uint32)PG_GETARG_INT32(3);
	m.u.part.parts = (uint32)PG_GETARG_INT32(4);
	m.u.part.total = (uint64)PG_GETARG_INT64(5);
	m.u.part.data = ctl_str(VARDATA_ANY(data), VARSIZE_ANY_EXHDR(data));
	daemon_call(d, &m, &m, CTL_OK, "put");
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}

/* ---- rows that come back ---- */

static void bad_rows_here(struct rows *rows, const struct job *job)
{
	static const char *const set_name[ROW_SETS] = {"train", "validation", "predict"};
	struct daemon *d = daemon_open();
	struct ctl_msg m;
	const struct ctl_bad_row *r = &m.u.bad_row;
	MemoryContext context = compat_context(CurrentMemoryContext, "gpu_cnn bad row");
	Datum v[3];
	bool null[3] = {false};

	daemon_message(&m, CTL_BAD_ROWS, job);
	daemon_send(d, &m, "bad rows");
	while (daemon_next(d, &m, CTL_BAD_ROW, "bad rows")) {
		MemoryContext old = MemoryContextSwitchTo(context);

		v[0] = CStringGetTextDatum(r->set < ROW_SETS ? set_name[r->set] : "?");
		v[1] = PointerGetDatum(text_of(r->id));
		v[2] = PointerGetDatum(text_of(r->reason));
		rows_add(rows, v, null);
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	daemon_close(d);
}

SQL_FUNCTION(gpu_cnn_bad_rows);
Datum gpu_cnn_bad_rows(PG_FUNCTION_ARGS)
{
	struct call c;
	bool speaks = call_open(fcinfo, &c.rows, &c.job, 2);

	rows_ask_nodes(fcinfo, &c.job, "gpu_cnn_bad_rows");
	if (speaks)
		bad_rows_here(&c.rows, &c.job);
	rows_take_nodes(&c.rows, &c.job, "gpu_cnn_bad_rows");
	return (Datum)0;
}

SQL_FUNCTION(gpu_cnn_end);
Datum gpu_cnn_end(PG_FUNCTION_ARGS)
{
	struct call c;
	struct daemon *d;
	struct ctl_msg m;
	Datum v[1];
	bool null[1] = {false};

	/* one segment of each daemon does it for all */
	if (!call_open(fcinfo, &c.rows, &c.job, 2))
		return (Datum)0;
	d = daemon_open();
	daemon_message(&m, CTL_END, &c.job);
	daemon_call(d, &m, &m, CTL_OK, "end");
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	rows_add(&c.rows, v, null);
	daemon_close(d);
	return (Datum)0;
}
