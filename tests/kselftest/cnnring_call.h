/* SPDX-License-Identifier: MIT */
/*
 * cnnring_call.h: the module's calls, and what its tests look at. They talk to the kernel alone,
 * not through the ring client. Run in a virtual machine of their own (tests/vm/), as root.
 *   CNNRING_WITHOUT=dmabuf,numa  what the kernel of this test bed has not got
 *   CNNRING_SLOWER=n             long loops take an n-th of their turns
 */
#ifndef CNNRING_CALL_H
#define CNNRING_CALL_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../kmod/uapi/linux/cnnring.h"

#define PAGE 4096ul
#define BYTES 65536ul
#define DEVICE "/dev/cnnring"

/* a value >= 0, or -errno */
static inline int call(int fd, unsigned long cmd, void *arg)
{
	int rc = ioctl(fd, cmd, arg);

	return rc < 0 ? -errno : rc;
}

static inline int device(void)
{
	return open(DEVICE, O_RDWR | O_CLOEXEC);
}

static inline struct cnnring_create create_arg(uint64_t bytes)
{
	struct cnnring_create c = {
		.abi = CNNRING_ABI, .data_bytes = bytes, .node = CNNRING_NODE_ANY};

	return c;
}

static inline int create(int fd, uint64_t bytes)
{
	struct cnnring_create c = create_arg(bytes);

	return call(fd, CNNRING_IOC_CREATE, &c);
}

static inline int peer_fd(int fd)
{
	struct cnnring_peer_fd p = {0};

	return call(fd, CNNRING_IOC_PEER_FD, &p);
}

static inline int wake(int fd)
{
	return call(fd, CNNRING_IOC_WAKE, NULL);
}

/* state, or -errno */
static inline int ack(int fd)
{
	struct cnnring_ack a = {0};
	int rc = call(fd, CNNRING_IOC_ACK, &a);

	return rc ? rc : (int)a.state;
}

static inline struct cnnring_query query(int fd)
{
	struct cnnring_query q = {0};

	if (call(fd, CNNRING_IOC_QUERY, &q))
		memset(&q, 0xff, sizeof(q));
	return q;
}

static inline int has_dmabuf(int fd)
{
	struct cnnring_version v = {.abi = CNNRING_ABI};

	return !call(fd, CNNRING_IOC_VERSION, &v) && (v.features & CNNRING_FEATURE_DMABUF);
}

/* Is the kernel of this test bed known to lack it? Debian's have dma-buf since 6.0. */
static inline int may_lack(const char *what)
{
	const char *without = getenv("CNNRING_WITHOUT");
	struct utsname u;

	if (!strcmp(what, "dmabuf") && !uname(&u) && atoi(u.release) < 6)
		return 1;
	return without && strstr(without, what);
}

static inline int turns(int n)
{
	const char *slower = getenv("CNNRING_SLOWER");

	return slower && atoi(slower) > 1 ? n / atoi(slower) : n;
}

/* events, 0 after the time */
static inline int events(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};

	return poll(&p, 1, ms) < 0 ? -errno : p.revents;
}

/* address, or NULL with errno */
static inline void *map(int fd, unsigned long page, unsigned long n, int prot)
{
	void *p = mmap(NULL, n * PAGE, prot, MAP_SHARED, fd, (off_t)(page * PAGE));

	return p == MAP_FAILED ? NULL : p;
}

/* 0 or -errno; nothing stays mapped */
static inline int try_map(int fd, unsigned long page, unsigned long n, int prot, int flags)
{
	void *p = mmap(NULL, n * PAGE, prot, flags, fd, (off_t)(page * PAGE));

	if (p == MAP_FAILED)
		return -errno;
	munmap(p, n * PAGE);
	return 0;
}

static inline int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A line of debugfs, -1: none. */
static inline long long stat_of(const char *name)
{
	FILE *f = fopen("/sys/kernel/debug/cnnring/stats", "re");
	char key[32];
	long long value, found = -1;

	while (f && fscanf(f, "%31s %lld", key, &value) == 2)
		if (!strcmp(key, name))
			found = value;
	if (f)
		fclose(f);
	return found;
}

/* Files are released a little later than close or a death says. */
static inline int all_free(void)
{
	for (int i = 0; i < 200; i++) {
		if (!stat_of("rings") && !stat_of("bytes"))
			return 1;
		usleep(10000);
	}
	return 0;
}

static inline int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = write(fd, text, strlen(text)) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static inline int set_parameter(const char *name, unsigned long long value)
{
	char path[80], text[24];

	snprintf(path, sizeof(path), "/sys/module/cnnring/parameters/%s", name);
	snprintf(text, sizeof(text), "%llu", value);
	return write_text(path, text);
}

/* A signal if the child died of one, else its exit code. */
static inline int ended(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline int send_fd(int via, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = space,
			   .msg_controllen = sizeof(space)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(via, &m, 0) == 1 ? 0 : -errno;
}

static inline int receive_fd(int via)
{
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = space,
			   .msg_controllen = sizeof(space)};
	int fd;

	if (recvmsg(via, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

#define GONE (POLLIN | POLLHUP | POLLRDHUP)

#endif
