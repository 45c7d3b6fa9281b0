// SPDX-License-Identifier: MIT
/*
 * feed.c: the aggregate gpu_cnn_feed(job, set, id, x, y, weight). Its transition function runs in
 * every process that scans a part of the user's rows (segment, parallel worker); each has a
 * connection and a ring of its own. Partial states carry counts only: a process ends its feed
 * before its state leaves it.
 */
#include "gpu_cnn.h"

#include <errno.h>

#define STALL_MS \
	60000 /* a full ring that nobody empties, although the daemon gives signs of life */

struct feed {
	struct encoder encoder;
	struct daemon *daemon; /* NULL: not feeding (any more) */
	MemoryContext row;
	struct column id, x, y, weight;
	uint64 max_value;
	int64 rows, bytes;
	uint64 left;  /* bytes of the value not yet written */
	uint8 *place; /* of the reserved record */
	uint32 room, used;
	uint16 flags;
	struct fed done; /* of feeds that are over */
};

/* ---- the ring as an encoder ---- */

static void ring_failed(struct feed *f, int rc)
{
	struct ctl_msg m;
	struct err err = {0};

	/* the reason comes on the control connection */
	if (rc == -EPIPE) {
		f->daemon->heard = wait_now();
		daemon_wait(f->daemon, &m, NULL, NULL, "feed", &err);
	}
	if (err.kind == ERR_NONE)
		err_set(&err, ERR_PROTOCOL, rc, "the ring to cnnd broke: %s", strerror(-rc));
	daemon_raise(&err);
}

/* Waits until the ring has room for n bytes of payload. */
static void wait_room(struct feed *f, uint32 n, int64 since)
{
	struct daemon *d = f->daemon;
	int64 now = wait_now();
	int rc, events;

	if (now - d->looked >= WAIT_SLICE_MS)
		daemon_poll(d, "feed");
	if (now - Max(since, d->heard) >= CTL_SILENCE_MS || now - since >= STALL_MS) {
		struct err err = {0};

		err_set(&err, ERR_LOST, -ETIMEDOUT, "cnnd has taken no rows for %d s (ring full)",
			(int)((now - since) / 1000));
		err_hint(&err, "cnnd may have been stopped; its log says why.");
		daemon_raise(&err);
	}
	rc = ring_wait_prepare(d->ring, n);
	if (rc)
		return;
	events = wait_for(ring_wait_fd(d->ring), WL_SOCKET_READABLE, now + WAIT_SLICE_MS,
			  "ring full");
	ring_wait_finish(d->ring, (events & WL_SOCKET_READABLE) != 0);
}

static void reserve(struct feed *f)
{
	uint32 max = ring_max_record(f->daemon->ring);
	int64 since = 0;
	void *place;
	int rc;

	f->room = (uint32)Min(f->left, (uint64)max);
	for (;;) {
		rc = ring_reserve(f->daemon->ring, f->room, &place);
		if (!rc)
			break;
		if (rc != -EAGAIN)
			ring_failed(f, rc);
		if (!since)
			since = wait_now();
		wait_room(f, f->room, since);
	}
	f->place = place;
	f->used = 0;
}

static void commit(struct feed *f)
{
	ring_commit(f->daemon->ring, ROW_RECORD, f->flags | (f->left ? 0 : RING_LAST));
	f->flags = 0;
	f->place = NULL;
}

static void feed_begin(struct encoder *e, uint64 total)
{
	struct feed *f = (struct feed *)e;

	if (total > f->max_value)
		ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				errmsg("a row of " UINT64_FORMAT
				       " bytes, but cnnd takes at most " UINT64_FORMAT,
				       total, f->max_value),
				errhint("Leave the row out, or raise max_value in cnnd.conf.")));
	f->left = total;
	f->flags = RING_FIRST;
	f->place = NULL;
}

static void feed_write(struct encoder *e, const void *data, size_t n)
{
	struct feed *f = (struct feed *)e;
	const char *p = data;

	while (n) {
		uint32 k;

		if (!f->place)
			reserve(f);
		k = (uint32)Min(n, (size_t)(f->room - f->used));
		memcpy(f->place + f->used, p, k);
		f->used += k;
		f->left -= k;
		p += k;
		n -= k;
		if (f->used == f->room)
			commit(f);
	}
}

static void feed_end(struct encoder *e)
{
	struct feed *f = (struct feed *)e;

	if (f->left || f->place)
		elog(ERROR, "a row was not written whole");
}

/* ---- opening and closing ---- */

static Oid argument_type(FunctionCallInfo fcinfo, int i)
{
	Oid type = get_fn_expr_argtype(fcinfo->flinfo, i);

	if (!OidIsValid(type))
		elog(ERROR, "could not determine the type of argument %d", i);
	return type;
}

/* A bare NULL in the query: the column is not there. */
static bool given(Oid type)
{
	return type != UNKNOWNOID;
}

