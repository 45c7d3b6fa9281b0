/* SPDX-License-Identifier: MIT */
/*
 * pool.c: one thread per core for all nets of the process. Threads spin for some microseconds, then
 * sleep in a futex, so that an idle pool costs nothing and the database keeps its cores. A thread
 * that computes flushes denormals to zero (FTZ/DAZ) and runs library calls single-threaded.
 *
 * While a thread computes, it handles no signal that can be put off: oneDNN 2.6's dnnl_sgemm has
 * its stack pointer in a small heap block, and the frame of a handler would be written over the
 * heap.
 *
 * Waits here have no deadline of their own: what is waited for is computation of this process,
 * which the pool can neither shorten nor abandon. Deadlines belong to the callers of a step.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "pool.h"

#define POOL_SPIN 1000 /* pauses, 10..60 us by processor */
#define POOL_MAX_THREADS 4096
#define POOL_FTZ_DAZ 0x8040u

/* A counter that others wait on, on a cache line of its own. */
struct pool_gate {
	_Alignas(64) atomic_uint value;
	atomic_uint sleepers;
};

struct pool_thread {
	struct backend_pool *pool;
	pthread_t id;
	unsigned int index;
};

struct backend_pool {
	struct pool_gate start;	  /* + 1 for each run */
	struct pool_gate barrier; /* + 1 for each barrier passed */
	_Alignas(64) atomic_uint arrived;
	atomic_bool quit;
	unsigned int threads;
	pool_fn fn;
	void *arg;
	struct pool_thread *thread; /* threads - 1 of them: the caller is worker 0 */
	unsigned int started;
	/* libgomp keeps the number of threads per calling thread: each sets its own to 1 */
	void (*omp_set)(int);
	int (*omp_get)(void);
	sigset_t block; /* while computing */
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint64_t next_ticket, serving;
};

static inline void pool_pause(void)
{
#if defined(__x86_64__)
	_mm_pause();
#else
	atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void gate_wait(struct pool_gate *gate, unsigned int old)
{
	for (int i = 0; i < POOL_SPIN; i++) {
		if (atomic_load_explicit(&gate->value, memory_order_acquire) != old)
			return;
		pool_pause();
	}
	/* seq_cst against gate_open: either the sleeper sees the new value or the opener sees it */
	atomic_fetch_add(&gate->sleepers, 1);
	while (atomic_load(&gate->value) == old)
		syscall(SYS_futex, &gate->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
	atomic_fetch_sub(&gate->sleepers, 1);
}

static void gate_open(struct pool_gate *gate)
{
	atomic_fetch_add(&gate->value, 1);
	if (atomic_load(&gate->sleepers))
		syscall(SYS_futex, &gate->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void pool_barrier(struct backend_pool *pool)
{
	unsigned int old = atomic_load_explicit(&pool->barrier.value, memory_order_acquire);

	if (pool->threads == 1)
		return;
	if (atomic_fetch_add(&pool->arrived, 1) + 1 == pool->threads) {
		atomic_store(&pool->arrived, 0);
		gate_open(&pool->barrier);
	} else {
		gate_wait(&pool->barrier, old);
	}
}

int pool_enter(const struct backend_pool *pool)
{
	int omp = pool->omp_get ? pool->omp_get() : 0;

	if (pool->omp_set && omp != 1)
		pool->omp_set(1);
	return omp;
}

void pool_leave(const struct backend_pool *pool, int entered)
{
	if (pool->omp_set && entered > 1)
		pool->omp_set(entered);
}

/* One worker's part of a run, with its thread's modes set and put back. */
static void pool_work(struct backend_pool *pool, unsigned int index)
{
	int omp = pool_enter(pool);
#if defined(__x86_64__)
	unsigned int mxcsr = _mm_getcsr();

	_mm_setcsr(mxcsr | POOL_FTZ_DAZ);
#endif
	pool->fn(pool->arg, index);
	pool_leave(pool, omp);
#if defined(__x86_64__)
	_mm_setcsr(mxcsr);
#endif
	pool_barrier(pool);
}

/* All signals but those that the thread itself causes. */
static void pool_signals(sigset_t *set)
{
	static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};

	sigfillset(set);
	for (size_t i = 0; i < sizeof(own) / sizeof(*own); i++)
		sigdelset(set, own[i]);
}

static void *pool_thread(void *arg)
{
	struct pool_thread *self = arg;
	struct backend_pool *pool = self->pool;
	unsigned int seen = 0;

	pthread_sigmask(SIG_BLOCK, &pool->block, NULL);
	if (pool->omp_set)
		pool->omp_set(1);
	for (;;) {
		gate_wait(&pool->start, seen++);
		if (atomic_load(&pool->quit))
			return NULL;
		pool_work(pool, self->index);
	}
}

void pool_run(struct backend_pool *pool, pool_fn fn, void *arg)
{
	sigset_t before;
	uint64_t ticket;

	pthread_mutex_lock(&pool->lock);
	ticket = pool->next_ticket++;
	while (pool->serving != ticket)
		pthread_cond_wait(&pool->turn, &pool->lock);
	pthread_mutex_unlock(&pool->lock);

	pthread_sigmask(SIG_BLOCK, &pool->block, &before);
	pool->fn = fn;
	pool->arg = arg;
	if (pool->threads > 1)
		gate_open(&pool->start);
	pool_work(pool, 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);

	pthread_mutex_lock(&pool->lock);
	pool->serving++;
	pthread_cond_broadcast(&pool->turn);
	pthread_mutex_unlock(&pool->lock);
}

/* Cores this process may use; 1 where the kernel does not tell. */
static unsigned int pool_allowed(void)
{
	unsigned int n = 1;

	for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
		cpu_set_t *set = CPU_ALLOC(cpus);
		size_t size = CPU_ALLOC_SIZE(cpus);
		int rc;

		if (!set)
			break;
		CPU_ZERO_S(size, set);
		rc = sched_getaffinity(0, size, set);
		if (rc == 0)
			n = (unsigned int)CPU_COUNT_S(size, set);
		CPU_FREE(set);
		if (rc == 0 || errno != EINVAL)
			break;
	}
	return n ? n : 1;
}

int backend_pool_create(unsigned int threads, struct backend_pool **out)
{
	struct backend_pool *pool;
	int rc = 0;

	if (!threads)
		threads = pool_allowed();
	if (threads > POOL_MAX_THREADS)
		return -EINVAL;
	pool = aligned_alloc(_Alignof(struct backend_pool), sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	*pool = (struct backend_pool){.threads = threads};
	pool_signals(&pool->block);
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->turn, NULL);
	*(void **)&pool->omp_set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
	*(void **)&pool->omp_get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
	pool->thread = calloc(threads, sizeof(*pool->thread));
	if (!pool->thread)
		rc = -ENOMEM;
	while (!rc && pool->started + 1 < threads) {
		struct pool_thread *t = &pool->thread[pool->started];

		t->pool = pool;
		t->index = pool->started + 1;
		rc = -pthread_create(&t->id, NULL, pool_thread, t);
		if (!rc)
			pool->started++;
	}
	if (rc) {
		backend_pool_free(pool);
		return rc;
	}
	*out = pool;
	return 0;
}

void backend_pool_free(struct backend_pool *pool)
{
	if (!pool)
		return;
	atomic_store(&pool->quit, true);
	gate_open(&pool->start);
	for (unsigned int i = 0; i < pool->started; i++)
		pthread_join(pool->thread[i].id, NULL);
	free(pool->thread);
	pthread_cond_destroy(&pool->turn);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

unsigned int backend_pool_threads(const struct backend_pool *pool)
{
	return pool->threads;
}
