/* SPDX-License-Identifier: MIT */
/*
 * limit.c: what merges are measured against. limit serve ADDRESS PORT takes one stream and prints
 * its bytes a second; limit send ADDRESS PORT BYTES is its other end; limit copy THREADS BYTES RUNS
 * copies BYTES in memory, shared between threads, and prints the median's bytes a second.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1u << 20)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int serve(const struct sockaddr_in *a, char *block)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, in;
	double begin = 0, total = 0, end = 0;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (const struct sockaddr *)a, sizeof(*a)) || listen(fd, 1))
		return fail("limit serve");
	printf("ready\n");
	fflush(stdout);
	in = accept(fd, NULL, NULL);
	for (;;) {
		ssize_t n = recv(in, block, BLOCK, 0);

		if (n < 0)
			return fail("limit serve");
		if (!n)
			break;
		/* from the first byte on: connecting is not the link */
		if (begin > 0)
			total += (double)n;
		else
			begin = now();
		end = now();
	}
	printf("%.0f\n", total / (end - begin));
	close(in);
	close(fd);
	return 0;
}

static int send_all(const struct sockaddr_in *a, char *block, uint64_t bytes)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)a, sizeof(*a)))
		return fail("limit send");
	while (bytes) {
		ssize_t n = send(fd, block, bytes < BLOCK ? bytes : BLOCK, MSG_NOSIGNAL);

		if (n < 0)
			return fail("limit send");
		bytes -= (uint64_t)n;
	}
	close(fd);
	return 0;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

struct part {
	pthread_barrier_t *barrier;
	char *to, *from;
	size_t bytes;
	int runs;
	double *seconds; /* of each run, by the first thread */
};

static void *copy_main(void *context)
{
	struct part *p = context;

	for (int i = 0; i < p->runs; i++) {
		double begin;

		pthread_barrier_wait(p->barrier);
		begin = now();
		memcpy(p->to, p->from, p->bytes);
		pthread_barrier_wait(p->barrier);
		if (p->seconds)
			p->seconds[i] = now() - begin;
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int copy(uint32_t threads, size_t bytes, int runs)
{
	size_t one = bytes / threads;
	char *from = aligned_alloc(64, (bytes / 64 + 1) * 64);
	char *to = aligned_alloc(64, (bytes / 64 + 1) * 64);
	double *seconds = calloc((size_t)runs, sizeof(*seconds));
	pthread_t thread[64];
	pthread_barrier_t barrier;
	struct part p[64];

	if (!from || !to || !seconds || threads > 64)
		return 1;
	memset(from, 1, bytes);
	memset(to, 2, bytes);
	pthread_barrier_init(&barrier, NULL, threads);
	for (uint32_t i = 0; i < threads; i++) {
		p[i] = (struct part){&barrier, to + one * i, from + one * i,
				     one,      runs,	     i ? NULL : seconds};
		if (pthread_create(&thread[i], NULL, copy_main, &p[i]))
			return 1;
	}
	for (uint32_t i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	qsort(seconds, (size_t)runs, sizeof(*seconds), compare);
	printf("%.0f\n", (double)one * threads / seconds[runs / 2]);
	pthread_barrier_destroy(&barrier);
	free(seconds);
	free(from);
	free(to);
	return 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	char *block = calloc(1, BLOCK);
	int rc = 2;

	if (argc == 5 && !strcmp(argv[1], "copy") && atoi(argv[2]) > 0 && atoi(argv[4]) > 0) {
		rc = copy((uint32_t)atoi(argv[2]), strtoul(argv[3], NULL, 10), atoi(argv[4]));
	} else if (argc >= 4 && block && inet_pton(AF_INET, argv[2], &a.sin_addr) == 1) {
		a.sin_port = htons((uint16_t)atoi(argv[3]));
		if (!strcmp(argv[1], "serve"))
			rc = serve(&a, block);
		else if (argc == 5 && !strcmp(argv[1], "send"))
			rc = send_all(&a, block, strtoul(argv[4], NULL, 10));
	}
	free(block);
	if (rc == 2)
		fprintf(stderr, "usage: limit serve ADDRESS PORT | send ADDRESS PORT BYTES | copy "
				"THREADS BYTES RUNS\n");
	return rc;
}
