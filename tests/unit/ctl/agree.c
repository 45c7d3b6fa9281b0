// SPDX-License-Identifier: MIT
/*
 * agree.c: the agreed block of several parts, against values worked out by hand or from the pixels
 * themselves. The blob form is tested in agree_blob.c.
 */
#include "../../../userspace/ctl/agree.h"
#include "../../../kernels/backend.h"
#include "../../tap.h"

#include <errno.h>

#define TEXT(s)                                             \
	{                                                   \
		sizeof(s) - 1, (const uint8_t *)(s), 0, NAN \
	}

/* A part of n training rows of 1x1x1 bytes with labels of a kind. */
static struct agree_block part(uint64_t rows, uint32_t replicas, enum agree_labels kind,
			       struct agree_label *label, uint32_t n_labels)
{
	struct agree_block b = {
		.rows = {rows},
		.sent = {rows},
		.h = rows > 0,
		.w = rows > 0,
		.c = rows > 0,
		.labels = kind,
		.n_labels = n_labels,
		.label = label,
		.replicas = replicas,
	};
	return b;
}

static int64_t int_of(const struct agree_label *l)
{
	int64_t v;

	memcpy(&v, l->value, sizeof(v));
	return v;
}

static struct agree_label count(struct agree_label l, uint64_t n, double weight)
{
	l.count = n;
	l.weight = weight;
	return l;
}

static void test_integers(void)
{
	const int64_t v[] = {10, -1, 2, 7, 1, 2, INT64_MIN, 256};
	struct agree_label a[3], b[2], c[3], *x[3] = {a, b, c};
	const uint32_t size[3] = {3, 2, 3};
	const uint64_t counts[] = {5, 1, 6, 3, 9, 4, 1, 1};
	struct agree_block p[4], out;
	struct err err = {0};
	static const int64_t order[] = {INT64_MIN, -1, 1, 2, 7, 10, 256};
	static const uint64_t total[] = {1, 1, 9, 10, 3, 5, 1};
	int64_t one = 1, absent = 3;

	for (int i = 0, at = 0; i < 3; i++)
		for (uint32_t k = 0; k < size[i]; k++, at++)
			x[i][k] = (struct agree_label){8, (const uint8_t *)&v[at], counts[at], NAN};
	p[0] = part(12, 1, AGREE_INT, a, 3);
	p[1] = part(12, 1, AGREE_INT, b, 2);
	p[2] = part(0, 1, AGREE_NO_LABELS, NULL, 0); /* an empty segment in the middle */
	p[3] = part(6, 1, AGREE_INT, c, 3);
	for (int i = 0; i < 4; i++)
		p[i].balanced = 1;
	if (!ok(!agree_merge(p, 4, &out, &err), "integers of four parts: merged (%s)", err.message))
		return;
	is(out.n_labels, 7, "seven distinct labels");
	is(out.outputs, 7, "seven outputs");
	for (int i = 0; i < 7; i++) {
		is(int_of(&out.label[i]), order[i], "by value");
		is(out.label[i].count, total[i], "counts are added");
		near(out.label[i].weight, 30.0 / (7 * (double)total[i]), 1e-15, "balanced");
	}
	is(agree_find(&out, (const uint8_t *)&one, 8), 2, "find 1");
	is(agree_find(&out, (const uint8_t *)&absent, 8), -1, "find what is not there");
	is(agree_find(&out, (const uint8_t *)&one, 4), -1, "find with another length");
	is(out.rows[0], 30, "rows are added");
	is(out.replicas, 4, "replicas are added");
	is(out.batch_size, 1, "batch of 30 / (20 * 4), at least 1");
	is(out.steps, 12, "steps of the largest part");
	is(out.agreed, 1, "marked as agreed");
	agree_free(&out);
	ok(!out.label && !out.mul, "freed");
}

