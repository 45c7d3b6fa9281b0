/* SPDX-License-Identifier: MIT */
/*
 * calls.c: what travels beside a merge: flags, the copy for evaluation, blocks of all to all, and
 * what memory is taken. Each over threads and over the mesh.
 */
#include "../../../nccl_merge/engine.h"
#include "group.h"

enum { P = 500, S = 6, N = 3, CAPACITY = 3000 };

/* ---- memory: counted where nothing else counts it -------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTED true
static _Thread_local uint64_t taken, calls;
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n)
{
	taken += n;
	calls++;
	return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
	taken += n * size;
	calls++;
	return __libc_calloc(n, size);
}
int posix_memalign(void **out, size_t align, size_t n)
{
	taken += n;
	calls++;
	*out = __libc_memalign(align, n);
	return *out ? 0 : ENOMEM;
}
#else
#define COUNTED false
static _Thread_local uint64_t taken, calls;
#endif

static struct merge_tensor tensors[] = {
	{.name = "w", .count = 400},
	{.name = "frozen", .policy = MERGE_COPIED, .offset = 400, .count = 100},
	{.name = "mean", .policy = MERGE_MEAN, .statistic = true, .count = 3, .pair = 3},
	{.name = "var",
	 .policy = MERGE_VARIANCE,
	 .statistic = true,
	 .offset = 3,
	 .count = 3,
	 .pair = 2},
};
static const struct merge_table table = {
	.tensor = tensors, .n = 4, .param_floats = P, .stat_floats = S};

struct job {
	const char *preset;
	uint32_t flags[N], got[N];
	enum merge_wire wire;
	bool gradient, same[N];
	uint64_t number[N], opened, promised, in_merge[N];
	float x[N][P], param[N][P], stat[N][S], pooled[N][S], model[N][P];
	int rc[N];
	struct merge_error error[N];
};

static float start_value(int i)
{
	return i < 400 ? (float)i / 7 : (float)(1000 + i);
}

static void work(struct job *j, uint32_t r, int round)
{
	for (int i = 0; i < 400; i++) {
		uint64_t s = (uint64_t)(i + 999 * round) * 31 + r;

		j->x[r][i] += (float)normal(&s);
	}
	for (int i = 0; i < S; i++)
		j->stat[r][i] = (float)(1 + (int)r * (i + 1) + round);
}

static struct merge *prepare(struct rank *k, float *slots[2])
{
	struct job *j = k->arg;
	struct merge_config c;
	struct merge *m = NULL;
	uint64_t before;

	merge_preset(j->preset, k->n, &c, NULL);
	c.wire = j->wire;
	if (slots) {
		c.momentum = MERGE_AVERAGE_SLOTS;
		c.slots = 2;
	}
	before = taken;
	k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	if (k->r == 0) {
		j->opened = taken - before;
		j->promised = merge_memory(&c, &table, k->n);
	}
	for (int i = 0; i < P; i++)
		j->x[k->r][i] = start_value(i);
	if (!k->rc)
		merge_start(m, j->x[k->r]);
	return m;
}

static void memory_run(struct rank *k)
{
	struct job *j = k->arg;
	float one[P] = {0}, two[P] = {0}, grad[P] = {0}, *slots[2] = {one, two};
	struct merge_arenas a = {
		.param = j->x[k->r], .stat = j->stat[k->r], .grad = grad, .slot = slots};
	struct merge *m = prepare(k, slots);
	uint64_t before = calls;

	a.n_slots = 2;
	for (int round = 0; round < 3 && !k->rc; round++) {
		work(j, k->r, round);
		k->rc = merge_run_gradient(m, k->net, &a, 1, 0, NULL, &k->error);
		if (!k->rc)
			k->rc = merge_run(m, k->net, &a, 1, .1, 0, NULL, &k->error);
		if (!k->rc)
			k->rc = merge_copy(m, k->net, &a, 1, j->param[k->r], j->pooled[k->r],
					   &k->error);
	}
	j->in_merge[k->r] = calls - before;
	merge_close(m);
}

static void memory(void)
{
	for (uint32_t i = 0; merge_preset_name(i); i++) {
		static struct job j;
		uint64_t more = 0;

		j = (struct job){.preset = merge_preset_name(i)};
		if (!strcmp(j.preset, "diloco"))
			j.wire = MERGE_BF16;
		is(group_run(N, memory_run, &j), 0, j.preset);
		for (int r = 0; r < N; r++)
			more += j.in_merge[r];
		if (!COUNTED)
			continue;
		ok(j.opened == j.promised, "%s: merge_open takes what merge_memory says", j.preset);
		if (j.opened != j.promised)
			printf("#   took %llu, said %llu\n", (unsigned long long)j.opened,
			       (unsigned long long)j.promised);
		is(more, 0, "a merge takes nothing");
	}
}

/* ---- flags ------------------------------------------------------------------------------------
 */

