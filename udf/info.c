// SPDX-License-Identifier: MIT
/*
 * info.c: what cnnd tells of itself, its devices and its jobs: gpu_cnn_version, gpu_cnn_devices,
 * gpu_cnn_progress, gpu_cnn_stop; and gpu_cnn_history of a stored model.
 */
#include "gpu_cnn.h"

#include <math.h>

bool role_is_admin(Oid role)
{
	Oid admin = get_role_oid("gpu_cnn_admin", true);

	return superuser_arg(role) || (OidIsValid(admin) && has_privs_of_role(role, admin));
}

static Datum text_datum(struct ctl_str s, bool *null)
{
	*null = !s.n;
	return s.n ? PointerGetDatum(text_of(s)) : (Datum)0;
}

/* ---- devices ---- */

SQL_FUNCTION(gpu_cnn_devices);
Datum gpu_cnn_devices(PG_FUNCTION_ARGS)
{
	struct rows rows;
	struct daemon *d;
	struct ctl_hello_ok hello;
	struct ctl_msg m;
	const struct ctl_device *r = &m.u.device;

	rows_begin(fcinfo, &rows);
	d = daemon_open_info(&hello);
	memset(&m, 0, sizeof(m));
	m.type = CTL_DEVICES;
	daemon_send(d, &m, "devices");
	while (daemon_next(d, &m, CTL_DEVICE, "devices")) {
		Datum v[8];
		bool null[8] = {false};

		v[0] = PointerGetDatum(text_of(hello.host));
		v[1] = Int32GetDatum((int32)r->index);
		v[2] = PointerGetDatum(text_of(r->name));
		v[3] = PointerGetDatum(text_of(r->kind));
		v[4] = Int64GetDatum((int64)r->memory);
		v[5] = Int64GetDatum((int64)r->free_memory);
		v[6] = Int32GetDatum((int32)r->jobs);
		v[7] = text_datum(r->info, &null[7]);
		rows_add(&rows, v, null);
	}
	daemon_close(d);
	return (Datum)0;
}

/* ---- jobs ---- */

/* Only the server knows who is a member of which role; cnnd tells it of every job. */
static bool may_see(struct ctl_str role)
{
	Oid oid = role.n ? get_role_oid(cstring_of(role), true) : InvalidOid;

	return role_is_admin(GetUserId()) ||
	       (OidIsValid(oid) && has_privs_of_role(GetUserId(), oid));
}

/* An administrator sees every job, but not every job is his. */
static bool is_own(struct ctl_str role)
{
	Oid oid = role.n ? get_role_oid(cstring_of(role), true) : InvalidOid;

	return OidIsValid(oid) && is_member_of_role_nosuper(GetUserId(), oid);
}

#define JOB_COLUMNS 17

static void job_row(const struct ctl_job *r, bool visible, Datum *v, bool *null)
{
	static const char *const kinds[] = {"training", "prediction", "evaluation"};
	int i;

	memset(null, 0, sizeof(*null) * JOB_COLUMNS);
	v[0] = CStringGetTextDatum(job_hex(r->id, CTL_ID));
	v[1] = CStringGetTextDatum(r->kind < lengthof(kinds) ? kinds[r->kind] : "?");
	v[2] = text_datum(r->model, &null[2]);
	v[3] = text_datum(r->role, &null[3]);
	v[4] = text_datum(r->database, &null[4]);
	v[5] = PointerGetDatum(text_of(r->state));
	v[6] = Int32GetDatum((int32)r->epoch);
	v[7] = Int32GetDatum((int32)r->epochs);
	v[8] = Int64GetDatum((int64)r->step);
	v[9] = Int64GetDatum((int64)r->steps);
	v[10] = Int64GetDatum((int64)r->rows);
	v[11] = Float8GetDatum(r->loss);
	null[11] = isnan(r->loss);
	v[12] = Float8GetDatum(r->seconds);
	v[13] = text_datum(r->wait, &null[13]);
	v[14] = text_datum(r->device, &null[14]);
	v[15] = Int64GetDatum((int64)r->memory);
	v[16] = BoolGetDatum(visible && is_own(r->role));
	if (!visible) { /* somebody else's: that a device is busy, and how much memory it takes */
		for (i = 0; i <= 13; i++)
			null[i] = true;
		null[5] = false;
		v[5] = CStringGetTextDatum("busy");
	}
}

