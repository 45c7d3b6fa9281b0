/* SPDX-License-Identifier: MIT */
/*
 * lab.c: the network of namespaces, the processes, and the coordinator.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lab.h"

#define ASK_SECONDS 2. /* how long the others have to notice a fault too */

static pid_t owner;
/* the bridge is in the namespace after those of the hosts */
_Static_assert(LAB_HOSTS == 4, "names below");

double lab_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static __attribute__((format(printf, 1, 2))) int shell(const char *fmt, ...)
{
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	return system(line);
}

/* ---- network -----------------------------------------------------------------------------------
 */

static void network_down(void)
{
	if (getpid() != owner)
		return;
	for (int i = 0; i <= LAB_HOSTS; i++)
		shell("ip netns del mrg%d.%d 2>/dev/null", (int)owner, i);
}

static void on_signal(int signal)
{
	network_down();
	_exit(128 + signal);
}

/* Namespaces are named after the process, so that those of a killed test can be told and removed.
 */
static void remove_stale(void)
{
	shell("ip netns list 2>/dev/null | while read -r ns rest; do pid=${ns#mrg}; "
	      "pid=${pid%%.*}; "
	      "case $ns in mrg[0-9]*.[0-9]) [ -d /proc/$pid ] || ip netns del $ns ;; esac; done");
}

void lab_network(void)
{
	int rc;

	owner = getpid();
	remove_stale();
	atexit(network_down);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGPIPE, SIG_IGN);
	rc = shell("ip netns add mrg%d.4 && ip -n mrg%d.4 link add name bridge0 type bridge && "
		   "ip -n mrg%d.4 link set bridge0 up",
		   owner, owner, owner);
	for (int i = 0; i < LAB_HOSTS && !rc; i++)
		rc = shell(
			"ns=mrg%d.%d hub=mrg%d.4; ip netns add $ns && "
			"ip -n $hub link add v%d type veth peer name eth0 netns $ns && "
			"ip -n $hub link set v%d master bridge0 up && ip -n $ns link set lo up && "
			"ip -n $ns addr add 10.99.0.%d/24 dev eth0 && ip -n $ns link set eth0 up",
			owner, i, owner, i, i, i + 1);
	if (rc)
		BAIL("no network namespaces here; they need root and iproute2");
}

void lab_link(uint32_t host, bool up)
{
	if (shell("ip -n mrg%d.4 link set v%u %s", owner, host, up ? "up" : "down"))
		BAIL("link of host %u", host);
}

void lab_rate(uint32_t mbit)
{
	for (int i = 0; i < LAB_HOSTS; i++) {
		shell("ip netns exec mrg%d.%d tc qdisc del dev eth0 root 2>/dev/null", owner, i);
		if (mbit &&
		    shell("ip netns exec mrg%d.%d tc qdisc add dev eth0 root tbf rate %umbit "
			  "burst 128kb latency 200ms",
			  owner, i, mbit))
			BAIL("no rate limit for host %d", i);
	}
}

static void enter(uint32_t host)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/run/netns/mrg%d.%u", (int)owner, host);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		_exit(4);
	close(fd);
}

/* ---- processes ---------------------------------------------------------------------------------
 */

static void command(struct lab *lab, uint32_t i, struct lab_command c)
{
	if (lab->host[i].alive &&
	    send(lab->host[i].fd, &c, sizeof(c), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(c))
		printf("# host %u takes no order\n", i);
}

static void start_host(struct lab *lab, uint32_t i)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		BAIL("socketpair");
	fflush(stdout);
	lab->host[i] = (struct lab_host){.pid = fork(), .fd = pair[0], .alive = true, .busy = true};
	if (lab->host[i].pid < 0)
		BAIL("fork");
	if (!lab->host[i].pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		for (uint32_t k = 0; k <= i; k++)
			if (k == i || lab->host[k].fd >= 0)
				close(lab->host[k].fd);
		enter(i);
		_exit(lab_host_main(&lab->spec, i, pair[1]));
	}
	close(pair[1]);
	lab->member[i] = true;
}

uint32_t lab_start(struct lab *lab, const struct lab_spec *spec)
{
	uint32_t connected = 0;

	memset(lab, 0, sizeof(*lab));
	lab->spec = *spec;
	lab->epoch = 2;
	lab_rate(spec->rate_mbit);
	for (uint32_t i = 0; i < spec->n; i++)
		start_host(lab, i);
	lab_serve(lab, 10);
	for (uint32_t i = 0; i < spec->n; i++) {
		lab->host[i].busy = true;
		command(lab, i, (struct lab_command){.type = LAB_GO});
	}
	lab_serve(lab, 10);
	for (uint32_t i = 0; i < spec->n; i++)
		connected += lab->host[i].last.type == LAB_CONNECTED;
	return connected;
}

void lab_signal(struct lab *lab, uint32_t host, int signal)
{
	kill(lab->host[host].pid, signal);
}

void lab_merge(struct lab *lab, const uint32_t *delay_ms)
{
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		if (!lab->member[i] || !lab->host[i].alive || lab->host[i].busy)
			continue;
		lab->host[i].busy = true;
		lab->host[i].error.code = 0;
		command(lab, i,
			(struct lab_command){.type = LAB_DO_MERGE,
					     .delay_ms = delay_ms ? delay_ms[i] : 0});
	}
}

/* ---- coordinator -------------------------------------------------------------------------------
 */

static void decide(struct lab *lab)
{
	struct lab_command c = {.type = LAB_DECISION};

	uint32_t named[LAB_HOSTS] = {0}, askers = 0;

	lab->asked = 0;
	c.decision.epoch = ++lab->epoch;
	/* the socket to this process is not cut with the link: what most of the others say counts
	 */
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		askers += lab->host[i].alive && lab->host[i].asking;
		for (uint32_t k = 0; k < lab->spec.n; k++)
			named[k] += lab->host[i].alive && lab->host[i].asking &&
				    lab->host[i].last.lost[k];
	}
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		lab->member[i] = lab->host[i].alive && lab->host[i].asking && 2 * named[i] < askers;
		if (lab->member[i])
			c.decision.member[c.decision.n++] = i;
	}
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		if (lab->host[i].asking)
			command(lab, i, c);
		lab->host[i].asking = false;
	}
}

static void exclude(struct lab *lab, uint32_t late)
{
	struct lab_command c = {.type = LAB_DECISION};

	c.decision.epoch = lab->epoch;
	for (uint32_t i = 0; i < lab->spec.n; i++)
		if (lab->member[i])
			c.decision.member[c.decision.n++] = i;
	lab->host[late].asking = false;
	/* greater than any it knows */
	c.decision.epoch++;
	command(lab, late, c);
}

static void asked(struct lab *lab, uint32_t i)
{
	struct lab_host *h = &lab->host[i];

	if (!h->error.code)
		h->error = h->last;
	h->asking = h->busy = true;
	if (!lab->member[i] && !lab->rejoin) {
		exclude(lab, i);
		return;
	}
	if (lab->asked)
		return;
	lab->asked = lab_now();
	for (uint32_t k = 0; k < lab->spec.n; k++)
		if (lab->host[k].alive && lab->member[k] && !lab->host[k].busy) {
			lab->host[k].busy = true;
			command(lab, k, (struct lab_command){.type = LAB_DO_RECOVER});
		}
}

static void heard(struct lab *lab, uint32_t i)
{
	struct lab_host *h = &lab->host[i];
	struct lab_report r;
	ssize_t n = recv(h->fd, &r, sizeof(r), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n != sizeof(r)) {
		h->alive = h->asking = h->busy = false;
		return;
	}
	h->last = r;
	if (r.type == LAB_ASK) {
		asked(lab, i);
		return;
	}
	if (r.type == LAB_ERROR) {
		if (!h->error.code)
			h->error = r;
		lab->member[i] = false;
	}
	h->busy = false;
}

static bool all_asked(const struct lab *lab)
{
	for (uint32_t i = 0; i < lab->spec.n; i++)
		if (lab->host[i].alive && lab->member[i] && !lab->host[i].asking)
			return false;
	return true;
}

