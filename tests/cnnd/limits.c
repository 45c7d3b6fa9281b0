// SPDX-License-Identifier: MIT
/*
 * limits.c: limits against a real daemon: whose turn it is, jobs of a role, memory, rings, one row,
 * orphans, the time of a job. Each refusal names limit and value; others go on.
 */
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "lab.h"

static void reconfigure(struct lab *lab, const char *more)
{
	if (truncate(lab->log, 0))
		BAIL("cannot empty the log");
	lab_configure(lab, more);
	kill(lab->pid, SIGHUP);
	if (!lab_logged(lab, "is read again", 3))
		BAIL("the configuration was not read");
}

static struct lab_job open_job(const struct lab *lab, const char *role, uint8_t kind)
{
	struct lab_job job;

	lab_job_init(&job, lab, role, kind);
	return job;
}

/* END twice: the second one gives up the turn that the first may have kept. */
static void close_job(struct lab_job *job)
{
	lab_end(job);
	lab_end(job);
	lab_job_free(job);
}

static void test_turns(struct lab *lab)
{
	struct lab_job a = open_job(lab, "a", CTL_TRAIN), b = open_job(lab, "b", CTL_TRAIN),
		       c = open_job(lab, "c", CTL_TRAIN), p = open_job(lab, "p", CTL_PREDICTION);
	const char *spec = lab_spec("");

	is(lab_begin(&a, spec), 1, "the first training is admitted");
	is(lab_begin(&c, spec), 0, "the youngest asks: busy");
	like(c.err.message, "(max_trainings = 1)", "  the limit and its value");
	is(lab_begin(&b, spec), 0, "an older one asks: busy");
	is(lab_begin(&p, spec), 1, "a prediction is admitted beside");
	lab_end(&a);
	is(lab_begin(&c, spec), 0, "the device is free: the youngest does not get it");
	like(c.err.message, "an older training waits", "  since an older one waits");
	is(lab_begin(&b, spec), 1, "the older one does");
	lab_end(&b);
	is(lab_begin(&c, spec), 1, "then the youngest");
	lab_end(&c);
	close_job(&a);
	close_job(&b);
	close_job(&c);
	close_job(&p);
}

/* segments: 2 of which 1 is here. */
static int begin_half(struct lab_job *job)
{
	const char *spec = lab_spec("");
	struct ctl_msg m;

	lab_message(job, CTL_BEGIN, &m);
	m.u.begin.start_us = job->start_us;
	m.u.begin.segments = 2;
	m.u.begin.role = ctl_str(job->role, strlen(job->role));
	m.u.begin.spec = ctl_str(spec, strlen(spec));
	if (lab_call(job, &m, CTL_BEGIN_OK))
		return -1;
	return m.u.begin_ok.admitted;
}

static void test_kept_turn(struct lab *lab)
{
	struct lab_job a = open_job(lab, "a", CTL_TRAIN), b = open_job(lab, "b", CTL_TRAIN);

	is(begin_half(&a), 1, "one of two hosts admits a job");
	lab_end(&a); /* the other was busy */
	is(begin_half(&b), 0, "its turn is kept when it is released before any row");
	is(begin_half(&a), 1, "  and it gets in again");
	lab_end(&a);
	lab_end(&a); /* now it gives up */
	is(begin_half(&b), 1, "  when it gives up, the next does");
	close_job(&a);
	close_job(&b);
}

static void test_roles(struct lab *lab)
{
	struct lab_job j[4];
	const char *spec = lab_spec("");

	reconfigure(lab, "max_jobs_per_role = 2\n");
	for (int i = 0; i < 3; i++)
		j[i] = open_job(lab, "alice", CTL_PREDICTION);
	j[3] = open_job(lab, "bob", CTL_PREDICTION);
	is(lab_begin(&j[0], spec), 1, "alice's first");
	is(lab_begin(&j[1], spec), 1, "alice's second");
	is(lab_begin(&j[2], spec), 0, "her third waits");
	is(lab_begin(&j[3], spec), 1, "bob is not concerned");
	lab_end(&j[0]);
	is(lab_begin(&j[2], spec), 1, "after one has ended she may again");
	for (int i = 0; i < 4; i++)
		close_job(&j[i]);
	reconfigure(lab, "");
}

static void test_queue(struct lab *lab)
{
	struct lab_job first = open_job(lab, "q", CTL_TRAIN), j[4];
	const char *spec = lab_spec("");

	reconfigure(lab, "max_queue = 3\n");
	is(lab_begin(&first, spec), 1, "a training runs");
	for (int i = 0; i < 4; i++) {
		j[i] = open_job(lab, "w", CTL_TRAIN);
		if (i < 3)
			is(lab_begin(&j[i], spec), 0, "one waits");
	}
	ok(lab_begin(&j[3], spec) < 0 && j[3].err.kind == ERR_LIMIT,
	   "the fourth of three is refused");
	like(j[3].err.message, "max_queue = 3", "  with limit and value");
	for (int i = 0; i < 4; i++)
		close_job(&j[i]);
	close_job(&first);
	reconfigure(lab, "");
}

