// SPDX-License-Identifier: MIT
/*
 * agree_blob.c: an agree_block as bytes and back. Little-endian:
 *   u32 magic 'AGR1', u8 agreed, u8 balanced, u16 0
 *   u64 rows[3], bad[3], sent[3]
 *   u32 h, w, c, dtype, labels, outputs, n_labels, n_channels
 *   u64 pixels, u32 normalize, batch_size, replicas, class_limit, f64 normalizing_const, u64 steps
 *   n_labels times: u32 bytes, u64 count, f64 weight, value
 *   f64 sum[n_channels], sum2[n_channels]; agreed: mul[n_channels], add[n_channels]
 * Stored with models: a change of the form needs a new magic, and the old one must stay readable.
 */
#include "agree.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/backend.h"

#define AGREE_MAGIC 0x31524741u
#define HEAD_BYTES (8 + 9 * 8 + 8 * 4 + 8 + 4 * 4 + 8 + 8)
#define LABEL_BYTES 20 /* without the value */
#define MAX_SIDE (1u << 26)
#define MAX_ELEMENTS (1ull << 32) /* of a row */
#define MAX_BATCH (1u << 20)
#define MAX_REPLICAS (1u << 20)

/* One cursor for both directions, so that the two cannot differ: reads when in is set. */
struct cursor {
	const uint8_t *in;
	uint8_t *out;
	size_t at, end;
	bool bad;
};

static bool room(struct cursor *c, size_t n)
{
	if (c->bad || c->end - c->at < n)
		c->bad = true;
	return !c->bad;
}

static void field(struct cursor *c, void *le, size_t n)
{
	if (!room(c, n))
		return;
	if (c->in)
		memcpy(le, c->in + c->at, n);
	else
		memcpy(c->out + c->at, le, n);
	c->at += n;
}

static void f8(struct cursor *c, uint8_t *v)
{
	field(c, v, 1);
}

static void f32(struct cursor *c, uint32_t *v)
{
	uint32_t le = htole32(*v);

	field(c, &le, sizeof(le));
	*v = le32toh(le);
}

static void f64(struct cursor *c, uint64_t *v)
{
	uint64_t le = htole64(*v);

	field(c, &le, sizeof(le));
	*v = le64toh(le);
}

static void real(struct cursor *c, double *v)
{
	uint64_t bits;

	memcpy(&bits, v, sizeof(bits));
	f64(c, &bits);
	memcpy(v, &bits, sizeof(bits));
}

static void get_reals(struct cursor *c, double *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		real(c, &v[i]);
}

static void put_reals(struct cursor *c, const double *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		double copy = v[i];

		real(c, &copy);
	}
}

/* The fixed part; returns false on a wrong magic or padding. */
static bool head(struct cursor *c, struct agree_block *b)
{
	uint32_t magic = AGREE_MAGIC;
	uint8_t pad[2] = {0, 0};

	f32(c, &magic);
	f8(c, &b->agreed);
	f8(c, &b->balanced);
	f8(c, &pad[0]);
	f8(c, &pad[1]);
	for (int i = 0; i < 3; i++)
		f64(c, &b->rows[i]);
	for (int i = 0; i < 3; i++)
		f64(c, &b->bad[i]);
	for (int i = 0; i < 3; i++)
		f64(c, &b->sent[i]);
	f32(c, &b->h);
	f32(c, &b->w);
	f32(c, &b->c);
	f32(c, &b->dtype);
	f32(c, &b->labels);
	f32(c, &b->outputs);
	f32(c, &b->n_labels);
	f32(c, &b->n_channels);
	f64(c, &b->pixels);
	f32(c, &b->normalize);
	f32(c, &b->batch_size);
	f32(c, &b->replicas);
	f32(c, &b->class_limit);
	real(c, &b->normalizing_const);
	f64(c, &b->steps);
	return !c->bad && magic == AGREE_MAGIC && !pad[0] && !pad[1];
}

/* Ranges of the fixed part; NULL: good, else the field's name. */
static const char *check_head(const struct agree_block *b)
{
	bool classes = b->labels == AGREE_INT || b->labels == AGREE_TEXT || b->labels == AGREE_BOOL;

	if (b->agreed > 1)
		return "agreed";
	if (b->balanced > 1)
		return "balanced";
	for (int i = 0; i < 3; i++)
		if (b->rows[i] > INT64_MAX || b->bad[i] > INT64_MAX || b->sent[i] > INT64_MAX ||
		    (b->agreed && b->rows[i] + b->bad[i] != b->sent[i]))
			return "rows";
	if (b->h > MAX_SIDE || b->w > MAX_SIDE || b->c > MAX_SIDE ||
	    (b->c && (uint64_t)b->h * b->w > MAX_ELEMENTS / b->c))
		return "shape";
	if (!b->h != !b->w || !b->h != !b->c || (b->agreed && !b->c))
		return "shape";
	if (b->dtype >= BACKEND_DTYPE_COUNT)
		return "dtype";
	if (b->labels > AGREE_FLOAT)
		return "labels";
	if (b->outputs > INT32_MAX || (b->agreed && classes && b->outputs != b->n_labels) ||
	    (b->agreed && !classes && !b->outputs))
		return "outputs";
	if (b->n_labels > AGREE_MAX_LABELS || (b->n_labels && !classes))
		return "n_labels";
	if (b->n_channels > AGREE_MAX_CHANNELS || (b->n_channels && b->n_channels != b->c) ||
	    (b->agreed && b->n_channels != b->c))
		return "n_channels";
	if (b->pixels > INT64_MAX)
		return "pixels";
	if (b->normalize > AGREE_STANDARDIZE || (b->agreed && b->normalize == AGREE_SCALE_AUTO))
		return "normalize";
	if (!isfinite(b->normalizing_const) || b->normalizing_const < 0 ||
	    (b->agreed && b->normalizing_const == 0))
		return "normalizing_const";
	if (b->batch_size > MAX_BATCH || (b->agreed && !b->batch_size))
		return "batch_size";
	if (b->replicas > MAX_REPLICAS)
		return "replicas";
	if (b->steps > INT64_MAX || (b->agreed && !b->steps))
		return "steps";
	return NULL;
}

