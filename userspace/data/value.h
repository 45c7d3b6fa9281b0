/* SPDX-License-Identifier: MIT */
/*
 * value.h: reading a row value (row.h): its parts, the shape of x, the label or target. What is
 * wrong with the row itself is a reason (false), what is wrong with its form an error.
 */
#ifndef DATA_VALUE_H
#define DATA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bad.h"
#include "data.h"

struct value {
	struct row_head head;
	const uint8_t *id, *y, *x;
	bool x_array;
};

/* Types of a feed that can be used: stored type of x, kind of labels. ERR_DATA with a hint else. */
int value_dtype(const struct data_feed *feed, enum backend_dtype *dtype, struct err *err);
int value_labels(const struct data_feed *feed, bool regression, uint32_t *labels, struct err *err);
/* A whole value at `place`. -EPROTO */
int value_parse(const struct data_feed *feed, const void *place, uint64_t bytes, struct value *out,
		struct err *err);
/* NULLs and the weight. */
bool value_usable(const struct value *value, bool labels, char reason[BAD_REASON]);
/* Shape of raw pixels or of an array, against the wanted one (0: any). */
bool value_shape(const struct value *value, struct backend_shape wanted, size_t element,
		 struct backend_shape *out, char reason[BAD_REASON]);
/* No NaN, no infinity, nothing that f32 cannot hold, in n elements. */
bool value_finite(const void *x, enum backend_dtype dtype, uint64_t n, char reason[BAD_REASON]);

struct target {
	uint32_t labels; /* enum agree_labels */
	uint8_t number[8];
	const uint8_t *label; /* class labels: bytes of the value, as agree.h has them */
	uint32_t label_bytes;
	float value;   /* AGREE_FLOAT */
	float *vector; /* AGREE_VECTOR: buffer of the caller, grown */
	uint32_t count, capacity;
	bool fraction; /* a class label that is no whole number: an error of the column */
};

/* -ENOMEM, or 0 with *good telling whether the row can be used. */
int target_read(const struct data_feed *feed, const struct value *value, struct target *target,
		bool *good, char reason[BAD_REASON]);
/* The bytes of a target that are hashed. */
const void *target_bytes(const struct target *target, size_t *bytes);

#endif
