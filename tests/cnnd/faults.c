// SPDX-License-Identifier: MIT
/*
 * faults.c: a job on several daemons loses one of them in every way, or its leader; strangers knock
 * at the membership port. The others go on or end, as min_hosts says, within seconds and by name;
 * nobody hangs, nothing is left over.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../userspace/cnnd/wire.h"
#include "lab_hosts.h"

#define ROWS 360u
#define SLOW (LAB_SANITIZER ? 5. : 1.) /* how much longer things may take */

static struct lab lab[3];

/* merge_every 1: nearly always in a merge; 1000000: in local steps for ever. */
static const char *spec_of(unsigned int every)
{
	static char more[256];

	snprintf(more, sizeof(more),
		 "\"epochs\": 100000, \"batch_size\": 8, \"seed\": 3, \"merge_every\": %u%s", every,
		 every > 1000 ? ", \"merge_warmup\": 0" : "");
	return lab_spec(more);
}

static bool start(struct lab_hosts *h, unsigned int every, uint32_t min_hosts)
{
	double until = lab_now() + 20;
	bool good = !lab_hosts_prepare(h, lab, 3, spec_of(every), ROWS, min_hosts);

	if (!good) {
		ok(false, "a training on three hosts");
		lab_hosts_explain(h);
		lab_hosts_drop(h);
		return false;
	}
	lab_hosts_send_run(h, 0, 100000);
	while (every < 1000 && lab_merges(&lab[0]) < 5 && lab_now() < until)
		lab_sleep(.01);
	lab_sleep(.2);
	return true;
}

static void idle(uint32_t i, double seconds)
{
	ok(lab_idle(&lab[i], seconds * SLOW), "  host %u has no job left", i);
	is(lab_held(&lab[i]), 0, "    nor memory");
}

/* The last commit that both remember. */
static void same_commit(const struct lab_hosts *h, uint32_t a, uint32_t b, uint32_t slack)
{
	struct ctl_job e[2];
	uint32_t apart;
	char reason[257];
	bool there;

	memset(e, 0, sizeof(e));
	there = lab_ended(&lab[a], h->lead.id, &e[0], reason) &&
		lab_ended(&lab[b], h->lead.id, &e[1], reason);

	/* a job that is ended from outside may be between the commits of two hosts */
	apart = e[0].merges > e[1].merges ? e[0].merges - e[1].merges : e[1].merges - e[0].merges;
	ok(there && apart <= slack && (apart || e[0].checksum == e[1].checksum),
	   "  hosts %u and %u ended with the same commit: %u %016llx, %u %016llx", a, b,
	   e[0].merges, (unsigned long long)e[0].checksum, e[1].merges,
	   (unsigned long long)e[1].checksum);
}

/* STOP, the rows of the hosts in the set, ENDs. */
static void finish(struct lab_hosts *h, uint32_t lost, uint32_t hosts)
{
	struct lab_job stopper = h->job[lost ? 0 : 1];
	uint32_t a = lost ? 0 : 1, b = lost == 2 ? 1 : 2;
	uint8_t *weights[2] = {NULL, NULL};
	uint64_t bytes[2] = {0, 0};
	struct ctl_msg m;

	stopper.conn = lab_connect(&lab[a], "alice");
	lab_message(&stopper, CTL_STOP, &m);
	ok(!lab_call(&stopper, &m, CTL_OK), "  it is stopped");
	ctl_conn_free(stopper.conn);
	lab_hosts_wait_run(h);
	ok(!h->rc[a] && !h->rc[b] && h->row[a].hosts == hosts && h->row[b].hosts == hosts,
	   "  the others give rows of %u hosts", hosts);
	if (h->rc[a] || h->rc[b])
		lab_hosts_explain(h);
	ok(h->row[a].merge_checksum == h->row[b].merge_checksum &&
		   h->row[a].merge_number == h->row[b].merge_number,
	   "  with the same merge %llu", (unsigned long long)h->row[a].merge_number);
	ok(!lab_get(&h->job[a], CTL_WEIGHTS, &weights[0], &bytes[0]) &&
		   !lab_get(&h->job[b], CTL_WEIGHTS, &weights[1], &bytes[1]) && bytes[0] &&
		   bytes[0] == bytes[1] && !memcmp(weights[0], weights[1], bytes[0]),
	   "  and the same weights");
	free(weights[0]);
	free(weights[1]);
	lab_end(&h->job[a]);
	lab_end(&h->job[b]);
	lab_hosts_drop(h);
}

