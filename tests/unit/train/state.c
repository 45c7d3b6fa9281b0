// SPDX-License-Identifier: MIT
/*
 * state.c: same seed, same bits, however rows arrive; a training that is taken out and put into
 * another one goes on bit for bit; looking at a training does not change it.
 */
#include "rig.h"

#define ROWS 150
#define WIDTH 6

static uint8_t pixel[ROWS * WIDTH];
static int32_t label[ROWS];
static uint32_t shuffled[ROWS];
static struct rig_rows rows = {.n = ROWS, .h = 1, .w = 1, .c = WIDTH, .u8 = pixel, .y_int = label};
static char *architecture;

#define SPEC                                                                                    \
	"\"epochs\": 6, \"batch_size\": 16, \"optimizer\": \"adam\", \"learning_rate\": 0.01, " \
	"\"lr_schedule\": \"cosine(warmup=1)\", \"validation_fraction\": 0.2, "                 \
	"\"metrics\": \"accuracy, auc\""

static void make_rows(void)
{
	uint64_t state = 5;

	for (uint32_t i = 0; i < ROWS; i++) {
		label[i] = (int32_t)(rig_random(&state) % 3);
		for (uint32_t j = 0; j < WIDTH; j++)
			pixel[i * WIDTH + j] = (uint8_t)(rig_random(&state) % 200 +
							 (j % 3 == (uint32_t)label[i]) * 50);
		shuffled[i] = i;
	}
	for (uint32_t i = ROWS; i > 1; i--) {
		uint32_t j = rig_random(&state) % i, t = shuffled[i - 1];

		shuffled[i - 1] = shuffled[j];
		shuffled[j] = t;
	}
}

static void start(struct rig *r, const char *backend, const char *more)
{
	char spec[512];
	struct err err;

	snprintf(spec, sizeof(spec), "{\"backend\": \"%s\", %s%s}", backend, SPEC, more);
	if (rig_start(r, spec, architecture, &rows, NULL, &err))
		BAIL("%s: %s", spec, err.message);
}

static struct ctl_run_row run(struct rig *r, uint32_t first, uint32_t count)
{
	struct ctl_run_row row;
	struct err err = {0};

	if (rig_run(r, first, count, &row, &err))
		BAIL("epochs %u to %u: %s", first, first + count, err.message);
	return row;
}

static void arrival(const char *backend)
{
	struct ctl_run_row x, y;
	struct rig a, b;

	start(&a, backend, "");
	rows.arrival = shuffled;
	start(&b, backend, "");
	rows.arrival = NULL;
	x = run(&a, 0, 3);
	y = run(&b, 0, 3);
	ok(rig_same(&a, &b, CTL_WEIGHTS), "%s: another order of arrival, same weights", backend);
	ok(x.loss == y.loss && x.validation_loss == y.validation_loss &&
		   x.metric[1].validation == y.metric[1].validation,
	   "%s: and same figures", backend);
	rig_end(&b);
	start(&b, backend, ", \"seed\": 1");
	run(&b, 0, 3);
	ok(!rig_same(&a, &b, CTL_WEIGHTS), "%s: another seed, other weights", backend);
	rig_end(&a);
	rig_end(&b);
}

static void resume(const char *backend)
{
	uint64_t n, m;
	uint8_t *weights, *optimizer;
	struct rig whole, part, rest, bare;
	struct ctl_run_row x, y;
	struct err err = {0};

	start(&whole, backend, "");
	start(&part, backend, "");
	start(&rest, backend, "");
	start(&bare, backend, "");
	run(&whole, 0, 2);
	x = run(&whole, 2, 4);
	run(&part, 0, 2);
	weights = rig_get(&part, CTL_WEIGHTS, &n);
	optimizer = rig_get(&part, CTL_OPTIMIZER, &m);
	is(rig_put(&rest, CTL_WEIGHTS, weights, n, &err) |
		   rig_put(&rest, CTL_OPTIMIZER, optimizer, m, &err) |
		   rig_put(&bare, CTL_WEIGHTS, weights, n, &err),
	   0, "weights and optimizer state go into another training");
	ok(rig_same(&part, &rest, CTL_WEIGHTS) && rig_same(&part, &rest, CTL_OPTIMIZER),
	   "%s: and come out as they were", backend);
	y = run(&rest, 2, 4);
	run(&bare, 2, 4);
	ok(rig_same(&whole, &rest, CTL_WEIGHTS) && rig_same(&whole, &rest, CTL_OPTIMIZER),
	   "%s: resumed = uninterrupted, bit for bit", backend);
	ok(x.loss == y.loss && x.validation_loss == y.validation_loss && x.lr == y.lr,
	   "%s: figures and learning rate too", backend);
	ok(!rig_same(&whole, &bare, CTL_WEIGHTS), "%s: without optimizer state it differs",
	   backend);
	free(weights);
	free(optimizer);
	rig_end(&whole);
	rig_end(&part);
	rig_end(&rest);
	rig_end(&bare);
}

