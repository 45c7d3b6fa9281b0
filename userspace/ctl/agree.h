/* SPDX-License-Identifier: MIT */
/*
 * agree.h: what the daemons tell of their rows (part), and the one decision for all of them
 * (agreed) that the coordinator builds from the parts and sends back. Pure functions on blobs; the
 * extension calls agree_merge, cnnd encodes parts and decodes the agreed block. The agreed block is
 * stored with the model (class map, normalisation).
 */
#ifndef AGREE_H
#define AGREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"

#define AGREE_MAX_LABELS 65536u
#define AGREE_MAX_CHANNELS 65536u /* flat rows are 1 x 1 x n */
#define AGREE_MAX_BLOB (64u << 20)

enum agree_labels {
	AGREE_NO_LABELS = 0, /* prediction */
	AGREE_INT,	     /* class values are 8-byte i64 */
	AGREE_TEXT,	     /* class values are UTF-8 */
	AGREE_BOOL,	     /* class values are 1 byte */
	AGREE_VECTOR,	     /* arrays: one-hot, probabilities or regression targets of `outputs` */
	AGREE_FLOAT	     /* one regression target */
};

enum agree_normalize { AGREE_SCALE_AUTO = 0, AGREE_SCALE_NONE, AGREE_SCALE, AGREE_STANDARDIZE };

struct agree_label {
	uint32_t bytes;
	const uint8_t *value;
	uint64_t count; /* of the training set */
	double weight;	/* agreed: class weight; part: the spec's explicit weight, NaN: none */
};

struct agree_block {
	/* the same in part and agreed (agreed: sums over daemons) */
	uint64_t rows[3], bad[3], sent[3]; /* by row_set; sent = rows + bad, else an error */
	uint32_t h, w, c;		   /* shape of the rows; a part without rows has 0,0,0 */
	uint32_t dtype;			   /* enum backend_dtype of the stored rows */
	uint32_t labels;		   /* enum agree_labels */
	uint32_t outputs;		   /* AGREE_VECTOR: length; else number of classes, or 1 */
	uint32_t n_labels;
	struct agree_label *label; /* agreed: sorted; integers by value, text bytewise */
	uint64_t pixels;	   /* rows * h * w of the training set: the count behind the sums */
	uint32_t n_channels;
	double *sum, *sum2; /* per channel, of raw values */

	/* policy: the spec's wishes in a part (all parts carry the same), decided in the agreed
	 * block */
	uint32_t normalize;	  /* enum agree_normalize */
	double normalizing_const; /* 0: automatic, 255 for stored integers, 1 for floats */
	uint8_t balanced;	  /* class_weight 'balanced': n / (classes * count) */
	uint32_t batch_size;	  /* 0: min(128, max(1, floor(total/(20*R)))) */
	uint32_t replicas;	  /* part: of this daemon; agreed: of all */
	uint32_t class_limit;	  /* part: outputs of the given architecture, 0: any */

	/* agreed only */
	double *mul, *add; /* per channel: x = raw * mul + add */
	uint64_t steps;	   /* of an epoch: max(1, max_i ceil(n_i / (R_i * B))) */
	uint8_t agreed;	   /* 1: an agreed block */
};

/*
 * Blob <-> block. encode: bytes at *out (free it), -EINVAL a block that decode would refuse, -E2BIG
 * past AGREE_MAX_BLOB, -ENOMEM. decode allocates; agree_free releases label, sum, sum2, mul and add
 * with free(), not label[i].value: values live in label's own allocation, behind the array, or are
 * somebody else's. Everything is range-checked.
 */
long agree_encode(const struct agree_block *block, uint8_t **out);
int agree_decode(const void *blob, size_t bytes, struct agree_block *out, struct err *err);
void agree_free(struct agree_block *block);

/*
 * One agreed block of n parts. Errors (ERR_DATA): no rows at all, shapes or types that differ
 * between hosts, more than AGREE_MAX_LABELS labels, label kinds that differ, rows sent != rows held
 * + bad.
 */
int agree_merge(const struct agree_block *part, size_t n, struct agree_block *out, struct err *err);

/*
 * How far the parts are from even shards, over the training rows: distance[k] = total variation
 * distance, 1/2 sum_l |p_k(l) - p(l)|, between the labels of part k and of all (0 without classes
 * or rows); ratio = largest / smallest number of rows (infinity where a part has none).
 */
int agree_skew(const struct agree_block *part, size_t n, double *distance, double *ratio,
	       struct err *err);

/* Order of two labels of a kind, as memcmp: integers by value, else bytewise. */
int agree_order(uint32_t kind, const struct agree_label *a, const struct agree_label *b);
/* Index of a label value in an agreed block (binary search); -1: not there. */
int32_t agree_find(const struct agree_block *block, const uint8_t *value, uint32_t bytes);

#endif
