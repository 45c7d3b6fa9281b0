// SPDX-License-Identifier: MIT
/*
 * fuzz.c: random calls, mappings and accesses, by processes with threads that share their files,
 * and of which one is killed now and then. Right is: no splat (the machine looks), no process that
 * dies by itself, everything free afterwards, and every kind of step worked at least once.
 *   CNNRING_SEED=n     another start (default 1); it is printed
 *   CNNRING_SECONDS=n  as long as that (default: 4 rounds of 10000 steps a thread)
 *   CNNRING_THREADS=n  threads of a process (default 2); with 1 a process does the same every time
 */
#include "cnnring_call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "../tap.h"

#define PROCESSES 2
#define SLOTS 12
#define MAPS 6
#define STEPS 10000

enum step {
	DO_OPEN,
	DO_CREATE,
	DO_PEER,
	DO_WAKE,
	DO_ACK,
	DO_DETACH,
	DO_QUERY,
	DO_EXPORT,
	DO_VERSION,
	DO_ANY_CALL,
	DO_MAP,
	DO_TOUCH,
	DO_ADVISE,
	DO_PROTECT,
	DO_MOVE,
	DO_UNMAP,
	DO_POLL,
	DO_EPOLL,
	DO_PASS,
	DO_DUP,
	DO_CLOSE,
	DO_COUNT
};

static const char *const names[DO_COUNT] = {
	"open",	  "CREATE",  "PEER_FD",	 "WAKE",  "ACK",    "DETACH",  "QUERY",
	"EXPORT", "VERSION", "any call", "mmap",  "access", "madvise", "mprotect",
	"mremap", "munmap",  "poll",	 "epoll", "pass",   "dup",     "close"};

/* shared by all processes */
struct counts {
	_Atomic uint64_t worked[DO_COUNT], tried[DO_COUNT];
};

struct mapping {
	uint8_t *at;
	size_t bytes;
	int prot;
};

/* of a process */
struct table {
	_Atomic int fd[SLOTS]; /* -1: none */
	int epoll, pair[2];
	struct counts *counts;
};

struct runner {
	struct table *table;
	uint64_t state;
	long steps; /* -1: until killed */
	struct mapping map[MAPS];
};

static uint32_t draw(struct runner *r)
{
	r->state ^= r->state << 13;
	r->state ^= r->state >> 7;
	r->state ^= r->state << 17;
	return (uint32_t)(r->state >> 16);
}

static bool one_in(struct runner *r, uint32_t n)
{
	return draw(r) % n == 0;
}

/* mostly small, sometimes anything */
static uint64_t any(struct runner *r)
{
	uint64_t v = (uint64_t)draw(r) << 32 | draw(r);

	return one_in(r, 4) ? v : v % 20;
}

static int slot(struct runner *r)
{
	return atomic_load(&r->table->fd[draw(r) % SLOTS]);
}

/* A descriptor into a slot; what was there is closed, under the feet of the other threads. */
static int put(struct runner *r, int fd)
{
	if (fd >= 0) {
		int old = atomic_exchange(&r->table->fd[draw(r) % SLOTS], fd);

		if (old >= 0)
			close(old);
	}
	return fd;
}

static void noise(struct runner *r, void *to, size_t bytes)
{
	for (size_t i = 0; i < bytes / 8; i++)
		((uint64_t *)to)[i] = one_in(r, 3) ? any(r) : 0;
}

static int do_create(struct runner *r)
{
	struct cnnring_create c = create_arg(BYTES << draw(r) % 3);

	if (one_in(r, 16))
		c.data_bytes = 4 << 20;
	c.flags = draw(r) & CNNRING_CREATE_HUGE;
	c.node = one_in(r, 2) ? CNNRING_NODE_ANY : draw(r) % 3;
	if (one_in(r, 8))
		noise(r, &c, sizeof(c));
	return call(slot(r), CNNRING_IOC_CREATE, &c);
}

static int do_any_call(struct runner *r)
{
	char arg[256];
	unsigned int size = one_in(r, 2) ? draw(r) % 128 : draw(r) % 16384;
	unsigned long cmd = _IOC(draw(r) & 3, one_in(r, 8) ? draw(r) & 255 : CNNRING_IOC_MAGIC,
				 draw(r) % 12, size);
	/* DETACH only by DO_DETACH: otherwise nothing lives for long */
	int fd = cmd == CNNRING_IOC_DETACH ? -1 : slot(r);
	int rc;

	noise(r, arg, sizeof(arg));
	rc = call(fd, cmd, one_in(r, 8) ? (void *)(uintptr_t)any(r) : arg);
	if (rc > 0) /* a descriptor of PEER_FD or EXPORT */
		close(rc);
	return rc == -ENOTTY || rc == -EINVAL ? 0 : rc; /* being refused is what it is for */
}

