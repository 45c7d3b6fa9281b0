/* SPDX-License-Identifier: MIT */
/*
 * recover.c: after a fault. The survivors tell each other which merge they committed and which they
 * staged; all go to the highest committed one: those who staged it apply their copy, those who are
 * further behind receive the common state.
 */
#include <stdlib.h>
#include <string.h>
#include "engine.h"

struct standing {
	uint64_t committed, checksum;
	uint64_t staged, staged_checksum; /* 0: nothing */
	uint32_t epoch, started;	  /* epoch of the commit */
};

/* A host that was cut off may have committed a merge that the others repeated without it. */
static bool later(const struct standing *a, const struct standing *b)
{
	return a->epoch != b->epoch ? a->epoch > b->epoch : a->committed > b->committed;
}

static int send_state(struct merge *m, struct merge_net *net, const uint8_t *behind,
		      const struct merge_arenas *arenas, struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {.what = "state", .merge = net->number, .x = x};
	const void *part[3] = {m->x, m->m, arenas->stat};
	size_t bytes[3] = {m->table.param_floats * sizeof(float),
			   m->m ? m->table.param_floats * sizeof(float) : 0,
			   m->table.stat_floats * sizeof(float)};
	int rc = 0;

	for (int i = 0; i < 3 && !rc; i++) {
		round.n = 0;
		for (uint32_t r = 0; r < net->size && bytes[i]; r++)
			if (behind[r])
				x[round.n++] = (struct merge_xfer){
					.peer = r, .send = part[i], .send_len = bytes[i]};
		rc = merge_net_round(net, &round, error);
	}
	return rc;
}

/* Into the staging copies; x changes only when all of it is here. */
static int take_state(struct merge *m, struct merge_net *net, uint32_t source,
		      struct merge_error *error)
{
	void *part[3] = {m->stage.x, m->stage.m, m->stage.stat};
	size_t bytes[3] = {m->table.param_floats * sizeof(float),
			   m->m ? m->table.param_floats * sizeof(float) : 0,
			   m->table.stat_floats * sizeof(float)};
	int rc = 0;

	for (int i = 0; i < 3 && !rc; i++) {
		struct merge_xfer x = {.peer = source, .recv = part[i], .recv_len = bytes[i]};
		struct merge_round round = {
			.what = "state", .merge = net->number, .x = &x, .n = bytes[i] ? 1 : 0};

		rc = merge_net_round(net, &round, error);
	}
	return rc;
}

static void adopt(struct merge *m, const struct merge_arenas *arenas)
{
	uint64_t bytes = m->table.param_floats * sizeof(float);

	m->stage.gradient = false;
	m->stage.n_slots = 0;
	m->stage.lr = m->lr_previous;
	/* easgd: a returned replica starts at the centre */
	memcpy(m->stage.param, m->stage.x, bytes);
	if (m->carry) {
		memset(m->stage.carry, 0, bytes);
		memset(m->stage.carry_owner, 0, bytes);
	}
	for (uint32_t i = 0; i < arenas->n_slots; i++)
		memset(arenas->slot[i], 0, bytes);
	merge_apply_stage(m, arenas);
}

static bool staged_it(const struct standing *s, const struct standing *top)
{
	return s->staged == top->committed && s->staged_checksum == top->checksum;
}

/* Who is behind and cannot roll forward, and who gives. */
static uint32_t find_behind(const struct standing *all, uint32_t n, const struct standing *top,
			    uint8_t *behind, bool *any)
{
	uint32_t source = n;

	*any = false;
	for (uint32_t i = 0; i < n; i++) {
		behind[i] = later(top, &all[i]) && !staged_it(&all[i], top);
		*any |= behind[i];
		if (source == n && !behind[i])
			source = i;
	}
	return source;
}

static int settle(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		  struct merge_result *result, struct merge_error *error)
{
	struct standing all[MERGE_HOSTS_MAX], mine, top;
	uint8_t behind[MERGE_HOSTS_MAX];
	uint32_t source;
	bool any;
	int rc;

	memset(&mine, 0, sizeof(mine));
	mine.committed = m->number;
	mine.checksum = m->checksum;
	mine.staged = m->stage.valid ? m->stage.number : 0;
	mine.staged_checksum = m->stage.valid ? m->stage.checksum : 0;
	mine.epoch = m->number_epoch;
	mine.started = m->started;
	net->number = 0;
	rc = merge_all_gather(net, &mine, sizeof(mine), all, error);
	if (rc)
		return rc;
	top = all[0];
	for (uint32_t i = 1; i < net->size; i++)
		if (later(&all[i], &top))
			top = all[i];
	for (uint32_t i = 0; i < net->size; i++)
		if (!later(&top, &all[i]) && all[i].checksum != top.checksum)
			return merge_fail(error, -EBADMSG, MERGE_NO_HOST,
					  "ranks hold different results of merge %llu",
					  (unsigned long long)top.committed);
	if (later(&top, &mine) && staged_it(&mine, &top)) {
		merge_apply_stage(m, arenas);
		result->rolled_forward = true;
	}
	source = find_behind(all, net->size, &top, behind, &any);
	if (any && behind[net->rank]) {
		m->stage.valid = false;
		rc = take_state(m, net, source, error);
		if (rc)
			return rc;
		m->stage.number = top.committed;
		m->stage.checksum = top.checksum;
		adopt(m, arenas);
		result->adopted = true;
	} else if (any && net->rank == source) {
		rc = send_state(m, net, behind, arenas, error);
	}
	if (rc)
		return rc;
	m->number_epoch = top.epoch;
	m->stage.valid = false;
	return 0;
}

int merge_recover(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
		  struct merge_result *result, struct merge_error *error)
{
	struct merge_result none, *r = result ? result : &none;
	int rc;

	memset(r, 0, sizeof(*r));
	/* another host may be lost on the way: the coordinator is asked again */
	for (int tries = 0;; tries++) {
		rc = net->ops->recover(net, error);
		if (rc)
			return rc;
		rc = settle(m, net, arenas, r, error);
		if (!rc || rc == -EBADMSG || tries == 8)
			break;
	}
	if (rc)
		return rc;
	r->number = m->number;
	r->checksum = m->checksum;
	r->epoch = net->epoch;
	r->hosts = net->size;
	return 0;
}
