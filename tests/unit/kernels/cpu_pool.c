/* SPDX-License-Identifier: MIT */
/*
 * cpu_pool.c: the thread pool: every worker runs once per run, barriers hold, runs of several
 * callers take turns, workers flush denormals and leave the caller's floating point mode alone.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "../../../kernels/cpu/pool.h"
#include "../../tap.h"

#define RUNS 2000
#define CALLERS 3

struct count {
	struct backend_pool *pool;
	atomic_uint ran, inside, wrong;
	unsigned int before[8]; /* not atomic: the barrier orders it */
	volatile float tiny;
};

static void work(void *arg, unsigned int worker)
{
	struct count *c = arg;
	unsigned int threads = backend_pool_threads(c->pool);

	atomic_fetch_add(&c->ran, 1);
	c->before[worker]++;
	pool_barrier(c->pool);
	for (unsigned int t = 0; t < threads; t++)
		if (c->before[t] != c->before[worker])
			atomic_fetch_add(&c->wrong, 1);
	pool_barrier(c->pool);
	if (c->tiny * 0.5f != 0.0f)
		atomic_fetch_add(&c->wrong, 1);
}

static void *caller(void *arg)
{
	struct count *c = arg;

	for (int i = 0; i < RUNS; i++)
		pool_run(c->pool, work, c);
	return NULL;
}

static void try_pool(unsigned int threads)
{
	struct count c = {.tiny = 0x1p-126f};
	pthread_t id[CALLERS];

	if (backend_pool_create(threads, &c.pool))
		BAIL("no pool");
	is(backend_pool_threads(c.pool), threads, "number of threads");
	for (int i = 0; i < CALLERS; i++)
		if (pthread_create(&id[i], NULL, caller, &c))
			BAIL("no thread");
	for (int i = 0; i < CALLERS; i++)
		pthread_join(id[i], NULL);
	is(c.ran, RUNS * CALLERS * threads, "every worker ran once per run");
	is(c.wrong, 0, "barriers hold, denormals are flushed in workers");
	ok(c.tiny * 0.5f != 0.0f, "the caller's own mode is as it was");
	backend_pool_free(c.pool);
}

/* ---- signals ----------------------------------------------------------------------------- */

static atomic_uint handled, handled_inside;
static atomic_bool busy;

static void handler(int number)
{
	atomic_fetch_add(&handled, 1);
	if (atomic_load(&busy))
		atomic_fetch_add(&handled_inside, 1);
}

static void signal_both(void *arg, unsigned int worker)
{
	if (worker == 0)
		atomic_store(&busy, true);
	pool_barrier(arg);
	pthread_kill(pthread_self(), SIGUSR1);
	pool_barrier(arg);
	if (worker == 0)
		atomic_store(&busy, false);
	pool_barrier(arg);
}

/* A handler's frame on a computing thread would corrupt oneDNN's memory (pool.c). */
static void try_signals(void)
{
	struct sigaction action = {.sa_handler = handler}, before;
	struct backend_pool *pool;

	if (sigaction(SIGUSR1, &action, &before) || backend_pool_create(2, &pool))
		BAIL("no handler, no pool");
	for (int i = 0; i < 100; i++)
		pool_run(pool, signal_both, pool);
	is(handled_inside, 0, "no signal is handled while a run computes");
	ok(handled >= 1, "the caller's are handled after it (%u)", handled);
	backend_pool_free(pool);
	sigaction(SIGUSR1, &before, NULL);
}

int main(void)
{
	struct backend_pool *pool = NULL;

	try_pool(1);
	try_pool(2);
	try_pool(5);
	try_signals();
	is(backend_pool_create(100000, &pool), -22, "too many threads are refused");
	is(backend_pool_create(0, &pool), 0, "one thread per allowed core");
	ok(backend_pool_threads(pool) >= 1, "at least one");
	backend_pool_free(pool);
	backend_pool_free(NULL);
	return done();
}