static struct mapping *a_map(struct runner *r, bool used)
{
	struct mapping *m = &r->map[draw(r) % MAPS];

	return !m->at == !used ? m : NULL;
}

static int do_map(struct runner *r)
{
	struct mapping *m = a_map(r, false);
	size_t pages = 1 + any(r) % 40;
	void *at;

	if (!m)
		return -1;
	m->prot = one_in(r, 8) ? (int)draw(r) & 7 : PROT_READ | (draw(r) & PROT_WRITE);
	if (one_in(r, 2))
		pages = 1;
	at = mmap(NULL, pages * PAGE, m->prot,
		  (one_in(r, 16) ? MAP_PRIVATE : MAP_SHARED) | (one_in(r, 4) ? MAP_POPULATE : 0),
		  slot(r), (off_t)(any(r) * PAGE));
	if (at == MAP_FAILED)
		return -1;
	m->at = at;
	m->bytes = pages * PAGE;
	return 0;
}

/* Also the positions that the module reads. */
static int do_touch(struct runner *r)
{
	struct mapping *m = a_map(r, true);
	volatile uint64_t *word;

	if (!m || !(m->prot & PROT_READ))
		return -1;
	word = (volatile uint64_t *)(m->at + (one_in(r, 2) ? 0 : draw(r) % m->bytes & ~7u));
	if (m->prot & PROT_WRITE)
		*word = any(r);
	else
		(void)*word;
	return 0;
}

static int do_protect(struct runner *r)
{
	struct mapping *m = a_map(r, true);
	int prot = (int)draw(r) & 7;

	if (!m || mprotect(m->at, m->bytes, prot))
		return -1;
	m->prot = prot;
	return 0;
}

static int do_move(struct runner *r)
{
	struct mapping *m = a_map(r, true);
	size_t bytes = one_in(r, 2) && m ? m->bytes : (1 + draw(r) % 40) * PAGE;
	void *at;

	if (!m)
		return -1;
	at = mremap(m->at, m->bytes, bytes, MREMAP_MAYMOVE);
	if (at == MAP_FAILED)
		return -1;
	m->at = at;
	m->bytes = bytes;
	return 0;
}

static int do_unmap(struct runner *r)
{
	struct mapping *m = a_map(r, true);

	if (!m)
		return -1;
	munmap(m->at, m->bytes);
	m->at = NULL;
	return 0;
}

static int do_advise(struct runner *r)
{
	static const int advice[] = {MADV_DONTNEED, MADV_WILLNEED, MADV_DONTFORK,
				     MADV_DOFORK,   MADV_DODUMP,   MADV_REMOVE,
				     MADV_HUGEPAGE, MADV_COLD,	   MADV_PAGEOUT};
	struct mapping *m = a_map(r, true);

	return m ? madvise(m->at, m->bytes, advice[draw(r) % (sizeof(advice) / sizeof(*advice))])
		 : -1;
}

/* There and back through a socket; sometimes it stays there until the process dies. */
static int do_pass(struct runner *r)
{
	int rc = send_fd(r->table->pair[0], slot(r));

	return rc || one_in(r, 64) ? rc : put(r, receive_fd(r->table->pair[1]));
}

static int do_step(struct runner *r, enum step what)
{
	struct epoll_event e = {.events = EPOLLIN | (draw(r) & EPOLLET)};
	char arg[128];
	int fd;

	noise(r, arg, sizeof(arg));
	switch (what) {
	case DO_OPEN:
		return put(r, device());
	case DO_CREATE:
		return do_create(r);
	case DO_PEER:
		return put(r,
			   call(slot(r), CNNRING_IOC_PEER_FD, one_in(r, 4) ? arg : (char[8]){0}));
	case DO_WAKE:
		return wake(slot(r));
	case DO_ACK:
		return ack(slot(r));
	case DO_DETACH:
		return one_in(r, 16) ? call(slot(r), CNNRING_IOC_DETACH, NULL) : -1;
	case DO_QUERY:
		return call(slot(r), CNNRING_IOC_QUERY, arg);
	case DO_EXPORT:
		return put(r, call(slot(r), CNNRING_IOC_EXPORT, arg));
	case DO_VERSION:
		*(uint32_t *)arg = one_in(r, 4) ? 2 : CNNRING_ABI;
		return call(slot(r), CNNRING_IOC_VERSION, arg);
	case DO_ANY_CALL:
		return do_any_call(r);
	case DO_MAP:
		return do_map(r);
	case DO_TOUCH:
		return do_touch(r);
	case DO_ADVISE:
		return do_advise(r);
	case DO_PROTECT:
		return do_protect(r);
	case DO_MOVE:
		return do_move(r);
	case DO_UNMAP:
		return do_unmap(r);
	case DO_POLL:
		return events(slot(r), (int)(draw(r) % 2)) > 0 ? 0 : -1;
	case DO_EPOLL:
		if (one_in(r, 2))
			return epoll_wait(r->table->epoll, &e, 1, 0) > 0 ? 0 : -1;
		return epoll_ctl(r->table->epoll, one_in(r, 3) ? EPOLL_CTL_DEL : EPOLL_CTL_ADD,
				 slot(r), &e);
	case DO_PASS:
		return do_pass(r);
	case DO_DUP:
		return put(r, dup(slot(r)));
	default:
		fd = one_in(r, 4) ? atomic_exchange(&r->table->fd[draw(r) % SLOTS], -1) : -1;
		return fd < 0 ? -1 : close(fd);
	}
}

