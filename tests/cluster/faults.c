/* SPDX-License-Identifier: MIT */
/*
 * faults.c: hosts that are killed, cut off, stopped, late or strangers, on slow links so that the
 * fault falls into a merge. Nobody hangs, errors name the host within 5 s, survivors are equal bit
 * by bit and go on or stop as min_hosts says, and what was not merged is untouched.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lab.h"

enum { FLOATS = 900000, NAMED = 5 };

static struct lab_spec usual(void)
{
	return (struct lab_spec){.preset = "average",
				 .floats = FLOATS,
				 .n = 4,
				 .min_hosts = 3,
				 .rate_mbit = 150,
				 .odd = MERGE_NO_HOST};
}

static void nap(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};

	nanosleep(&t, NULL);
}

static void merges(struct lab *lab, int n, const char *name)
{
	bool good = true;

	for (int i = 0; i < n; i++) {
		lab_merge(lab, NULL);
		good &= lab_serve(lab, 20) && lab_equal(lab);
	}
	ok(good, "%s: %d merges, equal bit by bit", name, n);
}

/* every host but `culprit` was told its name in time, and had touched nothing */
static void named(struct lab *lab, uint32_t culprit, double since, const char *name)
{
	char text[16];
	bool good = true, in_time = true, untouched = true;

	snprintf(text, sizeof(text), "node%u", culprit);
	for (uint32_t i = 0; i < lab->spec.n; i++) {
		const struct lab_host *h = &lab->host[i];

		if (i == culprit)
			continue;
		if (!strstr(h->error.text, text)) {
			printf("# host %u: '%s'\n", i, h->error.text);
			good = false;
		}
		untouched &= h->last.untouched;
		/* failed_after counts from the start of the merge, the fault came `since` later */
		if (h->last.failed_after - since > NAMED) {
			printf("# host %u: after %.1f s\n", i, h->last.failed_after);
			in_time = false;
		}
	}
	ok(good, "%s: the error names the host", name);
	ok(in_time, "%s: within %d s", name, NAMED);
	ok(untouched, "%s: the failed merge touched nothing", name);
}

static void plain(void)
{
	struct lab_spec s = usual();
	struct lab lab;

	s.rate_mbit = 0;
	is(lab_start(&lab, &s), 4, "four hosts connect");
	merges(&lab, 3, "average");
	is(lab.host[0].last.number, 3, "three merges are counted");
	is(lab.host[0].last.hosts, 4, "of four hosts");
	ok(lab_stop(&lab), "nothing is left");
	s.preset = "adasum";
	s.n = 3;
	is(lab_start(&lab, &s), 3, "three hosts connect");
	merges(&lab, 2, "adasum");
	ok(lab_stop(&lab), "nothing is left");
	s.preset = "diloco";
	s.bf16 = true;
	is(lab_start(&lab, &s), 3, "three hosts connect");
	merges(&lab, 2, "diloco over bf16");
	ok(lab_stop(&lab), "nothing is left");
}

static void killed(struct lab_spec s, uint64_t ring_from, uint32_t min_hosts, const char *name)
{
	struct lab lab;

	s.ring_from = ring_from;
	s.min_hosts = min_hosts;
	is(lab_start(&lab, &s), 4, name);
	merges(&lab, 1, name);
	lab_merge(&lab, NULL);
	nap(.15);
	lab_signal(&lab, 2, SIGKILL);
	ok(lab_serve(&lab, 15), "%s: nobody hangs", name);
	named(&lab, 2, .15, name);
	if (min_hosts == 3) {
		ok(lab_equal(&lab), "%s: survivors are equal", name);
		is(lab.host[0].last.hosts, 3, "three hosts go on");
		is(lab.host[0].last.number, 2, "the merge was done without it");
		merges(&lab, 2, name);
	} else {
		for (uint32_t i = 0; i < 4; i++)
			if (i != 2)
				is(lab.host[i].last.type, LAB_ERROR, "the job ends");
		like(lab.host[0].last.text, "min_hosts", "because of min_hosts");
	}
	ok(lab_stop(&lab), "nothing is left");
}

