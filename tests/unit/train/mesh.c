// SPDX-License-Identifier: MIT
/*
 * mesh.c: trainings over the real mesh (TCP on loopback): the same bits as over threads, the loss
 * of a host with and without enough that are left, the end of every wait by merge_net_abort.
 */
#include <time.h>
#include <unistd.h>

#include "oracle.h"

#define ROWS 200
#define HOSTS 3

static float x[ROWS * WIDTH];
static int32_t y[ROWS];
static char *softmax;
static struct rig_rows rows[HOSTS];
static struct merge_host place[HOSTS];

static void make_rows(void)
{
	static const uint32_t n[HOSTS] = {80, 50, 70};
	uint64_t state = 31;
	uint32_t first = 0;

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(rig_random(&state) % CLASSES);
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
	softmax = rig_dense(WIDTH, "dense:3:softmax");
}

/* ---- the coordinator's part ---- */

struct desk {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint32_t asked, epoch, min_hosts;
	bool decided, gone[HOSTS];
};

static int confirm(void *context, uint32_t epoch, const uint8_t lost[MERGE_HOSTS_MAX],
		   const struct merge_error *why, struct merge_decision *decision)
{
	struct desk *d = context;
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	pthread_mutex_lock(&d->lock);
	if (++d->asked == 2) {
		d->epoch = epoch + 1;
		d->decided = true;
		pthread_cond_broadcast(&d->turn);
	}
	while (!d->decided && !rc)
		rc = pthread_cond_timedwait(&d->turn, &d->lock, &until);
	decision->epoch = d->epoch;
	decision->n = 0;
	for (uint32_t i = 0; i < HOSTS; i++)
		if (!d->gone[i])
			decision->member[decision->n++] = i;
	pthread_mutex_unlock(&d->lock);
	return rc || decision->n < d->min_hosts ? -ENOTCONN : 0;
}

static void open_meshes(struct group *g, struct desk *d)
{
	for (uint32_t i = 0; i < g->n; i++) {
		struct merge_tcp_config c = {
			.listen = "127.0.0.1",
			.self = i,
			.min_hosts = d ? d->min_hosts : 0,
			.confirm = d ? confirm : NULL,
			.context = d,
		};
		struct merge_error error;

		memset(c.secret, 9, sizeof(c.secret));
		if (merge_tcp_open(&c, &g->rig[i].net, &error))
			BAIL("%s", error.message);
		snprintf(place[i].name, sizeof(place[i].name), "node%u", i);
		snprintf(place[i].address, sizeof(place[i].address), "127.0.0.1");
		place[i].port = merge_tcp_port(g->rig[i].net);
	}
}

static void connect_one(struct group *g, uint32_t i)
{
	struct merge_error error;

	g->rc[i] = merge_tcp_connect(g->rig[i].net, place, g->n, 1, &error);
	if (g->rc[i])
		BAIL("%s", error.message);
	group_create_one(g, i);
	if (g->rc[i])
		BAIL("%s", g->err[i].message);
}

static void start(struct group *g, struct desk *d, const char *spec)
{
	const char *all[HOSTS] = {spec, spec, spec};
	struct err err;

	if (group_prepare(g, HOSTS, all, softmax, rows, rows, &err))
		BAIL("%s", err.message);
	open_meshes(g, d);
	group_do(g, connect_one);
}

#define SPEC(more)                                                                    \
	"{\"backend\": \"ref\", \"epochs\": 4, \"seed\": 3, \"learning_rate\": 0.1, " \
	"\"normalize\": "                                                             \
	"\"none\", \"batch_size\": 10, " more "}"

static void same_as_threads(const char *spec)
{
	struct group g, h;

	start(&g, NULL, spec);
	group_start(&h, HOSTS, spec, softmax, rows, rows);
	ok(group_run(&g, 0, 4) && group_run(&h, 0, 4), "%s over TCP", spec);
	ok(group_same_weights(&g) && group_same_rows(&g) &&
		   rig_same(&g.rig[0], &h.rig[0], CTL_WEIGHTS) && g.row[0].loss == h.row[0].loss,
	   "the same bits as between threads");
	group_end(&g);
	group_end(&h);
}

/* ---- a host that goes ---- */

struct leaver {
	struct group *g;
	struct desk *desk;
	uint64_t at;
};

