// SPDX-License-Identifier: MIT
/*
 * join.c: how a training on several hosts begins: each tells the others how many rows it has, and
 * all make sure that they are about to train the same thing. A host that cannot says so, so that
 * nobody waits for it.
 */
#include "hosts.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PULSE_SECONDS 2.0
#define GATHER_LEAST 65536u /* bytes of one word of train_hosts_gather */

struct facts {
	uint64_t rows, validation_rows, graph, table, same[TRAIN_SAME];
	uint32_t replicas, inference, trouble; /* trouble: enum err_kind */
	int32_t code;
	char message[256];
};

static void collect(struct train *t, const struct err *trouble, struct facts *f)
{
	memset(f, 0, sizeof(*f));
	if (trouble) {
		f->trouble = trouble->kind ? trouble->kind : ERR_INTERNAL;
		memcpy(f->message, trouble->message, sizeof(f->message) - 1);
		return;
	}
	if (t->setup.data) {
		f->rows = data_rows(t->setup.data, ROW_TRAIN);
		f->validation_rows = data_rows(t->setup.data, ROW_VALIDATION);
	}
	f->graph = backend_graph_hash(t->graph);
	f->table = merge_table_hash(&t->table);
	train_same_fill(&t->setup, f->same);
	f->replicas = t->replicas;
	f->inference = t->setup.inference;
}

static int differ(struct train *t, uint32_t a, uint32_t b, const char *what, struct err *err)
{
	char x[32], y[32];

	return err_set(err, ERR_PARAM, -EINVAL, "%s and %s have different %s",
		       train_hosts_name(t, a, x), train_hosts_name(t, b, y), what);
}

static int compare(struct train *t, const struct facts *all, struct err *err)
{
	struct hosts *h = t->hosts;
	char room[32], which[160];

	for (uint32_t i = 0; i < h->n; i++)
		if (all[i].trouble)
			return err_set(err,
				       all[i].trouble < ERR_KIND_COUNT
					       ? (enum err_kind)all[i].trouble
					       : ERR_INTERNAL,
				       -EREMOTEIO, "%s: %.*s", train_hosts_name(t, i, room),
				       (int)sizeof(all[i].message) - 1, all[i].message);
	for (uint32_t i = 0; i < h->n; i++) {
		if (all[i].graph != all[0].graph || all[i].table != all[0].table)
			return differ(t, 0, i, "networks", err);
		if (all[i].inference != all[0].inference)
			return differ(t, 0, i, "kinds of jobs", err);
		if (train_same_differ(all[0].same, all[i].same, which, sizeof(which)))
			return differ(t, 0, i, which, err);
		if (!all[i].replicas || all[i].replicas > TRAIN_REPLICAS_MAX)
			return err_set(err, ERR_PROTOCOL, -EPROTO, "%s has %u replicas",
				       train_hosts_name(t, i, room), all[i].replicas);
		h->fact[i] =
			(struct host_facts){all[i].rows, all[i].validation_rows, all[i].replicas};
	}
	return 0;
}

static int add_rows(struct train *t, struct err *err)
{
	struct hosts *h = t->hosts;

	t->all_rows = t->all_validation_rows = 0;
	for (uint32_t i = 0; i < h->n; i++)
		if (__builtin_add_overflow(t->all_rows, h->fact[i].rows, &t->all_rows) ||
		    __builtin_add_overflow(t->all_validation_rows, h->fact[i].validation_rows,
					   &t->all_validation_rows))
			return err_set(err, ERR_PROTOCOL, -EPROTO, "rows of the hosts overflow");
	return 0;
}

int train_hosts_open(struct train *t, const struct err *trouble, struct err *err)
{
	struct merge_net *net = t->setup.net;
	struct merge_error error = {0};
	struct facts mine, *all = calloc(MERGE_HOSTS_MAX, sizeof(*all));
	struct hosts *h = calloc(1, sizeof(*h));
	int rc;

	t->hosts = h;
	if (!all || !h) {
		free(all);
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	}
	h->net = net;
	h->self = merge_net_rank(net);
	h->n = h->n_start = merge_net_size(net);
	h->fresh = true;
	for (uint32_t i = 0; i < h->n; i++)
		h->member[i] = i;
	collect(t, trouble, &mine);
	rc = merge_all_gather(net, &mine, sizeof(mine), all, &error);
	if (trouble) /* it is told already */
		rc = -EREMOTEIO;
	else if (rc)
		rc = train_merge_err(t, err, rc, &error, "the hosts of the training");
	else
		rc = compare(t, all, err);
	if (!rc)
		rc = add_rows(t, err);
	free(all);
	return rc;
}

/* ---- merging ---- */

static uint64_t gather_bytes(const struct train *t)
{
	uint64_t stat = 64 + t->graph->stat_floats * sizeof(float);

	return stat > GATHER_LEAST ? stat : GATHER_LEAST;
}

int train_hosts_memory(struct train *t, uint64_t *bytes, struct err *err)
{
	uint32_t n = merge_net_size(t->setup.net);
	struct merge_config config;
	int rc;

	*bytes = sizeof(struct hosts) + (n + 1) * gather_bytes(t);
	if (t->setup.inference)
		return 0;
	rc = train_config_merge(t->setup.config, n, t->updates, &config, err);
	config.slots = t->slots;
	if (!rc && __builtin_add_overflow(*bytes, merge_memory(&config, &t->table, n), bytes))
		rc = err_set(err, ERR_LIMIT, -EOVERFLOW, "the network is too large");
	return rc;
}

int train_hosts_merge_open(struct train *t, struct err *err)
{
	struct hosts *h = t->hosts;
	struct merge_error error = {0};
	float *slots;
	int rc;

	h->gather_bytes = gather_bytes(t);
	h->gather = calloc(h->n + 1, h->gather_bytes);
	if (!h->gather)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for words of %u hosts",
			       h->n);
	h->say = h->gather + h->n * h->gather_bytes;
	h->distance = NAN;
	h->pulse_seconds = PULSE_SECONDS;
	if (t->setup.inference)
		return 0;
	rc = train_config_merge(t->setup.config, h->n, t->updates, &h->config, err);
	if (rc)
		return rc;
	h->config.slots = t->slots;
	rc = merge_open(&h->config, &t->table, h->n, &h->merge, &error);
	if (rc)
		return train_merge_err(t, err, rc, &error, "the state of merges");
	slots = train_host_arena(t, 0, BACKEND_SLOT);
	for (uint32_t i = 0; i < t->slots; i++)
		h->slot[i] = slots + i * t->graph->param_floats;
	h->arenas = (struct merge_arenas){
		.param = train_host_arena(t, 0, BACKEND_PARAM),
		.grad = train_host_arena(t, 0, BACKEND_GRAD),
		.stat = train_host_arena(t, 0, BACKEND_STAT),
		.slot = h->slot,
		.n_slots = t->slots,
	};
	return 0;
}

void train_hosts_free(struct train *t)
{
	struct hosts *h = t->hosts;

	if (!h)
		return;
	merge_close(h->merge);
	free(h->gather);
	free(h);
	t->hosts = NULL;
}
