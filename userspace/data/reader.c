// SPDX-License-Identifier: MIT
/*
 * reader.c: batches of a set. Everything is allocated when the reader is opened. Rows in memory are
 * pointed to, rows of the spill file come through readahead.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "order.h"
#include "readahead.h"
#include "set.h"

/* What a batch points to. */
struct held {
	const void **x;
	uint64_t *hash;
	float *weight;
	int32_t *label; /* classes only */
	float *target;	/* with labels only; classes: one-hot, or the index for one output */
	uint32_t hot;	/* rows of target that may hold a one */
};

struct data_reader {
	struct data_set *data;
	enum row_set set;
	uint32_t max_batch, outputs;
	uint64_t rows, charged;
	bool classes, shuffle;
	uint32_t *order; /* of this epoch; not shuffled: the data set's */
	uint32_t *place; /* of each row of the order in the canonical one; NULL: rows are pointed to
			  */
	struct order_key *keys, *scratch;
	struct held held[DATA_READER_KEEP]; /* in turn */
	uint32_t n_held, at;
	struct readahead *ahead;
};

static uint64_t held_bytes(const struct data_reader *r)
{
	const struct held *h = r->held;
	uint64_t row = sizeof(*h->x) + sizeof(*h->hash) + sizeof(*h->weight) + sizeof(*h->label);

	return r->max_batch * (row + (uint64_t)r->outputs * sizeof(*h->target));
}

static uint64_t buffer_bytes(const struct data_reader *r)
{
	uint64_t order = sizeof(*r->order) + 2 * sizeof(*r->keys);

	return r->n_held * held_bytes(r) + (r->shuffle ? r->rows * order : 0);
}

static int allocate_held(struct data_reader *r, struct held *h)
{
	size_t n = r->max_batch;

	h->x = malloc(n * sizeof(*h->x));
	h->hash = malloc(n * sizeof(*h->hash));
	h->weight = malloc(n * sizeof(*h->weight));
	if (r->classes)
		h->label = malloc(n * sizeof(*h->label));
	if (r->outputs)
		h->target = calloc(n, r->outputs * sizeof(*h->target));
	return h->x && h->hash && h->weight && (!r->classes || h->label) &&
			       (!r->outputs || h->target)
		       ? 0
		       : -ENOMEM;
}

static int allocate(struct data_reader *r)
{
	struct data_set *data = r->data;

	r->n_held = 1;
	r->order = data->order[r->set];
	if (r->shuffle) {
		r->order = malloc((r->rows + 1) * sizeof(*r->order));
		r->keys = malloc((r->rows + 1) * sizeof(*r->keys));
		r->scratch = malloc((r->rows + 1) * sizeof(*r->keys));
		if (r->order && r->rows)
			memcpy(r->order, data->order[r->set], r->rows * sizeof(*r->order));
	}
	if (r->shuffle && (!r->order || !r->keys || !r->scratch))
		return -ENOMEM;
	return allocate_held(r, &r->held[0]);
}

static bool has_spilled(const struct data_reader *r)
{
	const struct data_set *data = r->data;

	if (!store_spilled(data->store))
		return false;
	for (uint64_t i = 0; i < r->rows; i++)
		if (!store_pointer(data->store, set_row(data, data->order[r->set][i])->where))
			return true;
	return false;
}

int data_reader_open(struct data_set *data, enum row_set set, uint32_t max_batch, bool shuffle,
		     struct data_reader **out, struct err *err)
{
	struct data_reader *r;
	int rc;

	if (data->phase != DATA_APPLIED || (unsigned int)set >= ROW_SETS || !max_batch)
		return err_set(err, ERR_INTERNAL, -EINVAL, "rows are not ready to be read");
	r = calloc(1, sizeof(*r));
	if (!r)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	r->data = data;
	r->set = set;
	r->max_batch = max_batch;
	r->rows = data->rows[set];
	r->shuffle = shuffle && set != ROW_PREDICT;
	if (set != ROW_PREDICT && data->config.need_labels && data->labels != AGREE_NO_LABELS) {
		r->outputs = data->outputs;
		r->classes = data->labels != AGREE_VECTOR && data->labels != AGREE_FLOAT;
	}
	rc = allocate(r);
	if (rc)
		err_set(err, ERR_LIMIT, rc,
			"out of memory: %" PRIu64 " bytes for batches of %u rows", buffer_bytes(r),
			max_batch);
	else if (has_spilled(r))
		rc = readahead_create(data, r->order, r->rows, max_batch, &r->ahead, err);
	if (rc) {
		data_reader_close(r);
		return rc;
	}
	r->charged = buffer_bytes(r) + (r->ahead ? readahead_bytes(data, max_batch) : 0);
	store_charge_anyway(data->store, r->charged);
	*out = r;
	return 0;
}

int data_reader_keep(struct data_reader *r, uint32_t batches)
{
	if (r->ahead)
		return -EOPNOTSUPP;
	if (batches > DATA_READER_KEEP)
		return -EINVAL;
	while (r->n_held < batches) {
		int rc = allocate_held(r, &r->held[r->n_held++]);

		r->charged += held_bytes(r);
		store_charge_anyway(r->data->store, held_bytes(r));
		if (rc)
			return rc;
	}
	return 0;
}

