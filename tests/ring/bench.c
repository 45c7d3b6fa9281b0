// SPDX-License-Identifier: MIT
/*
 * bench.c: rows from one process to another, and how soon a sleeper is awake, through a ring and
 * through what it is compared with, in turns. Prints a table, and one object a line to the file
 * named by BENCH_JSONL.
 *   bench           a memfd ring next to a pipe, and next to the two copies alone (memcpy in,
 * memcpy out, in one process) bench device    in an emulated machine: a ring of the device next to
 * a memfd ring. Only their ratio is printed: seconds of an emulator say nothing. `gap` is work of
 * the producer between rows: what a row costs the producer when the consumer is the faster one and
 * keeps falling asleep.
 */
#include "../../userspace/ring/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUNS 5
#define ROW_MAX (1u << 20)
#define WAKES 2000
#define WAKE_EVERY_US 200 /* far longer than it takes to fall asleep */

enum way { MEMFD, DEVICE, PIPE, COPIES };
static const char *const way_names[] = {"memfd", "device", "pipe", "memcpy"};

struct sample {
	double seconds, producer_cpu, p99; /* latencies: seconds is the median */
};

/* What connects the two processes. */
struct link {
	enum way way;
	struct ring *ring;
	int fds[RING_FDS], pipe[2];
};

static double clock_of(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void)
{
	return clock_of(CLOCK_MONOTONIC);
}

static void work(uint32_t turns)
{
	for (volatile uint32_t i = 0; i < turns; i++)
		;
}

static void die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* ---- one row, either side ---- */

static struct ring *attached(const struct link *link)
{
	struct ring *producer;
	int fds[RING_FDS];

	for (int i = 0; i < RING_FDS; i++)
		fds[i] = dup(link->fds[i]);
	if (ring_attach(fds, RING_MAX_BYTES, &producer))
		die("ring_attach");
	return producer;
}

static void send_row(const struct link *link, struct ring *producer, const void *row,
		     uint32_t bytes)
{
	void *place;

	if (link->way == PIPE) {
		for (uint32_t at = 0; at < bytes;) {
			ssize_t n = write(link->pipe[1], (const char *)row + at, bytes - at);

			if (n < 0)
				die("write");
			at += (uint32_t)n;
		}
		return;
	}
	while (ring_reserve(producer, bytes, &place))
		ring_wait(producer, bytes, -1);
	memcpy(place, row, bytes);
	ring_commit(producer, 1, RING_FIRST | RING_LAST);
}

static void receive_row(struct ring *ring, void *row)
{
	struct ring_record record;

	while (ring_next(ring, &record) == -EAGAIN)
		ring_wait(ring, 0, -1);
	ring_copy(ring, 0, row, record.length);
	ring_consume(ring);
}

/* As a reader of a pipe would: as much as there is, then the rows out of the buffer. */
static void receive_rows(const struct link *link, void *row, uint32_t bytes, uint64_t rows)
{
	uint64_t left = rows * bytes;

	if (link->way != PIPE) {
		for (uint64_t i = 0; i < rows; i++)
			receive_row(link->ring, row);
		return;
	}
	while (left) {
		ssize_t n = read(link->pipe[0], row, ROW_MAX);

		if (n <= 0)
			die("read");
		left -= (uint64_t)n;
	}
}

/* ---- two processes ---- */

static void link_open(struct link *link, enum way way)
{
	char why[RING_WHY] = "";

	memset(link, 0, sizeof(*link));
	link->way = way;
	if (pipe2(link->pipe, O_CLOEXEC))
		die("pipe");
	fcntl(link->pipe[1], F_SETPIPE_SZ, 1 << 20);
	if (way == PIPE)
		return;
	if (ring_create_on(way == DEVICE ? RING_BACKEND_DEVICE : RING_BACKEND_MEMFD,
			   RING_DEFAULT_BYTES, &link->ring, why) ||
	    ring_export(link->ring, link->fds)) {
		fprintf(stderr, "bench: no ring: %s\n", why);
		exit(1);
	}
}

static void link_close(struct link *link)
{
	ring_close(link->ring);
	close(link->pipe[0]);
	close(link->pipe[1]);
}

/* Both copies that a ring needs, on one processor, within the same 8 MiB. */
static struct sample copies(uint32_t bytes, uint64_t rows)
{
	uint8_t *area = malloc(RING_DEFAULT_BYTES), *row = malloc(ROW_MAX);
	struct sample s = {0};
	size_t at = 0;
	double begin;