static void open_columns(FunctionCallInfo fcinfo, struct feed *f)
{
	Oid id = argument_type(fcinfo, 3), x = argument_type(fcinfo, 4);
	Oid y = argument_type(fcinfo, 5), weight = argument_type(fcinfo, 6);

	if (given(id))
		column_open_id(id, &f->id);
	column_open(x, true, "an image column", &f->x);
	if (given(y))
		column_open(y, false, "a label column", &f->y);
	if (!given(weight))
		return;
	if (!column_form(weight, false, &f->weight) || OidIsValid(f->weight.element) ||
	    f->weight.form == ROW_TEXT || f->weight.form == ROW_BOOL)
		ereport(ERROR,
			(errcode(ERRCODE_DATATYPE_MISMATCH),
			 errmsg("a weight of type %s cannot be used", format_type_be(weight)),
			 errhint("Sample weights are numbers.")));
}

static void attach(struct feed *f, const struct job *job, int set)
{
	struct daemon *d = f->daemon = daemon_open();
	struct ctl_msg m;
	struct err err = {0};
	int fds[CTL_MAX_FDS], n_fds = 0, rc, i;

	daemon_message(&m, CTL_FEED, job);
	m.u.feed.set = (uint8)set;
	m.u.feed.segindex = COMPAT_SEGINDEX;
	m.u.feed.x_type = (uint8)f->x.form;
	m.u.feed.x_array = OidIsValid(f->x.element);
	m.u.feed.y_type = (uint8)f->y.form;
	m.u.feed.y_array = OidIsValid(f->y.element);
	m.u.feed.has_y = OidIsValid(f->y.type);
	m.u.feed.has_weight = OidIsValid(f->weight.type);
	m.u.feed.has_id = OidIsValid(f->id.type);
	m.u.feed.ring = (uint8)gpu_cnn_ring;
	for (i = 0; i < RING_FDS; i++) {
		if (!compat_acquire_fd())
			ereport(ERROR, (errcode(ERRCODE_INSUFFICIENT_RESOURCES),
					errmsg("too many open files for a ring to cnnd"),
					errhint("Raise max_files_per_process.")));
		d->counted++;
	}
	daemon_send(d, &m, "feed");
	rc = daemon_wait(d, &m, fds, &n_fds, "feed", &err);
	/* nothing may be raised here before the descriptors have an owner */
	if (!rc && (m.type != CTL_FEED_OK || n_fds != RING_FDS)) {
		for (i = 0; i < n_fds; i++)
			close(fds[i]);
		rc = err_set(&err, ERR_PROTOCOL, -EPROTO,
			     "cnnd answered FEED with %s and %d descriptors",
			     ctl_type_name((unsigned int)m.type), n_fds);
	} else if (!rc) {
		rc = ring_attach(fds, RING_MAX_BYTES, &d->ring);
		if (rc)
			err_set(&err, ERR_PROTOCOL, rc, "cannot use cnnd's ring: %s",
				strerror(-rc));
	}
	if (rc)
		daemon_raise(&err);
	f->max_value = m.u.feed_ok.max_value;
	daemon_notice(m.u.feed_ok.notice);
	f->encoder.slice = Min(ring_max_record(d->ring), 1 << 20);
}

static struct feed *feed_open(FunctionCallInfo fcinfo, MemoryContext context)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	struct feed *f = palloc0(sizeof(*f));
	struct job job;
	int set;

	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		elog(ERROR, "job and set of a feed must not be NULL");
	job_parse(PG_GETARG_TEXT_PP(1), &job);
	set = PG_GETARG_INT32(2);
	if (set < 0 || set >= ROW_SETS)
		elog(ERROR, "unknown set %d of a feed", set);
	f->encoder.begin = feed_begin;
	f->encoder.write = feed_write;
	f->encoder.end = feed_end;
	f->row = compat_context(context, "gpu_cnn row");
	open_columns(fcinfo, f);
	attach(f, &job, set);
	MemoryContextSwitchTo(old);
	return f;
}

/* All rows are in the ring: waits until cnnd has taken them. */
static void feed_close(struct feed *f)
{
	struct ctl_msg m;

	if (!f->daemon)
		return;
	memset(&m, 0, sizeof(m));
	m.type = CTL_FEED_END;
	m.u.feed_end.rows = (uint64)f->rows;
	m.u.feed_end.bytes = (uint64)f->bytes;
	daemon_call(f->daemon, &m, &m, CTL_FEED_DONE, "feed end");
	f->done.rows += (int64)m.u.feed_done.rows;
	f->done.held += (int64)m.u.feed_done.held;
	f->done.bad += (int64)m.u.feed_done.bad;
	f->done.bytes += (int64)m.u.feed_done.bytes;
	f->done.feeders++;
	daemon_close(f->daemon);
	f->daemon = NULL;
}

void feed_declare(const struct job *job, const struct column *x)
{
	struct feed *f = palloc0(sizeof(*f));

	f->x = *x;
	attach(f, job, ROW_PREDICT);
	feed_close(f);
	pfree(f);
}

