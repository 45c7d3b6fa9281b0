/* SPDX-License-Identifier: MIT */
/*
 * ring.h: the shared-memory ring between one producer (a database backend) and one consumer
 * (cnnd). One opaque API with two back ends: memfd, and the device /dev/cnnring (kmod/). Layout and
 * wake-up protocol: docs/architecture.md, "Ring".
 *
 * Every call returns 0 or -errno: -EAGAIN full or empty (wait, then try again), -EPIPE the peer
 * has closed its side, -EPROTO the peer published an index or a record that cannot be, -EMSGSIZE
 * a record larger than the ring takes in one piece, -EINVAL a wrong argument. No call prints,
 * exits, allocates after create/attach, or takes a lock. One thread per end.
 */
#ifndef RING_H
#define RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RING_VERSION 1
#define RING_MIN_BYTES (64u << 10)
#define RING_MAX_BYTES (1u << 30)
#define RING_DEFAULT_BYTES (8u << 20)
#define RING_FDS 3 /* memory, event that wakes the consumer, event that wakes the producer */

#define RING_FIRST 0x1u /* first piece of a value */
#define RING_LAST 0x2u	/* last piece of a value */

struct ring;

struct ring_record {
	uint32_t length; /* payload bytes of this piece */
	uint16_t type;
	uint16_t flags;	   /* RING_FIRST | RING_LAST */
	uint64_t sequence; /* 0, 1, 2 ... per ring */
};

struct ring_stats {
	uint64_t bytes; /* payload bytes written or read by this end */
	uint64_t records;
	uint64_t waits;		     /* times this end went to sleep */
	uint64_t kicks;		     /* times this end woke the peer */
	uint64_t timeouts;	     /* sleeps that ended by deadline, or for another reason */
	uint64_t timeouts_with_work; /* of those, with work there: a lost wake-up; stays 0 */
};

enum ring_backend { RING_BACKEND_AUTO, RING_BACKEND_MEMFD, RING_BACKEND_DEVICE };
#define RING_WHY 200

/*
 * Consumer's side. bytes: data area, a power of two within RING_MIN_BYTES..RING_MAX_BYTES. All
 * memory is allocated here (-ENOMEM, -ENOSPC, -EDQUOT otherwise). AUTO takes the device if it is
 * there and gives the memory, else memfd. why (may be NULL): one line, the reason why the device
 * did not serve (AUTO, DEVICE); empty if it did or was not asked.
 */
int ring_create_on(enum ring_backend backend, size_t bytes, struct ring **out, char why[RING_WHY]);
int ring_create(size_t bytes, struct ring **out); /* memfd */
/* 0: there is a device that fits and may be opened; else -errno and the reason. */
int ring_device_check(char why[RING_WHY]);

/*
 * The RING_FDS descriptors to pass by SCM_RIGHTS; they stay owned by the ring. (The device needs
 * one; it comes three times.) exported: they have been sent, the ring gives up what only the
 * producer needs. Before that the device does not notice the death of the producer.
 */
int ring_export(const struct ring *ring, int fds[RING_FDS]);
void ring_exported(struct ring *ring);

/*
 * Producer's side, for both back ends. Takes ownership of fds (closed on failure too). Checks type,
 * seals, size and geometry before anything is mapped for use; -EPERM names missing seals, -EBADF a
 * wrong kind of descriptor, -EPROTO a geometry or a module that does not fit, -E2BIG more than
 * max_bytes.
 */
int ring_attach(const int fds[RING_FDS], size_t max_bytes, struct ring **out);

/* Either side. Marks the side closed, wakes the peer, unmaps, closes. NULL is legal. */
void ring_close(struct ring *ring);

size_t ring_bytes(const struct ring *ring);
const char *ring_backend_name(const struct ring *ring); /* "memfd" | "device" */
/* Largest payload of one record: a quarter of the data area, less the header. */
uint32_t ring_max_record(const struct ring *ring);
void ring_stats(const struct ring *ring, struct ring_stats *out);

/*
 * Producer. reserve gives a contiguous place for length bytes (valid until commit); commit
 * publishes it and wakes a sleeping consumer. One reservation at a time; reserve again without
 * commit replaces it. commit_short publishes fewer bytes than were reserved.
 */
int ring_reserve(struct ring *ring, uint32_t length, void **place);
void ring_commit(struct ring *ring, uint16_t type, uint16_t flags);
void ring_commit_short(struct ring *ring, uint32_t length, uint16_t type, uint16_t flags);

/*
 * Consumer. next copies and checks the header of the oldest record; copy takes bytes
 * [offset, offset + n) of its payload (range-checked) out of shared memory; consume frees it. The
 * producer learns of free space in steps of an eighth of the ring, and of all of it when next says
 * -EAGAIN or the consumer prepares to wait.
 */
int ring_next(struct ring *ring, struct ring_record *record);
int ring_copy(struct ring *ring, uint32_t offset, void *destination, uint32_t n);
void ring_consume(struct ring *ring);

/*
 * Waiting, for either side: prepare announces the sleep and looks once more; 0: wait for
 * ring_wait_fd to be readable, then call finish; 1: there is work (or the peer closed), do not
 * wait (finish is already done). finish must follow every prepare that gave 0, also after a
 * timeout: woken says whether the descriptor was readable.
 * The producer waits for space of at least `need` payload bytes; the consumer passes 0.
 */
int ring_wait_prepare(struct ring *ring, uint32_t need);
int ring_wait_fd(const struct ring *ring);
void ring_wait_finish(struct ring *ring, bool woken);
/* prepare + poll + finish. 0 work is there, -ETIMEDOUT, -EINTR, -EPIPE. timeout_ms < 0: forever. */
int ring_wait(struct ring *ring, uint32_t need, int timeout_ms);

#endif
