// SPDX-License-Identifier: MIT
/*
 * requests.c: requests in any order, the secret and the role of a job, faults in rows, what a feed
 * hears, DESCRIBE, specifications that are refused.
 */
#include <errno.h>
#include <unistd.h>

#include "lab.h"

#define ROWS 300u

static struct lab lab;

static void must(struct lab_job *job, int rc, const char *what)
{
	if (!ok(rc == 0, "%s", what))
		printf("#   %s (%s)\n", job->err.message, err_kind_name(job->err.kind));
}

/* ---- requests out of order ---- */

static void refused(struct lab_job *job, enum ctl_type type, const char *piece)
{
	struct ctl_msg m;
	char name[96];

	lab_message(job, type, &m);
	if (type == CTL_RUN)
		m.u.run.count = 1;
	snprintf(name, sizeof(name), "%s is refused", ctl_type_name((unsigned int)type));
	ok(lab_call(job, &m, CTL_OK) < 0, "%s", name);
	like(job->err.message, piece, "  with the reason");
}

static void test_order_of_requests(void)
{
	struct ctl_feed_done counts;
	struct lab_feed feed;
	struct lab_job job;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	refused(&job, CTL_AGREE, "no job");
	is(job.err.kind, ERR_NOJOB, "  of kind no_job");
	refused(&job, CTL_FEED_END, "no feed open");
	must(&job, lab_end(&job), "END of a job that is not there is good");
	is(lab_begin(&job, lab_spec("\"epochs\": 2")), 1, "begun");
	is(lab_begin(&job, lab_spec("\"epochs\": 2")), 1, "begun by a second segment");
	ok(lab_begin(&job, lab_spec("\"epochs\": 3")) < 0, "not with another specification");
	refused(&job, CTL_APPLY, "AGREE");
	refused(&job, CTL_RUN, "APPLY comes first");
	refused(&job, CTL_GET, "APPLY comes first");
	refused(&job, CTL_PUT, "APPLY comes first");
	refused(&job, CTL_COLLECT, "APPLY comes first");
	refused(&job, CTL_PREDICT, "APPLY comes first");
	refused(&job, CTL_BAD_ROWS, "after the agreement");
	ok(lab_feed_open(&job, ROW_PREDICT, &feed) < 0, "a training takes no rows to predict");
	must(&job, lab_feed_open(&job, ROW_TRAIN, &feed), "a feed is opened");
	{
		struct lab_feed second;

		ok(lab_feed_open(&job, ROW_TRAIN, &second) < 0, "not two on one connection");
	}
	refused(&job, CTL_AGREE, "1 feeds of this job are not over");
	for (uint32_t i = 0; i < 30; i++)
		lab_feed_row(&feed, i);
	feed.rows++;
	ok(lab_feed_close(&feed, &counts) < 0, "a feeder that counts wrong is an error");
	like(job.err.message, "says it has sent 31 rows, 30 came", "  with both numbers");
	refused(&job, CTL_AGREE, "says it has sent 31 rows");

	must(&job, lab_end(&job), "ended");
	refused(&job, CTL_RUN, "has ended: ended by its owner");
	is(job.err.kind, ERR_NOJOB, "  of kind no_job");
	lab_job_free(&job);
}

