// SPDX-License-Identifier: MIT
/*
 * replicas.c: the copies of the network on this host. They share the rows of every step, sum their
 * gradients, and apply the same update each, so that their parameters stay equal to the last bit;
 * their batch-norm statistics are their own until they are pooled.
 *
 * On devices each has a thread of its own (team.h), and NCCL sums the gradients between the devices
 * while the backward pass goes on; where it is not there, they are summed by way of host memory.
 */
#include "team.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table of tensors ---- */

static void pair_statistics(struct train *t)
{
	for (uint32_t i = 0; i < t->graph->n_nodes; i++) {
		const struct backend_node *node = &t->graph->node[i];
		uint32_t mean, variance;

		if (node->op != BACKEND_BATCHNORM || node->frozen || node->tensor[2] < 0 ||
		    node->tensor[3] < 0)
			continue;
		mean = (uint32_t)node->tensor[2];
		variance = (uint32_t)node->tensor[3];
		t->tensor[mean].policy = MERGE_MEAN;
		t->tensor[mean].pair = variance;
		t->tensor[variance].policy = MERGE_VARIANCE;
		t->tensor[variance].pair = mean;
	}
}

int train_table_make(struct train *t, struct err *err)
{
	const struct backend_graph *g = t->graph;
	struct merge_error error = {0};

	t->tensor = calloc((size_t)g->n_tensors + 1, sizeof(*t->tensor));
	if (!t->tensor)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *from = &g->tensor[i];
		struct merge_tensor *to = &t->tensor[i];

		memcpy(to->name, from->name, sizeof(to->name));
		to->statistic = from->arena == BACKEND_STAT;
		to->policy = from->trainable ? MERGE_AVERAGED : MERGE_COPIED;
		to->offset = from->offset;
		to->count = from->count;
	}
	pair_statistics(t);
	t->table = (struct merge_table){
		.tensor = t->tensor,
		.n = g->n_tensors,
		.param_floats = g->param_floats,
		.stat_floats = g->stat_floats,
	};
	if (merge_table_check(&t->table, &error))
		return err_set(err, ERR_INTERNAL, -EINVAL, "the table of tensors: %s",
			       error.message);
	return 0;
}

/* ---- gradients ---- */

bool train_replicas_apart(const struct train *t)
{
	return t->replicas > 1 && (t->setup.device || backend_on_device(t->setup.backend));
}

void train_replicas_choose(struct train *t)
{
	struct merge_error error = {0};

	if (!train_replicas_apart(t) || !backend_on_device(t->setup.backend))
		return;
	if (!t->setup.device)
		snprintf(t->no_nccl, sizeof(t->no_nccl), "the devices have no numbers");
	else if (merge_intra_find("nccl", &error))
		snprintf(t->no_nccl, sizeof(t->no_nccl), "%.250s", error.message);
	else
		t->nccl = true;
}

static int open_sums(struct train *t, struct err *err)
{
	float *arena[TRAIN_REPLICAS_MAX];
	uint32_t device[TRAIN_REPLICAS_MAX];
	struct merge_intra_config config = {
		.replicas = t->replicas,
		.arena = arena,
		.floats = t->graph->param_floats,
		.buckets_max = 4 * t->graph->n_tensors + 64,
		.timeout_ms = t->setup.timeout_ms,
	};
	struct merge_error error = {0};
	int rc;

	for (uint32_t k = 0; k < t->replicas; k++)
		arena[k] = t->nccl ? backend_device_arena(t->replica[k], BACKEND_GRAD)
				   : train_host_arena(t, k, BACKEND_GRAD);
	if (t->nccl) {
		for (uint32_t k = 0; k < t->replicas; k++)
			device[k] = t->setup.device[k % t->setup.n_backends];
		config.transport = "nccl";
		config.device = device;
		config.symmetric = t->setup.collective;
	}
	rc = merge_intra_open(&config, &t->intra, &error);
	if (rc && t->nccl)
		return err_set(err, rc == -ENOMEM ? ERR_LIMIT : ERR_INTERNAL, rc, "NCCL: %s",
			       error.message);
	return rc ? train_merge_err(t, err, rc, &error, "the all-reduce of the replicas") : 0;
}

