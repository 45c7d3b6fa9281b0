/* SPDX-License-Identifier: MIT */
/*
 * data.c: what comes before the first layer, and what draws random numbers, bit by bit against ref:
 * every element type, flip, pad-and-crop, cutout; masks of dropout, flips, shifts, crops; rows that
 * stay on the device; the batch that was announced, and one that was announced wrongly.
 */
#include "gpu_trial.h"

#define ROWS 9
#define H 6
#define W 5
#define C 3
#define COUNT (H * W * C)

static const char *const type_name[] = {"u8", "i16", "i32", "f32", "f64"};

static void store(void *row, enum backend_dtype type, uint32_t e, uint64_t *state)
{
	uint64_t v = made_up(state);

	switch (type) {
	case BACKEND_U8:
		((uint8_t *)row)[e] = (uint8_t)v;
		break;
	case BACKEND_I16:
		((int16_t *)row)[e] = (int16_t)v;
		break;
	case BACKEND_I32:
		((int32_t *)row)[e] = (int32_t)v;
		break;
	case BACKEND_F32:
		((float *)row)[e] = (float)(int32_t)v * 1e-6f;
		break;
	default:
		((double *)row)[e] = (double)(int64_t)v * 1e-15;
		break;
	}
}

struct rows {
	char *memory;
	const void *x[ROWS];
	uint64_t hash[ROWS];
	float target[ROWS * 256];
};

static void make_rows(struct rows *r, enum backend_dtype type, uint64_t seed)
{
	size_t bytes = COUNT * backend_dtype_bytes(type);

	r->memory = malloc(ROWS * bytes);
	if (!r->memory)
		BAIL("no memory");
	for (uint32_t i = 0; i < ROWS; i++) {
		r->x[i] = r->memory + i * bytes;
		r->hash[i] = made_up(&seed);
		for (uint32_t e = 0; e < COUNT; e++)
			store(r->memory + i * bytes, type, e, &seed);
	}
}

static struct backend_net *open_net(const char *name, const struct build *b,
				    const struct backend_input *input, struct backend **backend)
{
	struct backend_net_options options = {.max_batch = ROWS,
					      .input = *input,
					      .loss = {BACKEND_MSE, 0, false},
					      .optimizer = {.kind = BACKEND_SGD, .epsilon = 1e-7f},
					      .deterministic = true};
	struct backend_error error = {""};
	struct backend_net *net = NULL;

	if (backend_open(name, NULL, backend, &error) ||
	    backend_compile(*backend, &b->graph, &options, &net, &error))
		BAIL("%s: %s", name, error.message);
	return net;
}

/* Outputs in training, which are the values behind the last layer. */
static void outputs_of(struct backend_net *net, const struct backend_batch *batch, float *out)
{
	struct backend_error error = {""};

	if (backend_gradient(net, batch, 1.0f, false, NULL, NULL, NULL, out, &error))
		BAIL("no gradient: %s", error.message);
}

static void compare(const struct build *b, const struct backend_input *input, struct rows *r,
		    const char *what)
{
	struct backend_batch batch = {.n = ROWS,
				      .x = r->x,
				      .hash = r->hash,
				      .target = r->target,
				      .seed = 0xfedcba9876543210ull,
				      .epoch = 2,
				      .step = 0x123456789ull,
				      .position = 0xfffffffeull};
	static float got[ROWS * 256], want[ROWS * 256];
	struct backend_shape s = b->node[b->n_nodes - 1].out;
	size_t bytes = (size_t)ROWS * s.h * s.w * s.c * sizeof(float);
	struct backend *ref, *gpu;
	struct backend_net *a = open_net("ref", b, input, &ref);
	struct backend_net *g = open_net(gpu_backend(), b, input, &gpu);
	bool same = true;

	for (int k = 0; k < 3; k++) {
		batch.step++;
		batch.epoch++;
		outputs_of(a, &batch, want);
		outputs_of(g, &batch, got);
		same = same && !memcmp(got, want, bytes);
	}
	ok(same, "%s: bit by bit", what);
	backend_net_free(a);
	backend_net_free(g);
	backend_close(ref);
	backend_close(gpu);
}

static void try_types(struct build *b)
{
	static const float mul[C] = {0.0123f, 1.7f, -0.3f}, add[C] = {0.5f, -11.3f, 0.0f};

	for (int t = 0; t < BACKEND_DTYPE_COUNT; t++)
		for (int k = 0; k < 4; k++) {
			const struct backend_input input = {.dtype = t,
							    .shape = {H, W, C},
							    .mul = mul,
							    .add = add,
							    .flip = k & 1,
							    .pad = k & 2 ? 2 : 0,
							    .cutout = k == 3 ? 3 : 0};
			struct rows r = {0};
			char what[64];

			snprintf(what, sizeof(what), "rows of %s, flip %d, pad %u, cutout %u",
				 type_name[t], input.flip, input.pad, input.cutout);
			b_reshape(b, b_input(b, H, W, C), 1, 1, COUNT);
			if (b_finish(b))
				BAIL("no graph");
			make_rows(&r, t, 31 + (uint64_t)t);
			compare(b, &input, &r, what);
			free(r.memory);
		}
}

