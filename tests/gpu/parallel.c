/* SPDX-License-Identifier: MIT */
/*
 * parallel.c: 1, 2, 4, 8 GPUs equal one that takes the whole batch; all hold the same bits; rows
 * that stay on the devices give the bits of rows that are fetched; without NCCL gradients go
 * through host memory, with the same result; two hosts with GPUs each.
 */
#include "parallel.h"

#define BATCH 24
#define EPOCHS 2

static float *start_weights, *one_weights;
static struct ctl_run_row one_row;
static uint64_t n_weights;
static double one_steps;

static void train(struct rig *r, uint32_t n, const char *more, struct ctl_run_row *row)
{
	struct err err;

	if (open_training(r, BATCH / n, more, &err) || rig_run(r, 0, EPOCHS, row, &err))
		BAIL("%u GPUs%s: %s", n, more, err.message);
}

/* The yardstick: one GPU, the whole batch, rows fetched. */
static void one(void)
{
	struct err err;
	struct rig r;
	uint64_t bytes;

	on_gpus(1, false, false, 0);
	if (open_training(&r, BATCH, "", &err))
		BAIL("%s", err.message);
	start_weights = (float *)rig_get(&r, CTL_WEIGHTS, &bytes);
	if (rig_run(&r, 0, EPOCHS, &one_row, &err))
		BAIL("%s", err.message);
	one_weights = (float *)rig_get(&r, CTL_WEIGHTS, &bytes);
	n_weights = bytes / sizeof(float);
	one_steps = (double)one_row.steps;
	rig_end(&r);
}

/*
 * A gradient is the same sum in another order: its error, against the largest, is eps times about
 * 128 + 8 sqrt(length) (gpu_trial.h), and momentum .9 adds up ten steps of it; each step adds one.
 */
static double allowed(void)
{
	return 0x1p-24 * (128 + 8 * sqrt(BATCH * 64.0)) * 10 * one_steps;
}

static void equals_one(struct rig *r, const struct ctl_run_row *row, const char *what)
{
	uint64_t bytes;
	float *w = (float *)rig_get(r, CTL_WEIGHTS, &bytes);
	double way = 0, apart = 0;

	for (uint64_t i = 0; w && i < n_weights; i++) {
		way = fmax(way, fabs((double)one_weights[i] - start_weights[i]));
		apart = fmax(apart, fabs((double)one_weights[i] - w[i]));
	}
	ok(w && way > 0 && apart <= allowed() * way,
	   "%s: equal to one GPU: %.2g of the way, allowed "
	   "%.2g",
	   what, apart / way, allowed());
	ok(fabs(row->loss - one_row.loss) <= 1e-5 * one_row.loss && row->steps == one_row.steps &&
		   row->rows == one_row.rows &&
		   fabs(row->validation_loss - one_row.validation_loss) <=
			   1e-5 * one_row.validation_loss,
	   "%s: and its figures, loss %.6f", what, row->loss);
	free(w);
}

static bool same_bits(const struct rig *r)
{
	uint64_t n = r->train->graph->param_floats;
	float *a = malloc(n * sizeof(float)), *b = malloc(n * sizeof(float));
	bool same = a && b && !backend_read(r->train->replica[0], BACKEND_PARAM, 0, n, a);

	for (uint32_t k = 1; same && k < r->train->replicas; k++)
		same = !backend_read(r->train->replica[k], BACKEND_PARAM, 0, n, b) &&
		       !memcmp(a, b, n * sizeof(float));
	free(a);
	free(b);
	return same;
}

static void try_gpus(uint32_t n)
{
	struct ctl_run_row p, q;
	struct rig a, b;
	char what[64];

	on_gpus(n, false, false, 0);
	train(&a, n, "", &p);
	snprintf(what, sizeof(what), "%u GPUs", n);
	equals_one(&a, &p, what);
	ok(n == 1 || (a.train->team && a.train->nccl), "%s: summed by NCCL", what);
	ok(same_bits(&a), "%s: all hold the same bits", what);
	on_gpus(n, true, true, 0);
	train(&b, n, "", &q);
	ok(!train_resident(a.train) && train_resident(b.train), "%s: rows stay on the devices",
	   what);
	ok(rig_same(&a, &b, CTL_WEIGHTS) && p.loss == q.loss &&
		   p.metric[0].train == q.metric[0].train,
	   "%s: and give the bits of rows that are fetched", what);
	rig_end(&a);
	rig_end(&b);
}

