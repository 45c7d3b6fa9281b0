// SPDX-License-Identifier: MIT
/*
 * kill.c: a client killed with SIGKILL in every state of a job: the job is gone and its memory is
 * back within a second, by the daemon's accounting and by its RSS; the daemon takes the next job.
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

#define LARGE (160u << 20)
#define SCALE (LAB_SANITIZER ? 10 : 1)

static struct lab lab;
static uint64_t baseline; /* RSS between jobs */

/* ---- clients: each gets a job somewhere, says so by returning, and is killed then ---- */

static struct lab_job *client(uint8_t kind, const char *more, bool watched)
{
	static struct lab_job job;
	struct lab_job *watch = calloc(1, sizeof(*watch));

	lab_job_init(&job, &lab, "alice", kind);
	if (lab_begin(&job, lab_spec(more)) != 1)
		BAIL("not admitted: %s", job.err.message);
	/* as the extension: the coordinator's connection watches, others call */
	*watch = job;
	watch->conn = lab_connect(&lab, "alice");
	if (watched && lab_watch(watch))
		BAIL("no watch: %s", watch->err.message);
	return &job;
}

static void send_only(struct lab_job *job, enum ctl_type type)
{
	struct ctl_msg m;

	lab_message(job, type, &m);
	if (type == CTL_RUN)
		m.u.run.count = 100000;
	if (type == CTL_RUN)
		m.u.run.lr_factor = 1;
	if (ctl_send(job->conn, &m, NULL, 0))
		BAIL("cannot send");
}

static struct lab_feed *open_feed(struct lab_job *job, uint8_t set)
{
	static struct lab_feed feed;

	if (lab_feed_open(job, set, &feed))
		BAIL("no feed: %s", job->err.message);
	return &feed;
}

static void begin_unread(void)
{
	static struct lab_job job;
	const char *spec = lab_spec("");
	struct ctl_msg m;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	lab_message(&job, CTL_BEGIN, &m);
	m.u.begin.segments = 1;
	m.u.begin.role = ctl_str("alice", 5);
	m.u.begin.spec = ctl_str(spec, strlen(spec));
	ctl_send(job.conn, &m, NULL, 0);
	for (int i = 0; i < 500 && lab_jobs(&lab) < 1; i++)
		usleep(10000);
}

static void begun(void)
{
	client(CTL_TRAIN, "", true);
}

static void feeding(void)
{
	struct lab_feed *f = open_feed(client(CTL_TRAIN, "", true), ROW_TRAIN);

	for (uint32_t i = 0; i < 200000 / SCALE; i++)
		lab_feed_row(f, i);
}

static void feeding_unwatched(void)
{
	struct lab_feed *f = open_feed(client(CTL_TRAIN, "", false), ROW_TRAIN);

	for (uint32_t i = 0; i < 1000; i++)
		lab_feed_row(f, i);
}

static void half_a_large_row(void)
{
	struct lab_feed *f = open_feed(client(CTL_TRAIN, "", true), ROW_TRAIN);
	struct row_head head = {.x_bytes = LARGE, .weight = 1};
	static uint8_t piece[1 << 20];
	uint16_t flags = RING_FIRST;
	void *place;

	row_head_encode(&head, piece);
	for (uint32_t at = 0; at < LARGE - sizeof(piece); at += sizeof(piece)) {
		while (ring_reserve(f->ring, sizeof(piece), &place))
			if (ring_wait(f->ring, sizeof(piece), 30000))
				BAIL("ring");
		memcpy(place, piece, sizeof(piece));
		ring_commit(f->ring, ROW_RECORD, flags);
		flags = 0;
	}
	while (ring_reserve(f->ring, ring_max_record(f->ring), &place) == -EAGAIN)
		usleep(1000);
}

static void in_feed_end(void)
{
	struct lab_job *job = client(CTL_TRAIN, "", true);
	struct lab_feed *f = open_feed(job, ROW_TRAIN);
	struct ctl_msg m = {.type = CTL_FEED_END};

	for (uint32_t i = 0; i < 50000 / SCALE; i++)
		lab_feed_row(f, i);
	m.u.feed_end.rows = f->rows;
	ctl_send(job->conn, &m, NULL, 0);
}

static struct lab_job *fed(uint8_t kind, const char *more)
{
	struct lab_job *job = client(kind, more, true);

	if (lab_feed_rows(job, kind == CTL_PREDICTION ? ROW_PREDICT : ROW_TRAIN, 0, 100000 / SCALE))
		BAIL("no rows: %s", job->err.message);
	return job;
}

static void after_feed(void)
{
	fed(CTL_TRAIN, "");
}

static void in_agree(void)
{
	send_only(fed(CTL_TRAIN, ""), CTL_AGREE);
}

static struct lab_job *ready(const char *more)
{
	struct lab_job *job = fed(CTL_TRAIN, more);
	struct agree_block block;

	if (lab_agree(job, &block) || lab_apply(job, &block, NULL))
		BAIL("not ready: %s", job->err.message);
	agree_free(&block);
	return job;
}

