/* SPDX-License-Identifier: MIT */
/* feeder.h: the inside of a feeder, shared by feeder.c and feeder_image.c. */
#ifndef DATA_FEEDER_H
#define DATA_FEEDER_H

#include "set.h"
#include "value.h"

/* A row while its pixels are not there yet. */
struct pending {
	uint64_t ordinal;
	uint64_t y_hash[2];
	float weight, target;
	int32_t label;
	uint32_t y_count, id_bytes;
	const float *vector;
	const uint8_t *id;
};

struct feeder_shape { /* of the data set's shape of the same number */
	uint64_t unflushed;
	struct sums *sums;
};

struct data_feeder {
	struct data_set *data;
	struct data_feed feed;
	uint32_t labels; /* enum agree_labels */
	bool failed;	 /* an error was returned: rows are missing */
	struct store_writer raw, pixels;
	void *place;
	uint64_t bytes; /* of the value at place, 0: none */
	uint64_t ordinal;
	struct row_writer rows;
	struct label_table label;
	struct target target;
	bool last_known; /* last shape and its number */
	struct backend_shape last;
	uint32_t last_index;
	uint32_t shapes, unflushed;
	struct feeder_shape *shape;
	struct data_counts counts;
	struct decode_queue queue;
};

int feeder_bad(struct data_feeder *f, const struct pending *p, const char *reason, bool crash,
	       struct err *err);
/* Number of a shape, which becomes f->last; MAX_SHAPES: too many. */
int feeder_shape(struct data_feeder *f, struct backend_shape shape, uint32_t *index,
		 struct err *err);
/* Adds the row of shape f->last, whose x is stored. */
int feeder_keep(struct data_feeder *f, const struct pending *p, const void *x, uint64_t where,
		uint32_t shape, bool image, struct err *err);
/* Sends an image to the decoders; takes what came back. */
int feeder_image(struct data_feeder *f, const struct value *v, const struct pending *p,
		 struct err *err);
/* Waits for all images that are under way. */
int feeder_drain(struct data_feeder *f, struct err *err);

#endif
