// SPDX-License-Identifier: MIT
/*
 * bench.c: rows of several sizes from one process to another, through the ring, through a pipe, and
 * the two copies alone (memcpy in, memcpy out, one process). Prints a table, and one object a line
 * to the file named by BENCH_JSONL. `gap` is work of the producer between rows: what a row costs
 * the producer when the consumer is the faster one and keeps falling asleep.
 */
#include "../../userspace/ring/ring.h"
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RUNS 5
#define ROW_MAX (1u << 20)

struct sample {
	double seconds, producer_cpu;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double cpu(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void work(uint32_t turns)
{
	for (volatile uint32_t i = 0; i < turns; i++)
		;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void ring_out(struct ring *ring, const void *row, uint32_t bytes, uint64_t rows,
		     uint32_t gap)
{
	void *place;

	for (uint64_t i = 0; i < rows; i++) {
		work(gap);
		while (ring_reserve(ring, bytes, &place))
			ring_wait(ring, bytes, -1);
		memcpy(place, row, bytes);
		ring_commit(ring, 1, RING_FIRST | RING_LAST);
	}
}

static void ring_in(struct ring *ring, void *row, uint64_t rows)
{
	struct ring_record record;

	for (uint64_t i = 0; i < rows; i++) {
		while (ring_next(ring, &record) == -EAGAIN)
			ring_wait(ring, 0, -1);
		ring_copy(ring, 0, row, record.length);
		ring_consume(ring);
	}
}

static void pipe_out(int fd, const uint8_t *row, uint32_t bytes, uint64_t rows, uint32_t gap)
{
	for (uint64_t i = 0; i < rows; i++) {
		work(gap);
		for (uint32_t at = 0; at < bytes;) {
			ssize_t n = write(fd, row + at, bytes - at);

			if (n < 0)
				die("write");
			at += (uint32_t)n;
		}
	}
}

/* As a reader would: as much as there is, then the rows out of the buffer. */
static void pipe_in(int fd, uint8_t *buffer, uint64_t total)
{
	while (total) {
		ssize_t n = read(fd, buffer, ROW_MAX);

		if (n <= 0)
			die("read");
		total -= (uint64_t)n;
	}
}

static struct sample run(bool with_ring, uint32_t bytes, uint64_t rows, uint32_t gap)
{
	uint8_t *row = malloc(ROW_MAX);
	struct ring *ring = NULL, *producer;
	int fds[RING_FDS], p[2], tell[2];
	struct sample s;
	double begin, used = 0;
	pid_t pid;

	memset(row, 1, ROW_MAX);
	if (pipe2(p, O_CLOEXEC) || pipe2(tell, O_CLOEXEC))
		die("pipe");
	fcntl(p[1], F_SETPIPE_SZ, 1 << 20);
	if (with_ring && (make_ring(RING_DEFAULT_BYTES, &ring) || ring_export(ring, fds)))
		die("ring_create");
	begin = now();
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; with_ring && i < RING_FDS; i++)
			fds[i] = dup(fds[i]);
		if (with_ring && ring_attach(fds, RING_MAX_BYTES, &producer))
			die("ring_attach");
		used = cpu();
		if (with_ring)
			ring_out(producer, row, bytes, rows, gap);
		else
			pipe_out(p[1], row, bytes, rows, gap);
		used = cpu() - used;
		_exit(write(tell[1], &used, sizeof(used)) != sizeof(used));
	}
	if (with_ring)
		ring_in(ring, row, rows);
	else
		pipe_in(p[0], row, rows * bytes);
	s.seconds = now() - begin;
	if (read(tell[0], &used, sizeof(used)) != sizeof(used))
		die("read");
	s.producer_cpu = used;
	waitpid(pid, NULL, 0);
	ring_close(ring);
	for (int i = 0; i < 2; i++) {
		close(p[i]);
		close(tell[i]);
	}
	free(row);
	return s;
}

/* Both copies that a ring needs, on one processor, within the same 8 MiB. */
static double copies(uint32_t bytes, uint64_t rows)
{
	uint8_t *area = malloc(RING_DEFAULT_BYTES), *row = malloc(ROW_MAX);
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
	begin = now() - begin;
	free(area);
	free(row);
	return begin;
}

static int by_seconds(const void *a, const void *b)
{
	const struct sample *x = a, *y = b;

	return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static struct sample median(bool with_ring, uint32_t bytes, uint64_t rows, uint32_t gap)
{
	struct sample s[RUNS];

	for (int i = 0; i < RUNS; i++)
		s[i] = run(with_ring, bytes, rows, gap);
	qsort(s, RUNS, sizeof(*s), by_seconds);
	return s[RUNS / 2];
}

int main(void)
{
	static const struct {
		uint32_t bytes, gap;
		uint64_t rows;
	} cases[] = {
		{784, 0, 500000},   {3072, 0, 200000},	{150528, 0, 5000},
		{1000000, 0, 1000}, {784, 500, 200000}, {784, 5000, 50000},
	};
	const char *path = getenv("BENCH_JSONL");
	FILE *out = path ? fopen(path, "ae") : NULL;
	char date[16];
	time_t t = time(NULL);

	strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&t));
	printf("%9s %6s %10s %10s %10s %14s %14s\n", "row bytes", "gap", "ring GB/s", "pipe GB/s",
	       "copy GB/s", "ring ns/row", "pipe ns/row");
	printf("%9s %6s %10s %10s %10s %14s %14s\n", "", "turns", "", "", "", "(producer CPU)",
	       "(producer CPU)");
	for (unsigned int i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint32_t bytes = cases[i].bytes, gap = cases[i].gap;
		uint64_t rows = cases[i].rows;
		struct sample r = median(true, bytes, rows, gap),
			      p = median(false, bytes, rows, gap);
		double gb = (double)bytes * (double)rows / 1e9, n = (double)rows;

		printf("%9u %6u %10.2f %10.2f %10.2f %14.0f %14.0f\n", bytes, gap, gb / r.seconds,
		       gb / p.seconds, gb / copies(bytes, rows), r.producer_cpu / n * 1e9,
		       p.producer_cpu / n * 1e9);
		if (out)
			fprintf(out,
				"{\"bench\":\"ring\",\"case\":\"row_%u_gap_%u\",\"unit\":\"GB/s\","
				"\"ours\":%.3f,\"peer\":\"pipe\",\"theirs\":%.3f,\"ratio\":%.3f,"
				"\"runs\":%d,\"date\":\"%s\"}\n",
				bytes, gap, gb / r.seconds, gb / p.seconds, p.seconds / r.seconds,
				RUNS, date);
	}
	if (out)
		fclose(out);
	return 0;
}
