/* SPDX-License-Identifier: MIT */
/* set.h: the inside of a data set: rows, shapes, labels; shared by the files of this folder. */
#ifndef DATA_SET_H
#define DATA_SET_H

#include <pthread.h>
#include <stdatomic.h>

#include "bad.h"
#include "data.h"
#include "decoder.h"
#include "label.h"
#include "store.h"
#include "sums.h"

#define SEGMENT_ROWS 1024u
#define SEGMENT_SHIFT 10
#define MAX_SHAPES 4096u
#define ROW_DROPPED ROW_SETS /* row.set of a row that turned out bad, or went to another host */
#define AUX_BLOCK ((size_t)32 << 10)

/* One row. x lies in the store; what does not fit here lies at aux: y_count floats, then the id, or
 * where there is no id the ordinal (a row of another host: struct row_origin). */
struct row {
	uint64_t hash[2]; /* of x, y, weight; prediction: feeder and ordinal */
	uint64_t where;
	const uint8_t *aux;
	union {
		int32_t label; /* number in the label table; after apply: class */
		float target;
	};
	float weight;
	uint32_t y_count;
	uint32_t id_bytes : 11;
	uint32_t set : 2;
	uint32_t image : 1; /* was decoded: channels can be converted */
	uint32_t split : 1; /* set was chosen by hash: fed as ROW_TRAIN */
	uint32_t shape : 13;
	uint32_t away : 1; /* came from another host */
	uint32_t : 3;
};

struct row_origin { /* names a row without an id */
	uint64_t ordinal;
	int32_t segindex;
	uint32_t feeder;
};

struct segment { /* rows of one feeder */
	int32_t segindex;
	uint32_t feeder, n;
	struct row row[SEGMENT_ROWS];
};

struct shape_entry {
	struct backend_shape shape;
	uint64_t rows;
	struct sums *sums; /* of the training rows; NULL: none yet */
};

struct aux_block {
	struct aux_block *next;
	uint8_t data[];
};

/* Where rows are added: one per thread. */
struct row_writer {
	struct segment *segment;
	uint8_t *aux;
	size_t aux_left;
};

enum data_phase { DATA_FEEDING, DATA_COLLECTED, DATA_EXCHANGING, DATA_APPLIED, DATA_FAILED };

struct exchange; /* exchange.c */

struct data_set {
	struct data_config config; /* spill_dir not to be used */
	pthread_mutex_t lock;	   /* while feeding */
	struct store *store;
	enum data_phase phase;
	atomic_bool canceled;
	uint32_t feeders, aborted;
	bool typed, labelled; /* dtype, labels are known */
	enum backend_dtype dtype;
	uint32_t labels; /* enum agree_labels */
	struct label_table label;
	struct bad_rows bad;
	uint64_t received;
	uint32_t n_shapes;
	struct shape_entry *entry;
	uint32_t n_segments, segment_capacity;
	struct segment **segment;
	struct aux_block *aux;

	/* from collect on */
	uint32_t shape; /* entry of the rows that are held */
	struct backend_shape rows_shape;
	uint64_t rows[ROW_SETS];
	uint32_t *order[ROW_SETS]; /* canonical, prediction: as fed */
	struct exchange *exchange; /* while it goes on */
	/* from apply on */
	uint32_t outputs, n_classes;
	float *class_weight;
};

static inline struct row *set_row(const struct data_set *data, uint32_t index)
{
	return &data->segment[index >> SEGMENT_SHIFT]->row[index & (SEGMENT_ROWS - 1)];
}

static inline uint64_t shape_elements(struct backend_shape s)
{
	return (uint64_t)s.h * s.w * s.c;
}

static inline const float *row_vector(const struct row *row)
{
	return (const float *)row->aux;
}

/* Room for a row and aux_bytes at its aux; takes the lock. segindex, feeder: of the writer. */
int set_add_row(struct data_set *data, struct row_writer *writer, int32_t segindex, uint32_t feeder,
		size_t aux_bytes, struct row **out, struct err *err);
/* Number of a label value in the table of the set; takes the lock. */
int set_label(struct data_set *data, const void *value, uint32_t bytes, int32_t *number,
	      struct err *err);
/* The next two with the lock held, or alone. */
/* Number of a shape; MAX_SHAPES: there are too many. */
int set_shape(struct data_set *data, struct backend_shape shape, uint32_t *index, struct err *err);
int set_add_bad(struct data_set *data, enum row_set set, const char *id, const char *reason,
		bool crash, struct err *err);

#define SET_NAME (ROW_MAX_ID + 1)
/* Id of a row for people: the id, else (segment,feeder,ordinal). */
void set_id_text(char out[SET_NAME], const void *id, uint32_t bytes, int32_t segindex,
		 uint32_t feeder, uint64_t ordinal);
void set_row_name(const struct data_set *data, uint32_t index, char out[SET_NAME]);
void set_row_origin(const struct data_set *data, uint32_t index, struct row_origin *out);
/* -ECANCELED after data_cancel. Loops over rows look every so often. */
#define SET_LOOK 65536
int set_canceled(const struct data_set *data, struct err *err);

/* Hash of a row, of its parts as stored. */
void set_hash(const void *x, uint64_t x_bytes, const uint64_t y_hash[2], float weight,
	      uint64_t hash[2]);
/* Hash of the label or target of a row, as the feeder made it. */
void set_target_hash(const struct data_set *data, const struct row *row, uint64_t hash[2]);
/* Hash of a row that has `nth` equals before it in canonical order, nth > 0. */
void set_hash_apart(const uint64_t hash[2], uint64_t nth, uint64_t out[2]);
/* Canonical order of the sets first..last; charges it. */
int set_order_rows(struct data_set *data, enum row_set first, enum row_set last, struct err *err);
/* Training row to be held back for validation? */
bool set_split(const struct data_set *data, const uint64_t hash[2]);
/* Adds a training row to the sums of its shape. */
int set_sum(struct data_set *data, struct sums **sums, struct backend_shape shape, const void *x,
	    struct err *err);

void exchange_free(struct exchange *exchange);

#endif