int train_replicas_open(struct train *t, struct err *err)
{
	int rc = train_stage_open(t, err);

	if (rc || t->replicas == 1)
		return rc;
	t->on_the_way = t->nccl || !t->stage;
	return open_sums(t, err);
}

void train_replicas_close(struct train *t)
{
	train_team_close(t);
	/* no communicator outlives the memory that it knows */
	merge_intra_close(t->intra);
	t->intra = NULL;
	for (uint32_t k = 0; k < TRAIN_REPLICAS_MAX; k++)
		if (t->replica[k])
			backend_net_free(t->replica[k]);
	memset(t->replica, 0, sizeof(t->replica));
	t->net = NULL;
	train_stage_close(t);
}

int train_replicas_reduce(struct train *t, bool keep, struct err *err)
{
	struct merge_error error = {0};
	int rc = 0;

	if (!t->intra)
		return keep ? train_stage_in(t, 0, BACKEND_GRAD, err) : 0;
	for (uint32_t k = 0; !rc && k < t->replicas; k++)
		rc = merge_intra_wait(t->intra, k, &error);
	return rc ? train_merge_err(t, err, rc, &error, "the all-reduce of the replicas") : 0;
}

/* ---- state ---- */

int train_replicas_pool(struct train *t, float *out, struct err *err)
{
	const float *stat[TRAIN_REPLICAS_MAX];
	int rc;

	if (!t->graph->stat_floats)
		return 0;
	rc = backend_read(t->net, BACKEND_STAT, 0, t->graph->stat_floats, out);
	if (rc)
		return train_device_err(t, 0, err, rc, "reading statistics");
	if (t->replicas == 1)
		return 0;
	for (uint32_t k = 0; k < t->replicas; k++) {
		rc = train_stage_in(t, k, BACKEND_STAT, err);
		if (rc)
			return rc;
		stat[k] = train_host_arena(t, k, BACKEND_STAT);
	}
	merge_statistics(&t->table, t->replicas, stat, t->replica_rows, out);
	return 0;
}

static void spread(struct train *t, enum backend_arena arena, uint64_t floats)
{
	float *from = floats ? train_host_arena(t, 0, arena) : NULL;

	for (uint32_t k = 1; from && k < t->replicas; k++)
		if (train_host_arena(t, k, arena) != from)
			memcpy(train_host_arena(t, k, arena), from, floats * sizeof(float));
	for (uint32_t k = 0; from && !t->stage && k < t->replicas; k++)
		backend_touch(t->replica[k], arena);
}

/* Host arenas to the devices, where those are not one. */
static int put(struct train *t, uint32_t arenas, struct err *err)
{
	const struct team_order order = {.what = TEAM_PUT, .arenas = arenas};
	int rc = 0;

	if (t->team && t->stage)
		return train_team_run(t, &order, err);
	for (uint32_t k = 0; k < t->replicas; k++)
		for (uint32_t a = BACKEND_PARAM; a <= BACKEND_SLOT && !rc; a++)
			if (arenas & 1u << a)
				rc = train_stage_out(t, k, (enum backend_arena)a, err);
	return rc;
}

int train_replicas_spread(struct train *t, bool grad, bool slots, struct err *err)
{
	const struct backend_graph *g = t->graph;

	if (grad) {
		spread(t, BACKEND_GRAD, g->param_floats);
		return put(t, 1u << BACKEND_GRAD, err);
	}
	spread(t, BACKEND_PARAM, g->param_floats);
	spread(t, BACKEND_STAT, g->stat_floats);
	if (slots)
		spread(t, BACKEND_SLOT, g->param_floats * t->slots);
	memset(t->replica_rows, 0, sizeof(t->replica_rows));
	return put(t, 1u << BACKEND_PARAM | 1u << BACKEND_STAT | (slots ? 1u << BACKEND_SLOT : 0),
		   err);
}
