/* SPDX-License-Identifier: MIT */
/*
 * tcp.c: the mesh over loopback, one thread per host: same results as the net of threads, direct
 * and ring, IPv6, rounds over UCX; refusals that name both hosts. Faults between processes are in
 * tests/cluster.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../../../nccl_merge/tcp/tcp.h"
#include "group.h"

enum { MOST = 2000000, MAXN = 5 };

struct host {
	struct merge_net *net;
	struct merge_tcp_config c;
	const struct merge_host *list;
	uint32_t n, r;
	float *in, *out, *again;
	uint64_t count;
	int rc;
	void (*spoil)(struct host *h); /* after the mesh is built */
	struct merge_error error;
};

static void *host_main(void *p)
{
	struct host *h = p;

	h->rc = merge_tcp_connect(h->net, h->list, h->n, 1, &h->error);
	if (!h->rc && h->spoil)
		h->spoil(h);
	for (int i = 0; i < 3 && !h->rc && h->count; i++)
		h->rc = merge_all_reduce(h->net, h->in, i ? h->again : h->out, h->count,
					 MERGE_OP_SUM, &h->error);
	return NULL;
}

/* Opens n meshes, connects and reduces; change() alters one host's configuration first. */
static void hosts_run(struct host *h, uint32_t n, const char *address, uint64_t count,
		      void (*change)(struct host *h))
{
	struct merge_host list[MAXN] = {0};
	pthread_t t[MAXN];

	for (uint32_t r = 0; r < n; r++) {
		h[r] = (struct host){.n = n, .r = r, .list = list, .count = count};
		h[r].c = (struct merge_tcp_config){
			.listen = address, .self = r, .table_hash = 5, .mesh_timeout_ms = 1500};
		memset(h[r].c.secret, 7, sizeof(h[r].c.secret));
		if (change)
			change(&h[r]);
		if (merge_tcp_open(&h[r].c, &h[r].net, &h[r].error))
			BAIL("%s", h[r].error.message);
		snprintf(list[r].name, sizeof(list[r].name), "alpha%u", r);
		snprintf(list[r].address, sizeof(list[r].address), "%s", address);
		list[r].port = merge_tcp_port(h[r].net);
		h[r].in = calloc(count + 1, sizeof(float));
		h[r].out = calloc(count + 1, sizeof(float));
		h[r].again = calloc(count + 1, sizeof(float));
		for (uint64_t i = 0; i < count; i++)
			h[r].in[i] = (float)((i * 7 + r * 13) % 101) / 8;
	}
	for (uint32_t r = 0; r < n; r++)
		pthread_create(&t[r], NULL, host_main, &h[r]);
	for (uint32_t r = 0; r < n; r++)
		pthread_join(t[r], NULL);
}

static void hosts_close(struct host *h, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++) {
		merge_net_close(h[r].net);
		free(h[r].in);
		free(h[r].out);
		free(h[r].again);
	}
}

static int open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (d && readdir(d))
		n++;
	closedir(d);
	return n;
}

static void use_ring(struct host *h)
{
	h->c.ring_from = 1;
}

static void no_mac(struct host *h)
{
	h->c.no_mac = true;
}

static void values(uint32_t n, const char *address, uint64_t count, void (*change)(struct host *),
		   const char *name)
{
	struct host h[MAXN];
	uint64_t bad = 0;
	int files = open_files();

	hosts_run(h, n, address, count, change);
	for (uint32_t r = 0; r < n; r++) {
		if (h[r].rc)
			printf("# host %u: %s\n", r, h[r].error.message);
		bad += h[r].rc != 0;
		for (uint64_t i = 0; i < count; i++) {
			float sum = 0;

			for (uint32_t k = 0; k < n; k++)
				sum += h[k].in[i];
			bad += h[r].out[i] != sum || h[r].again[i] != sum;
		}
	}
	ok(!bad, "%s: %u hosts, %llu floats", name, n, (unsigned long long)count);
	hosts_close(h, n);
	is(open_files(), files, "no file is left open");
}

static void odd_secret(struct host *h)
{
	if (h->r == 1)
		h->c.secret[3] ^= 1;
}

static void odd_table(struct host *h)
{
	h->c.table_hash += h->r == 1;
}

static void odd_ring(struct host *h)
{
	h->c.ring_from = h->r == 1 ? 1 : 0;
}

static void odd_mac(struct host *h)
{
	h->c.no_mac = h->r == 1;
}

static void use_ucx(struct host *h)
{
	h->c.transport = MERGE_TRANSPORT_UCX;
	h->c.ucx_tls = "tcp,self";
}

static void ucx_ring(struct host *h)
{
	use_ucx(h);
	use_ring(h);
}

static void ucx_no_mac(struct host *h)
{
	use_ucx(h);
	no_mac(h);
}

static void odd_transport(struct host *h)
{
	if (h->r == 1)
		use_ucx(h);
}

static void odd_job(struct host *h)
{
	h->c.job[0] = h->r == 1;
}