static void test_text(void)
{
	struct agree_label a[] = {TEXT("dog"), TEXT("cat")};
	struct agree_label b[] = {TEXT("ca"), TEXT("\xc3\xa4pfel"), TEXT("")};
	struct agree_label c[] = {TEXT("zebra")};
	static const char *const order[] = {"", "ca", "cat", "dog", "zebra", "\xc3\xa4pfel"};
	struct agree_block p[3], out;
	struct err err = {0};

	a[0] = count(a[0], 4, 2.5);
	a[1] = count(a[1], 6, NAN);
	b[0] = count(b[0], 1, 0);
	b[1] = count(b[1], 0, NAN); /* seen in validation only */
	b[2] = count(b[2], 2, NAN);
	c[0] = count(c[0], 3, NAN);
	p[0] = part(10, 2, AGREE_TEXT, a, 2);
	p[1] = part(3, 2, AGREE_TEXT, b, 3);
	p[2] = part(3, 2, AGREE_TEXT, c, 1);
	if (!ok(!agree_merge(p, 3, &out, &err), "text, disjoint sets: merged (%s)", err.message))
		return;
	is(out.n_labels, 6, "six labels");
	for (uint32_t i = 0; i < 6; i++)
		ok(out.label[i].bytes == strlen(order[i]) &&
			   !memcmp(out.label[i].value, order[i], strlen(order[i])),
		   "bytewise order: '%s'", order[i]);
	ok(out.label[3].weight == 2.5 && out.label[1].weight == 0, "explicit weights stay");
	ok(out.label[2].weight == 1, "else 1");
	is(agree_find(&out, (const uint8_t *)"cat", 3), 2, "find cat");
	is(agree_find(&out, (const uint8_t *)"cats", 4), -1, "no cats");
	agree_free(&out);

	for (int i = 0; i < 3; i++)
		p[i].balanced = 1;
	is(agree_merge(p, 3, &out, &err), 0, "balanced with explicit weights and an absent class");
	near(out.label[2].weight, 16.0 / (5 * 6), 1e-15, "n / (classes present * count)");
	ok(out.label[5].weight == 1, "a class without training rows: 1");
	ok(out.label[3].weight == 2.5, "explicit before balanced");
	agree_free(&out);

	a[1].weight = 3;
	c[0] = count((struct agree_label)TEXT("cat"), 3, 4);
	is(agree_merge(p, 3, &out, &err), -EINVAL, "two weights for one label");
	like(err.message, "class weights", "... is said");
}

static void test_other_kinds(void)
{
	const uint8_t no = 0, yes = 1;
	struct agree_label a[] = {{1, &yes, 3, NAN}}, b[] = {{1, &no, 4, NAN}, {1, &yes, 1, NAN}};
	struct agree_block p[2] = {part(3, 1, AGREE_BOOL, a, 1), part(5, 1, AGREE_BOOL, b, 2)}, out;
	struct err err = {0};

	is(agree_merge(p, 2, &out, &err), 0, "boolean labels");
	ok(out.n_labels == 2 && !*out.label[0].value && *out.label[1].value == 1, "false, true");
	is(out.label[1].count, 4, "true, four times");
	agree_free(&out);

	p[0] = part(3, 1, AGREE_VECTOR, NULL, 0);
	p[1] = part(5, 1, AGREE_VECTOR, NULL, 0);
	p[0].outputs = p[1].outputs = 10;
	is(agree_merge(p, 2, &out, &err), 0, "label arrays");
	ok(out.outputs == 10 && !out.n_labels, "ten outputs, no class map");
	agree_free(&out);
	p[1].outputs = 9;
	is(agree_merge(p, 2, &out, &err), -EINVAL, "arrays of different lengths");

	p[0] = part(3, 1, AGREE_FLOAT, NULL, 0);
	p[1] = part(5, 1, AGREE_FLOAT, NULL, 0);
	is(agree_merge(p, 2, &out, &err), 0, "one regression target");
	is(out.outputs, 1, "one output");
	agree_free(&out);

	p[0] = part(0, 1, AGREE_NO_LABELS, NULL, 0);
	p[0].rows[2] = p[0].sent[2] = 4;
	p[0].h = p[0].w = p[0].c = 1;
	is(agree_merge(p, 1, &out, &err), 0, "prediction rows only");
	ok(out.rows[2] == 4 && out.steps == 1 && out.label == NULL, "... no labels, one step");
	agree_free(&out);
}

