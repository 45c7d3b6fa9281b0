/* SPDX-License-Identifier: MIT */
/* cpu.c: the cpu back end's table: opening, compiling, memory of a net. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cpu.h"
#include "wino.h"

#define HUGE_PAGE (2ull << 20)

static void cpu_close(struct backend *base)
{
	struct cpu_backend *backend = (struct cpu_backend *)base;

	if (backend->engine)
		dnnl_engine_destroy(backend->engine);
	if (backend->own_pool)
		backend_pool_free(backend->pool);
	free(backend);
}

static int cpu_open(const struct backend_options *options, struct backend **out,
		    struct backend_error *error)
{
	struct cpu_backend *backend = calloc(1, sizeof(*backend));
	const dnnl_version_t *version = dnnl_version();
	/* for hosts that are to agree bit for bit, and for tests; oneDNN has ONEDNN_MAX_CPU_ISA */
	const char *isa = getenv("CNN_CPU_ISA");
	int rc = 0;

	if (!backend)
		return backend_fail(error, -ENOMEM, "no memory for the back end");
	backend->pool = options->pool;
	if (!backend->pool) {
		rc = backend_pool_create(1, &backend->pool);
		backend->own_pool = !rc;
	}
	if (!rc)
		rc = dnn_rc(dnnl_engine_create(&backend->engine, dnnl_cpu, 0));
	if (rc) {
		backend_fail(error, rc, "cannot start oneDNN (%d)", rc);
		cpu_close(&backend->base);
		return rc;
	}
	backend->loops = cpu_loops_best(isa);
	if (!strcmp(backend->loops->isa, "avx512"))
		backend->wino = wino_loops_best();
	snprintf(backend->base.info, sizeof(backend->base.info),
		 "oneDNN %d.%d.%d (isa %#x), own loops %s, %u threads", version->major,
		 version->minor, version->patch, (unsigned int)dnnl_get_effective_cpu_isa(),
		 backend->loops->isa, backend_pool_threads(backend->pool));
	*out = &backend->base;
	return 0;
}

/* ---- memory of a net --------------------------------------------------------------------- */

/* Hands out pieces of the one mapping; with base NULL it only counts. */
struct carve {
	char *base;
	uint64_t used;
};

