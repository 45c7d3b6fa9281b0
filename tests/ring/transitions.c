// SPDX-License-Identifier: MIT
/*
 * transitions.c: ten million times from empty to non-empty, and ten million times from full to
 * non-full, between two processes, without one lost wake-up. Built a second time with
 * RING_WEAK_ORDER (as weak_order), where the same run must lose one: else the test proves nothing.
 *   RING_TRANSITIONS=n  another count
 */
#include "../tap.h"
#include "backend.h"
#include "transitions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#ifdef RING_WEAK_ORDER
#define WEAK true
#else
#define WEAK false
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRANSITIONS 20000 /* instrumented code is too slow to aim well: threads.c is for it */
#else
#define TRANSITIONS 10000000
#endif
#define SLEEP_MS 1000 /* far above any delay of scheduling: who wakes only then was forgotten */
#define LIMIT_MS 240000

static struct pace *new_pace(void)
{
	void *p = mmap(NULL, sizeof(struct pace), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		BAIL("mmap: %m");
	return p;
}

static void child(const int *fds, struct pace *pace, bool full, uint32_t bytes, uint64_t wanted)
{
	struct ring *producer;
	int copy[RING_FDS];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < RING_FDS; i++)
		copy[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	if (ring_attach(copy, RING_MAX_BYTES, &producer))
		_exit(1);
	if (full)
		sleeper(producer, pace, true, bytes, wanted, SLEEP_MS, WEAK, clock_ms() + LIMIT_MS);
	else
		waker(producer, pace, true, bytes);
	ring_close(producer);
	_exit(0);
}

static void run(bool full, uint64_t wanted, const cpu_set_t *allowed)
{
	const char *name = full ? "full to non-full" : "empty to non-empty";
	struct pace *pace = new_pace();
	struct ring *consumer;
	int fds[RING_FDS], status;
	int64_t begin = clock_ms();
	uint32_t bytes;
	uint64_t lost;
	pid_t pid;

	if (make_ring(RING_MIN_BYTES, &consumer))
		BAIL("ring_create");
	ring_export(consumer, fds);
	/* full: four records fill the ring, and each one that goes makes room for one */
	bytes = full ? ring_max_record(consumer) : 48;
	pid = fork();
	if (pid < 0)
		BAIL("fork: %m");
	pin(allowed, pid ? 0 : 1);
	if (!pid)
		child(fds, pace, full, bytes, wanted);
	if (full)
		waker(consumer, pace, false, bytes);
	else
		sleeper(consumer, pace, false, bytes, wanted, SLEEP_MS, WEAK, begin + LIMIT_MS);
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "%s: the producer's process ended well",
	   name);
	is(pace->sleeper_wrong + pace->waker_wrong, 0, "every record as sent");
	lost = pace->sleeper.timeouts_with_work;
	printf("# %s: %llu transitions, %llu sleeps, %llu kicks, %llu lost, %.1f s\n", name,
	       (unsigned long long)pace->transitions, (unsigned long long)pace->sleeper.waits,
	       (unsigned long long)pace->waker.kicks, (unsigned long long)lost,
	       (double)(clock_ms() - begin) / 1000);
	if (WEAK) {
		ok(lost > 0, "%s: release and acquire lose a wake-up within %llu transitions", name,
		   (unsigned long long)wanted);
	} else {
		ok(pace->transitions >= wanted, "%s: %llu transitions", name,
		   (unsigned long long)wanted);
		is(lost, 0, "timeouts_with_work");
		ok(pace->sleeper.waits > wanted / 1000, "... with real sleeps among them");
	}
	ring_close(consumer);
	munmap(pace, sizeof(*pace));
}

int main(void)
{
	const char *given = getenv("RING_TRANSITIONS");
	uint64_t wanted = given ? strtoull(given, NULL, 10) : TRANSITIONS;
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		BAIL("sched_getaffinity: %m");
	if (CPU_COUNT(&allowed) < 2) {
		/* one processor sees its own stores in order: nothing to lose, nothing to show */
		skip("needs two processors", "transitions");
		return done();
	}
	run(false, wanted, &allowed);
	run(true, wanted, &allowed);
	return done();
}