static void flags_run(struct rank *k)
{
	struct job *j = k->arg;
	float grad[P], before[P], slot[P], *slots = slot;
	struct merge_arenas a = {.param = j->x[k->r],
				 .stat = j->stat[k->r],
				 .grad = grad,
				 .slot = &slots,
				 .n_slots = 1};
	struct merge_result res = {0};
	struct merge *m = prepare(k, NULL);
	float model[P], stat[S];

	for (int i = 0; i < P; i++)
		grad[i] = slot[i] = (float)(k->r + 1);
	work(j, k->r, 0);
	if (!k->rc)
		k->rc = merge_run(m, k->net, &a, 5, .1, 0, &res, &k->error);
	work(j, k->r, 1);
	memcpy(before, j->x[k->r], sizeof(before));
	memcpy(stat, j->stat[k->r], sizeof(stat));
	memcpy(model, merge_model(m), sizeof(model));
	for (int i = 0; i < P; i++)
		grad[i] = slot[i] = (float)(k->r + 1);
	if (!k->rc && j->gradient)
		k->rc = merge_run_gradient(m, k->net, &a, 5, j->flags[k->r], &res, &k->error);
	else if (!k->rc)
		k->rc = merge_run(m, k->net, &a, 5, .1, j->flags[k->r], &res, &k->error);
	j->got[k->r] = res.flags;
	j->number[k->r] = res.number;
	j->same[k->r] = !memcmp(before, j->x[k->r], sizeof(before)) &&
			!memcmp(model, merge_model(m), sizeof(model)) &&
			!memcmp(stat, j->stat[k->r], sizeof(stat)) &&
			grad[7] == (float)(k->r + 1) && slot[7] == (float)(k->r + 1);
	merge_close(m);
}

static void flags(enum group_kind kind, const char *preset, bool gradient)
{
	static const uint32_t tell[][N] = {{0, 0, 0},
					   {0, 0, MERGE_FLAG_STOP},
					   {MERGE_FLAG_BAD, 0, 0},
					   {0, MERGE_FLAG_BAD, MERGE_FLAG_STOP}};

	for (size_t t = 0; t < 4; t++) {
		static struct job j;
		uint32_t want = tell[t][0] | tell[t][1] | tell[t][2];
		bool none = !strcmp(preset, "none"), merged = !none && !(want & MERGE_FLAG_BAD);
		bool good = true, as_told = true;

		j = (struct job){.preset = preset, .gradient = gradient};
		memcpy(j.flags, tell[t], sizeof(j.flags));
		is(group_run_on(kind, N, flags_run, &j), 0, preset);
		for (int r = 0; r < N; r++) {
			good &= j.got[r] == want;
			as_told &= j.same[r] == !merged && j.number[r] == (none	    ? 0
									   : merged ? 2
										    : 1);
		}
		ok(good, "%s, %s%s: all hear flags %u", group_name(kind), preset,
		   gradient ? " of gradients" : "", want);
		ok(as_told, "%s, %s%s: %s", group_name(kind), preset,
		   gradient ? " of gradients" : "", merged ? "merged" : "nothing is touched");
	}
}

