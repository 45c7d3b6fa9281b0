// SPDX-License-Identifier: MIT
/*
 * hosts.c: the calls that the hosts of a training make together, and what happens to them when a
 * host is lost in one. hosts.h says how calls are kept in step.
 */
#include "hosts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 8 /* of one call, each after a recovery */

const char *train_hosts_name(const struct train *t, uint32_t identity, char room[32])
{
	if (t->setup.host_name && t->setup.host_name[identity])
		return t->setup.host_name[identity];
	snprintf(room, 32, "host %u", identity + 1);
	return room;
}

int train_merge_err(struct train *t, struct err *err, int rc, const struct merge_error *error,
		    const char *what)
{
	const char *text = *error->message ? error->message : strerror(-rc), *name;
	bool named = t->hosts && error->host < t->hosts->n_start;
	enum err_kind kind = rc == -ENOMEM		      ? ERR_LIMIT
			     : rc == -EINVAL || rc == -EPROTO ? ERR_INTERNAL
							      : ERR_LOST;
	char room[32];

	if (rc == -ECANCELED || atomic_load(&t->cancel))
		return err_set(err, ERR_CANCELED, -ECANCELED, "the job was ended");
	name = named ? train_hosts_name(t, error->host, room) : "";
	if (named && !strstr(text, name))
		return err_set(err, kind, rc, "%s: %s: %s", what, name, text);
	return err_set(err, kind, rc, "%s: %s", what, text);
}

uint64_t train_hosts_rows(const struct train *t, uint64_t first, uint64_t last)
{
	const struct hosts *h = t->hosts;
	uint64_t rows = 0;

	for (uint32_t r = 0; r < h->n; r++) {
		uint64_t n = h->fact[h->member[r]].rows;

		rows += train_steps_of_host(n, t->steps, last).first -
			train_steps_of_host(n, t->steps, first).first;
	}
	return rows;
}

bool train_hosts_validation(const struct train *t)
{
	const struct hosts *h = t->hosts;

	for (uint32_t r = 0; r < h->n; r++)
		if (h->fact[h->member[r]].validation_rows)
			return true;
	return false;
}

uint64_t train_hosts_position(const struct train *t, uint64_t s)
{
	const struct hosts *h = t->hosts;
	uint64_t rows = 0;

	for (uint32_t r = 0; r < h->n && h->member[r] != h->self; r++)
		rows += train_steps_of_host(h->fact[h->member[r]].rows, t->steps, s).n;
	return rows;
}

/* ---- recovery ---- */

/* What survivors tell each other of the calls. */
struct position {
	uint32_t self, flags;
	uint64_t done, staged;
};

/* One recovery of the net and the merge, and the positions of all that are left. */
static int meet_again(struct train *t, struct merge_result *result, struct position *all,
		      struct merge_error *error)
{
	struct hosts *h = t->hosts;
	struct position mine = {h->self, h->flags, h->done, h->staged};
	struct merge_result one;
	int rc;

	/* another host may be lost on the way */
	for (int tries = 0;; tries++) {
		rc = merge_recover(h->merge, h->net, &h->arenas, &one, error);
		if (rc)
			return rc;
		one.rolled_forward |= result->rolled_forward;
		one.adopted |= result->adopted;
		*result = one;
		rc = merge_all_gather(h->net, &mine, sizeof(mine), all, error);
		if (!rc || rc == -ECANCELED || tries == TRIES)
			return rc;
	}
}

/*
 * After `call` failed with *error: with the survivors again. *made: a survivor has made the call,
 * and so has this host now; result and h->flags are those of the call.
 */
static int recover(struct train *t, uint64_t call, const struct merge_error *error, bool *made,
		   struct merge_result *result, struct err *err)
{
	struct hosts *h = t->hosts;
	struct position all[MERGE_HOSTS_MAX];
	struct merge_error second = {0};
	uint64_t top = 0;
	uint32_t flags = 0;
	int rc = error->code;

