/* SPDX-License-Identifier: MIT */
/*
 * net.c: makes and frees a net. All sizes are known from the plan before anything is allocated, so
 * the estimate is exact; device memory is one block (and the gradient arena, which may come from
 * the caller's allocator), pinned memory another.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

#define ALIGN 256ull
#define BOUNCE (4ull << 20)
#define CONV_WORKSPACE_MAX (256ull << 20)
#define REGIONS_MAX 40

static uint64_t align(uint64_t bytes)
{
	return (bytes + ALIGN - 1) & ~(ALIGN - 1);
}

/* ---- regions -------------------------------------------------------------------------------- */

/* A part of one of the two blocks of memory. */
struct region {
	void *place; /* a pointer of whatever type */
	uint64_t bytes;
};

static void region(struct region *list, uint32_t *n, void *place, uint64_t bytes)
{
	list[(*n)++] = (struct region){place, align(bytes)};
}

static uint64_t sum_of(const struct region *r, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += r[i].bytes;
	return sum;
}

static uint64_t rescale_bytes(const struct cuda_net *net)
{
	uint64_t floats = 0;

	for (uint32_t i = 0; i < net->base.graph.n_nodes; i++)
		if (net_node(net, i)->op == BACKEND_RESCALE)
			floats +=
				align(2 * net_node(net, i)->out.c * sizeof(float)) / sizeof(float);
	return floats * sizeof(float);
}

/* The first *cleared bytes begin as zeros; nothing reads the others before they are written. */
static uint32_t device_regions(struct cuda_net *net, struct region *r, uint64_t *cleared)
{
	uint64_t param = net->base.graph.param_floats * sizeof(float);
	uint64_t stat = net->base.graph.stat_floats * sizeof(float), batch;
	uint64_t packed = net->packed_elements * net->plan.element;
	struct update_args *u = &net->update;
	uint32_t n = 0;

	batch = net->base.options.max_batch;
	region(r, &n, &net->arena[BACKEND_PARAM], param);
	region(r, &n, &net->arena[BACKEND_STAT], stat);
	region(r, &n, &net->arena[BACKEND_SLOT], param * net->base.n_slots);
	region(r, &n, &net->own.packed, packed);
	region(r, &n, (void *)&net->other.param, param);
	region(r, &n, &net->other.stat, stat);
	region(r, &n, &net->other.packed, packed);
	region(r, &n, &net->device_result, sizeof(*net->device_result));
	*cleared = sum_of(r, n);
	region(r, &n, &net->tiles, net->n_tiles * sizeof(*net->tiles));
	region(r, &n, &net->values, net->plan.value_bytes);
	region(r, &n, &net->scratch, net->scratch_bytes);
	region(r, &n, &net->workspace, net->workspace_bytes);
	region(r, &n, &net->input_scaling, 2 * net->base.options.input.shape.c * sizeof(float));
	region(r, &n, &net->rescale_table, rescale_bytes(net));
	region(r, &n, &net->outputs, batch * net->base.outputs * sizeof(float));
	region(r, &n, &net->row_loss, batch * sizeof(double));
	region(r, &n, &net->device_block, sizeof(*net->device_block));
	region(r, &n, (void *)&u->chunk, u->chunks * sizeof(*u->chunk));
	region(r, &n, (void *)&u->tensor, u->tensors * sizeof(*u->tensor));
	region(r, &n, &u->partial, u->chunks * sizeof(*u->partial));
	region(r, &n, &u->norm2, u->tensors * sizeof(*u->norm2));
	region(r, &n, &u->factor, u->tensors * sizeof(*u->factor));
	for (int i = 0; i < SLOTS; i++)
		region(r, &n, &net->slot[i].device, stage_bytes(net));
	return n;
}

static uint32_t pinned_regions(struct cuda_net *net, struct region *r)
{
	uint32_t n = 0;

	region(r, &n, &net->block, sizeof(*net->block));
	region(r, &n, &net->result, sizeof(*net->result));
	region(r, &n, &net->host_outputs,
	       net->base.options.max_batch * net->base.outputs * sizeof(float));
	region(r, &n, &net->bounce, net->bounce_bytes);
	for (int i = 0; i < SLOTS; i++)
		region(r, &n, &net->slot[i].host, stage_bytes(net));
	return n;
}