/* The number of merges goes up. */
static bool goes_on(uint32_t i, double seconds)
{
	double until = lab_now() + seconds * SLOW;
	uint32_t before = lab_merges(&lab[i]);

	while (lab_now() < until) {
		uint32_t now = lab_merges(&lab[i]);

		if (before && now > before + 3)
			return true;
		before = before ? before : now;
		lab_sleep(.02);
	}
	return false;
}

static void again(uint32_t i)
{
	lab_spawn(&lab[i]);
	if (!lab_wait_ready(&lab[i], 5 * SLOW))
		BAIL("host %u does not start again", i);
}

static void test_killed(const char *name, unsigned int every)
{
	struct lab_hosts h;
	double from;
	bool good;

	if (start(&h, every, 2)) {
		lab_stop(&lab[2], SIGKILL, 5);
		from = lab_now();
		good = every > 1000 || goes_on(0, 5);
		ok(good, "kill -9 %s, two of three needed: the others go on, %.2f s", name,
		   lab_now() - from);
		lab_sleep(.5);
		is(lab_jobs(&lab[0]) + lab_jobs(&lab[1]), 2, "  they stay");
		finish(&h, 2, 2);
		same_commit(&h, 0, 1, 0);
		again(2);
		idle(0, 1);
		idle(1, 1);
	}
	if (!start(&h, every, 0))
		return;
	lab_stop(&lab[2], SIGKILL, 5);
	from = lab_now();
	lab_hosts_wait_run(&h);
	ok(h.rc[0] < 0 && h.rc[1] < 0 && lab_now() - from < 2 * SLOW,
	   "kill -9 %s, all needed: the others end, %.2f s", name, lab_now() - from);
	like(h.job[0].err.message, "node2", "  by name");
	like(h.job[1].err.message, "node2", "  on both");
	printf("# %s\n", h.job[0].err.message);
	idle(0, 1);
	idle(1, 1);
	lab_hosts_drop(&h);
	again(2);
}

/* The coordinator's backend, its daemon, or a client inside a call goes. */
static void test_leader(void)
{
	struct lab_hosts h;
	double from;

	if (start(&h, 1, 2)) {
		lab_job_free(&h.lead);
		from = lab_now();
		for (uint32_t i = 0; i < 3; i++)
			idle(i, 1);
		ok(lab_now() - from < 1.5 * SLOW,
		   "the coordinator's connection ends: all jobs end, %.2f s", lab_now() - from);
		lab_hosts_wait_run(&h);
		like(h.job[2].err.message, "the coordinator's connection ended", "  and say why");
		same_commit(&h, 1, 2, 1);
		lab_hosts_drop(&h);
	}
	if (start(&h, 1, 2)) {
		lab_stop(&lab[0], SIGKILL, 5);
		from = lab_now();
		idle(1, 1);
		idle(2, 1);
		ok(lab_now() - from < 1.5 * SLOW, "the leading daemon is killed: %.2f s",
		   lab_now() - from);
		lab_hosts_wait_run(&h);
		like(h.job[1].err.message, "lost the daemon that leads the job", "  said so");
		lab_hosts_drop(&h);
		again(0);
	}
	if (start(&h, 1, 2)) {
		lab_job_free(&h.job[1]);
		ok(lab_idle(&lab[1], SLOW), "a client inside RUN on one host ends: its job ends");
		ok(goes_on(0, 5), "  and the others go on where two of three are enough");
		h.rc[1] = -1;
		finish(&h, 1, 2);
		idle(0, 1);
		idle(2, 1);
	}
}

