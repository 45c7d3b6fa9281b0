// SPDX-License-Identifier: MIT
/*
 * device.c: a ring in pages of the module cnnring (kmod/, kmod/uapi/linux/cnnring.h). The consumer
 * opens the device; the producer gets a file of its own, and needs no right on the device. Each
 * file is memory and wake-up in one, and its end is seen by the other one, whatever killed it.
 */
#include "ring_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../kmod/uapi/linux/cnnring.h"

#define DEVICE "/dev/cnnring"
#define PRODUCER_LINK "anon_inode:[cnnring]"
#define HUGE_BYTES (2u << 20)

_Static_assert(sizeof(struct cnnring_geometry) == sizeof(struct ring_geometry) &&
		       CNNRING_MAGIC == RING_MAGIC && CNNRING_LAYOUT == RING_VERSION &&
		       CNNRING_MIN_BYTES == RING_MIN_BYTES && CNNRING_MAX_BYTES == RING_MAX_BYTES,
	       "one layout in both back ends");

/* ---- ops ---- */

/* The same descriptor three times: users of the ring count on RING_FDS of them. */
static int device_export(const struct ring *ring, int fds[RING_FDS])
{
	if (ring->role != RING_CONSUMER)
		return -EINVAL;
	if (ring->memory < 0)
		return -EPIPE; /* given up */
	for (int i = 0; i < RING_FDS; i++)
		fds[i] = ring->memory;
	return 0;
}

static void device_exported(struct ring *ring)
{
	ring_close_fd(&ring->memory);
}

/* The peer may be gone, and then there is nobody to wake. */
static void device_kick(struct ring *ring)
{
	ioctl(ring->wake_self, CNNRING_IOC_WAKE);
}

static void device_drain(struct ring *ring)
{
	struct cnnring_ack ack;

	if (!ioctl(ring->wake_self, CNNRING_IOC_ACK, &ack) && (ack.state & CNNRING_STATE_PEER_GONE))
		ring->peer_gone = true;
}

/* Detached first: a child may have kept the file. */
static void device_release(struct ring *ring)
{
	if (ring->wake_self >= 0)
		ioctl(ring->wake_self, CNNRING_IOC_DETACH);
	ring_unmap(ring);
	ring_close_fd(&ring->memory);
	ring_close_fd(&ring->wake_self);
}

const struct ring_ops ring_device_ops = {
	.name = "device",
	.export = device_export,
	.exported = device_exported,
	.kick = device_kick,
	.drain = device_drain,
	.release = device_release,
};

/* ---- consumer ---- */

static int check_version(int fd, char why[RING_WHY])
{
	struct cnnring_version v = {.abi = CNNRING_ABI};
	int rc = ioctl(fd, CNNRING_IOC_VERSION, &v) ? -errno : 0;

	if (rc == -EPROTO)
		snprintf(why, RING_WHY, "module cnnring has ABI %u, this program knows %u", v.abi,
			 CNNRING_ABI);
	else if (rc)
		snprintf(why, RING_WHY, DEVICE " is not of the module cnnring: %s", strerror(-rc));
	return rc;
}

/* A descriptor, or -errno with the reason. */
static int device_open(char why[RING_WHY])
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), rc = fd < 0 ? -errno : 0;

	if (rc == -ENOENT || rc == -ENXIO || rc == -ENODEV)
		snprintf(why, RING_WHY, "no " DEVICE ": module cnnring is not loaded");
	else if (rc)
		snprintf(why, RING_WHY, "cannot open " DEVICE ": %s", strerror(-rc));
	else
		rc = check_version(fd, why);
	if (rc && fd >= 0)
		close(fd);
	return rc ? rc : fd;
}

int ring_device_check(char why[RING_WHY])
{
	int fd = device_open(why);

	if (fd < 0)
		return fd;
	close(fd);
	why[0] = '\0';
	return 0;
}

