/* SPDX-License-Identifier: MIT */
/*
 * commit.c: the course of a merge from the first message to the barrier. A host that passed the
 * barrier knows that all others have staged the same bits; one that did not keeps both states, and
 * recover.c takes it to the later one if any survivor has it.
 */
#include <math.h>
#include <string.h>
#include "engine.h"

uint64_t merge_stage_checksum(const struct merge *m)
{
	const struct merge_stage *g = &m->stage;
	uint64_t p = m->table.param_floats * sizeof(float), h = g->number;

	if (g->gradient)
		return merge_hash(h, g->param, p);
	h = merge_hash(h, g->x, p);
	if (g->m)
		h = merge_hash(h, g->m, p);
	h = merge_hash(h, g->stat, m->table.stat_floats * sizeof(float));
	for (uint32_t i = 0; i < g->n_slots; i++)
		h = merge_hash(h, g->slot[i], p);
	return h;
}

static void swap_floats(float **a, float **b)
{
	float *t = *a;

	*a = *b;
	*b = t;
}

static void apply_weights(struct merge *m, const struct merge_arenas *arenas)
{
	struct merge_stage *g = &m->stage;
	uint64_t bytes = m->table.param_floats * sizeof(float);

	swap_floats(&m->x, &g->x);
	if (m->m)
		swap_floats(&m->m, &g->m);
	if (m->carry) {
		swap_floats(&m->carry, &g->carry);
		swap_floats(&m->carry_owner, &g->carry_owner);
	}
	memcpy(arenas->param, m->config.kind == MERGE_EASGD ? g->param : m->x, bytes);
	m->lr_previous = g->lr;
	m->started = true;
	for (uint32_t i = 0; i < arenas->n_slots; i++) {
		if (m->config.momentum == MERGE_RESET)
			memset(arenas->slot[i], 0, bytes);
		else if (i < g->n_slots)
			memcpy(arenas->slot[i], g->slot[i], bytes);
	}
	if (m->table.stat_floats)
		memcpy(arenas->stat, g->stat, m->table.stat_floats * sizeof(float));
}

void merge_apply_stage(struct merge *m, const struct merge_arenas *arenas)
{
	struct merge_stage *g = &m->stage;

	if (g->gradient)
		memcpy(arenas->grad, g->param, m->table.param_floats * sizeof(float));
	else
		apply_weights(m, arenas);
	m->number = g->number;
	m->checksum = g->checksum;
	g->valid = false;
}

int merge_commit(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		 const uint64_t *samples, double distance2, double *distance,
		 struct merge_error *error)
{
	struct merge_report all[MERGE_HOSTS_MAX], mine;
	double total = 0, sum = 0;
	int rc;

	memset(&mine, 0, sizeof(mine));
	mine.number = m->stage.number;
	mine.checksum = m->stage.checksum = merge_stage_checksum(m);
	mine.distance2 = distance2;
	m->stage.valid = true;
	rc = merge_all_gather(net, &mine, sizeof(mine), all, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < net->size; i++) {
		if (all[i].checksum != mine.checksum || all[i].number != mine.number) {
			m->stage.valid = false;
			return merge_fail(error, -EBADMSG, MERGE_NO_HOST,
					  "merge %llu: ranks %u and %u computed different results",
					  (unsigned long long)mine.number, net->rank, i);
		}
		total += (double)samples[i];
	}
	for (uint32_t i = 0; i < net->size; i++)
		sum += (total > 0 ? (double)samples[i] / total : 1. / net->size) * all[i].distance2;
	*distance = sqrt(sum);
	merge_apply_stage(m, arenas);
	m->number_epoch = net->epoch;
	return 0;
}

/* ---- a merge --------------------------------------------------------------------------------- */

static int check_arenas(const struct merge *m, const struct merge_arenas *a, bool gradient,
			struct merge_error *error)
{
	if ((gradient && !a->grad) || (!gradient && !a->param) ||
	    (m->table.stat_floats && !a->stat))
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "an arena is missing");
	if (a->n_slots > MERGE_MAX_SLOTS)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "%u optimizer slots, at most %u",
				  a->n_slots, MERGE_MAX_SLOTS);
	if (!gradient && !m->started &&
	    (m->config.kind == MERGE_OUTER || m->config.kind == MERGE_EASGD ||
	     m->config.kind == MERGE_ADASUM || m->config.wire == MERGE_BF16))
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "merge_start was not called");
	return 0;
}

int merge_tell(struct merge *m, struct merge_net *net, struct merge_tell *tell,
	       struct merge_error *error)
{
	uint64_t stat_floats = tell->stat ? m->table.stat_floats : 0;
	size_t one = sizeof(struct merge_info) + stat_floats * sizeof(float);
	struct merge_info mine = {.number = tell->number,
				  .config = tell->config,
				  .samples = tell->samples,
				  .stat = stat_floats,
				  .slots = tell->slots,
				  .flags = tell->flags},
			  other;
	const float *stat[MERGE_HOSTS_MAX];
	char *in = m->told, *out = in + one * net->size;
	int rc;

