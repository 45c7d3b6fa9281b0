/* SPDX-License-Identifier: MIT */
/*
 * team.c: replicas on threads of their own. They give the bits of replicas that step in turn, on
 * one host and on several; a batch is told beforehand; one that fails, is late, never comes back or
 * overflows ends or skips the step of all within the deadline, and the next training works.
 */
#include <pthread.h>
#include <unistd.h>

#include "../../../kernels/ops.h"
#include "group.h"

#define ROWS 203
#define ROWS_MAX 2400 /* of rows that are spilled */
#define PIXELS RIG_PIXELS
#define LAYERS "dense:24:relu,norm:80,dropout:25,dense:12:tanh,dense:4:softmax"

static uint8_t image[ROWS_MAX * PIXELS];
static int32_t label[ROWS_MAX];
static double weight[ROWS_MAX];
static float *wide; /* the images, where rows are to be large */
static uint32_t n_rows = ROWS;

static void make_rows(void)
{
	rig_pictures(image, label, weight, ROWS_MAX);
}

static struct rig_rows table(uint32_t first, uint32_t n)
{
	return (struct rig_rows){.n = n,
				 .h = 8,
				 .w = 8,
				 .c = 1,
				 .u8 = image + first * PIXELS,
				 .y_int = label + first,
				 .weight = weight + first};
}

static void start(struct rig *r, uint32_t apart, const char *spec)
{
	char *architecture = rig_dense(PIXELS, LAYERS);
	struct rig_rows rows = table(0, n_rows);
	struct err err;

	rows.f32 = wide;
	rig_apart = apart;
	if (rig_start(r, spec, architecture, &rows, wide ? NULL : &rows, &err))
		BAIL("%s: %s", spec, err.message);
	rig_apart = 0;
	free(architecture);
}

/* ---- the same bits ---- */

#define COMMON \
	"{\"backend\": \"ref\", \"epochs\": 2, \"augment\": \"flip, pad_crop=1\", \"seed\": 9, "

static void same(uint32_t n, const char *more)
{
	struct ctl_run_row p, q;
	struct rig a, b;
	struct err err;
	char spec[400];

	snprintf(spec, sizeof(spec), COMMON "\"replicas\": %u, \"batch_size\": 7, %s}", n, more);
	start(&a, 0, spec);
	start(&b, n, spec);
	ok(n == 1 || (b.train->team && !a.train->team), "threads for %u replicas", n);
	if (rig_run(&a, 0, 2, &p, &err) || rig_run(&b, 0, 2, &q, &err))
		BAIL("%s: %s", spec, err.message);
	ok(rig_same(&a, &b, CTL_WEIGHTS) && rig_same(&a, &b, CTL_OPTIMIZER),
	   "%u replicas, %s: the bits of replicas in turn", n, more);
	ok(p.loss == q.loss && p.validation_loss == q.validation_loss &&
		   p.metric[0].train == q.metric[0].train && p.steps == q.steps && p.rows == q.rows,
	   "and their figures, loss %.6f", q.loss);
	rig_end(&a);
	rig_end(&b);
}

static void same_hosts(const char *more)
{
	char *architecture = rig_dense(PIXELS, LAYERS), spec[400];
	struct rig_rows part[2] = {table(0, 120), table(120, ROWS - 120)};
	struct group a, b;

	snprintf(spec, sizeof(spec), COMMON "\"replicas\": 3, \"batch_size\": 7, %s}", more);
	group_start(&a, 2, spec, architecture, part, part);
	rig_apart = 3;
	group_start(&b, 2, spec, architecture, part, part);
	rig_apart = 0;
	ok(group_run(&a, 0, 2) && group_run(&b, 0, 2), "2 hosts, 3 replicas each, %s", more);
	ok(rig_same(&a.rig[0], &b.rig[0], CTL_WEIGHTS) && group_same_weights(&b),
	   "the same bits with threads");
	ok(a.row[0].loss == b.row[0].loss && a.row[1].validation_loss == b.row[1].validation_loss,
	   "and figures");
	group_end(&a);
	group_end(&b);
	free(architecture);
}

