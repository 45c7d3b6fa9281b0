// SPDX-License-Identifier: MIT
/*
 * agree.c: building one agreed block of all daemons' parts. The blob form is in agree_blob.c.
 * Everything is summed in the order of the parts, so the result depends only on their order.
 */
#include "agree.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/backend.h"

/*
 * A channel whose variance is below this share of its mean square counts as constant: f64 sums of
 * a constant leave a variance of rounding errors, and raw * mul + add in f32 would be noise.
 */
#define CONSTANT_CHANNEL 1e-9

static const char *const set_name[3] = {"training", "validation", "prediction"};

static bool classes(const struct agree_block *b)
{
	return b->labels == AGREE_INT || b->labels == AGREE_TEXT || b->labels == AGREE_BOOL;
}

static bool has_rows(const struct agree_block *b)
{
	return b->rows[0] || b->rows[1] || b->rows[2];
}

static int compare_bytes(const uint8_t *a, uint32_t na, const uint8_t *b, uint32_t nb)
{
	uint32_t n = na < nb ? na : nb;
	int c = n ? memcmp(a, b, n) : 0;

	return c ? c : (na > nb) - (na < nb);
}

static int64_t int_value(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return (int64_t)le64toh(v);
}

static int compare_int(const uint8_t *a, uint32_t na, const uint8_t *b, uint32_t nb)
{
	int64_t x, y;

	if (na != 8 || nb != 8) /* refused before sorting; a total order all the same */
		return compare_bytes(a, na, b, nb);
	x = int_value(a);
	y = int_value(b);
	return (x > y) - (x < y);
}

static int compare(uint32_t kind, const uint8_t *a, uint32_t na, const uint8_t *b, uint32_t nb)
{
	return kind == AGREE_INT ? compare_int(a, na, b, nb) : compare_bytes(a, na, b, nb);
}

int agree_order(uint32_t kind, const struct agree_label *a, const struct agree_label *b)
{
	return compare(kind, a->value, a->bytes, b->value, b->bytes);
}

static int sort_int(const void *a, const void *b)
{
	return agree_order(AGREE_INT, a, b);
}

static int sort_bytes(const void *a, const void *b)
{
	return agree_order(AGREE_TEXT, a, b);
}