	memset(area, 1, RING_DEFAULT_BYTES);
	memset(row, 1, ROW_MAX);
	begin = now();
	for (uint64_t i = 0; i < rows; i++) {
		memcpy(area + at, row, bytes);
		__asm__ volatile("" ::: "memory");
		memcpy(row, area + at, bytes);
		__asm__ volatile("" ::: "memory");
		at = at + 2 * bytes > RING_DEFAULT_BYTES ? 0 : at + bytes;
	}
	s.seconds = now() - begin;
	free(area);
	free(row);
	return s;
}

static struct sample transfer(enum way way, uint32_t bytes, uint64_t rows, uint32_t gap)
{
	uint8_t *row = malloc(ROW_MAX);
	struct sample s = {0};
	struct link link;
	int tell[2];
	double begin;
	pid_t pid;

	if (way == COPIES) {
		free(row);
		return copies(bytes, rows);
	}
	memset(row, 1, ROW_MAX);
	link_open(&link, way);
	if (pipe2(tell, O_CLOEXEC))
		die("pipe");
	begin = now();
	pid = fork();
	if (!pid) {
		struct ring *producer = way == PIPE ? NULL : attached(&link);
		double used = clock_of(CLOCK_PROCESS_CPUTIME_ID);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint64_t i = 0; i < rows; i++) {
			work(gap);
			send_row(&link, producer, row, bytes);
		}
		used = clock_of(CLOCK_PROCESS_CPUTIME_ID) - used;
		_exit(write(tell[1], &used, sizeof(used)) != sizeof(used));
	}
	receive_rows(&link, row, bytes, rows);
	s.seconds = now() - begin;
	if (read(tell[0], &s.producer_cpu, sizeof(double)) != sizeof(double))
		die("read");
	waitpid(pid, NULL, 0);
	link_close(&link);
	close(tell[0]);
	close(tell[1]);
	free(row);
	return s;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* From before the row is written to after it is read, by a reader that was asleep. */
static struct sample wake_up(enum way way, uint32_t wakes)
{
	double *late = malloc(wakes * sizeof(*late)), sent;
	struct sample s = {0};
	struct link link;
	pid_t pid;

	link_open(&link, way);
	pid = fork();
	if (!pid) {
		struct ring *producer = way == PIPE ? NULL : attached(&link);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t i = 0; i < wakes; i++) {
			usleep(WAKE_EVERY_US);
			sent = now();
			send_row(&link, producer, &sent, sizeof(sent));
		}
		_exit(0);
	}
	for (uint32_t i = 0; i < wakes; i++) {
		if (way != PIPE)
			receive_row(link.ring, &sent);
		else if (read(link.pipe[0], &sent, sizeof(sent)) != sizeof(sent))
			die("read");
		late[i] = now() - sent;
	}
	waitpid(pid, NULL, 0);
	link_close(&link);
	qsort(late, wakes, sizeof(*late), by_value);
	s.seconds = late[wakes / 2];
	s.p99 = late[wakes * 99 / 100];
	free(late);
	return s;
}

/* ---- in turns, medians ---- */

struct bench_case {
	uint32_t bytes; /* 0: wake-up */
	uint32_t gap;
	uint64_t rows;
};

static int by_seconds(const void *a, const void *b)
{
	return by_value(&((const struct sample *)a)->seconds, &((const struct sample *)b)->seconds);
}

static void in_turns(const struct bench_case *c, const enum way *ways, int n, struct sample *out)
{
	struct sample s[4][RUNS];

	for (int run = 0; run < RUNS; run++)
		for (int i = 0; i < n; i++)
			s[i][run] = c->bytes ? transfer(ways[i], c->bytes, c->rows, c->gap)
					     : wake_up(ways[i], (uint32_t)c->rows);
	for (int i = 0; i < n; i++) {
		qsort(s[i], RUNS, sizeof(**s), by_seconds);
		out[i] = s[i][RUNS / 2];
	}
}

static void write_line(FILE *out, const char *ours_is, const struct bench_case *c, const char *unit,
		       double ours, const char *peer, double theirs)
{
	time_t t = time(NULL);
	char date[16], name[40] = "wake_up";

	if (!out)
		return;
	strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&t));
	if (c->bytes)
		snprintf(name, sizeof(name), "row_%u_gap_%u", c->bytes, c->gap);
	fprintf(out,
		"{\"bench\":\"ring\",\"case\":\"%s_%s\",\"unit\":\"%s\",\"ours\":%.3f,"
		"\"peer\":\"%s\",\"theirs\":%.3f,\"ratio\":%.3f,\"runs\":%d,\"date\":\"%s\"}\n",
		ours_is, name, unit, ours, peer, theirs, ours / theirs, RUNS, date);
}