/* ---- the functions of the aggregate ---- */

static MemoryContext aggregate_context(FunctionCallInfo fcinfo)
{
	MemoryContext context;

	if (AggCheckCallContext(fcinfo, &context) != AGG_CONTEXT_AGGREGATE)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				errmsg("gpu_cnn_feed is a plain aggregate")));
	return context;
}

SQL_FUNCTION(gpu_cnn_feed_row);
Datum gpu_cnn_feed_row(PG_FUNCTION_ARGS)
{
	MemoryContext context = aggregate_context(fcinfo), old;
	struct feed *f = PG_ARGISNULL(0) ? NULL : (struct feed *)PG_GETARG_POINTER(0);
	struct piece id, x, y, weight;
	double weight_value = 1;

	if (!f)
		f = feed_open(fcinfo, context);
	CHECK_FOR_INTERRUPTS();
	if (wait_now() - f->daemon->looked >= WAIT_SLICE_MS) {
		daemon_poll(f->daemon, "feed");
		nodes_look();
	}
	old = MemoryContextSwitchTo(f->row);
	piece_id(&f->id, PG_ARGISNULL(3) ? (Datum)0 : PG_GETARG_DATUM(3), PG_ARGISNULL(3), &id);
	piece_value(&f->x, PG_ARGISNULL(4) ? (Datum)0 : PG_GETARG_DATUM(4), PG_ARGISNULL(4), &x);
	memset(&y, 0, sizeof(y));
	if (OidIsValid(f->y.type))
		piece_value(&f->y, PG_ARGISNULL(5) ? (Datum)0 : PG_GETARG_DATUM(5), PG_ARGISNULL(5),
			    &y);
	memset(&weight, 0, sizeof(weight));
	if (OidIsValid(f->weight.type)) {
		weight.null = PG_ARGISNULL(6);
		if (!weight.null)
			weight_value = piece_weight(&f->weight, PG_GETARG_DATUM(6));
	}
	f->bytes += (int64)encode_row(&f->encoder, &id, &x, &y, &weight, weight_value);
	f->rows++;
	MemoryContextSwitchTo(old);
	MemoryContextReset(f->row);
	PG_RETURN_POINTER(f);
}

SQL_FUNCTION(gpu_cnn_feed_serialize);
Datum gpu_cnn_feed_serialize(PG_FUNCTION_ARGS)
{
	struct feed *f = (struct feed *)PG_GETARG_POINTER(0);

	aggregate_context(fcinfo);
	feed_close(f);
	PG_RETURN_BYTEA_P(bytes_of(&f->done, sizeof(f->done)));
}

SQL_FUNCTION(gpu_cnn_feed_deserialize);
Datum gpu_cnn_feed_deserialize(PG_FUNCTION_ARGS)
{
	bytea *b = PG_GETARG_BYTEA_PP(0);
	struct feed *f = palloc0(sizeof(*f));

	aggregate_context(fcinfo);
	if (VARSIZE_ANY_EXHDR(b) != sizeof(f->done))
		elog(ERROR, "malformed state of gpu_cnn_feed");
	memcpy(&f->done, VARDATA_ANY(b), sizeof(f->done));
	PG_RETURN_POINTER(f);
}

SQL_FUNCTION(gpu_cnn_feed_combine);
Datum gpu_cnn_feed_combine(PG_FUNCTION_ARGS)
{
	MemoryContext context = aggregate_context(fcinfo);
	struct feed *a = PG_ARGISNULL(0) ? NULL : (struct feed *)PG_GETARG_POINTER(0);
	struct feed *b = PG_ARGISNULL(1) ? NULL : (struct feed *)PG_GETARG_POINTER(1);

	if (!b && !a)
		PG_RETURN_NULL();
	if (!b)
		PG_RETURN_POINTER(a);
	if (!a)
		a = MemoryContextAllocZero(context, sizeof(*a));
	a->done.rows += b->done.rows;
	a->done.held += b->done.held;
	a->done.bad += b->done.bad;
	a->done.bytes += b->done.bytes;
	a->done.feeders += b->done.feeders;
	PG_RETURN_POINTER(a);
}

SQL_FUNCTION(gpu_cnn_feed_final);
Datum gpu_cnn_feed_final(PG_FUNCTION_ARGS)
{
	struct feed *f = PG_ARGISNULL(0) ? NULL : (struct feed *)PG_GETARG_POINTER(0);
	Datum v[5] = {0};

	aggregate_context(fcinfo);
	if (f) {
		feed_close(f);
		v[0] = Int64GetDatum(f->done.rows);
		v[1] = Int64GetDatum(f->done.held);
		v[2] = Int64GetDatum(f->done.bad);
		v[3] = Int64GetDatum(f->done.bytes);
		v[4] = Int64GetDatum((int64)f->done.feeders);
	} else {
		int i;

		for (i = 0; i < 5; i++)
			v[i] = Int64GetDatum(0);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(v, 5, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, 'd'));
}
