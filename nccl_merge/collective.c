/* SPDX-License-Identifier: MIT */
/*
 * collective.c: all-reduce and all-gather in terms of rounds. Direct: every host sends each other
 * host its shard, the owner reduces what all sent, and sends the result back: as many bytes as a
 * ring, in 2 rounds, with all N inputs in one place. Ring: f32 partial sums in ring order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

#define GRAIN 16u   /* elements; shards begin on cache lines */
#define STEP 16384u /* elements reduced at once while more arrives */

uint32_t merge_net_rank(const struct merge_net *net)
{
	return net->rank;
}

uint32_t merge_net_size(const struct merge_net *net)
{
	return net->size;
}

uint32_t merge_net_epoch(const struct merge_net *net)
{
	return net->epoch;
}

void merge_net_close(struct merge_net *net)
{
	if (!net)
		return;
	free(net->scratch);
	net->scratch = NULL;
	net->ops->close(net);
}

void merge_net_abort(struct merge_net *net)
{
	atomic_store(&net->aborted, true);
	if (net->ops->abort)
		net->ops->abort(net);
}

static int aborted(struct merge_error *error)
{
	return merge_fail(error, -ECANCELED, MERGE_NO_HOST, "the merge was ended on this host");
}

int merge_net_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	int rc;

	if (atomic_load(&net->aborted))
		return aborted(error);
	rc = net->ops->round(net, round, error);
	/* whatever broke first: the caller asked for this end */
	return rc && atomic_load(&net->aborted) ? aborted(error) : rc;
}

int merge_net_fault(struct merge_net *net, int code, uint32_t rank, const char *text,
		    struct merge_error *error)
{
	const char *name = NULL;
	uint32_t host = net->ops->identity ? net->ops->identity(net, rank, &name) : rank;

	if (net->ops->fault)
		net->ops->fault(net, code, rank, text);
	if (name)
		return merge_fail(error, code, host, "host %s: %s", name, text);
	return merge_fail(error, code, host, "rank %u: %s", rank, text);
}

void *merge_net_scratch(struct merge_net *net, size_t bytes)
{
	if (bytes <= net->lent_bytes)
		return net->lent;
	if (bytes > net->scratch_bytes) {
		free(net->scratch);
		net->scratch = merge_floats(bytes / sizeof(float) + 1);
		net->scratch_bytes = net->scratch ? bytes : 0;
	}
	return net->scratch;
}

/*
 * Fixed in source, so equal on all hosts of one version; the handshake compares the hash. Measured
 * on 4 network namespaces: from 4 MB on the ring was faster with 4 hosts (docs/merge.md).
 */
static const struct {
	uint32_t hosts;
	uint64_t ring_from;
} algorithm_table[] = {{2, UINT64_MAX}, {3, UINT64_MAX}, {4, 4u << 20}, {32, UINT64_MAX}, {256, 1}};

uint64_t merge_ring_threshold(uint32_t n)
{
	size_t i = 0;

	while (algorithm_table[i].hosts < n)
		i++;
	return algorithm_table[i].ring_from;
}

uint64_t merge_algorithm_hash(uint64_t ring_from)
{
	uint64_t h = ring_from;

	for (size_t i = 0; i < sizeof(algorithm_table) / sizeof(algorithm_table[0]); i++) {
		uint64_t entry[2] = {algorithm_table[i].hosts, algorithm_table[i].ring_from};

		h = merge_hash(h, entry, sizeof(entry));
	}
	return h;
}

static uint64_t shard(uint64_t count, uint32_t n, uint32_t i)
{
	uint64_t grains = (count + GRAIN - 1) / GRAIN;
	uint64_t at = (uint64_t)((unsigned __int128)grains * i / n) * GRAIN;

	return at < count ? at : count;
}

size_t merge_reduce_scratch(uint64_t count, uint32_t n)
{
	/* n shards, each rounded up to grains */
	return (count + 3ull * GRAIN * n) * sizeof(float) + 64;
}

struct direct {
	const struct merge_reduce *reduce;
	struct merge_xfer *x;
	uint32_t n_x, rank;
	size_t element;
	const char *in;		      /* this host's shard */
	char *out;		      /* result of the shard */
	uint64_t offset, count, done; /* elements */
	size_t ready;		      /* bytes of the result */
};

static void direct_progress(void *context)
{
	struct direct *d = context;
	const void *in[MERGE_HOSTS_MAX];
	uint64_t ready = d->count;

	for (uint32_t i = 0; i < d->n_x; i++)
		if (d->x[i].received / d->element < ready)
			ready = d->x[i].received / d->element; /* the first part is at most count */
	if (ready < d->count)
		ready = ready / STEP * STEP;
	if (ready <= d->done)
		return;
	for (uint32_t i = 0; i < d->n_x; i++)
		in[d->x[i].peer] = (const char *)d->x[i].recv + d->done * d->element;
	in[d->rank] = d->in + d->done * d->element;
	merge_reduce_range(d->reduce, d->offset + d->done, ready - d->done, in,
			   d->out + d->done * d->element);
	d->done = ready;
	d->ready = ready * d->element;
}

