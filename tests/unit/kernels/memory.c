/* SPDX-License-Identifier: MIT */
/*
 * memory.c: ref with every allocation of opening and compiling failing in turn: -ENOMEM each time
 * and no block left behind. The allocator is replaced by one that counts; under a sanitizer, which
 * has its own, the same calls run without failures and ASan looks for leaks.
 */
#include "../../tap.h"
#include "cases.h"

static long live, countdown; /* blocks not freed; allocations until one fails (0: none does) */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_memalign(size_t align, size_t n);
extern void __libc_free(void *p);
void *aligned_alloc(size_t align, size_t n);

static bool fails(void)
{
	return countdown > 0 && --countdown == 0;
}

static void *counted(void *p)
{
	live += p != NULL;
	return p;
}

void *malloc(size_t n)
{
	return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
	return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *aligned_alloc(size_t align, size_t n)
{
	return fails() ? NULL : counted(__libc_memalign(align, n));
}

void free(void *p)
{
	live -= p != NULL;
	__libc_free(p);
}
#else
#define COUNTS 0
#endif

static struct build b;

/* Opens and compiles; frees what was made. */
static int once(bool inference)
{
	const struct op_case op = {"residual", case_residual, {0, 0, false}, false};
	struct backend_net_options options = trial_options(&b.graph, &op, 3);
	struct backend *backend = NULL;
	struct backend_net *net = NULL;
	struct backend_error error;
	int rc;

	options.inference = inference;
	options.optimizer.kind = BACKEND_ADAGRAD;
	rc = backend_open("ref", NULL, &backend, &error);
	if (!rc)
		rc = backend_compile(backend, &b.graph, &options, &net, &error);
	backend_net_free(net);
	backend_close(backend);
	return rc;
}

static void every_failure(bool inference)
{
	const char *what = inference ? "inference" : "training";
	long k = 0, at_start;
	int rc = -ENOMEM;

	is(once(inference), 0, what);
	at_start = live;
	for (k = 1; COUNTS && rc == -ENOMEM && k < 10000; k++) {
		countdown = k;
		rc = once(inference);
		if (live != at_start)
			break;
	}
	countdown = 0;
	if (!COUNTS)
		return;
	is(rc, 0, "in the end nothing fails");
	is(live, at_start, "no block is left behind");
	ok(k > 20, "%s: %ld allocations failed in turn", what, k - 2);
}

int main(void)
{
	case_residual(&b);
	if (b_finish(&b))
		BAIL("layout");
	every_failure(false);
	every_failure(true);
	return done();
}