int data_reader_by_index(struct data_reader *r)
{
	uint64_t bytes = (r->rows + 1) * sizeof(*r->place);

	if (r->ahead || !r->shuffle)
		return -EOPNOTSUPP;
	if (r->place)
		return 0;
	r->place = malloc(bytes);
	if (!r->place)
		return -ENOMEM;
	for (uint64_t i = 0; i < r->rows; i++)
		r->place[i] = (uint32_t)i;
	memcpy(r->order, r->data->order[r->set], r->rows * sizeof(*r->order));
	r->charged += bytes;
	store_charge_anyway(r->data->store, bytes);
	return 0;
}

void data_reader_close(struct data_reader *r)
{
	if (!r)
		return;
	readahead_free(r->ahead);
	store_uncharge(r->data->store, r->charged);
	if (r->shuffle)
		free(r->order);
	free(r->keys);
	free(r->scratch);
	free(r->place);
	for (uint32_t i = 0; i < DATA_READER_KEEP; i++) {
		free(r->held[i].x);
		free(r->held[i].hash);
		free(r->held[i].weight);
		free(r->held[i].label);
		free(r->held[i].target);
	}
	free(r);
}

int data_reader_epoch(struct data_reader *r, uint64_t seed, uint32_t epoch)
{
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	const struct data_set *data = r->data;
	const uint32_t *canonical = data->order[r->set];
	const struct order_key *sorted;
	uint32_t n = (uint32_t)r->rows;
	int rc;

	if (!r->shuffle)
		return 0;
	if (r->ahead && (rc = readahead_rest(r->ahead)))
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t hash = set_row(data, canonical[i])->hash[0];
		const uint32_t counter[4] = {(uint32_t)hash, (uint32_t)(hash >> 32), epoch,
					     BACKEND_RANDOM_ORDER};
		uint32_t word[4];

		backend_philox(counter, key, word);
		r->keys[i] = (struct order_key){(uint64_t)word[0] << 32 | word[1], i};
	}
	sorted = order_sort(r->keys, r->scratch, n, NULL, NULL); /* stable: ties stay canonical */
	for (uint32_t i = 0; i < n; i++) {
		r->order[i] = canonical[sorted[i].row];
		if (r->place)
			r->place[i] = sorted[i].row;
	}
	return 0;
}

static void clear_ones(struct data_reader *r, struct held *h)
{
	for (uint32_t i = 0; i < h->hot; i++)
		h->target[(size_t)i * r->outputs + (uint32_t)h->label[i]] = 0;
	h->hot = 0;
}

static void fill_targets(struct data_reader *r, struct held *h, uint64_t first, uint32_t n)
{
	const struct data_set *data = r->data;

	if (r->classes && r->outputs > 1)
		clear_ones(r, h);
	for (uint32_t i = 0; i < n; i++) {
		const struct row *row = set_row(data, r->order[first + i]);
		float *to = h->target + (size_t)i * r->outputs;

		if (r->classes) {
			h->label[i] = row->label;
			if (r->outputs > 1)
				to[row->label] = 1;
			else
				*to = (float)row->label;
			/* Keras: class weights are for training only */
			if (r->set == ROW_TRAIN)
				h->weight[i] *= data->class_weight[row->label];
		} else if (data->labels == AGREE_FLOAT) {
			*to = row->target;
		} else {
			memcpy(to, row_vector(row), r->outputs * sizeof(*to));
		}
	}
	h->hot = r->classes && r->outputs > 1 ? n : 0;
}

int data_reader_batch(struct data_reader *r, uint64_t first, uint32_t n,
		      struct backend_batch *batch, struct err *err)
{
	const struct data_set *data = r->data;
	const uint8_t *base = NULL;
	uint64_t stride = readahead_stride(data);
	struct held *h;
	int rc;

	if (n > r->max_batch || first > r->rows || n > r->rows - first)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "rows %" PRIu64 " to %" PRIu64 " of %" PRIu64 " in batches of %u",
			       first, first + n, r->rows, r->max_batch);
	if (r->ahead && n) {
		rc = readahead_get(r->ahead, first, n, &base, err);
		if (rc)
			return rc;
	}
	r->at = (r->at + 1) % r->n_held;
	h = &r->held[r->at];
	for (uint32_t i = 0; i < n; i++) {
		const struct row *row = set_row(data, r->order[first + i]);

		h->x[i] = r->place ? NULL : store_pointer(data->store, row->where);
		if (!r->place && !h->x[i])
			h->x[i] = base + i * stride;
		h->hash[i] = row->hash[0];
		h->weight[i] = row->weight;
	}
	if (r->outputs)
		fill_targets(r, h, first, n);
	batch->n = n;
	batch->x = r->place ? NULL : h->x;
	batch->index = r->place ? r->place + first : NULL;
	batch->hash = h->hash;
	batch->weight = h->weight;
	batch->label = h->label;
	batch->target = h->target;
	return 0;
}

const char *data_reader_id(const struct data_reader *r, uint64_t place, uint32_t *bytes)
{
	const struct row *row;

	*bytes = 0;
	if (place >= r->rows)
		return "";
	row = set_row(r->data, r->order[place]);
	*bytes = row->id_bytes;
	return *bytes ? (const char *)row->aux + row->y_count * sizeof(float) : "";
}