/* Rows that come from a file are there for one step only. */
static void spilled(void)
{
	char dir[] = "/var/tmp/cnn-team-XXXXXX", spec[400];
	struct ctl_run_row p, q;
	struct rig a, b;
	struct err err;

	if (!mkdtemp(dir))
		BAIL("no folder");
	wide = malloc(sizeof(image) * sizeof(*wide));
	if (!wide)
		BAIL("no memory");
	for (size_t i = 0; i < sizeof(image); i++)
		wide[i] = image[i];
	n_rows = ROWS_MAX;
	snprintf(spec, sizeof(spec), COMMON "\"replicas\": 3, \"batch_size\": 20}");
	start(&a, 0, spec);
	rig_spill = dir;
	rig_memory = 512u << 10;
	start(&b, 3, spec);
	rig_spill = NULL;
	n_rows = ROWS;
	free(wide);
	wide = NULL;
	if (rig_run(&a, 0, 1, &p, &err) || rig_run(&b, 0, 1, &q, &err))
		BAIL("%s", err.message);
	ok(data_spilled(b.data) > 0 && rig_same(&a, &b, CTL_WEIGHTS) && p.loss == q.loss,
	   "spilled rows, threads: the same bits");
	rig_end(&a);
	rig_end(&b);
	rmdir(dir);
}

/* ---- a back end that misbehaves ---- */

enum harm { HARM_NONE = 0, HARM_FAIL, HARM_LOST, HARM_SLEEP, HARM_INFINITE };

static struct {
	const struct backend *on;
	int at; /* which call of gradient */
	enum harm harm;
	double seconds;
	_Atomic int calls;
	/* of that back end: what was announced, and batches that were not */
	uint32_t n;
	const void *x[64];
	int announced, wrong;
} bad;

static void watch(const struct backend_batch *batch)
{
	if (bad.n) {
		bad.announced++;
		bad.wrong +=
			bad.n != batch->n || memcmp(bad.x, batch->x, batch->n * sizeof(void *));
	}
	bad.n = batch->next && batch->next->n <= 64 ? batch->next->n : 0;
	if (bad.n)
		memcpy(bad.x, batch->next->x, bad.n * sizeof(void *));
}

static int harmful(struct backend_net *net, const struct backend_batch *batch, float scale,
		   bool accumulate, backend_bucket_fn on_bucket, void *context,
		   struct backend_sums *sums, float *outputs, struct backend_error *error)
{
	bool now = net->backend == bad.on && ++bad.calls == bad.at;
	int rc;

	if (net->backend == bad.on && batch->n)
		watch(batch);
	if (now && bad.harm == HARM_FAIL)
		return backend_fail(error, -EIO, "device B: made to fail");
	if (now && bad.harm == HARM_LOST)
		return backend_fail(error, -ENOTRECOVERABLE, "device B is lost: made to fail");
	if (now && bad.harm == HARM_SLEEP)
		usleep((useconds_t)(bad.seconds * 1e6));
	if (now && bad.harm == HARM_INFINITE)
		scale = INFINITY;
	rc = backend_ref_ops.gradient(net, batch, scale, accumulate, on_bucket, context, sums,
				      outputs, error);
	return rc;
}

static struct backend_ops ops;

static void start_bad(struct rig *r, const char *spec, uint32_t who, int at, enum harm harm)
{
	start(r, 3, spec);
	memset(&bad, 0, sizeof(bad));
	bad.on = r->each[who];
	bad.at = at;
	bad.harm = harm;
	ops = backend_ref_ops;
	ops.gradient = harmful;
	for (uint32_t k = 0; k < 3; k++)
		r->each[k]->ops = &ops;
}

#define PLAIN "{\"backend\": \"ref\", \"epochs\": 4, \"batch_size\": 7, \"replicas\": 3}"