static const char *check_label(const struct agree_block *b, uint32_t i)
{
	const struct agree_label *l = &b->label[i];

	if ((b->labels == AGREE_INT && l->bytes != 8) || (b->labels == AGREE_BOOL && l->bytes != 1))
		return "length of a label";
	if (b->labels == AGREE_BOOL && l->value[0] > 1)
		return "boolean label";
	if (l->count > INT64_MAX)
		return "label count";
	if (isinf(l->weight) || l->weight < 0 || (b->agreed && isnan(l->weight)))
		return "class weight";
	/* agree_find searches by halves: the order is part of the form */
	if (b->agreed && i && agree_order(b->labels, l - 1, l) >= 0)
		return "order of labels";
	return NULL;
}

/* The labels and the values behind them are one allocation, as agree_free expects. */
static const char *get_labels(struct cursor *c, struct agree_block *b)
{
	const char *wrong = NULL;
	uint8_t *value;

	if (!b->n_labels)
		return NULL;
	if ((c->end - c->at) / LABEL_BYTES < b->n_labels)
		return "n_labels";
	b->label = malloc(b->n_labels * sizeof(*b->label) + (c->end - c->at));
	if (!b->label)
		return "";
	value = (uint8_t *)(b->label + b->n_labels);
	for (uint32_t i = 0; i < b->n_labels && !wrong; i++) {
		struct agree_label *l = &b->label[i];

		memset(l, 0, sizeof(*l));
		f32(c, &l->bytes);
		f64(c, &l->count);
		real(c, &l->weight);
		l->value = value;
		if (!room(c, l->bytes))
			return "length of a label";
		field(c, value, l->bytes);
		value += l->bytes;
		wrong = check_label(b, i);
	}
	return wrong;
}

static const char *get_channels(struct cursor *c, struct agree_block *b)
{
	double **array[4] = {&b->sum, &b->sum2, &b->mul, &b->add};
	int n = b->agreed ? 4 : 2;

	if (c->end - c->at != (size_t)n * 8 * b->n_channels)
		return "length";
	for (int i = 0; i < n && b->n_channels; i++) {
		*array[i] = calloc(b->n_channels, sizeof(double));
		if (!*array[i])
			return "";
		get_reals(c, *array[i], b->n_channels);
	}
	for (uint32_t i = 0; b->agreed && i < b->n_channels; i++)
		if (!isfinite(b->mul[i]) || !isfinite(b->add[i]))
			return "normalisation";
	return NULL;
}

int agree_decode(const void *blob, size_t bytes, struct agree_block *out, struct err *err)
{
	struct cursor c = {.in = blob, .end = bytes};
	struct agree_block b = {0};
	const char *wrong = NULL;

	if (bytes < HEAD_BYTES || bytes > AGREE_MAX_BLOB)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "agree: a block of %zu bytes", bytes);
	if (!head(&c, &b))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "agree: not a block of this version");
	wrong = check_head(&b);
	if (!wrong)
		wrong = get_labels(&c, &b);
	if (!wrong)
		wrong = get_channels(&c, &b);
	if (wrong) {
		agree_free(&b);
		if (!*wrong)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a block");
		return err_set(err, ERR_PROTOCOL, -EPROTO, "agree: %s out of range", wrong);
	}
	*out = b;
	return 0;
}

long agree_encode(const struct agree_block *block, uint8_t **out)
{
	struct agree_block b = *block; /* field() writes back what it read: keep the caller's */
	struct cursor c = {0};
	uint64_t size = HEAD_BYTES + (b.agreed ? 32 : 16) * (uint64_t)b.n_channels;

	if (check_head(&b))
		return -EINVAL;
	for (uint32_t i = 0; i < b.n_labels; i++) {
		if (check_label(&b, i))
			return -EINVAL;
		size += LABEL_BYTES + (uint64_t)b.label[i].bytes;
	}
	if (size > AGREE_MAX_BLOB)
		return -E2BIG;
	c.out = malloc(size);
	if (!c.out)
		return -ENOMEM;
	c.end = size;
	head(&c, &b);
	for (uint32_t i = 0; i < b.n_labels; i++) {
		struct agree_label l = b.label[i];

		f32(&c, &l.bytes);
		f64(&c, &l.count);
		real(&c, &l.weight);
		if (l.bytes)
			field(&c, (void *)(uintptr_t)l.value, l.bytes);
	}
	put_reals(&c, b.sum, b.n_channels);
	put_reals(&c, b.sum2, b.n_channels);
	if (b.agreed) {
		put_reals(&c, b.mul, b.n_channels);
		put_reals(&c, b.add, b.n_channels);
	}
	*out = c.out;
	return (long)size;
}