int32_t agree_find(const struct agree_block *block, const uint8_t *value, uint32_t bytes)
{
	uint32_t low = 0, high = block->n_labels;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		const struct agree_label *l = &block->label[middle];
		int c = compare(block->labels, value, bytes, l->value, l->bytes);

		if (!c)
			return (int32_t)middle;
		if (c < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return -1;
}

void agree_free(struct agree_block *block)
{
	if (!block)
		return;
	free(block->label);
	free(block->sum);
	free(block->sum2);
	free(block->mul);
	free(block->add);
	memset(block, 0, sizeof(*block));
}

static int overflow(struct err *err)
{
	return err_set(err, ERR_DATA, -EOVERFLOW, "row counts of the hosts overflow");
}

/* rows, bad, sent and what they must satisfy together. */
static int merge_counts(const struct agree_block *part, size_t n, struct agree_block *out,
			struct err *err)
{
	uint64_t bad = 0;

	for (int s = 0; s < 3; s++) {
		uint64_t held;

		for (size_t i = 0; i < n; i++)
			if (__builtin_add_overflow(out->rows[s], part[i].rows[s], &out->rows[s]) ||
			    __builtin_add_overflow(out->bad[s], part[i].bad[s], &out->bad[s]) ||
			    __builtin_add_overflow(out->sent[s], part[i].sent[s], &out->sent[s]))
				return overflow(err);
		if (__builtin_add_overflow(out->rows[s], out->bad[s], &held) ||
		    __builtin_add_overflow(bad, out->bad[s], &bad))
			return overflow(err);
		if (held != out->sent[s])
			return err_set(err, ERR_DATA, -EINVAL,
				       "%" PRIu64 " %s rows were sent, but %" PRIu64
				       " are held and %" PRIu64 " are bad",
				       out->sent[s], set_name[s], out->rows[s], out->bad[s]);
	}
	if (!has_rows(out)) {
		err_set(err, ERR_DATA, -ENODATA,
			bad ? "no usable rows: all %" PRIu64 " are bad" : "the source has no rows",
			bad);
		if (bad)
			err_hint(err, "Look at the reasons of the bad rows.");
		return -ENODATA;
	}
	return 0;
}

/* The spec's wishes, which all parts must repeat alike. */
static int merge_policy(const struct agree_block *part, size_t n, struct agree_block *out,
			struct err *err)
{
	uint64_t replicas = 0;
	const char *what;

	for (size_t i = 0; i < n; i++) {
		const struct agree_block *p = &part[i];

		if (p->agreed)
			return err_set(err, ERR_INTERNAL, -EINVAL, "part %zu is already agreed", i);
		what = p->normalize != part->normalize ||
				       p->normalizing_const != part->normalizing_const
			       ? "normalize"
		       : p->balanced != part->balanced	     ? "class_weight"
		       : p->batch_size != part->batch_size   ? "batch_size"
		       : p->class_limit != part->class_limit ? "architecture"
							     : NULL;
		if (what)
			return err_set(err, ERR_INTERNAL, -EINVAL,
				       "hosts 0 and %zu do not follow one specification: %s", i,
				       what);
		if (p->rows[0] && !p->replicas)
			return err_set(err, ERR_DATA, -EINVAL,
				       "host %zu holds training rows but runs no replica", i);
		replicas += p->replicas;
	}
	if (replicas > UINT32_MAX)
		return err_set(err, ERR_DATA, -EOVERFLOW, "too many replicas");
	out->replicas = (uint32_t)replicas;
	out->normalize = part->normalize;
	out->normalizing_const = part->normalizing_const;
	out->balanced = part->balanced;
	out->batch_size = part->batch_size;
	out->class_limit = part->class_limit;
	return 0;
}

/* Shape, type and kind of label: those of the parts that hold rows, which must be alike. */
static int merge_shape(const struct agree_block *part, size_t n, struct agree_block *out,
		       struct err *err)
{
	const struct agree_block *first = NULL;

	for (size_t i = 0; i < n; i++) {
		const struct agree_block *p = &part[i];

		if (!has_rows(p))
			continue;
		if (!p->h || !p->w || !p->c)
			return err_set(err, ERR_DATA, -EINVAL, "host %zu: rows without a shape", i);
		if (!first)
			first = p;
		if (p->h != first->h || p->w != first->w || p->c != first->c)
			return err_set(err, ERR_DATA, -EINVAL,
				       "rows of %ux%ux%u on host %zu, of %ux%ux%u on host %zu",
				       first->h, first->w, first->c, (size_t)(first - part), p->h,
				       p->w, p->c, i);
		if (p->dtype != first->dtype)
			return err_set(
				err, ERR_DATA, -EINVAL,
				"rows of host %zu and host %zu are stored as different types",
				(size_t)(first - part), i);
		if (p->labels != first->labels)
			return err_set(err, ERR_DATA, -EINVAL,
				       "labels of host %zu and host %zu are of different kinds",
				       (size_t)(first - part), i);
		if (p->labels == AGREE_VECTOR && p->outputs != first->outputs)
			return err_set(err, ERR_DATA, -EINVAL,
				       "label arrays of %u elements on host %zu, of %u on host %zu",
				       first->outputs, (size_t)(first - part), p->outputs, i);
	}
	out->h = first->h;
	out->w = first->w;
	out->c = first->c;
	out->dtype = first->dtype;
	out->labels = first->labels;
	out->outputs = first->labels == AGREE_VECTOR ? first->outputs : 1;
	return 0;
}

/* Adds label b to its equal a. */
static int fold(struct agree_label *a, const struct agree_label *b, struct err *err)
{
	if (__builtin_add_overflow(a->count, b->count, &a->count))
		return overflow(err);
	if (isnan(a->weight))
		a->weight = b->weight;
	else if (!isnan(b->weight) && a->weight != b->weight)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "hosts do not follow one specification: class weights");
	return 0;
}

