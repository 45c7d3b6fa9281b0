// SPDX-License-Identifier: MIT
/*
 * sleep.c: who sleeps for a ring: woken by every end that the other side can come to, by every kind
 * of call, disturbed by signals, stopped and continued.
 */
#include "cnnring_test.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>

#define SOON 20000 /* ms; an emulated machine on a busy host */

/* ---- every call that can wait; each returns > 0 ready, 0 after the time, -errno ---- */

static int by_poll(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int rc = poll(&p, 1, ms);

	return rc < 0 ? -errno : rc;
}

static int by_ppoll(int fd, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	struct pollfd p = {.fd = fd, .events = POLLIN};
	sigset_t none;
	int rc;

	sigemptyset(&none);
	rc = ppoll(&p, 1, &t, &none);
	return rc < 0 ? -errno : rc;
}

static int by_select(int fd, int ms)
{
	struct timeval t = {ms / 1000, ms % 1000 * 1000};
	fd_set set;
	int rc;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	rc = select(fd + 1, &set, NULL, NULL, &t);
	return rc < 0 ? -errno : rc;
}

static int by_pselect(int fd, int ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	sigset_t none;
	fd_set set;
	int rc;

	sigemptyset(&none);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	rc = pselect(fd + 1, &set, NULL, NULL, &t, &none);
	return rc < 0 ? -errno : rc;
}

static int by_epoll_flags(int fd, int ms, uint32_t flags, int with_mask)
{
	struct epoll_event e = {.events = EPOLLIN | flags};
	int ep = epoll_create1(EPOLL_CLOEXEC), rc;
	sigset_t none;

	sigemptyset(&none);
	if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e))
		return -EBADF;
	rc = epoll_pwait(ep, &e, 1, ms, with_mask ? &none : NULL);
	rc = rc < 0 ? -errno : rc;
	close(ep);
	return rc;
}

static int by_epoll(int fd, int ms)
{
	return by_epoll_flags(fd, ms, 0, 0);
}

static int by_epoll_edge(int fd, int ms)
{
	return by_epoll_flags(fd, ms, EPOLLET | EPOLLONESHOT, 1);
}

/* an epoll of an epoll of the ring */
static int by_nested_epoll(int fd, int ms)
{
	struct epoll_event e = {.events = EPOLLIN};
	int inner = epoll_create1(EPOLL_CLOEXEC), rc;

	if (inner < 0 || epoll_ctl(inner, EPOLL_CTL_ADD, fd, &e))
		return -EBADF;
	rc = by_epoll_flags(inner, ms, 0, 0);
	close(inner);
	return rc;
}

static const struct {
	const char *name;
	int (*wait)(int fd, int ms);
} sleeps[] = {
	{"poll", by_poll},
	{"ppoll", by_ppoll},
	{"select", by_select},
	{"pselect", by_pselect},
	{"epoll", by_epoll},
	{"epoll, edge, once", by_epoll_edge},
	{"epoll of epoll", by_nested_epoll},
};
#define N_SLEEPS (int)(sizeof(sleeps) / sizeof(*sleeps))

/* ---- signals ---- */

static volatile int alarms;

static void on_alarm(int number)
{
	alarms++;
}

/* Again and again, for the first may come before the sleep. 0: no more. */
static void alarm_every(int ms, int flags)
{
	struct sigaction a = {.sa_handler = on_alarm, .sa_flags = flags};
	struct itimerval t = {{.tv_usec = ms * 1000}, {.tv_usec = ms * 1000}};

	sigaction(SIGALRM, &a, NULL);
	setitimer(ITIMER_REAL, &t, NULL);
}

TEST_F(ring, signal_ends_every_sleep)
{
	const int fds[] = {self->consumer, self->producer};

	for (int i = 0; i < N_SLEEPS * 4; i++) {
		int fd = fds[i & 1], n = i / 4;

		alarms = 0;
		alarm_every(30, i & 2 ? SA_RESTART : 0);
		EXPECT_EQ(sleeps[n].wait(fd, 10000), -EINTR)
		TH_LOG("%s", sleeps[n].name);
		EXPECT_GE(alarms, 1);
		alarm_every(0, 0);
		/* nothing was lost or made up */
		EXPECT_EQ(sleeps[n].wait(fd, 0), 0);
		EXPECT_EQ(wake(fds[!(i & 1)]), 0);
		EXPECT_EQ(sleeps[n].wait(fd, 10000), 1);
		EXPECT_EQ(ack(fd) & CNNRING_STATE_PENDING, CNNRING_STATE_PENDING);
	}
}

TEST_F(ring, time_ends_every_sleep)
{
	for (int n = 0; n < N_SLEEPS; n++) {
		int64_t begin = now_ms();

		EXPECT_EQ(sleeps[n].wait(self->producer, 40), 0);
		EXPECT_GE(now_ms() - begin, 39);
	}
}

