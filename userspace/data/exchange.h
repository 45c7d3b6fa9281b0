/* SPDX-License-Identifier: MIT */
/*
 * exchange.h: the inside of an exchange of rows, shared by exchange.c (what goes) and
 * exchange_give.c (what comes), and the form of a block.
 *
 * A block is a head of EXCHANGE_HEAD bytes, then rows. All numbers are little-endian.
 *   head: u32 magic, u16 version, u8 dtype, u8 kind of labels, u32 h, w, c, u32 rows, u64 bytes
 *   row:  u32 y_bytes, u32 id_bytes, f32 weight; y: the bytes of the label, or f32 targets;
 *         the id, or without one u64 ordinal, i32 segindex, u32 feeder; then h * w * c elements
 */
#ifndef DATA_EXCHANGE_H
#define DATA_EXCHANGE_H

#include "set.h"

#define EXCHANGE_MAGIC 0x58574e43u /* "CNWX" */
#define EXCHANGE_VERSION 1u
#define EXCHANGE_HEAD 32u
#define EXCHANGE_ROW 12u
#define EXCHANGE_ORIGIN 16u
#define EXCHANGE_MAX_HOSTS 65536u

struct exchange_head {
	uint8_t dtype, labels;
	struct backend_shape shape;
	uint32_t rows;
	uint64_t bytes;
};

struct exchange {
	uint32_t hosts, self;
	uint32_t old; /* segments that were there when it began */
	struct {
		uint32_t segment, row;
	} * cursor;	  /* one a host: rows before it have been taken */
	uint32_t settled; /* old segments with nothing left in old chunks */
	uint32_t advised; /* segments that the disk was told of */
	uint32_t *live;	  /* rows of each old chunk that may still be read */
	struct row_writer rows;
	struct store_writer x; /* rows that come, and those that stay: away from the old chunks */
	struct data_exchange_counts counts;
};

/* The host that a row belongs to. */
static inline uint32_t exchange_host(const struct exchange *e, const uint64_t hash[2])
{
	return (uint32_t)((unsigned __int128)hash[0] * e->hosts >> 64);
}

static inline uint64_t exchange_x_bytes(const struct data_set *data)
{
	return shape_elements(data->rows_shape) * backend_dtype_bytes(data->dtype);
}

#endif
