// SPDX-License-Identifier: MIT
/*
 * threads.c: both ends of a ring as threads, for the thread sanitizer. The two ends of a real ring
 * see the shared pages at different addresses, where a sanitizer notices no race; so here the
 * producer is also built by hand on the consumer's own mapping.
 *   RING_TRANSITIONS=n  another count
 */
#include "../../userspace/ring/ring_impl.h"
#include "../tap.h"
#include "backend.h"
#include "transitions.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define VALUES 2000u
#define LIMIT_MS 120000

struct side {
	struct ring *ring;
	struct pace *pace;
	bool producer, sleeps;
	uint32_t bytes;
	uint64_t wanted;
	const cpu_set_t *allowed;
	uint64_t failures;
};

/* ---- a producer on the consumer's mapping ---- */

static void twin_kick(struct ring *ring)
{
	const uint64_t one = 1;

	if (write(ring->wake_peer, &one, sizeof(one)) < 0)
		return;
}

static void twin_drain(struct ring *ring)
{
	uint64_t count;

	if (read(ring->wake_self, &count, sizeof(count)) < 0)
		return;
}

static void twin_release(struct ring *ring)
{
	close(ring->wake_self);
	close(ring->wake_peer);
}

static const struct ring_ops twin_ops = {
	.name = "twin",
	.kick = twin_kick,
	.drain = twin_drain,
	.release = twin_release,
};

static struct ring *twin(struct ring *consumer)
{
	struct ring *producer = ring_new(RING_PRODUCER, &twin_ops);
	long page = sysconf(_SC_PAGESIZE);

	if (!producer || mprotect(consumer->peer, (size_t)page, PROT_READ | PROT_WRITE) ||
	    mprotect(consumer->data, 2 * consumer->size, PROT_READ | PROT_WRITE))
		BAIL("twin: %m");
	producer->self = consumer->peer;
	producer->peer = consumer->self;
	producer->data = consumer->data;
	producer->size = consumer->size;
	producer->wake_self = fcntl(consumer->wake_peer, F_DUPFD_CLOEXEC, 0);
	producer->wake_peer = fcntl(consumer->wake_self, F_DUPFD_CLOEXEC, 0);
	return producer;
}

static struct ring *attached(struct ring *consumer)
{
	int fds[RING_FDS], copy[RING_FDS];
	struct ring *producer;

