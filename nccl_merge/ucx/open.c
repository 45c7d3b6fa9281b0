/* SPDX-License-Identifier: MIT */
/*
 * open.c: context, worker and endpoints of the UCX back end. A worker lives as long as a mesh: what
 * was on its way to the old one cannot reach the next.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "peers.h"

#define ADDRESS_MAX 4092
#define CLOSE_SECONDS 2.  /* of endpoints */
#define CANCEL_SECONDS .1 /* of requests, after that */
#define TEND_MS 5	  /* the control thread comes so often, */
#define TEND_SECONDS 2.	  /* for so long; then at its own pace */

static int failed(struct ucx *u, const char *what, ucs_status_t status, struct merge_error *error)
{
	return merge_fail(error, status == UCS_ERR_NO_MEMORY ? -ENOMEM : -EIO, MERGE_NO_HOST,
			  "UCX: %s: %s", what, u->lib.ucs_status_string(status));
}

/* The interface that has this address; without one UCX takes any, also those the peers cannot
 * reach. */
static void interface_of(const char *listen, char *out, size_t size)
{
	struct ifaddrs *all = NULL;
	struct in6_addr v6;
	struct in_addr v4;
	bool is4 = inet_pton(AF_INET, listen, &v4) == 1;

	out[0] = 0;
	if ((!is4 && inet_pton(AF_INET6, listen, &v6) != 1) || getifaddrs(&all))
		return;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		const struct sockaddr *a = i->ifa_addr;

		if (!a || a->sa_family != (is4 ? AF_INET : AF_INET6))
			continue;
		if (is4 ? !memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr, &v4,
				  sizeof(v4))
			: !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, &v6,
				  sizeof(v6)))
			snprintf(out, size, "%s", i->ifa_name);
	}
	freeifaddrs(all);
}

/* Nothing else can be used: it was not named, or this host has no such device. */
static bool only_tcp(const char *tls)
{
	DIR *devices;
	int n = 0;

	if (!strcmp(tls, "tcp") || !strcmp(tls, "tcp,self"))
		return true;
	devices = opendir("/sys/class/infiniband");
	while (devices && n < 3 && readdir(devices))
		n++;
	if (devices)
		closedir(devices);
	return n < 3; /* itself and its parent */
}

static int configure(struct ucx *u, const char *tls, bool tcp, const char *devices,
		     const char *listen, struct merge_error *error)
{
	ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
			       .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP};
	char interface[64] = "";
	ucp_config_t *config;
	ucs_status_t status = u->lib.ucp_config_read(NULL, NULL, &config);

	if (status != UCS_OK)
		return failed(u, "configuration", status, error);
	if (!devices && tcp) {
		interface_of(listen, interface, sizeof(interface));
		devices = interface[0] ? interface : NULL;
	}
	status = u->lib.ucp_config_modify(config, "TLS", tls);
	/*
	 * UCX 1.13 ends the process by an assertion when a peer dies within a transfer without
	 * copies over its TCP transport. Copied ones end as they should.
	 */
	if (status == UCS_OK && tcp)
		status = u->lib.ucp_config_modify(config, "RNDV_THRESH", "inf");
	if (status == UCS_OK && tcp)
		status = u->lib.ucp_config_modify(config, "ZCOPY_THRESH", "inf");
	if (status == UCS_OK && devices)
		status = u->lib.ucp_config_modify(config, "NET_DEVICES", devices);
	if (status == UCS_OK)
		status = u->lib.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
						 &u->context);
	u->lib.ucp_config_release(config);
	return status == UCS_OK ? 0 : failed(u, "context", status, error);
}

int ucx_open(const char *tls, const char *devices, const char *listen, struct ucx **out,
	     struct merge_error *error)
{
	struct ucx *u = calloc(1, sizeof(*u));
	bool tcp;
	int rc;

	if (!u)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for UCX");
	if (!tls)
		tls = getenv("UCX_TLS");
	if (!devices)
		devices = getenv("UCX_NET_DEVICES");
	/* no shared memory: it would tie hosts together that are containers of one machine */
	if (!tls)
		tls = "rc,dc,ud,tcp,self";
	tcp = only_tcp(tls);
	rc = ucx_load(&u->lib, !tcp, error);
	if (!rc)
		rc = configure(u, tls, tcp, devices, listen, error);
	if (rc) {
		free(u);
		return rc;
	}
	pthread_mutex_init(&u->use, NULL);
	*out = u;
	return 0;
}