static void undisturbed(const char *backend)
{
	struct ctl_run_row row;
	struct err err = {0};
	struct rig a, b;
	uint64_t n;

	start(&a, backend, "");
	start(&b, backend, "");
	run(&a, 0, 3);
	for (uint32_t e = 0; e < 3; e++) {
		run(&b, e, 1);
		free(rig_get(&b, CTL_WEIGHTS, &n));
		free(rig_get(&b, CTL_OPTIMIZER, &n));
		is(train_evaluate(b.train, ROW_TRAIN, &row, &err), 0,
		   "evaluation of the training set");
	}
	ok(rig_same(&a, &b, CTL_WEIGHTS),
	   "%s: one run of three epochs = three runs, looked at between", backend);
	rig_end(&a);
	rig_end(&b);
}

/* One row and a learning rate too small to move a weight: a loss changes only with the masks. */
static double loss_of_one_row(const char *spec, const char *layers, uint64_t seed, uint32_t epoch)
{
	static uint8_t one[64];
	static int32_t zero[1];
	struct rig_rows row = {.n = 1, .h = 8, .w = 8, .c = 1, .u8 = one, .y_int = zero};
	char text[512], *deep = rig_dense(64, layers);
	const float *w;
	struct ctl_run_row result;
	struct err err;
	struct rig r, first;
	uint64_t n;

	for (uint32_t i = 0; i < 64; i++)
		one[i] = (uint8_t)(i * 3);
	snprintf(text, sizeof(text),
		 "{\"backend\": \"ref\", \"learning_rate\": 1e-30, \"seed\": %llu%s}",
		 (unsigned long long)seed, spec);
	/* all with the weights of seed 0 */
	if (rig_start(&first, "{\"backend\": \"ref\"}", deep, &row, NULL, &err) ||
	    rig_start(&r, text, deep, &row, NULL, &err))
		BAIL("%s: %s", text, err.message);
	w = (const float *)rig_get(&first, CTL_WEIGHTS, &n);
	if (rig_put(&r, CTL_WEIGHTS, w, n, &err) || rig_run(&r, epoch, 1, &result, &err))
		BAIL("%s: %s", text, err.message);
	free((void *)w);
	free(deep);
	rig_end(&first);
	rig_end(&r);
	return result.loss;
}

static void randomness(void)
{
	const char *drop = "dropout:50,dense:2:softmax", *plain = "dense:2:softmax";
	const char *crop = ", \"augment\": \"pad_crop=4\"", *cut = ", \"augment\": \"cutout=5\"";
	const char *flip = ", \"augment\": \"flip\"";
	double a = loss_of_one_row("", plain, 0, 0);
	uint32_t flipped = 0;
	struct rig r, other;

	ok(a == loss_of_one_row("", plain, 0, 3) && a == loss_of_one_row("", plain, 9, 0),
	   "without masks a row's loss is the same in every epoch, with every seed");
	a = loss_of_one_row("", drop, 0, 0);
	ok(a == loss_of_one_row("", drop, 0, 0), "dropout: the same mask again");
	ok(a != loss_of_one_row("", drop, 0, 1), "dropout: another mask in the next epoch");
	ok(a != loss_of_one_row("", drop, 1, 0), "dropout: another mask with another seed");
	a = loss_of_one_row(crop, plain, 0, 0);
	ok(a == loss_of_one_row(crop, plain, 0, 0) && a != loss_of_one_row(crop, plain, 0, 1) &&
		   a != loss_of_one_row(crop, plain, 1, 0),
	   "pad_crop: another place with epoch and seed");
	a = loss_of_one_row(cut, plain, 0, 0);
	ok(a != loss_of_one_row(cut, plain, 0, 1), "cutout: another place with the epoch");
	a = loss_of_one_row("", plain, 0, 0);
	for (uint32_t e = 0; e < 10; e++)
		flipped += a != loss_of_one_row(flip, plain, 0, e);
	ok(flipped > 0 && flipped < 10, "flip: in %u of 10 epochs", flipped);

	start(&r, "ref", "");
	start(&other, "ref", ", \"seed\": 1");
	ok(!rig_same(&r, &other, CTL_WEIGHTS), "the seed gives the initial weights");
	rig_end(&r);
	rig_end(&other);
}