/* Parts with the sums of given pixels; the wanted mean and deviation from the pixels themselves. */
static void test_normalization(void)
{
	static const double pixel[3][2][4] = {
		{{0, 255, 17, 3}, {9, 9, 9, 9}},
		{{250, 250, 1, 0}, {9, 9, 9, 9}},
		{{128, 127, 90, 33}, {9, 9, 9, 9}},
	};
	double sum[3][2] = {{0}}, sum2[3][2] = {{0}};
	long double mean = 0, variance = 0;
	struct agree_block p[4], out;
	struct err err = {0};

	memset(p, 0, sizeof(p));
	for (int i = 0; i < 3; i++)
		for (int c = 0; c < 2; c++)
			for (int k = 0; k < 4; k++) {
				sum[i][c] += pixel[i][c][k];
				sum2[i][c] += pixel[i][c][k] * pixel[i][c][k];
			}
	for (int i = 0; i < 12; i++)
		mean += pixel[i / 4][0][i % 4] / 255.0L / 12;
	for (int i = 0; i < 12; i++) {
		long double d = pixel[i / 4][0][i % 4] / 255.0L - mean;

		variance += d * d / 12;
	}
	for (int i = 0; i < 3; i++) {
		p[i] = (struct agree_block){.rows = {2}, .sent = {2}, .h = 1, .w = 2, .c = 2};
		p[i].pixels = 4;
		p[i].n_channels = 2;
		p[i].sum = sum[i];
		p[i].sum2 = sum2[i];
		p[i].normalize = AGREE_STANDARDIZE;
		p[i].replicas = 1;
	}
	p[3].normalize = AGREE_STANDARDIZE; /* nothing there, not even channels */
	is(agree_merge(p, 4, &out, &err), 0, "standardize");
	is(out.pixels, 12, "pixels are added");
	for (int i = 0; i < 12; i++)
		near(pixel[i / 4][0][i % 4] * out.mul[0] + out.add[0],
		     (double)((pixel[i / 4][0][i % 4] / 255.0L - mean) / sqrtl(variance)), 1e-12,
		     "a standardized value");
	near(out.mul[1] * 9 + out.add[1], 0, 1e-15, "a constant channel is centred");
	near(out.mul[1], 1 / 255.0, 1e-18, "... and its deviation counts as 1");
	near(out.sum[1], 108, 0, "sums are kept");
	agree_free(&out);

	for (int i = 0; i < 4; i++)
		p[i].normalize = AGREE_SCALE_AUTO;
	is(agree_merge(p, 4, &out, &err), 0, "automatic");
	ok(out.normalize == AGREE_SCALE && out.normalizing_const == 255, "integers: by 255");
	ok(out.mul[0] == 1 / 255.0 && out.add[0] == 0, "x / 255");
	agree_free(&out);

	for (int i = 0; i < 3; i++)
		p[i].dtype = BACKEND_F32;
	is(agree_merge(p, 4, &out, &err), 0, "automatic, floats");
	ok(out.mul[1] == 1 && out.add[1] == 0, "floats: as they are");
	agree_free(&out);

	for (int i = 0; i < 4; i++)
		p[i].normalizing_const = 16;
	is(agree_merge(p, 4, &out, &err), 0, "given constant");
	ok(out.mul[0] == 1 / 16.0 && out.normalizing_const == 16, "x / 16");
	agree_free(&out);

	for (int i = 0; i < 4; i++)
		p[i].normalize = AGREE_SCALE_NONE;
	is(agree_merge(p, 4, &out, &err), 0, "none");
	ok(out.mul[0] == 1 && out.add[0] == 0, "x");
	agree_free(&out);
}

static void test_normalization_limits(void)
{
	double sum[2] = {0}, sum2[2] = {0};
	struct agree_block p[2] = {part(10000000, 1, AGREE_NO_LABELS, NULL, 0)}, out;
	struct err err = {0};

	p[0].normalize = AGREE_STANDARDIZE;
	p[0].dtype = BACKEND_F32;
	is(agree_merge(p, 1, &out, &err), -EINVAL, "standardize without sums is refused");
	for (int i = 0; i < 10000000; i++) {
		sum[0] += .1;
		sum2[0] += .1 * .1;
	}
	p[0].sum = sum;
	p[0].sum2 = sum2;
	p[0].n_channels = 1;
	p[0].pixels = 10000000;
	is(agree_merge(p, 1, &out, &err), 0, "ten million times 0.1");
	ok(out.mul[0] == 1, "rounding errors are not taken for a deviation");
	near(out.add[0], -.1, 1e-9, "centred");
	agree_free(&out);
	sum2[0] = INFINITY;
	is(agree_merge(p, 1, &out, &err), -ERANGE, "an infinite sum of squares");
	like(err.message, "channel 0", "... names the channel");
	p[0].n_channels = 2;
	is(agree_merge(p, 1, &out, &err), -EINVAL, "sums of another number of channels");
	p[0].c = AGREE_MAX_CHANNELS + 1;
	is(agree_merge(p, 1, &out, &err), -E2BIG, "too many channels");
}

