/* SPDX-License-Identifier: MIT */
/*
 * memory.c: device memory is what was estimated and is given back; too much of it is an error that
 * names the sizes; arenas go in and out unchanged; merge arithmetic on the device has the same bits
 * as nccl_merge's on the host; what is refused.
 */
#include "../../nccl_merge/merge.h"
#include "gpu_trial.h"

static void network(struct build *b)
{
	int x = b_conv_same(b, b_input(b, 12, 12, 3), 8, 3, 2);

	x = b_act(b, b_norm(b, x, true, true, false), BACKEND_RELU, 0);
	x = b_depthwise(b, x, 2, b_same(3, 1, 1, 6, 6), true);
	b_act(b, b_dense(b, b_flatten(b, x), 10, true), BACKEND_SOFTMAX, 0);
}

static const struct op_case op = {
	"memory", network, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, false};

static uint64_t free_bytes(void)
{
	struct backend_device device;
	struct backend_error error = {""};
	uint32_t n;

	if (backend_devices(gpu_backend(), &device, 1, &n, &error))
		BAIL("%s", error.message);
	return device.free_bytes;
}

static struct backend_net_options adam(struct build *b, uint32_t n)
{
	struct backend_net_options options;

	network(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, n);
	options.optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-7f};
	return options;
}

static void try_sizes(struct build *b)
{
	struct backend_net_options options = adam(b, 16);
	struct backend_error error = {""};
	uint64_t bytes = 0, before[4];
	struct trial t;

	for (int round = 0; round < 4; round++) {
		const struct backend_options how = {.precision = BACKEND_PRECISION_F16};

		if (trial_open(&t, gpu_backend(), &op, b, 16, 16, round % 2 ? &how : NULL, 1,
			       &options, &error))
			BAIL("%s", error.message);
		is(backend_estimate(t.backend, &b->graph, &options, &bytes), 0, "estimated");
		is(bytes, backend_net_bytes(t.net), "the estimate is exact");
		if (backend_step(t.net, &t.batch, 1, 0.1, 1, NULL, NULL, NULL, &error) ||
		    backend_evaluate(t.net, NULL, NULL, &t.batch, NULL, NULL, &error) ||
		    backend_resident(t.net, t.batch.x, t.n, &error))
			BAIL("%s", error.message);
		trial_free(&t);
		before[round] = free_bytes();
	}
	/* the libraries load code the first time */
	is(before[3], before[1], "device memory is free again");
}

static void try_too_much(struct build *b)
{
	struct backend_net_options options = adam(b, 1u << 20);
	struct backend_error error = {""};
	struct backend *backend;
	struct backend_net *net = NULL;
	int rc;

	options.input.shape = b->graph.node[0].out;
	if (backend_open(gpu_backend(), NULL, &backend, &error))
		BAIL("%s", error.message);
	rc = backend_compile(backend, &b->graph, &options, &net, &error);
	if (rc == 0) {
		skip("no GPU small enough for this test", "too much memory");
	} else {
		is(rc, -ENOMEM, "too much memory");
		like(error.message, "needed", "the message tells what was needed");
		like(error.message, "free", "and what is free");
	}
	backend_net_free(net);
	options.max_batch = 4;
	rc = backend_compile(backend, &b->graph, &options, &net, &error);
	is(rc, 0, "a smaller net is made all the same");
	if (!rc)
		backend_net_free(net);
	backend_close(backend);
}

static void try_refusals(void)
{
	struct backend_options how = {.device = 4711};
	struct backend_error error = {""};
	struct backend *backend;

	is(backend_open(gpu_backend(), &how, &backend, &error), -ENODEV, "no such device");
	like(error.message, "4711", "and it says which");
	how = (struct backend_options){.precision = BACKEND_PRECISION_COUNT};
	is(backend_open(gpu_backend(), &how, &backend, &error), -EINVAL, "no such precision");
}

/* ---- arenas and merges ----------------------------------------------------------------------- */

struct arenas {
	struct trial t;
	uint64_t n;
	float *device[4], *host[4]; /* param, grad, two slots */
	float *got, *want;
};

static void fill(struct arenas *a, uint64_t seed)
{
	for (int k = 0; k < 4; k++) {
		enum backend_arena which = k == 0   ? BACKEND_PARAM
					   : k == 1 ? BACKEND_GRAD
						    : BACKEND_SLOT;

		for (uint64_t i = 0; i < a->n; i++)
			a->host[k][i] = made_up_float(&seed, -1, 1) * (i % 7 ? 1.0f : 1e-6f);
		if (k == 3)
			for (uint64_t i = 0; i < a->n; i++)
				a->host[k][i] = fabsf(a->host[k][i]);
		if (backend_write(a->t.net, which, k == 3 ? a->n : 0, a->n, a->host[k]))
			BAIL("arena not written");
	}
}

static bool reads(struct arenas *a, int k, const float *want)
{
	enum backend_arena which = k == 0 ? BACKEND_PARAM : k == 1 ? BACKEND_GRAD : BACKEND_SLOT;

	if (backend_read(a->t.net, which, k == 3 ? a->n : 0, a->n, a->got))
		BAIL("arena not read");
	return !memcmp(a->got, want, a->n * sizeof(float));
}

static void merge(struct arenas *a, struct backend_merge m)
{
	struct backend_error error = {""};

	m.count = a->n;
	if (backend_merge(a->t.backend, &m, &error))
		BAIL("merge: %s", error.message);
}

