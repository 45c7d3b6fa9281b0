/* SPDX-License-Identifier: MIT */
/*
 * hostile.c: what strangers can send to a mesh and what a wire can do to it, on loopback: two hosts
 * as threads, host 1 reaches host 0 through a proxy that flips, repeats, cuts or records. Damage is
 * an error that names the other host; noise from strangers changes nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "../../nccl_merge/merge.h"
#include "../tap.h"

enum { FLOATS = 50000, KIND_AT = 36, HANDSHAKE = 160 };
enum what { PASS, FLIP, REPEAT, CUT };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap_ms(long ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&t, NULL);
}

static int to_port(uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons(port),
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- proxy -------------------------------------------------------------------------------------
 */

struct proxy {
	int listen_fd;
	uint16_t port, target;
	enum what what;
	uint32_t kind; /* of the connection that is tampered with */
	size_t at;     /* byte from dialer to acceptor */
	uint8_t record[2][256];
	atomic_int recorded[2];
	atomic_bool stop;
	pthread_t thread;
};

struct pipe_pair {
	int a, b; /* dialer's side, acceptor's side */
	uint32_t kind;
	size_t passed;
};

static bool put(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

		if (k <= 0)
			return false;
		p += k;
		n -= (size_t)k;
	}
	return true;
}

/* dialer to acceptor; false: the connection ends */
static bool tamper(struct proxy *x, struct pipe_pair *c, uint8_t *p, size_t n)
{
	size_t at = x->at - c->passed;
	bool here;

	if (!c->passed && n > KIND_AT)
		memcpy(&c->kind, p + KIND_AT, sizeof(c->kind));
	for (size_t i = 0; i < n && c->passed + i < 256 && c->kind < 2; i++) {
		x->record[c->kind][c->passed + i] = p[i];
		x->recorded[c->kind] = (int)(c->passed + i + 1);
	}
	here = x->what != PASS && c->kind == x->kind && x->at >= c->passed && at < n;
	c->passed += n;
	if (!here)
		return put(c->b, p, n);
	if (x->what == FLIP)
		p[at] ^= 0x20;
	if (x->what == CUT)
		return put(c->b, p, at) && false;
	return put(c->b, p, n) && (x->what != REPEAT || put(c->b, p, n));
}

static bool forward(struct proxy *x, struct pipe_pair *c, bool up)
{
	static _Thread_local uint8_t buffer[65536];
	ssize_t n = recv(up ? c->a : c->b, buffer, sizeof(buffer), 0);

	if (n <= 0)
		return false;
	return up ? tamper(x, c, buffer, (size_t)n) : put(c->a, buffer, (size_t)n);
}

static void *proxy_main(void *context)
{
	struct proxy *x = context;
	struct pipe_pair c[8] = {0};
	uint32_t n = 0;

	while (!x->stop) {
		struct pollfd p[17] = {{.fd = x->listen_fd, .events = POLLIN}};

		for (uint32_t i = 0; i < n; i++) {
			p[1 + 2 * i] = (struct pollfd){.fd = c[i].a, .events = POLLIN};
			p[2 + 2 * i] = (struct pollfd){.fd = c[i].b, .events = POLLIN};
		}
		poll(p, 1 + 2 * n, 20);
		for (uint32_t i = 0; i < n; i++)
			for (int up = 0; up < 2 && c[i].a >= 0; up++)
				if (p[2 + 2 * i - (uint32_t)up].revents && !forward(x, &c[i], up)) {
					close(c[i].a);
					close(c[i].b);
					c[i].a = c[i].b = -1;
				}
		if (p[0].revents) {
			int a = accept(x->listen_fd, NULL, NULL), b = to_port(x->target);
			uint32_t i = 0;

			while (i < n && c[i].a >= 0)
				i++;
			if (i == 8 || a < 0 || b < 0) {
				close(a);
				close(b);
				continue;
			}
			c[i] = (struct pipe_pair){.a = a, .b = b, .kind = 9};
			n = i == n ? n + 1 : n;
		}
	}
	for (uint32_t i = 0; i < n; i++)
		if (c[i].a >= 0) {
			close(c[i].a);
			close(c[i].b);
		}
	close(x->listen_fd);
	return NULL;
}

static void proxy_start(struct proxy *x, uint16_t target)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(a);

	x->target = target;
	x->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(x->listen_fd, (struct sockaddr *)&a, sizeof(a)) || listen(x->listen_fd, 16) ||
	    getsockname(x->listen_fd, (struct sockaddr *)&a, &length) ||
	    pthread_create(&x->thread, NULL, proxy_main, x))
		BAIL("proxy");
	x->port = ntohs(a.sin_port);
}

static void proxy_stop(struct proxy *x)
{
	x->stop = true;
	pthread_join(x->thread, NULL);
}