static float *carve(struct carve *c, uint64_t floats)
{
	float *p = c->base ? (float *)(c->base + c->used) : NULL;

	/* a line more, so that vector loops may end past the last row, and 4 KB sets differ */
	c->used += (floats * sizeof(float) + 2 * BACKEND_ALIGN - 1) / BACKEND_ALIGN * BACKEND_ALIGN;
	return p;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static void net_carve(struct cpu_net *net, struct carve *c)
{
	int arenas = net->base.options.inference ? BACKEND_STAT : BACKEND_SLOT;

	for (int a = 0; a <= arenas; a++)
		net->base.arena[a] = carve(c, backend_net_floats(&net->base, a));
	net->memory = carve(c, larger(net->train.shared_floats, net->eval.shared_floats));
	net->train.packed = carve(c, net->train.packed_floats);
	net->eval.packed = carve(c, net->eval.packed_floats);
	for (uint32_t t = 0; t < net->workers; t++) {
		struct cpu_worker *w = &net->worker[t];

		w->local = carve(c, larger(net->train.local_floats, net->eval.local_floats));
		w->sum = carve(c, larger(net->train.sum_floats, net->eval.sum_floats));
		w->scratch = carve(c, larger(net->train.scratch_floats, net->eval.scratch_floats));
		c->used = (c->used + 4095) / 4096 * 4096; /* workers on pages of their own */
	}
}

/* One mapping on huge pages, in no core dump and in no child. */
static int net_map(struct cpu_net *net)
{
	struct carve c = {0};
	uint64_t bytes;
	char *map, *at;

	net_carve(net, &c);
	bytes = (c.used + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	map = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0);
	if (map == MAP_FAILED)
		return -ENOMEM;
	at = (char *)(((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	if (at > map)
		munmap(map, (size_t)(at - map));
	if (at + bytes < map + bytes + HUGE_PAGE)
		munmap(at + bytes, (size_t)(map + HUGE_PAGE - at));
	/* advice only: each may be unknown to the kernel */
	madvise(at, bytes, MADV_HUGEPAGE);
	madvise(at, bytes, MADV_DONTDUMP);
	madvise(at, bytes, MADV_DONTFORK);
	net->arena = at;
	net->arena_bytes = bytes;
	c = (struct carve){.base = at};
	net_carve(net, &c);
	return 0;
}

static void cpu_free(struct backend_net *base)
{
	struct cpu_net *net = (struct cpu_net *)base;

	cpu_plan_free(&net->train);
	cpu_plan_free(&net->eval);
	for (uint32_t t = 0; net->worker && t < net->workers; t++)
		if (net->worker[t].stream)
			dnnl_stream_destroy(net->worker[t].stream);
	free(net->worker);
	free(net->table);
	cpu_apply_free(net->apply);
	if (net->arena)
		munmap(net->arena, net->arena_bytes);
	backend_net_fini(base);
	free(net);
}

static int net_workers(struct cpu_net *net)
{
	net->workers = backend_pool_threads(net->backend->pool);
	net->worker = aligned_alloc(64, net->workers * sizeof(*net->worker));
	if (!net->worker)
		return -ENOMEM;
	memset(net->worker, 0, net->workers * sizeof(*net->worker));
	for (uint32_t t = 0; t < net->workers; t++) {
		int rc = dnn_rc(dnnl_stream_create(&net->worker[t].stream, net->backend->engine,
						   dnnl_stream_default_flags));

		if (rc)
			return rc;
		net->worker[t].net = net;
		net->worker[t].index = t;
		net->worker[t].count = net->workers;
	}
	return 0;
}

/* Everything but the memory; net->base.bytes tells how much that will be. */
static int net_plan(struct cpu_backend *backend, const struct backend_graph *graph,
		    const struct backend_net_options *options, struct cpu_net **out,
		    struct backend_error *error)
{
	struct cpu_net *net = aligned_alloc(64, (sizeof(*net) + 63) / 64 * 64);
	struct carve c = {0};
	int rc, entered;

	if (!net)
		return backend_fail(error, -ENOMEM, "no memory for the net");
	memset(net, 0, sizeof(*net));
	rc = backend_net_init(&net->base, &backend->base, graph, options, error);
	if (rc) {
		free(net);
		return rc;
	}
	net->backend = backend;
	net->version = 1;
	net->train.training = true;
	entered = pool_enter(backend->pool);
	rc = loss_plan(&net->base.graph, &options->loss, &net->loss, error);
	if (!rc && net_workers(net))
		rc = backend_fail(error, -ENOMEM, "no memory for the net");
	if (!rc && !options->inference)
		rc = cpu_lower(net, &net->train, error);
	if (!rc && !options->inference)
		rc = cpu_plan_finish(net, &net->train, error);
	if (!rc)
		rc = cpu_lower(net, &net->eval, error);
	if (!rc)
		rc = cpu_plan_finish(net, &net->eval, error);
	pool_leave(backend->pool, entered);
	if (rc) {
		cpu_free(&net->base);
		return rc;
	}
	net_carve(net, &c);
	net->base.bytes = (c.used + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	*out = net;
	return 0;
}

static int cpu_estimate(struct backend *base, const struct backend_graph *graph,
			const struct backend_net_options *options, uint64_t *bytes)
{
	struct cpu_net *net;
	int rc = net_plan((struct cpu_backend *)base, graph, options, &net, NULL);

	if (rc)
		return rc;
	*bytes = net->base.bytes;
	cpu_free(&net->base);
	return 0;
}

static int cpu_compile(struct backend *base, const struct backend_graph *graph,
		       const struct backend_net_options *options, struct backend_net **out,
		       struct backend_error *error)
{
	struct cpu_net *net;
	int rc = net_plan((struct cpu_backend *)base, graph, options, &net, error);

	if (rc)
		return rc;
	if (net_map(net))
		rc = backend_fail(error, -ENOMEM, "no memory for a batch of %u rows: %llu MB",
				  options->max_batch, (unsigned long long)(net->base.bytes >> 20));
	if (!rc && cpu_input_table(net))
		rc = backend_fail(error, -ENOMEM, "no memory for the input scaling");
	if (!rc && !options->inference) {
		net->apply = cpu_apply_create(net);
		if (!net->apply)
			rc = backend_fail(error, -ENOMEM, "no memory for the optimizer");
	}
	if (!rc && (cpu_plan_bind(net, &net->train) || cpu_plan_bind(net, &net->eval)))
		rc = backend_fail(error, -ENOMEM, "no memory for the net");
	if (rc) {
		cpu_free(&net->base);
		return rc;
	}
	if (!options->inference)
		backend_net_init_slots(&net->base, net->base.arena[BACKEND_SLOT]);
	*out = &net->base;
	return 0;
}

/* ---- calls ------------------------------------------------------------------------------- */

static int cpu_write(struct backend_net *base, enum backend_arena arena, uint64_t offset,
		     uint64_t n, const float *source)
{
	struct cpu_net *net = (struct cpu_net *)base;

	memcpy(base->arena[arena] + offset, source, n * sizeof(float));
	if (arena == BACKEND_PARAM)
		net->version++;
	return 0;
}

static void cpu_touch(struct backend_net *base, enum backend_arena arena)
{
	if (arena == BACKEND_PARAM)
		((struct cpu_net *)base)->version++;
}

static int net_run(struct cpu_net *net, struct cpu_plan *plan, struct backend_sums *sums,
		   struct backend_error *error)
{
	bool own = net->run.param == net->base.arena[BACKEND_PARAM];
	int rc;

	net->run.plan = plan;
	if (!own)
		plan->packed_version = 0;
	rc = cpu_exec(net, sums);
	if (net->run.batch->n)
		plan->packed_version = own && !rc ? net->version : 0;
	return rc ? backend_fail(error, rc, "the pass over the network failed (%d)", rc) : 0;
}

static int cpu_gradient(struct backend_net *base, const struct backend_batch *batch, float scale,
			bool accumulate, backend_bucket_fn on_bucket, void *context,
			struct backend_sums *sums, float *outputs, struct backend_error *error)
{
	struct cpu_net *net = (struct cpu_net *)base;

	net->run = (struct cpu_run){
		.batch = batch,
		.param = base->arena[BACKEND_PARAM],
		.stat = base->arena[BACKEND_STAT],
		.stat_out = base->arena[BACKEND_STAT],
		.want_loss = true,
		.accumulate = accumulate,
		.scale = scale,
		.outputs = outputs,
		.on_bucket = on_bucket,
		.context = context,
	};
	return net_run(net, &net->train, sums, error);
}

static int cpu_evaluate(struct backend_net *base, const float *param, const float *stat,
			const struct backend_batch *batch, struct backend_sums *sums,
			float *outputs, struct backend_error *error)
{
	struct cpu_net *net = (struct cpu_net *)base;

	net->run = (struct cpu_run){
		.batch = batch,
		.param = param ? param : base->arena[BACKEND_PARAM],
		.stat = stat ? stat : base->arena[BACKEND_STAT],
		.want_loss = sums != NULL,
		.outputs = outputs,
	};
	return net_run(net, &net->eval, sums, error);
}

const struct backend_ops backend_cpu_ops = {
	.version = BACKEND_OPS_VERSION,
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.estimate = cpu_estimate,
	.compile = cpu_compile,
	.free = cpu_free,
	.write = cpu_write,
	.touch = cpu_touch,
	.gradient = cpu_gradient,
	.apply = cpu_apply,
	.evaluate = cpu_evaluate,
};
