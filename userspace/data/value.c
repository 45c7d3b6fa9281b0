// SPDX-License-Identifier: MIT
/* value.c: see value.h. */
#include "value.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "label.h"

static const char *type_name(enum row_type type, bool array)
{
	static const char *const names[ROW_TYPE_COUNT][2] = {
		{"nothing", "nothing"},	  {"bytea", "bytea[]"},
		{"boolean", "boolean[]"}, {"smallint", "smallint[]"},
		{"integer", "integer[]"}, {"bigint", "bigint[]"},
		{"real", "real[]"},	  {"double precision", "double precision[]"},
		{"text", "text[]"},
	};

	return (unsigned int)type < ROW_TYPE_COUNT ? names[type][array] : "of an unknown type";
}

int value_dtype(const struct data_feed *feed, enum backend_dtype *dtype, struct err *err)
{
	if (feed->x_type == ROW_BYTES && !feed->x_array)
		*dtype = BACKEND_U8;
	else if (feed->x_array && feed->x_type == ROW_BOOL)
		*dtype = BACKEND_U8;
	else if (feed->x_array && feed->x_type == ROW_I16)
		*dtype = BACKEND_I16;
	else if (feed->x_array && feed->x_type == ROW_I32)
		*dtype = BACKEND_I32;
	else if (feed->x_array && feed->x_type == ROW_F32)
		*dtype = BACKEND_F32;
	else if (feed->x_array && feed->x_type == ROW_F64)
		*dtype = BACKEND_F64;
	else {
		err_set(err, ERR_DATA, -EINVAL, "images are %s, which cannot be used",
			type_name(feed->x_type, feed->x_array));
		err_hint(err, "Use bytea (raw pixels, JPEG, PNG) or an array of smallint, integer, "
			      "real, double precision or numeric; cast in a view or a query.");
		return -EINVAL;
	}
	return 0;
}

int value_labels(const struct data_feed *feed, bool regression, uint32_t *labels, struct err *err)
{
	bool number = feed->y_type >= ROW_BOOL && feed->y_type <= ROW_F64;

	if (!feed->has_y)
		return err_set(err, ERR_DATA, -EINVAL, "there is no column of labels");
	if (number && feed->y_array)
		*labels = AGREE_VECTOR;
	else if (number && regression)
		*labels = AGREE_FLOAT;
	else if (feed->y_type == ROW_BOOL)
		*labels = AGREE_BOOL;
	else if (number)
		*labels = AGREE_INT;
	else if (feed->y_type == ROW_TEXT && !feed->y_array && !regression)
		*labels = AGREE_TEXT;
	else {
		err_set(err, ERR_DATA, -EINVAL, "labels are %s, which cannot be used%s",
			type_name(feed->y_type, feed->y_array),
			regression ? " for a regression" : "");
		err_hint(err, regression
				      ? "A regression needs numbers or arrays of numbers."
				      : "Use an integer, text, boolean or enum column, or one-hot "
					"arrays of numbers.");
		return -EINVAL;
	}
	return 0;
}

static uint64_t shape_elements(struct backend_shape s)
{
	return (uint64_t)s.h * s.w * s.c;
}

/* Elements by dimensions times their size must be the bytes that came. */
static bool fits(uint64_t bytes, unsigned int dims, const uint32_t *dim, size_t element, bool array)
{
	uint64_t n = dims > 0; /* an empty array has no dimensions */

	if (!array)
		return dims == 0;
	for (unsigned int i = 0; i < dims; i++)
		if (__builtin_mul_overflow(n, dim[i], &n))
			return false;
	return !__builtin_mul_overflow(n, element, &n) && n == bytes;
}

int value_parse(const struct data_feed *feed, const void *place, uint64_t bytes, struct value *out,
		struct err *err)
{
	const uint8_t *p = place;
	struct value v = {.x_array = feed->x_array};
	size_t element = row_type_bytes(feed->y_type);
	int rc = row_head_decode(p, bytes, &v.head, err);

	if (rc)
		return rc;
	v.id = p + ROW_HEAD;
	v.y = v.id + v.head.id_bytes;
	v.x = v.y + v.head.y_bytes;
	if (v.head.flags & (ROW_X_NULL | ROW_ARRAY_NULL))
		; /* nothing there to check */
	else if (!fits(v.head.x_bytes, v.head.x_dims, v.head.x_dim, row_type_bytes(feed->x_type),
		       feed->x_array))
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "row: x of %llu bytes does not fit its dimensions",
			       (unsigned long long)v.head.x_bytes);
	if (!feed->has_y || (v.head.flags & (ROW_Y_NULL | ROW_ARRAY_NULL)))
		;
	else if (feed->y_array ? !element || v.head.y_bytes % element
			       : feed->y_type != ROW_TEXT && v.head.y_bytes != element)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: y of %u bytes does not fit %s",
			       v.head.y_bytes, type_name(feed->y_type, feed->y_array));
	*out = v;
	return 0;
}

bool value_usable(const struct value *v, bool labels, char reason[BAD_REASON])
{
	double w = v->head.weight;
	const char *why = NULL;

	if (v->head.flags & ROW_X_NULL)
		why = "image is NULL";
	else if (labels && (v->head.flags & ROW_Y_NULL))
		why = "label is NULL";
	else if (v->head.flags & ROW_W_NULL)
		why = "weight is NULL";
	else if (v->head.flags & ROW_ARRAY_NULL)
		why = "an array has a NULL element";
	if (why) {
		snprintf(reason, BAD_REASON, "%s", why);
		return false;
	}
	if (!(w >= 0) || w > FLT_MAX) {
		snprintf(reason, BAD_REASON, "weight is %g, must be a number from 0 on", w);
		return false;
	}
	return true;
}