/* ---- two hosts ---------------------------------------------------------------------------------
 */

struct host {
	struct merge_net *net;
	struct merge_host list[2];
	uint32_t r;
	int rc, rounds;
	double seconds;
	bool equal;
	struct merge_error error;
	atomic_bool connected;
	pthread_t thread;
};

static void *host_main(void *context)
{
	struct host *h = context;
	float *in = calloc(FLOATS, sizeof(*in)), *out = calloc(FLOATS, sizeof(*out));
	double begin = now();

	for (int i = 0; i < FLOATS; i++)
		in[i] = (float)(i % 13 + (int)h->r);
	h->rc = merge_tcp_connect(h->net, h->list, 2, 1, &h->error);
	h->connected = !h->rc;
	h->equal = true;
	for (int i = 0; i < h->rounds && !h->rc; i++) {
		h->rc = merge_all_reduce(h->net, in, out, FLOATS, MERGE_OP_SUM, &h->error);
		for (int k = 0; k < FLOATS && !h->rc; k++)
			h->equal &= out[k] == (float)(2 * (k % 13) + 1);
		nap_ms(20);
	}
	h->seconds = now() - begin;
	free(in);
	free(out);
	return NULL;
}

static void hosts_open(struct host h[2], int rounds)
{
	for (uint32_t r = 0; r < 2; r++) {
		struct merge_tcp_config c = {
			.listen = "127.0.0.1", .self = r, .mesh_timeout_ms = 2500};

		memset(&h[r], 0, sizeof(h[r]));
		h[r].r = r;
		h[r].rounds = rounds;
		memset(c.secret, 3, sizeof(c.secret));
		if (merge_tcp_open(&c, &h[r].net, &h[r].error))
			BAIL("%s", h[r].error.message);
	}
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t i = 0; i < 2; i++) {
			snprintf(h[r].list[i].name, sizeof(h[r].list[i].name), "beta%u", i);
			snprintf(h[r].list[i].address, sizeof(h[r].list[i].address), "127.0.0.1");
			h[r].list[i].port = merge_tcp_port(h[i].net);
		}
}

static void hosts_start(struct host h[2])
{
	for (int r = 0; r < 2; r++)
		if (pthread_create(&h[r].thread, NULL, host_main, &h[r]))
			BAIL("no thread");
}

static void hosts_join(struct host h[2])
{
	for (int r = 0; r < 2; r++)
		pthread_join(h[r].thread, NULL);
}

static void hosts_close(struct host h[2])
{
	for (int r = 0; r < 2; r++)
		merge_net_close(h[r].net);
}

/* ---- what a wire can do
 * -------------------------------------------------------------------------- */

static void damage(enum what what, uint32_t kind, size_t at, const char *text, const char *name)
{
	struct proxy x = {.what = what, .kind = kind, .at = at};
	struct host h[2];

	hosts_open(h, 200);
	proxy_start(&x, merge_tcp_port(h[0].net));
	h[1].list[0].port = x.port;
	hosts_start(h);
	hosts_join(h);
	for (int r = 0; r < 2; r++) {
		ok(h[r].rc < 0 && h[r].equal, "%s: host %d fails, and used nothing wrong", name, r);
		ok(h[r].seconds < 5, "%s: within 5 s", name);
		ok(strstr(h[r].error.message, "beta"), "%s: '%s'", name, h[r].error.message);
	}
	if (!ok(strstr(h[0].error.message, text) || strstr(h[1].error.message, text),
		"%s: says what happened", name))
		printf("#   '%s', '%s'\n", h[0].error.message, h[1].error.message);
	hosts_close(h);
	proxy_stop(&x);
}

static void through_a_proxy(void)
{
	struct proxy x = {.what = PASS};
	struct host h[2];

	hosts_open(h, 3);
	proxy_start(&x, merge_tcp_port(h[0].net));
	h[1].list[0].port = x.port;
	hosts_start(h);
	hosts_join(h);
	ok(!h[0].rc && !h[1].rc && h[0].equal && h[1].equal,
	   "a proxy that changes nothing is not seen");
	hosts_close(h);
	proxy_stop(&x);
}

