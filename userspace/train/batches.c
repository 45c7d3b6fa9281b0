// SPDX-License-Identifier: MIT
/*
 * batches.c: the rows of a step for all replicas of the host, read at once and cut into their
 * parts. Rows of the steps to come are read while a step is computed, so that a device can fetch
 * the next ones meanwhile; or the devices hold all training rows of this host, each of them, since
 * every epoch deals them anew, and a batch names rows by number.
 */
#include "team.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The step in work, the one a device may fetch rows of, the one that is read. */
#define AHEAD 3u

struct batches {
	uint32_t depth; /* steps that are kept; 1: the step in work alone */
	bool resident;
	struct {
		bool there;
		uint64_t step;
		struct backend_batch batch;
	} kept[AHEAD];
};

bool train_batches_wanted(const struct train *t)
{
	return !t->setup.inference &&
	       (backend_on_device(t->setup.backend) || train_replicas_apart(t));
}

/* ---- rows that stay on the devices ---- */

/* Places of all rows in canonical order, malloc'd; NULL where some are not in memory. */
static const void **all_rows(struct train *t, struct err *err, int *rc)
{
	const void **x = malloc((t->rows + 1) * sizeof(*x));
	struct data_reader *reader = NULL;

	*rc = x ? data_reader_open(t->setup.data, ROW_TRAIN, t->max_batch, false, &reader, err)
		: err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	for (uint64_t at = 0; !*rc && at < t->rows; at += t->max_batch) {
		uint64_t n = t->rows - at < t->max_batch ? t->rows - at : t->max_batch;
		struct backend_batch batch = {0};

		*rc = data_reader_batch(reader, at, (uint32_t)n, &batch, err);
		if (!*rc)
			memcpy(x + at, batch.x, n * sizeof(*x));
	}
	if (reader)
		data_reader_close(reader);
	if (*rc) {
		free(x);
		return NULL;
	}
	return x;
}

static int offer_one(struct train *t, const void *const *x, uint32_t n, bool *kept, struct err *err)
{
	struct backend_error error = {""};
	int rc = backend_resident(t->net, x, n, &error);

	*kept = !rc;
	if (!rc || rc == -ENOSPC || rc == -EOPNOTSUPP)
		return 0;
	return train_backend_err(err, rc, &error, "taking the rows in");
}

/* *kept: every device has taken them. */
static int offer(struct train *t, const void *const *x, uint32_t n, bool *kept, struct err *err)
{
	struct team_order order = {.what = TEAM_ROWS, .x = x, .n = n, .patience = 60};
	int rc;

	if (!t->team)
		return offer_one(t, x, n, kept, err);
	rc = train_team_run(t, &order, err);
	*kept = !rc;
	for (uint32_t k = 0; !rc && k < t->replicas; k++)
		*kept &= train_team_part(t, k)->kept;
	return rc;
}

static int upload(struct train *t, struct err *err)
{
	struct batches *b = t->batches;
	const void **x;
	bool kept = false;
	int rc;

	if (!t->setup.resident || !t->rows || t->rows > UINT32_MAX || b->depth == 1 ||
	    !backend_on_device(t->setup.backend))
		return 0;
	x = all_rows(t, err, &rc);
	if (rc)
		return rc;
	rc = offer(t, x, (uint32_t)t->rows, &kept, err);
	free(x);
	if (!rc && kept && data_reader_by_index(t->shuffled))
		kept = false;
	b->resident = kept;
	if (!rc && !kept)
		rc = offer(t, NULL, 0, &kept, err);
	return rc;
}

/* ---- open, close ---- */

int train_batches_open(struct train *t, struct err *err)
{
	struct batches *b = t->batches;
	int rc = 0;

	if (!b)
		b = t->batches = calloc(1, sizeof(*b));
	if (!b)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	memset(b, 0, sizeof(*b));
	b->depth = 1;
	if (t->shuffled)
		rc = data_reader_keep(t->shuffled, AHEAD);
	if (rc && rc != -EOPNOTSUPP)
		return err_set(err, ERR_LIMIT, rc, "out of memory for batches of %u rows",
			       t->host_batch);
	if (!rc)
		b->depth = AHEAD;
	return upload(t, err);
}