static void leave(void *context, const struct merge_result *result)
{
	struct leaver *l = context;

	if (result->number != l->at)
		return;
	pthread_mutex_lock(&l->desk->lock);
	l->desk->gone[2] = true;
	pthread_mutex_unlock(&l->desk->lock);
	train_cancel(l->g->rig[2].train);
}

static void run_or_leave(struct group *g, uint32_t i)
{
	group_run_one(g, i);
	if (i != 2)
		return;
	merge_net_close(g->rig[i].net);
	g->rig[i].net = NULL;
}

static void lost(const char *spec, uint64_t every, uint64_t at, uint32_t min_hosts)
{
	struct desk d = {.lock = PTHREAD_MUTEX_INITIALIZER,
			 .turn = PTHREAD_COND_INITIALIZER,
			 .min_hosts = min_hosts};
	struct leaver l = {.desk = &d, .at = at};
	uint64_t merges = 0, step = 0;
	struct oracle o;
	struct group g;
	double begin;

	start(&g, &d, spec);
	l.g = &g;
	g.rig[2].train->setup.on_merge = leave;
	g.rig[2].train->setup.context = &l;
	oracle_open(&o, &g, .1, .9);
	for (uint32_t e = 0; e < 4; e++)
		for (uint64_t k = 0; k < o.steps; k++) {
			oracle_step(&o, e, k, !every);
			if (every && ++step % every == 0) {
				oracle_merge(&o);
				merges++;
			}
			o.gone[2] |= (every ? merges : ++merges) == at;
		}
	if (every)
		oracle_merge(&o);
	g.run = (struct ctl_run){.count = 4, .lr_factor = 1};
	begin = train_now();
	group_do(&g, run_or_leave);
	ok(train_now() - begin < 8, "%s: a host is lost after merge %llu", spec,
	   (unsigned long long)at);
	if (min_hosts == 3) {
		ok(g.rc[0] && g.rc[1] && g.err[0].kind == ERR_LOST, "too few are left: an error");
		like(g.err[0].message, "node2", "that names the host");
	} else {
		ok(!g.rc[0] && !g.rc[1], "the others go on %s%s", g.rc[0] ? g.err[0].message : "",
		   g.rc[1] ? g.err[1].message : "");
		ok(g.row[0].hosts == 2 && oracle_distance(&o, 0) < 1e-5,
		   "to the weights of another computation (%.1e)", oracle_distance(&o, 0));
		g.n = 2;
		ok(group_same_rows(&g), "with the same row");
	}
	g.n = 2;
	ok(group_same_weights(&g), "the same weights on those that are left");
	g.n = HOSTS;
	oracle_close(&o);
	group_end(&g);
}

/* ---- abort ---- */

static void *abort_soon(void *context)
{
	struct group *g = context;

	usleep(100000);
	train_cancel(g->rig[0].train);
	merge_net_abort(g->rig[0].net);
	return NULL;
}

static void run_first(struct group *g, uint32_t i)
{
	if (!i)
		group_run_one(g, i);
}

static void aborted(void)
{
	struct group g;
	pthread_t thread;
	double begin;

	start(&g, NULL, SPEC("\"merge\": \"gradient\""));
	g.run = (struct ctl_run){.count = 1, .lr_factor = 1};
	begin = train_now();
	if (pthread_create(&thread, NULL, abort_soon, &g))
		BAIL("no thread");
	group_do(&g, run_first);
	pthread_join(thread, NULL);
	ok(g.rc[0] == -ECANCELED && g.err[0].kind == ERR_CANCELED && train_now() - begin < 1,
	   "a host that waits for the others is canceled at once: %s", g.err[0].message);
	group_end(&g);
}

int main(void)
{
	make_rows();
	same_as_threads(SPEC("\"merge\": \"average\", \"merge_every\": 3"));
	same_as_threads(
		SPEC("\"merge\": \"diloco\", \"merge_every\": 3, \"merge_wire\": \"bf16\""));
	lost(SPEC("\"merge\": \"local_sgd\", \"merge_every\": 3"), 3, 2, 2);
	lost(SPEC("\"merge\": \"gradient\""), 0, 5, 2);
	lost(SPEC("\"merge\": \"gradient\""), 0, 5, 3);
	lost(SPEC("\"merge\": \"local_sgd\", \"merge_every\": 3"), 3, 2, 3);
	aborted();
	free(softmax);
	return done();
}