/* ---- copy -------------------------------------------------------------------------------------
 */

static uint64_t samples_of(uint32_t r)
{
	return 3 + 4 * r;
}

static void copy_run(struct rank *k)
{
	struct job *j = k->arg;
	float before[P], model[P];
	struct merge_arenas a = {.param = j->x[k->r], .stat = j->stat[k->r]};
	struct merge_result res = {0}, first = {0};
	struct merge *m = prepare(k, NULL);

	work(j, k->r, 0);
	if (!k->rc && strcmp(j->preset, "gradient"))
		k->rc = merge_run(m, k->net, &a, samples_of(k->r), .1, 0, &first, &k->error);
	work(j, k->r, 1);
	memcpy(before, j->x[k->r], sizeof(before));
	memcpy(model, merge_model(m), sizeof(model));
	if (!k->rc)
		k->rc = merge_copy(m, k->net, &a, samples_of(k->r), j->param[k->r], j->pooled[k->r],
				   &k->error);
	j->same[k->r] = !memcmp(before, j->x[k->r], sizeof(before)) &&
			!memcmp(model, merge_model(m), sizeof(model));
	memcpy(j->model[k->r], model, sizeof(model));
	/* and the merge goes on as if nothing had been */
	if (!k->rc && strcmp(j->preset, "gradient"))
		k->rc = merge_run(m, k->net, &a, samples_of(k->r), .1, 0, &res, &k->error);
	j->number[k->r] = res.number - first.number;
	memcpy(j->x[k->r], before, sizeof(before));
	for (int i = 0; i < S; i++)
		j->stat[k->r][i] = (float)(1 + (int)k->r * (i + 1) + 1);
	merge_close(m);
}

static double wanted_param(const struct job *j, int i)
{
	double sum = 0, all = 0;

	if (i >= 400 || !strcmp(j->preset, "none") || !strcmp(j->preset, "gradient"))
		return (double)j->x[0][i];
	if (!strcmp(j->preset, "easgd"))
		return (double)j->model[0][i];
	for (uint32_t r = 0; r < N; r++) {
		sum += (double)samples_of(r) * (double)j->x[r][i];
		all += (double)samples_of(r);
	}
	return sum / all;
}

/* pooled by the textbook: E(v) + E(m^2) - E(m)^2 */
static double wanted_stat(const struct job *j, int i)
{
	double m = 0, v = 0, mm = 0, all = 0;

	if (!strcmp(j->preset, "none"))
		return (double)j->stat[0][i];
	for (uint32_t r = 0; r < N; r++) {
		double w = (double)samples_of(r), mean = (double)j->stat[r][i % 3];

		all += w;
		m += w * mean;
		mm += w * mean * mean;
		v += w * (double)j->stat[r][3 + i % 3];
	}
	return i < 3 ? m / all : v / all + mm / all - m / all * m / all;
}

static void copies(enum group_kind kind)
{
	for (uint32_t p = 0; merge_preset_name(p); p++) {
		static struct job j;
		double worst = 0;
		bool same = true, untouched = true, counted = true;

		j = (struct job){.preset = merge_preset_name(p)};
		is(group_run_on(kind, N, copy_run, &j), 0, j.preset);
		for (int i = 0; i < P; i++)
			worst = fmax(worst, fabs((double)j.param[0][i] - wanted_param(&j, i)) /
						    (1 + fabs(wanted_param(&j, i))));
		for (int i = 0; i < S; i++)
			worst = fmax(worst, fabs((double)j.pooled[0][i] - wanted_stat(&j, i)) /
						    (1 + fabs(wanted_stat(&j, i))));
		for (int r = 0; r < N; r++) {
			same &= !memcmp(j.param[0], j.param[r], sizeof(j.param[0])) &&
				!memcmp(j.pooled[0], j.pooled[r], sizeof(j.pooled[0]));
			untouched &= j.same[r];
			counted &= j.number[r] ==
				   !(!strcmp(j.preset, "none") || !strcmp(j.preset, "gradient"));
		}
		if (!ok(worst < 3e-7, "%s, %s: the copy is what is wanted", group_name(kind),
			j.preset))
			printf("#   differs by %g\n", worst);
		ok(same, "%s, %s: bitwise equal everywhere", group_name(kind), j.preset);
		ok(untouched, "%s, %s: arenas and model stay", group_name(kind), j.preset);
		ok(counted, "%s, %s: not counted as a merge", group_name(kind), j.preset);
	}
}

