// SPDX-License-Identifier: MIT
/*
 * memfd.c: a ring in a sealed memfd, woken by two eventfds. The consumer creates all three and
 * passes them on; the producer (a database backend, which a SIGBUS would take down with its whole
 * server) checks kind, seals, size and geometry before it maps anything.
 */
#include "ring_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define FALLOCATE_TRIES 1000 /* a signal makes it start again from nothing */

static uint64_t file_bytes(uint64_t data_bytes)
{
	return RING_PAGES * ring_page_bytes() + data_bytes;
}

/* ---- ops ---- */

static int memfd_export(const struct ring *ring, int fds[RING_FDS])
{
	if (ring->role != RING_CONSUMER)
		return -EINVAL;
	fds[0] = ring->memory;
	fds[1] = ring->wake_self; /* the consumer's own */
	fds[2] = ring->wake_peer;
	return 0;
}

/* A full eventfd is readable, and that is all a kick is for. Polled first, because the peer could
 * have taken O_NONBLOCK off the shared description. */
static void memfd_kick(struct ring *ring)
{
	struct pollfd p = {.fd = ring->wake_peer, .events = POLLOUT};
	const uint64_t one = 1;

	if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT))
		while (write(ring->wake_peer, &one, sizeof(one)) < 0 && errno == EINTR)
			;
}

static void memfd_drain(struct ring *ring)
{
	struct pollfd p = {.fd = ring->wake_self, .events = POLLIN};
	uint64_t count;
	struct iovec v = {&count, sizeof(count)};

	/* RWF_NOWAIT does not depend on the shared O_NONBLOCK; eventfds know it since 5.8. */
	if (preadv2(ring->wake_self, &v, 1, -1, RWF_NOWAIT) >= 0 || errno == EAGAIN)
		return;
	if (poll(&p, 1, 0) == 1 && read(ring->wake_self, &count, sizeof(count)) < 0)
		return; /* EAGAIN, EINTR: a wake-up too many later, no harm */
}

static void memfd_release(struct ring *ring)
{
	ring_unmap(ring);
	ring_close_fd(&ring->memory);
	ring_close_fd(&ring->wake_self);
	ring_close_fd(&ring->wake_peer);
}

const struct ring_ops ring_memfd_ops = {
	.name = "memfd",
	.export = memfd_export,
	.kick = memfd_kick,
	.drain = memfd_drain,
	.release = memfd_release,
};

/* ---- consumer: create ---- */

static int new_memfd(void)
{
	int fd = memfd_create("cnnring", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL) /* before 6.3 */
		fd = memfd_create("cnnring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? -errno : fd;
}

/* Size, pages, geometry, seals; in this order, because SEAL ends it. */
static int fill_memfd(int fd, uint64_t data_bytes)
{
	const struct ring_geometry geometry = {
		.magic = RING_MAGIC,
		.version = RING_VERSION,
		.page_bytes = (uint32_t)ring_page_bytes(),
		.data_bytes = data_bytes,
	};
	const uint64_t bytes = file_bytes(data_bytes);
	ssize_t n;

	if (ftruncate(fd, (off_t)bytes))
		return -errno;
	/* A page that is missing later would be an allocation, and a kill, inside the backend. */
	for (int i = 0; fallocate(fd, 0, 0, (off_t)bytes); i++)
		if (errno != EINTR || i == FALLOCATE_TRIES)
			return -errno;
	n = pwrite(fd, &geometry, sizeof(geometry), 0);
	if (n != (ssize_t)sizeof(geometry))
		return n < 0 ? -errno : -EIO;
	return fcntl(fd, F_ADD_SEALS, SEALS) ? -errno : 0;
}

int ring_memfd_create(size_t bytes, struct ring **out)
{
	struct ring *ring;
	int rc;

	if (!ring_legal_bytes(bytes))
		return -EINVAL;
	ring = ring_new(RING_CONSUMER, &ring_memfd_ops);
	if (!ring)
		return -ENOMEM;
	ring->size = bytes;
	rc = ring->memory = new_memfd();
	if (rc >= 0)
		rc = fill_memfd(ring->memory, bytes);
	if (!rc) {
		ring->wake_self = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		ring->wake_peer = ring->wake_self < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (ring->wake_peer < 0)
			rc = -errno;
	}
	if (!rc)
		rc = ring_map(ring, ring->memory);
	if (rc) {
		ring_close(ring);
		return rc;
	}
	*out = ring;
	return 0;
}

/* ---- producer: attach ---- */

/* Sealed, of a legal size, all pages there, geometry as we would write it. */
static int check_memory(int fd, size_t max_bytes, uint64_t *data_bytes)
{
	struct ring_geometry g, want = {.magic = RING_MAGIC, .version = RING_VERSION};
	struct stat st;
	int seals;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return -EBADF;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return -EBADF; /* a regular file, but no memfd */
	if ((seals & SEALS) != SEALS)
		return -EPERM;
	if (st.st_size < (off_t)file_bytes(RING_MIN_BYTES) ||
	    !ring_legal_bytes((uint64_t)st.st_size - file_bytes(0)))
		return -EPROTO;
	*data_bytes = (uint64_t)st.st_size - file_bytes(0);
	if (*data_bytes > max_bytes)
		return -E2BIG;
	if (st.st_blocks < st.st_size / 512)
		return -EPROTO; /* holes */
	if (pread(fd, &g, sizeof(g), 0) != (ssize_t)sizeof(g))
		return -EPROTO;
	want.page_bytes = (uint32_t)ring_page_bytes();
	want.data_bytes = *data_bytes;
	return memcmp(&g, &want, sizeof(g)) ? -EPROTO : 0;
}

static int check_event(int fd)
{
	int flags;

	if (!ring_fd_is(fd, "anon_inode:[eventfd]"))
		return -EBADF;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return -EBADF;
	return 0;
}

int ring_memfd_attach(const int fds[RING_FDS], size_t max_bytes, struct ring *ring)
{
	int rc = fds[1] == fds[2] ? -EBADF : 0;

	for (int i = 0; i < RING_FDS && !rc; i++)
		if (fds[i] < 0 || fcntl(fds[i], F_SETFD, FD_CLOEXEC))
			rc = -EBADF;
	if (!rc)
		rc = check_memory(fds[0], max_bytes, &ring->size);
	if (!rc)
		rc = check_event(fds[1]);
	if (!rc)
		rc = check_event(fds[2]);
	if (!rc)
		rc = ring_map(ring, fds[0]);
	if (rc)
		return rc;
	close(fds[0]); /* the mapping is enough: one descriptor less in the backend */
	ring->wake_peer = fds[1];
	ring->wake_self = fds[2];
	return 0;
}