/* training.md, 1: with S steps no replica gets more than B rows, with S - 1 some replica does. */
static bool fits(const struct agree_block *p, int n, uint64_t steps, uint64_t batch)
{
	for (int i = 0; i < n; i++) {
		uint64_t rows = p[i].rows[0], replicas = p[i].replicas;

		for (uint64_t s = 0; s < steps; s++) {
			uint64_t m = (s + 1) * rows / steps - s * rows / steps;

			for (uint64_t k = 0; k < replicas; k++)
				if ((k + 1) * m / replicas - k * m / replicas > batch)
					return false;
		}
	}
	return true;
}

static void test_steps(void)
{
	unsigned int seed = 3, wrong = 0;
	struct agree_block p[5], out;
	struct err err = {0};

	for (int i = 0; i < 500; i++) {
		int n = 1 + (int)(rand_r(&seed) % 5);
		uint32_t batch = 1 + rand_r(&seed) % 40;

		for (int k = 0; k < n; k++) {
			p[k] = part(rand_r(&seed) % 300, 1 + rand_r(&seed) % 4, AGREE_FLOAT, NULL,
				    0);
			p[k].batch_size = batch;
		}
		if (agree_merge(p, (size_t)n, &out, &err))
			continue;
		wrong += !fits(p, n, out.steps, batch);
		wrong += out.steps > 1 && fits(p, n, out.steps - 1, batch);
		wrong += out.batch_size != batch;
		agree_free(&out);
	}
	is(wrong, 0, "steps: least number so that no replica is over the batch");

	p[0] = part(50000, 1, AGREE_FLOAT, NULL, 0);
	p[1] = part(10000, 3, AGREE_FLOAT, NULL, 0);
	agree_merge(p, 2, &out, &err);
	is(out.batch_size, 128, "60,000 rows, 4 replicas: batch 128");
	is(out.steps, 391, "ceil(50000 / 128)");
	agree_free(&out);
	p[0].rows[0] = p[0].sent[0] = 900;
	p[1].rows[0] = p[1].sent[0] = 100;
	agree_merge(p, 2, &out, &err);
	is(out.batch_size, 12, "1,000 rows, 4 replicas: batch 1000 / 80");
	is(out.steps, 75, "ceil(900 / 12)");
	agree_free(&out);
	p[0].rows[0] = p[0].sent[0] = 1;
	agree_merge(p, 1, &out, &err);
	ok(out.batch_size == 1 && out.steps == 1, "one row: one step of one");
	agree_free(&out);
}

static void refuse(struct agree_block *p, size_t n, enum err_kind kind, const char *piece,
		   const char *name)
{
	struct agree_block out = {.h = 4711};
	struct err err = {0};
	int rc = agree_merge(p, n, &out, &err);

	ok(rc < 0 && out.h == 4711 && err.kind == kind, "%s", name);
	like(err.message, piece, name);
}

static void test_refused(void)
{
	const int64_t one = 1;
	struct agree_label a[] = {{8, (const uint8_t *)&one, 3, NAN}};
	struct agree_block good = part(3, 1, AGREE_INT, a, 1), p[2];

#define RESET() (p[0] = p[1] = good)
	refuse(p, 0, ERR_INTERNAL, "no parts", "no parts");
	p[0] = p[1] = part(0, 1, AGREE_NO_LABELS, NULL, 0);
	refuse(p, 2, ERR_DATA, "no rows", "no rows at all");
	p[1].bad[0] = p[1].sent[0] = 5;
	refuse(p, 2, ERR_DATA, "all 5 are bad", "bad rows only");
	RESET();
	p[1].h = 2;
	refuse(p, 2, ERR_DATA, "1x1x1 on host 0, of 2x1x1 on host 1", "shapes differ");
	RESET();
	p[1].dtype = BACKEND_F32;
	refuse(p, 2, ERR_DATA, "different types", "types differ");
	RESET();
	p[1].labels = AGREE_TEXT;
	refuse(p, 2, ERR_DATA, "different kinds", "label kinds differ");
	RESET();
	p[1].sent[0] = 4;
	refuse(p, 2, ERR_DATA, "7 training rows were sent, but 6 are held and 0 are bad",
	       "a row lost");
	RESET();
	p[1].bad[1] = 1;
	refuse(p, 2, ERR_DATA, "0 validation rows were sent", "a row too many");
	RESET();
	p[0].rows[0] = p[0].sent[0] = UINT64_MAX;
	refuse(p, 2, ERR_DATA, "overflow", "row counts that overflow");
	RESET();
	p[1].h = p[1].w = p[1].c = 0;
	refuse(p, 2, ERR_DATA, "without a shape", "rows without a shape");
	RESET();
	p[1].replicas = 0;
	refuse(p, 2, ERR_DATA, "no replica", "rows without a replica");
	RESET();
	p[1].batch_size = 3;
	refuse(p, 2, ERR_INTERNAL, "one specification", "another batch size");
	RESET();
	p[1].agreed = 1;
	refuse(p, 2, ERR_INTERNAL, "already", "an agreed block as a part");
#undef RESET
}

