/* SPDX-License-Identifier: MIT */
/* ends.h: both ends of a ring in one process, as most tests want them. */
#ifndef ENDS_H
#define ENDS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <unistd.h>

#include "../../../userspace/ring/ring.h"
#include "../../ring/backend.h"
#include "../../tap.h"

struct ends {
	struct ring *consumer, *producer;
};

static inline void copy_fds(const struct ring *consumer, int copy[RING_FDS])
{
	int fds[RING_FDS];

	if (ring_export(consumer, fds))
		BAIL("ring_export");
	for (int i = 0; i < RING_FDS; i++)
		copy[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
}

static inline struct ends open_ends(size_t bytes)
{
	struct ends e;
	int fds[RING_FDS], rc;

	rc = make_ring(bytes, &e.consumer);
	if (rc)
		BAIL("ring_create: %s", strerror(-rc));
	copy_fds(e.consumer, fds);
	rc = ring_attach(fds, RING_MAX_BYTES, &e.producer);
	if (rc)
		BAIL("ring_attach: %s", strerror(-rc));
	return e;
}

static inline void close_ends(struct ends *e)
{
	ring_close(e->producer);
	ring_close(e->consumer);
}

/* n bytes of the value `fill`; what ring_reserve says. */
static inline int send(struct ring *producer, uint32_t n, int fill, uint16_t type, uint16_t flags)
{
	void *place;
	int rc = ring_reserve(producer, n, &place);

	if (rc)
		return rc;
	memset(place, fill, n);
	ring_commit(producer, type, flags);
	return 0;
}

static inline int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif
