// SPDX-License-Identifier: MIT
/* life.c: each side learns of the end of the other one, however it came, and in no other case. */
#include "cnnring_test.h"

#include <sys/syscall.h>

#define SOON 20000 /* ms; an emulated machine on a busy host */

TEST_F(ring, producer_closes)
{
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(events(self->consumer, SOON), GONE);
	EXPECT_EQ(ack(self->consumer),
		  CNNRING_STATE_PENDING | CNNRING_STATE_PEER | CNNRING_STATE_PEER_GONE);
	/* stays, also when the wake-up is taken */
	EXPECT_EQ(events(self->consumer, 0), POLLHUP | POLLRDHUP);
	EXPECT_EQ(wake(self->consumer), -EPIPE);
	EXPECT_EQ(try_map(self->consumer, 3, 1, PROT_READ, MAP_SHARED), 0);
	EXPECT_EQ(peer_fd(self->consumer), -EBUSY);
}

TEST_F(ring, consumer_closes)
{
	volatile char *p = map(self->producer, 3, 1, PROT_READ | PROT_WRITE);

	ASSERT_NE(p, NULL);
	close(self->consumer);
	self->consumer = -1;
	EXPECT_EQ(events(self->producer, SOON), GONE);
	EXPECT_EQ(wake(self->producer), -EPIPE);
	*p = 1; /* no SIGBUS */
	EXPECT_EQ(*p, 1);
	munmap((void *)p, PAGE);
}

/* A child that holds `keep` only, has it mapped, and sleeps in poll until it is killed. */
static pid_t sleeper(int keep, int drop, int told)
{
	pid_t pid = fork();
	int page = 3;

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(drop);
	if (!map(keep, page, 1, PROT_READ) || write(told, "", 1) != 1)
		_exit(1);
	for (;;)
		events(keep, -1);
}

static int wait_told(int fd)
{
	char byte;

	return read(fd, &byte, 1) == 1;
}

TEST_F(ring, killed_while_asleep)
{
	int64_t begin, longest = 0;
	int told[2];

	ASSERT_EQ(pipe(told), 0);
	for (int turn = 0; turn < 10; turn++) {
		int consumer = device(), producer, producer_dies = turn & 1;
		pid_t pid;

		ASSERT_EQ(create(consumer, BYTES), 0);
		producer = peer_fd(consumer);
		pid = sleeper(producer_dies ? producer : consumer,
			      producer_dies ? consumer : producer, told[1]);
		ASSERT_TRUE(wait_told(told[0]));
		close(producer_dies ? producer : consumer);
		EXPECT_EQ(events(producer_dies ? consumer : producer, 20), 0);
		kill(pid, SIGKILL);
		begin = now_ms();
		EXPECT_EQ(events(producer_dies ? consumer : producer, SOON), GONE);
		if (now_ms() - begin > longest)
			longest = now_ms() - begin;
		EXPECT_EQ(ended(pid), 1000 + SIGKILL);
		close(producer_dies ? consumer : producer);
	}
	TH_LOG("a death was seen after %lld ms at most", (long long)longest);
	EXPECT_LT(longest, SOON / 4);
}

TEST_F(ring, killed_in_the_middle)
{
	/* asleep in this process, while the other one writes as fast as it can */
	pid_t pid = fork();

	if (!pid) {
		volatile uint64_t *p = map(self->producer, 3, 1, PROT_READ | PROT_WRITE);

		close(self->consumer);
		for (;;) {
			++*p;
			wake(self->producer);
		}
	}
	close(self->producer);
	self->producer = -1;
	for (int i = 0; i < 100; i++) {
		EXPECT_EQ(events(self->consumer, SOON), POLLIN);
		ack(self->consumer);
	}
	kill(pid, SIGKILL);
	ended(pid);
	EXPECT_EQ(events(self->consumer, SOON) & POLLHUP, POLLHUP);
}

TEST_F(ring, sent_but_never_received)
{
	int pair[2];

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	ASSERT_EQ(send_fd(pair[0], self->producer), 0);
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(events(self->consumer, 50), 0); /* under way */
	close(pair[1]);
	close(pair[0]);
	EXPECT_EQ(events(self->consumer, SOON), GONE);
}