static void on_this_machine(const struct bench_case *cases, int n, FILE *out)
{
	static const enum way ways[] = {MEMFD, PIPE, COPIES};
	struct sample s[3];

	printf("%9s %6s %12s %9s %9s %9s %12s %12s\n", "row bytes", "gap", "ring row/s",
	       "ring GB/s", "pipe GB/s", "copy GB/s", "ring ns/row", "pipe ns/row");
	printf("%9s %6s %12s %9s %9s %9s %12s %12s\n", "", "turns", "", "", "", "", "(producer's",
	       "CPU)");
	for (int i = 0; i < n; i++) {
		const struct bench_case *c = &cases[i];
		double rows = (double)c->rows, gb = rows * c->bytes / 1e9;

		if (!c->bytes)
			continue;
		in_turns(c, ways, 3, s);
		printf("%9u %6u %12.0f %9.2f %9.2f %9.2f %12.0f %12.0f\n", c->bytes, c->gap,
		       rows / s[0].seconds, gb / s[0].seconds, gb / s[1].seconds, gb / s[2].seconds,
		       s[0].producer_cpu / rows * 1e9, s[1].producer_cpu / rows * 1e9);
		write_line(out, "memfd", c, "GB/s", gb / s[0].seconds, "pipe", gb / s[1].seconds);
		if (!c->gap)
			write_line(out, "memfd", c, "GB/s", gb / s[0].seconds, "memcpy twice",
				   gb / s[2].seconds);
		write_line(out, "memfd", c, "records/s", rows / s[0].seconds, "pipe",
			   rows / s[1].seconds);
	}
	for (int i = 0; i < n; i++) {
		if (cases[i].bytes)
			continue;
		in_turns(&cases[i], ways, 2, s);
		printf("wake-up, microseconds: ring %.1f (99%%: %.1f), pipe %.1f (99%%: %.1f)\n",
		       s[0].seconds * 1e6, s[0].p99 * 1e6, s[1].seconds * 1e6, s[1].p99 * 1e6);
		write_line(out, "memfd", &cases[i], "us", s[0].seconds * 1e6, "pipe",
			   s[1].seconds * 1e6);
	}
}

/* ours is the ratio, theirs 1: nothing else of an emulated machine should be quoted */
static void between_back_ends(const struct bench_case *cases, int n, FILE *out)
{
	static const enum way ways[] = {DEVICE, MEMFD};
	struct sample s[2];

	printf("device against memfd, in one emulated machine\n");
	printf("%9s %6s %16s %22s\n", "row bytes", "gap", "rows/s, ratio", "producer's CPU, ratio");
	for (int i = 0; i < n; i++) {
		struct bench_case c = cases[i];

		c.rows /= 20;
		in_turns(&c, ways, 2, s);
		if (c.bytes) {
			printf("%9u %6u %16.2f %22.2f\n", c.bytes, c.gap,
			       s[1].seconds / s[0].seconds, s[0].producer_cpu / s[1].producer_cpu);
			write_line(out, "device", &c, "rate of memfd, emulated machine",
				   s[1].seconds / s[0].seconds, way_names[MEMFD], 1);
		} else {
			printf("wake-up, ratio of the times: %.2f (99%%: %.2f)\n",
			       s[0].seconds / s[1].seconds, s[0].p99 / s[1].p99);
			write_line(out, "device", &c, "time of memfd, emulated machine",
				   s[0].seconds / s[1].seconds, way_names[MEMFD], 1);
		}
	}
}

int main(int argc, char **argv)
{
	static const struct bench_case cases[] = {
		{784, 0, 500000},   {3072, 0, 200000},	{150528, 0, 5000}, {1000000, 0, 1000},
		{784, 500, 200000}, {784, 5000, 50000}, {0, 0, WAKES},
	};
	const int n = sizeof(cases) / sizeof(*cases);
	const char *path = getenv("BENCH_JSONL");
	FILE *out = path ? fopen(path, "ae") : NULL;

	if (path && !out)
		die(path);
	if (argc > 1 && !strcmp(argv[1], "device"))
		between_back_ends(cases, n, out);
	else
		on_this_machine(cases, n, out);
	if (out && fclose(out))
		die(path);
	return 0;
}
