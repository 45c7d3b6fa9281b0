/* SPDX-License-Identifier: MIT */
/*
 * backend.c: the front of the compute seam. Finds a back end by name, checks the arguments of every
 * public call and hands them to its table. No arithmetic here.
 */
#include <math.h>
#include <string.h>

#include "loss.h"
#include "ops.h"

static const struct backend_ops *const backend_table[] = {&backend_ref_ops, &backend_cpu_ops};

/* ---- back end ---------------------------------------------------------------------------- */

static int find_ops(const char *name, const struct backend_ops **out, struct backend_error *error)
{
	for (size_t i = 0; i < sizeof(backend_table) / sizeof(*backend_table); i++)
		if (!strcmp(name, backend_table[i]->name)) {
			*out = backend_table[i];
			return 0;
		}
	if (!strcmp(name, "cuda"))
		return backend_plugin(name, out, error);
	return backend_fail(error, -ENOENT, "there is no compute back end \"%.64s\"", name);
}

int backend_devices(const char *name, struct backend_device *out, uint32_t max, uint32_t *n,
		    struct backend_error *error)
{
	const struct backend_ops *ops;
	int rc = find_ops(name, &ops, error);

	*n = 0;
	if (rc || !ops->devices)
		return rc;
	return ops->devices(out, max, n, error);
}

int backend_open(const char *name, const struct backend_options *options, struct backend **out,
		 struct backend_error *error)
{
	static const struct backend_options none;
	const struct backend_ops *ops;
	struct backend *backend;
	int rc;

	if (!name || !out)
		return backend_fail(error, -EINVAL, "backend_open: no name or no place for it");
	rc = find_ops(name, &ops, error);
	if (rc)
		return rc;
	if (ops->version != BACKEND_OPS_VERSION)
		return backend_fail(error, -EPROTO,
				    "compute back end \"%s\" has version %u, this program wants %u",
				    ops->name, ops->version, BACKEND_OPS_VERSION);
	if (!options)
		options = &none;
	rc = ops->open(options, &backend, error);
	if (rc)
		return rc;
	backend->ops = ops;
	backend->options = *options;
	*out = backend;
	return 0;
}

void backend_close(struct backend *backend)
{
	if (backend)
		backend->ops->close(backend);
}

const char *backend_name(const struct backend *backend)
{
	return backend->ops->name;
}

const char *backend_info(const struct backend *backend)
{
	return backend->info;
}

bool backend_on_device(const struct backend *backend)
{
	return backend->ops->device_arena != NULL;
}

/* ---- net --------------------------------------------------------------------------------- */

static bool share(float v)
{
	return v >= 0.0f && v < 1.0f;
}

static bool positive(float v)
{
	return v >= 0.0f && isfinite(v);
}

static int check_optimizer(const struct backend_optimizer_config *o, struct backend_error *error)
{
	int clips = (o->clipnorm > 0) + (o->clipvalue > 0) + (o->global_clipnorm > 0);
	const char *bad = NULL;

	if ((unsigned int)o->kind >= BACKEND_OPTIMIZER_COUNT)
		return backend_fail(error, -EINVAL, "unknown optimizer %d", (int)o->kind);
	if (!positive(o->momentum))
		bad = "momentum";
	else if ((o->kind == BACKEND_ADAM || o->kind == BACKEND_ADAMW) &&
		 (!share(o->beta1) || !share(o->beta2)))
		bad = "beta_1 or beta_2";
	else if ((o->kind == BACKEND_RMSPROP || o->kind == BACKEND_ADADELTA) && !share(o->rho))
		bad = "rho";
	else if (!positive(o->epsilon))
		bad = "epsilon";
	else if (!positive(o->initial_accumulator))
		bad = "initial_accumulator_value";
	else if (!positive(o->weight_decay))
		bad = "weight_decay";
	else if (!positive(o->clipnorm) || !positive(o->clipvalue) || !positive(o->global_clipnorm))
		bad = "clipnorm, clipvalue or global_clipnorm";
	if (bad)
		return backend_fail(error, -EINVAL, "optimizer: %s is out of range", bad);
	if (clips > 1)
		return backend_fail(error, -EINVAL,
				    "optimizer: clipnorm, clipvalue and global_clipnorm exclude "
				    "each other");
	return 0;
}

