/* SPDX-License-Identifier: MIT */
/*
 * mesh.c: opening, meshing, recovering and closing, as the merging thread sees them.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "../ucx/ucx.h"

#define REMESH_SECONDS 4. /* all survivors were just confirmed to be there */
#define RECOVER_TRIES 8
#define DRAIN_SECONDS 1. /* what was sent shall arrive */

static void tcp_close(struct merge_net *net);
static void tcp_fault(struct merge_net *net, int code, uint32_t rank, const char *text);
static uint32_t tcp_identity(const struct merge_net *net, uint32_t rank, const char **name);
static const struct merge_net_ops tcp_ops = {
	.round = tcp_round,
	.recover = tcp_recover,
	.close = tcp_close,
	.abort = tcp_abort,
	.fault = tcp_fault,
	.identity = tcp_identity,
};
static const struct merge_net_ops ucx_ops = {
	.round = ucx_round,
	.recover = tcp_recover,
	.close = tcp_close,
	.abort = tcp_abort,
	.fault = tcp_fault,
	.identity = tcp_identity,
};

static int bind_port(int fd, struct sockaddr_storage *a, socklen_t length, uint32_t first,
		     uint32_t last)
{
	for (uint32_t port = first; port <= last; port++) {
		/* the same place in both address families */
		((struct sockaddr_in *)a)->sin_port = htons((uint16_t)port);
		if (!bind(fd, (struct sockaddr *)a, length))
			return 0;
		if (errno != EADDRINUSE)
			break;
	}
	return -errno;
}

static int open_listener(struct tcp_net *t, struct merge_error *error)
{
	struct sockaddr_storage a = {0};
	struct sockaddr_in *v4 = (struct sockaddr_in *)&a;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a;
	socklen_t length = sizeof(*v4);
	int rc = 0, one = 1;

	if (inet_pton(AF_INET, t->listen, &v4->sin_addr) == 1) {
		a.ss_family = AF_INET;
	} else if (inet_pton(AF_INET6, t->listen, &v6->sin6_addr) == 1) {
		a.ss_family = AF_INET6;
		length = sizeof(*v6);
	} else {
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "merge_listen '%s' is no numeric address", t->listen);
	}
	t->listen_fd = socket(a.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (t->listen_fd < 0)
		return merge_fail(error, -errno, MERGE_NO_HOST, "socket: %s", strerror(errno));
	(void)!setsockopt(t->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	rc = bind_port(t->listen_fd, &a, length, t->config.port_first, t->config.port_last);
	if (!rc && (listen(t->listen_fd, 128) ||
		    getsockname(t->listen_fd, (struct sockaddr *)&a, &length)))
		rc = -errno;
	if (rc)
		return merge_fail(error, rc, MERGE_NO_HOST,
				  "cannot listen on %s ports %u to %u: %s", t->listen,
				  t->config.port_first, t->config.port_last, strerror(-rc));
	t->port = ntohs(v4->sin_port);
	return 0;
}

static int open_polls(struct tcp_net *t, struct merge_error *error)
{
	struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &t->wake_fd};
	struct epoll_event in = {.events = EPOLLIN, .data.ptr = &t->listen_fd};

	t->poll_fd = epoll_create1(EPOLL_CLOEXEC);
	t->data_poll = epoll_create1(EPOLL_CLOEXEC);
	t->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (t->poll_fd < 0 || t->data_poll < 0 || t->wake_fd < 0 ||
	    epoll_ctl(t->poll_fd, EPOLL_CTL_ADD, t->wake_fd, &wake) ||
	    epoll_ctl(t->poll_fd, EPOLL_CTL_ADD, t->listen_fd, &in))
		return merge_fail(error, -errno, MERGE_NO_HOST, "epoll: %s", strerror(errno));
	return 0;
}

static void close_files(struct tcp_net *t)
{
	int *fd[] = {&t->listen_fd, &t->poll_fd, &t->data_poll, &t->wake_fd};

	for (int i = 0; i < 4; i++)
		if (*fd[i] >= 0)
			close(*fd[i]);
	ucx_close(t->ucx);
	OPENSSL_cleanse(t->config.secret, sizeof(t->config.secret));
	free(t->host);
	free(t);
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
	return value ? value : otherwise;
}

static void set_config(struct tcp_net *t, const struct merge_tcp_config *c)
{
	t->config = *c;
	snprintf(t->listen, sizeof(t->listen), "%s", c->listen ? c->listen : "");
	snprintf(t->congestion, sizeof(t->congestion), "%s", c->congestion ? c->congestion : "");
	t->config.listen = t->config.congestion = NULL;
	t->config.ucx_tls = t->config.ucx_net_devices = NULL;
	t->config.mesh_timeout_ms = or_default(c->mesh_timeout_ms, 10000);
	t->config.merge_timeout_ms = or_default(c->merge_timeout_ms, 60000);
	t->config.silence_ms = or_default(c->silence_ms, 4000);
	t->config.user_timeout_ms = or_default(c->user_timeout_ms, 3000);
	t->net.ops = c->transport == MERGE_TRANSPORT_UCX ? &ucx_ops : &tcp_ops;
	t->net.ring_from = c->ring_from;
	t->listen_fd = t->poll_fd = t->data_poll = t->wake_fd = -1;
	t->beat = t->ticked = merge_now();
	for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++)
		t->peer[i].data.fd = -1;
}

