// SPDX-License-Identifier: MIT
/*
 * hostile.c: a peer that lies. Wrong, small, unsealed, truncated descriptors are refused before
 * they are mapped; an index or a header that cannot be ends the ring with -EPROTO; a full or
 * blocking eventfd holds nobody up. The layout is written down here once more, from the document.
 */
#include "ends.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGE 4096u
#define SIZE RING_MIN_BYTES
#define TOTAL (3 * PAGE + SIZE)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Offsets in the file. */
enum {
	HEAD = PAGE,
	PRODUCER_WAIT = PAGE + 128,
	TAIL = 2 * PAGE,
	CONSUMER_WAIT = 2 * PAGE + 128,
	CONSUMER_CLOSED = 2 * PAGE + 256,
	DATA = 3 * PAGE
};

struct geometry {
	char magic[8];
	uint32_t version, page;
	uint64_t data, reserved[5];
};

static const struct geometry good = {"CNNRING1", 1, PAGE, SIZE, {0}};

static int memfd(off_t bytes, off_t allocated, const struct geometry *g, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, bytes) || (allocated && fallocate(fd, 0, 0, allocated)) ||
	    (g && pwrite(fd, g, sizeof(*g), 0) != sizeof(*g)) ||
	    (seals && fcntl(fd, F_ADD_SEALS, seals)))
		BAIL("memfd: %m");
	return fd;
}

static void attach(int memory, int a, int b, size_t max, int wanted, const char *name)
{
	const int fds[RING_FDS] = {memory, a, b};
	struct ring *ring = NULL;
	int rc = ring_attach(fds, max, &ring);

	is(rc, wanted, name);
	if (!rc) {
		ring_close(ring);
		return;
	}
	for (int i = 0; i < RING_FDS; i++)
		if (fds[i] >= 0 && fcntl(fds[i], F_GETFD) >= 0)
			ok(false, "%s: descriptor %d is still open", name, i);
}