/* No masks, no plan: only the order of the rows can tell two epochs apart. */
static void order(void)
{
	char *plain = rig_dense(WIDTH, "dense:3:softmax");
	struct ctl_run_row row;
	struct err err;
	struct rig a, b;

	if (rig_start(&a, "{\"backend\": \"ref\"}", plain, &rows, NULL, &err) ||
	    rig_start(&b, "{\"backend\": \"ref\"}", plain, &rows, NULL, &err) ||
	    rig_run(&a, 0, 1, &row, &err) || rig_run(&b, 1, 1, &row, &err))
		BAIL("%s", err.message);
	ok(!rig_same(&a, &b, CTL_WEIGHTS), "each epoch has its own order of rows");
	free(plain);
	rig_end(&a);
	rig_end(&b);
}

static void snapshot(void)
{
	struct ctl_run again = {.first_epoch = 1, .count = 1, .lr_factor = 1};
	uint64_t n, m;
	uint8_t *weights, *best, *last;
	struct ctl_part part;
	struct ctl_run_row row;
	struct err err = {0};
	struct rig r;

	start(&r, "ref", "");
	is(train_get(r.train, CTL_BEST, 0, &part, &err), -ENOENT, "no snapshot yet");
	is(train_get(r.train, CTL_CONFUSION, 0, &part, &err), -ENOENT, "no evaluation yet");
	is(train_get(r.train, CTL_SUMMARY, 0, &part, &err), -ENOENT, "a kind of another place");
	run(&r, 0, 1);
	weights = rig_get(&r, CTL_WEIGHTS, &n);
	again.flags = CTL_RUN_SNAPSHOT;
	is(train_run(r.train, &again, &row, &err), 0, "a run with a snapshot");
	best = rig_get(&r, CTL_BEST, &m);
	ok(best && n == m && !memcmp(weights, best, n),
	   "the snapshot holds the weights from before");
	last = rig_get(&r, CTL_WEIGHTS, &m);
	ok(last && memcmp(last, best, n), "the weights have gone on");
	free(weights);
	free(best);
	free(last);
	rig_end(&r);
}

static void estimate(void)
{
	struct ctl_apply_ok ok_;
	struct train_setup setup;
	struct err err = {0};
	uint64_t bytes = 0;
	struct rig r;

	start(&r, "ref", "");
	setup = rig_setup(&r);
	is(train_estimate(&setup, &bytes, &err), 0, "estimate");
	train_apply_ok(r.train, &ok_);
	ok(bytes > 1000 && ok_.bytes <= bytes + (2u << 20) && bytes <= ok_.bytes + (2u << 20),
	   "memory as estimated: %llu, %llu", (unsigned long long)bytes,
	   (unsigned long long)ok_.bytes);
	ok(ok_.h == 1 && ok_.w == 1 && ok_.c == WIDTH && ok_.outputs == 3 && ok_.batch_size == 16 &&
		   ok_.parameters == (WIDTH + 1) * 8 + 9 * 3,
	   "what the coordinator is told");
	near(ok_.effective_batch * (double)ok_.steps, (double)r.agreed.rows[ROW_TRAIN], 1e-9,
	     "effective batch is rows / steps");
	rig_end(&r);
}

int main(void)
{
	make_rows();
	architecture = rig_dense(WIDTH, "dense:8:relu,dropout:25,dense:3:softmax");
	arrival("ref");
	arrival("cpu");
	resume("ref");
	resume("cpu");
	undisturbed("ref");
	undisturbed("cpu");
	randomness();
	order();
	snapshot();
	estimate();
	free(architecture);
	return done();
}
