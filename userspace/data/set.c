// SPDX-License-Identifier: MIT
/* set.c: a data set's life, and the tables that all feeders add to. */
#include "set.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int data_create(const struct data_config *config, struct data_set **out, struct err *err)
{
	struct data_set *data;
	double f = config->validation_fraction;
	int rc;

	if (!(f >= 0 && f < 1))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "validation_fraction is %g, must be from 0 to below 1", f);
	data = calloc(1, sizeof(*data));
	if (!data)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	data->config = *config;
	data->bad.max = config->max_bad_rows;
	rc = store_create(config->memory, config->spill_dir, config->spill_max,
			  config->spill_min_free, &data->store, err);
	if (rc) {
		free(data);
		return rc;
	}
	data->config.spill_dir = NULL; /* the caller's string may go */
	pthread_mutex_init(&data->lock, NULL);
	*out = data;
	return 0;
}

void data_free(struct data_set *data)
{
	struct aux_block *block;

	if (!data)
		return;
	for (uint32_t i = 0; i < data->n_segments; i++)
		free(data->segment[i]);
	while ((block = data->aux)) {
		data->aux = block->next;
		free(block);
	}
	for (uint32_t i = 0; i < data->n_shapes; i++)
		sums_free(data->entry[i].sums);
	for (int s = 0; s < ROW_SETS; s++)
		free(data->order[s]);
	label_table_free(&data->label);
	bad_rows_free(&data->bad);
	store_free(data->store);
	pthread_mutex_destroy(&data->lock);
	exchange_free(data->exchange);
	free(data->segment);
	free(data->entry);
	free(data->class_weight);
	free(data);
}

static int no_memory(struct err *err, const char *what)
{
	return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %s", what);
}

static int add_segment(struct data_set *data, int32_t segindex, uint32_t feeder,
		       struct segment **out, struct err *err)
{
	struct segment *segment;

	if (data->n_segments == data->segment_capacity) {
		uint32_t capacity = data->segment_capacity ? 2 * data->segment_capacity : 64;
		struct segment **table;

		if (capacity > UINT32_MAX / SEGMENT_ROWS)
			return err_set(err, ERR_LIMIT, -E2BIG, "more than %u rows",
				       (UINT32_MAX / SEGMENT_ROWS / 2) * SEGMENT_ROWS);
		table = realloc(data->segment, capacity * sizeof(struct segment *));
		if (!table)
			return no_memory(err, "rows");
		data->segment = table;
		data->segment_capacity = capacity;
	}
	segment = malloc(sizeof(*segment));
	if (!segment)
		return no_memory(err, "rows");
	segment->segindex = segindex;
	segment->feeder = feeder;
	segment->n = 0;
	data->segment[data->n_segments++] = segment;
	*out = segment;
	return 0;
}

static int add_aux(struct data_set *data, size_t bytes, uint8_t **out, struct err *err)
{
	struct aux_block *block = malloc(sizeof(*block) + bytes);

	if (!block)
		return no_memory(err, "ids");
	block->next = data->aux;
	data->aux = block;
	*out = block->data;
	return 0;
}

int set_add_row(struct data_set *data, struct row_writer *w, int32_t segindex, uint32_t feeder,
		size_t aux_bytes, struct row **out, struct err *err)
{
	size_t step = (aux_bytes + 7) & ~(size_t)7;
	int rc = 0;

	if (!w->segment || w->segment->n == SEGMENT_ROWS) {
		rc = store_charge(data->store, sizeof(*w->segment), "rows", err);
		if (rc)
			return rc;
		pthread_mutex_lock(&data->lock);
		rc = add_segment(data, segindex, feeder, &w->segment, err);
		pthread_mutex_unlock(&data->lock);
	}
	if (!rc && aux_bytes > w->aux_left) {
		size_t size = aux_bytes > AUX_BLOCK ? aux_bytes : AUX_BLOCK;

		rc = store_charge(data->store, size, "ids and targets", err);
		if (rc)
			return rc;
		pthread_mutex_lock(&data->lock);
		rc = add_aux(data, size, &w->aux, err);
		pthread_mutex_unlock(&data->lock);
		w->aux_left = rc ? 0 : size;
	}
	if (rc)
		return rc;
	*out = &w->segment->row[w->segment->n++];
	(*out)->aux = w->aux;
	step = step < w->aux_left ? step : w->aux_left;
	w->aux += step;
	w->aux_left -= step;
	return 0;
}

int set_label(struct data_set *data, const void *value, uint32_t bytes, int32_t *number,
	      struct err *err)
{
	int64_t at;

	pthread_mutex_lock(&data->lock);
	at = label_find(&data->label, value, bytes);
	if (at < 0)
		at = data->label.n < AGREE_MAX_LABELS ? label_add(&data->label, value, bytes, 0)
						      : -E2BIG;
	pthread_mutex_unlock(&data->lock);
	if (at == -E2BIG) {
		err_set(err, ERR_DATA, -E2BIG, "more than %u different labels", AGREE_MAX_LABELS);
		err_hint(err, "Is the column of labels the right one? For a regression choose loss "
			      "mse or mae.");
		return -E2BIG;
	}
	if (at < 0)
		return no_memory(err, "labels");
	*number = (int32_t)at;
	return 0;
}

