/* SPDX-License-Identifier: MIT */
/*
 * data.h: a job's rows inside cnnd. Takes rows as they come from the rings (row.h), checks and
 * decodes them (JPEG and PNG in sandboxed worker processes), holds them as the stored type in
 * memory and, past a budget, in a spill file, puts them in the canonical order, and serves
 * batches. Knows row.h, agree.h and kernels/backend.h; nothing of training or sockets.
 *
 * Bad rows (undecodable, wrong size, NULL, NaN) are quarantined with id and reason and counted.
 */
#ifndef DATA_H
#define DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernels/backend.h"
#include "../base/err.h"
#include "../ctl/agree.h"
#include "../ctl/row.h"

struct data_decoder; /* pool of decode worker processes, one for the daemon */
struct data_set;     /* the rows of one job on this daemon */

struct data_limits {		   /* 0: the default that stands beside */
	uint64_t max_image_pixels; /* 64M */
	uint64_t max_image_bytes;  /* 64 MiB */
	unsigned int image_ms;	   /* 2000: time for one image */
	unsigned int workers;	   /* 0: one per core */
	bool sandbox;		   /* seccomp filter in the workers */
};

/* Forks a small helper at once (call early, before threads are started); workers start on first
 * use and are restarted when they die. */
int data_decoder_create(const struct data_limits *limits, struct data_decoder **out,
			struct err *err);
void data_decoder_free(struct data_decoder *decoder);

struct data_config {
	struct data_decoder *decoder;
	uint64_t memory;	 /* bytes of rows kept in memory */
	const char *spill_dir;	 /* O_TMPFILE there; NULL: no spill, ERR_LIMIT past memory */
	uint64_t spill_max;	 /* bytes; 0: 20 % of the free space */
	uint64_t spill_min_free; /* bytes that a spill leaves free on the disk */
	/*
	 * What the network wants. A 0 is not known: the most frequent value of the rows; raw bytes
	 * and 1-D arrays are then squares of 1 or 3 channels. Arrays may have 1 dimension, or those
	 * of the shape, with or without leading ones and a last one. Images are grey or RGB
	 * (image.h).
	 */
	struct backend_shape shape;
	uint64_t
		max_bad_rows; /* past it: ERR_DATA; so many are kept with reason (16 MiB of text) */
	bool need_labels;     /* train, evaluate: a NULL label is a bad row */
	bool regression;      /* labels are float targets (loss mse, mae; or bce with arrays) */
	double validation_fraction; /* of the training rows, by hash; 0: none */
	uint64_t seed;
};

int data_create(const struct data_config *config, struct data_set **out, struct err *err);
void data_free(struct data_set *data);
/* From any thread: collect, exchange and apply, under way or to come, soon return -ECANCELED
 * (ERR_CANCELED). The set is then good for data_free alone. */
void data_cancel(struct data_set *data);

/* ---- feeding: one feeder per ring, each on its own thread ---- */

struct data_feeder;

struct data_feed {
	enum row_set set;
	enum row_type x_type, y_type;
	bool x_array, y_array, has_y, has_weight, has_id;
	int32_t segindex;
	uint32_t feeder;
};

int data_feeder_open(struct data_set *data, const struct data_feed *feed, struct data_feeder **out,
		     struct err *err);
/* A row value of `bytes` comes: where to put it (valid until row_end). Large values are bounded by
 * the caller. */
int data_feeder_row(struct data_feeder *feeder, uint64_t bytes, void **place, struct err *err);
/* The value is whole. Fails on a malformed value (-EPROTO), past max_bad_rows, at the third image
 * that crashed or hung a decoder, out of memory. After an error only data_feeder_abort is of use.
 */
int data_feeder_row_end(struct data_feeder *feeder, struct err *err);
struct data_counts {
	uint64_t rows, held, bad, bytes;
};
/* Waits for images still being decoded; counts of this feeder. The feeder is gone, whatever is
 * returned. */
int data_feeder_close(struct data_feeder *feeder, struct data_counts *counts, struct err *err);
/* After an error: drops the feeder. The data set cannot be collected then. */
void data_feeder_abort(struct data_feeder *feeder);

/* ---- agreement ---- */

/* Once, after all feeders are closed: canonical order, shape (rows of another shape become bad),
 * label counts, channel sums. Fills the data fields of a part (policy fields are the caller's);
 * agree_free it. Labels that only validation rows have are listed with count 0. Channel sums are
 * exact up to the last rounding, so that they do not depend on arrival; none past
 * AGREE_MAX_CHANNELS. */