static void explain_limit(const struct cnnring_create *c, int rc, char why[RING_WHY])
{
	static const char *const names[] = {
		[CNNRING_LIMIT_MEMORY] = "memory",
		[CNNRING_LIMIT_MEMLOCK] = "RLIMIT_MEMLOCK",
		[CNNRING_LIMIT_TOTAL] = "module parameter total_bytes",
		[CNNRING_LIMIT_RING] = "module parameter ring_bytes_max",
	};
	const char *name = c->limit < sizeof(names) / sizeof(*names) ? names[c->limit] : NULL;

	if (name && c->limit_bytes)
		snprintf(why, RING_WHY,
			 "module cnnring refuses %llu bytes: %s is %llu, %llu in use",
			 (unsigned long long)c->want_bytes, name,
			 (unsigned long long)c->limit_bytes, (unsigned long long)c->used_bytes);
	else
		snprintf(why, RING_WHY, "module cnnring refuses %llu bytes: %s",
			 (unsigned long long)c->data_bytes, strerror(-rc));
}

static int device_fill(int fd, uint64_t bytes, char why[RING_WHY])
{
	struct cnnring_create c = {
		.abi = CNNRING_ABI,
		.flags = bytes >= HUGE_BYTES ? CNNRING_CREATE_HUGE : 0,
		.data_bytes = bytes,
		.node = CNNRING_NODE_ANY,
	};
	int rc;

	if (!ioctl(fd, CNNRING_IOC_CREATE, &c))
		return 0;
	rc = -errno;
	explain_limit(&c, rc, why);
	return rc;
}

static int device_peer(int fd, char why[RING_WHY])
{
	struct cnnring_peer_fd p = {0};
	int peer = ioctl(fd, CNNRING_IOC_PEER_FD, &p), rc = peer < 0 ? -errno : peer;

	if (rc < 0)
		snprintf(why, RING_WHY, "module cnnring gives no producer's end: %s",
			 strerror(-rc));
	return rc;
}

int ring_device_create(size_t bytes, struct ring **out, char why[RING_WHY])
{
	struct ring *ring = ring_new(RING_CONSUMER, &ring_device_ops);
	int rc;

	if (!ring)
		return -ENOMEM;
	ring->size = bytes;
	rc = ring->wake_self = device_open(why);
	if (rc >= 0)
		rc = device_fill(ring->wake_self, bytes, why);
	if (!rc) {
		ring->memory = device_peer(ring->wake_self, why);
		rc = ring->memory < 0 ? ring->memory : 0;
	}
	if (!rc) {
		rc = ring_map(ring, ring->wake_self);
		if (rc)
			snprintf(why, RING_WHY, "cannot map " DEVICE ": %s", strerror(-rc));
	}
	if (rc) {
		ring_close(ring);
		return rc;
	}
	*out = ring;
	return 0;
}

/* ---- producer ---- */

/* The name is the kernel's: nobody else's file has it. */
bool ring_device_is(int fd)
{
	return fd >= 0 && ring_fd_is(fd, PRODUCER_LINK);
}

int ring_device_attach(const int fds[RING_FDS], size_t max_bytes, struct ring *ring)
{
	struct cnnring_query q = {0};
	char why[RING_WHY];
	int rc = check_version(fds[0], why);

	if (rc)
		return -EPROTO;
	if (fcntl(fds[0], F_SETFD, FD_CLOEXEC))
		return -EBADF;
	if (ioctl(fds[0], CNNRING_IOC_QUERY, &q))
		return -errno;
	if (q.role != CNNRING_PRODUCER || q.page_bytes != ring_page_bytes() ||
	    !ring_legal_bytes(q.data_bytes))
		return -EPROTO;
	if (q.state & CNNRING_STATE_DETACHED)
		return -EPIPE;
	if (q.data_bytes > max_bytes)
		return -E2BIG;
	ring->size = q.data_bytes;
	rc = ring_map(ring, fds[0]);
	if (rc)
		return rc;
	ring->wake_self = fds[0];
	for (int i = 1; i < RING_FDS; i++)
		if (fds[i] >= 0 && fds[i] != fds[0])
			close(fds[i]);
	return 0;
}