/* Parts without bytes have no place. */
static void hand_out(const struct region *r, uint32_t n, char *memory)
{
	for (uint32_t i = 0; i < n; i++) {
		void *at = r[i].bytes ? memory : NULL;

		memcpy(r[i].place, &at, sizeof(at));
		memory += r[i].bytes;
	}
}

static uint64_t gradient_bytes(const struct cuda_net *net)
{
	return net->plan.training ? align(net->base.graph.param_floats * sizeof(float)) : 0;
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static uint64_t scratch_of(const struct cuda_net *net, const struct group *g)
{
	const struct backend_node *node = net_node(net, g->node);
	uint32_t n = net->base.options.max_batch;
	uint64_t bytes = 0, more = 0;

	switch (g->kind) {
	case GROUP_CONV:
		more = conv_scratch(net, node, n);
		bytes = linear_scratch(net, node, n);
		break;
	case GROUP_DEPTHWISE:
		more = depthwise_scratch(net, node, n);
		bytes = linear_scratch(net, node, n);
		break;
	case GROUP_DENSE:
		return linear_scratch(net, node, n);
	case GROUP_NORM:
		return norm_scratch(net, node, n);
	default:
		break;
	}
	return more > bytes ? more : bytes;
}

static void size_scratch(struct cuda_net *net)
{
	for (uint32_t i = 0; i < net->plan.n_groups; i++) {
		uint64_t bytes = scratch_of(net, &net->plan.group[i]);

		if (bytes > net->scratch_bytes)
			net->scratch_bytes = bytes;
	}
}

/* What the algorithms that are chosen for a full batch want. */
static int size_workspace(struct cuda_net *net, struct backend_error *error)
{
	struct shape *shape = NULL;
	int rc;

	net->workspace_limit = CONV_WORKSPACE_MAX;
	rc = shape_make(net, net->base.options.max_batch, false, &shape, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < net->plan.n_groups; i++) {
		if (net->plan.group[i].kind == GROUP_DENSE &&
		    net->workspace_bytes < dense_workspace(net->gpu))
			net->workspace_bytes = dense_workspace(net->gpu);
		for (int d = 0; d < DIRECTIONS; d++)
			if (shape->conv[i].algorithm[d].workspace > net->workspace_bytes)
				net->workspace_bytes = shape->conv[i].algorithm[d].workspace;
	}
	net->workspace_limit = net->workspace_bytes;
	shape_free(net, shape);
	return 0;
}

/* Everything that can be known before memory is taken. Undone by cuda_free. */
static int prepare(struct cuda_net *net, struct backend *backend, const struct backend_graph *graph,
		   const struct backend_net_options *options, struct pack_tile **tile,
		   struct backend_error *error)
{
	struct plan_options p = {.max_batch = options->max_batch,
				 .training = !options->inference,
				 .fuse = !(backend->options.flags & BACKEND_NO_FUSION)};
	uint64_t bucket = backend->options.bucket_bytes ? backend->options.bucket_bytes : 4u << 20;
	const struct backend_input *in = &options->input;
	int rc;

	net->gpu = (struct cuda_backend *)backend;
	rc = backend_net_init(&net->base, backend, graph, options, error);
	if (rc)
		return rc;
	net->ready = true;
	p.element = net->gpu->type == CUDA_T_F32 ? 4 : 2;
	p.bucket_floats = bucket / sizeof(float);
	rc = plan_make(&net->base.graph, &options->loss, &p, &net->plan, error);
	if (rc)
		return rc;
	net->pitch =
		(backend_shape_count(in->shape) * backend_dtype_bytes(in->dtype) + 15) & ~15ull;
	net->bounce_bytes = BOUNCE;
	net->loss_scale = backend->options.precision == BACKEND_PRECISION_F16 ? SCALE_START : 1.0f;
	rc = packed_plan(net, tile, error);
	if (rc)
		return rc;
	tables_count(net);
	rc = cuda_enter(net->gpu, error);
	if (!rc)
		rc = conv_prepare(net, error);
	if (!rc)
		rc = size_workspace(net, error);
	if (!rc)
		size_scratch(net);
	return rc;
}

/* What lies on a hung device goes with its context, when the back end is closed: a call that frees
 * something would wait for ever. */
static void abandon(struct cuda_net *net)
{
	for (int i = 0; i < SLOTS; i++)
		free(net->slot[i].x);
	net->gpu->bytes -= net->memory_bytes + net->resident_bytes;
	for (uint32_t i = 0; i < SHAPES_MAX; i++)
		shape_free(net, net->shape[i]);
	shape_free(net, net->no_rows);
	conv_release(net);
}

static void release(struct cuda_net *net)
{
	cudaSetDevice(net->gpu->device); /* current, though it may tell an old error */
	for (uint32_t i = 0; i < SHAPES_MAX; i++)
		shape_free(net, net->shape[i]);
	shape_free(net, net->no_rows);
	conv_release(net);
	for (uint32_t i = 0; net->bucket_ready && i < net->plan.n_buckets; i++)
		if (net->bucket_ready[i])
			cudaEventDestroy(net->bucket_ready[i]);
	for (int i = 0; i < SLOTS; i++) {
		if (net->slot[i].ready)
			cudaEventDestroy(net->slot[i].ready);
		free(net->slot[i].x);
	}
	if (net->done)
		cudaEventDestroy(net->done);
	if (net->copy)
		cudaStreamDestroy(net->copy);
	if (net->stream)
		cudaStreamDestroy(net->stream);
	cuda_release(net->gpu, net->memory, net->memory_bytes);
	cuda_release(net->gpu, net->resident, net->resident_bytes);
	if (net->grad_foreign && net->arena[BACKEND_GRAD])
		net->gpu->base.options.release(net->gpu->base.options.alloc_context,
					       net->arena[BACKEND_GRAD]);
	else
		cuda_release(net->gpu, net->arena[BACKEND_GRAD], gradient_bytes(net));
	if (net->pinned)
		cudaFreeHost(net->pinned);
	cudaGetLastError();
}

/* Nothing may be freed under the device's hands. */
static void drain(struct cuda_net *net)
{
	if (net->gpu->lost || !net->done || cuda_enter(net->gpu, NULL))
		return;
	if (!cudaEventRecord(net->done, net->stream))
		cuda_wait(net->gpu, net->done, "the end of a net", NULL);
	if (!net->gpu->lost && !cudaEventRecord(net->done, net->copy))
		cuda_wait(net->gpu, net->done, "the end of a net", NULL);
}

void cuda_free(struct backend_net *base)
{
	struct cuda_net *net = (struct cuda_net *)base;

	if (net->listed)
		LIST_REMOVE(net, of_gpu);
	if (net->ready) {
		drain(net);
		if (net->gpu->hung)
			abandon(net);
		else
			release(net);
		free(net->bucket_ready);
		free(net->packed_at);
		free(net->rescale);
		plan_free(&net->plan);
		backend_net_fini(&net->base);
	}
	free(net);
}

int cuda_estimate(struct backend *backend, const struct backend_graph *graph,
		  const struct backend_net_options *options, uint64_t *bytes)
{
	struct cuda_net *net = calloc(1, sizeof(*net));
	struct region list[REGIONS_MAX];
	struct pack_tile *tile = NULL;
	uint64_t cleared;
	int rc;

	if (!net)
		return -ENOMEM;
	rc = prepare(net, backend, graph, options, &tile, NULL);
	if (!rc)
		*bytes = sum_of(list, device_regions(net, list, &cleared)) + gradient_bytes(net) +
			 options->resident_rows * net->pitch;
	free(tile);
	cuda_free(&net->base);
	return rc;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int take_memory(struct cuda_net *net, struct backend_error *error)
{
	const struct backend_options *o = &net->gpu->base.options;
	struct region list[REGIONS_MAX];
	uint32_t n = device_regions(net, list, &net->cleared);
	int rc;

	net->memory_bytes = sum_of(list, n);
	rc = cuda_alloc(net->gpu, net->memory_bytes, &net->memory, error);
	if (rc)
		return rc;
	hand_out(list, n, net->memory);
	if (gradient_bytes(net)) {
		net->grad_foreign = o->alloc != NULL;
		if (o->alloc)
			rc = o->alloc(o->alloc_context, gradient_bytes(net),
				      (void **)&net->arena[BACKEND_GRAD]);
		else
			rc = cuda_alloc(net->gpu, gradient_bytes(net),
					(void **)&net->arena[BACKEND_GRAD], error);
		if (rc)
			return o->alloc ? backend_fail(error, rc,
						       "GPU %d: no memory for the gradient arena",
						       net->gpu->device)
					: rc;
	}
	net->base.bytes = net->memory_bytes + gradient_bytes(net);
	n = pinned_regions(net, list);
	rc = cudaMallocHost(&net->pinned, sum_of(list, n));
	if (rc)
		return cuda_failed(net->gpu, rc, "pinned memory", error);
	hand_out(list, n, net->pinned);
	net->own.param = net->arena[BACKEND_PARAM];
	net->own.stat = net->arena[BACKEND_STAT];
	return 0;
}

static int make_streams(struct cuda_net *net, struct backend_error *error)
{
	uint32_t n = net->plan.n_buckets, batch = net->base.options.max_batch;
	int rc;

	net->bucket_ready = calloc(n + 1, sizeof(*net->bucket_ready));
	net->no_rows = calloc(1, sizeof(*net->no_rows));
	if (!net->bucket_ready || !net->no_rows)
		return backend_fail(error, -ENOMEM, "no memory for the net");
	rc = cudaStreamCreateWithFlags(&net->stream, cudaStreamNonBlocking);
	if (!rc)
		rc = cudaStreamCreateWithFlags(&net->copy, cudaStreamNonBlocking);
	if (!rc)
		rc = cudaEventCreateWithFlags(&net->done, cudaEventDisableTiming);
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = cudaEventCreateWithFlags(&net->bucket_ready[i], cudaEventDisableTiming);
	for (int i = 0; i < SLOTS && !rc; i++) {
		rc = cudaEventCreateWithFlags(&net->slot[i].ready, cudaEventDisableTiming);
		net->slot[i].x = calloc(batch, sizeof(*net->slot[i].x));
		if (!net->slot[i].x)
			return backend_fail(error, -ENOMEM, "no memory for a batch");
	}
	return cuda_failed(net->gpu, rc, "streams and events", error);
}

static int clear_memory(struct cuda_net *net, struct backend_error *error)
{
	int rc = cudaMemsetAsync(net->memory, 0, net->cleared, net->stream);

	if (!rc && net->arena[BACKEND_GRAD])
		rc = cudaMemsetAsync(net->arena[BACKEND_GRAD], 0, gradient_bytes(net), net->stream);
	return cuda_failed(net->gpu, rc, "clearing memory", error);
}

int cuda_compile(struct backend *backend, const struct backend_graph *graph,
		 const struct backend_net_options *options, struct backend_net **out,
		 struct backend_error *error)
{
	struct cuda_net *net = calloc(1, sizeof(*net));
	struct pack_tile *tile = NULL;
	int rc;

	if (!net)
		return backend_fail(error, -ENOMEM, "no memory for the net");
	rc = prepare(net, backend, graph, options, &tile, error);
	if (!rc)
		rc = take_memory(net, error);
	if (!rc)
		rc = make_streams(net, error);
	if (!rc)
		rc = clear_memory(net, error);
	if (!rc)
		rc = tables_upload(net, tile, error);
	free(tile);
	if (rc) {
		cuda_free(&net->base);
		return rc;
	}
	tables_use(net);
	net->stale = true;
	net->graphs = !(backend->options.flags & BACKEND_NO_GRAPHS);
	LIST_INSERT_HEAD(&net->gpu->nets, net, of_gpu);
	net->listed = true;
	*out = &net->base;
	return 0;
}