/* Jobs of this server's daemon; first columns: columns in front of theirs, v and null have room. */
static void jobs_here(struct rows *rows, struct daemon *d, int first, Datum *v, bool *null)
{
	struct ctl_msg m;

	memset(&m, 0, sizeof(m));
	m.type = CTL_STATUS;
	daemon_send(d, &m, "status");
	while (daemon_next(d, &m, CTL_JOB, "status")) {
		job_row(&m.u.entry, may_see(m.u.entry.role), v + first, null + first);
		rows_add(rows, v, null);
	}
	daemon_close(d);
}

/* One of several daemons, which need not be there: a WARNING. */
static struct daemon *try_daemon(struct ctl_hello_ok *hello)
{
	struct daemon *d;
	struct err err = {0};

	if (!daemon_probe(&d, hello, &err))
		return d;
	ereport(WARNING,
		(errmsg("segment %d: %s", COMPAT_SEGINDEX, cstring_of(str_of(err.message)))));
	return NULL;
}

/* The same with segment and daemon in front: on Greenplum every segment's. */
SQL_FUNCTION(gpu_cnn_jobs);
Datum gpu_cnn_jobs(PG_FUNCTION_ARGS)
{
	struct rows rows;
	struct ctl_hello_ok hello;
	struct daemon *d;
	Datum v[JOB_COLUMNS + 2];
	bool null[JOB_COLUMNS + 2] = {false};

	rows_begin(fcinfo, &rows);
	d = try_daemon(&hello);
	if (!d)
		return (Datum)0;
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	v[1] = PointerGetDatum(bytes_of(hello.uuid, CTL_ID));
	jobs_here(&rows, d, 2, v, null);
	return (Datum)0;
}

/* One row for each job, one of each daemon's for those that are somebody else's. */
static void jobs_everywhere(FunctionCallInfo fcinfo, struct rows *rows)
{
	Oid nsp = get_func_namespace(fcinfo->flinfo->fn_oid);
	Datum v[JOB_COLUMNS];
	bool null[JOB_COLUMNS];
	uint64 i;
	int k;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	sql(SPI_OK_SELECT,
	    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY coalesce(job, uuid::text) "
	    "ORDER BY segindex) AS n, min(segindex) OVER (PARTITION BY uuid) AS speaker FROM "
	    "%s.gpu_cnn_jobs()) j WHERE CASE WHEN job IS NULL THEN segindex = speaker ELSE n = 1 "
	    "END "
	    "ORDER BY job",
	    quote_identifier(get_namespace_name(nsp)));
	for (i = 0; i < SPI_processed; i++) {
		for (k = 0; k < JOB_COLUMNS; k++)
			v[k] = sql_get(i, k + 3, &null[k]);
		rows_add(rows, v, null);
	}
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
}

SQL_FUNCTION(gpu_cnn_progress);
Datum gpu_cnn_progress(PG_FUNCTION_ARGS)
{
	struct rows rows;
	Datum v[JOB_COLUMNS];
	bool null[JOB_COLUMNS];

	rows_begin(fcinfo, &rows);
	if (COMPAT_GREENPLUM && !compat_on_segment())
		jobs_everywhere(fcinfo, &rows);
	else
		jobs_here(&rows, daemon_open(), 0, v, null);
	return (Datum)0;
}

/* false: this server's daemon has no such job that the caller may see. */
static bool stop_here(struct daemon *d, const uint8 id[CTL_ID])
{
	struct ctl_msg m;
	char *role = NULL;

	memset(&m, 0, sizeof(m));
	m.type = CTL_STATUS;
	daemon_send(d, &m, "status");
	while (daemon_next(d, &m, CTL_JOB, "status"))
		if (!memcmp(m.u.entry.id, id, CTL_ID) && may_see(m.u.entry.role))
			role = cstring_of(m.u.entry.role);
	daemon_close(d);
	if (!role)
		return false;
	memset(&m, 0, sizeof(m));
	m.type = CTL_STOP;
	memcpy(m.job, id, CTL_ID);
	d = daemon_open_as(role);
	daemon_call(d, &m, &m, CTL_OK, "stop");
	daemon_close(d);
	return true;
}