int set_shape(struct data_set *data, struct backend_shape shape, uint32_t *index, struct err *err)
{
	struct shape_entry *entry;

	for (uint32_t i = 0; i < data->n_shapes; i++) {
		if (!memcmp(&data->entry[i].shape, &shape, sizeof(shape))) {
			*index = i;
			return 0;
		}
	}
	*index = MAX_SHAPES;
	if (data->n_shapes == MAX_SHAPES)
		return 0;
	entry = realloc(data->entry, (data->n_shapes + 1) * sizeof(*entry));
	if (!entry)
		return no_memory(err, "shapes");
	data->entry = entry;
	entry[data->n_shapes] = (struct shape_entry){.shape = shape};
	*index = data->n_shapes++;
	return 0;
}

int set_add_bad(struct data_set *data, enum row_set set, const char *id, const char *reason,
		bool crash, struct err *err)
{
	return bad_rows_add(&data->bad, set, id, reason, crash, err);
}

void set_id_text(char out[SET_NAME], const void *id, uint32_t bytes, int32_t segindex,
		 uint32_t feeder, uint64_t ordinal)
{
	if (bytes)
		utf8_clean(out, SET_NAME, id, bytes);
	else
		snprintf(out, SET_NAME, "(%" PRId32 ",%" PRIu32 ",%" PRIu64 ")", segindex, feeder,
			 ordinal);
}

void set_row_origin(const struct data_set *data, uint32_t index, struct row_origin *out)
{
	const struct segment *segment = data->segment[index >> SEGMENT_SHIFT];
	const struct row *row = set_row(data, index);
	const uint8_t *rest = row->aux + row->y_count * sizeof(float);

	if (row->away) {
		memcpy(out, rest, sizeof(*out));
		return;
	}
	memcpy(&out->ordinal, rest, sizeof(out->ordinal));
	out->segindex = segment->segindex;
	out->feeder = segment->feeder;
}

void set_row_name(const struct data_set *data, uint32_t index, char out[SET_NAME])
{
	const struct row *row = set_row(data, index);
	const uint8_t *rest = row->aux + row->y_count * sizeof(float);
	struct row_origin o = {0};

	if (!row->id_bytes)
		set_row_origin(data, index, &o);
	set_id_text(out, rest, row->id_bytes, o.segindex, o.feeder, o.ordinal);
}

void data_cancel(struct data_set *data)
{
	atomic_store(&data->canceled, true);
}

int set_canceled(const struct data_set *data, struct err *err)
{
	if (!atomic_load_explicit(&data->canceled, memory_order_relaxed))
		return 0;
	return err_set(err, ERR_CANCELED, -ECANCELED, "the job was ended");
}

void set_hash(const void *x, uint64_t x_bytes, const uint64_t y_hash[2], float weight,
	      uint64_t hash[2])
{
	XXH128_hash_t h = XXH3_128bits(x, x_bytes);
	uint8_t all[36];

	memcpy(all, &h.low64, 8);
	memcpy(all + 8, &h.high64, 8);
	memcpy(all + 16, y_hash, 16);
	memcpy(all + 32, &weight, 4);
	h = XXH3_128bits(all, sizeof(all));
	hash[0] = h.low64;
	hash[1] = h.high64;
}

bool set_split(const struct data_set *data, const uint64_t hash[2])
{
	return (double)(hash[1] >> 11) * 0x1p-53 < data->config.validation_fraction;
}

int set_sum(struct data_set *data, struct sums **sums, struct backend_shape shape, const void *x,
	    struct err *err)
{
	if (shape.c > AGREE_MAX_CHANNELS)
		return 0; /* no normalisation by channel for these */
	if (!*sums) {
		int rc = store_charge(data->store, sums_bytes(data->dtype, shape.c), "sums", err);

		if (rc)
			return rc;
		*sums = sums_create(data->dtype, shape.c);
		if (!*sums)
			return no_memory(err, "sums");
	}
	sums_add(*sums, x, (uint64_t)shape.h * shape.w);
	return 0;
}

uint64_t data_rows(const struct data_set *data, enum row_set set)
{
	return (unsigned int)set < ROW_SETS ? data->rows[set] : 0;
}

uint64_t data_bad_rows(const struct data_set *data, enum row_set set)
{
	return (unsigned int)set < ROW_SETS ? data->bad.count[set] : 0;
}

struct backend_shape data_shape(const struct data_set *data)
{
	return data->rows_shape;
}

enum backend_dtype data_dtype(const struct data_set *data)
{
	return data->dtype;
}

int data_blocks(const struct data_set *data,
		int (*each)(void *context, const void *memory, size_t bytes), void *context)
{
	return store_blocks(data->store, each, context);
}

uint64_t data_memory(const struct data_set *data)
{
	return store_memory(data->store);
}

uint64_t data_spilled(const struct data_set *data)
{
	return store_spilled(data->store);
}

int data_bad_row(const struct data_set *data, uint64_t i, enum row_set *set, const char **id,
		 const char **reason)
{
	if (i >= data->bad.n)
		return -ENOENT;
	*set = data->bad.row[i].set;
	*id = data->bad.row[i].id;
	*reason = data->bad.row[i].reason;
	return 0;
}
