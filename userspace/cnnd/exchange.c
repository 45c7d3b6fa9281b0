// SPDX-License-Identifier: MIT
/*
 * exchange.c: training rows between the hosts, once, before the first epoch: rounds of blocks over
 * the merge network until no host has any left. A block begins with the word of its sender whether
 * it has more, so all hosts see the end in the same round. Counts and checksums of all are compared
 * on all.
 */
#include "hosts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "work.h"

#define HEAD 8u /* more: 1, padding */

struct exchange {
	struct job *job;
	uint32_t n, self;
	size_t block; /* bytes of rows */
	uint8_t *memory;
	const void *send[CTL_HOSTS_MAX];
	void *recv[CTL_HOSTS_MAX];
	size_t send_bytes[CTL_HOSTS_MAX], recv_bytes[CTL_HOSTS_MAX];
};

/* The same on all hosts: from what all agreed upon. */
static size_t block_bytes(const struct agree_block *a)
{
	uint64_t row =
		(uint64_t)a->h * a->w * a->c * backend_dtype_bytes((enum backend_dtype)a->dtype);

	if (a->labels == AGREE_VECTOR)
		row += (uint64_t)a->outputs * sizeof(float);
	/* a row's own bytes and, as for small ones, what is kept beside */
	return DATA_EXCHANGE_BLOCK + (row < (256u << 10) ? 0 : (size_t)row);
}

static int open_blocks(struct exchange *x, struct err *err)
{
	struct daemon *d = x->job->daemon;
	size_t each = x->block + HEAD, at = 0;
	uint64_t bytes = (uint64_t)each * 2 * (x->n - 1);
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = memory_take(x->job->memory, MEMORY_VALUES, bytes, err);
	pthread_mutex_unlock(&d->lock);
	if (rc)
		return rc;
	x->memory = malloc(bytes);
	if (!x->memory) {
		pthread_mutex_lock(&d->lock);
		memory_give(x->job->memory, MEMORY_VALUES, bytes);
		pthread_mutex_unlock(&d->lock);
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for an exchange of rows");
	}
	for (uint32_t i = 0; i < x->n; i++) {
		if (i == x->self)
			continue;
		x->send[i] = x->memory + at;
		x->recv[i] = x->memory + at + each;
		at += 2 * each;
	}
	return 0;
}

static void close_blocks(struct exchange *x)
{
	struct daemon *d = x->job->daemon;

	free(x->memory);
	pthread_mutex_lock(&d->lock);
	memory_give(x->job->memory, MEMORY_VALUES, (uint64_t)(x->block + HEAD) * 2 * (x->n - 1));
	pthread_mutex_unlock(&d->lock);
}

/* Fills the blocks of a round; *more: something is in one of them. */
static int take(struct exchange *x, bool *more, struct err *err)
{
	*more = false;
	for (uint32_t i = 0; i < x->n; i++) {
		size_t bytes = 0;
		int rc;

		if (i == x->self)
			continue;
		rc = data_exchange_take(x->job->data, i, (uint8_t *)x->send[i] + HEAD, x->block,
					&bytes, err);
		if (rc == -E2BIG)
			return err_set(err, ERR_LIMIT, rc,
				       "a row does not fit into a block of %zu bytes of the "
				       "exchange",
				       x->block);
		if (rc)
			return rc;
		x->send_bytes[i] = HEAD + bytes;
		*more |= bytes > 0;
	}
	for (uint32_t i = 0; i < x->n; i++)
		if (i != x->self) {
			memset((uint8_t *)x->send[i], 0, HEAD);
			*(uint8_t *)x->send[i] = *more;
		}
	return 0;
}

static int give(struct exchange *x, bool *more, struct err *err)
{
	for (uint32_t i = 0; i < x->n; i++) {
		const uint8_t *p = x->recv[i];
		int rc;

		if (i == x->self)
			continue;
		if (x->recv_bytes[i] < HEAD || p[0] > 1)
			return err_set(err, ERR_PROTOCOL, -EPROTO,
				       "host %u sent a malformed block of rows", i);
		*more |= p[0];
		if (x->recv_bytes[i] == HEAD)
			continue;
		rc = data_exchange_give(x->job->data, p + HEAD, x->recv_bytes[i] - HEAD, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int rounds(struct exchange *x, struct err *err)
{
	struct merge_error why;
	bool more = true;
	int rc;

	while (more) {
		rc = take(x, &more, err);
		if (rc)
			return rc;
		rc = merge_all_to_all(x->job->net, x->send, x->send_bytes, x->block + HEAD, x->recv,
				      x->recv_bytes, &why);
		if (rc)
			return hosts_err(err, rc, &why, "exchange of rows");
		rc = give(x, &more, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* What went out came in, and all of it once. */
static int check(struct exchange *x, const struct data_exchange_counts *mine, struct err *err)
{
	struct data_exchange_counts all[CTL_HOSTS_MAX], sum = {0};
	const uint64_t agreed = x->job->agreed.rows[ROW_TRAIN];
	struct merge_error why;
	int rc = merge_all_gather(x->job->net, mine, sizeof(*mine), all, &why);

	if (rc)
		return hosts_err(err, rc, &why, "exchange of rows");
	for (uint32_t i = 0; i < x->n; i++) {
		sum.sent += all[i].sent;
		sum.received += all[i].received;
		sum.kept += all[i].kept;
		sum.sum_before += all[i].sum_before;
		sum.sum_after += all[i].sum_after;
	}
	if (sum.sent != sum.received || sum.sum_before != sum.sum_after ||
	    (!x->job->refeed && sum.kept + sum.received != agreed))
		return err_set(err, ERR_INTERNAL, -EBADMSG,
			       "exchange of rows: %" PRIu64 " sent, %" PRIu64 " received, %" PRIu64
			       " kept of %" PRIu64 ", checksums %016" PRIx64 " and %016" PRIx64,
			       sum.sent, sum.received, sum.kept, agreed, sum.sum_before,
			       sum.sum_after);
	return 0;
}

int exchange_rows(struct job *job, struct err *err)
{
	struct exchange x = {.job = job,
			     .n = merge_net_size(job->net),
			     .self = merge_net_rank(job->net),
			     .block = block_bytes(&job->agreed)};
	struct data_exchange_counts counts = {0};
	uint64_t from = now_ms();
	int rc = open_blocks(&x, err);

	if (rc)
		return rc;
	work_wait(job, "exchange of rows");
	rc = data_exchange_begin(job->data, x.n, x.self, err);
	if (!rc)
		rc = rounds(&x, err);
	if (!rc)
		rc = data_exchange_end(job->data, &counts, err);
	if (!rc)
		rc = check(&x, &counts, err);
	close_blocks(&x);
	if (rc)
		return rc;
	job->rows_moved = counts.received;
	job->seconds_exchange = (double)(now_ms() - from) / 1000;
	return 0;
}