	*made = false;
	memset(result, 0, sizeof(*result));
	if (!rc)
		rc = -EIO;
	if (rc == -EINVAL || rc == -ENOMEM || !h->merge)
		return train_merge_err(t, err, rc, error, "merging");
	if (rc == -ECANCELED || meet_again(t, result, all, &second)) {
		rc = train_merge_err(t, err, second.code == -ECANCELED ? -ECANCELED : rc, error,
				     "merging");
		if (rc != -ECANCELED && *second.message && second.code != -ENOTSUP)
			err_hint(err, "Going on without it failed: %.200s", second.message);
		return rc;
	}
	h->n = merge_net_size(h->net);
	for (uint32_t r = 0; r < h->n; r++) {
		if (all[r].self >= h->n_start)
			return err_set(err, ERR_PROTOCOL, -EPROTO, "merging: a host %u of %u",
				       all[r].self, h->n_start);
		h->member[r] = all[r].self;
		if (all[r].done > top) {
			top = all[r].done;
			flags = all[r].flags;
		}
	}
	/* it has no place in the others' loop; when it goes they go on again */
	if (result->adopted || top > call)
		return err_set(err, ERR_LOST, -ESTALE,
			       "merging: this host came back when the others had gone on without "
			       "it");
	*made = top == call;
	if (*made && !result->rolled_forward && h->staged != call && !(flags & MERGE_FLAG_BAD))
		return err_set(err, ERR_INTERNAL, -EPROTO,
			       "merging: call %" PRIu64 " was made without this host", call);
	h->flags = flags;
	return 0;
}

static void end_call(struct hosts *h, uint64_t call, uint32_t flags, double start)
{
	h->done = call;
	h->staged = 0;
	h->flags = flags;
	h->seconds += train_now() - start;
}

/* All have the data of the call: whoever gets past this may use it. */
static int barrier(struct train *t, uint64_t call, struct merge_error *error)
{
	uint64_t seen[MERGE_HOSTS_MAX];
	int rc;

	t->hosts->staged = call;
	rc = merge_all_gather(t->hosts->net, &call, sizeof(call), seen, error);
	for (uint32_t r = 0; !rc && r < t->hosts->n; r++)
		if (seen[r] != call) {
			snprintf(error->message, sizeof(error->message),
				 "call %" PRIu64 " here, %" PRIu64 " there", call, seen[r]);
			error->host = t->hosts->member[r];
			rc = error->code = -EINVAL;
		}
	return rc;
}

/* ---- the calls ---- */

int train_hosts_gather(struct train *t, const void *in, size_t bytes, const uint8_t **out,
		       uint32_t *n, struct err *err)
{
	struct hosts *h = t->hosts;
	struct merge_error error = {0};
	struct merge_result result;
	uint64_t call = h->done + 1;
	double start = train_now();
	bool made = false;

	if (bytes > h->gather_bytes)
		return err_set(err, ERR_INTERNAL, -EMSGSIZE, "a word of %zu bytes", bytes);
	for (int tries = 0; !made; tries++) {
		int rc;

		*n = h->n;
		h->staged = 0;
		rc = merge_all_gather(h->net, in, bytes, h->gather, &error);
		if (!rc)
			rc = barrier(t, call, &error);
		if (!rc)
			break;
		if (tries == TRIES)
			return train_merge_err(t, err, rc, &error, "a word between the hosts");
		error.code = rc;
		rc = recover(t, call, &error, &made, &result, err);
		if (rc)
			return rc;
	}
	end_call(h, call, 0, start);
	*out = h->gather;
	return 0;
}

int train_hosts_word(struct train *t, uint32_t word, uint32_t *all, struct err *err)
{
	const uint8_t *out;
	uint32_t n, one;
	int rc = train_hosts_gather(t, &word, sizeof(word), &out, &n, err);

	*all = word;
	for (uint32_t r = 0; !rc && r < n; r++) {
		memcpy(&one, out + r * sizeof(one), sizeof(one));
		*all |= one;
	}
	return rc;
}

