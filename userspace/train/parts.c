// SPDX-License-Identifier: MIT
/*
 * parts.c: weights, optimizer state, best weights and confusion matrix in parts of at most
 * CTL_PART_MAX bytes, out and in.
 *
 * Optimizer state, packed, little-endian, for each slot: u32 length of its name, the name, u64
 * applied updates, then every tensor of the parameter arena in parameter order, f32. No gaps of the
 * arena. What comes in is staged in the copies and reaches the net only when all of it is there and
 * has been checked.
 */
#include "hosts.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blobs are copied as they are");

/* ---- optimizer state as a stream of bytes ---- */

static uint32_t head_bytes(struct train *t, uint32_t slot)
{
	return (uint32_t)(sizeof(uint32_t) + strlen(backend_slot_name(t->net, slot)) +
			  sizeof(uint64_t));
}

static uint64_t optimizer_bytes(struct train *t)
{
	uint64_t tensors = 0, bytes = 0;

	for (uint32_t i = 0; i < t->graph->n_tensors; i++)
		if (t->graph->tensor[i].arena == BACKEND_PARAM)
			tensors += t->graph->tensor[i].count * sizeof(float);
	for (uint32_t s = 0; s < t->slots; s++)
		bytes += head_bytes(t, s) + tensors;
	return bytes;
}

static void fill_heads(struct train *t)
{
	for (uint32_t s = 0; s < t->slots; s++) {
		const char *name = backend_slot_name(t->net, s);
		uint32_t n = (uint32_t)strlen(name);
		uint64_t updates = t->t;

		memcpy(t->head[s], &n, sizeof(n));
		memcpy(t->head[s] + sizeof(n), name, n);
		memcpy(t->head[s] + sizeof(n) + n, &updates, sizeof(updates));
	}
}

struct window {
	uint8_t *buffer;
	uint64_t offset, n; /* bytes [offset, offset + n) of the stream are in buffer */
	bool in;	    /* buffer to state, else state to buffer */
};

/* The piece [at, at + bytes) of the stream, held at state. */
static void copy_piece(const struct window *w, uint64_t at, uint64_t bytes, uint8_t *state)
{
	uint64_t from = at > w->offset ? at : w->offset;
	uint64_t to = at + bytes < w->offset + w->n ? at + bytes : w->offset + w->n;

	if (from >= to)
		return;
	if (w->in)
		memcpy(state + (from - at), w->buffer + (from - w->offset), to - from);
	else
		memcpy(w->buffer + (from - w->offset), state + (from - at), to - from);
}

static void optimizer_copy(struct train *t, const struct window *w, float *slots)
{
	uint64_t at = 0;

	for (uint32_t s = 0; s < t->slots; s++) {
		float *slot = slots + s * t->graph->param_floats;

		copy_piece(w, at, head_bytes(t, s), t->head[s]);
		at += head_bytes(t, s);
		for (uint32_t i = 0; i < t->graph->n_tensors; i++) {
			const struct backend_tensor *tensor = &t->graph->tensor[i];

			if (tensor->arena != BACKEND_PARAM)
				continue;
			copy_piece(w, at, tensor->count * sizeof(float),
				   (uint8_t *)(slot + tensor->offset));
			at += tensor->count * sizeof(float);
		}
	}
}

/* ---- out ---- */

static int none(struct err *err, const char *what)
{
	return err_set(err, ERR_PARAM, -ENOENT, "there is no %s", what);
}

/* Bytes of a kind; the copies are brought up to date. */
static int open_kind(struct train *t, uint32_t kind, uint64_t *total, struct err *err)
{
	int rc = 0;

	switch (kind) {
	case CTL_WEIGHTS:
		*total = model_blob_bytes(t->setup.model);
		if (t->model_param)
			return 0;
		if (!t->held_weights)
			rc = train_read_net(t, t->param, t->stat, NULL, err);
		t->held_weights = !rc;
		return rc;
	case CTL_BEST:
		*total = model_blob_bytes(t->setup.model);
		return t->has_best ? 0 : none(err, "snapshot of the weights");
	case CTL_OPTIMIZER:
		if (!t->slots || t->setup.inference)
			return none(err, "optimizer state");
		*total = optimizer_bytes(t);
		if (t->held_optimizer)
			return 0;
		fill_heads(t);
		if (t->several) /* the copies are not free: hosts may be between two merges */
			return train_stage_in(t, 0, BACKEND_SLOT, err);
		rc = train_read_net(t, t->param, t->stat, t->slot, err);
		t->held_weights = t->held_optimizer = !rc;
		return rc;
	case CTL_CONFUSION:
		*total = sizeof(uint32_t) + (uint64_t)t->classes * t->classes * sizeof(uint64_t);
		return t->has_confusion ? 0 : none(err, "confusion matrix");
	default:
		return none(err, "part of this kind");
	}
}