/* ---- memory ---- */

static void test_memory(struct lab *lab)
{
	struct lab_job a, b;
	struct lab_feed feed;
	uint8_t *large = calloc(1, 40 << 20);
	struct row_head head = {.x_bytes = (40u << 20) - ROW_HEAD, .weight = 1};
	int rc = 0;

	reconfigure(lab, "memory = 96M\nmemory_per_role = 32M\nspill_dir = none\n");
	a = open_job(lab, "alice", CTL_TRAIN);
	b = open_job(lab, "alice", CTL_PREDICTION);
	is(lab_begin(&a, lab_spec("")), 1, "a training fits into 32 MB");
	ok(lab_held(lab) <= 32u << 20, "  and holds no more: %llu MB",
	   (unsigned long long)(lab_held(lab) >> 20));
	is(lab_begin(&b, lab_spec("")), 0, "another job of the role waits for memory");
	like(b.err.message, "memory", "  which is said");
	lab_end(&b);

	/* a row larger than what the role has left */
	if (lab_feed_open(&a, ROW_TRAIN, &feed))
		BAIL("%s", a.err.message);
	row_head_encode(&head, large);
	lab_feed_value(&feed, large, 40 << 20);
	for (uint32_t i = 0; i < 1000 && !rc; i++)
		rc = lab_feed_row(&feed, i);
	is(rc, 0, "the ring is drained after it");
	ok(lab_feed_close(&feed, NULL) < 0 && a.err.kind == ERR_LIMIT,
	   "a row of 40 MB does not fit: %s", a.err.message);
	is(lab_jobs(lab), 1, "the daemon lives");
	lab_end(&a);
	is(lab_held(lab), 0, "all is given back");
	is(lab_begin(&b, lab_spec("")), 1, "the other job is admitted now");
	close_job(&a);
	close_job(&b);
	free(large);
	reconfigure(lab, "");
}

/* More rows than the share of the job; more is the configuration. */
static void test_spill(const char *more, const char *named)
{
	struct agree_block block;
	struct ctl_run_row row;
	struct lab_job job;
	struct lab lab;
	uint32_t rows = 140000; /* 9 MB of pixels, as much again for what is kept of each row */
	char conf[128];
	int rc;

	snprintf(conf, sizeof(conf), "memory = 48M\nmemory_per_role = 32M\n%s", more);
	lab_open(&lab, conf);
	job = open_job(&lab, "alice", CTL_TRAIN);
	rc = lab_begin(&job, lab_spec("\"epochs\": 1, \"batch_size\": 512"));
	is(rc, 1, "a job whose share is small is admitted");
	rc = lab_feed_rows(&job, ROW_TRAIN, 0, rows);
	if (named) {
		ok(rc < 0 && job.err.kind == ERR_LIMIT && strstr(job.err.message, named),
		   "%.*s: the rows do not fit: %s", (int)strcspn(more, "\n"), more,
		   job.err.message);
	} else {
		is(rc, 0, "the rows are taken");
		rc = lab_agree(&job, &block);
		is(block.rows[0], rows, "  all of them");
		ok(!rc && !lab_apply(&job, &block, NULL) && !lab_run(&job, 0, 1, &row),
		   "  and trained on from disk%s%s", job.err.kind ? ": " : "", job.err.message);
		ok(row.metric[0].train > .9, "  accuracy %.3f", row.metric[0].train);
		ok(lab_held(&lab) <= 32u << 20, "  within the limit: %llu MB held",
		   (unsigned long long)(lab_held(&lab) >> 20));
		ok(LAB_SANITIZER || lab_rss(&lab) < 64u << 20, "  RSS %llu MB",
		   (unsigned long long)(lab_rss(&lab) >> 20));
		agree_free(&block);
	}
	close_job(&job);
	is(lab_held(&lab), 0, "nothing is held after it");
	lab_close(&lab);
}

static int demand_device(struct lab_job *job)
{
	struct ctl_msg m;

	lab_message(job, CTL_FEED, &m);
	m.u.feed.set = ROW_PREDICT;
	m.u.feed.x_type = ROW_BYTES;
	m.u.feed.ring = 2;
	return lab_call(job, &m, CTL_FEED_OK);
}

