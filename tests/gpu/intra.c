/* SPDX-License-Identifier: MIT */
/*
 * intra.c: several GPUs of this machine, one replica each with a thread of its own: buckets of
 * gradients are summed by NCCL while the backward pass goes on. R replicas on parts of a batch
 * equal one GPU with the whole batch; the replicas hold the same bits; a replica that does not
 * come, or that announces something else, ends the others' waits, and all can start again.
 */
#include <pthread.h>

#include "../../nccl_merge/merge.h"
#include "gpu_trial.h"

#define REPLICAS_MAX 8
#define ROWS 16
#define STEPS 5

static void small_cnn(struct build *b)
{
	int x = b_conv(b, b_input(b, 10, 10, 2), 8, b_valid(3, 1), 1, true);

	x = b_act(b, x, BACKEND_RELU, 0);
	x = b_dropout(b, b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2)), 0.25f);
	x = b_act(b, b_dense(b, b_flatten(b, x), 24, true), BACKEND_TANH, 0);
	b_act(b, b_dense(b, x, 10, true), BACKEND_SOFTMAX, 0);
}

static const struct op_case op = {
	"replicas", small_cnn, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, true};

static struct backend_net_options usual(struct build *b)
{
	struct backend_net_options options;

	small_cnn(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, ROWS);
	options.optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_SGD, .momentum = 0.9f, .epsilon = 1e-7f};
	return options;
}

struct replica {
	struct trial t;
	struct merge_intra *intra;
	uint32_t rank, of;
	pthread_t thread;
	int rc;
	char message[600];
	float *w;
};

static int announce(void *context, uint64_t offset, uint64_t length, void *ready)
{
	struct replica *r = context;
	struct merge_error error = {0};
	int rc = merge_intra_bucket_ready(r->intra, r->rank, offset, length, ready, &error);

	if (rc)
		snprintf(r->message, sizeof(r->message), "bucket: %s", error.message);
	return rc;
}

/* Rows [floor(k m / R), floor((k + 1) m / R)) of the batch. */
static struct backend_batch part(const struct replica *r, uint32_t step)
{
	struct backend_batch b = r->t.batch;
	uint32_t first = r->rank * ROWS / r->of, end = (r->rank + 1) * ROWS / r->of;

	b.n = end - first;
	b.x += first;
	b.hash += first;
	b.label += first;
	b.weight += first;
	b.position += first;
	b.step += step;
	return b;
}

static void *replica_main(void *context)
{
	struct replica *r = context;
	struct backend_error error = {""};
	struct merge_error fault = {0};

	for (uint32_t k = 0; k < STEPS && !r->rc; k++) {
		struct backend_batch b = part(r, k);
		struct backend_applied applied;

		r->rc = backend_gradient(r->t.net, &b, 1.0f / ROWS, false,
					 r->of > 1 ? announce : NULL, r, NULL, NULL, &error);
		if (!r->rc && r->of > 1)
			r->rc = merge_intra_wait(r->intra, r->rank, &fault);
		if (!r->rc)
			r->rc = backend_apply(r->t.net, 0.05, k + 1, &applied, &error);
	}
	if (r->rc && !r->message[0])
		snprintf(r->message, sizeof(r->message), "%s%s", error.message, fault.message);
	return NULL;
}

static void open_replicas(struct replica *r, uint32_t n, struct build *b, bool symmetric)
{
	const struct backend_net_options options = usual(b);
	struct backend_error error = {""};

	for (uint32_t k = 0; k < n; k++) {
		const struct backend_options how = {.device = k,
						    .bucket_bytes = 1024,
						    .alloc = symmetric ? merge_device_alloc : NULL,
						    .release = merge_device_release};

		r[k] = (struct replica){.rank = k, .of = n};
		if (trial_open(&r[k].t, gpu_backend(), &op, b, ROWS, ROWS, &how, 17, &options,
			       &error))
			BAIL("replica %u: %s", k, error.message);
		r[k].w = calloc(r[k].t.params, sizeof(float));
		if (!r[k].w)
			BAIL("no memory");
	}
}

static struct merge_intra *connect_replicas(struct replica *r, uint32_t n, bool symmetric,
					    uint32_t timeout_ms)
{
	float *arena[REPLICAS_MAX];
	uint32_t device[REPLICAS_MAX];
	struct merge_intra_config c = {.replicas = n,
				       .arena = arena,
				       .floats = r->t.params,
				       .timeout_ms = timeout_ms,
				       .transport = "nccl",
				       .device = device,
				       .symmetric = symmetric};
	struct merge_error error = {0};
	struct merge_intra *intra = NULL;

	for (uint32_t k = 0; k < n; k++) {
		arena[k] = backend_device_arena(r[k].t.net, BACKEND_GRAD);
		device[k] = k;
	}
	if (merge_intra_open(&c, &intra, &error))
		BAIL("NCCL: %s", error.message);
	for (uint32_t k = 0; k < n; k++)
		r[k].intra = intra;
	return intra;
}

static void close_replicas(struct replica *r, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++) {
		free(r[k].w);
		trial_free(&r[k].t);
	}
}