static int fill_part(struct train *t, uint32_t kind, uint64_t offset, uint64_t n, struct err *err)
{
	struct window w = {t->io, offset, n, false};
	const float *param = t->model_param ? t->model_param : t->param;
	const float *stat = t->model_param ? t->model_stat : t->stat;
	bool best = kind == CTL_BEST;
	int rc = 0;

	if (kind == CTL_OPTIMIZER) {
		optimizer_copy(t, &w, t->several ? train_host_arena(t, 0, BACKEND_SLOT) : t->slot);
	} else if (kind == CTL_CONFUSION) {
		memcpy(t->io, &t->classes, sizeof(uint32_t));
		if (t->classes)
			memcpy(t->io + sizeof(uint32_t), t->confusion, n - sizeof(uint32_t));
	} else {
		rc = model_blob_read(t->setup.model, best ? t->best_param : param,
				     best ? t->best_stat : stat, offset, t->io, n);
		if (rc)
			err_set(err, ERR_INTERNAL, rc, "reading weights: %s", strerror(-rc));
	}
	return rc;
}

int train_get(struct train *t, uint32_t kind, uint32_t part, struct ctl_part *out, struct err *err)
{
	uint64_t total = 0, parts, offset, n;
	int rc;

	t->put.active = false; /* the copies are about to be used */
	rc = open_kind(t, kind, &total, err);
	if (rc)
		return rc;
	parts = total ? (total + CTL_PART_MAX - 1) / CTL_PART_MAX : 1;
	if (part >= parts)
		return err_set(err, ERR_PARAM, -EINVAL, "part %u of %" PRIu64 " was asked for",
			       part, parts);
	offset = (uint64_t)part * CTL_PART_MAX;
	n = total - offset < CTL_PART_MAX ? total - offset : CTL_PART_MAX;
	rc = fill_part(t, kind, offset, n, err);
	if (rc)
		return rc;
	*out = (struct ctl_part){
		.kind = kind,
		.part = part,
		.parts = (uint32_t)parts,
		.total = total,
		.data = ctl_str((const char *)t->io, n),
	};
	return 0;
}

/* ---- in ---- */

static int begin_put(struct train *t, const struct ctl_part *part, struct err *err)
{
	uint64_t expected;
	int rc;

	if (part->kind == CTL_WEIGHTS) {
		rc = model_blob_check(t->setup.model, part->total, err);
		if (rc)
			return rc;
		t->held_weights = false;
	} else if (part->kind == CTL_OPTIMIZER && !t->setup.inference) {
		expected = optimizer_bytes(t);
		if (!t->slots || part->total != expected) {
			err_set(err, ERR_PARAM, -EINVAL,
				"the optimizer state has %" PRIu64 " bytes, this optimizer needs "
				"%" PRIu64,
				part->total, expected);
			err_hint(err, "Use the optimizer that it was made with, or leave it away.");
			return -EINVAL;
		}
		t->held_optimizer = false;
	} else {
		return err_set(err, ERR_PARAM, -EINVAL, "parts of kind %u cannot be put here",
			       part->kind);
	}
	t->put = (struct train_put_state){
		.kind = part->kind,
		.parts = part->parts,
		.total = part->total,
		.active = true,
	};
	return 0;
}