static void test_rings(struct lab *lab)
{
	struct lab_job a, b;
	struct lab_feed feed, second;

	reconfigure(lab, "ring_bytes = 1M\nring_total = 1M\nmax_value = 64K\n");
	a = open_job(lab, "alice", CTL_PREDICTION);
	is(lab_begin(&a, lab_spec("")), 1, "a job");
	if (lab_feed_open(&a, ROW_PREDICT, &feed))
		BAIL("%s", a.err.message);
	is(ring_bytes(feed.ring), 1 << 20, "its ring has ring_bytes");
	is(feed.max_value, 64 << 10, "max_value is told");
	b = a;
	b.conn = lab_connect(lab, "alice");
	ok(lab_feed_open(&b, ROW_PREDICT, &second) < 0 && b.err.kind == ERR_LIMIT,
	   "a second ring does not fit: %s", b.err.message);
	ctl_conn_free(b.conn);
	{
		static uint8_t large[80 << 10];
		struct row_head head = {.x_bytes = sizeof(large) - ROW_HEAD, .weight = 1};

		row_head_encode(&head, large);
		lab_feed_value(&feed, large, sizeof(large));
		ok(lab_feed_close(&feed, NULL) < 0 && a.err.kind == ERR_LIMIT,
		   "a row past max_value: %s", a.err.message);
	}
	ok(!lab_feed_open(&a, ROW_PREDICT, &feed),
	   "the place of a ring is free when its feed is over");
	lab_feed_close(&feed, NULL);
	reconfigure(lab, "ring_bytes = 1M\nring_total = 1M\nmax_value = 64K\nring = memfd\n");
	ok(demand_device(&a) < 0, "a session that demands the device ring");
	like(a.err.message, "gpu_cnn.ring = device, but this daemon has ring = memfd",
	     "  both named");
	reconfigure(lab, "ring_bytes = 1M\nring_total = 1M\nmax_value = 64K\n");
	ok(demand_device(&a) < 0, "... which this host has not");
	like(a.err.message, "no /dev/cnnring: module cnnring is not loaded", "  and why");
	close_job(&a);
	is(lab_held(lab), 0, "rings are given back");
	reconfigure(lab, "");
}

static void test_time(struct lab *lab)
{
	struct lab_job a;
	struct agree_block block;
	double from;

	reconfigure(lab, "orphan_timeout = 1\n");
	a = open_job(lab, "alice", CTL_TRAIN);
	if (lab_begin(&a, lab_spec("")) != 1 || lab_feed_rows(&a, ROW_TRAIN, 0, 30))
		BAIL("%s", a.err.message);
	from = lab_now();
	ok(lab_idle(lab, 3), "a job that nobody watches is ended");
	ok(lab_now() - from > .9, "  after orphan_timeout (%.1f s)", lab_now() - from);
	ok(lab_feed_rows(&a, ROW_TRAIN, 0, 1) < 0 && a.err.kind == ERR_NOJOB,
	   "  as the next call learns");
	like(a.err.message, "orphan_timeout = 1 s", "  with the reason");
	lab_job_free(&a);

	a = open_job(lab, "alice", CTL_TRAIN);
	if (lab_begin(&a, lab_spec("")) != 1 || lab_watch(&a))
		BAIL("%s", a.err.message);
	lab_sleep(1.5);
	is(lab_jobs(lab), 1, "one that is watched may be silent");
	close_job(&a);

	reconfigure(lab, "job_time_max = 1\n");
	a = open_job(lab, "alice", CTL_TRAIN);
	if (lab_prepare(&a, lab_spec("\"epochs\": 100000"), 300, &block))
		BAIL("%s", a.err.message);
	agree_free(&block);
	ok(lab_run(&a, 0, 100000, NULL) < 0 && a.err.kind == ERR_LIMIT,
	   "job_time_max ends a run: %s", a.err.message);
	close_job(&a);
	reconfigure(lab, "");
}

static void test_no_device(void)
{
	struct lab_job a;
	struct lab lab;

	lab_open(&lab, "devices = none\n");
	a = open_job(&lab, "alice", CTL_TRAIN);
	ok(lab_begin(&a, lab_spec("")) < 0 && a.err.kind == ERR_LIMIT, "no device: %s",
	   a.err.message);
	is(lab_held(&lab), UINT64_MAX, "and none is listed");
	lab_job_free(&a);
	lab_close(&lab);
}

int main(void)
{
	struct lab lab;

	lab_open(&lab, "");
	test_turns(&lab);
	test_kept_turn(&lab);
	test_roles(&lab);
	test_queue(&lab);
	test_memory(&lab);
	test_rings(&lab);
	test_time(&lab);
	ok(lab_idle(&lab, 1), "no job is left");
	lab_close(&lab);
	test_spill("", NULL);
	test_spill("spill_dir = none\n", "memory");
	test_spill("spill_min_free = 1024T\n", "spill_min_free = 1125899906842624");
	test_no_device();
	return done();
}