void train_batches_drop(struct train *t)
{
	struct batches *b = t->batches;
	bool kept;

	if (!b)
		return;
	train_batches_epoch(t);
	if (b->resident && !train_team_broken(t))
		offer(t, NULL, 0, &kept,
		      NULL); /* fails on a lost device, and is of no need there */
	b->resident = false;
}

void train_batches_close(struct train *t)
{
	free(t->batches);
	t->batches = NULL;
}

bool train_resident(const struct train *t)
{
	return t->batches && t->batches->resident;
}

/* ---- steps ---- */

void train_batches_epoch(struct train *t)
{
	for (uint32_t i = 0; t->batches && i < AHEAD; i++)
		t->batches->kept[i].there = false;
}

static const struct backend_batch *find(const struct batches *b, uint64_t s)
{
	for (uint32_t i = 0; i < b->depth; i++)
		if (b->kept[i].there && b->kept[i].step == s)
			return &b->kept[i].batch;
	return NULL;
}

static int read_step(struct train *t, uint64_t s, struct err *err)
{
	struct steps_range host = train_steps_of_host(t->rows, t->steps, s);
	struct batches *b = t->batches;
	uint32_t i = (uint32_t)(s % b->depth);
	struct metric_batch labels;
	int rc = 0;

	if (find(b, s))
		return 0;
	b->kept[i].there = false;
	memset(&b->kept[i].batch, 0, sizeof(b->kept[i].batch));
	if (host.n)
		rc = train_batch(t, t->shuffled, host.first, (uint32_t)host.n, &b->kept[i].batch,
				 &labels, err);
	b->kept[i].step = s;
	b->kept[i].there = !rc;
	return rc;
}

int train_batches_step(struct train *t, uint64_t s, struct err *err)
{
	int rc = read_step(t, s, err);

	if (!rc && t->batches->depth > 1 && s + 1 < t->steps)
		rc = read_step(t, s + 1, err);
	return rc;
}

int train_batches_ahead(struct train *t, uint64_t s, struct err *err)
{
	return t->batches->depth > 2 && s + 2 < t->steps ? read_step(t, s + 2, err) : 0;
}

static void cut(const struct train *t, const struct backend_batch *all, uint64_t at, uint64_t n,
		struct backend_batch *out)
{
	*out = (struct backend_batch){.n = (uint32_t)n};
	if (!n)
		return;
	out->x = all->x ? all->x + at : NULL;
	out->index = all->index ? all->index + at : NULL;
	out->hash = all->hash ? all->hash + at : NULL;
	out->weight = all->weight ? all->weight + at : NULL;
	out->label = all->label ? all->label + at : NULL;
	out->target = all->target ? all->target + at * t->info->outputs : NULL;
}

void train_batches_part(struct train *t, uint64_t s, uint32_t k, struct batch_part *part)
{
	struct steps_range host = train_steps_of_host(t->rows, t->steps, s);
	struct steps_range mine = train_steps_of_replica(host, t->replicas, k);
	const struct backend_batch *now = find(t->batches, s), *then = NULL;
	uint64_t at = mine.first - host.first;

	cut(t, now, at, mine.n, &part->batch);
	part->outputs = t->outputs + at * t->info->outputs;
	part->metrics = (struct metric_batch){
		.n = (uint32_t)mine.n,
		.outputs = t->info->outputs,
		.value = part->outputs,
		.label = t->loss.labels ? part->batch.label : NULL,
		.target = part->batch.target,
	};
	if (s + 1 < t->steps)
		then = find(t->batches, s + 1);
	if (!then)
		return;
	host = train_steps_of_host(t->rows, t->steps, s + 1);
	mine = train_steps_of_replica(host, t->replicas, k);
	cut(t, then, mine.first - host.first, mine.n, &part->next);
	part->batch.next = &part->next;
}
