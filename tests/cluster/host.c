/* SPDX-License-Identifier: MIT */
/*
 * host.c: what one host of the lab does: connect, then for each order some made-up local work and a
 * merge; on a fault check that nothing was touched, recover, and repeat the merge.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "lab.h"

struct self {
	const struct lab_spec *spec;
	uint32_t self;
	int fd;
	uint64_t work; /* local steps done */
	struct merge_net *net;
	struct merge *merge;
	float *x, *copy, *stat;
	struct lab_report report;
};

static int count_entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static int listed_threads(void)
{
	return count_entries("/proc/self/task") - 2;
}

#ifdef __SANITIZE_THREAD__
static void *nothing(void *arg)
{
	return arg;
}

/*
 * TSan has a thread of its own. In a child it starts one with the fork and one more with the first
 * thread that is made.
 */
static int threads_before(void)
{
	struct timespec nap = {0, 50000000};
	pthread_t thread;

	if (!pthread_create(&thread, NULL, nothing, NULL))
		pthread_join(thread, NULL);
	nanosleep(&nap, NULL);
	return listed_threads();
}
#else
static int threads_before(void)
{
	return listed_threads();
}
#endif

/* Those that are left, this one included. One that was joined may be listed for a moment longer. */
static uint32_t count_threads(int before)
{
	struct timespec nap = {0, 10000000};
	int n = listed_threads();

	for (int tries = 0; n > before && tries < 50; tries++) {
		nanosleep(&nap, NULL);
		n = listed_threads();
	}
	return (uint32_t)(n - before + 1);
}

static void tell(struct self *s, enum lab_type type)
{
	s->report.type = type;
	if (send(s->fd, &s->report, sizeof(s->report), MSG_NOSIGNAL) != sizeof(s->report))
		_exit(3);
}

static struct lab_command hear(struct self *s)
{
	struct lab_command c;

	if (recv(s->fd, &c, sizeof(c), 0) != sizeof(c))
		_exit(3);
	return c;
}

static int confirm(void *context, uint32_t epoch, const uint8_t *lost,
		   const struct merge_error *why, struct merge_decision *decision)
{
	struct self *s = context;
	struct lab_command c;

	memcpy(s->report.lost, lost, sizeof(s->report.lost));
	s->report.epoch = epoch;
	s->report.code = why->code;
	s->report.at_fault = why->host;
	snprintf(s->report.text, sizeof(s->report.text), "%s", why->message);
	tell(s, LAB_ASK);
	do
		c = hear(s);
	while (c.type != LAB_DECISION);
	*decision = c.decision;
	return c.rc;
}

