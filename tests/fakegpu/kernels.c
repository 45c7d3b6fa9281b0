// SPDX-License-Identifier: MIT
/*
 * kernels.c: runs the host build of the kernels. A kernel without barriers is a loop over blocks
 * and threads; one with barriers or shuffles runs every thread of a block as a fibre. Only the
 * executor thread runs kernels, so the index variables are plain globals.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fakegpu_kernel.h"

#ifndef __x86_64__
#include <ucontext.h>
#endif

#define KERNELS_MAX 2048
#define THREADS_MAX 1024
#define STACK (128u << 10)
#define WARP 32

static struct kernel {
	const char *name;
	fakegpu_thunk run;
	size_t bytes;
	bool sync;
	uint64_t runs;
} kernel[KERNELS_MAX];
static int n_kernels;

struct fakegpu_index fakegpu_thread, fakegpu_block, fakegpu_block_dim, fakegpu_grid_dim;

void fakegpu_register(const char *name, fakegpu_thunk run, size_t bytes, int sync)
{
	for (int i = 0; i < n_kernels; i++)
		if (!strcmp(kernel[i].name, name))
			return;
	if (n_kernels == KERNELS_MAX)
		abort();
	kernel[n_kernels++] =
		(struct kernel){.name = name, .run = run, .bytes = bytes, .sync = sync != 0};
}

int fakegpu_kernel_runs(int i, const char **name, uint64_t *runs)
{
	if (i < 0 || i >= n_kernels)
		return -1;
	*name = kernel[i].name;
	*runs = kernel[i].runs;
	return 0;
}

static void load(void)
{
	const char *path = getenv("FAKEGPU_KERNELS");

	if (!path || !*path) {
		fprintf(stderr, "fakegpu: FAKEGPU_KERNELS names no host build of the kernels\n");
		abort();
	}
	if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
		fprintf(stderr, "fakegpu: %s\n", dlerror());
		abort();
	}
}

static struct kernel *find(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
	for (int i = 0; i < n_kernels; i++)
		if (!strcmp(kernel[i].name, name))
			return &kernel[i];
	fprintf(stderr, "fakegpu: the host build has no kernel '%s'\n", name);
	abort();
}

/* ---- fibres ---- */

enum state { READY, BARRIER, SHUFFLE, DONE };

struct fibre {
	enum state state;
	uint64_t value; /* of a shuffle */
	unsigned int mask;
	char *stack;
#ifdef __x86_64__
	void *sp;
#else
	ucontext_t context;
#endif
};

static struct fibre fibre[THREADS_MAX];
static unsigned int n_fibres, current;
static fakegpu_thunk body;
static const void *body_args;

#ifdef __x86_64__
static void *main_sp;
void fakegpu_switch(void **from, void *to);
__asm__(".text\n.globl fakegpu_switch\n.hidden fakegpu_switch\n"
	".type fakegpu_switch,@function\nfakegpu_switch:\n"
	"\tpushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n"
	"\tmovq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n"
	"\tpopq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret\n"
	".size fakegpu_switch, . - fakegpu_switch\n");
#define TO_FIBRE(f) fakegpu_switch(&main_sp, (f)->sp)
#define TO_MAIN(f) fakegpu_switch(&(f)->sp, main_sp)
#else
static ucontext_t main_context;
#define TO_FIBRE(f) swapcontext(&main_context, &(f)->context)
#define TO_MAIN(f) swapcontext(&(f)->context, &main_context)
#endif

static void fibre_main(void)
{
	body(body_args);
	fibre[current].state = DONE;
	TO_MAIN(&fibre[current]);
	abort();
}

static void fibre_prepare(struct fibre *f)
{
	if (!f->stack) {
		f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (f->stack == MAP_FAILED)
			abort();
	}
	f->state = READY;
#ifdef __x86_64__
	void **sp = (void **)(f->stack + STACK);

	*--sp = NULL;
	*--sp = (void *)(uintptr_t)fibre_main;
	for (int i = 0; i < 6; i++)
		*--sp = NULL;
	f->sp = sp;
#else
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = f->stack;
	f->context.uc_stack.ss_size = STACK;
	f->context.uc_link = NULL;
	makecontext(&f->context, fibre_main, 0);
#endif
}

static void resume(unsigned int i)
{
	current = i;
	fakegpu_thread.x = i;
	TO_FIBRE(&fibre[i]);
}

void fakegpu_barrier(void)
{
	struct fibre *f = &fibre[current];

	if (!n_fibres) {
		fake_violation("a barrier in a kernel that was declared without");
		return;
	}
	f->state = BARRIER;
	TO_MAIN(f);
}

/* value: 4 or 8 bytes; the lane's own is replaced by that of lane ^ mask. */
void fakegpu_shuffle(void *value, size_t bytes, unsigned int mask)
{
	struct fibre *f = &fibre[current];

	if (!n_fibres) {
		fake_violation("a shuffle in a kernel that was declared without");
		return;
	}
	f->value = 0;
	memcpy(&f->value, value, bytes);
	f->mask = mask;
	f->state = SHUFFLE;
	TO_MAIN(f);
	memcpy(value, &f->value, bytes);
}

/* All lanes of the warp have come: they exchange. */
static void shuffle_warp(unsigned int first)
{
	uint64_t value[WARP];

	for (unsigned int i = 0; i < WARP; i++) {
		if (fibre[first + i].mask != fibre[first].mask)
			fake_violation("lanes of a warp shuffle by different masks");
		value[i] = fibre[first + i].value;
	}
	for (unsigned int i = 0; i < WARP; i++) {
		fibre[first + i].value = value[i ^ (fibre[first].mask & (WARP - 1))];
		fibre[first + i].state = READY;
	}
}