/* The recorded half of host 1, twice: to the mesh that it was made for, and to one that waits. */
static void replay(void)
{
	struct proxy x = {.what = PASS};
	struct host h[2];
	struct merge_tcp_stats stats;
	int fd[2];

	hosts_open(h, 3);
	proxy_start(&x, merge_tcp_port(h[0].net));
	h[1].list[0].port = x.port;
	hosts_start(h);
	hosts_join(h);
	hosts_close(h);
	proxy_stop(&x);
	ok(x.recorded[0] >= HANDSHAKE && x.recorded[1] >= HANDSHAKE,
	   "two handshakes were recorded");
	hosts_open(h, 1);
	if (pthread_create(&h[0].thread, NULL, host_main, &h[0]))
		BAIL("no thread");
	nap_ms(100);
	for (int kind = 0; kind < 2; kind++) {
		fd[kind] = to_port(merge_tcp_port(h[0].net));
		put(fd[kind], x.record[kind], HANDSHAKE);
	}
	nap_ms(300);
	merge_tcp_stats(h[0].net, &stats);
	ok(!h[0].connected && stats.refused >= 2, "replayed handshakes are refused");
	pthread_join(h[0].thread, NULL);
	ok(h[0].rc == -ETIMEDOUT, "the mesh is not built from them");
	like(h[0].error.message, "beta1", "the error names who is missing");
	like(h[0].error.message, "wrong secret", "and what else came");
	close(fd[0]);
	close(fd[1]);
	hosts_close(h);
}

/* ---- strangers
 * ------------------------------------------------------------------------------------ */

static void idle_connects(void)
{
	enum { IDLE = 1000 };
	static int fd[IDLE];
	struct merge_tcp_stats stats;
	struct host h[2];
	int open = 0;

	hosts_open(h, 100);
	for (int i = 0; i < IDLE; i++) {
		fd[i] = to_port(merge_tcp_port(h[0].net));
		open += fd[i] >= 0;
		if (i == IDLE / 2)
			hosts_start(h);
	}
	is(open, IDLE, "1,000 idle connects");
	merge_tcp_stats(h[0].net, &stats);
	ok(stats.pending <= 16, "at most 16 are kept");
	hosts_join(h);
	ok(!h[0].rc && !h[1].rc && h[0].equal && h[1].equal, "mesh and merges work in between");
	nap_ms(2500);
	merge_tcp_stats(h[0].net, &stats);
	is(stats.pending, 0, "after 2 s none is left");
	for (int i = 0; i < IDLE; i++)
		close(fd[i]);
	hosts_close(h);
}

static void garbage(void)
{
	static const char http[] = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
	struct merge_tcp_stats stats;
	struct host h[2];
	uint8_t noise[4096];
	uint64_t s = 1;
	int slow;

	hosts_open(h, 150);
	hosts_start(h);
	slow = to_port(merge_tcp_port(h[0].net));
	for (int i = 0; i < 40; i++) {
		int fd = to_port(merge_tcp_port(h[i & 1].net));

		for (size_t k = 0; k < sizeof(noise); k++)
			noise[k] = (uint8_t)((s = s * 6364136223846793005u + 1) >> 56);
		/* some begin as a greeting does */
		if (i % 4 == 1)
			memcpy(noise, "\x43\x4e\x4e\x4d\x01\x00\x01\x00", 8);
		if (i % 4 == 2)
			put(fd, (const uint8_t *)http, sizeof(http));
		else
			put(fd, noise, i % 4 == 3 ? 100 : sizeof(noise));
		put(slow, noise, 1);
		nap_ms(60);
		close(fd);
	}
	hosts_join(h);
	ok(!h[0].rc && !h[1].rc && h[0].equal && h[1].equal, "garbage changes nothing");
	merge_tcp_stats(h[0].net, &stats);
	ok(stats.refused >= 10, "and is counted: %llu", (unsigned long long)stats.refused);
	ok(recv(slow, noise, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN,
	   "a slow greeting is cut off after 2 s");
	close(slow);
	hosts_close(h);
}

int main(void)
{
	struct rlimit files = {4096, 4096};

	signal(SIGPIPE, SIG_IGN);
	setrlimit(RLIMIT_NOFILE, &files);
	through_a_proxy();
	damage(FLIP, 0, HANDSHAKE + 32 + 1000, "forged or damaged", "a flipped byte of a payload");
	damage(FLIP, 0, HANDSHAKE + 4, "membership epoch", "a flipped byte of the epoch");
	damage(FLIP, 0, HANDSHAKE + 20, "forged or damaged", "a flipped byte of the merge number");
	damage(FLIP, 0, HANDSHAKE + 28, "out of order", "a flipped byte of the length");
	damage(FLIP, 1, HANDSHAKE + 30, "forged or damaged control",
	       "a flipped byte of a heartbeat");
	damage(FLIP, 0, 90, "secret", "a flipped byte of a nonce");
	damage(FLIP, 1, 140, "wrong secret", "a flipped byte of a proof");
	damage(REPEAT, 0, HANDSHAKE + 10, "frame", "a repeated piece");
	damage(CUT, 0, HANDSHAKE + 5000, "closed", "a connection cut in a frame");
	damage(CUT, 1, HANDSHAKE + 200, "closed", "a control connection that is cut");
	replay();
	idle_connects();
	garbage();
	return done();
}
