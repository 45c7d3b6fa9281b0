/* SPDX-License-Identifier: MIT */
/*
 * transitions.h: the two ends of a test that drives a ring from empty to non-empty, or from full to
 * non-full, as often as possible at the very moment when the other end goes to sleep. `sleeper` is
 * the end that finds nothing to do (the consumer of an empty ring, the producer of a full one); it
 * says so, dawdles and announces its sleep. `waker` has its record ready, waits for the word, and
 * moves exactly one record, so that a lost wake-up is not made good by the next one. The sleeper
 * aims: it dawdles a little less each time, a good deal longer after it had to sleep; so its
 * announcements fall close to the publications, and few transitions cost a real sleep.
 */
#ifndef TRANSITIONS_H
#define TRANSITIONS_H

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../../userspace/ring/ring.h"

#define LONGER 200 /* about nanoseconds */
#define LONGEST 5000

/* Memory that both ends share beside the ring. */
struct pace {
	_Alignas(128) _Atomic uint64_t turn; /* times that the sleeper found nothing to do */
	_Alignas(128) _Atomic uint32_t stop;
	/* results, each written by its end before it returns */
	_Alignas(128) uint64_t transitions; /* seen by the sleeper, with an announcement each */
	uint64_t sleeper_wrong;		    /* unexpected results or values */
	struct ring_stats sleeper;
	_Alignas(128) uint64_t waker_wrong;
	struct ring_stats waker;
};

static inline int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Each end on a processor of its own, if there are two: that is where stores are late. */
static inline void pin(const cpu_set_t *allowed, int n)
{
	cpu_set_t one;
	int found = 0;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, allowed) || found++ != n)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

/* About a nanosecond a turn. */
static inline void spin(uint32_t turns)
{
	for (volatile uint32_t i = 0; i < turns; i++)
		;
}

/* One record in or out, in two halves: all but the publication, and that. Payload: its number. */
static inline int step_prepare(struct ring *ring, bool producer, uint32_t bytes, uint64_t *number)
{
	struct ring_record record;
	uint64_t value;
	void *place;
	int rc;

	if (producer) {
		rc = ring_reserve(ring, bytes, &place);
		if (!rc)
			*(uint64_t *)place = (*number)++;
		return rc;
	}
	rc = ring_next(ring, &record);
	if (rc)
		return rc;
	if (record.length != bytes || ring_copy(ring, 0, &value, sizeof(value)) ||
	    value != (*number)++)
		return -EBADMSG;
	return 0;
}

static inline void step_publish(struct ring *ring, bool producer)
{
	if (producer)
		ring_commit(ring, 1, RING_FIRST | RING_LAST);
	else
		ring_consume(ring);
}

/* Runs until `wanted` transitions, until a wake-up was lost (if asked), or until the deadline. */
static inline void sleeper(struct ring *ring, struct pace *pace, bool producer, uint32_t bytes,
			   uint64_t wanted, int sleep_ms, bool until_loss, int64_t deadline)
{
	uint64_t number = 0, turn = 0;
	uint32_t dawdle = 0;
	bool waited = false;

	while (pace->transitions < wanted) {
		struct pollfd p = {.fd = ring_wait_fd(ring), .events = POLLIN};
		int rc = step_prepare(ring, producer, bytes, &number);

		if (!rc) {
			step_publish(ring, producer);
			pace->transitions += waited;
			waited = false;
			continue;
		}
		if (rc == -EAGAIN) {
			if (!waited)
				atomic_store_explicit(&pace->turn, ++turn, memory_order_release);
			waited = true;
			spin(dawdle);
			rc = ring_wait_prepare(ring, bytes);
		}
		if (rc < 0) {
			pace->sleeper_wrong++;
			break;
		}
		if (rc) {
			dawdle -= dawdle > 0;
			continue;
		}
		ring_wait_finish(ring, poll(&p, 1, sleep_ms) > 0);
		dawdle = dawdle < LONGEST ? dawdle + LONGER : LONGEST;
		ring_stats(ring, &pace->sleeper);
		if ((until_loss && pace->sleeper.timeouts_with_work) || clock_ms() > deadline)
			break;
	}
	ring_stats(ring, &pace->sleeper);
	atomic_store(&pace->stop, 1);
}

/* Until the sleeper found nothing to do once more; false: it is done. */
static inline bool await_turn(struct pace *pace, uint64_t *turn)
{
	uint32_t spins = 0;

	while (atomic_load_explicit(&pace->turn, memory_order_acquire) == *turn) {
		if (atomic_load_explicit(&pace->stop, memory_order_relaxed))
			return false;
		if (++spins % 65536 == 0)
			sched_yield();
	}
	(*turn)++;
	return true;
}

static inline void waker(struct ring *ring, struct pace *pace, bool producer, uint32_t bytes)
{
	uint64_t number = 0, turn = 0;

	while (!atomic_load_explicit(&pace->stop, memory_order_relaxed)) {
		int rc = step_prepare(ring, producer, bytes, &number);

		if (rc == -EAGAIN) { /* the first record of a full ring is still to come */
			sched_yield();
			continue;
		}
		if (rc) {
			pace->waker_wrong++;
			break;
		}
		if (!await_turn(pace, &turn))
			break;
		step_publish(ring, producer);
	}
	ring_stats(ring, &pace->waker);
}

#endif