/* On Greenplum on every segment. */
SQL_FUNCTION(gpu_cnn_stop_jobs);
Datum gpu_cnn_stop_jobs(PG_FUNCTION_ARGS)
{
	struct rows rows;
	struct ctl_hello_ok hello;
	struct daemon *d;
	uint8 id[CTL_ID];
	Datum v[2];
	bool null[2] = {false};

	rows_begin(fcinfo, &rows);
	job_parse_id(PG_GETARG_TEXT_PP(0), id);
	v[0] = Int32GetDatum(COMPAT_SEGINDEX);
	d = try_daemon(&hello);
	v[1] = BoolGetDatum(d && stop_here(d, id));
	rows_add(&rows, v, null);
	return (Datum)0;
}

static bool stop_everywhere(FunctionCallInfo fcinfo)
{
	Oid nsp = get_func_namespace(fcinfo->flinfo->fn_oid);
	struct args args = {0};
	bool found;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	args_add(&args, TEXTOID, PG_GETARG_DATUM(0), false);
	sql_args(SPI_OK_SELECT, &args,
		 "SELECT bool_or(done) FROM (SELECT * FROM "
		 "%s.gpu_cnn_stop_jobs($1)) s",
		 quote_identifier(get_namespace_name(nsp)));
	found = sql_int(0, 1) != 0;
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");
	return found;
}

SQL_FUNCTION(gpu_cnn_stop);
Datum gpu_cnn_stop(PG_FUNCTION_ARGS)
{
	uint8 id[CTL_ID];

	job_parse_id(PG_GETARG_TEXT_PP(0), id);
	if (COMPAT_GREENPLUM ? !stop_everywhere(fcinfo) : !stop_here(daemon_open(), id))
		ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("there is no such job of yours"),
			 errhint("gpu_cnn_progress() lists the running jobs.")));
	PG_RETURN_VOID();
}

/* ---- versions ---- */

static void add_version(struct rows *rows, const char *component, const char *version,
			const char *detail, bool fits)
{
	Datum v[4];
	bool null[4] = {false};

	v[0] = CStringGetTextDatum(component);
	null[1] = !version;
	v[1] = version ? CStringGetTextDatum(version) : (Datum)0;
	null[2] = !detail;
	v[2] = detail ? CStringGetTextDatum(detail) : (Datum)0;
	v[3] = BoolGetDatum(fits);
	rows_add(rows, v, null);
}

SQL_FUNCTION(gpu_cnn_version);
Datum gpu_cnn_version(PG_FUNCTION_ARGS)
{
	struct rows rows;
	struct daemon *d;
	struct ctl_hello_ok hello;
	struct err err = {0};

	rows_begin(fcinfo, &rows);
	add_version(&rows, "extension", CNN_VERSION, "server " PG_VERSION, true);
	if (daemon_probe(&d, &hello, &err)) {
		add_version(&rows, "daemon", NULL, cstring_of(str_of(err.message)), false);
		return (Datum)0;
	}
	add_version(&rows, "daemon", cstring_of(hello.build), cstring_of(hello.host), true);
	add_version(&rows, "protocol", psprintf("%u", hello.version),
		    psprintf("the extension speaks %d to %d", CTL_VERSION_MIN, CTL_VERSION),
		    hello.version >= CTL_VERSION_MIN && hello.version <= CTL_VERSION);
	add_version(&rows, "ring", psprintf("%d", RING_VERSION), cstring_of(hello.ring),
		    gpu_cnn_ring == RING_AUTO ||
			    !strncmp(hello.ring.p, gpu_cnn_ring == RING_MEMFD ? "memfd" : "device",
				     gpu_cnn_ring == RING_MEMFD ? 5 : 6));
	daemon_close(d);
	return (Datum)0;
}

/* ---- history ---- */

SQL_FUNCTION(gpu_cnn_history);
Datum gpu_cnn_history(PG_FUNCTION_ARGS)
{
	struct driver driver;
	struct model model;
	struct rows rows;
	uint64 i;

	rows_begin(fcinfo, &rows);
	driver_start(fcinfo, &driver);
	model_find(&driver, text_to_cstring(PG_GETARG_TEXT_PP(0)), &model);
	model_check_history(&model);
	sql(SPI_OK_SELECT,
	    "SELECT epoch, loss, validation_loss, metric_name, metric, validation_metric, metrics, "
	    "learning_rate, steps, rows, seconds_train, seconds_merge, seconds_evaluate, "
	    "hosts, merges, merge_bytes, distance, note FROM "
	    "%s ORDER BY 1",
	    model.history);
	for (i = 0; i < SPI_processed; i++)
		tuplestore_puttuple(rows.store, SPI_tuptable->vals[i]);
	driver_finish(&driver);
	return (Datum)0;
}