/* Stopped for 2 s and for longer. */
static void test_stopped(void)
{
	struct lab_hosts h;
	double from, took;
	bool good;

	if (start(&h, 1, 2)) {
		kill(lab[2].pid, SIGSTOP);
		lab_sleep(2);
		kill(lab[2].pid, SIGCONT);
		ok(goes_on(0, 3) && goes_on(2, 3), "SIGSTOP for 2 s: all go on");
		finish(&h, 2, 3);
		idle(2, 3);
	}
	if (start(&h, 1, 2)) {
		kill(lab[2].pid, SIGSTOP);
		from = lab_now();
		lab_sleep(3);
		good = goes_on(0, 4);
		took = lab_now() - from;
		ok(good && took > 3.2, "SIGSTOP for longer: the others go on, %.1f s", took);
		while (lab_now() < from + 20)
			lab_sleep(.5);
		kill(lab[2].pid, SIGCONT);
		from = lab_now();
		good = lab_idle(&lab[2], 3 * SLOW);
		ok(good, "  back after 20 s: its job ends, %.2f s", lab_now() - from);
		finish(&h, 2, 2);
		ok(h.rc[2] < 0, "  with an error");
		like(h.job[2].err.message, "go on without this host", "  that says why");
		idle(0, 1);
		idle(1, 1);
	}
	if (start(&h, 1, 0)) {
		kill(lab[1].pid, SIGSTOP);
		from = lab_now();
		h.rc[1] = -1;
		lab_hosts_wait_run(&h);
		ok(h.rc[0] < 0 && h.rc[2] < 0 && lab_now() - from < 5.5 + SLOW,
		   "SIGSTOP, all needed: the others end, %.1f s", lab_now() - from);
		like(h.job[0].err.message, "node1", "  by name");
		idle(0, 1);
		kill(lab[1].pid, SIGCONT);
		idle(1, 3);
		lab_hosts_drop(&h);
	}
}

/* The leading daemon, which has no part in the training, stands still: nobody goes on by himself.
 */
static void test_silent_leader(void)
{
	struct lab_hosts h;
	char wait[2][257] = {"", ""};
	uint64_t before[2], after[2];
	double from;

	/* a job of hosts 1 and 2, led by host 0 */
	lab_hosts_init(&h, lab, 3, CTL_TRAIN);
	lab_job_free(&h.job[0]);
	h.job[0] = h.job[1];
	h.job[1] = h.job[2];
	h.job[2].conn = NULL;
	h.n = 2;
	/* local steps alone: nobody has to wait for another in a merge */
	if (lab_hosts_again(&h, spec_of(1000000), 0) != 1 || lab_hosts_ready(&h, ROWS)) {
		ok(false, "a job led from elsewhere");
		lab_hosts_explain(&h);
		return;
	}
	lab_hosts_send_run(&h, 0, 100000);
	lab_sleep(1);
	kill(lab[0].pid, SIGSTOP);
	lab_sleep(5.5);
	for (int i = 0; i < 2; i++)
		before[i] = lab_steps(&lab[i + 1], wait[i]);
	lab_sleep(1);
	for (int i = 0; i < 2; i++)
		after[i] = lab_steps(&lab[i + 1], wait[i]);
	for (int i = 0; i < 2; i++) {
		ok(before[i] && before[i] == after[i],
		   "a silent leader: host %d makes no step any more (%llu, %llu)", i + 1,
		   (unsigned long long)before[i], (unsigned long long)after[i]);
	}
	/* the other may be in a word to it */
	ok(!strcmp(wait[0], "the job's leader") || !strcmp(wait[1], "the job's leader"),
	   "  they wait for it");
	kill(lab[0].pid, SIGCONT);
	from = lab_now();
	while (lab_now() < from + 10 && lab_steps(&lab[1], wait[0]) <= after[0] + 100)
		lab_sleep(.05);
	ok(lab_steps(&lab[1], wait[0]) > after[0] + 100, "  back: they go on");
	kill(lab[0].pid, SIGSTOP);
	from = lab_now();
	lab_hosts_wait_run(&h);
	ok(h.rc[0] < 0 && h.rc[1] < 0 && lab_now() - from > 7.5 && lab_now() - from < 10 + SLOW,
	   "silent for rejoin_timeout: the job ends, %.1f s", lab_now() - from);
	like(h.job[0].err.message, "rejoin_timeout = 9 s", "  with the reason");
	kill(lab[0].pid, SIGCONT);
	lab_hosts_drop(&h);
	idle(1, 1);
	idle(2, 1);
}

/* ---- the exchange of rows ---- */

static bool begin_exchange(struct lab_hosts *h)
{
	struct agree_block agreed;
	bool good = lab_hosts_begin(h, lab, 3, CTL_TRAIN, spec_of(1), 2) == 1;

	if (!good) {
		ok(false, "a training on three hosts");
		lab_hosts_explain(h);
		return false;
	}
	lab_hosts_feed(h, ROW_TRAIN, LAB_SANITIZER ? 60000 : 300000, lab_by_label);
	if (lab_hosts_agree(h, &agreed))
		BAIL("no agreement: %s", h->job[0].err.message);
	lab_hosts_send_apply(h, &agreed, true);
	agree_free(&agreed);
	return true;
}

