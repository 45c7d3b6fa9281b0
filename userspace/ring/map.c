// SPDX-License-Identifier: MIT
/*
 * map.c: what both back ends have in common: the windows of a ring's file in this process, and
 * small things about descriptors.
 */
#include "ring_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POPULATE_MAX (64u << 20) /* larger rings are mapped page by page as they are used */

uint64_t ring_page_bytes(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* One window of the file over what ring->region reserves. */
static int map_at(struct ring *ring, int fd, size_t at, uint64_t offset, size_t n, bool writable)
{
	int prot = PROT_READ | (writable ? PROT_WRITE : 0);
	int flags = MAP_SHARED | MAP_FIXED | (n <= POPULATE_MAX ? MAP_POPULATE : 0);
	void *p = mmap((uint8_t *)ring->region + at, n, prot, flags, fd, (off_t)offset);

	return p == MAP_FAILED ? -errno : 0;
}

/*
 * Region: producer's page, consumer's page, a hole, data, data, a hole; the holes stay without
 * access, so that an overrun on either side faults. Each end may write its own page, the producer
 * also the data. The geometry page needs no mapping: it is read once.
 */
int ring_map(struct ring *ring, int fd)
{
	const size_t page = ring_page_bytes(), size = ring->size;
	const bool producer = ring->role == RING_PRODUCER;
	const size_t data = 3 * page;
	uint8_t *base;
	int rc;

	ring->region_bytes = data + 2 * size + page;
	base = mmap(NULL, ring->region_bytes, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	ring->region = base;
	rc = map_at(ring, fd, 0, page, page, producer);
	if (!rc)
		rc = map_at(ring, fd, page, 2 * page, page, !producer);
	if (!rc)
		rc = map_at(ring, fd, data, RING_PAGES * page, size, producer);
	if (!rc)
		rc = map_at(ring, fd, data + size, RING_PAGES * page, size, producer);
	if (!rc && (madvise(base, ring->region_bytes, MADV_DONTDUMP) ||
		    madvise(base, ring->region_bytes, MADV_DONTFORK)))
		rc = -errno;
	if (rc)
		return rc;
	ring->self = (struct ring_side *)(producer ? base : base + page);
	ring->peer = (struct ring_side *)(producer ? base + page : base);
	ring->data = base + data;
	return 0;
}

void ring_unmap(struct ring *ring)
{
	if (ring->region)
		munmap(ring->region, ring->region_bytes);
	ring->region = NULL;
}

void ring_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

bool ring_fd_is(int fd, const char *link)
{
	char path[40], target[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target));
	return n == (ssize_t)strlen(link) && !memcmp(target, link, (size_t)n);
}