bool lab_serve(struct lab *lab, double seconds)
{
	double until = lab_now() + seconds;

	while (lab_now() < until) {
		struct pollfd p[LAB_HOSTS];
		uint32_t busy = 0;

		for (uint32_t i = 0; i < lab->spec.n; i++) {
			p[i] = (struct pollfd){.fd = lab->host[i].alive ? lab->host[i].fd : -1,
					       .events = POLLIN};
			busy += lab->host[i].alive && lab->member[i] && lab->host[i].busy &&
				lab->ignore != i + 1;
		}
		if (!busy && !lab->asked)
			return true;
		poll(p, lab->spec.n, 20);
		for (uint32_t i = 0; i < lab->spec.n; i++)
			if (p[i].revents)
				heard(lab, i);
		if (lab->asked && (all_asked(lab) || lab_now() - lab->asked > ASK_SECONDS))
			decide(lab);
	}
	return false;
}

bool lab_come_back(struct lab *lab, uint32_t i)
{
	struct lab_host *h = &lab->host[i];
	double until = lab_now() + 10;

	lab->rejoin = true;
	lab->ignore = 0;
	lab_signal(lab, i, SIGCONT);
	lab->member[i] = h->busy = true;
	while (lab_now() < until && h->alive && h->last.epoch < lab->epoch) {
		lab_serve(lab, .1);
		/* it had ended its merge before it was stopped, and does not know yet */
		if (!h->busy && h->last.type == LAB_MERGED && h->last.epoch < lab->epoch) {
			h->busy = true;
			command(lab, i, (struct lab_command){.type = LAB_DO_RECOVER});
		}
	}
	if (lab_serve(lab, 20)) {
		lab->rejoin = false;
		return true;
	}
	lab->rejoin = false;
	for (uint32_t k = 0; k < lab->spec.n; k++)
		printf("# host %u: alive %d member %d busy %d asks %d, said %d at epoch %u of %u: "
		       "%s\n",
		       k, lab->host[k].alive, lab->member[k], lab->host[k].busy,
		       lab->host[k].asking, lab->host[k].last.type, lab->host[k].last.epoch,
		       lab->epoch, lab->host[k].last.text);
	return false;
}

bool lab_hear_error(struct lab *lab, uint32_t i, double seconds)
{
	double until = lab_now() + seconds;

	while (lab->host[i].last.type != LAB_ERROR && lab_now() < until) {
		struct pollfd p = {.fd = lab->host[i].fd, .events = POLLIN};

		if (poll(&p, 1, 50) > 0)
			heard(lab, i);
	}
	return lab->host[i].last.type == LAB_ERROR;
}

bool lab_equal(const struct lab *lab)
{
	const struct lab_report *first = NULL;

	for (uint32_t i = 0; i < lab->spec.n; i++) {
		const struct lab_report *r = &lab->host[i].last;

		if (!lab->member[i] || !lab->host[i].alive)
			continue;
		if (!first)
			first = r;
		if (r->type != LAB_MERGED || r->number != first->number ||
		    r->checksum != first->checksum || r->held != first->held ||
		    r->hosts != first->hosts || r->epoch != first->epoch) {
			printf("# host %u: merge %llu of %u hosts at epoch %u, %llx; first %llu, "
			       "%u, %u, %llx\n",
			       i, (unsigned long long)r->number, r->hosts, r->epoch,
			       (unsigned long long)r->held, (unsigned long long)first->number,
			       first->hosts, first->epoch, (unsigned long long)first->held);
			return false;
		}
	}
	return first != NULL;
}

bool lab_stop(struct lab *lab)
{
	double until = lab_now() + 5;
	bool clean = true;

	for (uint32_t i = 0; i < lab->spec.n; i++)
		command(lab, i, (struct lab_command){.type = LAB_END});
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		struct lab_host *h = &lab->host[i];
		struct pollfd p = {.fd = h->fd, .events = POLLIN};
		int status = 0;
		bool ended = !h->alive;

		while (h->alive && lab_now() < until && !ended) {
			if (poll(&p, 1, 50) > 0)
				heard(lab, i);
			ended = h->last.type == LAB_ENDED;
		}
		if (h->alive && (!ended || h->last.files || h->last.threads != 1)) {
			printf("# host %u ended: %d, files left %d, threads %u\n", i, ended,
			       h->last.files, h->last.threads);
			clean = false;
		}
		kill(h->pid, SIGKILL);
		waitpid(h->pid, &status, 0);
		close(h->fd);
	}
	return clean;
}