/* A signal that kills nobody does not disturb a CREATE under way: no error, no half ring. */
TEST(signals_while_creating)
{
	struct itimerval often = {{0, 300}, {0, 300}}, off = {{0, 0}, {0, 0}};
	struct sigaction a = {.sa_handler = on_alarm};

	sigaction(SIGALRM, &a, NULL);
	alarms = 0;
	for (int i = 0; i < 40; i++) {
		int fd = device();

		setitimer(ITIMER_REAL, &often, NULL);
		EXPECT_EQ(create(fd, 8 << 20), 0);
		setitimer(ITIMER_REAL, &off, NULL);
		EXPECT_EQ(query(fd).total_bytes, (8 << 20) + 3 * PAGE);
		close(fd);
		ASSERT_TRUE(all_free());
	}
	TH_LOG("%d signals", alarms);
	EXPECT_GT(alarms, 0);
}

/* ---- the other side comes to its end while this one really sleeps ---- */

enum { BY_EXIT, BY_KILL, BY_CLOSE, BY_DETACH, BY_EXEC, BY_FAULT, ENDS };

static const char *const end_names[] = {"exit", "SIGKILL", "close", "DETACH", "exec", "SIGSEGV"};

/* fd is the only end that the child keeps; the parent sleeps for a while before it goes */
static void child(int fd, int other, int how)
{
	close(other);
	if (how != BY_CLOSE) /* a mapping would keep the file */
		map(fd, 3, 1, PROT_READ);
	usleep(60000);
	switch (how) {
	case BY_EXIT:
		_exit(0);
	case BY_KILL:
		raise(SIGKILL);
		break;
	case BY_CLOSE:
		close(fd);
		pause();
		break;
	case BY_DETACH:
		call(fd, CNNRING_IOC_DETACH, NULL);
		pause();
		break;
	case BY_EXEC:
		execl("/bin/sleep", "sleep", "30", NULL);
		break;
	case BY_FAULT:
		raise(SIGSEGV);
	}
	_exit(1);
}

TEST(every_end_wakes_every_sleep)
{
	int64_t longest = 0;

	ASSERT_TRUE(all_free());
	for (int i = 0; i < ENDS * 2 * N_SLEEPS; i++) {
		int how = i % ENDS, producer_dies = i / ENDS & 1, n = i / ENDS / 2;
		int consumer = device(), producer, keep, gone;
		int64_t begin = now_ms();
		pid_t pid;

		ASSERT_EQ(create(consumer, BYTES), 0);
		producer = peer_fd(consumer);
		keep = producer_dies ? consumer : producer;
		gone = producer_dies ? producer : consumer;
		fflush(NULL);
		pid = fork();
		if (!pid)
			child(gone, keep, how);
		close(gone);
		EXPECT_EQ(sleeps[n].wait(keep, SOON), 1)
		TH_LOG("%s of the %s, in %s", end_names[how],
		       producer_dies ? "producer" : "consumer", sleeps[n].name);
		if (now_ms() - begin > longest)
			longest = now_ms() - begin;
		EXPECT_EQ(events(keep, 0), GONE);
		kill(pid, SIGKILL);
		ended(pid);
		close(keep);
		EXPECT_TRUE(all_free());
	}
	TH_LOG("60 ms after the fork the other side ended; seen after %lld ms at most",
	       (long long)longest);
	EXPECT_LT(longest, SOON / 2);
}

/* Stopped and continued, a sleeper sleeps on, and finds what happened meanwhile. */
TEST_F(ring, stopped_and_continued)
{
	for (int turn = 0; turn < 4; turn++) {
		pid_t pid;

		fflush(NULL);
		pid = fork();
		if (!pid)
			_exit(events(self->consumer, 20000) == (turn == 3 ? GONE : POLLIN) ? 0 : 1);
		usleep(30000);
		kill(pid, SIGSTOP);
		usleep(30000);
		if (turn & 1) {
			if (turn == 3)
				call(self->producer, CNNRING_IOC_DETACH, NULL);
			else
				wake(self->producer);
			kill(pid, SIGCONT);
		} else {
			kill(pid, SIGCONT);
			usleep(30000);
			wake(self->producer);
		}
		EXPECT_EQ(ended(pid), 0);
		ack(self->consumer);
	}
}

static void *detach_later(void *fd)
{
	usleep(50000);
	call(*(int *)fd, CNNRING_IOC_DETACH, NULL);
	return NULL;
}

TEST_F(ring, detach_wakes_both)
{
	pthread_t thread;

	pthread_create(&thread, NULL, detach_later, &self->consumer);
	EXPECT_EQ(events(self->consumer, SOON), POLLHUP | POLLRDHUP);
	pthread_join(thread, NULL);
	EXPECT_EQ(events(self->producer, 0), GONE);
}

/* Several sleepers of one end: a wake-up wakes them all, and one ACK is enough. */
static void *sleep_once(void *fd)
{
	return (void *)(long)events(*(int *)fd, 10000);
}

TEST_F(ring, many_sleepers)
{
	pthread_t thread[8];
	void *rc;

	for (int i = 0; i < 8; i++)
		pthread_create(&thread[i], NULL, sleep_once, &self->consumer);
	usleep(50000);
	EXPECT_EQ(wake(self->producer), 0);
	for (int i = 0; i < 8; i++) {
		pthread_join(thread[i], &rc);
		EXPECT_EQ((long)rc, POLLIN);
	}
	EXPECT_EQ(ack(self->consumer), CNNRING_STATE_PEER | CNNRING_STATE_PENDING);
	EXPECT_EQ(events(self->consumer, 0), 0);
}

TEST_HARNESS_MAIN