static void *run(void *p)
{
	struct runner *r = p;
	struct counts *c = r->table->counts;

	for (long i = 0; r->steps < 0 || i < r->steps; i++) {
		enum step what = draw(r) % DO_COUNT;

		atomic_fetch_add_explicit(&c->tried[what], 1, memory_order_relaxed);
		if (do_step(r, what) >= 0)
			atomic_fetch_add_explicit(&c->worked[what], 1, memory_order_relaxed);
	}
	return NULL;
}

static void process(uint64_t seed, int threads, long steps, struct counts *counts)
{
	struct table table = {.epoll = epoll_create1(EPOLL_CLOEXEC), .counts = counts};
	struct runner *r = calloc((size_t)threads, sizeof(*r));
	pthread_t *thread = calloc((size_t)threads, sizeof(*thread));

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < SLOTS; i++)
		atomic_store(&table.fd[i], -1);
	if (table.epoll < 0 || !r || !thread ||
	    socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, table.pair))
		_exit(1);
	for (int i = 0; i < threads; i++) {
		r[i].table = &table;
		r[i].steps = steps;
		r[i].state = seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd1b54a32d192ed03u + 1;
		for (int k = 0; k < 8; k++)
			draw(&r[i]);
		if (pthread_create(&thread[i], NULL, run, &r[i]))
			_exit(2);
	}
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	_exit(0);
}

static long number(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? atol(text) : otherwise;
}

/* All processes with their own seeds; after a while the first one is killed. */
static int round_of(uint64_t seed, int threads, long steps, int ms, struct counts *counts)
{
	pid_t pid[PROCESSES];
	int wrong = 0;

	fflush(NULL);
	for (int i = 0; i < PROCESSES; i++) {
		pid[i] = fork();
		if (!pid[i])
			process(seed * PROCESSES + (uint64_t)i, threads, steps, counts);
	}
	if (ms)
		usleep((useconds_t)ms * 1000);
	for (int i = 0; i < PROCESSES; i++) {
		int status;

		if (ms)
			kill(pid[i], SIGKILL);
		status = ended(pid[i]);
		if (status != (ms ? 1000 + SIGKILL : 0)) {
			printf("# seed %llu, process %d: ended with %d\n", (unsigned long long)seed,
			       i, status);
			wrong++;
		}
	}
	return wrong;
}

int main(void)
{
	struct counts *counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t first = (uint64_t)number("CNNRING_SEED", 1), seed = first;
	long seconds = number("CNNRING_SECONDS", 0);
	int threads = (int)number("CNNRING_THREADS", 2), wrong = 0, probe = device();
	bool dmabuf = has_dmabuf(probe);
	int64_t begin = now_ms();
	uint64_t tried = 0;

	close(probe);
	if (counts == MAP_FAILED)
		BAIL("mmap: %m");
	printf("# seeds from %llu on\n", (unsigned long long)first);
	for (; seconds ? now_ms() - begin < seconds * 1000 : seed < first + 4; seed++) {
		/* with a time: killed in the middle of everything, after .5 to 4.5 s */
		wrong += round_of(seed, threads, seconds ? -1 : STEPS,
				  seconds ? 500 + (int)(seed * 977 % 4000) : 0, counts);
		if (!all_free()) {
			printf("# seed %llu: something is left\n", (unsigned long long)seed);
			wrong++;
		}
	}
	is(wrong, 0, "no process died by itself, and after every round everything was free");
	for (int i = 0; i < DO_COUNT; i++) {
		tried += counts->tried[i];
		if (i == DO_EXPORT && !dmabuf && may_lack("dmabuf"))
			skip("this kernel has no dma-buf", names[i]);
		else
			ok(counts->worked[i] > 0, "%s worked %llu times of %llu", names[i],
			   (unsigned long long)counts->worked[i],
			   (unsigned long long)counts->tried[i]);
	}
	printf("# %llu seeds from %llu on, %llu steps, %lld s\n",
	       (unsigned long long)(seed - first), (unsigned long long)first,
	       (unsigned long long)tried, (long long)(now_ms() - begin) / 1000);
	return done();
}
