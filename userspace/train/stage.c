// SPDX-License-Identifier: MIT
/*
 * stage.c: arenas in host memory, where the nets keep theirs on devices: what is summed over
 * replicas or merged with other hosts is read from the devices, worked on here, and written back.
 * Where the arenas of the nets lie in host memory there are no copies, and these calls do nothing.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct stage {
	float *memory;
	float *param, *slot;		 /* of replica 0, and for all */
	float *stat[TRAIN_REPLICAS_MAX]; /* of each */
	float *grad[TRAIN_REPLICAS_MAX]; /* of each; NULL: nobody sums */
};

int train_device_err(const struct train *t, uint32_t k, struct err *err, int rc, const char *what)
{
	const struct backend *b = t->setup.backends[k % t->setup.n_backends];

	if (backend_on_device(b))
		return err_set(err, ERR_INTERNAL, rc, "%s: %s (%s)", what, strerror(-rc),
			       backend_info(b));
	return err_set(err, ERR_INTERNAL, rc, "%s: %s", what, strerror(-rc));
}

static bool wanted(const struct train *t)
{
	return t->several && backend_on_device(t->setup.backend);
}

/* NCCL needs none; of what it has summed one goes to the other hosts. */
static uint32_t gradients(const struct train *t)
{
	if (t->nccl)
		return t->setup.net ? 1 : 0;
	return t->replicas > 1 || t->setup.net ? t->replicas : 0;
}

/* Every arena of it begins where a tensor may. */
static uint64_t rounded(uint64_t floats)
{
	const uint64_t each = BACKEND_ALIGN / sizeof(float);

	return (floats + each - 1) / each * each;
}

uint64_t train_stage_bytes(const struct train *t)
{
	uint64_t p = rounded(t->graph->param_floats), s = rounded(t->graph->stat_floats);

	if (!wanted(t))
		return 0;
	return ((1 + gradients(t)) * p + rounded(t->graph->param_floats * t->slots) +
		t->replicas * s) *
		       sizeof(float) +
	       sizeof(struct stage);
}

int train_stage_open(struct train *t, struct err *err)
{
	uint64_t p = rounded(t->graph->param_floats), s = rounded(t->graph->stat_floats);
	uint64_t bytes = train_stage_bytes(t);
	struct stage *st;
	float *at;

	if (!bytes)
		return 0;
	st = calloc(1, sizeof(*st));
	if (st)
		st->memory = aligned_alloc(BACKEND_ALIGN,
					   bytes / BACKEND_ALIGN * BACKEND_ALIGN + BACKEND_ALIGN);
	if (!st || !st->memory) {
		free(st);
		return err_set(err, ERR_LIMIT, -ENOMEM,
			       "out of memory for copies of what is on the devices");
	}
	memset(st->memory, 0, bytes);
	at = st->memory;
	st->param = at;
	at += p;
	st->slot = at;
	at += rounded(t->graph->param_floats * t->slots);
	for (uint32_t k = 0; k < t->replicas; k++, at += s)
		st->stat[k] = at;
	for (uint32_t k = 0; k < gradients(t); k++, at += p)
		st->grad[k] = at;
	t->stage = st;
	return 0;
}

void train_stage_close(struct train *t)
{
	if (t->stage)
		free(t->stage->memory);
	free(t->stage);
	t->stage = NULL;
}

float *train_host_arena(const struct train *t, uint32_t k, enum backend_arena arena)
{
	struct stage *st = t->stage;

	if (!st)
		return backend_host_arena(t->replica[k], arena);
	switch (arena) {
	case BACKEND_PARAM:
		return st->param;
	case BACKEND_STAT:
		return st->stat[k];
	case BACKEND_GRAD:
		return st->grad[t->nccl ? 0 : k];
	default:
		return t->slots ? st->slot : NULL;
	}
}

static uint64_t floats_of(const struct train *t, enum backend_arena arena)
{
	return arena == BACKEND_STAT   ? t->graph->stat_floats
	       : arena == BACKEND_SLOT ? t->graph->param_floats * t->slots
				       : t->graph->param_floats;
}

int train_stage_in(struct train *t, uint32_t k, enum backend_arena arena, struct err *err)
{
	uint64_t n = floats_of(t, arena);
	int rc = t->stage && n
			 ? backend_read(t->replica[k], arena, 0, n, train_host_arena(t, k, arena))
			 : 0;

	return rc ? train_device_err(t, k, err, rc, "reading from the device") : 0;
}

int train_stage_out(struct train *t, uint32_t k, enum backend_arena arena, struct err *err)
{
	uint64_t n = floats_of(t, arena);
	int rc = t->stage && n
			 ? backend_write(t->replica[k], arena, 0, n, train_host_arena(t, k, arena))
			 : 0;

	return rc ? train_device_err(t, k, err, rc, "writing to the device") : 0;
}

int train_stage_model(struct train *t, bool slots, struct err *err)
{
	int rc = train_stage_in(t, 0, BACKEND_PARAM, err);

	if (!rc)
		rc = train_stage_in(t, 0, BACKEND_STAT, err);
	return rc || !slots ? rc : train_stage_in(t, 0, BACKEND_SLOT, err);
}
