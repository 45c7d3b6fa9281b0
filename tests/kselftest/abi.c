// SPDX-License-Identifier: MIT
/* abi.c: every call with every kind of invalid input, on the right and on the wrong end. */
#include "cnnring_test.h"

#include <linux/fs.h>
#include <sys/epoll.h>

#define BAD ((void *)8ul)

TEST(open_modes)
{
	EXPECT_EQ(open(DEVICE, O_RDONLY), -1);
	EXPECT_EQ(errno, EACCES);
	EXPECT_EQ(open(DEVICE, O_WRONLY), -1);
	EXPECT_EQ(errno, EACCES);
}

TEST_F(ring, version)
{
	const int fds[] = {self->consumer, self->producer, device()};

	for (int i = 0; i < 3; i++) {
		struct cnnring_version v = {.abi = CNNRING_ABI}, w;

		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, &v), 0);
		EXPECT_EQ(v.abi, CNNRING_ABI);
		EXPECT_NE(v.features & CNNRING_FEATURE_HUGE, 0);
		EXPECT_TRUE((v.features & CNNRING_FEATURE_DMABUF) || may_lack("dmabuf"));
		w = v;
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, &w), 0);
		w = (struct cnnring_version){.abi = CNNRING_ABI + 1};
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, &w), -EPROTO);
		EXPECT_EQ(w.abi, CNNRING_ABI);
		EXPECT_EQ(w.features, v.features);
		w = (struct cnnring_version){.abi = CNNRING_ABI, .features = 1ull << 63};
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, &w), -EOPNOTSUPP);
		EXPECT_EQ(w.features, v.features);
		w = (struct cnnring_version){.abi = CNNRING_ABI, .pad = 1};
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, &w), -EINVAL);
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, BAD), -EFAULT);
		EXPECT_EQ(call(fds[i], CNNRING_IOC_VERSION, NULL), -EFAULT);
	}
	close(fds[2]);
}

TEST(create_refused)
{
	static const uint64_t bad[] = {0,
				       1,
				       4096,
				       BYTES / 2,
				       BYTES - 1,
				       BYTES + 1,
				       3 * BYTES,
				       (1ull << 30) + 4096,
				       1ull << 31,
				       1ull << 32,
				       (1ull << 32) + BYTES,
				       1ull << 63,
				       UINT64_MAX};
	/* the machine has nodes 0 and 1 */
	static const uint32_t nodes[] = {2,    63,	 64,	    1023,
					 1024, 1u << 16, INT32_MAX, UINT32_MAX - 1};
	struct cnnring_create c;
	int fd = device();

	ASSERT_GE(fd, 0);
	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		c = create_arg(bad[i]);
		EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EINVAL)
		TH_LOG("%llu bytes", (unsigned long long)bad[i]);
	}
	for (unsigned int bit = 1; bit < 32; bit++) {
		c = create_arg(BYTES);
		c.flags = 1u << bit;
		EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EINVAL);
	}
	c = create_arg(BYTES);
	c.pad = 1;
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EINVAL);
	c = create_arg(BYTES);
	c.abi = 0;
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EPROTO);
	c.abi = CNNRING_ABI + 1;
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EPROTO);
	for (unsigned int i = 0; i < sizeof(nodes) / sizeof(*nodes); i++) {
		c = create_arg(BYTES);
		c.node = nodes[i];
		EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), -EINVAL);
	}
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, BAD), -EFAULT);
	EXPECT_EQ(stat_of("rings"), 0);
	EXPECT_EQ(stat_of("bytes"), 0);
	/* after all that it still works, once */
	c = create_arg(BYTES);
	c.node = 0;
	EXPECT_EQ(call(fd, CNNRING_IOC_CREATE, &c), 0);
	EXPECT_EQ(c.limit, CNNRING_LIMIT_NONE);
	EXPECT_EQ(c.want_bytes, BYTES + 3 * PAGE);
	EXPECT_EQ(create(fd, BYTES), -EBUSY);
	EXPECT_EQ(create(fd, 2 * BYTES), -EBUSY);
	EXPECT_EQ(query(fd).data_bytes, BYTES);
	close(fd);
}

