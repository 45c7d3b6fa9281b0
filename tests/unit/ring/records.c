// SPDX-License-Identifier: MIT
/* records.c: what goes in comes out: sizes, order, the turn of the ring, full, empty, the end. */
#include "ends.h"
#include "../../../kmod/uapi/linux/cnnring.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#define HEADER 16u

static void test_sizes(void)
{
	static const size_t bad[] = {0,
				     1,
				     RING_MIN_BYTES - 1,
				     RING_MIN_BYTES / 2,
				     RING_MIN_BYTES + 1,
				     3 * RING_MIN_BYTES,
				     (size_t)RING_MAX_BYTES * 2};
	struct ring *ring = NULL;
	struct ends e = open_ends(RING_MIN_BYTES);

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		ok(make_ring(bad[i], &ring) == -EINVAL && !ring, "%zu bytes are refused", bad[i]);
	is(ring_bytes(e.consumer), RING_MIN_BYTES, "size, consumer");
	is(ring_bytes(e.producer), RING_MIN_BYTES, "size, producer");
	is(ring_max_record(e.producer), RING_MIN_BYTES / 4 - HEADER, "largest record");
	is_str(ring_backend_name(e.producer), on_device() ? "device" : "memfd", "back end");
	is_str(ring_backend_name(e.consumer), ring_backend_name(e.producer), "... of both");
	close_ends(&e);
}

static void test_one(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	struct ring_record record;
	uint8_t copy[6] = "xxxxx";
	void *place;

	is(ring_next(e.consumer, &record), -EAGAIN, "an empty ring");
	is(ring_reserve(e.producer, 5, &place), 0, "reserve");
	is(ring_next(e.consumer, &record), -EAGAIN, "not there before commit");
	memcpy(place, "hello", 5);
	ring_commit(e.producer, 0xabcd, RING_FIRST);
	is(ring_next(e.consumer, &record), 0, "there after commit");
	is(record.length, 5, "length");
	is(record.type, 0xabcd, "type");
	is(record.flags, RING_FIRST, "flags");
	is(record.sequence, 0, "sequence");
	is(ring_copy(e.consumer, 0, copy, 5), 0, "copy");
	ok(!memcmp(copy, "hello", 5), "payload");
	is(ring_copy(e.consumer, 3, copy, 2), 0, "copy of a part");
	ok(!memcmp(copy, "lo", 2), "the part");
	is(ring_copy(e.consumer, 5, copy, 0), 0, "nothing at the end");
	is(ring_copy(e.consumer, 4, copy, 2), -EINVAL, "past the end");
	is(ring_copy(e.consumer, 6, copy, 0), -EINVAL, "beyond the end");
	is(ring_copy(e.consumer, 2, copy, UINT32_MAX), -EINVAL, "a sum that overflows");
	is(ring_next(e.consumer, &record), 0, "the same until consumed");
	is(record.sequence, 0, "... the same");
	ring_consume(e.consumer);
	is(ring_copy(e.consumer, 0, copy, 1), -EINVAL, "nothing to copy any more");
	is(ring_next(e.consumer, &record), -EAGAIN, "empty again");
	ring_consume(e.consumer);
	ring_commit(e.producer, 1, 0);
	is(ring_next(e.consumer, &record), -EAGAIN, "commit without reserve does nothing");

	is(ring_reserve(e.producer, 100, &place), 0, "reserve much");
	is(ring_reserve(e.producer, 10, &place), 0, "reserve again replaces");
	memcpy(place, "abcdefghij", 10);
	ring_commit_short(e.producer, 3, 2, 0xffff);
	is(ring_next(e.consumer, &record), 0, "a short commit");
	ok(record.length == 3 && record.sequence == 1, "three bytes, second record");
	is(record.flags, RING_FIRST | RING_LAST, "unknown flags are not sent");
	ring_consume(e.consumer);
	ring_reserve(e.producer, 4, &place);
	ring_commit_short(e.producer, 5, 2, 0);
	is(ring_next(e.consumer, &record), 0, "more than reserved");
	is(record.length, 4, "... is what was reserved");
	ring_consume(e.consumer);
	is(send(e.producer, 0, 0, 9, 0), 0, "an empty record");
	ok(!ring_next(e.consumer, &record) && !record.length && record.type == 9, "... arrives");

	is(ring_reserve(e.consumer, 1, &place), -EINVAL, "the consumer cannot reserve");
	is(ring_next(e.producer, &record), -EINVAL, "the producer cannot read");
	is(ring_export(e.producer, (int[RING_FDS]){0}), -EINVAL, "the producer cannot export");
	close_ends(&e);
}