static int direct_all(struct merge_net *net, const struct merge_reduce *reduce, const char *in,
		      char *out, uint64_t count, size_t element, struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	uint32_t n = net->size, r = net->rank, k = 0;
	uint64_t lo = shard(count, n, r), hi = shard(count, n, r + 1);
	struct direct d = {.reduce = reduce,
			   .x = x,
			   .n_x = n - 1,
			   .rank = r,
			   .element = element,
			   .in = in + lo * element,
			   .out = out + lo * element,
			   .offset = lo,
			   .count = hi - lo};
	struct merge_round round = {.what = "direct all-reduce",
				    .merge = net->number,
				    .x = x,
				    .n = n - 1,
				    .two_parts = true,
				    .progress = direct_progress,
				    .context = &d};
	char *scratch = merge_net_scratch(net, (size_t)(hi - lo) * element * n + 64);

	if (!scratch)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for %u shards", n);
	/*
	 * Everyone starts with another peer, so that no link carries all at once. A block of the
	 * result comes back only after its inputs were sent, so out may be in.
	 */
	for (uint32_t i = 1; i < n; i++, k++) {
		uint32_t p = (r + i) % n;
		uint64_t a = shard(count, n, p), b = shard(count, n, p + 1);
		size_t theirs = (size_t)(b - a) * element, mine = (size_t)(hi - lo) * element;

		x[k] = (struct merge_xfer){.peer = p,
					   .send = in + a * element,
					   .send_len = theirs,
					   .recv = scratch + mine * k,
					   .recv_len = mine,
					   .send2 = out + lo * element,
					   .send2_len = mine,
					   .recv2 = out + a * element,
					   .recv2_len = theirs,
					   .ready = &d.ready};
	}
	return merge_net_round(net, &round, error);
}

/* to the next, from the previous; with two hosts they are the same */
static int ring_step(struct merge_net *net, const char *what, const float *send, uint64_t n_send,
		     float *recv, uint64_t n_recv, struct merge_error *error)
{
	uint32_t next = (net->rank + 1) % net->size,
		 previous = (net->rank + net->size - 1) % net->size;
	struct merge_xfer x[2] = {
		{.peer = next, .send = send, .send_len = n_send * sizeof(float)},
		{.peer = previous, .recv = recv, .recv_len = n_recv * sizeof(float)}};
	struct merge_round round = {.what = what, .merge = net->number, .x = x, .n = 2};

	if (next == previous) {
		x[0].recv = recv;
		x[0].recv_len = x[1].recv_len;
		round.n = 1;
	}
	return merge_net_round(net, &round, error);
}

static void ring_add(float *out, const float *partial, const float *in, double w, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		out[i] = (float)((partial ? (double)partial[i] : 0) + w * (double)in[i]);
}

static int ring_all(struct merge_net *net, const struct merge_reduce *reduce, const float *in,
		    float *out, uint64_t count, struct merge_error *error)
{
	uint32_t n = net->size, r = net->rank;
	uint64_t most = count / n + 2 * GRAIN, total = 0;
	float *part = merge_net_scratch(net, most * sizeof(float));
	double w = 1;
	int rc = 0;

	if (!part)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for a shard");
	for (uint32_t i = 0; reduce->op == MERGE_REDUCE_MEAN && i < n; i++)
		total += reduce->weight[i];
	if (reduce->op == MERGE_REDUCE_MEAN)
		w = total ? (double)reduce->weight[r] / (double)total : 1. / n;
	/* shard s starts its way at host s + 1 and is complete at host s */
	for (uint32_t i = 0; i < n && !rc; i++) {
		uint32_t s = (r + n - 1 - i) % n, t = (r + 2 * n - 2 - i) % n;
		uint64_t a = shard(count, n, s), b = shard(count, n, s + 1);

		ring_add(out + a, i ? part : NULL, in + a, w, b - a);
		if (i == n - 1)
			break;
		rc = ring_step(net, "ring reduce-scatter", out + a, b - a, part,
			       shard(count, n, t + 1) - shard(count, n, t), error);
	}
	for (uint32_t i = 0; i < n - 1 && !rc; i++) {
		uint32_t s = (r + n - i) % n, t = (r + 2 * n - 1 - i) % n;
		uint64_t a = shard(count, n, s), b = shard(count, n, s + 1);
		uint64_t c = shard(count, n, t), d = shard(count, n, t + 1);

		rc = ring_step(net, "ring all-gather", out + a, b - a, out + c, d - c, error);
	}
	return rc;
}