static void in_apply(void)
{
	struct lab_job *job = fed(CTL_TRAIN, "");
	struct agree_block block;
	struct ctl_msg m;
	uint8_t *blob;
	long n;

	if (lab_agree(job, &block) || (n = agree_encode(&block, &blob)) < 0)
		BAIL("no agreement: %s", job->err.message);
	lab_message(job, CTL_APPLY, &m);
	m.u.blob.blob = ctl_str((char *)blob, (size_t)n);
	ctl_send(job->conn, &m, NULL, 0);
}

static void between_calls(void)
{
	ready("");
}

static void in_run(void)
{
	send_only(ready("\"epochs\": 100000"), CTL_RUN);
}

static void in_get(void)
{
	send_only(ready(""), CTL_GET);
}

static void half_a_put(void)
{
	struct lab_job *job = ready("");
	static uint8_t frame[1 << 20], data[512 << 10];
	struct ctl_msg m;
	long n;

	lab_message(job, CTL_PUT, &m);
	m.u.part.parts = 1;
	m.u.part.total = sizeof(data);
	m.u.part.data = ctl_str((char *)data, sizeof(data));
	n = ctl_encode(&m, frame, sizeof(frame));
	if (n < 0 || write(ctl_conn_fd(job->conn), frame, (size_t)n / 4) <= 0)
		BAIL("cannot write half a frame");
}

static void apply_any(struct lab_job *job)
{
	struct agree_block block = {.agreed = 1, .h = 8, .w = 8, .c = 1, .labels = AGREE_INT};
	struct agree_label label[3] = {{0}};
	uint64_t value[3];
	double mul = 1. / 255, add = 0, sum = 0;

	for (uint64_t i = 0; i < 3; i++) {
		value[i] = i;
		label[i] = (struct agree_label){
			.bytes = 8, .value = (uint8_t *)&value[i], .count = 1, .weight = 1};
	}
	block.outputs = block.n_labels = 3;
	block.label = label;
	block.rows[0] = block.sent[0] = 3;
	block.n_channels = 1;
	block.pixels = 192;
	block.sum = block.sum2 = &sum;
	block.mul = &mul;
	block.add = &add;
	block.batch_size = block.replicas = 1;
	block.steps = 3;
	block.normalize = AGREE_SCALE;
	block.normalizing_const = 255;
	if (lab_apply(job, &block, NULL))
		BAIL("not applied: %s", job->err.message);
}

static void in_collect(void)
{
	struct lab_job *job = fed(CTL_PREDICTION, "");

	apply_any(job);
	send_only(job, CTL_COLLECT); /* 2.4 MB of rows that nobody reads */
}

static const struct {
	const char *name;
	void (*client)(void);
} states[] = {
	{"begun, between calls", begun},
	{"in the middle of a feed", feeding},
	{"in a feed, with nobody watching", feeding_unwatched},
	{"in the middle of a row of 160 MB", half_a_large_row},
	{"in FEED_END", in_feed_end},
	{"after a feed", after_feed},
	{"in AGREE", in_agree},
	{"in APPLY", in_apply},
	{"ready, between calls", between_calls},
	{"in RUN", in_run},
	{"in GET", in_get},
	{"in half a PUT", half_a_put},
	{"in COLLECT", in_collect},
};

/* ---- the killer ---- */

