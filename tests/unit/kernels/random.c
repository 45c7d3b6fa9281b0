/* SPDX-License-Identifier: MIT */
/*
 * random.c: Philox against the known answers of Random123; dropout masks of a net against the
 * definition in backend.h, their statistics, and that no split of a batch changes them; the random
 * geometries.
 */
#include "../../tap.h"
#include "cases.h"

static const char *name; /* the back end under test */

static void philox_answers(void)
{
	/* Random123, tests/kat_vectors, philox4x32 10: counter, key, answer */
	static const uint32_t kat[3][10] = {
		{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
		 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
		 0x94fdcceb, 0x5001e420, 0x24126ea1},
	};

	for (int i = 0; i < 3; i++) {
		uint32_t out[4];

		backend_philox(kat[i], kat[i] + 4, out);
		ok(!memcmp(out, kat[i] + 6, sizeof(out)), "philox4x32-10, known answer %d", i);
	}
	ok(backend_uniform(0) == 0.0f && backend_uniform(0xffffffff) < 1.0f, "uniform is in [0,1)");
}

/* ---- dropout ----------------------------------------------------------------------------- */

#define ROWS 6
#define WIDTH 2503 /* prime: the last block of four is not full */
#define RATE 0.3f

static void build_mask(struct build *b)
{
	b_dropout(b, b_input(b, 1, 1, WIDTH), RATE);
	b->node[b_id(b)].layer = 5;
}

/* Factors of all rows: the net's output for rows of ones. */
static void masks(const struct backend_batch *batch, float *factor)
{
	static const struct op_case op = {"dropout", build_mask, {BACKEND_MSE, 0, false}, false};
	static float mul[WIDTH], add[WIDTH], ones[WIDTH], target[ROWS * WIDTH];
	struct backend_net_options options;
	struct backend_error error;
	struct backend_batch b = *batch;
	const void *row[ROWS];
	static struct build build;
	struct backend *backend;
	struct backend_net *net;

	for (int k = 0; k < WIDTH; k++)
		mul[k] = ones[k] = 1.0f;
	for (int i = 0; i < ROWS; i++)
		row[i] = ones;
	build_mask(&build);
	b_finish(&build);
	options = trial_options(&build.graph, &op, ROWS);
	options.input.mul = mul;
	options.input.add = add;
	b.x = row;
	b.target = target;
	if (backend_open(name, NULL, &backend, &error) ||
	    backend_compile(backend, &build.graph, &options, &net, &error) ||
	    backend_gradient(net, &b, 1, false, NULL, NULL, NULL, factor, &error))
		BAIL("%s", error.message);
	backend_net_free(net);
	backend_close(backend);
}

static double share_equal(const float *a, const float *b, uint64_t n)
{
	uint64_t equal = 0;

	for (uint64_t i = 0; i < n; i++)
		equal += a[i] == b[i];
	return (double)equal / (double)n;
}

static bool as_defined(const struct backend_batch *batch, const float *factor)
{
	const uint32_t key[2] = {(uint32_t)batch->seed, (uint32_t)(batch->seed >> 32)};

	for (uint32_t i = 0; i < batch->n; i++)
		for (uint32_t e = 0; e < WIDTH; e++) {
			const uint32_t counter[4] = {e / 4, (uint32_t)(batch->position + i),
						     (uint32_t)batch->step, (1u << 24) | 5};
			uint32_t out[4];
			float want;

			backend_philox(counter, key, out);
			want = (out[e % 4] >> 8) / 16777216.0 < RATE ? 0.0f : 1.0f / (1.0f - RATE);
			if (fabsf(factor[i * WIDTH + e] - want) > 1e-6f)
				return false;
		}
	return true;
}

static void dropout(void)
{
	static float a[ROWS * WIDTH], b[ROWS * WIDTH];
	struct backend_batch batch = {
		.n = ROWS, .seed = 0x1122334455667788ull, .step = 9, .position = 100};
	const uint64_t n = ROWS * WIDTH;
	double kept = 1.0 / (1.0 - RATE), zero = 0, other = 0;
	/* two independent masks agree with probability rate^2 + (1 - rate)^2 */
	double agree = (double)RATE * RATE + (1.0 - RATE) * (1.0 - RATE);

	masks(&batch, a);
	for (uint64_t k = 0; k < n; k++) {
		zero += a[k] == 0.0f;
		other += a[k] != 0.0f && fabs(a[k] - kept) > 1e-6;
	}
	near(zero / (double)n, RATE, 4 * sqrt(RATE * (1 - RATE) / (double)n), "share of zeros");
	is(other, 0, "the rest is 1 / (1 - rate)");
	ok(as_defined(&batch, a), "masks are those of backend.h");
	near(share_equal(a, a + WIDTH, WIDTH), agree, 0.05, "rows differ");
	near(share_equal(a, a + 1, n - 1), agree, 0.02, "neighbours are independent");
	masks(&batch, b);
	ok(share_equal(a, b, n) == 1.0, "the same key draws the same");
	batch.step++;
	masks(&batch, b);
	near(share_equal(a, b, n), agree, 0.02, "another step draws another mask");
	batch.step--;
	batch.seed += 1ull << 32;
	masks(&batch, b);
	near(share_equal(a, b, n), agree, 0.02, "another seed draws another mask");
	batch.seed -= 1ull << 32;
	batch.position += 4;
	batch.n = 2;
	masks(&batch, b);
	ok(share_equal(a + 4 * WIDTH, b, 2 * WIDTH) == 1.0,
	   "rows 4 and 5, taken alone, draw what they drew in the batch");
}