	ring_export(consumer, fds);
	for (int i = 0; i < RING_FDS; i++)
		copy[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	if (ring_attach(copy, RING_MAX_BYTES, &producer))
		BAIL("ring_attach");
	return producer;
}

/* ---- transitions ---- */

static void *transitions_side(void *p)
{
	struct side *s = p;

	pin(s->allowed, s->producer);
	if (s->sleeps)
		sleeper(s->ring, s->pace, s->producer, s->bytes, s->wanted, 1000, false,
			clock_ms() + LIMIT_MS);
	else
		waker(s->ring, s->pace, s->producer, s->bytes);
	return NULL;
}

static void transitions(bool by_twin, bool full, uint64_t wanted, const cpu_set_t *allowed)
{
	struct pace *pace = aligned_alloc(128, sizeof(*pace));
	struct side side[2] = {0};
	struct ring *consumer;
	pthread_t thread;

	memset(pace, 0, sizeof(*pace));
	if (make_ring(RING_MIN_BYTES, &consumer))
		BAIL("ring_create");
	side[0] = (struct side){consumer, pace, false, !full, 48, wanted, allowed, 0};
	side[1] = (struct side){by_twin ? twin(consumer) : attached(consumer),
				pace,
				true,
				full,
				48,
				wanted,
				allowed,
				0};
	if (full)
		side[0].bytes = side[1].bytes = ring_max_record(consumer);
	pthread_create(&thread, NULL, transitions_side, &side[1]);
	transitions_side(&side[0]);
	pthread_join(thread, NULL);
	ok(pace->transitions >= wanted && !pace->sleeper_wrong && !pace->waker_wrong &&
		   !pace->sleeper.timeouts_with_work,
	   "%s, %s: %llu transitions, %llu sleeps, no loss",
	   by_twin ? "one mapping" : "two mappings",
	   full ? "full to non-full" : "empty to non-empty", (unsigned long long)pace->transitions,
	   (unsigned long long)pace->sleeper.waits);
	ring_close(side[1].ring);
	ring_close(consumer);
	free(pace);
}

/* ---- records of any size, ring_wait on both sides, an end in the middle ---- */

static uint32_t size_of(uint32_t i, uint32_t most)
{
	return (uint32_t)((i * 2654435761u) % (most + 1));
}

static void *write_values(void *p)
{
	struct side *s = p;
	uint32_t most = ring_max_record(s->ring);

	for (uint32_t i = 0; i < VALUES; i++) {
		uint32_t n = size_of(i, most);
		void *place;
		int rc;

		while ((rc = ring_reserve(s->ring, n, &place)) == -EAGAIN)
			if (ring_wait(s->ring, n, 10000))
				s->failures++;
		if (rc) {
			s->failures++;
			break;
		}
		memset(place, (int)(i & 0xff), n);
		ring_commit(s->ring, (uint16_t)i, RING_FIRST | RING_LAST);
	}
	ring_stats(s->ring, &s->pace->waker);
	ring_close(s->ring); /* while the consumer still reads */
	return NULL;
}

static void read_values(struct side *s)
{
	uint32_t most = ring_max_record(s->ring);
	uint8_t *copy = malloc(most), *want = malloc(most);
	struct ring_record record;
	uint32_t i = 0;
	int rc;

	for (;;) {
		while ((rc = ring_next(s->ring, &record)) == -EAGAIN) {
			rc = ring_wait(s->ring, 0, 10000);
			if (rc && rc != -EPIPE)
				s->failures++;
		}
		if (rc)
			break;
		memset(want, (int)(i & 0xff), most);
		s->failures += record.length != size_of(i, most) || record.type != (uint16_t)i ||
			       record.sequence != i || ring_copy(s->ring, 0, copy, record.length) ||
			       memcmp(copy, want, record.length);
		ring_consume(s->ring);
		i++;
	}
	ok(rc == -EPIPE && i == VALUES, "all records, then the end");
	free(copy);
	free(want);
}

static void values(bool by_twin)
{
	struct pace *pace = aligned_alloc(128, sizeof(*pace));
	struct side side[2] = {0};
	struct ring *consumer;
	struct ring_stats stats;
	pthread_t thread;

	memset(pace, 0, sizeof(*pace));
	if (make_ring(RING_MIN_BYTES, &consumer))
		BAIL("ring_create");
	side[0] = (struct side){.ring = consumer, .pace = pace};
	side[1] =
		(struct side){.ring = by_twin ? twin(consumer) : attached(consumer), .pace = pace};
	pthread_create(&thread, NULL, write_values, &side[1]);
	read_values(&side[0]);
	pthread_join(thread, NULL);
	ring_stats(consumer, &stats);
	is(side[0].failures + side[1].failures, 0, "values: as written");
	ok(stats.bytes == pace->waker.bytes && stats.records == VALUES, "both ends count alike");
	is(stats.timeouts_with_work + pace->waker.timeouts_with_work, 0, "no loss");
	ring_close(consumer);
	free(pace);
}

int main(void)
{
	const char *given = getenv("RING_TRANSITIONS");
	const uint64_t wanted = given ? strtoull(given, NULL, 10) : 20000;
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		BAIL("sched_getaffinity: %m");
	/* the device gives nobody the right to write on both sides */
	for (int by_twin = !on_device(); by_twin >= 0; by_twin--) {
		transitions(by_twin, false, wanted, &allowed);
		transitions(by_twin, true, wanted, &allowed);
		values(by_twin);
	}
	return done();
}
