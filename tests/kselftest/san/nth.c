// SPDX-License-Identifier: MIT
/*
 * nth.c: for each call, each of its allocations and each access to user memory fails in turn, in a
 * kernel with fault injection (/proc/thread-self/fail-nth). After a failure: an error that the
 * interface names, or a success that is whole; the same file still works; and nothing is left. N is
 * how many could fail. It must not be 0, but for calls that promise to have nothing that could.
 */
#include "../cnnring_call.h"

#include <sys/epoll.h>
#include <sys/syscall.h>

#include "../../tap.h"
#include "../module/cnnring_test.h"

#define MOST 4000

/* what a step works on, made new before each try */
struct stand {
	int consumer, producer, ready; /* ready: without memory, to be filled */
	int driver, dma;
	void *map;
	struct cnnring_create create;
	uint32_t flags;
};

static int nth_fd;

static void arm(unsigned int n)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", n);

	/* its own copy from here may be what fails */
	for (int i = 0; i < 3 && pwrite(nth_fd, text, (size_t)length, 0) != length; i++)
		;
}

/* Has the failure come? Looking is itself an access that can fail; then it had not come before. */
static bool came(void)
{
	char text[16] = "";
	ssize_t n = pread(nth_fd, text, sizeof(text) - 1, 0);

	return n > 0 && atoi(text) == 0;
}

/* ---- steps: value >= 0, or -errno ---- */

static int do_open(struct stand *s)
{
	int fd = open(DEVICE, O_RDWR | O_CLOEXEC), rc = fd < 0 ? -errno : fd;

	return rc;
}

static int do_version(struct stand *s)
{
	struct cnnring_version v = {.abi = CNNRING_ABI};

	return call(s->consumer, CNNRING_IOC_VERSION, &v);
}

static int do_create(struct stand *s)
{
	s->create = create_arg(s->flags ? 4 << 20 : BYTES);
	s->create.flags = s->flags;
	return call(s->ready, CNNRING_IOC_CREATE, &s->create);
}

static int do_peer(struct stand *s)
{
	return peer_fd(s->ready);
}

static int do_wake(struct stand *s)
{
	return wake(s->producer);
}

static int do_ack(struct stand *s)
{
	return ack(s->consumer);
}

static int do_detach(struct stand *s)
{
	return call(s->producer, CNNRING_IOC_DETACH, NULL);
}

static int do_query(struct stand *s)
{
	struct cnnring_query q = {0};

	return call(s->producer, CNNRING_IOC_QUERY, &q);
}

static int do_export(struct stand *s)
{
	struct cnnring_export x = {0};

	return call(s->consumer, CNNRING_IOC_EXPORT, &x);
}

static int do_import(struct stand *s)
{
	return call(s->driver, CNNRING_TEST_IMPORT, (void *)(long)s->dma);
}

static int do_pin(struct stand *s)
{
	struct cnnring_test_pin p = {(uintptr_t)s->map, 8, 1};

	return call(s->driver, CNNRING_TEST_PIN, &p);
}

static int do_mmap(struct stand *s)
{
	void *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		       s->producer, 3 * PAGE);

	if (p == MAP_FAILED)
		return -errno;
	s->map = p; /* unmapping is not what is tried here, and can fail too */
	return 0;
}

static int do_access(struct stand *s)
{
	for (int i = 0; i < 8; i++)
		((volatile char *)s->map)[i * PAGE] = 1;
	return 0;
}

static int do_poll(struct stand *s)
{
	struct pollfd p = {.fd = s->consumer, .events = POLLIN};

	return poll(&p, 1, 0) < 0 ? -errno : 0;
}

static int do_epoll(struct stand *s)
{
	struct epoll_event e = {.events = EPOLLIN};
	int ep = epoll_create1(EPOLL_CLOEXEC), rc;

	if (ep < 0)
		return -errno;
	rc = epoll_ctl(ep, EPOLL_CTL_ADD, s->consumer, &e) ? -errno : 0;
	close(ep);
	return rc;
}

