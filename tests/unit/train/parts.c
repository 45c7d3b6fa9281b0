// SPDX-License-Identifier: MIT
/*
 * parts.c: weights and optimizer state larger than one part; the documented layout of the
 * optimizer's blob; hostile parts are refused and leave the net as it was.
 */
#include "rig.h"

#define ROWS 8

static struct rig_rows rows_of(uint32_t width)
{
	static float x[ROWS * 1024];
	static int32_t y[ROWS];

	for (uint32_t i = 0; i < ROWS; i++) {
		y[i] = (int32_t)(i % 3);
		for (uint32_t j = 0; j < width; j++)
			x[i * width + j] = (float)((i * 31 + j * 17) % 13) / 13;
	}
	return (struct rig_rows){.n = ROWS, .h = 1, .w = 1, .c = width, .f32 = x, .y_int = y};
}

static void start(struct rig *r, const char *spec, uint32_t width, const char *layers)
{
	struct rig_rows rows = rows_of(width);
	char *architecture = rig_dense(width, layers);
	struct err err;

	if (rig_start(r, spec, architecture, &rows, NULL, &err))
		BAIL("%s: %s", spec, err.message);
	free(architecture);
}

static void one_epoch(struct rig *r)
{
	struct ctl_run_row row;
	struct err err;

	if (rig_run(r, 0, 1, &row, &err))
		BAIL("%s", err.message);
}

#define ADAM "{\"backend\": \"ref\", \"optimizer\": \"adam\"}"

/* 1024 x 2100 + 2100 x 1000 + ...: 17 MB of weights, 34 MB of optimizer state */
static void large(void)
{
	uint64_t n, m;
	uint8_t *weights, *state;
	struct err err = {0};
	struct ctl_part part;
	struct rig a, b;

	start(&a, ADAM, 1024, "dense:2100:relu,dense:1000:relu,dense:3:softmax");
	start(&b, "{\"backend\": \"ref\", \"optimizer\": \"adam\", \"seed\": 5}", 1024,
	      "dense:2100:relu,dense:1000:relu,dense:3:softmax");
	one_epoch(&a);
	is(train_get(a.train, CTL_OPTIMIZER, 2, &part, &err), 0, "a third part");
	ok(part.parts == 3 && part.data.n <= CTL_PART_MAX && part.part == 2, "of three");
	is(train_get(a.train, CTL_OPTIMIZER, 3, &part, &err), -EINVAL, "a fourth is refused");
	weights = rig_get(&a, CTL_WEIGHTS, &n);
	state = rig_get(&a, CTL_OPTIMIZER, &m);
	ok(n == 4 * (1025ull * 2100 + 2101 * 1000 + 1001 * 3),
	   "weights as large as the parameters");
	ok(m == 2 * n + 2 * 12 + strlen("momentum") + strlen("velocity"),
	   "optimizer state: two slots with their heads");
	is(rig_put(&b, CTL_WEIGHTS, weights, n, &err) | rig_put(&b, CTL_OPTIMIZER, state, m, &err),
	   0, "put in parts");
	ok(rig_same(&a, &b, CTL_WEIGHTS) && rig_same(&a, &b, CTL_OPTIMIZER), "the same bits");
	free(weights);
	free(state);
	rig_end(&a);
	rig_end(&b);
}

/* The blob by its documentation: for each slot u32 length, name, u64 updates, tensors. */
static void layout(void)
{
	uint64_t n, updates;
	uint32_t length;
	uint8_t *state, *p;
	struct rig r;
	float *first;

	start(&r, "{\"backend\": \"ref\", \"batch_size\": 2, \"learning_rate\": 0.5}", 4,
	      "dense:3:softmax");
	one_epoch(&r);
	state = rig_get(&r, CTL_OPTIMIZER, &n);
	if (!ok(state && n == 4 + 8 + 8 + 15 * 4, "momentum of sgd: one slot of 15 numbers"))
		BAIL("no optimizer state");
	p = state;
	memcpy(&length, p, 4);
	memcpy(&updates, p + 4 + 8, 8);
	ok(length == 8 && !memcmp(p + 4, "momentum", 8) && updates == 4,
	   "name and count of applied updates");
	first = (float *)(p + 20);
	ok(first[12] != 0 && fabs(first[12] + first[13] + first[14]) < 1e-6,
	   "then kernel and bias: softmax's bias gradients cancel out");
	free(state);
	rig_end(&r);
	start(&r, "{\"backend\": \"ref\", \"momentum\": 0}", 4, "dense:3:softmax");
	ok(!rig_get(&r, CTL_OPTIMIZER, &n), "sgd without momentum has no state");
	rig_end(&r);
}

static struct rig victim;
static uint8_t *before, *before_state;
static uint64_t before_bytes, state_bytes;

static void unharmed(const char *name)
{
	uint64_t n, m;
	uint8_t *now = rig_get(&victim, CTL_WEIGHTS, &n);
	uint8_t *state = rig_get(&victim, CTL_OPTIMIZER, &m);

	ok(now && n == before_bytes && !memcmp(now, before, n) && state && m == state_bytes &&
		   !memcmp(state, before_state, m),
	   "%s: the net is as it was", name);
	free(now);
	free(state);
}

static int put(uint32_t kind, uint32_t part, uint32_t parts, uint64_t total, const void *data,
	       uint32_t n, struct err *err)
{
	struct ctl_part p = {.kind = kind, .part = part, .parts = parts, .total = total};

	p.data = ctl_str(data, n);
	return train_put(victim.train, &p, err);
}