/* Copies n labels and their values into one allocation of out. */
static int take_labels(struct agree_block *out, const struct agree_label *label, size_t n)
{
	size_t values = 0;
	uint8_t *p;

	for (size_t i = 0; i < n; i++)
		values += label[i].bytes;
	out->label = malloc(n * sizeof(*label) + values + 1);
	if (!out->label)
		return -ENOMEM;
	p = (uint8_t *)(out->label + n);
	for (size_t i = 0; i < n; i++) {
		out->label[i] = label[i];
		out->label[i].value = p;
		if (label[i].bytes)
			memcpy(p, label[i].value, label[i].bytes);
		p += label[i].bytes;
	}
	out->n_labels = (uint32_t)n;
	return 0;
}

/* Sorts all[0..n) and folds equal ones; returns how many are left, or an error. */
static long unify(struct agree_label *all, size_t n, uint32_t kind, struct err *err)
{
	size_t k = 0;
	int rc;

	qsort(all, n, sizeof(*all), kind == AGREE_INT ? sort_int : sort_bytes);
	for (size_t i = 0; i < n; i++) {
		if (k && !compare_bytes(all[k - 1].value, all[k - 1].bytes, all[i].value,
					all[i].bytes)) {
			rc = fold(&all[k - 1], &all[i], err);
			if (rc)
				return rc;
		} else {
			all[k++] = all[i];
		}
	}
	if (k > AGREE_MAX_LABELS) {
		err_set(err, ERR_DATA, -E2BIG, "%zu distinct labels, at most %u", k,
			AGREE_MAX_LABELS);
		err_hint(err, "For a regression choose loss mse or mae.");
		return -E2BIG;
	}
	return (long)k;
}

static int merge_labels(const struct agree_block *part, size_t n, struct agree_block *out,
			struct err *err)
{
	struct agree_label *all;
	size_t total = 0, at = 0;
	long k;
	int rc;

	if (!classes(out))
		return 0;
	for (size_t i = 0; i < n; i++)
		total += has_rows(&part[i]) ? part[i].n_labels : 0;
	all = malloc((total + 1) * sizeof(*all));
	if (!all)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %zu labels", total);
	for (size_t i = 0; i < n; i++) {
		if (!has_rows(&part[i]) || !part[i].n_labels)
			continue;
		memcpy(all + at, part[i].label, part[i].n_labels * sizeof(*all));
		at += part[i].n_labels;
	}
	k = unify(all, total, out->labels, err);
	rc = (int)k;
	if (k >= 0) {
		rc = take_labels(out, all, (size_t)k);
		if (rc)
			err_set(err, ERR_LIMIT, rc, "out of memory for %ld labels", k);
		out->outputs = (uint32_t)k;
	}
	free(all);
	return rc < 0 ? rc : 0;
}

/* Explicit, else balanced: n / (classes * count) over the classes that the training set has. */
static int decide_weights(struct agree_block *out, struct err *err)
{
	uint64_t rows = 0;
	uint32_t present = 0;

	for (uint32_t i = 0; i < out->n_labels; i++) {
		if (__builtin_add_overflow(rows, out->label[i].count, &rows))
			return overflow(err);
		present += out->label[i].count > 0;
	}
	for (uint32_t i = 0; i < out->n_labels; i++) {
		struct agree_label *l = &out->label[i];

		if (!isnan(l->weight))
			continue;
		l->weight = 1;
		if (out->balanced && l->count)
			l->weight = (double)rows / ((double)present * (double)l->count);
	}
	return 0;
}

static int merge_sums(const struct agree_block *part, size_t n, struct agree_block *out,
		      struct err *err)
{
	bool standardize = out->normalize == AGREE_STANDARDIZE;

