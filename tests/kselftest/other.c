// SPDX-License-Identifier: MIT
/*
 * other.c: this module's calls on files of other drivers, calls of others on this module's files,
 * ways to a file that are not open, and callers of 32 bit.
 */
#include "cnnring_test.h"

#include <linux/fs.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <termios.h>

static const unsigned long ours[] = {CNNRING_IOC_VERSION, CNNRING_IOC_CREATE, CNNRING_IOC_PEER_FD,
				     CNNRING_IOC_WAKE,	  CNNRING_IOC_ACK,    CNNRING_IOC_DETACH,
				     CNNRING_IOC_QUERY,	  CNNRING_IOC_EXPORT};
#define N_OURS (sizeof(ours) / sizeof(*ours))

/* None of our numbers means anything to another driver, so none can be misled by it. */
TEST(our_calls_on_other_files)
{
	struct {
		const char *name;
		int fd;
	} files[24];
	int n = 0, p[2], s[2];
	struct cnnring_export x = {0};
	int ring = device();
	sigset_t none;

	sigemptyset(&none);
	ASSERT_EQ(pipe(p), 0);
	ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	ASSERT_EQ(create(ring, BYTES), 0);
	files[n].name = "memfd", files[n++].fd = memfd_create("m", MFD_CLOEXEC);
	files[n].name = "pipe, read", files[n++].fd = p[0];
	files[n].name = "pipe, write", files[n++].fd = p[1];
	files[n].name = "unix stream", files[n++].fd = s[0];
	files[n].name = "unix datagram", files[n++].fd = socket(AF_UNIX, SOCK_DGRAM, 0);
	files[n].name = "eventfd", files[n++].fd = eventfd(0, EFD_CLOEXEC);
	files[n].name = "epoll", files[n++].fd = epoll_create1(EPOLL_CLOEXEC);
	files[n].name = "timerfd", files[n++].fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	files[n].name = "signalfd", files[n++].fd = signalfd(-1, &none, SFD_CLOEXEC);
	files[n].name = "inotify", files[n++].fd = inotify_init1(IN_CLOEXEC);
	files[n].name = "/dev/null", files[n++].fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	files[n].name = "/dev/zero", files[n++].fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	files[n].name = "a program", files[n++].fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	files[n].name = "a folder", files[n++].fd = open("/tmp", O_RDONLY | O_CLOEXEC);
	files[n].name = "/proc/self/maps", files[n++].fd = open("/proc/self/maps", O_RDONLY);
	files[n].name = "debugfs",
	files[n++].fd = open("/sys/kernel/debug/cnnring/stats", O_RDONLY);
	files[n].name = "another misc device", files[n++].fd = open("/dev/cnnring_test", O_RDWR);
	if (has_dmabuf(ring))
		files[n].name = "dma-buf", files[n++].fd = call(ring, CNNRING_IOC_EXPORT, &x);
	for (int i = 0; i < n; i++) {
		ASSERT_GE(files[i].fd, 0)
		TH_LOG("%s: %s", files[i].name, strerror(errno));
		for (unsigned int k = 0; k < N_OURS; k++) {
			char arg[512] = {0};
			int rc = call(files[i].fd, ours[k], arg);

			/* epoll has calls of its own since 6.9 and says EINVAL to the others */
			EXPECT_TRUE(rc == -ENOTTY || rc == -EINVAL)
			TH_LOG("%s, call %u: %d", files[i].name, k + 1, rc);
			for (unsigned int b = 0; b < sizeof(arg); b++)
				ASSERT_EQ(arg[b], 0);
		}
		close(files[i].fd);
	}
	close(s[1]);
	close(ring);
	/* and on no file at all */
	EXPECT_EQ(call(ring, CNNRING_IOC_WAKE, NULL), -EBADF);
	EXPECT_EQ(call(-1, CNNRING_IOC_WAKE, NULL), -EBADF);
	ring = open(DEVICE, O_PATH | O_CLOEXEC);
	ASSERT_GE(ring, 0);
	for (unsigned int k = 0; k < N_OURS; k++)
		EXPECT_EQ(call(ring, ours[k], NULL), -EBADF);
	close(ring);
}

TEST_F(ring, other_calls_on_our_files)
{
	static const struct {
		const char *name;
		unsigned long cmd;
	} calls[] = {
		{"TCGETS", TCGETS},
		{"TIOCGWINSZ", TIOCGWINSZ},
		{"FIONREAD", FIONREAD},
		{"BLKGETSIZE", BLKGETSIZE},
		{"BLKGETSIZE64", BLKGETSIZE64},
		{"SIOCGSTAMP", 0x8906},
		{"FS_IOC_GETFLAGS", FS_IOC_GETFLAGS},
		{"DMA_BUF_IOCTL_SYNC", _IOW('b', 0, uint64_t)},
		{"a call of the tests' driver", _IO('~', 4)},
	};
	const int fds[] = {self->consumer, self->producer};

	for (unsigned int i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		for (int k = 0; k < 2; k++) {
			char arg[256] = {0};
			int rc = call(fds[k], calls[i].cmd, arg);

			EXPECT_TRUE(rc == -ENOTTY || rc == -EINVAL || rc == -EOPNOTSUPP)
			TH_LOG("%s: %d", calls[i].name, rc);
		}
	}
	/* what the VFS does for every file must do no harm */
	for (int k = 0; k < 2; k++) {
		int on = 1, size;

		EXPECT_EQ(call(fds[k], FIONBIO, &on), 0);
		EXPECT_EQ(call(fds[k], FIOCLEX, NULL), 0);
		call(fds[k], FIGETBSZ, &size); /* a bare 2: not a call of ours */
		EXPECT_EQ(flock(fds[k], LOCK_EX | LOCK_NB), 0);
		EXPECT_EQ(flock(fds[k], LOCK_UN), 0);
		EXPECT_EQ(ftruncate(fds[k], 0), -1);
		EXPECT_EQ(fallocate(fds[k], 0, 0, PAGE), -1);
		EXPECT_EQ(lseek(fds[k], 5, SEEK_SET) > 0, 0);
		EXPECT_EQ(sendfile(fds[!k], fds[k], NULL, 16), -1);
		EXPECT_EQ(query(fds[k]).data_bytes, BYTES);
	}
}

