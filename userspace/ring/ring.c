// SPDX-License-Identifier: MIT
/*
 * ring.c: the protocol of the ring: positions, records, sleeping and waking. Knows nothing of where
 * the pages come from (memfd.c, device.c), but for the choice between the two. The peer is not
 * trusted: its index is read once and checked, its record headers are copied once and checked, and
 * after a violation the ring stays broken.
 */
#include "ring_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * After a sleep that ended without a wake-up although there is work: how long the wake-up may be
 * under way (the peer is between its store and its system call) before it counts as lost.
 */
#define LATE_KICK_MS 20

struct ring *ring_new(enum ring_role role, const struct ring_ops *ops)
{
	struct ring *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return NULL;
	ring->role = role;
	ring->ops = ops;
	ring->memory = ring->wake_self = ring->wake_peer = -1;
	return ring;
}

bool ring_legal_bytes(uint64_t bytes)
{
	return bytes >= RING_MIN_BYTES && bytes <= RING_MAX_BYTES && !(bytes & (bytes - 1));
}

size_t ring_bytes(const struct ring *ring)
{
	return ring->size;
}

const char *ring_backend_name(const struct ring *ring)
{
	return ring->ops->name;
}

uint32_t ring_max_record(const struct ring *ring)
{
	return (uint32_t)(ring->size / 4) - RING_HEADER;
}

void ring_stats(const struct ring *ring, struct ring_stats *out)
{
	*out = ring->stats;
}

int ring_create_on(enum ring_backend backend, size_t bytes, struct ring **out, char why[RING_WHY])
{
	char reason[RING_WHY] = "";
	int rc = -EINVAL;

	if (!ring_legal_bytes(bytes))
		return -EINVAL;
	if (backend == RING_BACKEND_AUTO || backend == RING_BACKEND_DEVICE)
		rc = ring_device_create(bytes, out, reason);
	if (backend == RING_BACKEND_MEMFD || (rc && backend == RING_BACKEND_AUTO))
		rc = ring_memfd_create(bytes, out);
	if (why)
		memcpy(why, reason, RING_WHY);
	return rc;
}

int ring_create(size_t bytes, struct ring **out)
{
	return ring_create_on(RING_BACKEND_MEMFD, bytes, out, NULL);
}

int ring_attach(const int fds[RING_FDS], size_t max_bytes, struct ring **out)
{
	bool device = ring_device_is(fds[0]);
	struct ring *ring = ring_new(RING_PRODUCER, device ? &ring_device_ops : &ring_memfd_ops);
	int rc = -ENOMEM;

	if (ring)
		rc = device ? ring_device_attach(fds, max_bytes, ring)
			    : ring_memfd_attach(fds, max_bytes, ring);
	if (rc) {
		for (int i = 0; i < RING_FDS; i++)
			if (fds[i] >= 0)
				close(fds[i]);
		ring_close(ring);
		return rc;
	}
	*out = ring;
	return 0;
}

int ring_export(const struct ring *ring, int fds[RING_FDS])
{
	return ring->ops->export ? ring->ops->export(ring, fds) : -EINVAL;
}

void ring_exported(struct ring *ring)
{
	if (ring->ops->exported)
		ring->ops->exported(ring);
}

int ring_wait_fd(const struct ring *ring)
{
	return ring->wake_self;
}