static const char *dims_text(const struct row_head *h, char *out, size_t size)
{
	size_t at = 0;

	out[0] = '\0';
	for (unsigned int i = 0; i < h->x_dims && at < size; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%u", i ? "x" : "", h->x_dim[i]);
	return out;
}

/* Raw pixels or a flat array of n elements: the wanted shape, or a square of 1 or 3 channels. */
static bool flat_shape(uint64_t n, struct backend_shape wanted, struct backend_shape *out)
{
	uint64_t elements = shape_elements(wanted), side;

	if (elements) {
		*out = wanted;
		return n == elements;
	}
	for (uint32_t c = 1; c <= 3; c += 2) {
		if (wanted.c && wanted.c != c)
			continue;
		side = (uint64_t)llround(sqrt((double)(n / c)));
		if (!n || side > UINT32_MAX || side * side * c != n)
			continue;
		*out = (struct backend_shape){(uint32_t)side, (uint32_t)side, c};
		return (!wanted.h || wanted.h == side) && (!wanted.w || wanted.w == side);
	}
	return false;
}

/* Dimensions without leading ones; a shape's likewise, and without one channel: equal memory. */
static unsigned int core(const uint32_t *in, unsigned int n, const uint32_t **out)
{
	while (n && *in == 1) {
		in++;
		n--;
	}
	*out = in;
	return n;
}

static bool dims_match(const struct row_head *h, struct backend_shape wanted)
{
	const uint32_t shape[3] = {wanted.h, wanted.w, wanted.c};
	const uint32_t *a, *b;
	unsigned int n = core(h->x_dim, h->x_dims, &a), m = core(shape, 3, &b);

	if (n == m && !memcmp(a, b, n * sizeof(*a)))
		return true;
	return m && wanted.c == 1 && n == m - 1 && !memcmp(a, b, n * sizeof(*a));
}

static bool dims_shape(const struct row_head *h, struct backend_shape wanted,
		       struct backend_shape *out)
{
	const uint32_t *d = h->x_dim;
	unsigned int n = h->x_dims;

	if (shape_elements(wanted)) {
		*out = wanted;
		return dims_match(h, wanted);
	}
	if (n == 4 && d[0] == 1) {
		d++;
		n--;
	}
	if (n != 2 && n != 3)
		return false;
	*out = (struct backend_shape){d[0], d[1], n == 3 ? d[2] : 1};
	return shape_elements(*out) && (!wanted.h || wanted.h == out->h) &&
	       (!wanted.w || wanted.w == out->w) && (!wanted.c || wanted.c == out->c);
}

bool value_shape(const struct value *v, struct backend_shape wanted, size_t element,
		 struct backend_shape *out, char reason[BAD_REASON])
{
	uint64_t n = v->head.x_bytes / element;
	const struct row_head *h = &v->head;
	char dims[96], goal[64] = "the pixels of a square of 1 or 3 channels";

	if (!n) {
		snprintf(reason, BAD_REASON, "image is empty");
		return false;
	}
	if (h->x_dims <= 1 ? flat_shape(n, wanted, out) : dims_shape(h, wanted, out))
		return true;
	if (shape_elements(wanted))
		snprintf(goal, sizeof(goal), "%ux%ux%u", wanted.h, wanted.w, wanted.c);
	else if (h->x_dims > 1)
		snprintf(goal, sizeof(goal), "height x width or height x width x channels");
	if (h->x_dims > 1)
		snprintf(reason, BAD_REASON, "array is %s, wanted %s",
			 dims_text(h, dims, sizeof(dims)), goal);
	else
		snprintf(reason, BAD_REASON, "%s %llu %s, wanted %s",
			 v->x_array ? "array has" : "image has", (unsigned long long)n,
			 v->x_array ? "elements" : "bytes and is no JPEG or PNG", goal);
	return false;
}

bool value_finite(const void *x, enum backend_dtype dtype, uint64_t n, char reason[BAD_REASON])
{
	const uint8_t *p = x;
	uint32_t worst = 0;
	uint64_t at;
	double v = 0;

	if (dtype == BACKEND_F32) {
		for (uint64_t i = 0; i < n; i++) {
			uint32_t bits;

			memcpy(&bits, p + 4 * i, sizeof(bits));
			bits &= 0x7fffffff;
			worst = bits > worst ? bits : worst;
		}
		if (worst < 0x7f800000)
			return true;
	}
	for (at = 0; at < n; at++) {
		float f;

		if (dtype == BACKEND_F32) {
			memcpy(&f, p + 4 * at, sizeof(f));
			v = (double)f;
		} else {
			memcpy(&v, p + 8 * at, sizeof(v));
		}
		if (!(fabs(v) <= FLT_MAX))
			break;
	}
	if (at == n)
		return true;
	if (isfinite(v))
		snprintf(reason, BAD_REASON, "element %llu is %g, out of the range of real",
			 (unsigned long long)at + 1, v);
	else
		snprintf(reason, BAD_REASON, "element %llu is %s", (unsigned long long)at + 1,
			 isnan(v) ? "NaN" : "infinite");
	return false;
}