	memcpy(out, &mine, sizeof(mine));
	if (stat_floats)
		memcpy(out + sizeof(mine), tell->stat, stat_floats * sizeof(float));
	rc = merge_all_gather(net, out, one, in, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < net->size; i++) {
		memcpy(&other, in + one * i, sizeof(other));
		stat[i] = (const float *)(in + one * i + sizeof(other));
		tell->all_samples[i] = other.samples;
		tell->flags |= other.flags;
		if (other.number != mine.number || other.config != mine.config ||
		    other.stat != mine.stat || other.slots != mine.slots)
			return merge_fail(
				error, -EPROTO, MERGE_NO_HOST,
				"ranks %u and %u are at different merges (%llu, %llu) or settings",
				net->rank, i, (unsigned long long)mine.number,
				(unsigned long long)other.number);
	}
	if (stat_floats) {
		memcpy(tell->stat_out, tell->first ? stat[0] : tell->stat,
		       stat_floats * sizeof(float));
		if (!tell->first)
			merge_statistics(&m->table, net->size, stat, tell->all_samples,
					 tell->stat_out);
	}
	return 0;
}

static int stage_slots(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		       const uint64_t *samples, struct merge_error *error)
{
	struct merge_reduce r = {.op = MERGE_REDUCE_MEAN, .n = net->size, .weight = samples};

	m->stage.n_slots = 0;
	if (m->config.momentum != MERGE_AVERAGE_SLOTS)
		return 0;
	for (uint32_t i = 0; i < arenas->n_slots; i++) {
		int rc;

		if (!m->stage.slot[i]) /* more than config.slots */
			m->stage.slot[i] = m->more_slot[i] = merge_floats(m->table.param_floats);
		if (!m->stage.slot[i])
			return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for slot %u",
					  i);
		rc = merge_reduce_all(net, &r, arenas->slot[i], m->stage.slot[i],
				      m->table.param_floats, NULL, error);
		if (rc)
			return rc;
		m->stage.n_slots = i + 1;
	}
	return 0;
}

static void fill_result(const struct merge *m, const struct merge_net *net, uint32_t flags,
			struct merge_result *result)
{
	if (result)
		*result = (struct merge_result){.number = m->number,
						.checksum = m->checksum,
						.epoch = net->epoch,
						.hosts = net->size,
						.flags = flags};
}

/* Computes and commits; tell has been said already. */
static int make(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		const uint64_t *samples, double lr, bool *ring, double *distance,
		struct merge_error *error)
{
	struct merge_reduce sum = {.op = MERGE_REDUCE_SUM, .n = net->size};
	double distance2 = 0;
	int rc;

	if (m->stage.gradient)
		rc = merge_reduce_all(net, &sum, arenas->grad, m->stage.param,
				      m->table.param_floats, ring, error);
	else
		rc = merge_stage_weights(m, net, arenas, samples, lr, &distance2, ring, error);
	if (!rc && !m->stage.gradient)
		rc = stage_slots(m, net, arenas, samples, error);
	return rc ? rc : merge_commit(m, net, arenas, samples, distance2, distance, error);
}

static int run(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
	       bool gradient, uint64_t samples, double lr, uint32_t flags,
	       struct merge_result *result, struct merge_error *error)
{
	uint64_t all[MERGE_HOSTS_MAX], sent = net->sent;
	struct merge_tell tell = {.number = m->number + 1,
				  .config = gradient ? 1 : m->config_hash,
				  .samples = samples,
				  .slots = gradient ? 0 : arenas->n_slots,
				  .flags = flags,
				  .stat = gradient ? NULL : arenas->stat,
				  .stat_out = m->stage.stat,
				  .all_samples = all};
	double begin = merge_now(), distance = 0;
	bool ring = false;
	int rc = check_arenas(m, arenas, gradient, error);

	if (!rc && !gradient)
		rc = merge_config_check(&m->config, net->size, error);
	if (!rc)
		rc = merge_work(m, net->size, error);
	if (rc)
		return rc;
	m->stage.valid = false;
	m->stage.gradient = gradient;
	m->stage.n_slots = 0;
	net->number = m->stage.number = tell.number;
	net->lent = m->scratch;
	net->lent_bytes = merge_reduce_scratch(m->table.param_floats, m->hosts);
	rc = merge_tell(m, net, &tell, error);
	if (!rc && !(tell.flags & MERGE_FLAG_BAD))
		rc = make(m, net, arenas, all, lr, &ring, &distance, error);
	net->lent_bytes = 0;
	if (rc)
		return rc;
	fill_result(m, net, tell.flags, result);
	if (result) {
		result->ring = ring;
		result->distance = distance;
		result->bytes = net->sent - sent;
		result->seconds = merge_now() - begin;
	}
	return 0;
}

/* Nothing is merged; what hosts tell each other still gets around. */
static int run_none(struct merge *m, struct merge_net *net, uint32_t flags,
		    struct merge_result *result, struct merge_error *error)
{
	uint64_t all[MERGE_HOSTS_MAX];
	struct merge_tell tell = {
		.number = m->number, .config = m->config_hash, .flags = flags, .all_samples = all};
	int rc = merge_work(m, net->size, error);

	net->number = m->number;
	if (!rc)
		rc = merge_tell(m, net, &tell, error);
	if (!rc)
		fill_result(m, net, tell.flags, result);
	return rc;
}

int merge_run(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
	      uint64_t samples, double lr, uint32_t flags, struct merge_result *result,
	      struct merge_error *error)
{
	if (m->config.kind == MERGE_NONE)
		return run_none(m, net, flags, result, error);
	return run(m, net, arenas, m->config.kind == MERGE_GRADIENT, samples, lr, flags, result,
		   error);
}

int merge_run_gradient(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		       uint64_t samples, uint32_t flags, struct merge_result *result,
		       struct merge_error *error)
{
	return run(m, net, arenas, true, samples, 0, flags, result, error);
}
