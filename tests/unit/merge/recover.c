/* SPDX-License-Identifier: MIT */
/*
 * recover.c: the gap that a barrier leaves. A net that fails for chosen ranks at the last message
 * of a merge, after it reached the others: some have committed, some have not. All must end at the
 * same merge with the same bits, and where nobody committed nothing may have changed.
 */
#include <stdlib.h>
#include "../../../nccl_merge/internal.h"
#include "group.h"

enum { P = 200, N = 3 };

/* counts rounds; makes round number fail_at fail after it took place */
struct broken {
	struct merge_net net;
	struct merge_net *inner;
	uint32_t rounds, fail_at;
};

static int broken_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	struct broken *b = (struct broken *)net;
	int rc;

	b->rounds++;
	/* its messages still reach the others: what fails is this rank's knowledge */
	b->inner->number = net->number;
	rc = b->inner->ops->round(b->inner, round, error);
	if (b->rounds == b->fail_at)
		return merge_fail(error, -ECONNRESET, 1, "made to fail");
	return rc;
}

static int broken_recover(struct merge_net *net, struct merge_error *error)
{
	net->epoch++;
	((struct broken *)net)->fail_at = 0;
	return 0;
}

static void broken_close(struct merge_net *net)
{
}

static const struct merge_net_ops broken_ops = {
	.round = broken_round, .recover = broken_recover, .close = broken_close};

struct job {
	const char *preset;
	bool gradient, fails[N];
	enum merge_momentum momentum;
	float x[N][P], model[N][P], stat[N][2], grad[N][P];
	int first[N];
	bool untouched[N];
	struct merge_result result[N];
	uint64_t after[N];
};

static struct merge_tensor tensors[3] = {
	{.name = "w", .count = P},
	{.name = "mean", .policy = MERGE_MEAN, .statistic = true, .count = 1, .pair = 2},
	{.name = "var",
	 .policy = MERGE_VARIANCE,
	 .statistic = true,
	 .offset = 1,
	 .count = 1,
	 .pair = 1},
};
static const struct merge_table table = {
	.tensor = tensors, .n = 3, .param_floats = P, .stat_floats = 2};

static void work(struct rank *k, struct job *j, int round)
{
	for (int i = 0; i < P; i++) {
		uint64_t s = (uint64_t)(i + 1000 * round) + 77777 * k->r;

		j->x[k->r][i] += (float)normal(&s);
		j->grad[k->r][i] = (float)normal(&s);
	}
	j->stat[k->r][0] = (float)k->r + (float)round;
	j->stat[k->r][1] = 1;
}

static int once(struct job *j, struct rank *k, struct merge *m, struct broken *b,
		const struct merge_arenas *a)
{
	if (j->gradient)
		return merge_run_gradient(m, &b->net, a, 1 + k->r, 0, &j->result[k->r], &k->error);
	return merge_run(m, &b->net, a, 1 + k->r, .1, 0, &j->result[k->r], &k->error);
}

static void run(struct rank *k)
{
	struct job *j = k->arg;
	struct broken b = {.net = {.ops = &broken_ops, .rank = k->r, .size = k->n, .epoch = 1},
			   .inner = k->net};
	float slot[P] = {0}, *slots = slot, *x = j->x[k->r], copy[P], gcopy[P];
	struct merge_arenas a = {.param = x,
				 .grad = j->grad[k->r],
				 .stat = j->stat[k->r],
				 .slot = &slots,
				 .n_slots = 1};
	struct merge_config c;
	struct merge *m = NULL;
	uint32_t rounds;

	merge_preset(j->preset, k->n, &c, NULL);
	c.momentum = j->momentum;
	k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	if (k->rc)
		return;
	merge_start(m, x);
	/* how many rounds a merge has */
	work(k, j, 0);
	k->rc = once(j, k, m, &b, &a);
	rounds = b.rounds;
	work(k, j, 1);
	memcpy(copy, x, sizeof(copy));
	memcpy(gcopy, a.grad, sizeof(gcopy));
	b.rounds = 0;
	b.fail_at = j->fails[k->r] ? rounds : 0;
	j->first[k->r] = once(j, k, m, &b, &a);
	j->untouched[k->r] =
		!memcmp(copy, x, sizeof(copy)) && !memcmp(gcopy, a.grad, sizeof(gcopy));
	if (!k->rc)
		k->rc = merge_recover(m, &b.net, &a, &j->result[k->r], &k->error);
	j->after[k->r] = j->result[k->r].number;
	if (!k->rc && j->result[k->r].number == 1)
		k->rc = once(j, k, m, &b, &a);
	memcpy(j->model[k->r], merge_model(m), sizeof(j->model[0]));
	merge_net_close(&b.net);
	merge_close(m);
}

static bool equal(const struct job *j)
{
	for (int r = 1; r < N; r++)
		if (memcmp(j->model[0], j->model[r], sizeof(j->model[0])) ||
		    (!j->gradient && memcmp(j->stat[0], j->stat[r], sizeof(j->stat[0]))) ||
		    (j->gradient && memcmp(j->grad[0], j->grad[r], sizeof(j->grad[0]))) ||
		    (!j->gradient && strcmp(j->preset, "easgd") &&
		     memcmp(j->x[0], j->x[r], sizeof(j->x[0]))) ||
		    j->result[0].number != j->result[r].number ||
		    j->result[0].checksum != j->result[r].checksum)
			return false;
	return true;
}

static void gap_on(enum group_kind kind, const char *preset, bool gradient,
		   enum merge_momentum momentum)
{
	static struct job j, clean;
	const char *name = gradient ? "gradient" : preset;