static int check_part(struct train *t, const struct ctl_part *part, struct err *err)
{
	const struct train_put_state *p = &t->put;
	bool last = part->part + 1 == part->parts;
	uint64_t n = part->data.n;

	if (!p->active || part->kind != p->kind || part->part != p->next ||
	    part->parts != p->parts || part->total != p->total)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "part %u of %u of kind %u is out of order", part->part, part->parts,
			       part->kind);
	if (n > CTL_PART_MAX || n > p->total - p->got || (!n && p->total) ||
	    (last ? n != p->total - p->got : n == p->total - p->got) ||
	    (part->kind == CTL_WEIGHTS && n % sizeof(float)))
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "part %u of %u has %" PRIu64 " bytes, %" PRIu64 " of %" PRIu64
			       " are there",
			       part->part, part->parts, n, p->got, p->total);
	return 0;
}

static int stage(struct train *t, const struct ctl_part *part, struct err *err)
{
	struct window w = {(uint8_t *)part->data.p, t->put.got, part->data.n, true};
	int rc;

	if (part->kind == CTL_OPTIMIZER) {
		optimizer_copy(t, &w, t->slot);
		return 0;
	}
	rc = model_blob_write(t->setup.model, t->param, t->stat, t->put.got, part->data.p,
			      part->data.n);
	return rc ? err_set(err, ERR_INTERNAL, rc, "writing weights: %s", strerror(-rc)) : 0;
}

static int apply_weights(struct train *t, struct err *err)
{
	int rc;

	for (uint32_t i = 0; i < t->graph->n_tensors; i++) {
		const struct backend_tensor *tensor = &t->graph->tensor[i];
		const float *arena = tensor->arena == BACKEND_PARAM ? t->param : t->stat;

		if (!train_finite(arena + tensor->offset, tensor->count))
			return err_set(err, ERR_PARAM, -EINVAL,
				       "the weights hold NaN or infinite values, in %s",
				       tensor->name);
	}
	t->held_weights = true;
	t->model_param = t->model_stat = NULL;
	if (t->hosts)
		t->hosts->fresh = true;
	rc = train_write_net(t, t->param, t->stat, NULL, err);
	if (!rc && t->average.mean)
		rc = train_average_reset(t, err);
	return rc;
}

static int apply_optimizer(struct train *t, struct err *err)
{
	uint64_t updates = 0, first = 0, slots = t->graph->param_floats * t->slots;
	int rc = 0;

	for (uint32_t s = 0; s < t->slots; s++) {
		const char *name = backend_slot_name(t->net, s);
		uint32_t n;

		memcpy(&n, t->head[s], sizeof(n));
		if (n != strlen(name) || memcmp(t->head[s] + sizeof(n), name, n))
			return err_set(err, ERR_PARAM, -EINVAL,
				       "the optimizer state has no slot '%s' in place %u", name, s);
		memcpy(&updates, t->head[s] + sizeof(n) + n, sizeof(updates));
		if (!s)
			first = updates;
		if (updates != first || updates >= (1ull << 53))
			return err_set(err, ERR_PARAM, -EINVAL,
				       "the optimizer state has no valid step count");
	}
	if (!train_finite(t->slot, slots))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "the optimizer state holds NaN or infinite values");
	for (uint32_t k = 0; !rc && k < t->replicas; k++)
		rc = backend_write(t->replica[k], BACKEND_SLOT, 0, slots, t->slot);
	if (rc)
		return train_device_err(t, 0, err, rc, "writing optimizer state");
	t->t = updates;
	t->held_optimizer = true;
	return 0;
}

int train_put(struct train *t, const struct ctl_part *part, struct err *err)
{
	int rc = 0;

	if (!part->parts || part->part >= part->parts || (part->data.n && !part->data.p))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "part %u of %u", part->part,
			       part->parts);
	if (!part->part) {
		t->put.active = false;
		rc = begin_put(t, part, err);
	}
	if (!rc)
		rc = check_part(t, part, err);
	if (!rc)
		rc = stage(t, part, err);
	if (rc) {
		t->put.active = false;
		return rc;
	}
	t->put.got += part->data.n;
	t->put.next++;
	if (t->put.next < t->put.parts)
		return 0;
	t->put.active = false;
	return part->kind == CTL_WEIGHTS ? apply_weights(t, err) : apply_optimizer(t, err);
}