static void refused(void (*change)(struct host *), const char *what, const char *text)
{
	struct host h[2];

	hosts_run(h, 2, "127.0.0.1", 10, change);
	for (int r = 0; r < 2; r++) {
		ok(h[r].rc < 0, "%s: host %d refuses", what, r);
		like(h[r].error.message, r ? "alpha0" : "alpha1", "the message names the other");
		like(h[r].error.message, text, "and says why");
	}
	hosts_close(h, 2);
}

static void over_ucx(void)
{
	struct merge_tcp_config c = {.listen = "127.0.0.1",
				     .transport = MERGE_TRANSPORT_UCX,
				     .ucx_tls = "no_such_transport"};
	struct sigaction before, after;
	struct merge_net *net;
	struct merge_error e;

	if (!group_has(GROUP_UCX))
		return;
	values(2, "127.0.0.1", 1000, use_ucx, "UCX, direct");
	values(3, "127.0.0.1", 300000, use_ucx, "UCX, direct");
	values(5, "127.0.0.1", 17, use_ucx, "UCX, direct");
	values(2, "127.0.0.1", 300000, ucx_ring, "UCX, ring");
	values(4, "127.0.0.1", MOST, ucx_ring, "UCX, ring");
	values(3, "127.0.0.1", 300000, ucx_no_mac, "UCX, without MAC");
	refused(odd_transport, "another merge_transport", "merge_transport");
	is(merge_tcp_open(&c, &net, &e), -EIO, "a transport that UCX does not know");
	like(e.message, "UCX", "is named");
	sigaction(SIGSEGV, NULL, &before);
	c.ucx_tls = "tcp,self";
	is(merge_tcp_open(&c, &net, &e), 0, "one that it knows");
	sigaction(SIGSEGV, NULL, &after);
	ok(before.sa_handler == after.sa_handler, "the handler of a crash is not taken over");
	merge_net_close(net);
}

/* Its data frames carry the MAC of another key. */
static void other_key(struct host *h)
{
	struct tcp_conn c = {.dialer = true};
	struct tcp_mac *mac = &((struct tcp_net *)h->net)->peer[0].data.out;
	uint64_t seq = mac->seq;

	tcp_mac_close(mac);
	tcp_mac_open(mac, h->c.secret, "another", &c);
	mac->seq = seq;
}

static void forge(struct host *h)
{
	h->spoil = h->r == 1 ? other_key : NULL;
}

static void forge_ucx(struct host *h)
{
	use_ucx(h);
	forge(h);
}

static void forged(void (*change)(struct host *), const char *name)
{
	struct host h[2];
	bool used = false;

	hosts_run(h, 2, "127.0.0.1", 1000, change);
	is(h[0].rc, -EBADMSG, name);
	like(h[0].error.message, "alpha1: a forged or damaged frame", "the sender is named");
	ok(h[1].rc < 0, "%s: and told", name);
	for (int i = 0; i < 496; i++) /* its own shard, in grains of 16: it summed nothing */
		used |= h[0].out[i] != 0;
	ok(!used, "%s: nothing of it was used", name);
	hosts_close(h, 2);
}

static void arguments(void)
{
	struct merge_tcp_config c = {.listen = "localhost"};
	struct merge_host bad = {.name = "x", .address = "example.org", .port = 1};
	struct merge_net *net;
	struct merge_error e;

	is(merge_tcp_open(&c, &net, &e), -EINVAL, "a name instead of an address");
	c.listen = "127.0.0.1";
	c.port_first = 2;
	c.port_last = 1;
	is(merge_tcp_open(&c, &net, &e), -EINVAL, "an empty range of ports");
	c.port_first = 0;
	c.port_last = 0;
	is(merge_tcp_open(&c, &net, &e), 0, "any port");
	is(merge_tcp_connect(net, &bad, 1, 1, &e), -EINVAL, "a host by name");
	is(merge_tcp_connect(net, &bad, 0, 1, &e), -EINVAL, "no hosts");
	snprintf(bad.address, sizeof(bad.address), "127.0.0.1");
	is(merge_tcp_connect(net, &bad, 1, 1, &e), 0, "one host is a mesh");
	merge_net_close(net);
}

int main(void)
{
	values(2, "127.0.0.1", 1000, NULL, "direct");
	values(3, "127.0.0.1", 300000, NULL, "direct");
	values(5, "127.0.0.1", 17, NULL, "direct");
	values(2, "127.0.0.1", 300000, use_ring, "ring");
	values(4, "127.0.0.1", MOST, use_ring, "ring");
	values(3, "127.0.0.1", 300000, no_mac, "without MAC");
	values(2, "::1", 1000, NULL, "IPv6");
	refused(odd_secret, "another secret", "secret");
	refused(odd_table, "another tensor table", "tensor table");
	refused(odd_ring, "another ring threshold", "direct and ring");
	refused(odd_mac, "another merge_mac", "merge_mac");
	refused(odd_job, "another job", "did not connect");
	arguments();
	forged(forge, "a frame with another key's MAC");
	over_ucx();
	if (group_has(GROUP_UCX))
		forged(forge_ucx, "UCX, a frame with another key's MAC");
	return done();
}