static int check_input(const struct backend_graph *graph, const struct backend_input *in,
		       struct backend_error *error)
{
	struct backend_shape want = graph->node[0].out;

	if ((unsigned int)in->dtype >= BACKEND_DTYPE_COUNT)
		return backend_fail(error, -EINVAL, "unknown element type %d", (int)in->dtype);
	if (in->shape.h != want.h || in->shape.w != want.w || in->shape.c != want.c)
		return backend_fail(error, -EINVAL,
				    "rows are (%u,%u,%u), the input of the network is (%u,%u,%u)",
				    in->shape.h, in->shape.w, in->shape.c, want.h, want.w, want.c);
	if (!in->mul || !in->add)
		return backend_fail(error, -EINVAL, "input scaling is missing");
	if (in->pad > in->shape.h || in->pad > in->shape.w)
		return backend_fail(error, -EINVAL, "augmentation pads by %u, more than the image",
				    in->pad);
	return 0;
}

static int check_net(const struct backend_graph *graph, const struct backend_net_options *options,
		     struct backend_error *error)
{
	struct loss_plan plan;
	int rc;

	rc = backend_graph_check(graph, error);
	if (rc)
		return rc;
	if (options->max_batch == 0 || options->max_batch > 1u << 20)
		return backend_fail(error, -EINVAL, "max_batch %u is not in 1..1048576",
				    options->max_batch);
	rc = check_input(graph, &options->input, error);
	if (!rc)
		rc = loss_plan(graph, &options->loss, &plan, error);
	if (!rc && !options->inference)
		rc = check_optimizer(&options->optimizer, error);
	return rc;
}

int backend_estimate(struct backend *backend, const struct backend_graph *graph,
		     const struct backend_net_options *options, uint64_t *bytes)
{
	int rc = check_net(graph, options, NULL);

	return rc ? rc : backend->ops->estimate(backend, graph, options, bytes);
}

int backend_compile(struct backend *backend, const struct backend_graph *graph,
		    const struct backend_net_options *options, struct backend_net **out,
		    struct backend_error *error)
{
	int rc = check_net(graph, options, error);

	return rc ? rc : backend->ops->compile(backend, graph, options, out, error);
}

void backend_net_free(struct backend_net *net)
{
	if (net)
		net->backend->ops->free(net);
}

uint64_t backend_net_bytes(const struct backend_net *net)
{
	return net->bytes;
}

uint32_t backend_slot_count(const struct backend_net *net)
{
	return net->n_slots;
}

const char *backend_slot_name(const struct backend_net *net, uint32_t slot)
{
	return slot < net->n_slots ? net->slot_name[slot] : NULL;
}

/* ---- arenas ------------------------------------------------------------------------------ */

uint64_t backend_arena_floats(const struct backend_net *net, enum backend_arena arena)
{
	if (net->options.inference && (arena == BACKEND_GRAD || arena == BACKEND_SLOT))
		return 0;
	return backend_net_floats(net, arena);
}

static int check_range(const struct backend_net *net, enum backend_arena arena, uint64_t offset,
		       uint64_t n, const void *buffer)
{
	uint64_t size;

	if ((unsigned int)arena > BACKEND_SLOT || (n && !buffer))
		return -EINVAL;
	size = backend_arena_floats(net, arena);
	return offset > size || n > size - offset ? -ERANGE : 0;
}

int backend_read(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		 float *destination)
{
	int rc = check_range(net, arena, offset, n, destination);

	if (rc || n == 0)
		return rc;
	if (net->backend->ops->read)
		return net->backend->ops->read(net, arena, offset, n, destination);
	memcpy(destination, net->arena[arena] + offset, n * sizeof(float));
	return 0;
}