/* The call waits for what the test wants it to be in. */
static bool in_wait(uint32_t i, const char *wait, double seconds)
{
	double until = lab_now() + seconds;
	char now[257] = "";

	while (strcmp(now, wait) && lab_now() < until) {
		if (!lab_waits(&lab[i], now))
			now[0] = '\0';
	}
	return !strcmp(now, wait);
}

static void test_exchange(void)
{
	struct lab_hosts h;
	double from;

	if (begin_exchange(&h)) {
		ok(in_wait(0, "exchange of rows", 10), "rows are exchanged");
		lab_stop(&lab[2], SIGKILL, 5);
		from = lab_now();
		h.rc[2] = -1;
		lab_hosts_wait_apply(&h);
		ok(h.rc[0] < 0 && h.rc[1] < 0 && lab_now() - from < 2 * SLOW,
		   "  one is killed: the others end, %.2f s", lab_now() - from);
		like(h.job[0].err.message, "node2", "  by name");
		lab_hosts_drop(&h);
		idle(0, 1);
		idle(1, 1);
		again(2);
	}
	if (begin_exchange(&h)) {
		in_wait(0, "exchange of rows", 10);
		lab_job_free(&h.lead);
		from = lab_now();
		for (uint32_t i = 0; i < 3; i++)
			idle(i, 1);
		ok(lab_now() - from < 1.5 * SLOW, "the coordinator goes in an exchange: %.2f s",
		   lab_now() - from);
		lab_hosts_drop(&h);
	}
}

/* ---- strangers ---- */

static int knock(const char *leader)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	char address[64];
	unsigned int port;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (sscanf(leader, "%63s %u", address, &port) != 2)
		BAIL("no address in '%s'", leader);
	inet_pton(AF_INET, address, &a.sin_addr);
	a.sin_port = htons((uint16_t)port);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof(a))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Reads until so much is there or the other side closes. */
static size_t read_all(int fd, uint8_t *p, size_t n, int ms)
{
	struct pollfd f = {fd, POLLIN, 0};
	size_t have = 0;

	while (have < n && poll(&f, 1, ms) > 0) {
		ssize_t k = recv(fd, p + have, n - have, 0);

		if (k <= 0)
			break;
		have += (size_t)k;
	}
	return have;
}

/* Whatever comes before. */
static bool closed(int fd, int ms)
{
	struct pollfd f = {fd, POLLIN, 0};
	uint8_t more[1024];
	bool over = false;

	while (!over && poll(&f, 1, ms) > 0)
		over = recv(fd, more, sizeof(more), 0) <= 0;
	close(fd);
	return over;
}

/* A greeting by the book, with a secret; the proof that was sent, for a replay. */
static bool greet(const char *leader, const uint8_t id[CTL_ID], const uint8_t secret[CTL_ID],
		  uint8_t hello[WIRE_HELLO], uint8_t proof[WIRE_KEY])
{
	static const uint8_t uuid[CTL_ID] = "a stranger";
	uint8_t key[WIRE_KEY], out[WIRE_ANSWER], frame[WIRE_FRAME];
	struct wire w;
	struct err err;
	size_t n = 0;
	bool in = false;
	int fd = knock(leader);

	wire_derive(secret, WIRE_MEMBER, key);
	wire_dial(&w, key, id, uuid, hello);
	if (fd < 0 || send(fd, hello, WIRE_HELLO, MSG_NOSIGNAL) != WIRE_HELLO)
		return false;
	w.have = read_all(fd, w.in, WIRE_ANSWER, 2000);
	if (w.have == WIRE_ANSWER && !wire_step(&w, out, &n, &err)) {
		memcpy(proof, out, WIRE_KEY);
		in = send(fd, out, n, MSG_NOSIGNAL) == (ssize_t)n &&
		     read_all(fd, frame, WIRE_FRAME, 2000) == WIRE_FRAME;
	}
	close(fd);
	return in;
}

static bool replay(const char *leader, const uint8_t hello[WIRE_HELLO],
		   const uint8_t proof[WIRE_KEY])
{
	uint8_t answer[WIRE_ANSWER];
	int fd = knock(leader);

	send(fd, hello, WIRE_HELLO, MSG_NOSIGNAL);
	read_all(fd, answer, WIRE_ANSWER, 2000);
	send(fd, proof, WIRE_KEY, MSG_NOSIGNAL);
	return closed(fd, 2000);
}