/* what the first to see a fault says of it; the others only repeat its text */
static bool told_as(const struct lab *lab, int code)
{
	bool found = false;

	for (uint32_t i = 0; i < lab->spec.n; i++)
		found |= lab->host[i].error.code == code;
	return found;
}

static void cut_link(struct lab_spec s, const char *name)
{
	struct lab lab;

	is(lab_start(&lab, &s), 4, name);
	merges(&lab, 1, name);
	lab_merge(&lab, NULL);
	nap(.15);
	lab_link(1, false);
	ok(lab_serve(&lab, 20), "%s: nobody hangs", name);
	named(&lab, 1, .15, name);
	ok(told_as(&lab, -ETIMEDOUT), "%s: it counts as silence", name);
	ok(lab_hear_error(&lab, 1, 10), "%s: the host behind it ends too", name);
	ok(lab_equal(&lab), "%s: survivors are equal", name);
	lab_link(1, true);
	lab.member[1] = false;
	merges(&lab, 1, name);
	is(lab.host[0].last.hosts, 3, "three hosts go on");
	ok(lab_stop(&lab), "nothing is left");
}

static void cut(void)
{
	cut_link(usual(), "cut link");
}

static void stopped_shortly(void)
{
	struct lab_spec s = usual();
	struct lab lab;

	is(lab_start(&lab, &s), 4, "SIGSTOP 2 s");
	lab_merge(&lab, NULL);
	nap(.15);
	lab_signal(&lab, 3, SIGSTOP);
	nap(2);
	lab_signal(&lab, 3, SIGCONT);
	ok(lab_serve(&lab, 15) && lab_equal(&lab), "SIGSTOP 2 s: the merge goes on");
	is(lab.host[0].last.hosts, 4, "with all four");
	is(lab.host[0].last.epoch, 2, "and no new membership");
	ok(lab_stop(&lab), "nothing is left");
}

/* 20 s: lost after 4, the others go on; then it is back, gets the state, and takes part again */
static void stopped_long(void)
{
	struct lab_spec s = usual();
	double begin = lab_now();
	struct lab lab;

	is(lab_start(&lab, &s), 4, "SIGSTOP 20 s");
	merges(&lab, 1, "SIGSTOP 20 s");
	lab_merge(&lab, NULL);
	nap(.15);
	begin = lab_now();
	lab_signal(&lab, 3, SIGSTOP);
	ok(lab_serve(&lab, 15), "SIGSTOP 20 s: nobody hangs");
	named(&lab, 3, .15, "SIGSTOP 20 s");
	ok(lab_equal(&lab), "SIGSTOP 20 s: survivors are equal");
	merges(&lab, 2, "SIGSTOP 20 s");
	nap(20 - (lab_now() - begin));
	ok(lab_come_back(&lab, 3) && lab_equal(&lab), "it is back and holds what the others hold");
	ok(lab.host[3].last.adopted, "having got their state");
	is(lab.host[0].last.hosts, 4, "four hosts again");
	merges(&lab, 1, "SIGSTOP 20 s, back");
	ok(lab_stop(&lab), "nothing is left");
}

/* 6 s late: its windows are closed for longer than any TCP timeout, its heartbeats are not */
static void late(void)
{
	struct lab_spec s = usual();
	uint32_t delay[LAB_HOSTS] = {0, 6000, 0, 0};
	struct lab lab;

	s.rate_mbit = 0;
	is(lab_start(&lab, &s), 4, "a late host");
	lab_merge(&lab, delay);
	ok(lab_serve(&lab, 15) && lab_equal(&lab), "a late host is waited for");
	is(lab.host[0].last.epoch, 2, "and no fault");
	ok(lab_stop(&lab), "nothing is left");
	s.merge_timeout_ms = 1500;
	is(lab_start(&lab, &s), 4, "a host past merge_timeout");
	lab_merge(&lab, delay);
	ok(lab_serve(&lab, 20), "past merge_timeout: nobody hangs");
	named(&lab, 1, 0, "past merge_timeout");
	ok(lab_hear_error(&lab, 1, 10), "the late host is told");
	like(lab.host[1].last.text, "go on without host node1", "that the others went on");
	ok(lab_stop(&lab), "nothing is left");
}