int backend_write(struct backend_net *net, enum backend_arena arena, uint64_t offset, uint64_t n,
		  const float *source)
{
	int rc = check_range(net, arena, offset, n, source);

	if (rc || n == 0)
		return rc;
	if (net->backend->ops->write)
		return net->backend->ops->write(net, arena, offset, n, source);
	memcpy(net->arena[arena] + offset, source, n * sizeof(float));
	return 0;
}

float *backend_host_arena(struct backend_net *net, enum backend_arena arena)
{
	return (unsigned int)arena > BACKEND_SLOT ? NULL : net->arena[arena];
}

float *backend_device_arena(struct backend_net *net, enum backend_arena arena)
{
	if ((unsigned int)arena > BACKEND_SLOT || !net->backend->ops->device_arena)
		return NULL;
	return net->backend->ops->device_arena(net, arena);
}

int backend_merge(struct backend *backend, const struct backend_merge *m,
		  struct backend_error *error)
{
	bool lists = m->kind == BACKEND_MERGE_MEAN || m->kind == BACKEND_MERGE_MOMENTS;

	if (!backend->ops->merge)
		return backend_fail(error, -EOPNOTSUPP,
				    "back end %s has no memory of its own to merge in",
				    backend->ops->name);
	if ((unsigned int)m->kind > BACKEND_MERGE_DECODE ||
	    (lists && (m->n < 1 || m->n > BACKEND_MERGE_INPUTS)))
		return backend_fail(error, -EINVAL, "merge of %u inputs", m->n);
	return backend->ops->merge(backend, m, error);
}

bool backend_lost(const struct backend *backend)
{
	return backend->ops->lost && backend->ops->lost(backend);
}

int backend_host_register(struct backend *backend, const void *memory, size_t bytes,
			  struct backend_error *error)
{
	if (!backend->ops->host_register)
		return backend_fail(error, -EOPNOTSUPP, "back end %s reads from any memory",
				    backend->ops->name);
	if (!memory || !bytes)
		return backend_fail(error, -EINVAL, "no memory to pin");
	return backend->ops->host_register(backend, memory, bytes, error);
}

void backend_host_unregister(struct backend *backend, const void *memory)
{
	if (backend->ops->host_unregister)
		backend->ops->host_unregister(backend, memory);
}

int backend_resident(struct backend_net *net, const void *const *x, uint32_t n,
		     struct backend_error *error)
{
	int rc;

	if (!net->backend->ops->resident)
		return backend_fail(error, -EOPNOTSUPP, "the rows lie in this memory already");
	if (n && !x)
		return backend_fail(error, -EINVAL, "no rows to keep");
	net->resident_rows = 0;
	rc = net->backend->ops->resident(net, x, n, error);
	if (!rc)
		net->resident_rows = n;
	return rc;
}

void backend_touch(struct backend_net *net, enum backend_arena arena)
{
	if (net->backend->ops->touch)
		net->backend->ops->touch(net, arena);
}

/* ---- a step ------------------------------------------------------------------------------ */

static int check_labels(const struct backend_net *net, const struct backend_batch *batch,
			struct backend_error *error)
{
	uint32_t classes = net->graph.node[net->graph.output].out.c;

	for (uint32_t i = 0; i < batch->n; i++)
		if ((uint32_t)batch->label[i] >= classes) /* negative ones too */
			return backend_fail(error, -ERANGE, "label %d of row %u is not in 0..%u",
					    batch->label[i], i, classes - 1);
	return 0;
}

/* want_loss: label or target must be there. */
static int check_batch(const struct backend_net *net, const struct backend_batch *batch,
		       bool want_loss, struct backend_error *error)
{
	bool sparse = net->options.loss.loss == BACKEND_SPARSE_CROSSENTROPY;

	if (batch->n > net->options.max_batch)
		return backend_fail(error, -EINVAL, "batch of %u rows, compiled for %u", batch->n,
				    net->options.max_batch);
	if (batch->n == 0)
		return 0;
	if (!batch->x && !batch->index)
		return backend_fail(error, -EINVAL, "batch without rows");
	for (uint32_t i = 0; i < batch->n; i++) {
		if (!batch->index && !batch->x[i])
			return backend_fail(error, -EINVAL, "row %u of the batch is NULL", i);
		if (batch->index && batch->index[i] >= net->resident_rows)
			return backend_fail(error, -ERANGE, "row %u of %u resident rows",
					    batch->index[i], net->resident_rows);
	}
	if (!want_loss)
		return 0;
	if (sparse ? !batch->label : !batch->target)
		return backend_fail(error, -EINVAL, "batch without %s",
				    sparse ? "labels" : "targets");
	return sparse ? check_labels(net, batch, error) : 0;
}

