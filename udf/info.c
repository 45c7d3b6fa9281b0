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

static void add_job(struct rows *rows, const struct ctl_job *r, bool visible)
{
	static const char *const kinds[] = {"training", "prediction", "evaluation"};
	Datum v[17];
	bool null[17] = {false};
	int i;

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
	rows_add(rows, v, null);
}

SQL_FUNCTION(gpu_cnn_progress);
Datum gpu_cnn_progress(PG_FUNCTION_ARGS)
{
	struct rows rows;
	struct daemon *d;
	struct ctl_msg m;

	rows_begin(fcinfo, &rows);
	d = daemon_open();
	memset(&m, 0, sizeof(m));
	m.type = CTL_STATUS;
	daemon_send(d, &m, "status");
	while (daemon_next(d, &m, CTL_JOB, "status"))
		add_job(&rows, &m.u.entry, may_see(m.u.entry.role));
	daemon_close(d);
	return (Datum)0;
}

SQL_FUNCTION(gpu_cnn_stop);
Datum gpu_cnn_stop(PG_FUNCTION_ARGS)
{
	struct daemon *d;
	struct ctl_msg m;
	uint8 id[CTL_ID];
	char *role = NULL;

	job_parse_id(PG_GETARG_TEXT_PP(0), id);
	d = daemon_open();
	memset(&m, 0, sizeof(m));
	m.type = CTL_STATUS;
	daemon_send(d, &m, "status");
	while (daemon_next(d, &m, CTL_JOB, "status"))
		if (!memcmp(m.u.entry.id, id, CTL_ID) && may_see(m.u.entry.role))
			role = cstring_of(m.u.entry.role);
	daemon_close(d);
	if (!role)
		ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("there is no such job of yours"),
			 errhint("gpu_cnn_progress() lists the running jobs.")));
	memset(&m, 0, sizeof(m));
	m.type = CTL_STOP;
	memcpy(m.job, id, CTL_ID);
	d = daemon_open_as(role);
	daemon_call(d, &m, &m, CTL_OK, "stop");
	daemon_close(d);
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