static void strangers(void)
{
	struct lab_spec s = usual();
	struct lab lab;
	double begin;

	s.rate_mbit = 0;
	s.odd = 1;
	s.odd_secret = true;
	begin = lab_now();
	is(lab_start(&lab, &s), 0, "wrong secret: no mesh");
	ok(lab_now() - begin < NAMED, "wrong secret: within %d s", NAMED);
	for (uint32_t i = 0; i < 4; i++)
		like(lab.host[i].error.text, i == 1 ? "node0" : "node1",
		     "the error names the host");
	ok(lab_stop(&lab), "nothing is left");
	s.odd_secret = false;
	s.odd_epoch = 1;
	begin = lab_now();
	is(lab_start(&lab, &s), 0, "stale epoch: no mesh");
	ok(lab_now() - begin < NAMED, "stale epoch: within %d s", NAMED);
	like(lab.host[1].error.text, "epoch", "the late one is told why");
	ok(lab_stop(&lab), "nothing is left");
}

static void kill_direct(void)
{
	killed(usual(), UINT64_MAX, 3, "kill -9, direct");
}

static void kill_ring(void)
{
	killed(usual(), 1, 3, "kill -9, ring");
}

static void kill_needed(void)
{
	killed(usual(), UINT64_MAX, 4, "kill -9, all hosts needed");
}

static bool ucx_is_here(void)
{
	struct merge_tcp_config c = {
		.listen = "127.0.0.1", .transport = MERGE_TRANSPORT_UCX, .ucx_tls = "tcp,self"};
	struct merge_net *net = NULL;
	struct merge_error e;

	if (merge_tcp_open(&c, &net, &e) == -ENOTSUP) {
		printf("ok %d - faults over UCX # SKIP no UCX: %s\n", ++tap_count, e.message);
		return false;
	}
	merge_net_close(net);
	return true;
}

/* Rounds over UCX: faults are still seen by the control connections. */
static void over_ucx(void)
{
	struct lab_spec s = usual();

	if (!ucx_is_here())
		return;
	s.ucx = true;
	killed(s, UINT64_MAX, 3, "UCX, kill -9, direct");
	killed(s, 1, 3, "UCX, kill -9, ring");
	cut_link(s, "UCX, cut link");
}

static void ucx_stopped(void)
{
	struct lab_spec s = usual();
	struct lab lab;

	if (!ucx_is_here())
		return;
	s.ucx = true;
	/*
	 * With a buffer of less than a segment the last one is never sent at once, so that a flush
	 * has to wait: who gives its state away must not wait for those who need nothing of it.
	 */
	setenv("UCX_TCP_SNDBUF", "4k", 1);
	is(lab_start(&lab, &s), 4, "UCX, SIGSTOP 8 s");
	unsetenv("UCX_TCP_SNDBUF");
	merges(&lab, 1, "UCX, SIGSTOP 8 s");
	lab_merge(&lab, NULL);
	nap(.15);
	lab_signal(&lab, 3, SIGSTOP);
	ok(lab_serve(&lab, 15), "UCX, SIGSTOP 8 s: nobody hangs");
	named(&lab, 3, .15, "UCX, SIGSTOP 8 s");
	merges(&lab, 1, "UCX, SIGSTOP 8 s");
	nap(2);
	ok(lab_come_back(&lab, 3) && lab_equal(&lab), "UCX: it is back, with the others' state");
	is(lab.host[0].last.hosts, 4, "four hosts again");
	merges(&lab, 1, "UCX, back");
	ok(lab_stop(&lab), "nothing is left");
}

/* faults [NAME...]: those parts only */
int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} part[] = {{"plain", plain},
		    {"kill-direct", kill_direct},
		    {"kill-ring", kill_ring},
		    {"kill-needed", kill_needed},
		    {"cut", cut},
		    {"stop-2", stopped_shortly},
		    {"late", late},
		    {"strangers", strangers},
		    {"ucx", over_ucx},
		    {"ucx-stop", ucx_stopped},
		    {"stop-20", stopped_long}};

	lab_network();
	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
		bool wanted = argc < 2;

		for (int a = 1; a < argc; a++)
			wanted |= !strcmp(argv[a], part[i].name);
		if (wanted)
			part[i].run();
	}
	return done();
}