static void fails(uint32_t who, enum harm harm, double seconds, int code, const char *words)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err;
	double begin;
	int rc;

	rig_timeout_ms = harm == HARM_SLEEP ? 300 : 0;
	start_bad(&r, PLAIN, who, 5, harm);
	bad.seconds = seconds;
	begin = train_now();
	rc = rig_run(&r, 0, 2, &row, &err);
	ok(rc == code, "replica %u: code %d", who, rc);
	like(err.message, words, "the error tells it");
	ok(train_now() - begin < 30, "in time");
	ok(rig_run(&r, 2, 1, &row, &err) < 0, "nothing goes on after it");
	rig_end(&r);
	rig_timeout_ms = 0;
	start(&r, 3, PLAIN);
	is(rig_run(&r, 0, 1, &row, &err), 0, "the next training works");
	rig_end(&r);
}

/* One replica does not come; the others wait in the all-reduce for a minute. */
static void canceled(void)
{
	struct ctl_run_row row;
	pthread_t thread;
	struct rig r;
	struct err err;
	double begin = train_now();

	start_bad(&r, PLAIN, 2, 5, HARM_SLEEP);
	bad.seconds = 1;
	if (pthread_create(&thread, NULL, rig_cancel_soon, r.train))
		BAIL("no thread");
	is(rig_run(&r, 0, 2, &row, &err), -ECANCELED, "a cancel in the middle of a step");
	is(err.kind, ERR_CANCELED, "and says so");
	ok(train_now() - begin < 30, "at once");
	pthread_join(thread, NULL);
	rig_end(&r);
}

/* With f16 the update is left out by all; else it is the end. */
static void overflows(void)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err;
	bool equal = true;

	start_bad(&r,
		  "{\"backend\": \"ref\", \"epochs\": 4, \"batch_size\": 7, \"replicas\": 3, "
		  "\"precision\": \"f16\"}",
		  1, 5, HARM_INFINITE);
	is(rig_run(&r, 0, 2, &row, &err), 0, "a gradient overflows on one replica");
	is(r.train->t, 2 * r.train->steps - 1, "that update is left out");
	for (uint32_t k = 1; k < 3; k++)
		equal &= !memcmp(backend_host_arena(r.train->replica[0], BACKEND_PARAM),
				 backend_host_arena(r.train->replica[k], BACKEND_PARAM),
				 r.train->graph->param_floats * sizeof(float));
	ok(equal, "by all of them");
	rig_end(&r);
	start_bad(&r, PLAIN, 1, 5, HARM_INFINITE);
	ok(!rig_run(&r, 0, 2, &row, &err) && (row.flags & CTL_ROW_NAN), "without f16: the end");
	rig_end(&r);
}

static void told_beforehand(void)
{
	struct ctl_run_row row;
	struct rig r;
	struct err err;

	start_bad(&r, PLAIN, 1, 0, HARM_NONE);
	if (rig_run(&r, 0, 3, &row, &err))
		BAIL("%s", err.message);
	is(bad.announced, 3 * ((int)r.train->steps - 1),
	   "all but the first batch of an epoch are told");
	is(bad.wrong, 0, "and it is they that come");
	rig_end(&r);
}

int main(void)
{
	make_rows();
	for (uint32_t n = 1; n <= 8; n *= 2)
		same(n, "\"optimizer\": \"adam\"");
	same(3, "\"accumulate\": 2, \"momentum\": 0.9");
	same(5, "\"model_average\": \"ema(decay=.9)\", \"metrics\": \"accuracy, top_k(k=2)\"");
	same_hosts("\"merge\": \"gradient\"");
	same_hosts("\"merge\": \"local_sgd\", \"merge_every\": 3");
	spilled();
	told_beforehand();
	fails(1, HARM_FAIL, 0, -EIO, "device B: made to fail");
	fails(0, HARM_LOST, 0, -ENOTRECOVERABLE, "device B is lost");
	fails(2, HARM_SLEEP, 1, -ETIMEDOUT, "waited 300 ms for replica 2");
	fails(1, HARM_SLEEP, 4, -ETIMEDOUT, "replica 1 does not come back");
	canceled();
	overflows();
	return done();
}