static uint64_t hash(const float *x, uint64_t n)
{
	const unsigned char *p = (const unsigned char *)x;
	uint64_t h = 1469598103934665603u;

	for (uint64_t i = 0; i < n * sizeof(float); i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h;
}

static void error_out(struct self *s, const struct merge_error *e)
{
	s->report.code = e->code;
	s->report.at_fault = e->host;
	snprintf(s->report.text, sizeof(s->report.text), "%s", e->message);
	tell(s, LAB_ERROR);
}

static struct merge_arenas arenas(struct self *s)
{
	return (struct merge_arenas){.param = s->x, .stat = s->stat};
}

static bool recover(struct self *s, struct merge_result *result)
{
	struct merge_arenas a = arenas(s);
	struct merge_error e;

	if (!merge_recover(s->merge, s->net, &a, result, &e))
		return true;
	s->report.untouched = !memcmp(s->x, s->copy, s->spec->floats * sizeof(float));
	error_out(s, &e);
	return false;
}

static void report_merged(struct self *s, const struct merge_result *r)
{
	s->report.number = r->number;
	s->report.checksum = r->checksum;
	s->report.epoch = r->epoch;
	s->report.hosts = r->hosts;
	s->report.held = hash(s->x, s->spec->floats);
	s->report.x0 = s->x[0];
	tell(s, LAB_MERGED);
}

/* false: this host is out */
static bool merge(struct self *s, uint32_t delay_ms)
{
	struct timespec delay = {delay_ms / 1000, (long)(delay_ms % 1000) * 1000000};
	struct merge_arenas a = arenas(s);
	struct merge_result r = {0};
	struct merge_error e;
	double begin;

	nanosleep(&delay, NULL);
	s->work++;
	for (uint64_t i = 0; i < s->spec->floats; i++)
		s->x[i] += (float)((i + 3 * s->work) % 17) * .01f + (float)s->self;
	memcpy(s->copy, s->x, s->spec->floats * sizeof(float));
	s->report.untouched = true;
	s->report.rolled_forward = s->report.adopted = false;
	s->report.failed_after = 0;
	begin = lab_now();
	while (merge_run(s->merge, s->net, &a, 10 + s->self, .1, 0, &r, &e)) {
		if (!s->report.failed_after)
			s->report.failed_after = lab_now() - begin;
		s->report.untouched &= !memcmp(s->x, s->copy, s->spec->floats * sizeof(float));
		if (!recover(s, &r))
			return false;
		s->report.rolled_forward |= r.rolled_forward;
		s->report.adopted |= r.adopted;
		if (r.rolled_forward || r.adopted)
			break;
	}
	s->report.seconds = lab_now() - begin;
	report_merged(s, &r);
	return true;
}

static bool open_all(struct self *s)
{
	struct merge_tensor tensor = {.name = "w", .count = s->spec->floats};
	struct merge_table table = {.tensor = &tensor, .n = 1, .param_floats = s->spec->floats};
	bool odd = s->self == s->spec->odd;
	char address[32];
	struct merge_tcp_config c = {.listen = address,
				     .port_first = 7000,
				     .port_last = 7000,
				     .self = s->self,
				     .table_hash = merge_table_hash(&table),
				     .min_hosts = s->spec->min_hosts,
				     .ring_from = s->spec->ring_from,
				     .merge_timeout_ms = s->spec->merge_timeout_ms,
				     .mesh_timeout_ms = 4000,
				     .transport = s->spec->ucx ? MERGE_TRANSPORT_UCX
							       : MERGE_TRANSPORT_TCP,
				     .ucx_tls = "tcp,self",
				     .confirm = confirm,
				     .context = s};
	struct merge_config merge_config;
	struct merge_error e;

	snprintf(address, sizeof(address), "10.99.0.%u", s->self + 1);
	memset(c.secret, 9, sizeof(c.secret));
	if (odd && s->spec->odd_secret)
		c.secret[0] ^= 1;
	s->x = calloc(s->spec->floats, sizeof(float));
	s->copy = calloc(s->spec->floats, sizeof(float));
	if (merge_preset(s->spec->preset, s->spec->n, &merge_config, &e))
		return false;
	if (s->spec->bf16)
		merge_config.wire = MERGE_BF16;
	if (merge_open(&merge_config, &table, s->spec->n, &s->merge, &e) ||
	    merge_tcp_open(&c, &s->net, &e)) {
		error_out(s, &e);
		return false;
	}
	merge_start(s->merge, s->x);
	return true;
}

static bool connect_all(struct self *s)
{
	struct merge_host list[LAB_HOSTS] = {0};
	bool odd = s->self == s->spec->odd && s->spec->odd_epoch;
	struct merge_error e;

	for (uint32_t i = 0; i < s->spec->n; i++) {
		snprintf(list[i].name, sizeof(list[i].name), "node%u", i);
		snprintf(list[i].address, sizeof(list[i].address), "10.99.0.%u", i + 1);
		list[i].port = 7000;
	}
	if (!merge_tcp_connect(s->net, list, s->spec->n, odd ? s->spec->odd_epoch : 2, &e))
		return true;
	error_out(s, &e);
	return false;
}

int lab_host_main(const struct lab_spec *spec, uint32_t self, int fd)
{
	struct self s = {.spec = spec, .self = self, .fd = fd};
	int files = count_entries("/proc/self/fd"), threads = threads_before();
	struct merge_result r = {0};
	bool in = open_all(&s);

	tell(&s, LAB_READY);
	for (;;) {
		struct lab_command c = hear(&s);

		if (c.type == LAB_END)
			break;
		if (c.type == LAB_GO && in) {
			in = connect_all(&s);
			if (in)
				tell(&s, LAB_CONNECTED);
		}
		if (c.type == LAB_DO_MERGE && in)
			in = merge(&s, c.delay_ms);
		if (c.type == LAB_DO_RECOVER && in) {
			s.report.rolled_forward = s.report.adopted = false;
			in = recover(&s, &r);
			if (in)
				report_merged(&s, &r);
		}
	}
	if (s.net)
		merge_net_close(s.net);
	merge_close(s.merge);
	free(s.x);
	free(s.copy);
	s.report.files = count_entries("/proc/self/fd") - files;
	s.report.threads = count_threads(threads);
	tell(&s, LAB_ENDED);
	return 0;
}
