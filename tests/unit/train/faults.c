// SPDX-License-Identifier: MIT
/*
 * faults.c: hosts that are lost, and hosts that only believe so. A fault after which all are still
 * there must leave no trace at all in weights and figures, wherever it comes; one that takes a host
 * away leaves the training of the others.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "../../../userspace/train/hosts.h"
#include "oracle.h"
#include "shaky.h"

#define ROWS 96
#define HOSTS 3

static float x[ROWS * WIDTH];
static int32_t y[ROWS];
static char *norm, *softmax;
static struct rig_rows rows[HOSTS];

static void make_rows(void)
{
	static const uint32_t n[HOSTS] = {40, 24, 32};
	uint64_t state = 4;
	uint32_t first = 0;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % 3);
		for (uint32_t j = 0; j < WIDTH; j++)
			x[i * WIDTH + j] = (float)(rig_random(&state) % 1000) / 500 - 1 +
					   (j == (uint32_t)y[i] ? .8f : 0);
	}
	for (uint32_t i = 0; i < HOSTS; i++) {
		rows[i] = (struct rig_rows){.n = n[i],
					    .h = 1,
					    .w = 1,
					    .c = WIDTH,
					    .f32 = x + first * WIDTH,
					    .y_int = y + first};
		first += n[i];
	}
	norm = rig_dense(WIDTH, "dense:6:relu,norm:80,dense:3:softmax");
	softmax = rig_dense(WIDTH, "dense:3:softmax");
}

static void start_net(struct group *g, struct shaky_group *s, const char *architecture,
		      const char *spec)
{
	const char *all[HOSTS] = {spec, spec, spec};
	struct err err;

	if (group_prepare(g, HOSTS, all, architecture, rows, rows, &err))
		BAIL("%s: %s", spec, err.message);
	shaky_nets(g, s);
	group_do(g, group_create_one);
	for (uint32_t i = 0; i < HOSTS; i++)
		if (g->rc[i])
			BAIL("%s: host %u: %s", spec, i, g->err[i].message);
}

/* With a word after each local update. */
static void start(struct group *g, struct shaky_group *s, const char *spec)
{
	start_net(g, s, norm, spec);
	for (uint32_t i = 0; i < HOSTS; i++)
		g->rig[i].train->hosts->pulse_seconds = 1e-9;
}

static struct shaky *net(struct group *g, uint32_t i)
{
	return (struct shaky *)g->rig[i].net;
}

#define EPOCHS 2

static atomic_uint ended; /* hosts whose runs are over */

/* All epochs, one a run; nobody waits for the others between two runs. Whoever is done first helps
 * one that has met a fault in the last call. */
static void run_all(struct group *g, uint32_t i)
{
	g->rc[i] = 0;
	for (uint32_t e = 0; !g->rc[i] && e < EPOCHS; e++) {
		struct ctl_run run = {.first_epoch = e, .count = 1, .lr_factor = 1};

		g->rc[i] = train_run(g->rig[i].train, &run, &g->row[i], &g->err[i]);
	}
	for (atomic_fetch_add(&ended, 1); !g->rc[i] && atomic_load(&ended) < HOSTS;) {
		if (shaky_broken(g->rig[i].net))
			g->rc[i] = train_settle(g->rig[i].train, &g->err[i]);
		else
			usleep(100);
	}
}

static void run_group(struct group *g)
{
	atomic_store(&ended, 0);
	group_do(g, run_all);
}