static void test_many_labels(void)
{
	uint32_t n = AGREE_MAX_LABELS / 2 + 1;
	int64_t *v = malloc(2 * n * sizeof(*v));
	struct agree_label *l = malloc(2 * n * sizeof(*l));
	struct agree_block p[2], out;
	struct err err = {0};

	for (uint32_t i = 0; i < 2 * n; i++) {
		v[i] = i;
		l[i] = (struct agree_label){8, (const uint8_t *)&v[i], 1, NAN};
	}
	p[0] = part(n, 1, AGREE_INT, l, n);
	p[1] = part(n, 1, AGREE_INT, l + n, n);
	refuse(p, 2, ERR_DATA, "65538 distinct labels", "too many labels over all parts");
	p[1].label = l + 2;
	is(agree_merge(p, 2, &out, &err), 0, "overlapping sets stay below the limit");
	is(out.n_labels, n + 2, "half and two more labels");
	agree_free(&out);
	free(l);
	free(v);
}

/* Values by hand; labels of one part that others do not have, an empty part, none at all. */
static void test_skew(void)
{
	const int64_t v[] = {1, 2, 3};
	struct agree_label a[2], b[3], c[1];
	struct agree_block p[4];
	double distance[4], ratio;
	struct err err = {0};

	a[0] = (struct agree_label){8, (const uint8_t *)&v[0], 30, NAN};
	a[1] = (struct agree_label){8, (const uint8_t *)&v[1], 10, NAN};
	b[0] = (struct agree_label){8, (const uint8_t *)&v[0], 10, NAN};
	b[1] = (struct agree_label){8, (const uint8_t *)&v[1], 10, NAN};
	b[2] = (struct agree_label){8, (const uint8_t *)&v[2], 0, NAN}; /* in validation only */
	c[0] = (struct agree_label){8, (const uint8_t *)&v[2], 40, NAN};
	p[0] = part(40, 1, AGREE_INT, a, 2);
	p[1] = part(20, 1, AGREE_INT, b, 3);
	p[2] = part(40, 1, AGREE_INT, c, 1);
	is(agree_skew(p, 3, distance, &ratio, &err), 0, "skew of three parts");
	/* all: .4 .2 .4 of 100 */
	near(distance[0], .5 * (.35 + .05 + .4), 1e-15, "distance of the first");
	near(distance[1], .5 * (.1 + .3 + .4), 1e-15, "of one with a label without rows");
	near(distance[2], .5 * (.4 + .2 + .6), 1e-15, "of one with a label of its own");
	near(ratio, 2, 1e-15, "ratio of rows");
	p[3] = part(0, 1, AGREE_NO_LABELS, NULL, 0);
	is(agree_skew(p, 4, distance, &ratio, &err), 0, "a part without rows");
	ok(distance[3] == 0 && isinf(ratio), "... has no distance, and the ratio is infinite");
	near(distance[0], .4, 1e-15, "... the others' are as before");
	is(agree_skew(p, 1, distance, &ratio, &err), 0, "one part");
	ok(distance[0] == 0 && ratio == 1, "... is even");
	is(agree_skew(p + 3, 1, distance, &ratio, &err), 0, "no rows at all");
	ok(distance[0] == 0 && ratio == 1, "... are even");
	p[1].labels = AGREE_TEXT;
	is(agree_skew(p, 3, distance, &ratio, &err), -EINVAL, "labels of two kinds");
	p[0] = part(30, 1, AGREE_FLOAT, NULL, 0);
	p[1] = part(20, 1, AGREE_FLOAT, NULL, 0);
	is(agree_skew(p, 2, distance, &ratio, &err), 0, "targets");
	ok(distance[0] == 0 && distance[1] == 0 && ratio == 1.5, "... count as rows alone");
	is(agree_skew(p, 0, distance, &ratio, &err), -EINVAL, "no parts");
}

int main(void)
{
	test_skew();
	test_integers();
	test_text();
	test_other_kinds();
	test_normalization();
	test_normalization_limits();
	test_steps();
	test_refused();
	test_many_labels();
	return done();
}