static void try_mean(struct arenas *a)
{
	const float *in[3] = {a->host[0], a->host[2], a->host[3]};
	const uint64_t n[3] = {7, 0, 12345};
	float *mean = a->want;

	fill(a, 1);
	merge(a, (struct backend_merge){.kind = BACKEND_MERGE_MEAN,
					.n = 3,
					.in = {a->device[0], a->device[2], a->device[3]},
					.weight = {7, 0, 12345},
					.total = 12352,
					.out = a->device[1]});
	merge_mean(3, in, n, mean, a->n);
	ok(reads(a, 1, mean), "weighted mean");
	ok(reads(a, 0, a->host[0]) && reads(a, 2, a->host[2]), "the inputs stay as they are");
}

static void try_outer(struct arenas *a, double eta, double mu, bool nesterov)
{
	fill(a, 2);
	merge(a, (struct backend_merge){.kind = BACKEND_MERGE_OUTER,
					.in = {a->device[1]},
					.out = a->device[0],
					.out2 = a->device[2],
					.eta = eta,
					.mu = mu,
					.nesterov = nesterov});
	for (uint64_t i = 0; i < a->n; i++) {
		double x = a->host[0][i], delta = x - (double)a->host[1][i];
		double m = mu * (double)a->host[2][i] + delta;
		bool plain = eta == 1 && mu == 0;

		a->host[2][i] = (float)(plain ? delta : m);
		m = a->host[2][i];
		a->host[0][i] =
			plain ? a->host[1][i] : (float)(x - eta * (nesterov ? delta + mu * m : m));
	}
	ok(reads(a, 0, a->host[0]) && reads(a, 2, a->host[2]), "outer step, eta %g, mu %g%s", eta,
	   mu, nesterov ? ", Nesterov" : "");
}

static void try_moments(struct arenas *a)
{
	const float *mean[2] = {a->host[0], a->host[2]}, *var[2] = {a->host[3], a->host[3]};
	const uint64_t n[2] = {3, 1};
	float *mean_out = malloc(a->n * sizeof(float)), *var_out = malloc(a->n * sizeof(float));

	if (!mean_out || !var_out)
		BAIL("no memory");
	fill(a, 3);
	merge(a, (struct backend_merge){.kind = BACKEND_MERGE_MOMENTS,
					.n = 2,
					.in = {a->device[0], a->device[2]},
					.in2 = {a->device[3], a->device[3]},
					.weight = {.75, .25},
					.out = a->device[1],
					.out2 = a->device[0]});
	merge_moments(2, mean, var, n, mean_out, var_out, a->n);
	ok(reads(a, 1, mean_out) && reads(a, 0, var_out), "pooled moments");
	free(mean_out);
	free(var_out);
}

static void try_deltas(struct arenas *a)
{
	fill(a, 4);
	a->host[0][5] = INFINITY;
	a->host[0][9] = NAN;
	if (backend_write(a->t.net, BACKEND_PARAM, 0, a->n, a->host[0]))
		BAIL("arena not written");
	/* the wire takes the place of a slot */
	merge(a, (struct backend_merge){.kind = BACKEND_MERGE_ENCODE,
					.in = {a->device[1], a->device[0]},
					.out2 = a->device[2],
					.wire = (uint16_t *)a->device[3]});
	for (uint64_t i = 0; i < a->n; i++) {
		float d = a->host[1][i] - a->host[0][i] + a->host[2][i], rest;

		a->want[i] = merge_from_bf16(merge_to_bf16(d));
		rest = d - a->want[i];
		a->host[2][i] = isfinite(rest) ? rest : 0;
		a->want[i] = a->host[1][i] - a->want[i];
	}
	ok(reads(a, 2, a->host[2]), "bf16 deltas: what is left over");
	merge(a, (struct backend_merge){.kind = BACKEND_MERGE_DECODE,
					.in = {a->device[1]},
					.out = a->device[0],
					.wire = (uint16_t *)a->device[3]});
	ok(reads(a, 0, a->want), "bf16 deltas: what is taken over");
}

static void try_arenas(struct build *b)
{
	struct backend_net_options options = adam(b, 4);
	struct backend_error error = {""};
	struct arenas a = {0};

	if (trial_open(&a.t, gpu_backend(), &op, b, 4, 4, NULL, 1, &options, &error))
		BAIL("%s", error.message);
	a.n = a.t.params;
	a.device[0] = backend_device_arena(a.t.net, BACKEND_PARAM);
	a.device[1] = backend_device_arena(a.t.net, BACKEND_GRAD);
	a.device[2] = backend_device_arena(a.t.net, BACKEND_SLOT);
	a.device[3] = a.device[2] + a.n;
	for (int k = 0; k < 4; k++)
		a.host[k] = calloc(a.n, sizeof(float));
	a.got = calloc(a.n, sizeof(float));
	a.want = calloc(a.n, sizeof(float));
	fill(&a, 9);
	ok(reads(&a, 0, a.host[0]) && reads(&a, 1, a.host[1]) && reads(&a, 2, a.host[2]) &&
		   reads(&a, 3, a.host[3]),
	   "arenas go in and out");
	ok(!backend_read(a.t.net, BACKEND_PARAM, 33, 5, a.got) &&
		   !memcmp(a.got, a.host[0] + 33, 5 * sizeof(float)),
	   "a part of an arena");
	try_mean(&a);
	try_outer(&a, .7, .9, true);
	try_outer(&a, .5, .3, false);
	try_outer(&a, 1, 0, false);
	try_moments(&a);
	try_deltas(&a);
	for (int k = 0; k < 4; k++)
		free(a.host[k]);
	free(a.got);
	free(a.want);
	trial_free(&a.t);
}

int main(void)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	gpu_needed();
	try_sizes(b);
	try_too_much(b);
	try_refusals();
	try_arenas(b);
	free(b);
	return done();
}
