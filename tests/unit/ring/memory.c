// SPDX-License-Identifier: MIT
/*
 * memory.c: what the ring does with descriptors and mappings: none is left behind, on no error path
 * either; none is passed on by exec, fork or a core file; each side can write its own part only.
 */
#include "ends.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Mappings of the ring with the given access, and those of them that carry all flags. */
static void maps(const char *access, int *found, int *flagged)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512];
	bool in = false;

	*found = *flagged = 0;
	while (f && fgets(line, sizeof(line), f)) {
		char perms[8];

		if (sscanf(line, "%*x-%*x %7s", perms) == 1) {
			in = strstr(line, "cnnring") && !strncmp(perms, access, 4);
			*found += in;
		} else if (in && !strncmp(line, "VmFlags:", 8)) {
			*flagged += strstr(line, " dc") && strstr(line, " dd");
		}
	}
	if (f)
		fclose(f);
}

static void expect_maps(const char *access, int wanted, const char *name)
{
	int found, flagged;

	maps(access, &found, &flagged);
	is(found, wanted, name);
	is(flagged, wanted, "... none goes to a child or a core file");
}

static void test_mappings(void)
{
	struct ring *consumer, *producer;
	int fds[RING_FDS], before = open_fds();
	struct stat st;

	make_ring(RING_MIN_BYTES, &consumer);
	/* adjoining windows of one kind may merge: the producer's page is one, data twice is two */
	expect_maps("r--s", 3, "consumer: reads the producer's page and the data");
	expect_maps("rw-s", 1, "consumer: writes its own page");
	copy_fds(consumer, fds);
	for (int i = 0; i < RING_FDS; i++)
		fcntl(fds[i], F_SETFD, 0);
	if (ring_attach(fds, RING_MAX_BYTES, &producer))
		BAIL("ring_attach");
	expect_maps("r--s", 4, "producer: reads the consumer's page");
	expect_maps("rw-s", 4, "producer: writes its own page and the data");
	if (on_device())
		is(open_fds(), before + 3, "two descriptors of the consumer, one of the producer");
	else
		is(open_fds(), before + 5,
		   "three descriptors of the consumer, two of the producer");
	for (int i = 1; i < RING_FDS && !on_device(); i++)
		ok(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, "the producer's are close-on-exec");
	ring_export(consumer, fds);
	for (int i = 0; i < RING_FDS; i++)
		ok(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, "the consumer's are close-on-exec");
	if (on_device()) {
		ok(fcntl(ring_wait_fd(producer), F_GETFD) & FD_CLOEXEC, "the producer's is, too");
		ring_exported(consumer);
		is(ring_export(consumer, fds), -EPIPE, "exported: the producer's end is given up");
		is(open_fds(), before + 2, "... and its descriptor closed");
	} else {
		fstat(fds[0], &st);
		is(st.st_blocks * 512, RING_MIN_BYTES + 3 * sysconf(_SC_PAGESIZE),
		   "all pages are there");
	}
	ring_close(producer);
	ring_close(consumer);
	expect_maps("r--s", 0, "closed: nothing is mapped");
	expect_maps("rw-s", 0, "closed: nothing is mapped for writing");
	is(open_fds(), before, "closed: no descriptor is left");
}

/* What happens to a child that touches memory it should not. */
static int signal_of_write(void *at)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
		*(volatile uint8_t *)at = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_fork(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	void *place;

	ring_reserve(e.producer, 100, &place);
	is(signal_of_write(place), SIGSEGV, "a child has no ring");
	close_ends(&e);
}

/* A producer killed between reserve and commit: what it committed is there, nothing else is. */
static void test_killed(void)
{
	struct ring *consumer, *producer;
	struct ring_record record;
	int fds[RING_FDS], taken = 0;
	pid_t pid;

	if (make_ring(RING_MIN_BYTES, &consumer))
		BAIL("ring_create");
	copy_fds(consumer, fds);
	pid = fork();
	if (!pid) {
		void *place;

		if (ring_attach(fds, RING_MAX_BYTES, &producer))
			_exit(1);
		for (int i = 0; i < 3; i++)
			send(producer, 1000, i, 1, 0);
		if (!ring_reserve(producer, 1000, &place))
			memset(place, 9, 1000);
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);
	while (!ring_next(consumer, &record)) {
		ring_consume(consumer);
		taken++;
	}
	is(taken, 3, "killed: what was committed is there");
	is(ring_wait(consumer, 0, 10), -ETIMEDOUT, "... the rest never comes, and nothing hangs");
	for (int i = 0; i < RING_FDS; i++)
		close(fds[i]);
	if (on_device()) {
		ring_exported(consumer);
		is(ring_wait(consumer, 0, 1000), -EPIPE, "the device tells that it is gone");
		is(ring_next(consumer, &record), -EPIPE, "... and so does the ring");
	}
	ring_close(consumer);
}

/* With k descriptors free, for every k: an error, and nothing left. */
static void test_no_descriptors(void)
{
	struct rlimit old, now;
	struct ring *ring;
	int before = open_fds(), failed = 0, good = 0, highest;

	highest = fcntl(0, F_DUPFD_CLOEXEC, 0);
	close(highest);
	getrlimit(RLIMIT_NOFILE, &old);
	for (int k = 0; k < 6; k++) {
		now = old;
		now.rlim_cur = (rlim_t)(highest + k);
		setrlimit(RLIMIT_NOFILE, &now);
		ring = NULL;
		if (!make_ring(RING_MIN_BYTES, &ring)) {
			good++;
			ring_close(ring);
		} else {
			failed++;
		}
		setrlimit(RLIMIT_NOFILE, &old);
		if (open_fds() != before)
			ok(false, "%d descriptors free: one is left", k);
	}
	if (on_device())
		ok(failed == 2 && good == 4, "without two descriptors: an error, nothing left");
	else
		ok(failed == 3 && good == 3, "without three descriptors: an error, nothing left");
}

static void test_no_memory(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	ok(true, "RLIMIT_AS means nothing under a sanitizer");
#else
	const size_t big = on_device() ? 64 << 20 : 512 << 20;
	struct rlimit old, now;
	struct ring *ring = NULL;
	int before = open_fds(), found, flagged;

	getrlimit(RLIMIT_AS, &old);
	now = old;
	now.rlim_cur = big / 2;
	setrlimit(RLIMIT_AS, &now);
	is(make_ring(big, &ring), -ENOMEM, "no room to map: an error");
	setrlimit(RLIMIT_AS, &old);
	ok(!ring && open_fds() == before, "... no descriptor left");
	maps("r--s", &found, &flagged);
	is(found, 0, "... no mapping left");

	if (on_device())
		return;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &old);
	now = old;
	now.rlim_cur = 32 << 10;
	setrlimit(RLIMIT_FSIZE, &now);
	is(make_ring(RING_MIN_BYTES, &ring), -EFBIG, "no room for the pages: an error");
	setrlimit(RLIMIT_FSIZE, &old);
	is(open_fds(), before, "... no descriptor left");
#endif
}

int main(void)
{
	test_mappings();
	test_fork();
	test_killed();
	test_no_descriptors();
	test_no_memory();
	return done();
}