int merge_tcp_open(const struct merge_tcp_config *config, struct merge_net **out,
		   struct merge_error *error)
{
	pthread_condattr_t attr;
	struct tcp_net *t;
	int rc;

	if (config->self >= MERGE_HOSTS_MAX || config->port_first > config->port_last ||
	    (unsigned)config->transport > MERGE_TRANSPORT_UCX)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "bad identity, range of ports or transport");
	t = calloc(1, sizeof(*t));
	if (!t)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for a mesh");
	set_config(t, config);
	rc = open_listener(t, error);
	if (!rc)
		rc = open_polls(t, error);
	if (!rc && config->transport == MERGE_TRANSPORT_UCX)
		rc = ucx_open(config->ucx_tls, config->ucx_net_devices, t->listen, &t->ucx, error);
	if (rc) {
		close_files(t);
		return rc;
	}
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->change, &attr);
	pthread_condattr_destroy(&attr);
	rc = -pthread_create(&t->thread, NULL, tcp_control_main, t);
	if (rc) {
		pthread_cond_destroy(&t->change);
		pthread_mutex_destroy(&t->lock);
		close_files(t);
		return merge_fail(error, rc, MERGE_NO_HOST, "no control thread: %s", strerror(-rc));
	}
	t->stats.threads = 1;
	*out = &t->net;
	return 0;
}

static void wake(struct tcp_net *t)
{
	uint64_t one = 1;

	(void)!write(t->wake_fd, &one, sizeof(one));
}

static void tcp_close(struct merge_net *net)
{
	struct tcp_net *t = (struct tcp_net *)net;

	ucx_drain(t->ucx, DRAIN_SECONDS);
	ucx_down(t->ucx);
	pthread_mutex_lock(&t->lock);
	t->state = NET_CLOSING;
	pthread_mutex_unlock(&t->lock);
	wake(t);
	pthread_join(t->thread, NULL);
	pthread_cond_destroy(&t->change);
	pthread_mutex_destroy(&t->lock);
	close_files(t);
}

static void tcp_fault(struct merge_net *net, int code, uint32_t rank, const char *text)
{
	struct tcp_net *t = (struct tcp_net *)net;

	pthread_mutex_lock(&t->lock);
	tcp_fault_locked(t, code, t->member[rank], "host %s: %s", tcp_name(t, t->member[rank]),
			 text);
	pthread_mutex_unlock(&t->lock);
}

static uint32_t tcp_identity(const struct merge_net *net, uint32_t rank, const char **name)
{
	const struct tcp_net *t = (const struct tcp_net *)net;

	*name = tcp_name(t, t->member[rank]);
	return t->member[rank];
}

uint16_t merge_tcp_port(const struct merge_net *net)
{
	return ((const struct tcp_net *)net)->port;
}

void merge_tcp_stats(const struct merge_net *net, struct merge_tcp_stats *out)
{
	struct tcp_net *t = (struct tcp_net *)net;

	pthread_mutex_lock(&t->lock);
	*out = t->stats;
	out->pending = t->n_pending;
	pthread_mutex_unlock(&t->lock);
}

/* Deadline: that of the mesh, kept by the control thread, and some seconds for its own sake. */
static int mesh(struct tcp_net *t, uint32_t epoch, const uint32_t *member, uint32_t n,
		double seconds, struct merge_error *error)
{
	struct timespec until;
	int rc = 0;

	ucx_down(t->ucx);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)seconds + 10;
	pthread_mutex_lock(&t->lock);
	if (t->aborted) {
		pthread_mutex_unlock(&t->lock);
		return merge_fail(error, -ECANCELED, MERGE_NO_HOST,
				  "the job was ended on this host");
	}
	memcpy(t->member, member, n * sizeof(*member));
	t->n_members = n;
	t->member_hash = merge_hash(n, member, n * sizeof(*member));
	t->epoch = epoch;
	t->mesh_seconds = seconds;
	t->remesh = true;
	t->state = NET_MESHING;
	wake(t);
	while (!rc && !t->aborted && (t->remesh || t->state == NET_MESHING))
		rc = pthread_cond_timedwait(&t->change, &t->lock, &until);
	if (t->aborted) {
		rc = merge_fail(error, -ECANCELED, MERGE_NO_HOST, "the job was ended on this host");
	} else if (t->state == NET_READY) {
		rc = 0;
	} else if (t->state == NET_FAILED) {
		if (error)
			*error = t->why;
		rc = t->why.code;
	} else {
		rc = merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST, "the mesh was not built");
	}
	t->net.size = n;
	t->net.epoch = epoch;
	for (uint32_t i = 0; i < n; i++)
		if (member[i] == t->config.self)
			t->net.rank = i;
	pthread_mutex_unlock(&t->lock);
	if (!rc && t->ucx)
		rc = ucx_up(t, seconds, error);
	return rc;
}