int train_hosts_copy(struct train *t, const float *stat, struct err *err)
{
	struct hosts *h = t->hosts;
	struct merge_arenas arenas = h->arenas;
	struct merge_error error = {0};
	struct merge_result result;
	uint64_t call = h->done + 1;
	double start = train_now();
	bool made = false;

	arenas.stat = (float *)stat;
	for (int tries = 0; !made; tries++) {
		int rc;

		h->staged = 0;
		rc = merge_copy(h->merge, h->net, &arenas, h->samples, t->copy_param, t->copy_stat,
				&error);
		if (!rc)
			rc = barrier(t, call, &error);
		if (!rc)
			break;
		if (tries == TRIES)
			return train_merge_err(t, err, rc, &error, "a copy of the merged model");
		error.code = rc;
		rc = recover(t, call, &error, &made, &result, err);
		if (rc)
			return rc;
	}
	end_call(h, call, 0, start);
	return 0;
}

int train_settle(struct train *t, struct err *err)
{
	struct merge_error error = {.code = -ECONNRESET, .host = MERGE_NO_HOST};
	struct merge_result result;
	bool made = false;
	int rc;

	if (!t->hosts || !t->hosts->merge)
		return 0;
	snprintf(error.message, sizeof(error.message), "a fault between two runs");
	rc = recover(t, t->hosts->done + 1, &error, &made, &result, err);
	if (!rc && made)
		rc = err_set(err, ERR_INTERNAL, -EPROTO,
			     "merging: a call was made without this host");
	return rc;
}

struct merge_call {
	bool gradient;
	double lr;
	uint64_t first, last; /* gradient: steps behind it */
	uint64_t *rows;
};

/* The gradient was made for the rows of all; some are gone. */
static void rescale(struct train *t, const struct merge_call *c)
{
	uint64_t left = train_hosts_rows(t, c->first, c->last);
	float factor = left ? (float)((double)*c->rows / (double)left) : 0;
	float *grad = t->hosts->arenas.grad;

	if (left == *c->rows)
		return;
	for (uint64_t i = 0; i < t->graph->param_floats; i++)
		grad[i] *= factor;
	*c->rows = left;
}

static int call_merge(struct train *t, const struct merge_call *c, uint32_t *flags, struct err *err)
{
	struct hosts *h = t->hosts;
	struct merge_error error = {0};
	struct merge_result result;
	uint64_t call = h->done + 1;
	double start = train_now();
	bool made = false;

	for (int tries = 0; !made; tries++) {
		int rc;

		h->staged = 0;
		if (c->gradient)
			rc = merge_run_gradient(h->merge, h->net, &h->arenas, *c->rows, *flags,
						&result, &error);
		else
			rc = merge_run(h->merge, h->net, &h->arenas, h->samples, c->lr, *flags,
				       &result, &error);
		if (!rc) {
			*flags = result.flags;
			break;
		}
		if (tries == TRIES)
			return train_merge_err(t, err, rc, &error, "merging");
		error.code = rc;
		rc = recover(t, call, &error, &made, &result, err);
		if (rc)
			return rc;
		if (made)
			*flags = h->flags;
		else if (c->gradient)
			rescale(t, c);
	}
	end_call(h, call, *flags, start);
	if (*flags & MERGE_FLAG_BAD)
		return 0;
	h->merges++;
	h->bytes += result.bytes;
	h->last = result;
	if (!c->gradient && !made)
		h->distance = result.distance;
	return 0;
}

int train_hosts_merge(struct train *t, double lr, uint32_t *flags, struct err *err)
{
	struct merge_call c = {.lr = lr};

	return call_merge(t, &c, flags, err);
}

int train_hosts_gradient(struct train *t, uint64_t first, uint64_t last, uint64_t *rows,
			 uint32_t *flags, struct err *err)
{
	struct merge_call c = {.gradient = true, .first = first, .last = last, .rows = rows};

	return call_merge(t, &c, flags, err);
}
