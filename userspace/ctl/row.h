/* SPDX-License-Identifier: MIT */
/*
 * row.h: the form of a row in the ring (written by the extension, read by userspace/data) and of a
 * prediction row in a ROWS frame. Little-endian.
 *
 * A row value = 64-byte head, id bytes, y bytes, x bytes; x last, so that a large value can be
 * streamed. A value longer than ring_max_record goes in several records of type ROW_RECORD with
 * RING_FIRST / RING_LAST.
 */
#ifndef ROW_H
#define ROW_H

#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"

enum row_record { ROW_RECORD = 1 };

enum row_set { ROW_TRAIN = 0, ROW_VALIDATION = 1, ROW_PREDICT = 2, ROW_SETS = 3 };

/* Element types. An array's bytes are its elements without NULLs, row-major. */
enum row_type {
	ROW_NONE = 0,
	ROW_BYTES, /* bytea: raw pixels, JPEG or PNG */
	ROW_BOOL,  /* 1 byte */
	ROW_I16,
	ROW_I32,
	ROW_I64,
	ROW_F32,
	ROW_F64,  /* double precision, numeric */
	ROW_TEXT, /* text, varchar, enum: UTF-8 bytes */
	ROW_TYPE_COUNT
};

#define ROW_HEAD 64
#define ROW_MAX_DIMS 6
#define ROW_MAX_ID 1024u

#define ROW_X_NULL 0x1u
#define ROW_Y_NULL 0x2u
#define ROW_W_NULL 0x4u
#define ROW_ARRAY_NULL 0x8u /* an array with a NULL element: reported, not used */

struct row_head {
	uint32_t id_bytes; /* 0: no id; the daemon numbers (segment, feeder, ordinal) */
	uint32_t y_bytes;
	uint64_t x_bytes;
	uint8_t flags;
	uint8_t x_dims, y_dims; /* 0: a scalar */
	uint32_t x_dim[ROW_MAX_DIMS];
	double weight; /* 1 where there is no weight column */
};

size_t row_type_bytes(enum row_type type); /* of an element; 1 for BYTES and TEXT; 0 unknown */
void row_head_encode(const struct row_head *head, uint8_t out[ROW_HEAD]);
/* Checks flags, counts and that id + y + x equals total - ROW_HEAD. 0 or -EPROTO. */
int row_head_decode(const uint8_t in[ROW_HEAD], uint64_t total, struct row_head *head,
		    struct err *err);

/* Prediction rows: u32 id_bytes, id, u32 outputs, outputs * f32; one after the other. */
struct row_prediction {
	const char *id;
	uint32_t id_bytes;
	uint32_t outputs;
	const uint8_t *value; /* unaligned little-endian f32 */
};
/* Appends one; returns bytes, or -ENOSPC. */
long row_prediction_encode(const struct row_prediction *row, const float *value, void *out,
			   size_t capacity);
/* Reads the one at offset; returns the next offset, 0 at the end, -EPROTO. */
long row_prediction_decode(const void *rows, size_t bytes, size_t offset,
			   struct row_prediction *row);

#endif
