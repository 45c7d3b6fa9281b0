// SPDX-License-Identifier: MIT
/* agree_blob.c: agree_blocks as bytes and back, truncated, damaged, out of range. */
#include "../../../userspace/ctl/agree.h"
#include "../../../kernels/backend.h"
#include "../../tap.h"

#include <errno.h>

#define TEXT(s)                                             \
	{                                                   \
		sizeof(s) - 1, (const uint8_t *)(s), 0, NAN \
	}

static bool same(const struct agree_block *a, const struct agree_block *b)
{
	struct agree_block x = *a, y = *b;
	size_t n = a->n_channels * sizeof(double);

	if (a->n_labels != b->n_labels || a->n_channels != b->n_channels)
		return false;
	for (uint32_t i = 0; i < a->n_labels; i++) {
		const struct agree_label *l = &a->label[i], *m = &b->label[i];

		if (l->bytes != m->bytes || memcmp(l->value, m->value, l->bytes) ||
		    l->count != m->count || memcmp(&l->weight, &m->weight, sizeof(double)))
			return false;
	}
	if (n && (memcmp(a->sum, b->sum, n) || memcmp(a->sum2, b->sum2, n)))
		return false;
	if (a->agreed && n && (memcmp(a->mul, b->mul, n) || memcmp(a->add, b->add, n)))
		return false;
	x.label = y.label = NULL;
	x.sum = x.sum2 = x.mul = x.add = y.sum = y.sum2 = y.mul = y.add = NULL;
	return !memcmp(&x, &y, sizeof(x));
}

/* Every field different from every other, so that two swapped ones are seen. */
static void sample(struct agree_block *b, struct agree_label *label, double *reals)
{
	memset(b, 0, sizeof(*b));
	label[0] = (struct agree_label)TEXT("");
	label[1] = (struct agree_label)TEXT("ab");
	label[1].count = 41;
	label[1].weight = 1.5;
	for (int i = 0; i < 3; i++) {
		b->rows[i] = 100 + (uint64_t)i;
		b->bad[i] = 10 + (uint64_t)i;
		b->sent[i] = b->rows[i] + b->bad[i];
	}
	b->h = 5;
	b->w = 6;
	b->c = 2;
	b->dtype = BACKEND_I32;
	b->labels = AGREE_TEXT;
	b->outputs = 2;
	b->n_labels = 2;
	b->label = label;
	b->pixels = 3000;
	b->n_channels = 2;
	for (int i = 0; i < 8; i++)
		reals[i] = i + .25;
	b->sum = reals;
	b->sum2 = reals + 2;
	b->normalize = AGREE_STANDARDIZE;
	b->normalizing_const = 12.5;
	b->balanced = 1;
	b->batch_size = 33;
	b->replicas = 3;
	b->class_limit = 11;
}

/* Decodes n bytes from an allocation of exactly that size. */
static int decode_exact(const uint8_t *blob, size_t n, struct agree_block *out)
{
	uint8_t *copy = malloc(n ? n : 1);
	struct err err = {0};
	int rc;

	memcpy(copy, blob, n);
	rc = agree_decode(copy, n, out, &err);
	free(copy);
	if (rc && err.kind != ERR_PROTOCOL)
		ok(false, "an error of another kind: %s", err.message);
	return rc;
}

static void damage(const uint8_t *blob, size_t n, const char *name)
{
	unsigned int seed = 11, accepted = 0, wrong = 0;
	struct agree_block out;
	uint8_t *copy = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		wrong += decode_exact(blob, i, &out) != -EPROTO;
	memcpy(copy, blob, n);
	copy[n] = 0;
	wrong += decode_exact(copy, n + 1, &out) != -EPROTO;
	is(wrong, 0, "every truncation and a trailing byte are refused");
	for (int i = 0; i < 100000; i++) {
		uint8_t *again;

		memcpy(copy, blob, n);
		for (int k = 0; k <= i % 3; k++)
			copy[rand_r(&seed) % n] = i & 1 ? (uint8_t)rand_r(&seed) : 0xff;
		if (decode_exact(copy, n, &out))
			continue;
		accepted++;
		if (agree_encode(&out, &again) != (long)n || memcmp(again, copy, n))
			wrong++;
		else
			free(again);
		agree_free(&out);
	}
	ok(accepted > 1000 && !wrong, "%s: %u damaged blobs accepted, all encode back", name,
	   accepted);
	free(copy);
}