/* ---- geometries -------------------------------------------------------------------------- */

#define H 7
#define W 9

static void build_flip(struct build *b)
{
	b_flip(b, b_input(b, H, W, 1), true, false);
}
static void build_flip_both(struct build *b)
{
	b_flip(b, b_input(b, H, W, 1), true, true);
}
static void build_shift(struct build *b)
{
	b_shift(b, b_input(b, H, W, 1), 0.36f, 0.25f); /* 2.52 and 2.25: at most 3 and 2 */
}
static void build_crop(struct build *b)
{
	b_crop(b, b_input(b, H, W, 1), 4, 5);
}

/* Rows of the pixels' own numbers, 1 on: the output tells where it came from. */
static void drawn(void (*build_it)(struct build *b), bool training, uint64_t step, float *out)
{
	const struct op_case op = {"geometry", build_it, {BACKEND_MSE, 0, false}, false};
	struct backend_error error;
	struct trial t;
	static struct build b;
	int rc = trial_open(&t, name, &op, &b, 1, 1, NULL, 1, NULL, &error);

	if (rc)
		BAIL("%s", error.message);
	for (int k = 0; k < H * W; k++)
		t.x[k] = (float)(k + 1);
	t.batch.step = step;
	rc = training ? backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, NULL, out, &error)
		      : backend_evaluate(t.net, NULL, NULL, &t.batch, NULL, out, &error);
	if (rc)
		BAIL("%s", error.message);
	trial_free(&t);
}

/* Is out the image moved by (dy, dx), mirrored or not, with zeros coming in? */
static bool is_moved(const float *out, int h, int w, bool mirror_y, bool mirror_x, int dy, int dx)
{
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++) {
			int sy = (mirror_y ? H - 1 - y : y) + dy;
			int sx = (mirror_x ? W - 1 - x : x) + dx;
			bool there = sy >= 0 && sy < H && sx >= 0 && sx < W;

			if (out[y * w + x] != (there ? (float)(sy * W + sx + 1) : 0.0f))
				return false;
		}
	return true;
}

static void flips(void)
{
	int seen[4] = {0}, seen_x[2] = {0};
	float out[H * W];

	drawn(build_flip_both, false, 0, out);
	ok(is_moved(out, H, W, false, false, 0, 0), "flip does nothing in evaluation");
	for (uint64_t step = 0; step < 100; step++) {
		drawn(build_flip, true, step, out);
		for (int k = 0; k < 2; k++)
			seen_x[k] += is_moved(out, H, W, false, k, 0, 0);
		drawn(build_flip_both, true, step, out);
		for (int k = 0; k < 4; k++)
			seen[k] += is_moved(out, H, W, k / 2, k % 2, 0, 0);
	}
	is(seen_x[0] + seen_x[1], 100, "horizontal flip: each row as it is or mirrored");
	ok(seen_x[0] > 30 && seen_x[1] > 30, "horizontal flip: half of each");
	is(seen[0] + seen[1] + seen[2] + seen[3], 100, "both flips: four outcomes");
	ok(seen[0] > 10 && seen[1] > 10 && seen[2] > 10 && seen[3] > 10, "both flips: all seen");
}

static void shifts(void)
{
	int seen[7][5] = {{0}}, all = 0, kinds = 0;
	float out[H * W];

	drawn(build_shift, false, 0, out);
	ok(is_moved(out, H, W, false, false, 0, 0), "shift does nothing in evaluation");
	for (uint64_t step = 0; step < 400; step++) {
		drawn(build_shift, true, step, out);
		for (int dy = -3; dy <= 3; dy++)
			for (int dx = -2; dx <= 2; dx++)
				seen[dy + 3][dx + 2] += is_moved(out, H, W, false, false, dy, dx);
	}
	for (int k = 0; k < 35; k++) {
		all += seen[k / 5][k % 5];
		kinds += seen[k / 5][k % 5] > 0;
	}
	is(all, 400, "shift: whole pixels, at most the rounded share");
	is(kinds, 35, "shift: every offset occurs");
}

static void crops(void)
{
	int all = 0, kinds = 0, seen[4][5] = {{0}};
	float out[H * W];

	drawn(build_crop, false, 0, out);
	ok(is_moved(out, 4, 5, false, false, 1, 2), "crop takes the centre in evaluation");
	for (uint64_t step = 0; step < 400; step++) {
		drawn(build_crop, true, step, out);
		for (int dy = 0; dy <= 3; dy++)
			for (int dx = 0; dx <= 4; dx++)
				seen[dy][dx] += is_moved(out, 4, 5, false, false, dy, dx);
	}
	for (int k = 0; k < 20; k++) {
		all += seen[k / 5][k % 5];
		kinds += seen[k / 5][k % 5] > 0;
	}
	is(all, 400, "crop: always inside");
	is(kinds, 20, "crop: every place occurs");
}

int main(void)
{
	philox_answers();
	for (int i = 0; trial_backends[i]; i++) {
		name = trial_backends[i];
		printf("# %s\n", name);
		dropout();
		flips();
		shifts();
		crops();
	}
	return done();
}