static bool run(struct replica *r, uint32_t n)
{
	bool good = true;

	for (uint32_t k = 0; k < n; k++)
		if (pthread_create(&r[k].thread, NULL, replica_main, &r[k]))
			BAIL("no thread");
	for (uint32_t k = 0; k < n; k++)
		pthread_join(r[k].thread, NULL);
	for (uint32_t k = 0; k < n; k++) {
		if (r[k].rc)
			printf("# replica %u: %s (%d)\n", k, r[k].message, r[k].rc);
		good = good && !r[k].rc &&
		       !backend_read(r[k].t.net, BACKEND_PARAM, 0, r[k].t.params, r[k].w);
	}
	return good;
}

static void try_replicas(struct build *b, uint32_t n, bool symmetric, const float *one)
{
	struct replica r[REPLICAS_MAX];
	struct merge_intra *intra;
	bool same = true, good;
	double d;

	open_replicas(r, n, b, symmetric);
	intra = connect_replicas(r, n, symmetric, 0);
	good = run(r, n);
	ok(good, "%u GPUs train%s", n, symmetric ? ", arenas of NCCL" : "");
	for (uint32_t k = 1; k < n; k++)
		same = same && !memcmp(r[k].w, r[0].w, r[0].t.params * sizeof(float));
	ok(same, "%u GPUs hold the same parameters", n);
	d = distance(r[0].w, one, r[0].t.params);
	if (!ok(d < 1e-5, "%u GPUs equal one with the whole batch", n))
		printf("#   distance %.3g\n", d);
	merge_intra_close(intra);
	close_replicas(r, n);
}

static void try_faults(struct build *b)
{
	struct merge_error error = {0};
	struct replica r[2];
	struct merge_intra *intra;
	int rc = 0;

	open_replicas(r, 2, b, false);
	intra = connect_replicas(r, 2, false, 500);
	is(merge_intra_bucket(intra, 0, 0, 64, &error), 0, "replica 0 announces a bucket");
	is(merge_intra_wait(intra, 0, &error), -ETIMEDOUT, "replica 1 does not come");
	like(error.message, "no end after 500 ms", "and it says so");
	ok(merge_intra_wait(intra, 1, &error) == 0, "who announced nothing waits for nothing");
	ok(merge_intra_bucket(intra, 1, 0, 64, &error) < 0, "nothing is taken any more");
	merge_intra_close(intra);
	intra = connect_replicas(r, 2, false, 0);
	is(merge_intra_bucket(intra, 0, 0, 64, &error), 0, "started again: replica 0 announces");
	is(merge_intra_bucket(intra, 1, 0, 65, &error), -EINVAL, "replica 1 another bucket");
	is(merge_intra_wait(intra, 0, &error), -ECANCELED, "replica 0 is told");
	merge_intra_close(intra);
	intra = connect_replicas(r, 2, false, 0);
	ok(run(r, 2), "started again: training goes on");
	for (int k = 0; k < 100000 && !rc; k++)
		rc = merge_intra_bucket(intra, 0, 0, 64, &error);
	ok(rc == -ENOSPC || rc == -ECANCELED, "buckets without end, and no wait: %s",
	   error.message);
	merge_intra_abort(intra);
	is(merge_intra_bucket(intra, 0, 0, 64, &error), -ECANCELED, "ended by its owner");
	merge_intra_close(intra);
	close_replicas(r, 2);
}

static void try_refused(struct build *b)
{
	const uint32_t twice[2] = {1, 1};
	struct merge_error error = {0};
	struct merge_intra *intra;
	struct replica r;
	float *arena[2];
	struct merge_intra_config c = {
		.replicas = 2, .arena = arena, .timeout_ms = 400, .transport = "nccl"};

	open_replicas(&r, 1, b, false);
	arena[0] = arena[1] = backend_device_arena(r.t.net, BACKEND_GRAD);
	c.floats = r.t.params;
	is(merge_intra_open(&c, &intra, &error), -EINVAL, "no GPUs are named");
	c.device = twice;
	is(merge_intra_open(&c, &intra, &error), -EINVAL, "one GPU twice");
	like(error.message, "both on GPU 1", "and it says which");
	close_replicas(&r, 1);
}

int main(void)
{
	struct backend_device device[REPLICAS_MAX];
	struct build *b = malloc(sizeof(*b));
	struct replica one;
	uint32_t n = 0;

	if (!b)
		BAIL("no memory");
	gpu_needed();
	backend_devices(gpu_backend(), device, REPLICAS_MAX, &n, NULL);
	if (n < 2) {
		printf("1..0 # SKIP no GPU beside the first: NCCL needs two\n");
		free(b);
		return 0;
	}
	open_replicas(&one, 1, b, false);
	ok(run(&one, 1), "one GPU trains");
	for (uint32_t k = 2; k <= n && k <= REPLICAS_MAX; k *= 2) {
		try_replicas(b, k, false, one.w);
		try_replicas(b, k, true, one.w);
	}
	close_replicas(&one, 1);
	try_faults(b);
	try_refused(b);
	free(b);
	return done();
}