static void test_blob(void)
{
	struct agree_label label[2];
	struct agree_block b, out;
	double reals[8];
	struct err err = {0};
	uint8_t *blob = NULL;
	long n;

	sample(&b, label, reals);
	n = agree_encode(&b, &blob);
	is(n, 152 + 2 * 20 + 2 + 4 * 8, "a part's bytes, counted by hand");
	ok(!memcmp(blob, "AGR1", 4), "magic");
	is(agree_decode(blob, (size_t)n, &out, &err), 0, "a part decodes");
	ok(same(&b, &out), "... to the same");
	agree_free(&out);
	damage(blob, (size_t)n, "part");
	free(blob);

	b.agreed = 1;
	b.steps = 77;
	b.mul = reals + 4;
	b.add = reals + 6;
	ok(agree_encode(&b, &blob) == -EINVAL, "agreed: a class weight is still missing");
	label[0].weight = 0;
	n = agree_encode(&b, &blob);
	is(agree_decode(blob, (size_t)n, &out, &err), 0, "an agreed block decodes");
	ok(same(&b, &out), "... to the same");
	agree_free(&out);
	damage(blob, (size_t)n, "agreed");
	free(blob);

	memset(&b, 0, sizeof(b));
	b.replicas = 1;
	n = agree_encode(&b, &blob);
	is(agree_decode(blob, (size_t)n, &out, &err), 0, "an empty part decodes");
	ok(same(&b, &out), "... to the same");
	agree_free(&out);
	free(blob);
}

static void test_blob_refused(void)
{
	struct agree_label label[2];
	struct agree_block b;
	double reals[8];
	uint8_t *blob = NULL;

#define TRY(change, name)                                   \
	do {                                                \
		sample(&b, label, reals);                   \
		b.agreed = 1;                               \
		b.steps = 1;                                \
		b.mul = reals + 4;                          \
		b.add = reals + 6;                          \
		label[0].weight = 1;                        \
		change;                                     \
		is(agree_encode(&b, &blob), -EINVAL, name); \
	} while (0)
	TRY(b.sent[1]++, "agreed: sent is not rows + bad");
	TRY(b.c = 3, "channels that are not the shape's");
	TRY(b.h = b.w = 1u << 26, "a row of 2^53 elements");
	TRY(b.dtype = BACKEND_DTYPE_COUNT, "an unknown type");
	TRY(b.labels = AGREE_FLOAT + 1, "an unknown kind of label");
	TRY(b.labels = AGREE_FLOAT, "labels where none can be");
	TRY(b.outputs = 3, "outputs that are not the number of classes");
	TRY(b.n_labels = AGREE_MAX_LABELS + 1, "too many labels");
	TRY(b.normalize = AGREE_STANDARDIZE + 1, "an unknown normalisation");
	TRY(b.normalizing_const = 0, "an agreed constant of 0");
	TRY(b.normalizing_const = NAN, "a constant that is not a number");
	TRY(b.batch_size = 0, "an agreed batch of 0");
	TRY(b.steps = 0, "agreed: no steps");
	TRY(label[0] = label[1], "a label twice");
	TRY(b.labels = AGREE_INT, "integers that are not of 8 bytes");
	TRY(label[1].weight = -1, "a negative class weight");
#undef TRY
}

int main(void)
{
	test_blob();
	test_blob_refused();
	return done();
}