static bool same_end(struct group *a, struct group *b)
{
	for (uint32_t i = 0; i < HOSTS; i++) {
		const struct ctl_run_row *p = &a->row[i], *q = &b->row[i];

		if (b->rc[i]) {
			printf("# host %u: %s\n", i, b->err[i].message);
			return false;
		}
		if (p->loss != q->loss || p->validation_loss != q->validation_loss ||
		    p->steps != q->steps || p->rows != q->rows || p->merges != q->merges ||
		    p->hosts != q->hosts || p->metric[0].train != q->metric[0].train ||
		    p->merge_number != q->merge_number || p->merge_checksum != q->merge_checksum ||
		    !rig_same(&a->rig[i], &b->rig[i], CTL_WEIGHTS) ||
		    !rig_same(&a->rig[i], &b->rig[i], CTL_CONFUSION) ||
		    !rig_same(&a->rig[i], &b->rig[i], CTL_OPTIMIZER))
			return false;
	}
	return true;
}

/* Each host in turn, then two at once, does not hear of one round. */
static void every_round(const char *what, const char *spec)
{
	struct shaky_group s, t;
	uint64_t before, total, tried = 0, good = 0;
	struct group clean, g;

	start(&clean, &s, spec);
	before = net(&clean, 0)->rounds;
	run_group(&clean);
	for (uint32_t i = 0; i < HOSTS; i++)
		if (clean.rc[i])
			BAIL("%s: %s", what, clean.err[i].message);
	total = net(&clean, 0)->rounds;
	for (uint64_t k = before + 1; k <= total; k++)
		for (uint32_t who = 0; who < HOSTS + 1; who++) {
			start(&g, &t, spec);
			for (uint32_t i = 0; i < HOSTS; i++)
				if (i == who || (who == HOSTS && i != 1))
					net(&g, i)->fail_at = k;
			run_group(&g);
			tried++;
			if (same_end(&clean, &g))
				good++;
			else
				printf("# round %llu of %llu to %llu, host %u\n",
				       (unsigned long long)k, (unsigned long long)before,
				       (unsigned long long)total, who);
			group_end(&g);
		}
	ok(tried > 100 && good == tried, "%s: %llu of %llu faults leave no trace", what,
	   (unsigned long long)good, (unsigned long long)tried);
	group_end(&clean);
}

/* ---- a host that is gone ---- */

struct leaver {
	struct group *g;
	uint64_t at; /* after so many merges */
	uint32_t who;
	bool left;
};

static void leave(void *context, const struct merge_result *result)
{
	struct leaver *l = context;

	if (result->number != l->at || l->left)
		return;
	l->left = true;
	shaky_leave(l->g->rig[l->who].net);
	train_cancel(l->g->rig[l->who].train);
}

/* A host leaves after merge number `at`: the others go on, weighted by their rows. */
static void lost(const char *what, const char *spec, uint32_t who, uint64_t at, uint64_t every)
{
	struct leaver l = {.at = at, .who = who};
	uint32_t a = who ? 0 : 1, b = who == 2 ? 1 : 2;
	uint64_t merges = 0, step = 0;
	const struct ctl_run_row *row;
	struct shaky_group s;
	struct oracle o;
	struct group g;

	start_net(&g, &s, softmax, spec);
	oracle_open(&o, &g, .1, .9);
	l.g = &g;
	g.rig[who].train->setup.on_merge = leave;
	g.rig[who].train->setup.context = &l;
	for (uint32_t e = 0; e < 4; e++)
		for (uint64_t k = 0; k < o.steps; k++) {
			oracle_step(&o, e, k, !every);
			if (every && ++step % every == 0) {
				oracle_merge(&o);
				merges++;
			}
			o.gone[who] |= (every ? merges : ++merges) == at;
		}
	if (every)
		oracle_merge(&o);
	g.run = (struct ctl_run){.first_epoch = 0, .count = 4, .lr_factor = 1};
	group_do(&g, group_run_one);
	ok(l.left && g.rc[who] == -ECANCELED, "%s: host %u leaves after merge %llu", what, who,
	   (unsigned long long)at);
	ok(!g.rc[a] && !g.rc[b], "the others go on %s%s", g.rc[a] ? g.err[a].message : "",
	   g.rc[b] ? g.err[b].message : "");
	row = &g.row[a];
	is(row->hosts, 2, "the row tells how many are left");
	is(row->steps, 4 * o.steps, "the steps are those that were planned");
	ok(oracle_distance(&o, a) < 1e-5, "with the weights of another computation (%.1e)",
	   oracle_distance(&o, a));
	ok(rig_same(&g.rig[a], &g.rig[b], CTL_WEIGHTS) && row->loss == g.row[b].loss &&
		   row->validation_loss == g.row[b].validation_loss &&
		   row->merge_checksum == g.row[b].merge_checksum,
	   "and the same weights and figures");
	is(row->rows, 4 * (o.rows[a] + o.rows[b]), "rows of those that are left");
	ok(isfinite(row->loss) && isfinite(row->validation_loss), "and figures");
	oracle_close(&o);
	group_end(&g);
}