	if (out->c > AGREE_MAX_CHANNELS)
		return err_set(err, ERR_DATA, -E2BIG, "%u channels, at most %u", out->c,
			       AGREE_MAX_CHANNELS);
	out->sum = calloc(out->c, sizeof(double));
	out->sum2 = calloc(out->c, sizeof(double));
	out->mul = calloc(out->c, sizeof(double));
	out->add = calloc(out->c, sizeof(double));
	if (!out->sum || !out->sum2 || !out->mul || !out->add)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %u channels", out->c);
	out->n_channels = out->c;
	for (size_t i = 0; i < n; i++) {
		const struct agree_block *p = &part[i];

		if (!p->rows[0] || (!p->n_channels && !standardize))
			continue;
		if (p->n_channels != out->c || !p->pixels)
			return err_set(err, ERR_INTERNAL, -EINVAL,
				       "host %zu: sums of %u channels over %" PRIu64
				       " pixels for rows of %u channels",
				       i, p->n_channels, p->pixels, out->c);
		if (__builtin_add_overflow(out->pixels, p->pixels, &out->pixels))
			return overflow(err);
		for (uint32_t c = 0; c < out->c; c++) {
			out->sum[c] += p->sum[c];
			out->sum2[c] += p->sum2[c];
		}
	}
	return 0;
}

static int decide_normalization(struct agree_block *out, struct err *err)
{
	double k = out->normalizing_const, n = (double)out->pixels;

	if (k == 0)
		k = out->dtype == BACKEND_F32 || out->dtype == BACKEND_F64 ? 1 : 255;
	if (out->normalize == AGREE_SCALE_NONE)
		k = 1;
	if (out->normalize == AGREE_SCALE_AUTO)
		out->normalize = AGREE_SCALE;
	out->normalizing_const = k;
	for (uint32_t c = 0; c < out->c; c++) {
		double mean = 0, square = 0, variance, std = 1;

		if (out->normalize == AGREE_STANDARDIZE && out->pixels) {
			mean = out->sum[c] / n / k;
			square = out->sum2[c] / n / k / k;
			variance = square - mean * mean;
			if (variance > CONSTANT_CHANNEL * square)
				std = sqrt(variance);
		}
		out->mul[c] = 1 / (k * std);
		out->add[c] = 0 - mean / std;
		if (!isfinite(square) || !isfinite(out->mul[c]) || !isfinite(out->add[c]))
			return err_set(err, ERR_DATA, -ERANGE,
				       "values of channel %u cannot be normalised: sum %g, sum of "
				       "squares %g, constant %g",
				       c, out->sum[c], out->sum2[c], k);
	}
	return 0;
}

/* Batch size and steps of an epoch: docs, "Batch, step, epoch". */
static void decide_steps(const struct agree_block *part, size_t n, struct agree_block *out)
{
	uint64_t replicas = out->replicas ? out->replicas : 1, batch = out->batch_size;

	if (!batch) {
		batch = out->rows[0] / (20 * replicas);
		batch = batch < 1 ? 1 : batch > 128 ? 128 : batch;
		out->batch_size = (uint32_t)batch;
	}
	out->steps = 1;
	for (size_t i = 0; i < n; i++) {
		uint64_t per_step = part[i].replicas * batch;
		uint64_t steps;

		if (!part[i].rows[0])
			continue;
		steps = part[i].rows[0] / per_step + (part[i].rows[0] % per_step != 0);
		if (steps > out->steps)
			out->steps = steps;
	}
}

int agree_merge(const struct agree_block *part, size_t n, struct agree_block *out, struct err *err)
{
	struct agree_block b = {0};
	int rc;

	if (!n)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no parts to agree on");
	rc = merge_counts(part, n, &b, err);
	if (!rc)
		rc = merge_policy(part, n, &b, err);
	if (!rc)
		rc = merge_shape(part, n, &b, err);
	if (!rc)
		rc = merge_labels(part, n, &b, err);
	if (!rc)
		rc = decide_weights(&b, err);
	if (!rc)
		rc = merge_sums(part, n, &b, err);
	if (!rc)
		rc = decide_normalization(&b, err);
	if (rc) {
		agree_free(&b);
		return rc;
	}
	decide_steps(part, n, &b);
	b.agreed = 1;
	*out = b;
	return 0;
}
