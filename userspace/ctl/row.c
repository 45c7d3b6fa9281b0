// SPDX-License-Identifier: MIT
/* row.c: see row.h. Offsets of the head: 0 id_bytes, 4 y_bytes, 8 x_bytes, 16 flags, 17 x_dims,
 * 18 y_dims, 20 x_dim[6], 48 weight; 19, 44..47 and 56..63 are zero. */
#include "row.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#define ROW_FLAGS (ROW_X_NULL | ROW_Y_NULL | ROW_W_NULL | ROW_ARRAY_NULL)

enum {
	AT_ID = 0,
	AT_Y = 4,
	AT_X = 8,
	AT_FLAGS = 16,
	AT_X_DIMS = 17,
	AT_Y_DIMS = 18,
	AT_PAD = 19,
	AT_X_DIM = 20,
	AT_PAD2 = AT_X_DIM + 4 * ROW_MAX_DIMS,
	AT_WEIGHT = 48,
	AT_PAD3 = 56
};

static void put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static void put64(uint8_t *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t get64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static bool zero(const uint8_t *p, size_t n)
{
	while (n--)
		if (*p++)
			return false;
	return true;
}

size_t row_type_bytes(enum row_type type)
{
	switch (type) {
	case ROW_BYTES:
	case ROW_BOOL:
	case ROW_TEXT:
		return 1;
	case ROW_I16:
		return 2;
	case ROW_I32:
	case ROW_F32:
		return 4;
	case ROW_I64:
	case ROW_F64:
		return 8;
	case ROW_NONE:
	case ROW_TYPE_COUNT:
		break;
	}
	return 0;
}

void row_head_encode(const struct row_head *head, uint8_t out[ROW_HEAD])
{
	uint64_t bits;

	memset(out, 0, ROW_HEAD);
	put32(out + AT_ID, head->id_bytes);
	put32(out + AT_Y, head->y_bytes);
	put64(out + AT_X, head->x_bytes);
	out[AT_FLAGS] = head->flags;
	out[AT_X_DIMS] = head->x_dims;
	out[AT_Y_DIMS] = head->y_dims;
	for (unsigned int i = 0; i < head->x_dims && i < ROW_MAX_DIMS; i++)
		put32(out + AT_X_DIM + 4 * i, head->x_dim[i]);
	memcpy(&bits, &head->weight, sizeof(bits));
	put64(out + AT_WEIGHT, bits);
}

/* Counts, flags and lengths of a copied head against each other. */
static int head_check(const struct row_head *h, uint64_t total, struct err *err)
{
	uint64_t elements = 1, rest = total - ROW_HEAD;

	if (h->flags & ~ROW_FLAGS)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: unknown flags 0x%x", h->flags);
	if (h->x_dims > ROW_MAX_DIMS || h->y_dims > ROW_MAX_DIMS)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: %u and %u dimensions, at most %d",
			       h->x_dims, h->y_dims, ROW_MAX_DIMS);
	for (unsigned int i = 0; i < h->x_dims; i++)
		if (__builtin_mul_overflow(elements, h->x_dim[i], &elements))
			return err_set(err, ERR_PROTOCOL, -EPROTO, "row: dimensions overflow");
	if (h->id_bytes > ROW_MAX_ID)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: id of %u bytes, at most %u",
			       h->id_bytes, ROW_MAX_ID);
	if (((h->flags & ROW_X_NULL) && h->x_bytes) || ((h->flags & ROW_Y_NULL) && h->y_bytes))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: a NULL with bytes");
	if (h->x_bytes > rest || rest - h->x_bytes != (uint64_t)h->id_bytes + h->y_bytes)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "row: id %u, y %u, x %llu bytes do not add up to %llu", h->id_bytes,
			       h->y_bytes, (unsigned long long)h->x_bytes,
			       (unsigned long long)rest);
	return 0;
}

int row_head_decode(const uint8_t in[ROW_HEAD], uint64_t total, struct row_head *head,
		    struct err *err)
{
	struct row_head h = {0};
	uint64_t bits;
	int rc;

	if (total < ROW_HEAD)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: %llu bytes, the head alone is %d",
			       (unsigned long long)total, ROW_HEAD);
	h.id_bytes = get32(in + AT_ID);
	h.y_bytes = get32(in + AT_Y);
	h.x_bytes = get64(in + AT_X);
	h.flags = in[AT_FLAGS];
	h.x_dims = in[AT_X_DIMS];
	h.y_dims = in[AT_Y_DIMS];
	for (unsigned int i = 0; i < ROW_MAX_DIMS; i++)
		h.x_dim[i] = get32(in + AT_X_DIM + 4 * i);
	bits = get64(in + AT_WEIGHT);
	memcpy(&h.weight, &bits, sizeof(h.weight));

	rc = head_check(&h, total, err);
	if (rc)
		return rc;
	if (in[AT_PAD] || !zero(in + AT_PAD2, AT_WEIGHT - AT_PAD2) ||
	    !zero(in + AT_PAD3, ROW_HEAD - AT_PAD3) ||
	    !zero(in + AT_X_DIM + 4 * h.x_dims, 4 * (ROW_MAX_DIMS - (size_t)h.x_dims)))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row: padding is not zero");
	*head = h;
	return 0;
}

long row_prediction_encode(const struct row_prediction *row, const float *value, void *out,
			   size_t capacity)
{
	uint64_t need = 8 + (uint64_t)row->id_bytes + 4 * (uint64_t)row->outputs;
	uint8_t *p = out;

	if (row->id_bytes > ROW_MAX_ID)
		return -EINVAL;
	if (need > capacity)
		return -ENOSPC;
	put32(p, row->id_bytes);
	p += 4;
	if (row->id_bytes)
		memcpy(p, row->id, row->id_bytes);
	p += row->id_bytes;
	put32(p, row->outputs);
	p += 4;
	for (uint32_t i = 0; i < row->outputs; i++, p += 4) {
		uint32_t bits;

		memcpy(&bits, &value[i], sizeof(bits));
		put32(p, bits);
	}
	return (long)need;
}

long row_prediction_decode(const void *rows, size_t bytes, size_t offset,
			   struct row_prediction *row)
{
	const uint8_t *p = rows;
	struct row_prediction r = {0};
	size_t left;

	if (bytes > LONG_MAX || offset > bytes)
		return -EPROTO;
	if (offset == bytes)
		return 0;
	left = bytes - offset;
	if (left < 8)
		return -EPROTO;
	p += offset;
	r.id_bytes = get32(p);
	if (r.id_bytes > ROW_MAX_ID || left - 8 < r.id_bytes)
		return -EPROTO;
	r.id = (const char *)p + 4;
	r.outputs = get32(p + 4 + r.id_bytes);
	left -= 8 + (size_t)r.id_bytes;
	if (left / 4 < r.outputs)
		return -EPROTO;
	r.value = p + 8 + r.id_bytes;
	*row = r;
	return (long)(offset + 8 + r.id_bytes + 4 * (size_t)r.outputs);
}
