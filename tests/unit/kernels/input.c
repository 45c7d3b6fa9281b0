/* SPDX-License-Identifier: MIT */
/*
 * input.c: backend_input_row against a second computation that follows the words of backend.h:
 * scale the whole image, mirror it, put it into a larger one of zeros, cut out, blank a square.
 */
#include "../../tap.h"
#include "trial.h"

#define H 6
#define W 5
#define C 3
#define PIXELS (H * W * C)

static const float mul[C] = {1 / 255.0f, 0.5f, -2.0f}, add[C] = {-0.5f, 0.25f, 3.0f};

/* Raw values of one type, at an odd address: rows lie in a cache without alignment. */
static unsigned char *stored(enum backend_dtype dtype, float *value, unsigned char *buffer)
{
	unsigned char *row = buffer + 1;
	uint64_t state = 5;

	for (int k = 0; k < PIXELS; k++) {
		int64_t r = (int64_t)(made_up(&state) >> 40);
		uint8_t u8 = (uint8_t)r;
		int16_t i16 = (int16_t)(r - (1 << 15));
		int32_t i32 = (int32_t)(r * 250 - 2000000000);
		float f = (float)r / 1000.0f - 3000.0f;
		double d = (double)r / 999.0 - 3000.0;

		switch (dtype) {
		case BACKEND_U8:
			memcpy(row + k, &u8, 1);
			value[k] = (float)u8;
			break;
		case BACKEND_I16:
			memcpy(row + 2 * k, &i16, 2);
			value[k] = (float)i16;
			break;
		case BACKEND_I32:
			memcpy(row + 4 * k, &i32, 4);
			value[k] = (float)i32;
			break;
		case BACKEND_F32:
			memcpy(row + 4 * k, &f, 4);
			value[k] = f;
			break;
		default:
			memcpy(row + 8 * k, &d, 8);
			value[k] = (float)d;
			break;
		}
	}
	return row;
}

/* Two roundings: the product is a float of its own. */
static void scale(const float *value, float *out)
{
	for (int k = 0; k < PIXELS; k++) {
		volatile float product = value[k] * mul[k % C];

		out[k] = product + add[k % C];
	}
}

struct made {
	bool flip;
	int dy, dx, cy, cx;
};

static struct made words(const struct backend_input *in, uint64_t seed, uint32_t epoch,
			 uint64_t hash)
{
	const uint32_t counter[4] = {(uint32_t)hash, (uint32_t)(hash >> 32), epoch, 2u << 24};
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	uint32_t r[4];

	backend_philox(counter, key, r);
	return (struct made){in->flip && r[0] & 1, (int)(r[1] % (2 * in->pad + 1)),
			     (int)(r[2] % (2 * in->pad + 1)), (int)((r[3] & 0xffff) % H),
			     (int)((r[3] >> 16) % W)};
}

static void expected(const struct backend_input *in, struct made m, const float *image, float *out)
{
	float large[H + 20][W + 20][C] = {{{0}}};
	int pad = (int)in->pad, cut = (int)in->cutout;

	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++)
			for (int c = 0; c < C; c++)
				large[y + pad][x + pad][c] =
					image[(y * W + (m.flip ? W - 1 - x : x)) * C + c];
	for (int y = 0; y < H; y++)
		for (int x = 0; x < W; x++)
			for (int c = 0; c < C; c++) {
				bool blank = y >= m.cy - cut / 2 && y < m.cy - cut / 2 + cut &&
					     x >= m.cx - cut / 2 && x < m.cx - cut / 2 + cut;

				out[(y * W + x) * C + c] =
					blank ? 0.0f : large[y + m.dy][x + m.dx][c];
			}
}

static void types(void)
{
	static const char *const name[BACKEND_DTYPE_COUNT] = {"u8", "i16", "i32", "f32", "f64"};
	static const size_t bytes[BACKEND_DTYPE_COUNT] = {1, 2, 4, 4, 8};
	unsigned char buffer[PIXELS * 8 + 1];
	float value[PIXELS], want[PIXELS], got[PIXELS];

	for (int t = 0; t < BACKEND_DTYPE_COUNT; t++) {
		struct backend_input in = {t, {H, W, C}, mul, add, true, 2, 2};
		unsigned char *row = stored(t, value, buffer);

		is(backend_dtype_bytes(t), bytes[t], "bytes of an element");
		scale(value, want);
		backend_input_row(&in, row, false, 1, 2, 3, got);
		ok(!memcmp(got, want, sizeof(got)), "%s: scaled to the bit, no augmentation",
		   name[t]);
	}
	is(backend_dtype_bytes(BACKEND_DTYPE_COUNT), 0, "bytes of no type");
}