/* one host merges while the others copy */
static void crossed_run(struct rank *k)
{
	struct job *j = k->arg;
	struct merge_arenas a = {.param = j->x[k->r], .stat = j->stat[k->r]};
	struct merge *m = prepare(k, NULL);

	if (k->r == 1)
		j->rc[k->r] = merge_run(m, k->net, &a, 1, .1, 0, NULL, &j->error[k->r]);
	else
		j->rc[k->r] = merge_copy(m, k->net, &a, 1, j->param[k->r], j->pooled[k->r],
					 &j->error[k->r]);
	merge_close(m);
}

/* ---- all to all -------------------------------------------------------------------------------
 */

static size_t length_of(uint32_t from, uint32_t to, int round)
{
	return round == 0   ? (size_t)(from * 1000 + to * 7) % CAPACITY
	       : round == 1 ? (from == 0 && to == 2 ? CAPACITY : 0)
			    : 0;
}

static unsigned char byte_of(uint32_t from, uint32_t to, int round, size_t i)
{
	return (unsigned char)(from * 71 + to * 13 + (uint32_t)round * 5 + i * 3);
}

static void exchange_run(struct rank *k)
{
	struct job *j = k->arg;
	static unsigned char out[N][N][CAPACITY], in[N][N][CAPACITY];
	const void *send[N];
	void *recv[N];
	size_t send_bytes[N], got[N];

	for (int round = 0; round < 3 && !k->rc; round++) {
		for (uint32_t p = 0; p < k->n; p++) {
			send[p] = out[k->r][p];
			recv[p] = in[k->r][p];
			send_bytes[p] = length_of(k->r, p, round);
			got[p] = 77;
			for (size_t i = 0; i < send_bytes[p]; i++)
				out[k->r][p][i] = byte_of(k->r, p, round, i);
		}
		k->rc = merge_all_to_all(k->net, send, send_bytes, CAPACITY, recv, got, &k->error);
		for (uint32_t p = 0; p < k->n && !k->rc; p++) {
			size_t want = p == k->r ? 0 : length_of(p, k->r, round);

			j->same[k->r] |= got[p] != want;
			for (size_t i = 0; i < want; i++)
				j->same[k->r] |= in[k->r][p][i] != byte_of(p, k->r, round, i);
		}
	}
}

/* rank 1 sends too much to rank 2 */
static void greedy_run(struct rank *k)
{
	struct job *j = k->arg;
	static unsigned char out[CAPACITY + 1], in[N][N][CAPACITY];
	const void *send[N] = {out, out, out};
	void *recv[N] = {in[k->r][0], in[k->r][1], in[k->r][2]};
	size_t bytes[N] = {5, 5, k->r == 1 ? CAPACITY + 1 : 5}, got[N];

	j->rc[k->r] = merge_all_to_all(k->net, send, bytes, CAPACITY, recv, got, &j->error[k->r]);
	if (!j->rc[k->r])
		j->rc[k->r] =
			merge_all_to_all(k->net, send, bytes, CAPACITY, recv, got, &j->error[k->r]);
}

