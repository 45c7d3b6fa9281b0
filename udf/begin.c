// SPDX-License-Identifier: MIT
/*
 * begin.c: admission of a job: begin on all segments, until every daemon admits it or one's
 * patience is over; and its end. No daemon queues while another holds a place for the same job:
 * unless all admit, all are released, and the next try keeps the first one's start time, so that
 * the oldest job gets its turn on each of them.
 */
#include "gpu_cnn.h"

#include "utils/timestamp.h"

/* Microseconds since 1970 of the coordinator's clock. */
static int64 clock_us(void)
{
	return GetCurrentTimestamp() +
	       (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * (int64)SECS_PER_DAY * 1000000;
}

int driver_segments(const struct driver *driver)
{
	return driver->nodes ? nodes_count(driver->nodes) : COMPAT_SEGMENTS;
}

/* Segments' numbers from 0 on. */
static ArrayType *all_segments(const struct driver *driver)
{
	int n = driver_segments(driver), i;
	Datum *v = palloc(sizeof(Datum) * (size_t)n);

	for (i = 0; i < n; i++)
		v[i] = Int32GetDatum(n == 1 ? COMPAT_SEGINDEX : i);
	if (n == 1 && (driver->nodes || COMPAT_GREENPLUM))
		v[0] = Int32GetDatum(0);
	return construct_array(v, n, INT4OID, sizeof(int32), true, 'i');
}

void driver_end_job(struct driver *driver, bool all)
{
	ArrayType *segments = all ? all_segments(driver) : driver->speakers;
	struct args args = {0};
	struct answer answer;

	args_add(&args, TEXTOID, driver->token, false);
	args_add(&args, INT4ARRAYOID, PointerGetDatum(segments), false);
	driver_call(driver, "gpu_cnn_end", &args, &answer);
	answer_free(&answer);
}

/* One try. NULL: admitted everywhere; else why not, and then *some: admitted somewhere. */
static char *begin_all(struct driver *driver, int64 start_us, const char *spec, bool *some)
{
	struct args args = {0};
	struct answer a;
	char *reason = NULL, *notice;
	int i;

	args_add(&args, TEXTOID, driver->token, false);
	args_add(&args, INT4OID, Int32GetDatum((int32)driver->kind), false);
	args_add(&args, INT8OID, Int64GetDatum(start_us), false);
	args_add(&args, INT4OID, Int32GetDatum(driver_segments(driver)), false);
	args_text(&args, spec);
	args_text(&args, driver->leader ? driver->leader : "");
	driver_call(driver, "gpu_cnn_begin", &args, &a);
	if (a.n != driver_segments(driver))
		elog(ERROR, "%d segments, but %d answers to begin", driver_segments(driver), a.n);
	*some = false;
	for (i = 0; i < a.n; i++) {
		if (answer_int(&a, i, BEGIN_ADMITTED))
			*some = true;
		else if (!reason)
			reason = answer_text(&a, i, BEGIN_REASON);
	}
	for (i = 0; !reason && i < a.n; i++)
		if ((notice = answer_text(&a, i, BEGIN_NOTICE)))
			daemon_notice_lines(notice);
	if (!reason)
		hosts_found(driver, &a);
	answer_free(&a);
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

/* Ends this job when the connection goes. Where this daemon keeps the membership, the end of that
 * does. */
static void watch(struct driver *driver)
{
	struct ctl_msg m;

	if (driver->leads)
		return;
	daemon_message(&m, CTL_WATCH, &driver->job);
	daemon_call(driver->watch, &m, &m, CTL_OK, "watch");
}

static void open_watch(struct driver *driver)
{
	struct ctl_hello_ok hello;

	/* within the source of the other, say: it would wait for itself */
	if (driver->kind == CTL_TRAIN && daemon_trains())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
				errmsg("gpu_cnn_train is running in this session already"),
				errhint("A training cannot run within another one; run it before, "
					"in a statement of its own.")));
	driver->watch = daemon_open_info(&hello);
	driver->watch->training = driver->kind == CTL_TRAIN;
	driver->watch->job = driver->job;
	driver->watch->end_on_abort = true;
	driver->machine = cstring_of(hello.host);
	memcpy(driver->uuid, hello.uuid, CTL_ID);
}

void driver_begin(struct driver *driver, enum ctl_job_kind kind, const char *spec,
		  double queue_timeout)
{
	int64 start_us = clock_us(), give_up = wait_now() + (int64)(queue_timeout * 1000);
	bool first = true, some;
	char *reason;

	driver->kind = kind;
	open_watch(driver);
	hosts_lead(driver);
	while ((reason = begin_all(driver, start_us, spec, &some))) {
		bool over = wait_now() >= give_up;

		/* an end to a daemon that is busy gives one's turn up */
		if (some || over)
			driver_end_job(driver, true);
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
