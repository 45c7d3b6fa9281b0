/* SPDX-License-Identifier: MIT */
/*
 * pinned.c: rows in memory that is pinned for a device are copied from there and give what they
 * give when they are gathered; memory comes and goes while batches are on their way; what is
 * refused.
 */
#include <dlfcn.h>
#include <sys/mman.h>

#include "gpu_trial.h"

#define ROWS 12u
#define SIDE 64u
#define BYTES ((size_t)SIDE * SIDE * 4) /* of a row of i32: BACKEND_PIN_ROW */
#define PAGE 4096u
#define PART (ROWS / 2 * BYTES) /* two blocks, with a page of nobody's between them */

struct rig {
	struct backend *backend;
	struct backend_net *net;
	char *memory[2], *plain;
	const void *x[3][ROWS]; /* in pinned memory, in memory of no kind, in both by turns */
	uint64_t hash[ROWS];
	float target[ROWS * SIDE * SIDE / 64];
	float want[ROWS * SIDE * SIDE / 64], got[ROWS * SIDE * SIDE / 64];
	struct backend_batch batch;
};

static char *map(size_t bytes)
{
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		BAIL("no memory");
	return p;
}

static void fill(struct rig *r, uint64_t seed)
{
	for (uint32_t i = 0; i < ROWS; i++) {
		char *to = r->memory[i & 1] + i / 2 * BYTES + (i & 1 ? 40 : 0);

		for (size_t e = 0; e < BYTES; e += 64)
			memset(to + e, (int)made_up(&seed), 64);
		memcpy(r->plain + i * BYTES, to, BYTES);
		r->hash[i] = i; /* known batches are known by their hashes, too */
		r->x[0][i] = to;
		r->x[1][i] = r->plain + i * BYTES;
		r->x[2][i] = i % 3 ? to : r->plain + i * BYTES;
	}
}

static struct backend_net *compile(struct backend *backend, const struct build *b, uint32_t side)
{
	static const float one = 1e-9f, zero = 0;
	struct backend_net_options options = {.max_batch = ROWS,
					      .input = {.dtype = BACKEND_I32,
							.shape = {side, side, 1},
							.mul = &one,
							.add = &zero,
							.flip = true},
					      .loss = {BACKEND_MSE, 0, false},
					      .optimizer = {.kind = BACKEND_SGD, .epsilon = 1e-7f},
					      .deterministic = true};
	struct backend_error error = {""};
	struct backend_net *net = NULL;

	if (backend_compile(backend, &b->graph, &options, &net, &error))
		BAIL("no net: %s", error.message);
	return net;
}

static struct build *network(uint32_t side)
{
	static struct build b;

	memset(&b, 0, sizeof(b));
	b_pool(&b, b_input(&b, side, side, 1), BACKEND_MAXPOOL, b_valid(8, 8));
	if (b_finish(&b))
		BAIL("no graph");
	return &b;
}

static void open_rig(struct rig *r)
{
	struct backend_error error = {""};

	memset(r, 0, sizeof(*r));
	for (int k = 0; k < 2; k++)
		r->memory[k] = map(PART + PAGE);
	r->plain = map(ROWS * BYTES);
	fill(r, 5);
	if (backend_open(gpu_backend(), NULL, &r->backend, &error))
		BAIL("no device: %s", error.message);
	r->net = compile(r->backend, network(SIDE), SIDE);
	r->batch = (struct backend_batch){
		.n = ROWS, .x = r->x[1], .hash = r->hash, .target = r->target, .seed = 9};
}

static void close_rig(struct rig *r)
{
	backend_net_free(r->net);
	backend_close(r->backend);
	munmap(r->memory[0], PART + PAGE);
	munmap(r->memory[1], PART + PAGE);
	munmap(r->plain, ROWS * BYTES);
}

static void outputs(struct rig *r, int kind, const struct backend_batch *next, float *out)
{
	struct backend_error error = {""};

	r->batch.x = r->x[kind];
	r->batch.next = next;
	if (backend_evaluate(r->net, NULL, NULL, &r->batch, NULL, out, &error))
		BAIL("no outputs: %s", error.message);
}

static bool equal(struct rig *r, int kind)
{
	memset(r->got, 0, sizeof(r->got));
	outputs(r, kind, NULL, r->got);
	return !memcmp(r->got, r->want, sizeof(r->want));
}