TEST(without_memory)
{
	struct cnnring_export x = {0};
	struct cnnring_query q = {0};
	int fd = device();

	ASSERT_GE(fd, 0);
	EXPECT_EQ(peer_fd(fd), -ENXIO);
	EXPECT_EQ(wake(fd), -ENXIO);
	EXPECT_EQ(ack(fd), -ENXIO);
	EXPECT_EQ(call(fd, CNNRING_IOC_DETACH, NULL), -ENXIO);
	EXPECT_EQ(call(fd, CNNRING_IOC_QUERY, &q), -ENXIO);
	EXPECT_EQ(call(fd, CNNRING_IOC_EXPORT, &x), -ENXIO);
	EXPECT_EQ(try_map(fd, 0, 1, PROT_READ, MAP_SHARED), -ENXIO);
	EXPECT_EQ(events(fd, 0), POLLERR);
	close(fd);
}

TEST(peer_fd_once)
{
	struct cnnring_peer_fd p = {.flags = 1};
	struct rlimit old, none;
	int fd = device(), peer;

	ASSERT_EQ(create(fd, BYTES), 0);
	EXPECT_EQ(call(fd, CNNRING_IOC_PEER_FD, &p), -EINVAL);
	p = (struct cnnring_peer_fd){.pad = 1};
	EXPECT_EQ(call(fd, CNNRING_IOC_PEER_FD, &p), -EINVAL);
	EXPECT_EQ(call(fd, CNNRING_IOC_PEER_FD, BAD), -EFAULT);
	EXPECT_EQ(query(fd).state, 0);
	/* no descriptor free: nothing is used up */
	getrlimit(RLIMIT_NOFILE, &old);
	none = old;
	none.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &none);
	EXPECT_EQ(peer_fd(fd), -EMFILE);
	setrlimit(RLIMIT_NOFILE, &old);
	peer = peer_fd(fd);
	EXPECT_GE(peer, 0);
	EXPECT_EQ(fcntl(peer, F_GETFD), FD_CLOEXEC);
	EXPECT_EQ(peer_fd(fd), -EBUSY);
	close(peer);
	EXPECT_EQ(peer_fd(fd), -EBUSY);
	close(fd);
}

TEST_F(ring, wrong_end)
{
	struct cnnring_create c = create_arg(BYTES);
	struct cnnring_peer_fd p = {0};
	struct cnnring_export x = {0};

	EXPECT_EQ(call(self->producer, CNNRING_IOC_CREATE, &c), -ENOTTY);
	EXPECT_EQ(call(self->producer, CNNRING_IOC_PEER_FD, &p), -ENOTTY);
	EXPECT_EQ(call(self->producer, CNNRING_IOC_EXPORT, &x), -ENOTTY);
}

TEST_F(ring, unknown_calls)
{
	const int fds[] = {self->consumer, self->producer};
	char space[512] = {0};

	for (int i = 0; i < 2; i++) {
		for (unsigned int n = 0; n < 256; n++) {
			EXPECT_EQ(call(fds[i], _IO(CNNRING_IOC_MAGIC, n), space),
				  n == 4 ? 0 : -ENOTTY)
			TH_LOG("number %u", n);
			if (n == 4)
				break; /* WAKE; DETACH behind it would end the ring */
		}
		for (unsigned int n = 9; n < 256; n++)
			EXPECT_EQ(call(fds[i], _IOWR(CNNRING_IOC_MAGIC, n, uint64_t), space),
				  -ENOTTY);
		/* right number, wrong size or direction */
		EXPECT_EQ(call(fds[i], _IOWR(CNNRING_IOC_MAGIC, 1, uint32_t), space), -ENOTTY);
		EXPECT_EQ(call(fds[i], _IOWR(CNNRING_IOC_MAGIC, 7, char[200]), space), -ENOTTY);
		EXPECT_EQ(call(fds[i], _IOW(CNNRING_IOC_MAGIC, 5, struct cnnring_ack), space),
			  -ENOTTY);
		EXPECT_EQ(call(fds[i], _IO(CNNRING_IOC_MAGIC + 1, 4), space), -ENOTTY);
	}
}

