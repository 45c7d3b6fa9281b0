/* SPDX-License-Identifier: MIT */
/*
 * store.h: where rows lie: huge-page chunks of memory, and past the budget the spill file. A chunk
 * is filled from its end downwards: a row value comes with x last, so what stands before x (head,
 * id, y) is simply overwritten by the next row, and x is stored without being moved.
 *
 * The budget counts everything that a job holds per row: chunks here, and what others charge.
 */
#ifndef DATA_STORE_H
#define DATA_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"

struct store;

struct store_writer {  /* one per thread */
	uint8_t *base; /* chunk being filled, NULL: none */
	uint32_t chunk;
	uint64_t size, bottom; /* [bottom, size) is kept */
	uint64_t place;	       /* end of the value given out last */
};

/* spill_dir NULL: none, ERR_LIMIT past memory. */
int store_create(uint64_t memory, const char *spill_dir, uint64_t spill_max,
		 uint64_t spill_min_free, struct store **out, struct err *err);
void store_free(struct store *store);

/* A place for a value; its end is a multiple of 8. What was placed before and not kept is gone. */
int store_place(struct store *store, struct store_writer *writer, uint64_t bytes, void **place,
		struct err *err);
/* Keeps the last x_bytes of the value; where: for the calls below. */
void store_keep(struct store_writer *writer, uint64_t x_bytes, uint64_t *where);
void store_writer_close(struct store *store, struct store_writer *writer);

/* Counts bytes that the caller is about to allocate; spills rows to make room. what: for messages.
 */
int store_charge(struct store *store, uint64_t bytes, const char *what, struct err *err);
/* The same without a limit. */
void store_charge_anyway(struct store *store, uint64_t bytes);
void store_uncharge(struct store *store, uint64_t bytes);

/* When no writer is at work: */
const void *store_pointer(const struct store *store, uint64_t where); /* NULL: in the file */
int store_read(const struct store *store, uint64_t where, void *to, uint64_t bytes,
	       struct err *err);
void store_advise(const struct store *store, uint64_t where, uint64_t bytes);

uint32_t store_chunks(const struct store *store);
uint32_t store_chunk(uint64_t where); /* number of the chunk that a value lies in */
/* Nothing of the chunk will be read again: its memory, or its place in the file, is free. */
void store_release(struct store *store, uint32_t chunk);

/* Memory that values lie in, chunk by chunk, whole pages; ends with the first result that is not 0.
 */
int store_blocks(const struct store *store,
		 int (*each)(void *context, const void *memory, size_t bytes), void *context);

uint64_t store_memory(const struct store *store);  /* bytes in memory now */
uint64_t store_spilled(const struct store *store); /* bytes in the file */

#endif