/* rank 1 sends rank 2 more than that one agreed to, and believes that all is well */
static void deaf_run(struct rank *k)
{
	struct job *j = k->arg;
	static unsigned char out[CAPACITY], in[N][N][CAPACITY];
	const void *send[N] = {out, out, out};
	void *recv[N] = {in[k->r][0], in[k->r][1], in[k->r][2]};
	size_t bytes[N] = {5, 5, k->r == 1 ? 600 : 5}, got[N];

	memset(in[k->r][1], 9, CAPACITY);
	j->rc[k->r] = merge_all_to_all(k->net, send, bytes, k->r == 2 ? 500 : CAPACITY, recv, got,
				       &j->error[k->r]);
	j->same[k->r] = in[k->r][1][599] == 9;
}

static void exchanges(enum group_kind kind)
{
	const char *name = group_name(kind);
	static struct job j;

	for (uint32_t n = 1; n <= N; n++) {
		j = (struct job){0};
		is(group_run_on(kind, n, exchange_run, &j), 0, name);
		ok(!j.same[0] && !j.same[1] && !j.same[2],
		   "%s, %u ranks: blocks of 0 to %d bytes arrive", name, n, CAPACITY);
	}
	j = (struct job){0};
	is(group_run_on(kind, N, greedy_run, &j), 0, name);
	for (int r = 0; r < N; r++) {
		ok(j.rc[r] < 0, "%s, rank %d: a length past the capacity ends it", name, r);
		is(j.error[r].host, 1, "the host is named");
	}
	like(j.error[2].message, "3001 bytes", "and what it wanted");
	j = (struct job){.rc = {0}};
	is(group_run_on(kind, N, deaf_run, &j), 0, name);
	ok(j.rc[2] == -EMSGSIZE && j.same[2], "%s: the receiver's own limit holds", name);
	is(j.error[2].host, 1, "and names who broke it");
	j = (struct job){.preset = "average"};
	is(group_run_on(kind, N, crossed_run, &j), 0, name);
	ok(j.rc[0] < 0 && j.rc[1] < 0 && j.rc[2] < 0,
	   "%s: a merge and a copy do not meet by accident", name);
}

/* ---- checksum ---------------------------------------------------------------------------------
 */

/* Rank 1's outer momentum differs by so little that x rounds to the same bits. */
static void planted_run(struct rank *k)
{
	struct job *j = k->arg;
	float before[P];
	struct merge_arenas a = {.param = j->x[k->r], .stat = j->stat[k->r]};
	struct merge *m = prepare(k, NULL);

	work(j, k->r, 0);
	if (!k->rc)
		k->rc = merge_run(m, k->net, &a, 1, .1, 0, NULL, &k->error);
	if (k->r == 1 && !k->rc)
		m->m[399] += 3e-7f; /* there x is about 57 */
	memcpy(before, j->x[k->r], sizeof(before));
	j->rc[k->r] = merge_run(m, k->net, &a, 1, .1, 0, NULL, &j->error[k->r]);
	j->same[k->r] = !memcmp(before, j->x[k->r], sizeof(before));
	memcpy(j->param[k->r], m->stage.x, sizeof(j->param[0]));
	memcpy(j->model[k->r], m->stage.m, sizeof(j->model[0]));
	merge_close(m);
}

static void planted(void)
{
	static struct job j;

	j = (struct job){.preset = "diloco"};
	is(group_run(N, planted_run, &j), 0, "a difference of outer momentum");
	ok(!memcmp(j.param[0], j.param[1], sizeof(j.param[0])), "that x does not show");
	ok(memcmp(j.model[0], j.model[1], sizeof(j.model[0])) != 0, "and the momentum does");
	for (int r = 0; r < N; r++)
		ok(j.rc[r] == -EBADMSG && j.same[r], "rank %d: seen by the checksum, untouched", r);
}

int main(void)
{
	memory();
	for (int kind = GROUP_LOCAL; kind < GROUP_KINDS; kind++) {
		if (!group_has((enum group_kind)kind))
			continue;
		flags((enum group_kind)kind, "average", false);
		flags((enum group_kind)kind, "average", true);
		flags((enum group_kind)kind, "diloco", false);
		flags((enum group_kind)kind, "none", false);
		copies((enum group_kind)kind);
		exchanges((enum group_kind)kind);
	}
	planted();
	return done();
}
