// SPDX-License-Identifier: MIT
/* load.c: thousands of rings and deaths, many threads, and afterwards nothing is left. */
#include "cnnring_test.h"

#include <pthread.h>

TEST(cycles)
{
	ASSERT_TRUE(all_free());
	for (int i = 0; i < turns(2000); i++) {
		int consumer = device(), producer;
		volatile char *p;

		ASSERT_EQ(create(consumer, BYTES), 0);
		producer = peer_fd(consumer);
		ASSERT_GE(producer, 0);
		p = map(producer, 3, 1, PROT_READ | PROT_WRITE);
		ASSERT_NE(p, NULL);
		ASSERT_EQ(*p, 0);
		*p = 1;
		if (i & 1)
			close(producer);
		close(consumer);
		if (!(i & 1))
			close(producer);
		munmap((void *)p, PAGE);
	}
	EXPECT_TRUE(all_free());
}

/* Twice the machine's memory, one after the other: what the counters call free must be free. */
TEST(pages_come_back)
{
	for (int i = 0; i < turns(256); i++) {
		struct cnnring_create c = create_arg(4 << 20);
		int fd = device(), peer;
		volatile char *p;

		c.flags = i & 1 ? CNNRING_CREATE_HUGE : 0;
		ASSERT_EQ(call(fd, CNNRING_IOC_CREATE, &c), 0)
		{
			TH_LOG("ring %d", i);
		}
		peer = peer_fd(fd);
		p = map(peer, 3, (4 << 20) / PAGE, PROT_READ | PROT_WRITE);
		ASSERT_NE(p, NULL);
		for (int at = 0; at < 4 << 20; at += 16 * PAGE)
			p[at] = 1;
		munmap((void *)p, 4 << 20);
		close(peer);
		close(fd);
		ASSERT_TRUE(all_free());
	}
}

TEST(kills)
{
	unsigned int seed = 1;

	for (int i = 0; i < turns(150); i++) {
		pid_t pid = fork();

		if (!pid) {
			for (;;) {
				int consumer = device(), producer;

				create(consumer, BYTES);
				producer = peer_fd(consumer);
				map(producer, 3, 4, PROT_READ | PROT_WRITE);
				wake(producer);
				close(producer);
				close(consumer);
				/* the mapping stays until the death */
			}
		}
		usleep(rand_r(&seed) % 5000);
		kill(pid, SIGKILL);
		ASSERT_EQ(ended(pid), 1000 + SIGKILL);
	}
	EXPECT_TRUE(all_free());
}

/*
 * A ring for each of two thousand short lives: the other side gets its end through a socket, maps
 * it, says so, and is killed there.
 */
TEST(create_attach_kill)
{
	for (int i = 0; i < turns(2000); i++) {
		int consumer = device(), producer, pair[2];
		pid_t pid;

		ASSERT_EQ(create(consumer, BYTES), 0);
		producer = peer_fd(consumer);
		ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		pid = fork();
		if (!pid) {
			volatile uint64_t *p;
			int fd;

			close(producer);
			close(consumer);
			fd = receive_fd(pair[1]);
			p = map(fd, 3, BYTES / PAGE, PROT_READ | PROT_WRITE);
			if (!p)
				_exit(1);
			*p = i;
			wake(fd);
			for (;;)
				events(fd, -1);
		}
		ASSERT_EQ(send_fd(pair[0], producer), 0);
		close(producer);
		ASSERT_EQ(events(consumer, 10000), POLLIN);
		kill(pid, SIGKILL);
		ack(consumer);
		ASSERT_EQ(events(consumer, 10000) & POLLHUP, POLLHUP);
		ASSERT_EQ(ended(pid), 1000 + SIGKILL);
		close(pair[0]);
		close(pair[1]);
		close(consumer);
	}
	EXPECT_TRUE(all_free());
}

/* ---- both ends at once, from several threads ---- */

static volatile int stop;

static void *hammer(void *p)
{
	int fd = *(int *)p, n = 0;

	while (!stop) {
		wake(fd);
		ack(fd);
		events(fd, 0);
		query(fd);
		try_map(fd, 3, 2, PROT_READ, MAP_SHARED);
		n++;
	}
	return NULL;
}

TEST(threads)
{
	for (int i = 0; i < 20; i++) {
		int fds[2] = {device(), -1};
		pthread_t thread[4];

		ASSERT_EQ(create(fds[0], BYTES), 0);
		fds[1] = peer_fd(fds[0]);
		stop = 0;
		for (int k = 0; k < 4; k++)
			pthread_create(&thread[k], NULL, hammer, &fds[k & 1]);
		usleep(20000);
		call(fds[i & 1], CNNRING_IOC_DETACH, NULL);
		usleep(10000);
		stop = 1;
		for (int k = 0; k < 4; k++)
			pthread_join(thread[k], NULL);
		EXPECT_EQ(events(fds[!(i & 1)], 0) & POLLHUP, POLLHUP);
		close(fds[0]);
		close(fds[1]);
	}
	EXPECT_TRUE(all_free());
}

static void *create_one(void *p)
{
	return (void *)(long)create(*(int *)p, BYTES);
}

/* Only one of several CREATEs of one file, and one of several PEER_FDs, may win. */
static void *peer_one(void *p)
{
	return (void *)(long)peer_fd(*(int *)p);
}

TEST(only_one_wins)
{
	for (int i = 0; i < 100; i++) {
		int fd = device(), won = 0, peer = -1;
		pthread_t thread[4];
		void *rc;

		for (int k = 0; k < 4; k++)
			pthread_create(&thread[k], NULL, create_one, &fd);
		for (int k = 0; k < 4; k++) {
			pthread_join(thread[k], &rc);
			won += !rc;
			if (rc)
				ASSERT_EQ((long)rc, -EBUSY);
		}
		ASSERT_EQ(won, 1);
		for (int k = 0; k < 4; k++)
			pthread_create(&thread[k], NULL, peer_one, &fd);
		won = 0;
		for (int k = 0; k < 4; k++) {
			pthread_join(thread[k], &rc);
			if ((long)rc >= 0) {
				won++;
				peer = (int)(long)rc;
			}
		}
		ASSERT_EQ(won, 1);
		close(peer);
		close(fd);
	}
	EXPECT_TRUE(all_free());
}

TEST_HARNESS_MAIN