/* A ring knows sums only; a table with other policies wants the owner to see every input. */
static bool ring_fits(struct merge_net *net, const struct merge_reduce *reduce, uint64_t bytes)
{
	uint64_t from = net->ring_from ? net->ring_from : merge_ring_threshold(net->size);

	if (net->size < 2 || bytes < from || reduce->bf16 || reduce->op > MERGE_REDUCE_MEAN)
		return false;
	for (uint32_t i = 0; reduce->table && i < reduce->table->n; i++)
		if (!reduce->table->tensor[i].statistic &&
		    reduce->table->tensor[i].policy != MERGE_AVERAGED)
			return false;
	return true;
}

int merge_reduce_all(struct merge_net *net, const struct merge_reduce *reduce, const void *in,
		     void *out, uint64_t count, bool *ring, struct merge_error *error)
{
	size_t element = reduce->bf16 ? sizeof(uint16_t) : sizeof(float);
	bool use_ring = ring_fits(net, reduce, count * element);

	if (ring)
		*ring = use_ring;
	if (net->size == 1) {
		merge_reduce_range(reduce, 0, count, &in, out);
		return 0;
	}
	if (use_ring)
		return ring_all(net, reduce, in, out, count, error);
	return direct_all(net, reduce, in, out, count, element, error);
}

int merge_all_reduce(struct merge_net *net, const float *in, float *out, uint64_t count,
		     enum merge_op op, struct merge_error *error)
{
	static const enum merge_reduction map[] = {MERGE_REDUCE_SUM, MERGE_REDUCE_MAX,
						   MERGE_REDUCE_MIN, MERGE_REDUCE_MEAN};
	uint64_t one[MERGE_HOSTS_MAX];
	struct merge_reduce reduce = {.op = map[op], .n = net->size, .weight = one};

	for (uint32_t i = 0; i < net->size; i++)
		one[i] = 1;
	net->number++;
	return merge_reduce_all(net, &reduce, in, out, count, NULL, error);
}

int merge_all_gather(struct merge_net *net, const void *in, size_t bytes, void *out,
		     struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {
		.what = "all-gather", .merge = net->number, .x = x, .n = net->size - 1};

	for (uint32_t i = 1; i < net->size; i++) {
		uint32_t p = (net->rank + i) % net->size;

		x[i - 1] = (struct merge_xfer){.peer = p,
					       .send = in,
					       .send_len = bytes,
					       .recv = (char *)out + p * bytes,
					       .recv_len = bytes};
	}
	memmove((char *)out + net->rank * bytes, in, bytes);
	if (atomic_load(&net->aborted))
		return aborted(error);
	return round.n ? merge_net_round(net, &round, error) : 0;
}

/* Lengths first, as a round of their own: what a peer says is looked at before it is used. */
static int swap_lengths(struct merge_net *net, const size_t send_bytes[], size_t capacity,
			uint64_t theirs[], struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {.what = "all-to-all lengths", .merge = net->number, .x = x};
	uint64_t mine[MERGE_HOSTS_MAX];
	char text[128];
	int rc;

	for (uint32_t i = 1; i < net->size; i++) {
		uint32_t p = (net->rank + i) % net->size;

		mine[p] = send_bytes[p];
		x[round.n++] = (struct merge_xfer){.peer = p,
						   .send = &mine[p],
						   .send_len = sizeof(mine[p]),
						   .recv = &theirs[p],
						   .recv_len = sizeof(theirs[p])};
	}
	rc = round.n ? merge_net_round(net, &round, error) : 0;
	if (rc)
		return rc;
	for (uint32_t i = 0; i < round.n; i++) {
		uint32_t p = x[i].peer;
		bool own = mine[p] > capacity;

		if (!own && theirs[p] <= capacity)
			continue;
		snprintf(text, sizeof(text), "it sends %llu bytes at once, at most %zu are agreed",
			 (unsigned long long)(own ? mine[p] : theirs[p]), capacity);
		return merge_net_fault(net, -EMSGSIZE, own ? net->rank : p, text, error);
	}
	return 0;
}

int merge_all_to_all(struct merge_net *net, const void *const send[], const size_t send_bytes[],
		     size_t capacity, void *const recv[], size_t recv_bytes[],
		     struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	struct merge_round round = {.what = "all-to-all", .merge = net->number, .x = x};
	uint64_t theirs[MERGE_HOSTS_MAX];
	int rc;

	if (atomic_load(&net->aborted))
		return aborted(error);
	rc = swap_lengths(net, send_bytes, capacity, theirs, error);
	for (uint32_t i = 1; i < net->size && !rc; i++) {
		uint32_t p = (net->rank + i) % net->size;

		/* a pair that has nothing for each other still takes part in the round */
		x[round.n++] = (struct merge_xfer){.peer = p,
						   .send = send[p],
						   .send_len = send_bytes[p],
						   .recv = recv[p],
						   .recv_len = (size_t)theirs[p]};
	}
	if (!rc && round.n)
		rc = merge_net_round(net, &round, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < round.n; i++)
		recv_bytes[x[i].peer] = x[i].recv_len;
	recv_bytes[net->rank] = 0;
	return 0;
}
