// SPDX-License-Identifier: MIT
/*
 * hostile.c: bytes and frames that no good client sends: random bytes, frames of every type with
 * random fields, good frames with flipped bits, frames cut anywhere, descriptors nobody asked for.
 * The daemon answers or closes, takes nothing for it, and serves the next one. The seed is printed;
 * CNND_SEED repeats a run.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "lab.h"

#define ROUNDS (LAB_SANITIZER ? 300 : 1500)

static struct lab lab;
static uint64_t seed;

static uint32_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16);
}

static uint8_t buffer[1 << 16];

static void fill(uint8_t *p, size_t n)
{
	while (n--)
		*p++ = (uint8_t)rnd();
}

/* Writes; reads what comes until nothing more does for some ms. False: the daemon has closed. */
static bool throw_at(struct ctl_conn *conn, const uint8_t *p, size_t n, int ms)
{
	struct pollfd f = {ctl_conn_fd(conn), POLLIN, 0};
	struct ctl_msg m;
	int fds[CTL_MAX_FDS], n_fds, rc;

	if (send(f.fd, p, n, MSG_NOSIGNAL) != (ssize_t)n)
		return false;
	while (poll(&f, 1, ms) > 0) {
		while ((rc = ctl_recv(conn, &m, fds, &n_fds, NULL)) == 1)
			while (n_fds > 0)
				close(fds[--n_fds]);
		if (rc < 0)
			return false;
	}
	return true;
}

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static size_t header(uint8_t *p, uint32_t type, uint32_t length, const uint8_t *id)
{
	memset(p, 0, CTL_HEADER);
	put32(p, CTL_MAGIC);
	put32(p + 4, CTL_VERSION | type << 16);
	put32(p + 8, length);
	if (id)
		memcpy(p + 16, id, CTL_ID);
	else
		fill(p + 16, CTL_ID);
	return CTL_HEADER;
}

static void test_noise(void)
{
	unsigned int closed = 0;

	for (int i = 0; i < ROUNDS / 5; i++) {
		struct ctl_conn *conn =
			rnd() & 1 ? lab_connect_raw(&lab) : lab_connect(&lab, "eve");
		size_t n = 32 + rnd() % 4000;

		fill(buffer, n);
		if (rnd() & 1)
			put32(buffer, CTL_MAGIC);
		closed += !throw_at(conn, buffer, n, 5000);
		ctl_conn_free(conn);
	}
	is(closed, ROUNDS / 5, "random bytes: closed each time");
}

/* A whole frame of any type with random fields, on a connection that has said HELLO. */
static void test_random_fields(const struct lab_job *victim)
{
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	unsigned int alive = 0;

	for (int i = 0; i < ROUNDS; i++) {
		uint32_t type = rnd() % (CTL_TYPE_COUNT + 2), length = rnd() % 300;
		size_t n = header(buffer, type, length, rnd() & 1 ? victim->id : NULL);

		if (type == CTL_DRAIN)
			continue;
		fill(buffer + n, length);
		for (uint32_t k = 0; k < length; k += 4)
			if (rnd() & 1) /* plausible lengths */
				put32(buffer + n + k, rnd() % 40);
		if (throw_at(conn, buffer, n + length, 1)) {
			alive++;
			continue;
		}
		ctl_conn_free(conn);
		conn = lab_connect(&lab, "alice");
	}
	ctl_conn_free(conn);
	ok(true, "frames of every type with random fields: %u were survivable", alive);
}

/* Good requests with the right secret and a few bits turned, in any order. */
static void test_flipped(struct lab_job *job)
{
	static const enum ctl_type types[] = {CTL_BEGIN,   CTL_WATCH,	 CTL_FEED_END, CTL_AGREE,
					      CTL_APPLY,   CTL_RUN,	 CTL_GET,      CTL_PUT,
					      CTL_COLLECT, CTL_BAD_ROWS, CTL_PREDICT,  CTL_DESCRIBE,
					      CTL_STATUS,  CTL_STOP,	 CTL_FEED,     CTL_DEVICES};
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	const char *spec = lab_spec("");

	for (int i = 0; i < ROUNDS; i++) {
		enum ctl_type type = types[rnd() % (sizeof(types) / sizeof(types[0]))];
		struct ctl_msg m;
		long n;

		lab_message(job, type, &m);
		if (type == CTL_BEGIN) {
			m.u.begin.role = ctl_str("alice", 5);
			m.u.begin.spec = ctl_str(spec, strlen(spec));
		} else if (type == CTL_DESCRIBE) {
			memset(&m.u, 0, sizeof(m.u));
			m.u.describe.architecture =
				ctl_str(lab_architecture, strlen(lab_architecture));
		} else if (type == CTL_RUN) {
			m.u.run.count = 1;
		} else if (type == CTL_APPLY || type == CTL_PREDICT) {
			m.u.blob.blob = ctl_str(spec, rnd() % 400);
		} else if (type == CTL_PUT) {
			m.u.part.parts = 1;
			m.u.part.total = 80;
			m.u.part.data = ctl_str(spec, 80);
		} else if (type == CTL_FEED) {
			m.u.feed.x_type = (uint8_t)(rnd() % 12);
			m.u.feed.y_type = (uint8_t)(rnd() % 12);
			m.u.feed.has_y = 1;
		}
		n = ctl_encode(&m, buffer, sizeof(buffer));
		if (n < 0)
			continue;
		for (uint32_t k = rnd() % 3; k; k--)
			buffer[rnd() % (uint32_t)n] ^= (uint8_t)(1u << rnd() % 8);
		if (rnd() % 8 == 0)
			n = 1 + rnd() % (uint32_t)n;
		/* a connection that ends in a feed ends the job, as it should: not on each round */
		if (throw_at(conn, buffer, (size_t)n, 1) && rnd() % 16)
			continue;
		ctl_conn_free(conn);
		conn = lab_connect(&lab, "alice");
	}
	ctl_conn_free(conn);
	ok(true, "good requests with flipped bits, in any order");
}