static void refuse_put(const char *name, int code, uint32_t kind, uint32_t part, uint32_t parts,
		       uint64_t total, const void *data, uint32_t n, const char *message)
{
	struct err err = {0};
	int rc = put(kind, part, parts, total, data, n, &err);

	if (!ok(rc == code && strstr(err.message, message), "%s is refused", name))
		printf("#   rc %d: %s\n", rc, err.message);
	unharmed(name);
}

static void hostile_weights(void)
{
	uint32_t n = (uint32_t)before_bytes;
	float *bad = malloc(n);
	struct err err;

	memcpy(bad, before, n);
	refuse_put("no parts", -EPROTO, CTL_WEIGHTS, 0, 0, n, before, n, "part 0 of 0");
	refuse_put("a part past the last", -EPROTO, CTL_WEIGHTS, 2, 2, n, before, n, "part 2 of 2");
	refuse_put("a second part first", -EPROTO, CTL_WEIGHTS, 1, 2, n, before, n, "out of order");
	refuse_put("too few bytes", -EPROTO, CTL_WEIGHTS, 0, 1, n, before, n - 4, "bytes");
	refuse_put("too many bytes", -EPROTO, CTL_WEIGHTS, 0, 1, n, before, n + 4, "bytes");
	refuse_put("half a number", -EPROTO, CTL_WEIGHTS, 0, 2, n, before, 6, "bytes");
	refuse_put("an empty part", -EPROTO, CTL_WEIGHTS, 0, 2, n, before, 0, "bytes");
	refuse_put("all in the first of two", -EPROTO, CTL_WEIGHTS, 0, 2, n, before, n, "bytes");
	refuse_put("an unknown kind", -EINVAL, 77, 0, 1, n, before, n, "kind 77");
	refuse_put("a snapshot", -EINVAL, CTL_BEST, 0, 1, n, before, n, "kind 2");
	bad[3] = NAN;
	refuse_put("NaN", -EINVAL, CTL_WEIGHTS, 0, 1, n, bad, n, "NaN or infinite");
	bad[3] = INFINITY;
	refuse_put("infinity", -EINVAL, CTL_WEIGHTS, 0, 1, n, bad, n, "NaN or infinite");
	like((put(CTL_WEIGHTS, 0, 1, n, bad, n, &err), err.message), "dense0/",
	     "the tensor is named");
	ok(put(CTL_WEIGHTS, 0, 1, n + 4, before, n + 4, &err) < 0 && err.kind == ERR_ARCH,
	   "a blob of another network is refused: %.200s", err.message);
	unharmed("another network");
	bad[3] = 0;
	is(put(CTL_WEIGHTS, 0, 2, n, bad, 8, &err), 0, "a first part,");
	refuse_put("another total in the second", -EPROTO, CTL_WEIGHTS, 1, 2, n + 4, bad, n - 8,
		   "out of order");
	is(put(CTL_WEIGHTS, 0, 2, n, bad, 8, &err), 0, "a first part,");
	refuse_put("another kind in the second", -EPROTO, CTL_OPTIMIZER, 1, 2, n, bad, n - 8,
		   "out of order");
	is(put(CTL_WEIGHTS, 0, 3, n, bad, 8, &err), 0, "a first part,");
	refuse_put("a third after the first", -EPROTO, CTL_WEIGHTS, 2, 3, n, bad, n - 8,
		   "out of order");
	is(put(CTL_WEIGHTS, 0, 3, n, bad, 8, &err), 0, "a first part");
	unharmed("and nothing more");
	refuse_put("going on after a look", -EPROTO, CTL_WEIGHTS, 1, 3, n, bad, 8, "out of order");
	free(bad);
}

static void hostile_state(void)
{
	uint32_t n = (uint32_t)state_bytes, second = n / 2;
	uint8_t *bad = malloc(n);
	uint64_t huge = UINT64_MAX;
	struct err err;
	float nan = NAN;

	memcpy(bad, before_state, n);
	refuse_put("state of another size", -EINVAL, CTL_OPTIMIZER, 0, 1, n - 4, bad, n - 4,
		   "this optimizer needs");
	bad[5] ^= 1;
	refuse_put("a slot of another name", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n, "no slot");
	bad[5] ^= 1;
	bad[0]--;
	refuse_put("a slot of a shorter name", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n, "no slot");
	memset(bad, 0xff, 4);
	refuse_put("a name of 4 GB", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n, "no slot");
	memcpy(bad, before_state, n);
	memcpy(bad + 12, &huge, 8);
	refuse_put("an impossible step count", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n,
		   "step count");
	memcpy(bad, before_state, n);
	bad[second + 12] ^= 4;
	refuse_put("slots of different counts", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n,
		   "step count");
	memcpy(bad, before_state, n);
	memcpy(bad + n - 4, &nan, 4);
	refuse_put("NaN in a slot", -EINVAL, CTL_OPTIMIZER, 0, 1, n, bad, n, "NaN or infinite");
	memcpy(bad, before_state, n);
	/* cuts that do not care for heads or numbers */
	is(put(CTL_OPTIMIZER, 0, 3, n, bad, 1, &err) |
		   put(CTL_OPTIMIZER, 1, 3, n, bad + 1, 14, &err) |
		   put(CTL_OPTIMIZER, 2, 3, n, bad + 15, n - 15, &err),
	   0, "the state itself, cut anywhere, is taken");
	unharmed("the state itself");
	free(bad);
}

int main(void)
{
	large();
	layout();
	start(&victim, ADAM, 4, "dense:5:relu,dense:3:softmax");
	one_epoch(&victim);
	before = rig_get(&victim, CTL_WEIGHTS, &before_bytes);
	before_state = rig_get(&victim, CTL_OPTIMIZER, &state_bytes);
	hostile_weights();
	hostile_state();
	free(before);
	free(before_state);
	rig_end(&victim);
	return done();
}