void ucx_close(struct ucx *u)
{
	if (!u)
		return;
	ucx_break(u);
	u->lib.ucp_cleanup(u->context);
	pthread_mutex_destroy(&u->use);
	free(u);
}

/* ---- end of a mesh ------------------------------------------------------------------------------
 */

static bool over(struct ucx *u, void **request)
{
	if (*request && u->lib.ucp_request_check_status(*request) != UCS_INPROGRESS) {
		u->lib.ucp_request_free(*request);
		*request = NULL;
	}
	return !*request;
}

static void cancel(struct ucx *u, struct ucx_lane *lane)
{
	for (uint32_t i = 0; i < lane->n; i++) {
		struct ucx_slot *s = &lane->slot[(lane->first + i) % UCX_WINDOW];
		void *request[2] = {s->head_request, s->body_request};

		for (int k = 0; k < 2; k++)
			if (request[k] &&
			    u->lib.ucp_request_check_status(request[k]) == UCS_INPROGRESS)
				u->lib.ucp_request_cancel(u->worker, request[k]);
	}
}

/* The library gives up by an assertion if it finds a request that nobody has released. */
static void release(struct ucx *u, void **request)
{
	if (*request)
		u->lib.ucp_request_free(*request);
	*request = NULL;
}

static bool lane_over(struct ucx *u, struct ucx_lane *lane)
{
	bool all = true;

	for (uint32_t i = 0; i < lane->n; i++) {
		struct ucx_slot *s = &lane->slot[(lane->first + i) % UCX_WINDOW];

		all &= over(u, &s->head_request);
		all &= over(u, &s->body_request);
	}
	return all;
}

/*
 * Endpoints first, by force: sends to a dead host end then. Receives belong to the worker, not to
 * the endpoint: they are cancelled one by one, and one that has got a part of its message does not
 * even end by that. At last the worker goes, and with it who could still write.
 */
void ucx_break(struct ucx *u)
{
	ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
				     .flags = UCP_EP_CLOSE_FLAG_FORCE};
	double begin = merge_now(), closed = 0;
	void *closing[MERGE_HOSTS_MAX] = {NULL};
	bool ended = false;

	if (!u->has_worker)
		return;
	atomic_store(&u->owed, false);
	for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++) {
		if (!u->peer[i].ep)
			continue;
		closing[i] = u->lib.ucp_ep_close_nbx(u->peer[i].ep, &force);
		if (!UCS_PTR_IS_PTR(closing[i]))
			closing[i] = NULL;
		u->peer[i].ep = NULL;
	}
	for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++) {
		cancel(u, &u->peer[i].out);
		cancel(u, &u->peer[i].in);
	}
	while (!ended && (closed == 0 || merge_now() < closed + CANCEL_SECONDS)) {
		bool all = true;

		for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++)
			all &= over(u, &closing[i]);
		if (closed == 0 && (all || merge_now() > begin + CLOSE_SECONDS))
			closed = merge_now();
		ended = all & over(u, &u->flush);
		for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++) {
			ended &= lane_over(u, &u->peer[i].out);
			ended &= lane_over(u, &u->peer[i].in);
		}
		if (!ended)
			u->lib.ucp_worker_progress(u->worker);
	}
	release(u, &u->flush);
	for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++) {
		release(u, &closing[i]);
		for (int k = 0; k < UCX_WINDOW; k++) {
			release(u, &u->peer[i].out.slot[k].head_request);
			release(u, &u->peer[i].out.slot[k].body_request);
			release(u, &u->peer[i].in.slot[k].head_request);
			release(u, &u->peer[i].in.slot[k].body_request);
		}
	}
	u->lib.ucp_worker_destroy(u->worker);
	u->has_worker = false;
	memset(u->peer, 0, sizeof(u->peer));
}

void ucx_down(struct ucx *u)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->use);
	ucx_break(u);
	pthread_mutex_unlock(&u->use);
}

void ucx_drain(struct ucx *u, double seconds)
{
	double until = merge_now() + seconds;

	if (!u)
		return;
	pthread_mutex_lock(&u->use);
	while (!ucx_flushed(u) && merge_now() < until)
		poll(NULL, 0, 1);
	pthread_mutex_unlock(&u->use);
}

int ucx_tend(struct ucx *u)
{
	bool soon;

	if (!u || !atomic_load(&u->owed))
		return 0;
	if (pthread_mutex_trylock(&u->use))
		return TEND_MS;
	soon = !ucx_flushed(u);
	/* what is not out by then waits for a host that reads nothing */
	if (soon && merge_now() > u->owed_since + TEND_SECONDS)
		soon = false;
	pthread_mutex_unlock(&u->use);
	return soon ? TEND_MS : 0;
}

