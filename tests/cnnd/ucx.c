// SPDX-License-Identifier: MIT
/*
 * ucx.c: trainings on several daemons with merge_transport = ucx in their cnnd.conf: the weights
 * are those of the same training over TCP, bit by bit; a killed daemon is named and the others go
 * on; a daemon without the library says what is missing. UCX runs over its TCP transport here.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab_hosts.h"

#define ROWS 360u
#define TCP_CONF "merge_transport = tcp\n"
#define UCX_CONF "merge_transport = ucx\nmerge_ucx_tls = tcp,self\nmerge_ucx_devices = lo\n"
#define LATE (LAB_SANITIZER ? 25. : 5.)

static struct lab lab[3];

static const char *spec_of(const char *epochs, unsigned int every)
{
	static char more[256];

	snprintf(more, sizeof(more),
		 "\"epochs\": %s, \"batch_size\": 10, \"learning_rate\": 0.2, \"seed\": 7, "
		 "\"merge_every\": %u",
		 epochs, every);
	return lab_spec(more);
}

/* Libraries that a daemon has mapped. */
static bool maps(const struct lab *l, const char *name)
{
	char path[64], line[512];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)l->pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		found |= strstr(line, name) != NULL;
	if (f)
		fclose(f);
	return found;
}

/* Three epochs on three hosts; the weights that all of them hold. */
static uint8_t *trained(const char *conf, bool ucx, uint64_t *bytes)
{
	uint8_t *first = NULL, *other = NULL;
	struct lab_hosts h;
	uint64_t n = 0;
	bool same = true;

	lab_hosts_start(lab, 3, conf);
	if (!ok(!lab_hosts_prepare(&h, lab, 3, spec_of("3", 4), ROWS, 0) &&
			!lab_hosts_run(&h, 0, 3),
		"a training with %.21s", conf))
		lab_hosts_explain(&h);
	for (uint32_t i = 0; i < 3; i++) {
		ok(maps(&lab[i], "libucp.so") == ucx, "  host %u has %sloaded UCX", i,
		   ucx ? "" : "not ");
		same &= !lab_get(&h.job[i], CTL_WEIGHTS, i ? &other : &first, i ? &n : bytes);
		if (i) {
			same &= n == *bytes && !memcmp(first, other, n);
			free(other);
			other = NULL;
		}
	}
	ok(same && h.row[0].merge_number > 3, "  all hold the same weights after %llu merges",
	   (unsigned long long)h.row[0].merge_number);
	lab_hosts_end(&h);
	for (uint32_t i = 0; i < 3; i++)
		ok(lab_idle(&lab[i], 10) && !lab_held(&lab[i]), "  nothing is left on host %u", i);
	if (!ucx)
		lab_hosts_stop(lab, 3);
	return first;
}

/* In the middle of merges: named by both within seconds, and by min_hosts they go on. */
static void test_killed(void)
{
	struct lab_hosts h;
	double from, until;
	uint32_t before;

	if (lab_hosts_prepare(&h, lab, 3, spec_of("100000", 1), ROWS, 2)) {
		ok(false, "a training over UCX to be disturbed");
		lab_hosts_explain(&h);
		return;
	}
	lab_hosts_send_run(&h, 0, 100000);
	until = lab_now() + 20;
	while (lab_merges(&lab[0]) < 30 && lab_now() < until)
		lab_sleep(.05);
	lab_stop(&lab[2], SIGKILL, 5);
	h.rc[2] = -1;
	from = lab_now();
	ok(lab_logged(&lab[0], "2 of 3 hosts go on: lost host node2", LATE),
	   "killed over UCX: named in %.1f s", lab_now() - from);
	before = lab_merges(&lab[0]);
	until = lab_now() + 20;
	while (lab_merges(&lab[0]) < before + 10 && lab_now() < until)
		lab_sleep(.05);
	ok(before && lab_merges(&lab[0]) >= before + 10, "  the others go on, merge %u",
	   lab_merges(&lab[0]));
	/* now all that are left are needed */
	lab_stop(&lab[1], SIGKILL, 5);
	from = lab_now();
	h.rc[1] = -1;
	lab_hosts_wait_run(&h);
	ok(h.rc[0] < 0 && lab_now() - from < LATE, "another: the job ends, %.1f s",
	   lab_now() - from);
	like(h.job[0].err.message, "node1", "  by name");
	lab_hosts_drop(&h);
	ok(lab_idle(&lab[0], 10) && !lab_held(&lab[0]), "  nothing is left");
}

/* A libucp.so.0 that is none comes before the system's: as good as a missing one. */
static void test_missing(void)
{
	char path[128];
	struct lab_hosts h;
	int fd;

	snprintf(path, sizeof(path), "%s/libucp.so.0", lab[0].dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		BAIL("no file %s", path);
	close(fd);
	is(lab_stop(&lab[0], SIGTERM, 10), 0, "the daemon ends");
	setenv("LD_LIBRARY_PATH", lab[0].dir, 1);
	lab_spawn(&lab[0]);
	unsetenv("LD_LIBRARY_PATH");
	if (!lab_wait_ready(&lab[0], 20))
		BAIL("no daemon without UCX");
	ok(true, "without UCX's library it starts all the same");
	for (uint32_t i = 1; i < 3; i++) {
		lab_spawn(&lab[i]);
		if (!lab_wait_ready(&lab[i], 20))
			BAIL("daemon %u does not come back", i);
	}
	ok(lab_hosts_begin(&h, lab, 3, CTL_TRAIN, spec_of("3", 4), 0) < 0,
	   "a training is refused there");
	like(h.job[0].err.message, "merge_transport is 'ucx'", "  the error names the setting");
	like(h.job[0].err.message, "libucp.so.0", "  and the library");
	like(h.job[0].err.hint, "merge_transport = tcp", "  the hint says what to do");
	lab_hosts_end(&h);
}

/* In a process of its own: the library takes over signals. */
static bool installed(void)
{
	pid_t pid = fork();
	int status = -1;

	if (!pid)
		_exit(dlopen("libucp.so.0", RTLD_LAZY | RTLD_LOCAL) == NULL);
	return pid > 0 && waitpid(pid, &status, 0) == pid && !status;
}

int main(void)
{
	uint64_t bytes[2] = {0, 0};
	uint8_t *weights[2];

	if (!MERGE_UCX_BUILT || !installed()) {
		printf("1..0 # SKIP no UCX: libucx-dev or its library is missing\n");
		return 0;
	}
	weights[0] = trained(TCP_CONF, false, &bytes[0]);
	weights[1] = trained(UCX_CONF, true, &bytes[1]);
	ok(bytes[0] && bytes[0] == bytes[1] && !memcmp(weights[0], weights[1], bytes[0]),
	   "over UCX the weights are those over TCP, bit by bit (%llu bytes)",
	   (unsigned long long)bytes[1]);
	free(weights[0]);
	free(weights[1]);
	test_killed();
	test_missing();
	lab_hosts_stop(lab, 3);
	return done();
}