static int event(void)
{
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static void try_memory(int fd, int wanted, const char *name)
{
	attach(fd, event(), event(), SIZE, wanted, name);
}

static void try_geometry(void)
{
	static const char *const names[] = {"magic", "version", "page size", "data size",
					    "a word that must be 0"};

	for (int i = 0; i < 5; i++) {
		struct geometry g = good;

		switch (i) {
		case 0:
			g.magic[0]++;
			break;
		case 1:
			g.version++;
			break;
		case 2:
			g.page *= 2;
			break;
		case 3:
			g.data *= 2;
			break;
		case 4:
			g.reserved[4] = 1;
			break;
		}
		try_memory(memfd(TOTAL, TOTAL, &g, SEALS), -EPROTO, names[i]);
	}
}

static void test_descriptors(void)
{
	char path[] = "/tmp/ring-test-XXXXXX";
	int pipes[2], before = open_fds(), fd;

	try_memory(memfd(TOTAL, TOTAL, &good, SEALS), 0, "a good memfd, made by hand");
	try_memory(memfd(TOTAL, TOTAL, &good, 0), -EPERM, "no seals");
	try_memory(memfd(TOTAL, TOTAL, &good, F_SEAL_GROW | F_SEAL_SEAL), -EPERM, "could shrink");
	try_memory(memfd(TOTAL, TOTAL, &good, F_SEAL_SHRINK | F_SEAL_SEAL), -EPERM, "could grow");
	try_memory(memfd(TOTAL, TOTAL, &good, F_SEAL_GROW | F_SEAL_SHRINK), -EPERM, "no SEAL seal");
	try_memory(memfd(TOTAL, TOTAL, &good, SEALS | F_SEAL_WRITE), -EPERM,
		   "sealed against us too");
	try_memory(memfd(0, 0, NULL, SEALS), -EPROTO, "empty");
	try_memory(memfd(3 * PAGE, 3 * PAGE, &good, SEALS), -EPROTO, "no data area");
	try_memory(memfd(TOTAL - 1, TOTAL - 1, &good, SEALS), -EPROTO, "a byte short");
	try_memory(memfd(TOTAL + PAGE, TOTAL + PAGE, &good, SEALS), -EPROTO, "a page too long");
	try_memory(memfd(3 * PAGE + 32768, 3 * PAGE + 32768, &good, SEALS), -EPROTO, "too small");
	try_memory(memfd(TOTAL, 0, &good, SEALS), -EPROTO, "holes");
	try_memory(memfd(TOTAL + SIZE, TOTAL + SIZE, &good, SEALS), -E2BIG, "more than allowed");
	attach(memfd(TOTAL, TOTAL, &good, SEALS), event(), event(), SIZE - 1, -E2BIG,
	       "a byte more than allowed");
	attach(memfd(3 * PAGE + (1ll << 31), 0, &good, SEALS), event(), event(), SIZE_MAX, -EPROTO,
	       "2 GiB");
	try_geometry();

	fd = mkstemp(path);
	unlink(path);
	if (ftruncate(fd, TOTAL) || fallocate(fd, 0, 0, TOTAL))
		BAIL("%s: %m", path);
	/* tmpfs knows seals: there the file has none */
	try_memory(fd, fcntl(fd, F_GET_SEALS) < 0 ? -EBADF : -EPERM, "a file on disk");
	try_memory(event(), -EBADF, "an eventfd as memory");
	try_memory(open("/dev/null", O_RDWR | O_CLOEXEC), -EBADF, "/dev/null");
	try_memory(open("/", O_RDONLY | O_CLOEXEC), -EBADF, "a folder");
	try_memory(-1, -EBADF, "no descriptor");
	try_memory(1000, -EBADF, "a descriptor that is not open");
	if (pipe2(pipes, O_CLOEXEC))
		BAIL("pipe: %m");
	attach(memfd(TOTAL, TOTAL, &good, SEALS), event(), pipes[1], SIZE, -EBADF,
	       "a pipe as event");
	attach(memfd(TOTAL, TOTAL, &good, SEALS), pipes[0], event(), SIZE, -EBADF, "as the other");
	attach(memfd(TOTAL, TOTAL, &good, SEALS), memfd(8, 8, NULL, 0), event(), SIZE, -EBADF,
	       "a memfd as event");
	fd = event();
	attach(memfd(TOTAL, TOTAL, &good, SEALS), fd, fd, SIZE, -EBADF, "one event for both");
	is(open_fds(), before, "no descriptor is left");
}

static void test_truncate(void)
{
	struct ends e = open_ends(SIZE);
	struct ring_record record;
	int fds[RING_FDS];

	ring_export(e.consumer, fds);
	ok(ftruncate(fds[0], 4096) < 0 && errno == EPERM, "a peer cannot truncate");
	ok(ftruncate(fds[0], 1 << 20) < 0 && errno == EPERM, "nor extend");
	ok(fcntl(fds[0], F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM, "nor seal");
	is(send(e.producer, 100, 1, 1, 0), 0, "the ring works on");
	is(ring_next(e.consumer, &record), 0, "... on both sides");
	/* punching holes is not sealed off: pages read as zeros, no signal */
	ok(!fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, DATA, SIZE), "holes");
	ring_consume(e.consumer);
	is(send(e.producer, 100, 1, 1, 0), 0, "written into a hole");
	is(ring_next(e.consumer, &record), 0, "read back");
	close_ends(&e);
}

static void part(uint8_t *base, off_t at, size_t n, int prot, int fd)
{
	if (mmap(base + at, n, prot, MAP_SHARED | MAP_FIXED, fd, at) == MAP_FAILED)
		BAIL("mmap at %ld: %m", (long)at);
}

static uint64_t *shared(const struct ends *e)
{
	int fds[RING_FDS], consumer = ring_wait_fd(e->consumer);
	uint8_t *p;

	ring_export(e->consumer, fds);
	if (!on_device()) {
		p = mmap(NULL, TOTAL, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
		if (p == MAP_FAILED)
			BAIL("mmap: %m");
		return (uint64_t *)p;
	}
	/* there each end may write its own part only: both together make the whole */
	p = mmap(NULL, TOTAL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	part(p, 0, PAGE, PROT_READ, consumer);
	part(p, HEAD, PAGE, PROT_READ | PROT_WRITE, fds[0]);
	part(p, TAIL, PAGE, PROT_READ | PROT_WRITE, consumer);
	part(p, DATA, SIZE, PROT_READ | PROT_WRITE, fds[0]);
	return (uint64_t *)p;
}

static void test_layout(void)
{
	struct ends e = open_ends(SIZE);
	uint64_t *at = shared(&e);
	struct ring_record record;
	const uint8_t want[16] = {5, 0, 0, 0, 0x34, 0x12, 3, 0};

	ok(!memcmp(at, &good, sizeof(good)), "geometry as described");
	ok(!at[HEAD / 8] && !at[TAIL / 8], "positions begin at 0");
	send(e.producer, 5, 'x', 0x1234, 3);
	is(at[HEAD / 8], 32, "16 bytes of header, 5 of payload, to the next 16");
	ok(!memcmp(&at[DATA / 8], want, 16), "record header as described");
	ok(!memcmp(&at[DATA / 8 + 2], "xxxxx", 5), "payload behind it");
	ring_next(e.consumer, &record);
	ring_consume(e.consumer);
	ring_next(e.consumer, &record);
	is(at[TAIL / 8], 32, "the consumer's position");
	ring_wait_prepare(e.consumer, 0);
	is(at[CONSUMER_WAIT / 8], 1, "asleep: odd");
	ring_wait_finish(e.consumer, false);
	is(at[CONSUMER_WAIT / 8], 2, "awake: even");
	is(at[PRODUCER_WAIT / 8], 0, "the producer never slept");
	munmap(at, TOTAL);
	close_ends(&e);
}

static void head_is(uint64_t value, const char *name)
{
	struct ends e = open_ends(SIZE);
	uint64_t *at = shared(&e);
	struct ring_record record;

	for (int i = 0; i < 3; i++)
		send(e.producer, 100, 1, 1, 0);
	for (int i = 0; i < 3; i++) {
		ring_next(e.consumer, &record);
		ring_consume(e.consumer);
	}
	at[HEAD / 8] = value;
	is(ring_next(e.consumer, &record), -EPROTO, name);
	at[HEAD / 8] = 3 * 128;
	is(ring_next(e.consumer, &record), -EPROTO, "... and it stays broken");
	is(ring_wait(e.consumer, 0, -1), -EPROTO, "... also for who waits");
	munmap(at, TOTAL);
	close_ends(&e);
}

static void tail_is(uint64_t value, const char *name)
{
	struct ends e = open_ends(SIZE);
	uint64_t *at = shared(&e);
	struct ring_record record;
	void *place;

	while (!send(e.producer, 112, 1, 1, 0))
		;
	for (int i = 0; i < 128; i++) {
		ring_next(e.consumer, &record);
		ring_consume(e.consumer);
	}
	while (!send(e.producer, 112, 1, 1, 0))
		;
	at[TAIL / 8] = value;
	is(ring_reserve(e.producer, 112, &place), -EPROTO, name);
	at[TAIL / 8] = SIZE;
	is(ring_reserve(e.producer, 112, &place), -EPROTO, "... and it stays broken");
	is(ring_wait(e.producer, 112, -1), -EPROTO, "... also for who waits");
	munmap(at, TOTAL);
	close_ends(&e);
}

static void test_index(void)
{
	head_is(UINT64_MAX, "head at the end of the world");
	head_is(3 * 128 + SIZE + 16, "more in the ring than it holds");
	head_is(2 * 128, "head went back");
	head_is(0, "head went back to 0");
	head_is(3 * 128 + 8, "head between two places");
	tail_is(UINT64_MAX & ~15ull, "tail before the beginning");
	tail_is(16384 + SIZE + 16, "tail before head");
	tail_is(8192, "tail went back");
	tail_is(16384 + 24, "tail between two places");
}

/* Overwrites one field of a record's header behind the producer's back. */
static void header_is(unsigned int at_byte, unsigned int n, uint64_t value, const char *name)
{
	struct ends e = open_ends(SIZE);
	uint64_t *at = shared(&e);
	struct ring_record record;
	uint8_t copy[16];

	send(e.producer, 100, 1, 1, 0);
	memcpy((uint8_t *)at + DATA + at_byte, &value, n);
	is(ring_next(e.consumer, &record), -EPROTO, name);
	is(ring_copy(e.consumer, 0, copy, 1), -EINVAL, "... nothing to copy");
	munmap(at, TOTAL);
	close_ends(&e);
}

static void test_header(void)
{
	struct ends e = open_ends(SIZE);
	uint64_t *at = shared(&e);
	struct ring_record record;
	uint8_t copy[100];

	header_is(0, 4, 113, "longer than what is there");
	header_is(0, 4, UINT32_MAX, "4 GiB long");
	header_is(0, 4, SIZE / 4 - 15, "longer than a record may be");
	header_is(6, 2, 4, "an unknown flag");
	header_is(8, 8, 1, "a record is missing");

	send(e.producer, 100, 7, 1, 0);
	ring_next(e.consumer, &record);
	memset(&at[DATA / 8], 0xff, 16);
	is(ring_copy(e.consumer, 0, copy, 100), 0,
	   "changed after the look: the copied header counts");
	is(ring_copy(e.consumer, 0, copy, 101), -EINVAL, "... in its length too");
	ring_consume(e.consumer);
	is(send(e.producer, 100, 7, 1, 0), 0, "and the ring goes on");
	is(ring_next(e.consumer, &record), 0, "... in step");
	munmap(at, TOTAL);
	close_ends(&e);
}

/* Any words in the shared pages: no crash, no endless loop. */
static void test_noise(void)
{
	unsigned int seed = 5, broken = 0;

	for (int turn = 0; turn < 300; turn++) {
		struct ends e = open_ends(SIZE);
		uint64_t *at = shared(&e);
		struct ring_record record;
		uint8_t copy[SIZE / 4];

		for (int i = 0; i < 200; i++) {
			static const unsigned int spot[] = {
				HEAD, TAIL,    PRODUCER_WAIT, CONSUMER_WAIT, CONSUMER_WAIT + 8,
				DATA, DATA + 8};
			unsigned int where = spot[rand_r(&seed) % 7] / 8;

			send(e.producer, rand_r(&seed) % 3000, 1, 1, 0);
			if (i % 10 == 9 && (where != CONSUMER_CLOSED / 8 || turn % 10 == 0))
				at[where] += (uint64_t)1 << (rand_r(&seed) % 64);
			if (!ring_next(e.consumer, &record)) {
				ring_copy(e.consumer, 0, copy, record.length);
				ring_consume(e.consumer);
			}
		}
		broken += ring_next(e.consumer, &record) == -EPROTO;
		munmap(at, TOTAL);
		close_ends(&e);
	}
	ok(broken > 100, "noise in the shared words: %u of 300 rings broken, none worse", broken);
}

static void test_events(void)
{
	struct ends e = open_ends(SIZE);
	const uint64_t most = UINT64_MAX - 1;
	struct ring_record record;
	struct ring_stats stats;
	int fds[RING_FDS];

	alarm(20); /* a blocked write would hang the test */
	ring_export(e.consumer, fds);
	for (int blocking = 0; blocking < 2; blocking++) {
		if (blocking)
			fcntl(fds[1], F_SETFL, 0);
		if (write(fds[1], &most, 8) != 8)
			BAIL("eventfd: %m");
		is(ring_wait_prepare(e.consumer, 0), 0, "asleep");
		is(send(e.producer, 10, 1, 1, 0), 0,
		   blocking ? "a full, blocking eventfd: no wait" : "a full eventfd: no wait");
		ring_wait_finish(e.consumer, true);
		is(ring_next(e.consumer, &record), 0, "the record is there");
		ring_consume(e.consumer);
		/* drained: else the next sleep would end at once, and for ever */
		is(ring_wait(e.consumer, 0, 5), -ETIMEDOUT, "and the event is empty again");
	}
	ring_wait_prepare(e.consumer, 0);
	ring_wait_finish(e.consumer, true);
	ok(true, "finish on an empty, blocking eventfd: no wait");
	ring_stats(e.consumer, &stats);
	is(stats.timeouts_with_work, 0, "timeouts_with_work");
	alarm(0);
	close_ends(&e);
}

int main(void)
{
	if (sysconf(_SC_PAGESIZE) != PAGE)
		BAIL("written for pages of 4096 bytes");
	test_descriptors();
	if (!on_device())
		test_truncate();
	test_layout();
	test_index();
	test_header();
	test_noise();
	if (!on_device())
		test_events();
	return done();
}