	clean = (struct job){.preset = preset, .gradient = gradient, .momentum = momentum};
	is(group_run_on(kind, N, run, &clean), 0, name);
	for (unsigned mask = 1; mask < 8; mask++) {
		bool good = true, same = true;

		j = (struct job){.preset = preset, .gradient = gradient, .momentum = momentum};
		for (int r = 0; r < N; r++)
			j.fails[r] = mask >> r & 1;
		if (group_run_on(kind, N, run, &j))
			good = false;
		for (int r = 0; r < N; r++) {
			good &= j.fails[r] ? j.first[r] == -ECONNRESET && j.untouched[r]
					   : !j.first[r];
			good &= j.after[r] == (mask == 7 ? 1 : 2);
			good &= j.result[r].rolled_forward == (j.fails[r] && mask != 7);
			same &= !memcmp(j.model[r], clean.model[r], sizeof(j.model[r])) &&
				!memcmp(j.x[r], clean.x[r], sizeof(j.x[r])) &&
				!memcmp(j.grad[r], clean.grad[r], sizeof(j.grad[r]));
		}
		ok(good, "%s, failing ranks %u: %s", name, mask,
		   mask == 7 ? "nobody committed, nothing changed" : "rolled forward");
		ok(equal(&j) && same, "%s, failing ranks %u: the bits of a run without faults",
		   name, mask);
	}
}

static void gap(const char *preset, bool gradient, enum merge_momentum momentum)
{
	gap_on(GROUP_LOCAL, preset, gradient, momentum);
}

/* ---- a host that was away ----------------------------------------------------------------------
 */

static void away(struct rank *k)
{
	struct job *j = k->arg;
	struct broken b = {.net = {.ops = &broken_ops, .rank = k->r, .size = k->n, .epoch = 1},
			   .inner = k->net};
	struct merge_net *alone = NULL;
	float *x = j->x[k->r];
	struct merge_arenas a = {.param = x, .stat = j->stat[k->r]};
	struct merge_config c;
	struct merge *m = NULL;

	merge_preset(j->preset, k->n, &c, NULL);
	k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	if (k->rc)
		return;
	merge_start(m, x);
	work(k, j, 0);
	k->rc = once(j, k, m, &b, &a);
	/* rank 0 merges once more, by itself: the others are behind */
	work(k, j, 1);
	if (!k->rc && k->r == 0) {
		k->rc = merge_local_open(1, &alone, &k->error);
		if (!k->rc)
			k->rc = merge_run(m, alone, &a, 1, .1, 0, NULL, &k->error);
		merge_net_close(alone);
	}
	if (!k->rc)
		k->rc = merge_recover(m, &b.net, &a, &j->result[k->r], &k->error);
	work(k, j, 2);
	if (!k->rc)
		k->rc = once(j, k, m, &b, &a);
	memcpy(j->model[k->r], merge_model(m), sizeof(j->model[0]));
	merge_net_close(&b.net); /* its scratch */
	merge_close(m);
}

static void behind(const char *preset)
{
	static struct job j;

	j = (struct job){.preset = preset};
	is(group_run(N, away, &j), 0, preset);
	ok(equal(&j), "%s: hosts that were behind got model, momentum and statistics", preset);
	is(j.result[1].number, 3, "and count the same merges");
}

/* ---- hosts that compute different things --------------------------------------------------------
 */

static void apart(struct rank *k)
{
	struct job *j = k->arg;
	float *x = j->x[k->r], copy[P];
	struct merge_arenas a = {.param = x, .stat = j->stat[k->r]};
	struct merge_config c;
	struct merge *m = NULL;

	merge_preset("slowmo", 4, &c, NULL);
	k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	if (k->rc)
		return;
	merge_start(m, x);
	work(k, j, 0);
	k->rc = merge_run(m, k->net, &a, 1, .1, 0, NULL, &k->error);
	work(k, j, 1);
	memcpy(copy, x, sizeof(copy));
	/* one host believes in another learning rate, so in another momentum */
	j->first[k->r] = merge_run(m, k->net, &a, 1, k->r == 2 ? .05 : .1, 0, NULL, &k->error);
	j->untouched[k->r] = !memcmp(copy, x, sizeof(copy));
	merge_close(m);
}

static void different(void)
{
	static struct job j;

	is(group_run(N, apart, &j), 0, "hosts that differ");
	for (int r = 0; r < N; r++)
		ok(j.first[r] == -EBADMSG && j.untouched[r],
		   "rank %d: refused by checksum, untouched", r);
}

int main(void)
{
	gap("average", false, MERGE_KEEP);
	gap("average", false, MERGE_AVERAGE_SLOTS);
	gap("diloco", false, MERGE_KEEP);
	gap("slowmo", false, MERGE_RESET);
	gap("easgd", false, MERGE_KEEP);
	gap("adasum", false, MERGE_KEEP);
	gap("median", false, MERGE_KEEP);
	gap("average", true, MERGE_KEEP);
	behind("average");
	behind("diloco");
	behind("easgd");
	for (int kind = GROUP_TCP; kind < GROUP_KINDS; kind++) {
		if (!group_has((enum group_kind)kind))
			continue;
		gap_on((enum group_kind)kind, "diloco", false, MERGE_KEEP);
		gap_on((enum group_kind)kind, "adasum", false, MERGE_KEEP);
		gap_on((enum group_kind)kind, "average", true, MERGE_KEEP);
	}
	different();
	return done();
}