TEST_F(ring, another_user)
{
	int pair[2];
	pid_t pid;

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	pid = fork();
	if (!pid) {
		volatile char *p;
		int fd;

		close(self->producer);
		close(self->consumer);
		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(1);
		if (device() >= 0)
			_exit(2); /* no right on the device itself */
		fd = receive_fd(pair[1]);
		p = map(fd, 3, BYTES / PAGE, PROT_READ | PROT_WRITE);
		if (!p)
			_exit(3);
		memset((void *)p, 'x', BYTES);
		if (wake(fd) || query(fd).role != CNNRING_PRODUCER)
			_exit(4);
		_exit(events(fd, SOON) == POLLIN ? 0 : 5);
	}
	ASSERT_EQ(send_fd(pair[0], self->producer), 0);
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(events(self->consumer, SOON), POLLIN);
	EXPECT_EQ(wake(self->consumer), 0);
	EXPECT_EQ(ended(pid), 0);
	EXPECT_EQ(events(self->consumer, SOON), GONE);
	close(pair[0]);
	close(pair[1]);
}

TEST_F(ring, held_by_a_child)
{
	int told[2];
	pid_t pid;

	ASSERT_EQ(pipe(told), 0);
	pid = sleeper(self->producer, self->consumer, told[1]);
	ASSERT_TRUE(wait_told(told[0]));
	EXPECT_EQ(events(self->consumer, 50), 0);
	/* who really ends says so, whoever else has the file */
	EXPECT_EQ(call(self->producer, CNNRING_IOC_DETACH, NULL), 0);
	EXPECT_EQ(events(self->consumer, SOON), GONE);
	kill(pid, SIGKILL);
	ended(pid);
}

TEST_F(ring, held_by_a_mapping)
{
	void *p = map(self->producer, 3, 1, PROT_READ);

	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(events(self->consumer, 50), 0);
	munmap(p, PAGE);
	EXPECT_EQ(events(self->consumer, SOON), GONE);
}

TEST_F(ring, detach)
{
	const int fds[] = {self->consumer, self->producer};
	volatile char *p = map(self->producer, 3, 1, PROT_READ | PROT_WRITE);

	EXPECT_EQ(call(self->producer, CNNRING_IOC_DETACH, NULL), 0);
	EXPECT_EQ(call(self->producer, CNNRING_IOC_DETACH, NULL), 0);
	EXPECT_EQ(wake(self->producer), -EPIPE);
	EXPECT_EQ(wake(self->consumer), -EPIPE);
	EXPECT_EQ(try_map(self->producer, 3, 1, PROT_READ, MAP_SHARED), -EPIPE);
	EXPECT_EQ(try_map(self->consumer, 3, 1, PROT_READ, MAP_SHARED), 0);
	EXPECT_EQ(events(self->producer, 0), POLLHUP | POLLRDHUP);
	EXPECT_EQ(events(self->consumer, 0), GONE);
	EXPECT_EQ(query(self->producer).state, CNNRING_STATE_PEER | CNNRING_STATE_DETACHED);
	*p = 3; /* mappings stay */
	munmap((void *)p, PAGE);
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(call(fds[i], CNNRING_IOC_DETACH, NULL), 0);
	EXPECT_EQ(peer_fd(self->consumer), -EPIPE);
}

TEST_F(ring, gone_after_exec)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (!pid) {
		execl("/bin/sleep", "sleep", "1", NULL);
		_exit(1);
	}
	usleep(300000);
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(events(self->consumer, 300), GONE);
	kill(pid, SIGKILL);
	ended(pid);
}

/* ---- the module ---- */

static int unload(void)
{
	return syscall(SYS_delete_module, "cnnring", O_NONBLOCK) ? -errno : 0;
}

TEST_F(ring, unload_refused)
{
	struct cnnring_export x = {0};
	void *p;
	int dma;

	EXPECT_EQ(unload(), -EWOULDBLOCK);
	dma = call(self->consumer, CNNRING_IOC_EXPORT, &x);
	ASSERT_GE(dma, has_dmabuf(self->consumer) ? 0 : -ENOTTY);
	close(self->consumer);
	self->consumer = -1;
	EXPECT_EQ(unload(), -EWOULDBLOCK); /* the producer's end */
	p = map(self->producer, 3, 1, PROT_READ);
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(unload(), -EWOULDBLOCK); /* a mapping */
	munmap(p, PAGE);
	usleep(100000);
	if (dma >= 0) {
		EXPECT_EQ(unload(), -EWOULDBLOCK); /* a dma-buf */
		close(dma);
	}
}

TEST_HARNESS_MAIN
