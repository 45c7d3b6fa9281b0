/* SPDX-License-Identifier: MIT */
/*
 * worker.h: a decode worker process and the memory it shares with cnnd. The region of a worker is a
 * memfd of its own: a control page, small slots that hold an image and its pixels, and one large
 * slot. cnnd maps only the control page; it moves images and pixels with pwrite and pread, so that
 * no lack of memory can be a signal. What a worker writes is hostile: copied once, then checked.
 *
 * Queue: the daemon puts slot numbers into queue[submitted % WORKER_QUEUE] and adds one to
 * submitted; the worker takes them in order and adds one to done. A worker without work sleeps on
 * `submitted` with asleep = 1; finished work rings the bell, a page that all workers share.
 */
#ifndef DATA_WORKER_H
#define DATA_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "image.h"

#define WORKER_SMALL 8u
#define WORKER_LARGE WORKER_SMALL /* the number of the large slot */
#define WORKER_SLOTS (WORKER_SMALL + 1)
#define WORKER_QUEUE 16u
#define WORKER_CONTROL 8192u /* bytes of the control page */
#define WORKER_SMALL_IN ((uint64_t)1 << 20)
#define WORKER_SMALL_OUT ((uint64_t)4 << 20)

struct worker_slot {
	uint64_t bytes;
	struct image_request request;
	struct image_result result;
};

struct worker_control {
	_Atomic uint32_t ready; /* the worker is in its sandbox */
	_Atomic uint32_t submitted, done, asleep;
	uint32_t queue[WORKER_QUEUE];
	struct worker_slot slot[WORKER_SLOTS];
};
_Static_assert(sizeof(struct worker_control) <= WORKER_CONTROL, "control page");

struct worker_bell {
	_Atomic uint32_t count, waiters;
};

struct worker_sizes {
	uint64_t large_in, large_out; /* multiples of a page */
};

static inline uint64_t worker_in(const struct worker_sizes *sizes, uint32_t slot)
{
	return WORKER_CONTROL + slot * (WORKER_SMALL_IN + WORKER_SMALL_OUT);
}

static inline uint64_t worker_in_bytes(const struct worker_sizes *sizes, uint32_t slot)
{
	return slot == WORKER_LARGE ? sizes->large_in : WORKER_SMALL_IN;
}

static inline uint64_t worker_out(const struct worker_sizes *sizes, uint32_t slot)
{
	return worker_in(sizes, slot) + worker_in_bytes(sizes, slot);
}

static inline uint64_t worker_out_bytes(const struct worker_sizes *sizes, uint32_t slot)
{
	return slot == WORKER_LARGE ? sizes->large_out : WORKER_SMALL_OUT;
}

static inline uint64_t worker_region(const struct worker_sizes *sizes)
{
	return worker_out(sizes, WORKER_LARGE) + sizes->large_out;
}

struct worker_setup {
	uint8_t *region; /* mapped */
	struct worker_sizes sizes;
	struct worker_bell *bell;
	uint64_t memory; /* bytes that decoding may map */
	bool sandbox;
	bool test_images; /* "CNNTEST:crash", hang, sleep, open, socket, exec, memory do what they
			     say */
};

/* Never returns. Leaves with exit code errno when the sandbox cannot be entered. */
void worker_main(const struct worker_setup *setup) __attribute__((noreturn));

void worker_bell_ring(struct worker_bell *bell);
int futex_wait(_Atomic uint32_t *word, uint32_t value, unsigned int timeout_ms); /* 0: no limit */
int futex_wake(_Atomic uint32_t *word, int count);

#endif