static int no_training(struct backend_error *error)
{
	return backend_fail(error, -EPERM, "the net was compiled for inference only");
}

int backend_gradient(struct backend_net *net, const struct backend_batch *batch, float scale,
		     bool accumulate, backend_bucket_fn on_bucket, void *context,
		     struct backend_sums *sums, float *outputs, struct backend_error *error)
{
	struct backend_sums own;
	int rc;

	if (net->options.inference)
		return no_training(error);
	rc = check_batch(net, batch, true, error);
	if (rc)
		return rc;
	return net->backend->ops->gradient(net, batch, scale, accumulate, on_bucket, context,
					   sums ? sums : &own, outputs, error);
}

int backend_apply(struct backend_net *net, double lr, uint64_t t, struct backend_applied *applied,
		  struct backend_error *error)
{
	struct backend_applied own;

	if (net->options.inference)
		return no_training(error);
	if (!isfinite(lr) || t == 0)
		return backend_fail(error, -EINVAL, "learning rate %g, update %llu", lr,
				    (unsigned long long)t);
	return net->backend->ops->apply(net, lr, t, applied ? applied : &own, error);
}

int backend_step(struct backend_net *net, const struct backend_batch *batch, float scale, double lr,
		 uint64_t t, struct backend_sums *sums, float *outputs,
		 struct backend_applied *applied, struct backend_error *error)
{
	struct backend_applied own_applied;
	struct backend_sums own_sums;
	int rc;

	if (net->options.inference)
		return no_training(error);
	if (!isfinite(lr) || t == 0)
		return backend_fail(error, -EINVAL, "learning rate %g, update %llu", lr,
				    (unsigned long long)t);
	rc = check_batch(net, batch, true, error);
	if (rc)
		return rc;
	sums = sums ? sums : &own_sums;
	applied = applied ? applied : &own_applied;
	if (net->backend->ops->step)
		return net->backend->ops->step(net, batch, scale, lr, t, sums, outputs, applied,
					       error);
	rc = net->backend->ops->gradient(net, batch, scale, false, NULL, NULL, sums, outputs,
					 error);
	return rc ? rc : net->backend->ops->apply(net, lr, t, applied, error);
}

int backend_evaluate(struct backend_net *net, const float *param, const float *stat,
		     const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		     struct backend_error *error)
{
	int rc;

	if ((param == NULL) != (stat == NULL) && net->graph.stat_floats && net->graph.param_floats)
		return backend_fail(error, -EINVAL,
				    "evaluate takes parameters and statistics, or neither");
	rc = check_batch(net, batch, sums != NULL, error);
	if (rc)
		return rc;
	return net->backend->ops->evaluate(net, param, stat, batch, sums, outputs, error);
}

double backend_penalty(struct backend_net *net)
{
	double sum = 0;

	if (net->backend->ops->penalty)
		return net->backend->ops->penalty(net);
	for (uint32_t i = 0; i < net->graph.n_tensors; i++) {
		const struct backend_tensor *t = &net->graph.tensor[i];
		const float *w = net->arena[t->arena] + t->offset;
		double l1 = 0, l2 = 0;

		if (!t->trainable || (t->l1 == 0.0f && t->l2 == 0.0f))
			continue;
		for (uint64_t k = 0; k < t->count; k++) {
			l1 += fabs((double)w[k]);
			l2 += (double)w[k] * w[k];
		}
		sum += t->l1 * l1 + t->l2 * l2;
	}
	return sum;
}