static void test_secret_and_role(void)
{
	struct lab_job job, other;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 2")), 1, "begun");
	other = job;
	other.secret[3] ^= 1;
	refused(&other, CTL_RUN, "wrong secret");
	is(other.err.kind, ERR_RIGHTS, "  of kind rights");
	refused(&other, CTL_END, "wrong secret");
	other = job;
	other.conn = lab_connect(&lab, "mallory");
	memset(other.secret, 0, CTL_ID);
	refused(&other, CTL_STOP, "another role");
	memcpy(other.secret, job.secret, CTL_ID);
	refused(&other, CTL_RUN, "belongs to role \"alice\"");
	refused(&other, CTL_END, "belongs to role \"alice\"");
	ctl_conn_free(other.conn);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

static void test_after_apply(void)
{
	struct agree_block block;
	struct lab_job job;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	must(&job, lab_prepare(&job, lab_spec("\"epochs\": 2"), 30, &block), "another, applied");
	ok(lab_feed_rows(&job, ROW_TRAIN, 0, 1) < 0, "no rows after the agreement");
	like(job.err.message, "only before the agreement", "  with the reason");
	refused(&job, CTL_AGREE, "is ready already");
	ok(lab_apply(&job, &block, NULL) < 0, "not applied twice");
	ok(lab_run(&job, 2, 1, NULL) < 0, "epochs past the last are refused");
	ok(lab_run(&job, 0, 0, NULL) < 0, "no epochs are refused");
	refused(&job, CTL_COLLECT, "no predictions");
	must(&job, lab_run(&job, 0, 2, NULL), "and it still trains");
	agree_free(&block);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

/* ---- faults in rows ---- */

static void test_bad_rows(void)
{
	uint8_t value[ROW_HEAD + 4 + 8 + 64];
	struct agree_block block;
	struct ctl_feed_done counts;
	struct lab_feed feed;
	struct lab_job job;
	struct ctl_msg m;
	int n = 0, rc;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 1, \"max_bad_rows\": 5")), 1, "begun");
	must(&job, lab_feed_open(&job, ROW_TRAIN, &feed), "feed");
	for (uint32_t i = 0; i < 30; i++)
		lab_feed_row(&feed, i);
	for (uint32_t i = 100; i < 103; i++) { /* NULL labels */
		struct row_head head;
		size_t bytes = lab_value(i, 0, true, value);

		row_head_decode(value, bytes, &head, NULL);
		head.flags = ROW_Y_NULL;
		head.y_bytes = 0;
		row_head_encode(&head, value);
		memmove(value + ROW_HEAD + 4, value + ROW_HEAD + 12, 64);
		lab_feed_value(&feed, value, bytes - 8);
	}
	must(&job, lab_feed_close(&feed, &counts), "closed");
	ok(counts.rows == 33 && counts.held == 30 && counts.bad == 3, "33 rows: 30 held, 3 bad");
	must(&job, lab_agree(&job, &block), "agreed");
	lab_message(&job, CTL_BAD_ROWS, &m);
	rc = ctl_call(job.conn, &m, &m, 10000, &job.err);
	for (; !rc && m.type == CTL_BAD_ROW; n++) {
		ok(m.u.bad_row.reason.n > 0, "  a bad row: %.*s", (int)m.u.bad_row.reason.n,
		   m.u.bad_row.reason.p);
		rc = ctl_wait(job.conn, &m, 10000, &job.err);
	}
	ok(!rc && n == 3, "the bad rows are told");
	agree_free(&block);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

/* Past max_bad_rows the error comes while the client still writes. */
static void test_early_error(void)
{
	uint8_t value[ROW_HEAD] = {0};
	struct row_head head = {.flags = ROW_X_NULL | ROW_Y_NULL, .weight = 1};
	struct lab_feed feed;
	struct lab_job job;
	struct ctl_msg m;
	int rc;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("\"epochs\": 1, \"max_bad_rows\": 0")), 1, "begun");
	must(&job, lab_feed_open(&job, ROW_TRAIN, &feed), "feed");
	row_head_encode(&head, value);
	lab_feed_value(&feed, value, ROW_HEAD);
	rc = ctl_wait(job.conn, &m, 5000, &job.err);
	ok(rc < 0, "the error comes by itself");
	like(job.err.message, "max_bad_rows", "  with the limit");
	for (uint32_t i = 0; i < 200000 && !rc; i++)
		rc = lab_feed_row(&feed, i);
	lab_message(&job, CTL_FEED_END, &m);
	ctl_send(job.conn, &m, NULL, 0); /* its answer has come before */
	lab_feed_drop(&feed);
	must(&job, lab_end(&job), "the next request gets its own answer");
	lab_job_free(&job);
}