static void try_layers(struct build *b)
{
	static const float mul[C] = {1, 1, 1}, add[C] = {0, 0, 0};
	const struct backend_input input = {
		.dtype = BACKEND_F32, .shape = {H, W, C}, .mul = mul, .add = add};
	struct rows r = {0};

	make_rows(&r, BACKEND_F32, 77);
	for (int k = 0; k < 4; k++) {
		static const char *const what[] = {"dropout", "flip", "shift", "crop"};
		int x = b_input(b, H, W, C);

		x = k == 0   ? b_dropout(b, x, 0.37f)
		    : k == 1 ? b_flip(b, x, true, true)
		    : k == 2 ? b_shift(b, x, 0.5f, 0.4f)
			     : b_crop(b, x, 4, 3);
		if (b_finish(b))
			BAIL("no graph");
		compare(b, &input, &r, what[k]);
	}
	free(r.memory);
}

/* ---- ways to the device -----------------------------------------------------------------------
 */

struct feed {
	struct backend_net *net;
	struct backend *backend;
	struct rows r;
	float want[4][ROWS * COUNT], got[ROWS * COUNT];
	struct backend_batch batch[4];
	const void *x[4][ROWS];
	uint32_t index[4][ROWS];
	uint64_t hash[4][ROWS];
};

static void feed_open(struct feed *f, struct build *b)
{
	static const float mul[C] = {0.1f, 1, 2}, add[C] = {0, 1, -1};
	const struct backend_input input = {
		.dtype = BACKEND_I16, .shape = {H, W, C}, .mul = mul, .add = add, .flip = true};

	memset(f, 0, sizeof(*f));
	b_reshape(b, b_input(b, H, W, C), 1, 1, COUNT);
	if (b_finish(b))
		BAIL("no graph");
	make_rows(&f->r, BACKEND_I16, 3);
	f->net = open_net(gpu_backend(), b, &input, &f->backend);
	for (uint32_t k = 0; k < 4; k++) {
		uint32_t n = ROWS - k;

		for (uint32_t i = 0; i < n; i++) {
			f->index[k][i] = (5 * i + 2 * k) % ROWS;
			f->x[k][i] = f->r.x[f->index[k][i]];
			f->hash[k][i] = f->r.hash[f->index[k][i]];
		}
		f->batch[k] = (struct backend_batch){.n = n,
						     .x = f->x[k],
						     .hash = f->hash[k],
						     .target = f->r.target,
						     .seed = 5,
						     .epoch = k};
		outputs_of(f->net, &f->batch[k], f->want[k]);
	}
}

static void feed_close(struct feed *f)
{
	backend_net_free(f->net);
	backend_close(f->backend);
	free(f->r.memory);
}

static bool feed_run(struct feed *f)
{
	bool same = true;

	for (int round = 0; round < 3; round++)
		for (int k = 0; k < 4; k++) {
			size_t bytes = f->batch[k].n * COUNT * sizeof(float);

			outputs_of(f->net, &f->batch[k], f->got);
			same = same && !memcmp(f->got, f->want[k], bytes);
		}
	return same;
}

static void try_ways(struct build *b)
{
	struct feed *f = malloc(sizeof(*f));
	struct backend_error error = {""};
	int rc;

	if (!f)
		BAIL("no memory");
	feed_open(f, b);
	ok(feed_run(f), "one batch after the other");
	for (int k = 0; k < 4; k++)
		f->batch[k].next = &f->batch[(k + 1) % 4];
	ok(feed_run(f), "the next batch is announced");
	for (int k = 0; k < 4; k++)
		f->batch[k].next = &f->batch[(k + 2) % 4];
	ok(feed_run(f), "another batch than that is announced");
	rc = backend_resident(f->net, f->r.x, ROWS, &error);
	if (!ok(rc == 0, "rows that stay on the device"))
		printf("# %s (%d)\n", error.message, rc);
	for (int k = 0; k < 4 && !rc; k++) {
		f->batch[k].next = k % 2 ? &f->batch[(k + 1) % 4] : NULL;
		f->batch[k].index = f->index[k];
		f->batch[k].x = NULL;
	}
	ok(rc || feed_run(f), "batches of resident rows");
	f->index[2][1] = ROWS;
	is(backend_gradient(f->net, &f->batch[2], 1, false, NULL, NULL, NULL, NULL, &error),
	   -ERANGE, "a row that is not there");
	is(backend_resident(f->net, NULL, 0, &error), 0, "the rows are dropped");
	is(backend_gradient(f->net, &f->batch[1], 1, false, NULL, NULL, NULL, NULL, &error),
	   -ERANGE, "and no longer there");
	feed_close(f);
	free(f);
}

int main(void)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	gpu_needed();
	try_types(b);
	try_layers(b);
	try_ways(b);
	free(b);
	return done();
}