int data_collect(struct data_set *data, struct agree_block *part, struct err *err);
/*
 * ---- exchange of training rows between daemons, between collect and apply ----
 *
 * A row's host follows from its hash alone: even shares in expectation, whatever lay where. Equal
 * rows go to the same host. begin; take blocks for each other host and give those that come, in any
 * order, until all have none left; end puts the rows in canonical order. Blocks that come are
 * hostile input. Memory stays within data_config's, spilling as in a feed; validation rows stay.
 * On any error the data set is good for data_free alone.
 */
int data_exchange_begin(struct data_set *data, uint32_t hosts, uint32_t self, struct err *err);
/* Whole rows for a host, at most size bytes; *bytes 0: there are no more. -E2BIG: one row is larger
 * than size (at least DATA_EXCHANGE_BLOCK bytes always suffice for rows below 256 KiB). */
#define DATA_EXCHANGE_BLOCK (1u << 20)
int data_exchange_take(struct data_set *data, uint32_t host, void *block, size_t size,
		       size_t *bytes, struct err *err);
int data_exchange_give(struct data_set *data, const void *block, size_t bytes, struct err *err);
struct data_exchange_counts {
	uint64_t sent, received, kept;
	uint64_t sum_before, sum_after; /* of row checksums mod 2^64, over the rows held: over all
					   hosts both must be equal */
};
int data_exchange_end(struct data_set *data, struct data_exchange_counts *counts, struct err *err);

/* Maps labels to class indices. outputs: of the network. ERR_DATA naming row id and value for a
 * label outside the class map, more classes than outputs, a target vector of another length, NaN.
 */
int data_apply(struct data_set *data, const struct agree_block *agreed, uint32_t outputs,
	       struct err *err);

/* ---- after apply ---- */

uint64_t data_rows(const struct data_set *data, enum row_set set);
uint64_t data_bad_rows(const struct data_set *data, enum row_set set);
struct backend_shape data_shape(const struct data_set *data);
enum backend_dtype data_dtype(const struct data_set *data);
/* Once applied: the memory that rows lie in, block by block, each of whole pages; it stays until
 * data_free. Ends with the first result that is not 0, and returns it. */
int data_blocks(const struct data_set *data,
		int (*each)(void *context, const void *memory, size_t bytes), void *context);
uint64_t data_memory(const struct data_set *data); /* bytes in memory now */
uint64_t data_spilled(const struct data_set *data);
int data_bad_row(const struct data_set *data, uint64_t i, enum row_set *set, const char **id,
		 const char **reason); /* -ENOENT past the end */

/* One reader per (set, user): its own epoch order and staging buffers, max_batch rows at a time. */
struct data_reader;
/* shuffle false: canonical order (evaluation). feeding order for ROW_PREDICT. */
int data_reader_open(struct data_set *data, enum row_set set, uint32_t max_batch, bool shuffle,
		     struct data_reader **out, struct err *err);
void data_reader_close(struct data_reader *reader);
/* Order of an epoch: sort by philox(seed, epoch, hash). */
int data_reader_epoch(struct data_reader *reader, uint64_t seed, uint32_t epoch);
/*
 * Rows [first, first + n) of the order: fills n, x, hash, label, target, weight of batch; pointers
 * valid until the next call. Spilled rows are read ahead; nothing is allocated. Class labels:
 * label, and target one-hot (one output: 0 or 1). Arrays and float targets: target alone.
 * Prediction: neither. weight: sample weight, for training rows times class weight (Keras: not in
 * evaluation). Equal rows have different hashes, so that they are shuffled and augmented apart.
 */
int data_reader_batch(struct data_reader *reader, uint64_t first, uint32_t n,
		      struct backend_batch *batch, struct err *err);
/*
 * What a batch points to stays for batches - 1 calls more, up to DATA_READER_KEEP batches, until
 * the next epoch. -EOPNOTSUPP: rows come from the spill file, through a buffer that the next call
 * needs.
 */
#define DATA_READER_KEEP 4
int data_reader_keep(struct data_reader *reader, uint32_t batches);
/*
 * Of a shuffling reader, between two epochs: batches name their rows by their place in the
 * canonical order (index, valid for the epoch), x is NULL: somebody else has the rows. -EOPNOTSUPP
 * as above.
 */
int data_reader_by_index(struct data_reader *reader);
/* Id of the row at a place of the order ("" when none). */
const char *data_reader_id(const struct data_reader *reader, uint64_t place, uint32_t *bytes);

/* One row value (row.h) to a stored row outside of any set: the scalar predict. */
int data_convert_one(struct data_decoder *decoder, const struct data_feed *feed, const void *value,
		     uint64_t bytes, struct backend_shape shape, enum backend_dtype dtype,
		     void *out_row, struct err *err);

#endif
