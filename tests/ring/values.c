// SPDX-License-Identifier: MIT
/*
 * values.c: values of 300 MB and 900 MB in pieces through a ring of 4 MB, from a process whose
 * memory must stay near that of the ring.
 */
#include "../../userspace/ring/ring.h"
#include "../tap.h"
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING_SIZE (4u << 20)
#define WAIT_MS 20000
#define PIECE_TYPE 7
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SHADOW 6
#else
#define SHADOW 1
#endif

/* Eight bytes of a value at a multiple of eight: depends on value and place. */
static uint64_t word_at(uint64_t offset, uint64_t value)
{
	return (offset ^ value << 48) * 0x9e3779b97f4a7c15u;
}

static int send_piece(struct ring *ring, uint64_t value, uint64_t offset, uint32_t n,
		      uint16_t flags)
{
	uint64_t *word;
	void *place;
	int rc;

	while ((rc = ring_reserve(ring, n, &place)) == -EAGAIN) {
		rc = ring_wait(ring, n, WAIT_MS);
		if (rc)
			return rc;
	}
	if (rc)
		return rc;
	word = place;
	for (uint32_t i = 0; i < n / 8; i++)
		word[i] = word_at(offset + 8ull * i, value);
	ring_commit(ring, PIECE_TYPE, flags);
	return 0;
}

static int send_value(struct ring *ring, uint64_t value, uint64_t bytes)
{
	uint32_t piece = ring_max_record(ring) & ~7u;

	for (uint64_t at = 0; at < bytes;) {
		uint32_t n = bytes - at < piece ? (uint32_t)(bytes - at) : piece;
		uint16_t flags = (at ? 0 : RING_FIRST) | (at + n == bytes ? RING_LAST : 0);
		int rc = send_piece(ring, value, at, n, flags);

		if (rc)
			return rc;
		at += n;
	}
	return 0;
}

/* kB from /proc/self/status. */
static long status_kb(const char *key)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	long kb = -1;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			kb = strtol(line + strlen(key), NULL, 10);
	if (f)
		fclose(f);
	return kb;
}

static int receive(struct ring *ring, uint64_t value, uint64_t *bytes)
{
	uint64_t *copy = malloc(ring_max_record(ring));
	struct ring_record record;
	uint64_t wrong = 0;
	int rc;

	*bytes = 0;
	do {
		while ((rc = ring_next(ring, &record)) == -EAGAIN)
			if (ring_wait(ring, 0, WAIT_MS) == -ETIMEDOUT)
				break;
		if (rc || ring_copy(ring, 0, copy, record.length))
			break;
		wrong += !(record.flags & RING_FIRST) != (*bytes > 0) || record.type != PIECE_TYPE;
		for (uint32_t i = 0; i < record.length / 8; i++)
			wrong += copy[i] != word_at(*bytes + 8ull * i, value);
		*bytes += record.length;
		ring_consume(ring);
	} while (!(record.flags & RING_LAST));
	free(copy);
	return rc ? rc : wrong ? -EBADMSG : 0;
}

/* in an emulated machine a tenth is enough: the ring is still small against it */
static uint64_t sizes[] = {300000000, 900000000};

static void produce(const int *fds, int report)
{
	long before, kb[2];
	struct ring *ring;
	int copy[RING_FDS];
	struct rusage usage;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	before = status_kb("VmHWM:");
	for (int i = 0; i < RING_FDS; i++)
		copy[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
	if (ring_attach(copy, RING_SIZE, &ring))
		_exit(1);
	for (unsigned int i = 0; i < 2; i++)
		if (send_value(ring, i, sizes[i]))
			_exit(2);
	ring_close(ring);
	kb[0] = status_kb("VmHWM:") - before;
	getrusage(RUSAGE_SELF, &usage);
	kb[1] = usage.ru_maxrss;
	_exit(write(report, kb, sizeof(kb)) == sizeof(kb) ? 0 : 3);
}

int main(void)
{
	static const char *const names[] = {"the small value", "the large value"};
	int fds[RING_FDS], status, report[2];
	struct ring_stats stats;
	struct ring *ring;
	uint64_t bytes;
	long kb[2] = {-1, -1};
	pid_t pid;

	for (int i = 0; i < 2 && on_device(); i++)
		sizes[i] /= 10;
	if (make_ring(RING_SIZE, &ring) || pipe2(report, O_CLOEXEC))
		BAIL("ring_create");
	ring_export(ring, fds);
	pid = fork();
	if (!pid)
		produce(fds, report[1]);
	for (unsigned int i = 0; i < 2; i++) {
		is(receive(ring, i, &bytes), 0, names[i]);
		is(bytes, sizes[i], "... whole and as sent");
	}
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "the producer ended well");
	ok(read(report[0], kb, sizeof(kb)) == sizeof(kb), "it told its memory");
	printf("# producer: VmHWM grew by %ld kB, ru_maxrss %ld kB\n", kb[0], kb[1]);
	/* the data area counts twice, once per mapping; a sanitizer adds shadows of what is touched
	 */
	ok(kb[0] >= 0 && kb[0] < SHADOW * (2 * (RING_SIZE >> 10) + 4096),
	   "memory of the producer: the ring's");
	ring_stats(ring, &stats);
	is(stats.timeouts_with_work, 0, "timeouts_with_work");
	ring_close(ring);
	return done();
}