static int do_stats(struct stand *s)
{
	char text[512];
	int fd = open("/sys/kernel/debug/cnnring/stats", O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = read(fd, text, sizeof(text)) < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static int do_close(struct stand *s)
{
	close(s->consumer);
	s->consumer = -1;
	return 0;
}

/* The module once more under another name does not go; so it goes and comes. */
static int do_load(struct stand *s)
{
	int fd = open("/cnnring.ko", O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = syscall(SYS_finit_module, fd, "", 0) ? -errno : 0;
	close(fd);
	return rc;
}

enum {
	NOTHING = 1, /* promises to have nothing that could fail */
	DMABUF = 2,  /* needs it */
	FD = 4,	     /* gives a descriptor */
	HUGE = 8,    /* a ring of 4 MiB in large pages */
	FILLED = 16, /* `ready` has its memory */
	MAPPED = 32,
	MODULE = 64,	/* without the module at first */
	MAY_BE_0 = 128, /* not a call of ours: it may do without */
};

static const struct {
	const char *name;
	int (*step)(struct stand *s);
	unsigned int what;
} steps[] = {
	{"open", do_open, FD},
	{"VERSION", do_version, 0},
	{"CREATE", do_create, 0},
	{"CREATE, large pages", do_create, HUGE},
	{"PEER_FD", do_peer, FD | FILLED},
	{"WAKE", do_wake, NOTHING},
	{"ACK", do_ack, 0},
	{"DETACH", do_detach, NOTHING},
	{"QUERY", do_query, 0},
	{"EXPORT", do_export, FD | DMABUF},
	{"import", do_import, DMABUF},
	{"pin", do_pin, MAPPED},
	{"mmap", do_mmap, 0},
	{"access", do_access, MAPPED | MAY_BE_0}, /* its page tables may be there */
	{"poll", do_poll, 0},
	{"epoll", do_epoll, 0},
	{"debugfs", do_stats, 0},
	{"close", do_close, MAY_BE_0},
	{"load of the module", do_load, MODULE},
};

/* ---- before and after ---- */

static void make(struct stand *s, unsigned int what)
{
	struct cnnring_export x = {0};

	memset(s, 0xff, sizeof(*s)); /* no descriptor */
	s->map = NULL;
	s->flags = what & HUGE ? CNNRING_CREATE_HUGE : 0;
	if (what & MODULE) {
		if (syscall(SYS_delete_module, "cnnring", O_NONBLOCK))
			BAIL("delete_module: %m");
		return;
	}
	s->consumer = device();
	s->ready = device();
	s->driver = open("/dev/cnnring_test", O_RDWR | O_CLOEXEC);
	if (create(s->consumer, BYTES) || (what & FILLED && create(s->ready, BYTES)) ||
	    (s->producer = peer_fd(s->consumer)) < 0 || s->driver < 0)
		BAIL("a ring: %m");
	if (what & DMABUF)
		s->dma = call(s->consumer, CNNRING_IOC_EXPORT, &x);
	if (what & MAPPED)
		s->map = map(s->producer, 3, 8, PROT_READ | PROT_WRITE);
}

/* The files that the step failed on work as if nothing had been. */
static bool works(struct stand *s, unsigned int what, int rc)
{
	struct cnnring_query q = {0};

	if (what & MODULE)
		return rc || !access(DEVICE, F_OK);
	if (query(s->producer).data_bytes != BYTES)
		return false;
	if (s->consumer < 0)
		return true;
	if (what & FILLED && rc < 0) {
		int fd = peer_fd(s->ready);

		return fd >= 0 && !close(fd);
	}
	if (!(what & FILLED)) {
		/* a CREATE whose answer did not get through has made the ring */
		int again = create(s->ready, s->flags ? 4 << 20 : BYTES);

		if (again && again != -EBUSY)
			return false;
		if (call(s->ready, CNNRING_IOC_QUERY, &q) ||
		    q.data_bytes != (s->flags ? 4 << 20 : BYTES))
			return false;
	}
	return ack(s->consumer) >= 0;
}

static void unmake(struct stand *s, unsigned int what, int rc)
{
	const int fds[] = {s->consumer, s->producer, s->ready, s->driver, s->dma};

	if (what & MODULE) { /* also after a load that did without its files in debugfs */
		syscall(SYS_delete_module, "cnnring", O_NONBLOCK);
		if (do_load(s))
			BAIL("the module does not load: %m");
	}
	if (what & FD && rc >= 0)
		close(rc);
	if (s->map)
		munmap(s->map, 8 * PAGE);
	for (int i = 0; i < 5; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* Errors that the interface names for a failed allocation or access, and what the VFS adds. */
static bool named(int rc)
{
	return rc >= 0 || rc == -ENOMEM || rc == -EFAULT || rc == -ENFILE || rc == -EMFILE;
}

static void one(unsigned int i)
{
	const unsigned int what = steps[i].what;
	unsigned int n = 0, failed = 0, bad = 0, left = 0, unnamed = 0;
	bool hit = true;

	while (hit && ++n < MOST) {
		struct stand s;
		int rc;

		make(&s, what);
		arm(n);
		rc = steps[i].step(&s);
		hit = came();
		arm(0);
		failed += hit && rc < 0;
		/* loading is the kernel's, and has more errors */
		if (!named(rc) && !(what & MODULE)) {
			printf("# %s, %u: error %d\n", steps[i].name, n, rc);
			unnamed++;
		}
		bad += !works(&s, what, rc);
		unmake(&s, what, rc);
		left += !all_free();
	}
	n--;
	printf("# %s: N = %u, %u errors\n", steps[i].name, n, failed);
	if (what & NOTHING)
		is(n, 0, steps[i].name);
	else
		ok((n > 0 || what & MAY_BE_0) && n < MOST - 1, "%s: each of %u failed in turn",
		   steps[i].name, n);
	is(unnamed, 0, "... errors are those of the interface");
	is(bad, 0, "... afterwards everything works");
	is(left, 0, "... and nothing is left");
}

/* Fault injection spares those who may wait, unless told otherwise. */
static void let_all_fail(void)
{
	static const char *const kinds[] = {"failslab", "fail_page_alloc", "fail_usercopy"};
	static const char *const files[][2] = {{"ignore-gfp-wait", "N"},
					       {"ignore-gfp-highmem", "N"},
					       {"min-order", "0"},
					       {"verbose", "0"}};
	char path[100];

	for (int k = 0; k < 3; k++)
		for (int f = 0; f < 4; f++) {
			snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", kinds[k],
				 files[f][0]);
			if (!access(path, F_OK) && write_text(path, files[f][1]))
				BAIL("%s: %m", path);
		}
}

int main(void)
{
	int probe = device();
	bool dmabuf = has_dmabuf(probe);

	close(probe);
	let_all_fail();
	nth_fd = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
	if (nth_fd < 0)
		BAIL("no fail-nth in this kernel: %m");
	for (unsigned int i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
		if (steps[i].what & DMABUF && !dmabuf && may_lack("dmabuf"))
			skip("this kernel has no dma-buf", steps[i].name);
		else
			one(i);
	}
	return done();
}
