// SPDX-License-Identifier: MIT
/* target.c: labels and targets of a row value (value.h). */
#include "value.h"

#include <endian.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "label.h"

#define MAX_WHOLE 9007199254740992.0 /* 2^53: doubles beyond have gaps */

static double number_at(enum row_type type, const uint8_t *p, int64_t *whole)
{
	double d = 0;
	float f;
	int32_t i;
	int16_t s;

	*whole = 0;
	switch (type) {
	case ROW_BOOL:
		*whole = *p != 0;
		return (double)*whole;
	case ROW_I16:
		memcpy(&s, p, sizeof(s));
		*whole = s;
		return (double)*whole;
	case ROW_I32:
		memcpy(&i, p, sizeof(i));
		*whole = i;
		return (double)*whole;
	case ROW_I64:
		memcpy(whole, p, sizeof(*whole));
		return (double)*whole;
	case ROW_F32:
		memcpy(&f, p, sizeof(f));
		return (double)f;
	case ROW_F64:
		memcpy(&d, p, sizeof(d));
		return d;
	default:
		return 0;
	}
}

/* Whole class labels of any numeric type become 8-byte integers. */
static bool read_int(const struct data_feed *feed, const struct value *v, struct target *t,
		     char reason[BAD_REASON])
{
	int64_t whole;
	uint64_t bits;
	double d = number_at(feed->y_type, v->y, &whole);

	if (feed->y_type == ROW_F32 || feed->y_type == ROW_F64) {
		if (!isfinite(d)) {
			snprintf(reason, BAD_REASON, "label is %s", isnan(d) ? "NaN" : "infinite");
			return false;
		}
		if (d != floor(d) || fabs(d) > MAX_WHOLE) {
			t->fraction = true;
			snprintf(reason, BAD_REASON, "label %.17g is not a whole number", d);
			return false;
		}
		whole = (int64_t)d;
	}
	bits = htole64((uint64_t)whole);
	memcpy(t->number, &bits, sizeof(bits));
	t->label = t->number;
	t->label_bytes = sizeof(bits);
	return true;
}

static int read_vector(const struct data_feed *feed, const struct value *v, struct target *t,
		       bool *good, char reason[BAD_REASON])
{
	size_t element = row_type_bytes(feed->y_type);
	uint32_t n = (uint32_t)(v->head.y_bytes / element);

	if (n > t->capacity) {
		float *p = realloc(t->vector, n * sizeof(*p));

		if (!p)
			return -ENOMEM;
		t->vector = p;
		t->capacity = n;
	}
	t->count = n;
	*good = n > 0;
	if (!n)
		snprintf(reason, BAD_REASON, "label array is empty");
	for (uint32_t i = 0; i < n; i++) {
		int64_t whole;
		double d = number_at(feed->y_type, v->y + i * element, &whole);

		if (!(fabs(d) <= FLT_MAX)) {
			snprintf(reason, BAD_REASON, "element %u of the label array is %g", i + 1,
				 d);
			*good = false;
			return 0;
		}
		t->vector[i] = (float)d;
	}
	return 0;
}

int target_read(const struct data_feed *feed, const struct value *v, struct target *t, bool *good,
		char reason[BAD_REASON])
{
	int64_t whole;
	double d;

	t->fraction = false;
	t->count = 0;
	*good = true;
	switch (t->labels) {
	case AGREE_INT:
		*good = read_int(feed, v, t, reason);
		break;
	case AGREE_BOOL:
		t->number[0] = *v->y != 0;
		t->label = t->number;
		t->label_bytes = 1;
		break;
	case AGREE_TEXT:
		t->label = v->y;
		t->label_bytes = v->head.y_bytes;
		if (t->label_bytes > LABEL_MAX_BYTES) {
			snprintf(reason, BAD_REASON, "label has %u bytes, at most %u",
				 t->label_bytes, LABEL_MAX_BYTES);
			*good = false;
		}
		break;
	case AGREE_FLOAT:
		d = number_at(feed->y_type, v->y, &whole);
		t->value = (float)d;
		if (!(fabs(d) <= FLT_MAX)) {
			snprintf(reason, BAD_REASON, "target is %g", d);
			*good = false;
		}
		break;
	case AGREE_VECTOR:
		return read_vector(feed, v, t, good, reason);
	default:
		break;
	}
	return 0;
}

const void *target_bytes(const struct target *t, size_t *bytes)
{
	switch (t->labels) {
	case AGREE_INT:
	case AGREE_BOOL:
	case AGREE_TEXT:
		*bytes = t->label_bytes;
		return t->label;
	case AGREE_FLOAT:
		*bytes = sizeof(t->value);
		return &t->value;
	case AGREE_VECTOR:
		*bytes = t->count * sizeof(*t->vector);
		return t->vector;
	default:
		*bytes = 0;
		return "";
	}
}