TEST_F(ring, query_values)
{
	struct cnnring_query q = {.flags = 1};

	EXPECT_EQ(call(self->consumer, CNNRING_IOC_QUERY, &q), -EINVAL);
	q = (struct cnnring_query){.pad = 1};
	EXPECT_EQ(call(self->consumer, CNNRING_IOC_QUERY, &q), -EINVAL);
	EXPECT_EQ(call(self->consumer, CNNRING_IOC_QUERY, BAD), -EFAULT);
	EXPECT_EQ(call(self->consumer, CNNRING_IOC_ACK, BAD), -EFAULT);
	q = query(self->consumer);
	EXPECT_EQ(q.role, CNNRING_CONSUMER);
	EXPECT_EQ(q.state, CNNRING_STATE_PEER);
	EXPECT_EQ(q.data_bytes, BYTES);
	EXPECT_EQ(q.total_bytes, BYTES + 3 * PAGE);
	EXPECT_EQ(q.page_bytes, PAGE);
	EXPECT_EQ(q.moved_bytes, 0);
	EXPECT_EQ(q.huge_pages, 0);
	EXPECT_EQ(q.wakes[0] + q.wakes[1], 0);
	EXPECT_EQ(query(self->producer).role, CNNRING_PRODUCER);
	EXPECT_EQ(query(self->producer).id, q.id);
	EXPECT_EQ(wake(self->producer), 0);
	EXPECT_EQ(wake(self->producer), 0);
	EXPECT_EQ(wake(self->consumer), 0);
	q = query(self->consumer);
	EXPECT_EQ(q.wakes[CNNRING_PRODUCER], 2);
	EXPECT_EQ(q.wakes[CNNRING_CONSUMER], 1);
	EXPECT_EQ(q.state, CNNRING_STATE_PEER | CNNRING_STATE_PENDING);
}

TEST_F(ring, wake_and_ack)
{
	const int fds[] = {self->consumer, self->producer};

	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(events(fds[i], 0), 0);
		EXPECT_EQ(ack(fds[i]), CNNRING_STATE_PEER);
		EXPECT_EQ(wake(fds[!i]), 0);
		EXPECT_EQ(wake(fds[!i]), 0);
		EXPECT_EQ(events(fds[i], 0), POLLIN);
		EXPECT_EQ(events(fds[!i], 0), 0);
		EXPECT_EQ(ack(fds[i]), CNNRING_STATE_PEER | CNNRING_STATE_PENDING);
		EXPECT_EQ(events(fds[i], 0), 0);
		EXPECT_EQ(ack(fds[i]), CNNRING_STATE_PEER);
	}
}

TEST_F(ring, epoll)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
	int ep = epoll_create1(EPOLL_CLOEXEC);

	ASSERT_EQ(epoll_ctl(ep, EPOLL_CTL_ADD, self->consumer, &e), 0);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 0), 0);
	wake(self->producer);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 1000), 1);
	EXPECT_EQ(e.events, EPOLLIN);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 0), 0); /* edge */
	wake(self->producer);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 1000), 1); /* a new one */
	close(self->producer);
	self->producer = -1;
	EXPECT_EQ(epoll_wait(ep, &e, 1, 1000), 1);
	EXPECT_EQ(e.events, EPOLLIN | EPOLLHUP | EPOLLRDHUP);
	close(ep);
}

/* epoll that was told of the file before CREATE works after it */
TEST(epoll_before_create)
{
	struct epoll_event e = {.events = EPOLLIN};
	int ep = epoll_create1(EPOLL_CLOEXEC), fd = device(), peer;

	ASSERT_EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 0), 1);
	EXPECT_EQ(e.events, EPOLLERR);
	ASSERT_EQ(create(fd, BYTES), 0);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 0), 0);
	peer = peer_fd(fd);
	wake(peer);
	EXPECT_EQ(epoll_wait(ep, &e, 1, 1000), 1);
	EXPECT_EQ(e.events, EPOLLIN);
	close(peer);
	close(fd);
	close(ep);
}

TEST_F(ring, no_read_write)
{
	char byte = 0;

	EXPECT_EQ(read(self->consumer, &byte, 1), -1);
	EXPECT_EQ(write(self->consumer, &byte, 1), -1);
	EXPECT_EQ(read(self->producer, &byte, 1), -1);
	EXPECT_EQ(write(self->producer, &byte, 1), -1);
}

TEST_HARNESS_MAIN
