// SPDX-License-Identifier: MIT
/* load.c: thousands of rings and deaths, random calls, and afterwards nothing is left. */
#include "cnnring_test.h"

#include <pthread.h>

TEST(cycles)
{
	ASSERT_TRUE(all_free());
	for (int i = 0; i < 2000; i++) {
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
	for (int i = 0; i < 256; i++) {
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

	for (int i = 0; i < 150; i++) {
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

/* ---- random calls; each must have worked at least once ---- */

enum {
	DO_OPEN,
	DO_CREATE,
	DO_PEER,
	DO_WAKE,
	DO_ACK,
	DO_DETACH,
	DO_QUERY,
	DO_EXPORT,
	DO_VERSION,
	DO_MAP,
	DO_UNMAP,
	DO_CLOSE,
	DO_POLL,
	DO_COUNT
};

static unsigned int seed = 4711;

static uint64_t any(void)
{
	uint64_t v = (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed) << 11 ^ rand_r(&seed);

	return rand_r(&seed) % 3 ? v % 16 : v;
}

static int random_call(int what, int *fd, void **mapped)
{
	char noise[128];

	for (unsigned int i = 0; i < sizeof(noise) / 8; i++)
		((uint64_t *)noise)[i] = rand_r(&seed) % 4 ? 0 : any();
	switch (what) {
	case DO_OPEN:
		if (*fd >= 0)
			return -1;
		*fd = device();
		return *fd;
	case DO_CREATE:
		return rand_r(&seed) % 4 ? create(*fd, BYTES << rand_r(&seed) % 3)
					 : call(*fd, CNNRING_IOC_CREATE, noise);
	case DO_PEER: {
		int peer = call(*fd, CNNRING_IOC_PEER_FD, noise);

		if (peer >= 0) {
			close(*fd);
			*fd = peer;
		}
		return peer;
	}
	case DO_WAKE:
		return wake(*fd);
	case DO_ACK:
		return ack(*fd);
	case DO_DETACH:
		return rand_r(&seed) % 8 ? -1 : call(*fd, CNNRING_IOC_DETACH, NULL);
	case DO_QUERY:
		return call(*fd, CNNRING_IOC_QUERY, noise);
	case DO_EXPORT: {
		int dma = call(*fd, CNNRING_IOC_EXPORT, noise);

		if (dma >= 0)
			close(dma);
		return dma;
	}
	case DO_VERSION:
		((struct cnnring_version *)noise)->abi = 1;
		return call(*fd, CNNRING_IOC_VERSION, noise);
	case DO_MAP:
		if (*mapped)
			return -1;
		*mapped = map(*fd, any(), 1 + any() % 20, (int)any() & 7);
		return *mapped ? 0 : -1;
	case DO_UNMAP:
		if (!*mapped)
			return -1;
		munmap(*mapped, 20 * PAGE);
		*mapped = NULL;
		return 0;
	case DO_CLOSE:
		if (*fd < 0 || rand_r(&seed) % 8)
			return -1;
		close(*fd);
		*fd = -1;
		return 0;
	default:
		return events(*fd, 0) > 0 ? 0 : -1;
	}
}

TEST(random_sequences)
{
	static const char *const names[DO_COUNT] = {"open",   "create", "peer",	  "wake",    "ack",
						    "detach", "query",	"export", "version", "map",
						    "unmap",  "close",	"poll"};
	int fds[8] = {-1, -1, -1, -1, -1, -1, -1, -1}, done[DO_COUNT] = {0};
	void *mapped[8] = {NULL};
	const char *turns = getenv("CNNRING_TURNS");
	long n = turns ? atol(turns) : 40000;

	for (long i = 0; i < n; i++) {
		int what = rand_r(&seed) % DO_COUNT, k = rand_r(&seed) % 8;

		done[what] += random_call(what, &fds[k], &mapped[k]) >= 0;
	}
	for (int i = 0; i < DO_COUNT; i++) {
		TH_LOG("%s worked %d times", names[i], done[i]);
		if (i != DO_EXPORT || !may_lack_dmabuf())
			EXPECT_GT(done[i], 0);
	}
	for (int i = 0; i < 8; i++) {
		if (mapped[i])
			munmap(mapped[i], 20 * PAGE);
		if (fds[i] >= 0)
			close(fds[i]);
	}
	EXPECT_TRUE(all_free());
}

TEST_HARNESS_MAIN