static void test_full(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	uint32_t most = ring_max_record(e.producer);
	struct ring_record record;
	void *place;

	is(ring_reserve(e.producer, most + 1, &place), -EMSGSIZE, "a record too large");
	is(ring_reserve(e.producer, UINT32_MAX, &place), -EMSGSIZE, "4 GiB");
	for (int i = 0; i < 4; i++)
		is(send(e.producer, most, i, 1, 0), 0, "a quarter of the ring");
	is(ring_reserve(e.producer, 0, &place), -EAGAIN, "full to the last byte");
	is(ring_wait(e.producer, 0, 0), -ETIMEDOUT, "... and waiting says so");
	ring_next(e.consumer, &record);
	ring_consume(e.consumer);
	is(send(e.producer, most, 4, 1, 0), 0, "one went, one fits");
	is(ring_reserve(e.producer, 0, &place), -EAGAIN, "full again");
	for (int i = 1; i < 5; i++) {
		uint8_t *copy = malloc(most), *want = malloc(most);

		memset(want, i, most);
		ok(!ring_next(e.consumer, &record) && record.sequence == (uint64_t)i &&
			   !ring_copy(e.consumer, 0, copy, most) && !memcmp(copy, want, most),
		   "record %d whole", i);
		ring_consume(e.consumer);
		free(copy);
		free(want);
	}
	is(ring_next(e.consumer, &record), -EAGAIN, "empty");
	close_ends(&e);
}

/* Small records free their space late, but never so late that the producer starves. */
static void test_space_told(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	struct ring_record record;
	int sent = 0, taken = 0;

	while (!send(e.producer, 16, 1, 1, 0))
		sent++;
	is(sent, RING_MIN_BYTES / 32, "the ring holds as many as fit");
	while (taken < sent / 8 && !ring_next(e.consumer, &record)) {
		ring_consume(e.consumer);
		taken++;
	}
	is(send(e.producer, 16, 1, 1, 0), 0, "after an eighth the space is told");
	while (!ring_next(e.consumer, &record))
		ring_consume(e.consumer);
	for (int i = 0; i < 4; i++)
		is(send(e.producer, ring_max_record(e.producer), i, 1, 0), 0,
		   "all of it when empty");
	close_ends(&e);
}

/* Many turns of the ring with every alignment, against a plain sequence of numbers. */
static void test_turns(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	uint8_t *copy = malloc(RING_MIN_BYTES);
	struct ring_stats in, out;
	uint64_t sent = 0, taken = 0, wrong = 0, bytes = 0;
	unsigned int seed = 1;

	while (taken < 20000) {
		struct ring_record record;
		uint32_t n = (uint32_t)((sent * 7919) % 5000);
		void *place;

		if (rand_r(&seed) % 3 && !ring_reserve(e.producer, n, &place)) {
			memset(place, (int)(sent & 0xff), n);
			ring_commit(e.producer, (uint16_t)sent, sent % 4);
			sent++;
			bytes += n;
		} else if (!ring_next(e.consumer, &record)) {
			n = (uint32_t)((taken * 7919) % 5000);
			wrong += record.length != n || record.type != (uint16_t)taken ||
				 record.flags != taken % 4 || record.sequence != taken;
			wrong += ring_copy(e.consumer, 0, copy, record.length) != 0;
			for (uint32_t i = 0; i < record.length; i++)
				wrong += copy[i] != (uint8_t)taken;
			ring_consume(e.consumer);
			taken++;
		}
	}
	is(wrong, 0, "20,000 records over hundreds of turns");
	ring_stats(e.producer, &in);
	ring_stats(e.consumer, &out);
	ok(in.records == sent && in.bytes == bytes, "the producer counted what it sent");
	is(out.records, taken, "the consumer counted what it took");
	is(in.kicks + out.kicks, 0, "nobody slept: no kick, no system call");
	free(copy);
	close_ends(&e);
}

