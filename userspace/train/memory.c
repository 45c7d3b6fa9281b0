// SPDX-License-Identifier: MIT
/* memory.c: what a training will take, of this host and of each device: told before it is made, and
 * the same when it is. */
#include "hosts.h"

#include <errno.h>
#include <stdlib.h>

static uint32_t slots_of(const struct backend_optimizer_config *o)
{
	switch (o->kind) {
	case BACKEND_SGD:
		return o->momentum > 0;
	case BACKEND_ADAM:
	case BACKEND_ADAMW:
		return 2 + o->amsgrad;
	case BACKEND_RMSPROP:
		return 1 + (o->momentum > 0) + o->centered;
	case BACKEND_ADAGRAD:
		return 1;
	default:
		return 2;
	}
}

void train_memory_plan(struct train *t)
{
	struct arena *a = &t->arena;
	uint64_t p = t->graph->param_floats, s = t->graph->stat_floats;
	uint64_t part = model_blob_bytes(t->setup.model), slots = t->setup.inference ? 0 : t->slots;
	uint64_t row = t->info->outputs;
	uint32_t rows = t->host_batch > t->max_batch ? t->host_batch : t->max_batch;

	a->used = 0;
	t->param = train_arena_take(a, p, sizeof(float));
	t->stat = train_arena_take(a, s, sizeof(float));
	t->slot = train_arena_take(a, slots * p, sizeof(float));
	train_average_plan(t, a);
	if (t->several) {
		t->pool_stat = train_arena_take(a, s, sizeof(float));
		if (t->setup.net) {
			t->copy_param = train_arena_take(a, p, sizeof(float));
			t->copy_stat = train_arena_take(a, s, sizeof(float));
		}
	}
	if (!t->setup.inference && t->setup.config->early_stop) {
		t->best_param = train_arena_take(a, p, sizeof(float));
		t->best_stat = train_arena_take(a, s, sizeof(float));
	}
	t->outputs = train_arena_take(a, rows * row, sizeof(float));
	t->classes = !t->loss.classes ? 0 : row < 2 ? 2 : (uint32_t)row;
	if (t->classes > TRAIN_CONFUSION_MAX)
		t->classes = 0;
	if (t->classes)
		t->confusion =
			train_arena_take(a, (uint64_t)t->classes * t->classes, sizeof(uint64_t));
	part = part * (slots + 1) + 4096 + (uint64_t)t->classes * t->classes * sizeof(uint64_t);
	t->io_bytes = part < CTL_PART_MAX ? part : CTL_PART_MAX;
	t->io = train_arena_take(a, t->io_bytes, 1);
}

void train_net_options(struct train *t, struct backend_net_options *o)
{
	const struct train_config *c = t->setup.config;
	const struct agree_block *a = t->setup.agreed;
	bool rows = t->setup.data && data_shape(t->setup.data).c;

	*o = (struct backend_net_options){
		.max_batch = t->max_batch,
		.input =
			{
				.dtype = rows ? data_dtype(t->setup.data)
					      : (enum backend_dtype)a->dtype,
				.shape = t->info->input,
				.mul = t->mul,
				.add = t->add,
				.flip = c->augment_flip,
				.pad = c->augment_pad,
				.cutout = c->augment_cutout,
			},
		.loss = t->loss.loss,
		.optimizer = c->optimizer,
		.inference = t->setup.inference,
		.deterministic = c->deterministic,
		.resident_rows = t->setup.resident && t->rows <= UINT32_MAX ? (uint32_t)t->rows : 0,
	};
}

static int net_bytes(struct train *t, uint64_t *first, uint64_t *others, struct err *err)
{
	struct backend_net_options options;
	uint64_t other = 0;
	int rc;

	train_net_options(t, &options);
	rc = backend_estimate(t->setup.backend, t->graph, &options, first);
	options.max_batch = t->replica_batch;
	if (!rc && t->replicas > 1)
		rc = backend_estimate(t->setup.backend, t->graph, &options, &other);
	if (rc)
		return err_set(err, rc == -ENOMEM || rc == -EOVERFLOW ? ERR_LIMIT : ERR_ARCH, rc,
			       "the memory of the network cannot be estimated");
	if (__builtin_mul_overflow(other, t->replicas - 1, others))
		return err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	return 0;
}

static int estimate(const struct train_setup *setup, uint64_t *host, uint64_t *device,
		    struct err *err)
{
	struct notice notice = {0};
	struct train *t;
	uint64_t net = 0, others = 0, hosts = 0;
	int rc = train_new(setup, false, &t, &notice, err);

	free(notice.text);
	if (rc)
		return rc;
	rc = net_bytes(t, &net, &others, err);
	t->slots = slots_of(&setup->config->optimizer);
	if (!rc && t->setup.net)
		rc = train_hosts_memory(t, &hosts, err);
	train_memory_plan(t);
	*device = 0;
	if (backend_on_device(t->setup.backend)) {
		*device = net;
		net = others = 0;
	}
	if (!rc && (t->arena.overflow || __builtin_add_overflow(net, others, &net) ||
		    __builtin_add_overflow(net, t->arena.used, &net) ||
		    __builtin_add_overflow(net, train_stage_bytes(t), &net) ||
		    __builtin_add_overflow(net, hosts, &net)))
		rc = err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	if (!rc)
		*host = net + sizeof(*t);
	train_free(t);
	return rc;
}

int train_estimate(const struct train_setup *setup, uint64_t *bytes, struct err *err)
{
	uint64_t device;

	return estimate(setup, bytes, &device, err);
}

int train_estimate_device(const struct train_setup *setup, uint64_t *bytes, struct err *err)
{
	uint64_t host;

	return estimate(setup, &host, bytes, err);
}