static void augment(const char *what, bool flip, uint32_t pad, uint32_t cutout)
{
	struct backend_input in = {BACKEND_U8, {H, W, C}, mul, add, flip, pad, cutout};
	unsigned char buffer[PIXELS * 8 + 1], *row;
	float value[PIXELS], image[PIXELS], want[PIXELS], got[PIXELS];
	uint64_t state = 77;
	int same = 0, flipped = 0;

	row = stored(BACKEND_U8, value, buffer);
	scale(value, image);
	for (int k = 0; k < 200; k++) {
		uint64_t seed = made_up(&state), hash = made_up(&state);
		struct made m = words(&in, seed, (uint32_t)k, hash);

		expected(&in, m, image, want);
		backend_input_row(&in, row, true, seed, (uint32_t)k, hash, got);
		same += !memcmp(got, want, sizeof(got));
		flipped += m.flip;
	}
	is(same, 200, what);
	ok(flip ? flipped > 70 && flipped < 130 : flipped == 0, "%s: flips", what);
}

/* ---- through a net ----------------------------------------------------------------------- */

#define ROWS 4

static void build_copy(struct build *b)
{
	b_flatten(b, b_input(b, H, W, C));
}

/* A net sees exactly these rows: augmented in training by (seed, epoch, hash), else as they are. */
static void in_a_net(const char *name)
{
	const struct op_case op = {"copy", build_copy, {BACKEND_MSE, 0, false}, false};
	struct backend_input in = {BACKEND_U8, {H, W, C}, mul, add, true, 2, 3};
	unsigned char buffer[ROWS][PIXELS * 8 + 1];
	float value[PIXELS], want[ROWS * PIXELS], got[ROWS * PIXELS];
	struct backend_net_options options;
	struct backend_error error;
	static struct build b;
	const void *row[ROWS];
	struct trial t;

	build_copy(&b);
	b_finish(&b);
	options = trial_options(&b.graph, &op, ROWS);
	options.input = in;
	if (trial_open(&t, name, &op, &b, ROWS, ROWS, NULL, 3, &options, &error))
		BAIL("%s", error.message);
	for (int i = 0; i < ROWS; i++) {
		row[i] = stored(BACKEND_U8, value, buffer[i]);
		buffer[i][1 + i] ^= 0x55;
		backend_input_row(&in, row[i], true, t.batch.seed, t.batch.epoch, t.hash[i],
				  want + i * PIXELS);
	}
	t.batch.x = row;
	is(backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, NULL, got, &error), 0, name);
	ok(!memcmp(got, want, sizeof(got)), "%s: trains on augmented rows", name);
	for (int i = 0; i < ROWS; i++)
		backend_input_row(&in, row[i], false, 0, 0, 0, want + i * PIXELS);
	is(backend_evaluate(t.net, NULL, NULL, &t.batch, NULL, got, &error), 0, name);
	ok(!memcmp(got, want, sizeof(got)), "%s: evaluates rows as they are", name);
	t.batch.hash = NULL;
	for (int i = 0; i < ROWS; i++)
		backend_input_row(&in, row[i], true, t.batch.seed, t.batch.epoch, 0,
				  want + i * PIXELS);
	is(backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, NULL, got, &error), 0, name);
	ok(!memcmp(got, want, sizeof(got)), "%s: no hashes are zeros", name);
	trial_free(&t);
}

int main(void)
{
	types();
	augment("flip", true, 0, 0);
	augment("pad and crop", false, 2, 0);
	augment("cutout", false, 0, 3);
	augment("even cutout", false, 0, 2);
	augment("all", true, 4, 4);
	augment("cutout larger than the image", true, 1, 15);
	for (int i = 0; trial_backends[i]; i++)
		in_a_net(trial_backends[i]);
	return done();
}