static uint64_t record_bytes(uint32_t length)
{
	return ((uint64_t)RING_HEADER + length + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

static bool peer_closed(const struct ring *ring)
{
	return ring->peer_gone ||
	       atomic_load_explicit(&ring->peer->closed, memory_order_seq_cst) != 0;
}

/* Reads the peer's index once. It may only grow, and must leave between 0 and size bytes in use. */
static int look(struct ring *ring)
{
	uint64_t index = atomic_load_explicit(&ring->peer->index, RING_LOAD);
	uint64_t most = ring->role == RING_PRODUCER ? ring->position : ring->position + ring->size;

	if (ring->broken)
		return ring->broken;
	if (index - ring->seen > most - ring->seen || index % RING_ALIGN) {
		ring->broken = -EPROTO;
		return ring->broken;
	}
	ring->seen = index;
	return 0;
}

/* By what was last seen: may the consumer read, may the producer write `need` bytes? */
static bool ready(const struct ring *ring, uint64_t need)
{
	if (ring->role == RING_CONSUMER)
		return ring->seen != ring->position;
	return ring->size - (ring->position - ring->seen) >= need;
}

static void publish(struct ring *ring)
{
	uint64_t wait;

	ring->published = ring->position;
	atomic_store_explicit(&ring->self->index, ring->position, RING_STORE);
	wait = atomic_load_explicit(&ring->peer->wait, RING_LOAD);
	if ((wait & 1) && wait != ring->kicked) {
		ring->kicked = wait;
		ring->stats.kicks++;
		ring->ops->kick(ring);
	}
}

/* ---- producer ---- */

int ring_reserve(struct ring *ring, uint32_t length, void **place)
{
	uint64_t need = record_bytes(length);
	int rc;

	if (ring->role != RING_PRODUCER)
		return -EINVAL;
	ring->has_reservation = false;
	if (length > ring_max_record(ring))
		return -EMSGSIZE;
	if (peer_closed(ring))
		return -EPIPE;
	if (ring->broken)
		return ring->broken;
	if (!ready(ring, need)) {
		rc = look(ring);
		if (rc)
			return rc;
		if (!ready(ring, need))
			return -EAGAIN;
	}
	ring->reserved = length;
	ring->has_reservation = true;
	*place = ring->data + (ring->position & (ring->size - 1)) + RING_HEADER;
	return 0;
}

void ring_commit_short(struct ring *ring, uint32_t length, uint16_t type, uint16_t flags)
{
	struct ring_header header = {.type = type, .flags = flags & (RING_FIRST | RING_LAST)};

	if (!ring->has_reservation)
		return;
	header.length = length < ring->reserved ? length : ring->reserved;
	header.sequence = ring->sequence++;
	memcpy(ring->data + (ring->position & (ring->size - 1)), &header, sizeof(header));
	ring->has_reservation = false;
	ring->position += record_bytes(header.length);
	ring->stats.bytes += header.length;
	ring->stats.records++;
	publish(ring);
}

void ring_commit(struct ring *ring, uint16_t type, uint16_t flags)
{
	ring_commit_short(ring, ring->reserved, type, flags);
}

/* ---- consumer ---- */

static int check_header(struct ring *ring, const struct ring_header *header)
{
	uint64_t there = ring->seen - ring->position;

	if (header->length > ring_max_record(ring) || record_bytes(header->length) > there ||
	    header->sequence != ring->sequence || (header->flags & ~(RING_FIRST | RING_LAST))) {
		ring->broken = -EPROTO;
		return ring->broken;
	}
	return 0;
}

int ring_next(struct ring *ring, struct ring_record *record)
{
	struct ring_header header;
	bool closed;
	int rc;

	if (ring->role != RING_CONSUMER)
		return -EINVAL;
	if (ring->broken)
		return ring->broken;
	if (ring->has_record) {
		*record = ring->record;
		return 0;
	}
	if (!ready(ring, 0)) {
		closed = peer_closed(ring); /* first: what came before the end is still read */
		rc = look(ring);
		if (rc)
			return rc;
		if (!ready(ring, 0)) {
			if (ring->published != ring->position)
				publish(ring);
			return closed ? -EPIPE : -EAGAIN;
		}
	}
	memcpy(&header, ring->data + (ring->position & (ring->size - 1)), sizeof(header));
	rc = check_header(ring, &header);
	if (rc)
		return rc;
	ring->record.length = header.length;
	ring->record.type = header.type;
	ring->record.flags = header.flags;
	ring->record.sequence = header.sequence;
	ring->has_record = true;
	*record = ring->record;
	return 0;
}

int ring_copy(struct ring *ring, uint32_t offset, void *destination, uint32_t n)
{
	if (!ring->has_record || offset > ring->record.length || n > ring->record.length - offset)
		return -EINVAL;
	if (n)
		memcpy(destination,
		       ring->data + (ring->position & (ring->size - 1)) + RING_HEADER + offset, n);
	return 0;
}

/*
 * The space is told to the producer in steps of an eighth of the ring, so that a producer that
 * sleeps on a full ring is woken for more than one record. What is held back is told when the ring
 * is seen empty (ring_next) and before a sleep; so the producer never waits for it.
 */
void ring_consume(struct ring *ring)
{
	if (!ring->has_record)
		return;
	ring->has_record = false;
	ring->sequence++;
	ring->position += record_bytes(ring->record.length);
	ring->stats.bytes += ring->record.length;
	ring->stats.records++;
	if (ring->position - ring->published >= ring->size / 8)
		publish(ring);
}

/* ---- waiting ---- */

/* A reason not to sleep: work, the end, or a broken peer. */
static bool awake(struct ring *ring)
{
	bool closed = peer_closed(ring); /* first: what came before the end is still seen */

	return look(ring) || closed || ready(ring, ring->need);
}

int ring_wait_prepare(struct ring *ring, uint32_t need)
{
	if (ring->waiting)
		return -EINVAL;
	if (ring->role == RING_PRODUCER && need > ring_max_record(ring))
		return -EMSGSIZE;
	ring->need = record_bytes(need);
	if (ring->role == RING_CONSUMER && ring->published != ring->position)
		publish(ring);
	if (ring->has_record)
		return 1;
	atomic_fetch_add_explicit(&ring->self->wait, 1, RING_ADD);
	if (awake(ring)) {
		atomic_fetch_add_explicit(&ring->self->wait, 1, RING_ADD);
		return 1;
	}
	ring->waiting = true;
	ring->stats.waits++;
	return 0;
}

static bool poll_fd(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) > 0;
}

void ring_wait_finish(struct ring *ring, bool woken)
{
	if (!ring->waiting)
		return;
	if (!woken) {
		ring->stats.timeouts++;
		if (!look(ring) && ready(ring, ring->need) &&
		    !poll_fd(ring->wake_self, LATE_KICK_MS))
			ring->stats.timeouts_with_work++;
	}
	ring->waiting = false;
	atomic_fetch_add_explicit(&ring->self->wait, 1, RING_ADD);
	ring->ops->drain(ring);
	look(ring);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* After prepare said 1: what is it? */
static int verdict(struct ring *ring)
{
	if (ring->broken)
		return ring->broken;
	if (ring->role == RING_PRODUCER && peer_closed(ring))
		return -EPIPE;
	if (ring->has_record || ready(ring, ring->need))
		return 0;
	return -EPIPE;
}

int ring_wait(struct ring *ring, uint32_t need, int timeout_ms)
{
	int64_t end = timeout_ms < 0 ? 0 : now_ms() + timeout_ms;

	for (;;) {
		struct pollfd p = {.fd = ring->wake_self, .events = POLLIN};
		int64_t left = timeout_ms < 0 ? -1 : end - now_ms();
		int rc = ring_wait_prepare(ring, need);

		if (rc)
			return rc < 0 ? rc : verdict(ring);
		if (timeout_ms >= 0 && left < 0)
			left = 0;
		rc = poll(&p, 1, (int)left);
		if (rc < 0) {
			rc = -errno;
			ring->stats.timeouts--; /* not by deadline; finish counts it */
			ring_wait_finish(ring, false);
			return rc;
		}
		ring_wait_finish(ring, rc > 0);
		if (!rc && !awake(ring))
			return -ETIMEDOUT;
	}
}

void ring_close(struct ring *ring)
{
	if (!ring)
		return;
	if (ring->self) {
		atomic_store_explicit(&ring->self->closed, 1, memory_order_seq_cst);
		ring->ops->kick(ring);
	}
	ring->ops->release(ring);
	free(ring);
}