static void test_end(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	struct ring_record record;
	void *place;

	send(e.producer, 3, 1, 1, 0);
	ring_close(e.producer);
	is(ring_wait(e.consumer, 0, 0), 0, "closed by the producer: the rest is there");
	is(ring_next(e.consumer, &record), 0, "the rest comes");
	ring_consume(e.consumer);
	is(ring_next(e.consumer, &record), -EPIPE, "then the end");
	is(ring_wait(e.consumer, 0, -1), -EPIPE, "... also for who waits forever");
	ring_close(e.consumer);

	e = open_ends(RING_MIN_BYTES);
	ring_close(e.consumer);
	is(ring_reserve(e.producer, 1, &place), -EPIPE, "closed by the consumer");
	is(ring_wait(e.producer, 1, -1), -EPIPE, "... waiting ends at once");
	ring_close(e.producer);
	ring_close(NULL);
}

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* The calls that an event loop makes, step by step. */
static void test_wait(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	int fd = ring_wait_fd(e.consumer);
	struct ring_record record;
	struct ring_stats stats;

	is(ring_wait_prepare(e.consumer, 0), 0, "empty: sleep");
	is(ring_wait_prepare(e.consumer, 0), -EINVAL, "not twice");
	ok(!readable(fd), "no wake-up yet");
	send(e.producer, 1, 1, 1, 0);
	ok(readable(fd), "a record wakes");
	send(e.producer, 1, 1, 1, 0);
	ring_stats(e.producer, &stats);
	is(stats.kicks, 1, "one kick for one sleep");
	ring_wait_finish(e.consumer, true);
	ok(!readable(fd), "finish takes the wake-up away");
	is(ring_wait_prepare(e.consumer, 0), 1, "work is there: no sleep");
	is(ring_wait(e.consumer, 0, 0), 0, "ring_wait says so too");
	while (!ring_next(e.consumer, &record))
		ring_consume(e.consumer);
	is(ring_wait(e.consumer, 0, 10), -ETIMEDOUT, "nothing comes within 10 ms");
	ring_stats(e.consumer, &stats);
	ok(stats.waits == 2 && stats.timeouts == 1 && !stats.timeouts_with_work, "counted");

	is(ring_wait_prepare(e.consumer, 0), 0, "asleep again");
	ring_close(e.producer);
	ok(readable(fd), "the end wakes");
	ring_wait_finish(e.consumer, true);
	is(ring_next(e.consumer, &record), -EPIPE, "the end");
	ring_close(e.consumer);

	e = open_ends(RING_MIN_BYTES);
	for (int i = 0; i < 4; i++)
		send(e.producer, ring_max_record(e.producer), 1, 1, 0);
	is(ring_wait_prepare(e.producer, ring_max_record(e.producer) + 1), -EMSGSIZE, "never fits");
	is(ring_wait_prepare(e.producer, 100), 0, "full: sleep");
	ring_next(e.consumer, &record);
	ok(!readable(ring_wait_fd(e.producer)), "not for a look");
	ring_consume(e.consumer);
	ok(readable(ring_wait_fd(e.producer)), "space wakes");
	ring_wait_finish(e.producer, true);
	is(ring_wait(e.producer, 100, 0), 0, "space is there");
	close_ends(&e);
}

static int eat(int fd)
{
	struct cnnring_ack ack;
	uint64_t count;

	if (on_device())
		return ioctl(fd, CNNRING_IOC_ACK, &ack);
	return read(fd, &count, sizeof(count)) == sizeof(count) ? 0 : -1;
}

/* A wake-up that is really lost is counted: here the producer's kick is taken away. */
static void test_lost(void)
{
	struct ends e = open_ends(RING_MIN_BYTES);
	struct ring_stats stats;

	is(ring_wait_prepare(e.consumer, 0), 0, "sleep");
	send(e.producer, 1, 1, 1, 0);
	is(eat(ring_wait_fd(e.consumer)), 0, "somebody else eats the wake-up");
	ring_wait_finish(e.consumer, false);
	ring_stats(e.consumer, &stats);
	is(stats.timeouts_with_work, 1, "counted as lost");
	close_ends(&e);
}

static void on_alarm(int signal)
{
}

static void test_signal(void)
{
	struct sigaction action = {.sa_handler = on_alarm};
	/* again and again: on a busy machine the first may come before the wait */
	struct itimerval soon = {{.tv_usec = 20000}, {.tv_usec = 20000}}, never = {{0}, {0}};
	struct ends e = open_ends(RING_MIN_BYTES);
	struct ring_record record;
	struct ring_stats stats;

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &soon, NULL);
	is(ring_wait(e.consumer, 0, 10000), -EINTR, "a signal ends the wait");
	setitimer(ITIMER_REAL, &never, NULL);
	send(e.producer, 1, 1, 1, 0);
	is(ring_next(e.consumer, &record), 0, "the ring works on");
	ring_stats(e.producer, &stats);
	is(stats.kicks, 0, "nobody sleeps any more");
	ring_stats(e.consumer, &stats);
	ok(stats.waits == 1 && !stats.timeouts, "not counted as a timeout");
	close_ends(&e);
}

int main(void)
{
	test_sizes();
	test_one();
	test_full();
	test_space_told();
	test_turns();
	test_end();
	test_wait();
	test_lost();
	test_signal();
	return done();
}