/* Many requests in one write, although only one at a time is right: answered one by one. */
static void test_pipelined(void)
{
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	struct ctl_msg m = {.type = CTL_STATUS};
	struct err err = {0};
	size_t at = 0;
	int done = 0, rc;

	for (int i = 0; i < 200; i++) {
		m.type = i % 2 ? CTL_STATUS : CTL_DESCRIBE;
		memset(&m.u, 0, sizeof(m.u));
		if (m.type == CTL_DESCRIBE)
			m.u.describe.architecture = ctl_str("lenet", 5);
		at += (size_t)ctl_encode(&m, buffer + at, sizeof(buffer) - at);
	}
	if (write(ctl_conn_fd(conn), buffer, at) != (ssize_t)at)
		BAIL("cannot write");
	while (done < 200 && !(rc = ctl_wait(conn, &m, 20000, &err)))
		done += m.type == CTL_DONE || m.type == CTL_DESCRIBE_OK;
	is(done, 200, "200 requests in one write are answered one by one");
	if (done < 200)
		printf("# %s\n", err.message);
	ctl_conn_free(conn);
}

static int count_descriptors(void)
{
	char path[64];
	DIR *d;
	int n = 0;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)lab.pid);
	d = opendir(path);
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* Descriptors with a frame that wants none: they are closed. */
static void test_descriptors(void)
{
	struct ctl_conn *conn = lab_connect(&lab, "alice");
	struct ctl_msg m = {.type = CTL_STATUS}, reply;
	struct err err = {0};
	int fds[3] = {0, 1, 2}, before = count_descriptors();

	for (int i = 0; i < 100; i++)
		if (ctl_send(conn, &m, fds, 3) || ctl_wait(conn, &reply, 5000, &err))
			BAIL("%s", err.message);
	/* fewer: connections of the test before this one may just be going */
	ok(count_descriptors() <= before, "300 descriptors sent along are closed");
	ctl_conn_free(conn);
}

static void test_still_works(const char *when)
{
	struct agree_block block;
	struct lab_job job;
	double until = lab_now() + 70;
	int rc;

	ok(lab_idle(&lab, 20), "no job is left %s", when);
	is(lab_held(&lab), 0, "  no memory is held");
	lab_job_init(&job, &lab, "zoe", CTL_TRAIN);
	/* askers of the last 5 s that were never let in go first */
	while ((rc = lab_begin(&job, lab_spec("\"epochs\": 1"))) == 0 && lab_now() < until)
		lab_sleep(.1);
	lab_end(&job);
	rc = lab_prepare(&job, lab_spec("\"epochs\": 1"), 300, &block);
	ok(!rc && !lab_run(&job, 0, 1, NULL) && !lab_end(&job), "  a training works%s%s",
	   job.err.kind ? ": " : "", job.err.message);
	agree_free(&block);
	lab_job_free(&job);
}

int main(void)
{
	const char *given = getenv("CNND_SEED");
	struct agree_block block;
	struct lab_job job;

	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
	printf("# CNND_SEED=%llu\n", (unsigned long long)seed);
	lab_open(&lab, "orphan_timeout = 2\nmax_queue = 4096\nmax_jobs_per_role = 100\n");
	test_noise();
	lab_job_init(&job, &lab, "alice", CTL_TRAIN);
	if (lab_prepare(&job, lab_spec("\"epochs\": 1"), 300, &block))
		BAIL("%s", job.err.message);
	agree_free(&block);
	test_random_fields(&job);
	ok(lab_run(&job, 0, 1, NULL) == 0, "a job that was there all the time is unharmed");
	lab_end(&job);
	for (int i = 0; i < 4; i++) {
		lab_job_free(&job);
		lab_job_init(&job, &lab, "alice", (uint8_t)(i % 3));
		if (i == 3 && !lab_prepare(&job, lab_spec("\"epochs\": 1"), 30, &block))
			agree_free(&block);
		test_flipped(&job);
		lab_end(&job);
	}
	lab_job_free(&job);
	test_pipelined();
	test_descriptors();
	test_still_works("at the end");
	lab_close(&lab);
	return done();
}