/* Accumulated steps, another optimizer, f16, rows that go and come again. */
static void try_ways(void)
{
	static const char *const more[] = {
		", \"accumulate\": 3, \"optimizer\": \"adam\", \"learning_rate\": 0.002",
		", \"precision\": \"f16\"", ", \"model_average\": \"swa(start=0)\""};
	struct ctl_run_row p, q;
	struct rig a, b;
	struct err err;

	for (size_t i = 0; i < sizeof(more) / sizeof(*more); i++) {
		on_gpus(2, false, true, 0);
		rig_options.precision = i == 1 ? BACKEND_PRECISION_F16 : BACKEND_PRECISION_F32;
		train(&a, 2, more[i], &p);
		rig_resident = true;
		train(&b, 2, more[i], &q);
		ok(rig_same(&a, &b, CTL_WEIGHTS) && isfinite(p.loss) && same_bits(&a) &&
			   same_bits(&b),
		   "2 GPUs%s: the same bits, loss %.6f", more[i], p.loss);
		rig_end(&a);
		rig_end(&b);
	}
	on_gpus(2, true, true, 0);
	train(&a, 2, "", &p);
	if (open_training(&b, BATCH / 2, "", &err) || rig_run(&b, 0, 1, &q, &err))
		BAIL("%s", err.message);
	train_drop_rows(b.train);
	ok(!train_resident(b.train), "rows are dropped from the devices");
	if (train_rows(b.train, b.data, &err) || rig_run(&b, 1, 1, &q, &err))
		BAIL("%s", err.message);
	ok(train_resident(b.train) && rig_same(&a, &b, CTL_WEIGHTS),
	   "and come again, with the same result");
	rig_end(&a);
	rig_end(&b);
}

static void try_without_nccl(void)
{
	const char *library = getenv("CNN_NCCL_LIBRARY");
	char kept[512] = "";
	struct ctl_run_row row;
	struct rig r;

	if (library)
		snprintf(kept, sizeof(kept), "%s", library);
	setenv("CNN_NCCL_LIBRARY", "/nonexistent/libcnn_nccl.so", 1);
	on_gpus(2, true, false, 0);
	train(&r, 2, "", &row);
	ok(r.train->team && !r.train->nccl && r.notice, "without NCCL");
	like(r.notice ? r.notice : "", "through host memory", "a notice says so");
	equals_one(&r, &row, "without NCCL");
	ok(same_bits(&r), "all hold the same bits");
	rig_end(&r);
	unsetenv("CNN_NCCL_LIBRARY");
	if (library)
		setenv("CNN_NCCL_LIBRARY", kept, 1);
}

/* Two hosts with half the GPUs each: synchronous steps over all of them. */
static void try_hosts(void)
{
	struct rig_rows half[2] = {table(0, 100), table(100, ROWS - 100)};
	char spec[512];
	struct group g, ref;
	double d;

	snprintf(spec, sizeof(spec),
		 "{\"backend\": \"ref\", \"epochs\": 2, \"seed\": 9, \"batch_size\": 6, "
		 "\"replicas\": 2, \"merge\": \"gradient\"}");
	on_gpus(0, true, true, 0);
	group_start(&ref, 2, spec, architecture, half, half);
	on_gpus(2, true, true, 0);
	rig_device_step = 2;
	group_start(&g, 2, spec, architecture, half, half);
	rig_device = rig_device_step = 0;
	ok(group_run(&ref, 0, 2) && group_run(&g, 0, 2), "2 hosts with 2 GPUs each");
	d = rig_distance(&g.rig[0], &ref.rig[0]);
	ok(g.rig[1].train->nccl && group_same_weights(&g) && d < 1e-4,
	   "  the same weights, and those of processors: %.2g apart", d);
	group_end(&g);
	group_end(&ref);
}

int main(void)
{
	uint32_t n = gpus(1);

	make_rows();
	one();
	for (uint32_t k = 1; k <= n; k *= 2)
		try_gpus(k);
	if (n >= 2) {
		try_ways();
		try_without_nccl();
	}
	if (n >= 4)
		try_hosts();
	free(start_weights);
	free(one_weights);
	return done();
}