/* ---- begin of a mesh
 * -----------------------------------------------------------------------------
 */

/* May come while a call into the library is under way: notes only. */
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
	struct ucx_peer *p = arg;

	p->status = status;
}

struct address {
	uint32_t length;
	uint8_t byte[ADDRESS_MAX];
};

static int own_address(struct ucx *u, struct address *out, struct merge_error *error)
{
	ucp_address_t *address;
	size_t length;
	ucs_status_t status = u->lib.ucp_worker_get_address(u->worker, &address, &length);

	if (status != UCS_OK)
		return failed(u, "address", status, error);
	memset(out, 0, sizeof(*out));
	if (length <= sizeof(out->byte)) {
		out->length = (uint32_t)length;
		memcpy(out->byte, address, length);
	}
	u->lib.ucp_worker_release_address(u->worker, address);
	if (!out->length)
		return merge_fail(error, -E2BIG, MERGE_NO_HOST,
				  "UCX: an address of %zu bytes; name fewer devices in "
				  "ucx_net_devices",
				  length);
	return 0;
}

/* Over the TCP streams, which are authenticated. */
static int swap_addresses(struct tcp_net *t, const struct address *mine, struct address *all,
			  struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {.what = "UCX addresses", .x = x};

	for (uint32_t r = 0; r < t->net.size; r++)
		if (r != t->net.rank)
			x[round.n++] = (struct merge_xfer){.peer = r,
							   .send = mine,
							   .send_len = sizeof(*mine),
							   .recv = &all[r],
							   .recv_len = sizeof(all[r])};
	return tcp_round(&t->net, &round, error);
}

static int connect_all(struct tcp_net *t, const struct address *all, struct merge_error *error)
{
	struct ucx *u = t->ucx;

	for (uint32_t r = 0; r < t->net.size; r++) {
		struct ucx_peer *p = &u->peer[t->member[r]];
		ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
							UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
							UCP_EP_PARAM_FIELD_ERR_HANDLER,
					  .address = (const ucp_address_t *)all[r].byte,
					  .err_mode = UCP_ERR_HANDLING_MODE_PEER,
					  .err_handler = {on_error, p}};
		ucs_status_t status;

		if (r == t->net.rank)
			continue;
		if (!all[r].length || all[r].length > sizeof(all[r].byte))
			return merge_net_fault(&t->net, -EPROTO, r, "a UCX address of no use",
					       error);
		p->ucx = u;
		status = u->lib.ucp_ep_create(u->worker, &params, &p->ep);
		if (status != UCS_OK) {
			p->ep = NULL;
			return merge_net_fault(&t->net, -EHOSTUNREACH, r,
					       u->lib.ucs_status_string(status), error);
		}
	}
	return 0;
}

/* One small message each way: UCX connects at the first one, and both sides must be there for it.
 */
static int greet(struct tcp_net *t, double seconds, struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {.what = "UCX greeting", .x = x};
	uint32_t word[MERGE_HOSTS_MAX];

	for (uint32_t r = 0; r < t->net.size; r++)
		if (r != t->net.rank)
			x[round.n++] = (struct merge_xfer){.peer = r,
							   .send = &t->net.epoch,
							   .send_len = sizeof(word[r]),
							   .recv = &word[r],
							   .recv_len = sizeof(word[r])};
	return ucx_round_within(t, &round, seconds, error);
}

int ucx_up(struct tcp_net *t, double seconds, struct merge_error *error)
{
	ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
				      .thread_mode = UCS_THREAD_MODE_SERIALIZED};
	struct ucx *u = t->ucx;
	struct address mine, *all = calloc(t->net.size, sizeof(*all));
	ucs_status_t status;
	int rc;

	if (!all)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for UCX addresses");
	status = u->lib.ucp_worker_create(u->context, &params, &u->worker);
	if (status != UCS_OK) {
		free(all);
		return failed(u, "worker", status, error);
	}
	u->has_worker = true;
	status = u->lib.ucp_worker_get_efd(u->worker, &u->efd);
	rc = status == UCS_OK ? own_address(u, &mine, error)
			      : failed(u, "no descriptor to wait on", status, error);
	if (!rc)
		rc = swap_addresses(t, &mine, all, error);
	if (!rc)
		rc = connect_all(t, all, error);
	free(all);
	if (!rc)
		rc = greet(t, seconds, error);
	if (rc)
		ucx_down(u);
	return rc;
}