/* By /proc a descriptor can be opened anew: that must not be a second way to an end. */
TEST_F(ring, opened_again_by_proc)
{
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", self->producer);
	EXPECT_EQ(open(path, O_RDWR | O_CLOEXEC), -1);
	EXPECT_EQ(errno, ENXIO);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", self->consumer);
	fd = open(path, O_RDWR | O_CLOEXEC);
	ASSERT_GE(fd, 0); /* the device once more: a ring of its own, without memory */
	EXPECT_EQ(wake(fd), -ENXIO);
	EXPECT_EQ(create(fd, 2 * BYTES), 0);
	EXPECT_EQ(query(self->consumer).data_bytes, BYTES);
	EXPECT_NE(query(fd).id, query(self->consumer).id);
	close(fd);
	EXPECT_EQ(query(self->producer).state, CNNRING_STATE_PEER);
}

/* dup, and a descriptor in a second process, are the same end. */
TEST_F(ring, duplicates)
{
	int copy = fcntl(self->producer, F_DUPFD_CLOEXEC, 100);

	ASSERT_GE(copy, 100);
	close(self->producer);
	EXPECT_EQ(events(self->consumer, 20), 0);
	EXPECT_EQ(wake(copy), 0);
	EXPECT_EQ(events(self->consumer, 0), POLLIN);
	self->producer = copy;
}

/* A ring in a socket that is only in itself: the kernel's collector of such sockets frees it. */
TEST_F(ring, sent_in_a_circle)
{
	int pair[2];

	ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
	ASSERT_EQ(send_fd(pair[0], self->producer), 0);
	ASSERT_EQ(send_fd(pair[0], pair[1]), 0);
	close(pair[0]);
	close(pair[1]);
	close(self->producer);
	self->producer = -1;
	/* the collector runs when a socket is closed */
	for (int i = 0; i < 50 && !(events(self->consumer, 20) & POLLHUP); i++)
		close(socket(AF_UNIX, SOCK_DGRAM, 0));
	EXPECT_EQ(events(self->consumer, 0), GONE);
}

#ifdef __x86_64__
/* ioctl as a program of 32 bit makes it: int 0x80 goes the kernel's compatible way. */
static int call32(int fd, unsigned long cmd, void *arg)
{
	long rc;

	__asm__ volatile("int $0x80"
			 : "=a"(rc)
			 : "a"(54l), "b"((long)fd), "c"(cmd), "d"((long)arg)
			 : "memory", "r8", "r9", "r10", "r11");
	return (int)rc;
}

TEST(callers_of_32_bit)
{
	void *low = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	struct cnnring_version *v = low;
	struct cnnring_create *c = low;
	struct cnnring_query *q = low;
	struct cnnring_ack *a = low;
	int fd = device(), peer;

	if (may_lack("compat"))
		SKIP(return, "this kernel takes no calls of 32 bit");
	ASSERT_NE(low, MAP_FAILED);
	*v = (struct cnnring_version){.abi = CNNRING_ABI};
	EXPECT_EQ(call32(fd, CNNRING_IOC_VERSION, v), 0);
	EXPECT_EQ(v->abi, CNNRING_ABI);
	EXPECT_NE(v->features, 0);
	*c = create_arg(BYTES);
	c->pad = 1;
	EXPECT_EQ(call32(fd, CNNRING_IOC_CREATE, c), -EINVAL);
	c->pad = 0;
	EXPECT_EQ(call32(fd, CNNRING_IOC_CREATE, c), 0);
	EXPECT_EQ(c->want_bytes, BYTES + 3 * PAGE);
	memset(low, 0, 8);
	peer = call32(fd, CNNRING_IOC_PEER_FD, low);
	ASSERT_GE(peer, 0);
	EXPECT_EQ(call32(peer, CNNRING_IOC_WAKE, NULL), 0);
	EXPECT_EQ(call32(fd, CNNRING_IOC_ACK, a), 0);
	EXPECT_EQ(a->state, CNNRING_STATE_PENDING | CNNRING_STATE_PEER);
	memset(q, 0, sizeof(*q));
	EXPECT_EQ(call32(peer, CNNRING_IOC_QUERY, q), 0);
	EXPECT_EQ(q->data_bytes, BYTES);
	EXPECT_EQ(q->wakes[CNNRING_PRODUCER], 1);
	EXPECT_EQ(call32(peer, CNNRING_IOC_CREATE, c), -ENOTTY);
	EXPECT_EQ(call32(fd, CNNRING_IOC_QUERY, (void *)8), -EFAULT);
	EXPECT_EQ(call32(peer, CNNRING_IOC_DETACH, NULL), 0);
	EXPECT_EQ(events(fd, 0), GONE);
	close(peer);
	close(fd);
	munmap(low, PAGE);
	EXPECT_TRUE(all_free());
}
#endif

TEST_HARNESS_MAIN
