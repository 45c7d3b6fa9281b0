// SPDX-License-Identifier: MIT
/* worker.c: see worker.h. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sandbox.h"

/* Not the private kind: the words are shared between processes. */
int futex_wait(_Atomic uint32_t *word, uint32_t value, unsigned int timeout_ms)
{
	struct timespec t = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};

	if (syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ms ? &t : NULL, NULL, 0))
		return -errno;
	return 0;
}

int futex_wake(_Atomic uint32_t *word, int count)
{
	return syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0) < 0 ? -errno : 0;
}

void worker_bell_ring(struct worker_bell *bell)
{
	atomic_fetch_add(&bell->count, 1);
	if (atomic_load(&bell->waiters))
		futex_wake(&bell->count, INT_MAX);
}

/* What a hostile image could make a decoder do. Only with test_images. */
static void test_image(const uint8_t *in, size_t bytes, struct image_result *result)
{
	const char *what = (const char *)in + 8;
	size_t n = bytes - 8;
	volatile uint32_t spin = 0;
	long rc = -1;

	if (n >= 5 && !memcmp(what, "crash", 5))
		__builtin_trap();
	if (n >= 4 && !memcmp(what, "hang", 4))
		for (;;)
			spin++;
	if (n >= 5 && !memcmp(what, "sleep", 5))
		for (;;)
			futex_wait((_Atomic uint32_t *)&spin, 0, 0);
	if (n >= 4 && !memcmp(what, "open", 4))
		rc = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
	else if (n >= 6 && !memcmp(what, "socket", 6))
		rc = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	else if (n >= 4 && !memcmp(what, "exec", 4))
		rc = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
				     MAP_FAILED
			     ? -1
			     : 0;
	else if (n >= 6 && !memcmp(what, "memory", 6))
		rc = mmap(NULL, (size_t)1 << 40, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED
			     ? -1
			     : 0;
	image_fail(result, rc < 0 ? "test: refused, errno %d" : "test: done", errno);
}

static void work(const struct worker_setup *setup, struct worker_control *control, uint32_t index)
{
	struct worker_slot *slot = &control->slot[index];
	const uint8_t *in = setup->region + worker_in(&setup->sizes, index);
	uint64_t bytes = slot->bytes;
	bool certain;

	if (bytes > worker_in_bytes(&setup->sizes, index))
		bytes = worker_in_bytes(&setup->sizes, index);
	if (setup->test_images && image_sniff(in, bytes, &certain) == IMAGE_TEST)
		test_image(in, bytes, &slot->result);
	else
		image_decode(&slot->request, in, bytes,
			     setup->region + worker_out(&setup->sizes, index),
			     worker_out_bytes(&setup->sizes, index), &slot->result);
}

void worker_main(const struct worker_setup *setup)
{
	struct worker_control *control = (struct worker_control *)setup->region;
	uint32_t at = atomic_load(&control->done);
	int rc;

	free(malloc(1)); /* the allocator's own start, before calls are filtered */
	rc = sandbox_enter(setup->memory, setup->sandbox);
	if (rc)
		_exit(-rc & 0x7f ? -rc & 0x7f : EINVAL);
	atomic_store(&control->ready, 1);
	worker_bell_ring(setup->bell);
	for (;;) {
		uint32_t submitted = atomic_load(&control->submitted);

		if (submitted == at) {
			atomic_store(&control->asleep, 1);
			submitted = atomic_load(&control->submitted);
			if (submitted == at)
				futex_wait(&control->submitted, submitted, 0);
			atomic_store(&control->asleep, 0);
			continue;
		}
		work(setup, control, control->queue[at % WORKER_QUEUE] % WORKER_SLOTS);
		atomic_store(&control->done, ++at);
		worker_bell_ring(setup->bell);
	}
}