/* Copies that the simulated device has made; 0: a real one does not count them. */
static unsigned long long copies(void)
{
	void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
	int (*report)(char *out, size_t size) = NULL;
	unsigned long long n = 0;
	char text[1024], *at;

	if (runtime)
		*(void **)&report = dlsym(runtime, "fakegpu_report");
	if (report && report(text, sizeof(text)) > 0) {
		at = strstr(text, "\"copies\":");
		n = at ? strtoull(at + 9, NULL, 10) : 0;
	}
	if (runtime)
		dlclose(runtime);
	return n;
}

static void try_rows(struct rig *r)
{
	struct backend_error error = {""};
	unsigned long long before = copies(), one;

	outputs(r, 1, NULL, r->want);
	one = copies() - before;
	ok(equal(r, 0), "rows of memory that is not pinned");
	is(backend_host_register(r->backend, r->memory[0], PART, &error), 0,
	   "half of it is pinned");
	ok(equal(r, 0) && equal(r, 1) && equal(r, 2), "  the same from all kinds of memory");
	is(backend_host_register(r->backend, r->memory[1], PART + PAGE, &error), 0,
	   "all of it is pinned");
	ok(equal(r, 0) && equal(r, 2), "  the same again");
	before = copies();
	equal(r, 0);
	if (before)
		is(copies() - before, one + ROWS - 1, "  each row is copied from where it lies");
	else
		ok(true, "  # SKIP no GPU that counts its copies");
	fill(r, 6);
	outputs(r, 1, NULL, r->want);
	ok(equal(r, 0), "  other rows in the same place");
}

static void pin(struct rig *r)
{
	struct backend_error error = {""};

	for (int k = 0; k < 2; k++)
		if (backend_host_register(r->backend, r->memory[k], PART + PAGE, &error))
			BAIL("not pinned: %s", error.message);
}

static void unpin(struct rig *r)
{
	for (int k = 0; k < 2; k++)
		backend_host_unregister(r->backend, r->memory[k]);
}

/* A batch is on its way when its memory goes, and other rows come to lie there. */
static void try_ahead(struct rig *r)
{
	struct backend_batch next = r->batch;
	bool same = true;

	next.x = r->x[0];
	fill(r, 7);
	outputs(r, 1, NULL, r->want);
	unpin(r);
	for (int round = 0; round < 48; round++) {
		pin(r);
		fill(r, 6);
		outputs(r, 1, &next, r->got);
		unpin(r);
		fill(r, 7);
		same &= equal(r, 0);
	}
	ok(same, "memory that goes while a batch is on its way");
	unpin(r);
	ok(equal(r, 0), "  twice is nothing");
}

static void try_refused(struct rig *r)
{
	struct backend_error error = {""};
	struct backend *other = NULL;
	struct backend_net *net;

	is(backend_host_register(r->backend, r->memory[0], PART, &error), 0, "pinned");
	is(backend_host_register(r->backend, r->memory[0] + PAGE, PART, &error), -EEXIST,
	   "a block across it is refused");
	if (backend_open(gpu_backend(), NULL, &other, &error))
		BAIL("no device: %s", error.message);
	is(backend_host_register(other, r->memory[0], PART, &error), 0, "another is told of it");
	backend_host_unregister(other, r->memory[0]);
	ok(equal(r, 0), "  and of its end");
	backend_host_unregister(r->backend, r->memory[0]);
	is(backend_host_register(r->backend, NULL, PART, &error), -EINVAL, "nothing to pin");
	net = compile(other, network(8), 8);
	is(backend_host_register(other, r->memory[0], PART, &error), -EOPNOTSUPP,
	   "small rows: no use");
	backend_net_free(net);
	backend_close(other);
	if (!backend_resident(r->net, r->x[0], ROWS, &error)) {
		is(backend_host_register(r->backend, r->memory[0], PART, &error), -EOPNOTSUPP,
		   "rows that the device keeps: no use");
		backend_resident(r->net, NULL, 0, &error);
	}
	if (backend_open("ref", NULL, &other, &error))
		BAIL("no ref: %s", error.message);
	is(backend_host_register(other, r->memory[0], PART, &error), -EOPNOTSUPP, "ref: no use");
	backend_host_unregister(other, r->memory[0]);
	ok(!backend_lost(other) && !backend_lost(r->backend), "nobody is lost");
	backend_close(other);
	/* the end of a back end is that of its pins */
	is(backend_host_register(r->backend, r->memory[1], PART, &error), 0,
	   "pinned until the end");
}

int main(void)
{
	static struct rig r;

	gpu_needed();
	open_rig(&r);
	try_rows(&r);
	try_ahead(&r);
	try_refused(&r);
	close_rig(&r);
	return done();
}