static bool settle(const char *name)
{
	unsigned int waiting = 0, done = 0;

	for (unsigned int i = 0; i < n_fibres; i += WARP) {
		unsigned int at = 0, gone = 0;

		for (unsigned int k = i; k < i + WARP; k++) {
			at += fibre[k].state == SHUFFLE;
			gone += fibre[k].state == DONE;
			waiting += fibre[k].state == BARRIER;
			done += fibre[k].state == DONE;
		}
		if (at == WARP) {
			shuffle_warp(i);
		} else if (at && at + gone == WARP) {
			fake_violation("%s: a shuffle of a whole warp, of which %u threads have "
				       "ended",
				       name, gone);
			return false;
		}
	}
	if (waiting == n_fibres) {
		for (unsigned int i = 0; i < n_fibres; i++)
			fibre[i].state = READY;
	} else if (waiting && waiting + done == n_fibres) {
		fake_violation("%s: a barrier that %u of %u threads never reach", name, done,
			       n_fibres);
		return false;
	}
	return true;
}

static bool run_fibres(struct kernel *k, unsigned int threads)
{
	bool more = true, moved;

	n_fibres = threads;
	body = k->run;
	for (unsigned int i = 0; i < threads; i++)
		fibre_prepare(&fibre[i]);
	while (more) {
		more = moved = false;
		for (unsigned int i = 0; i < threads; i++)
			if (fibre[i].state == READY) {
				resume(i);
				moved = true;
			}
		for (unsigned int i = 0; i < threads; i++)
			more |= fibre[i].state != DONE;
		if (more && !settle(k->name))
			break;
		if (more && !moved) {
			fake_violation("%s: threads wait for each other at different places",
				       k->name);
			break;
		}
	}
	n_fibres = 0;
	return !more;
}

/* ---- launches ---- */

struct launch {
	struct kernel *kernel;
	dim3 grid, block;
	_Alignas(16) unsigned char args[];
};

static bool run_block(struct kernel *k, const struct launch *l)
{
	if (k->sync)
		return run_fibres(k, l->block.x);
	for (unsigned int t = 0; t < l->block.x; t++) {
		fakegpu_thread.x = t;
		k->run(l->args);
	}
	return true;
}

static cudaError_t run_kernel(struct fake_op *op)
{
	struct launch *l = (struct launch *)op->data;
	uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z, b;
	bool backwards, good = true;

	pthread_mutex_lock(&fake.lock);
	backwards = fake_random() & 1;
	fake.kernels++;
	pthread_mutex_unlock(&fake.lock);
	l->kernel->runs++;
	body_args = l->args;
	fakegpu_block_dim = (struct fakegpu_index){l->block.x, 1, 1};
	fakegpu_grid_dim = (struct fakegpu_index){l->grid.x, l->grid.y, l->grid.z};
	fakegpu_thread = (struct fakegpu_index){0, 0, 0};
	for (uint64_t i = 0; i < blocks && good; i++) {
		b = backwards ? blocks - 1 - i : i;
		fakegpu_block.x = (unsigned int)(b % l->grid.x);
		fakegpu_block.y = (unsigned int)(b / l->grid.x % l->grid.y);
		fakegpu_block.z = (unsigned int)(b / l->grid.x / l->grid.y);
		good = run_block(l->kernel, l);
	}
	return good ? cudaSuccess : cudaErrorLaunchFailure;
}

static bool never(struct fake_op *op)
{
	(void)op;
	return false;
}

static cudaError_t check(const char *name, dim3 grid, dim3 block, size_t shared)
{
	if (block.x == 0 || block.x % WARP || block.x > 512 || block.y != 1 || block.z != 1 ||
	    shared) {
		fake_violation("%s: %u x %u x %u threads with %zu bytes of shared memory", name,
			       block.x, block.y, block.z, shared);
		return cudaErrorInvalidConfiguration;
	}
	if (!grid.x || !grid.y || !grid.z || grid.x > 0x7fffffffu || grid.y > 65535 ||
	    grid.z > 65535)
		return cudaErrorInvalidConfiguration;
	return cudaSuccess;
}

cudaError_t fake_launch(const char *name, dim3 grid, dim3 block, void **args, size_t shared,
			cudaStream_t stream)
{
	struct kernel *k = find(name);
	cudaError_t rc = check(name, grid, block, shared);
	char fault_name[96];
	enum fake_fault f = fake_fault("kernel");
	struct launch *l;

	if (rc)
		return rc;
	snprintf(fault_name, sizeof(fault_name), "kernel.%s", name);
	if (!f)
		f = fake_fault(fault_name);
	if (f == FAKE_ILLEGAL)
		return fake_break(fake_stream_device(stream, name), cudaErrorIllegalAddress);
	if (f == FAKE_ERROR)
		return cudaErrorLaunchFailure;
	l = calloc(1, sizeof(*l) + k->bytes);
	if (!l)
		return cudaErrorMemoryAllocation;
	l->kernel = k;
	l->grid = grid;
	l->block = block;
	memcpy(l->args, args[0], k->bytes);
	rc = fake_submit(stream, name, run_kernel, f == FAKE_HANG ? never : NULL, NULL, l,
			 sizeof(*l) + k->bytes);
	free(l);
	return rc;
}