/* A producer that waits for room must be able to tell a slow daemon from a dead one. */
static void test_beats_in_feed(void)
{
	struct lab_feed feed;
	struct lab_job job;
	struct ctl_msg m;
	double until;
	int beats = 0;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	is(lab_begin(&job, lab_spec("")), 1, "begun");
	must(&job, lab_feed_open(&job, ROW_TRAIN, &feed), "feed");
	for (uint32_t i = 0; i < 10; i++)
		lab_feed_row(&feed, i);
	for (until = lab_now() + 2.6; lab_now() < until; usleep(5000))
		while (ctl_recv(job.conn, &m, NULL, NULL, NULL) == 1)
			if (m.type == CTL_HEARTBEAT && m.u.heartbeat.rows == 10)
				beats++;
	ok(beats >= 1 && beats <= 3, "heartbeats come in a feed, with the rows so far: %d", beats);
	must(&job, lab_feed_close(&feed, NULL), "and the feed is good");
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
}

static void test_cpu_and_describe(void)
{
	static char spec[8192];
	struct agree_block block;
	struct ctl_run_row row;
	struct lab_job job;
	struct ctl_msg m = {.type = CTL_DESCRIBE};
	struct err err = {0};
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	char *at;

	m.u.describe.architecture = ctl_str(lab_architecture, strlen(lab_architecture));
	ok(ctl_call(conn, &m, &m, 5000, &err) == 0 && m.type == CTL_DESCRIBE_OK, "DESCRIBE");
	ok(m.u.describe_ok.trainable == 195 && m.u.describe_ok.outputs == 3 &&
		   m.u.describe_ok.blob_bytes == 780,
	   "  195 parameters, 3 outputs, 780 bytes");
	memset(&m, 0, sizeof(m));
	m.type = CTL_DESCRIBE;
	m.u.describe.architecture = ctl_str("{\"class_name\": \"Sequential\"", 27);
	ok(ctl_call(conn, &m, &m, 5000, &err) < 0 && err.kind == ERR_ARCH,
	   "a broken architecture is an error: %s", err.message);
	ctl_conn_free(conn);

	strcpy(spec, lab_spec("\"epochs\": 2, \"devices\": \"cpu:1\""));
	at = strstr(spec, "\"backend\": \"ref\"");
	memcpy(at, "\"backend\": \"cpu\"", 16);
	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	must(&job, lab_prepare(&job, spec, ROWS, &block), "on one thread of the cpu back end");
	must(&job, lab_run(&job, 0, 2, &row), "trains");
	ok(row.loss > 0 && row.loss < 2, "  loss %.4f", row.loss);
	agree_free(&block);
	must(&job, lab_end(&job), "ended");
	lab_job_free(&job);
	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	ok(lab_begin(&job, lab_spec("\"devices\": \"cpu:900\"")) < 0, "more than there is: %s",
	   job.err.message);
	ok(lab_begin(&job, lab_spec("\"devices\": \"cuda:0\"")) < 0, "a GPU: %s", job.err.message);
	ok(lab_begin(&job, lab_spec("\"epoch\": 3")) < 0 && job.err.kind == ERR_PARAM,
	   "an unknown argument: %s", job.err.message);
	ok(lab_begin(&job, "{\"architecture\": \"lenet6\"}") < 0, "an unknown network: %s",
	   job.err.message);
	ok(lab_begin(&job, "{}") < 0, "no network: %s", job.err.message);
	ok(lab_begin(&job, "") < 0, "no specification: %s", job.err.message);
	lab_job_free(&job);
}

int main(void)
{
	lab_open(&lab, "");
	test_order_of_requests();
	test_secret_and_role();
	test_after_apply();
	test_bad_rows();
	test_early_error();
	test_beats_in_feed();
	test_cpu_and_describe();
	ok(lab_idle(&lab, 1), "no job is left");
	is(lab_held(&lab), 0, "no memory is held");
	lab_close(&lab);
	return done();
}