int merge_tcp_connect(struct merge_net *net, const struct merge_host *host, uint32_t n,
		      uint32_t epoch, struct merge_error *error)
{
	struct tcp_net *t = (struct tcp_net *)net;
	uint32_t member[MERGE_HOSTS_MAX];
	struct sockaddr_in6 a;
	struct merge_host *copy;

	if (!n || n > MERGE_HOSTS_MAX || t->config.self >= n || !epoch || t->host)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "bad list of hosts, or connected before");
	for (uint32_t i = 0; i < n; i++) {
		member[i] = i;
		if (!memchr(host[i].name, 0, sizeof(host[i].name)) ||
		    !memchr(host[i].address, 0, sizeof(host[i].address)) ||
		    (inet_pton(AF_INET, host[i].address, &a) != 1 &&
		     inet_pton(AF_INET6, host[i].address, &a) != 1))
			return merge_fail(error, -EINVAL, i,
					  "host %.63s: '%.63s' is no numeric address", host[i].name,
					  host[i].address);
	}
	copy = calloc(n, sizeof(*copy));
	if (!copy)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for %u hosts", n);
	memcpy(copy, host, n * sizeof(*copy));
	pthread_mutex_lock(&t->lock);
	t->host = copy;
	t->n_hosts = n;
	pthread_mutex_unlock(&t->lock);
	return mesh(t, epoch, member, n, t->config.mesh_timeout_ms * 1e-3, error);
}

/* ---- after a fault ----------------------------------------------------------------------------
 */

static int check_decision(struct tcp_net *t, const struct merge_decision *d,
			  const struct merge_error *why, struct merge_error *error)
{
	uint32_t least = t->config.min_hosts ? t->config.min_hosts : t->n_hosts;
	bool here = false;

	if (d->n > t->n_hosts || d->epoch <= t->epoch)
		return merge_fail(error, -EPROTO, MERGE_NO_HOST,
				  "the coordinator confirmed %u hosts at epoch %u", d->n, d->epoch);
	for (uint32_t i = 0; i < d->n; i++) {
		if (d->member[i] >= t->n_hosts || (i && d->member[i] <= d->member[i - 1]))
			return merge_fail(error, -EPROTO, MERGE_NO_HOST,
					  "the coordinator confirmed host %u", d->member[i]);
		here |= d->member[i] == t->config.self;
	}
	if (!here)
		return merge_fail(error, -ESHUTDOWN, t->config.self,
				  "the others go on without host %s: %s",
				  tcp_name(t, t->config.self), why->message);
	if (d->n < least)
		return merge_fail(error, -EHOSTUNREACH, why->host,
				  "%u hosts are left, min_hosts is %u: %s", d->n, least,
				  why->message);
	return 0;
}

int tcp_recover(struct merge_net *net, struct merge_error *error)
{
	struct tcp_net *t = (struct tcp_net *)net;
	struct merge_decision d;
	struct merge_error why;
	uint8_t lost[MERGE_HOSTS_MAX];
	int rc = -EHOSTUNREACH;

	for (int tries = 0; tries < RECOVER_TRIES; tries++) {
		if (atomic_load(&net->aborted))
			return merge_fail(error, -ECANCELED, MERGE_NO_HOST,
					  "the job was ended on this host");
		memset(lost, 0, sizeof(lost));
		memset(&d, 0, sizeof(d));
		pthread_mutex_lock(&t->lock);
		tcp_fault_locked(t, -ECANCELED, MERGE_NO_HOST, "the merge was given up here");
		why = t->why;
		for (uint32_t i = 0; i < t->n_hosts; i++)
			lost[i] = t->peer[i].lost && i != t->config.self;
		if (why.host < t->n_hosts && why.host != t->config.self)
			lost[why.host] = 1;
		pthread_mutex_unlock(&t->lock);
		if (!t->config.confirm)
			return merge_fail(error, -EHOSTUNREACH, why.host, "%s", why.message);
		rc = t->config.confirm(t->config.context, t->epoch, lost, &why, &d);
		if (atomic_load(&net->aborted))
			return merge_fail(error, -ECANCELED, MERGE_NO_HOST,
					  "the job was ended on this host");
		if (rc)
			return merge_fail(error, rc, why.host, "%s", why.message);
		rc = check_decision(t, &d, &why, error);
		if (rc)
			return rc;
		rc = mesh(t, d.epoch, d.member, d.n, REMESH_SECONDS, error);
		if (!rc || rc == -ECANCELED)
			break;
	}
	return rc;
}