static void test_strangers(void)
{
	uint8_t hello[WIRE_HELLO], proof[WIRE_KEY] = {0}, other[CTL_ID] = "wrong", noise[4096];
	static int fds[1000];
	unsigned int garbage = 0, open_fds, most = 0;
	struct lab_hosts h;
	double from;
	bool good;
	int slow;

	/* before MEMBERS a stranger with the secret would be a member; after it nobody is */
	lab_hosts_init(&h, lab, 3, CTL_TRAIN);
	ok(!greet(h.leader, h.lead.id, other, hello, proof), "a wrong secret is refused");
	ok(!greet(h.leader, other, h.lead.secret, hello, proof), "so is another job");
	ok(greet(h.leader, h.lead.id, h.lead.secret, hello, proof), "the right one is let in");
	ok(replay(h.leader, hello, proof), "what it sent, sent again, is not");
	lab_sleep(.2);
	is(lab_hosts_again(&h, spec_of(1), 2), 1, "the members come");
	ok(!greet(h.leader, h.lead.id, h.lead.secret, hello, proof),
	   "then nobody else, even with the secret");
	if (lab_hosts_ready(&h, ROWS)) {
		ok(false, "no training");
		lab_hosts_explain(&h);
		return;
	}
	lab_hosts_send_run(&h, 0, 100000);
	lab_sleep(.3);
	for (int i = 0; i < 200; i++) {
		int fd = knock(h.leader);
		size_t n = WIRE_HELLO + WIRE_KEY + (size_t)rand() % 2000;

		for (size_t k = 0; k < n; k++)
			noise[k] = (uint8_t)rand();
		if (i % 2)
			memcpy(noise, hello, 40);
		send(fd, noise, n, MSG_NOSIGNAL);
		garbage += closed(fd, 3000);
	}
	is(garbage, 200, "garbage, also behind a good beginning: closed");
	open_fds = lab_count(&lab[0], "fd");
	for (int i = 0; i < 1000; i++) {
		unsigned int now = i % 10 ? 0 : lab_count(&lab[0], "fd");

		most = now > most ? now : most;
		fds[i] = knock(h.leader);
	}
	ok(most < open_fds + 20, "1,000 idle connects take %d descriptors",
	   (int)most - (int)open_fds);
	ok(goes_on(0, 3), "  the training goes on meanwhile");
	slow = knock(h.leader);
	from = lab_now();
	send(slow, hello, 10, MSG_NOSIGNAL);
	good = closed(slow, 8000);
	ok(good && lab_now() - from < 6 + SLOW, "a slow greeting is closed, %.1f s",
	   lab_now() - from);
	for (int i = 0; i < 1000; i++)
		close(fds[i]);
	finish(&h, 2, 3);
	for (uint32_t i = 0; i < 3; i++)
		idle(i, 2);
}

/* A begin gets through while somebody floods the port. */
static void test_flood(void)
{
	static int fds[200];
	struct lab_hosts h;
	pid_t pid;

	lab_hosts_init(&h, lab, 2, CTL_TRAIN);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		for (int i = 0;; i = (i + 1) % 200) {
			if (fds[i] > 0)
				close(fds[i]);
			fds[i] = knock(h.leader);
			usleep(500);
		}
	}
	lab_sleep(.2);
	is(lab_hosts_again(&h, lab_spec("\"epochs\": 1"), 0), 1, "members link through a flood");
	lab_hosts_explain(&h);
	kill(pid, SIGKILL);
	lab_hosts_end(&h);
	idle(0, 1);
}

int main(void)
{
	unsigned int fd[2], task[2];
	struct lab_hosts h;
	bool same = true;

	lab_hosts_start(lab, 3, "memory = 256M\nrejoin_timeout = 9\norphan_timeout = 30\n");
	/* what the first job leaves for good */
	if (start(&h, 1, 0))
		finish(&h, 2, 3);
	lab_idle(&lab[2], 2);
	test_strangers();
	test_flood();
	lab_sleep(.5);
	fd[0] = lab_count(&lab[0], "fd");
	task[0] = lab_count(&lab[0], "task");
	fd[1] = lab_count(&lab[1], "fd");
	task[1] = lab_count(&lab[1], "task");
	test_killed("in a merge", 1);
	test_killed("in a step", 1000000);
	for (int i = 0; i < 2; i++)
		same = same && lab_count(&lab[i], "fd") <= fd[i] &&
		       lab_count(&lab[i], "task") <= task[i];
	ok(same, "no descriptor and no thread is left");
	test_leader();
	test_stopped();
	test_silent_leader();
	test_exchange();
	lab_hosts_stop(lab, 3);
	return done();
}