/* ---- a host that is gone for good, and nobody may go on ---- */

static int refuse(struct merge_net *net, struct merge_error *error)
{
	shaky_recover(net, error);
	return merge_fail(error, -ENOTCONN, 2, "2 hosts are left, min_hosts is 3");
}

static void too_few(const char *spec)
{
	static const char *const names[] = {"alpha", "beta", "gamma"};
	const struct merge_net_ops refusing = {
		.round = shaky_round, .recover = refuse, .close = shaky_close};
	struct leaver l = {.at = 2, .who = 2};
	struct shaky_group s;
	struct group g;

	start_net(&g, &s, softmax, spec);
	l.g = &g;
	for (uint32_t i = 0; i < HOSTS; i++) {
		g.rig[i].train->setup.host_name = names;
		g.rig[i].net->ops = &refusing;
	}
	g.rig[2].train->setup.on_merge = leave;
	g.rig[2].train->setup.context = &l;
	g.run = (struct ctl_run){.first_epoch = 0, .count = 4, .lr_factor = 1};
	group_do(&g, group_run_one);
	ok(g.rc[0] && g.rc[1] && g.err[0].kind == ERR_LOST && g.err[1].kind == ERR_LOST,
	   "below min_hosts the run fails");
	like(g.err[0].message, "gamma", "and names the host");
	like(g.err[0].hint, "min_hosts is 3", "with the reason in the hint");
	g.n = 2;
	ok(group_same_weights(&g), "what is left is the last merge, on both");
	g.n = HOSTS;
	group_end(&g);
}

int main(void)
{
	make_rows();
#define SPEC(more) \
	"{\"backend\": \"ref\", \"epochs\": 2, \"seed\": 3, \"batch_size\": 10, " more "}"
	every_round("average", SPEC("\"merge\": \"average\", \"merge_every\": 3, \"merge_warmup\": "
				    "0.5, \"merge_momentum\": \"average\""));
	every_round("gradient", SPEC("\"merge\": \"gradient\""));
	every_round("easgd", SPEC("\"merge\": \"easgd\", \"merge_every\": 3, \"merge_warmup\": 0"));
#define ALONE(more)                                                                   \
	"{\"backend\": \"ref\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.1, " \
	"\"normalize\": "                                                             \
	"\"none\", \"batch_size\": 10, " more "}"
	lost("gradient", ALONE("\"merge\": \"gradient\""), 2, 6, 0);
	lost("gradient", ALONE("\"merge\": \"gradient\""), 0, 5, 0);
	lost("average", ALONE("\"merge\": \"local_sgd\", \"merge_every\": 3"), 1, 2, 3);
	lost("average", ALONE("\"merge\": \"local_sgd\", \"merge_every\": 3"), 2, 2, 3);
	lost("average, replicas",
	     ALONE("\"merge\": \"local_sgd\", \"merge_every\": 3, \"replicas\": 2"), 0, 1, 3);
	too_few(ALONE("\"merge\": \"local_sgd\", \"merge_every\": 3"));
	too_few(ALONE("\"merge\": \"gradient\""));
	free(norm);
	free(softmax);
	return done();
}