static pid_t start(void (*run)(void))
{
	int fds[2];
	char byte;
	pid_t pid;

	if (pipe(fds))
		BAIL("pipe");
	fflush(stdout);
	pid = fork();
	if (!pid) {
		close(fds[0]);
		run();
		if (write(fds[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(fds[1]);
	if (pid < 0 || read(fds[0], &byte, 1) != 1)
		BAIL("the client did not get there");
	close(fds[0]);
	return pid;
}

static void kill_in(const char *name, void (*run)(void), double delay)
{
	pid_t pid = start(run);
	double from, took;
	uint64_t rss = 0;
	bool idle, low = false;

	lab_sleep(delay);
	if (!LAB_SANITIZER && run == half_a_large_row)
		ok(lab_rss(&lab) > baseline + LARGE / 2, "its memory shows before");
	if (!LAB_SANITIZER && run == feeding)
		printf("# RSS %llu MB in the feed\n", (unsigned long long)(lab_rss(&lab) >> 20));
	from = lab_now();
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	idle = lab_idle(&lab, LAB_SANITIZER ? 10 : 1);
	took = lab_now() - from;
	ok(idle, "killed %s: the job is gone after %.3f s", name, took);
	is(lab_held(&lab), 0, "  no memory is held for it");
	while (!LAB_SANITIZER && !low && lab_now() < from + 1) {
		rss = lab_rss(&lab);
		low = rss < baseline + (12u << 20);
	}
	ok(low || LAB_SANITIZER, "  RSS %llu MB within a second, %llu MB before",
	   (unsigned long long)(rss >> 20), (unsigned long long)(baseline >> 20));
}

static void test_normal(void)
{
	struct lab_job job;
	struct agree_block block;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	ok(!lab_prepare(&job, lab_spec("\"epochs\": 1"), 300, &block) &&
		   !lab_run(&job, 0, 1, NULL) && !lab_end(&job),
	   "an ordinary training works%s%s", job.err.kind ? ": " : "", job.err.message);
	agree_free(&block);
	lab_job_free(&job);
}

/* END written, connection closed, answer not waited for: as the extension does on abort. */
static void test_end_and_close(void)
{
	struct lab_job job;
	struct agree_block block;
	struct ctl_msg m;
	double from;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	if (lab_prepare(&job, lab_spec("\"epochs\": 1"), 300, &block))
		BAIL("%s", job.err.message);
	agree_free(&block);
	lab_message(&job, CTL_END, &m);
	from = lab_now();
	ctl_send(job.conn, &m, NULL, 0);
	lab_job_free(&job);
	ok(lab_idle(&lab, 1), "END and close: gone after %.3f s", lab_now() - from);
}

/* A connection that only called, and ends between calls, ends nothing. */
static void test_between(void)
{
	struct lab_job job, other;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	other = job;
	other.conn = lab_connect(&lab, "alice");
	if (lab_begin(&other, lab_spec("")) != 1 || lab_watch(&job) ||
	    lab_feed_rows(&other, ROW_TRAIN, 0, 10))
		BAIL("%s", other.err.message);
	ctl_conn_free(other.conn);
	lab_sleep(.3);
	is(lab_jobs(&lab), 1, "a connection that ends between calls does not end the job");
	other.conn = lab_connect(&lab, "alice");
	ok(!lab_feed_rows(&other, ROW_TRAIN, 10, 10), "  another connection goes on with it");
	ctl_conn_free(other.conn);
	lab_job_free(&job);
	ok(lab_idle(&lab, 1), "  the end of the watching one ends it");
}

/* A segment's connection that ends inside a call, while the coordinator's lives on. */
static void test_inside(void)
{
	struct lab_job job, other;
	struct agree_block block;
	struct ctl_msg m;
	double from;

	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	if (lab_prepare(&job, lab_spec("\"epochs\": 100000"), 300, &block))
		BAIL("%s", job.err.message);
	agree_free(&block);
	other = job;
	other.conn = lab_connect(&lab, "alice");
	send_only(&other, CTL_RUN);
	lab_sleep(.3);
	is(lab_jobs(&lab), 1, "a segment's connection is inside RUN");
	from = lab_now();
	ctl_conn_free(other.conn);
	ok(lab_idle(&lab, LAB_SANITIZER ? 10 : 1), "  its end ends the job, after %.3f s",
	   lab_now() - from);
	lab_message(&job, CTL_GET, &m);
	ok(lab_call(&job, &m, CTL_PART) < 0 && job.err.kind == ERR_NOJOB,
	   "  as the coordinator learns: %s", job.err.message);
	lab_job_free(&job);
}

/* A stream that waits for a client that does not read does not hold up the job's end. */
static void test_stream(void)
{
	struct lab_job job, other;
	double from;

	lab_job_init(&job, &lab, "alice", CTL_PREDICTION);
	other = job;
	other.conn = lab_connect(&lab, "alice");
	if (lab_begin(&job, lab_spec("")) != 1 || lab_watch(&job) ||
	    lab_feed_rows(&job, ROW_PREDICT, 0, 400000))
		BAIL("%s", job.err.message);
	apply_any(&job);
	send_only(&other, CTL_COLLECT); /* 9.6 MB */
	lab_sleep(LAB_SANITIZER ? 3 : 1);
	from = lab_now();
	ok(!lab_end(&job) && lab_now() - from < (LAB_SANITIZER ? 5 : 1),
	   "a COLLECT that nobody reads, and END: answered after %.3f s", lab_now() - from);
	is(lab_jobs(&lab), 0, "  the job is gone");
	is(lab_held(&lab), 0, "  no memory is held");
	lab_job_free(&other);
	lab_job_free(&job);
}

/* Killed before it could watch: the only end that nobody tells the daemon of. */
static void test_unwatched(void)
{
	pid_t pid = start(begin_unread);

	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(lab_idle(&lab, 4),
	   "killed between BEGIN and WATCH: gone after a sixth of orphan_timeout");
}

int main(void)
{
	lab_open(&lab, "memory = 2G\nmemory_per_role = 100%\norphan_timeout = 12\n");
	/* what the first job leaves for good (threads' stacks, libraries) is no leak */
	test_normal();
	kill_in("the first time", feeding, 0);
	baseline = lab_rss(&lab);
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
		kill_in(states[i].name, states[i].client, 0);
		if (states[i].client == in_run || states[i].client == in_collect)
			kill_in("the same, some time later", states[i].client, .5);
	}
	test_end_and_close();
	test_between();
	test_inside();
	test_stream();
	test_unwatched();
	test_normal();
	lab_close(&lab);
	return done();
}
