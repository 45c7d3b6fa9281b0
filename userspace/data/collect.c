// SPDX-License-Identifier: MIT
/*
 * collect.c: when all rows are there: their shape (rows of another become bad), their canonical
 * order, and what this daemon tells the others of them.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "order.h"
#include "set.h"

static int no_memory(struct err *err, const char *what)
{
	return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for %s", what);
}

/* The most frequent shape; of equals the larger one. */
static void choose_shape(struct data_set *data)
{
	const struct shape_entry *e = data->entry;

	for (uint32_t i = 1; i < data->n_shapes; i++) {
		const struct shape_entry *a = &e[data->shape], *b = &e[i];
		uint64_t na = shape_elements(a->shape), nb = shape_elements(b->shape);

		if (b->rows != a->rows	       ? b->rows > a->rows
		    : nb != na		       ? nb > na
		    : b->shape.h != a->shape.h ? b->shape.h > a->shape.h
					       : b->shape.w > a->shape.w)
			data->shape = i;
	}
	if (data->n_shapes)
		data->rows_shape = e[data->shape].shape;
}

void set_target_hash(const struct data_set *data, const struct row *row, uint64_t hash[2])
{
	XXH128_hash_t h;
	uint32_t bytes;

	switch (data->labels) {
	case AGREE_NO_LABELS:
		h = XXH3_128bits("", 0);
		break;
	case AGREE_FLOAT:
		h = XXH3_128bits(&row->target, sizeof(row->target));
		break;
	case AGREE_VECTOR:
		h = XXH3_128bits(row->aux, row->y_count * sizeof(float));
		break;
	default: {
		const uint8_t *text = label_text(&data->label, (uint32_t)row->label, &bytes);

		h = XXH3_128bits(text, bytes);
	}
	}
	hash[0] = h.low64;
	hash[1] = h.high64;
}

/* A decoded image of the right size but of other channels: grey is replicated, colour made luma. */
static int convert_row(struct data_set *data, struct store_writer *writer, struct row *row,
		       uint8_t *buffer, struct err *err)
{
	struct backend_shape shape = data->rows_shape;
	uint64_t pixels = (uint64_t)shape.h * shape.w, bytes = pixels * shape.c, y_hash[2];
	uint64_t from = pixels * data->entry[row->shape].shape.c;
	void *place;
	uint8_t *x;
	int rc = store_read(data->store, row->where, buffer, from, err);

	if (!rc)
		rc = store_place(data->store, writer, bytes, &place, err);
	if (rc)
		return rc;
	x = place;
	if (shape.c == 1)
		image_luma(buffer, pixels, x);
	for (uint64_t i = 0; i < pixels && shape.c == 3; i++)
		x[3 * i] = x[3 * i + 1] = x[3 * i + 2] = buffer[i];
	store_keep(writer, bytes, &row->where);
	row->shape = data->shape;
	if (row->set == ROW_PREDICT)
		return 0;
	set_target_hash(data, row, y_hash);
	set_hash(x, bytes, y_hash, row->weight, row->hash);
	if (row->split || row->set == ROW_TRAIN) {
		row->split = set_split(data, row->hash);
		row->set = row->split ? ROW_VALIDATION : ROW_TRAIN;
	}
	if (row->set != ROW_TRAIN)
		return 0;
	return set_sum(data, &data->entry[data->shape].sums, shape, x, err);
}

static int drop_row(struct data_set *data, uint32_t index, struct err *err)
{
	struct row *row = set_row(data, index);
	struct backend_shape is = data->entry[row->shape].shape, want = data->rows_shape;
	enum row_set fed = row->split ? ROW_TRAIN : (enum row_set)row->set;
	char id[SET_NAME], reason[BAD_REASON];

	snprintf(reason, sizeof(reason),
		 "image is %ux%ux%u, wanted %ux%ux%u as most rows (width x height x channels)",
		 is.w, is.h, is.c, want.w, want.h, want.c);
	set_row_name(data, index, id);
	row->set = ROW_DROPPED;
	return set_add_bad(data, fed, id, reason, false, err);
}

/* Brings rows of other shapes to the one shape, or drops them. */
static int settle_shapes(struct data_set *data, struct err *err)
{
	struct backend_shape want = data->rows_shape;
	struct store_writer writer = {0};
	uint8_t *buffer = NULL;
	int rc = 0;

	if (data->n_shapes < 2)
		return 0;
	for (uint32_t s = 0; s < data->n_segments && !rc; s++) {
		for (uint32_t i = 0; i < data->segment[s]->n && !rc; i++) {
			struct row *row = &data->segment[s]->row[i];
			struct backend_shape is = data->entry[row->shape].shape;

			if (row->shape == data->shape)
				continue;
			rc = set_canceled(data, err);
			if (rc)
				break;
			if (!row->image || is.h != want.h || is.w != want.w ||
			    (want.c != 1 && want.c != 3)) {
				rc = drop_row(data, s << SEGMENT_SHIFT | i, err);
				continue;
			}
			if (!buffer)
				buffer = malloc((uint64_t)want.h * want.w * 3);
			rc = buffer ? convert_row(data, &writer, row, buffer, err)
				    : no_memory(err, "an image");
		}
	}
	store_writer_close(data->store, &writer);
	free(buffer);
	return rc;
}

static int compare_rows(uint32_t a, uint32_t b, void *context)
{
	const struct data_set *data = context;
	uint64_t x = set_row(data, a)->hash[1], y = set_row(data, b)->hash[1];

	return (x > y) - (x < y);
}

static bool in_order(const struct data_set *data, const struct order_key *key, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		if (key[i - 1].key > key[i].key ||
		    (key[i - 1].key == key[i].key &&
		     compare_rows(key[i - 1].row, key[i].row, (void *)data) > 0))
			return false;
	return true;
}

void set_hash_apart(const uint64_t hash[2], uint64_t nth, uint64_t out[2])
{
	uint64_t words[3] = {hash[0], hash[1], nth};
	XXH128_hash_t h = XXH3_128bits(words, sizeof(words));

	out[0] = h.low64;
	out[1] = h.high64;
}

/*
 * Equal rows are told apart by their place among their equals, else they would come next to each
 * other in every epoch and be augmented alike. Which of them is which makes no difference.
 */
static void tell_apart(struct data_set *data, const struct order_key *key, uint32_t n)
{
	uint64_t equal = 0, last[2] = {0};

	for (uint32_t i = 0; i < n; i++) {
		struct row *row = set_row(data, key[i].row);

		equal = i && row->hash[0] == last[0] && row->hash[1] == last[1] ? equal + 1 : 0;
		memcpy(last, row->hash, sizeof(last));
		if (equal)
			set_hash_apart(last, equal, row->hash);
	}
}

/* The rows of a set in canonical order; keys has room for twice the rows. */
static int order_set(struct data_set *data, enum row_set set, struct order_key *keys,
		     struct err *err)
{
	struct order_key *sorted = keys;
	uint32_t n = 0;
	int rc;

	for (uint32_t s = 0; s < data->n_segments; s++)
		for (uint32_t i = 0; i < data->segment[s]->n; i++)
			if (data->segment[s]->row[i].set == set)
				keys[n++] = (struct order_key){data->segment[s]->row[i].hash[0],
							       s << SEGMENT_SHIFT | i};
	rc = set_canceled(data, err);
	if (rc)
		return rc;
	if (!in_order(data, keys, n))
		sorted = order_sort(keys, keys + n, n, compare_rows, data);
	rc = set_canceled(data, err);
	if (rc)
		return rc;
	if (set != ROW_PREDICT)
		tell_apart(data, sorted, n);
	data->order[set] = malloc((n ? n : 1) * sizeof(uint32_t));
	if (!data->order[set])
		return no_memory(err, "the order of rows");
	for (uint32_t i = 0; i < n; i++)
		data->order[set][i] = sorted[i].row;
	data->rows[set] = n;
	return 0;
}

int set_order_rows(struct data_set *data, enum row_set first, enum row_set last, struct err *err)
{
	uint64_t count[ROW_DROPPED + 1] = {0}, most = 0, all = 0, bytes;
	struct order_key *keys;
	int rc;

	for (uint32_t s = 0; s < data->n_segments; s++)
		for (uint32_t i = 0; i < data->segment[s]->n; i++)
			count[data->segment[s]->row[i].set]++;
	for (int s = first; s <= (int)last; s++) {
		most = count[s] > most ? count[s] : most;
		all += count[s];
	}
	bytes = 2 * most * sizeof(*keys) + all * sizeof(uint32_t);
	rc = store_charge(data->store, bytes, "the order of rows", err);
	if (rc)
		return rc;
	keys = malloc(2 * most * sizeof(*keys) + 1);
	if (!keys)
		rc = no_memory(err, "the order of rows");
	for (int s = first; s <= (int)last && !rc; s++)
		rc = order_set(data, (enum row_set)s, keys, err);
	free(keys);
	store_uncharge(data->store, rc ? bytes : 2 * most * sizeof(*keys));
	return rc;
}

/* All sets, and whether every row that came is held or bad. */
static int order_all(struct data_set *data, struct err *err)
{
	uint64_t held = 0, bad = bad_rows_total(&data->bad);
	int rc = set_order_rows(data, ROW_TRAIN, ROW_PREDICT, err);

	for (int s = 0; s < ROW_SETS; s++)
		held += data->rows[s];
	if (!rc && held + bad != data->received)
		rc = err_set(err, ERR_INTERNAL, -EINVAL,
			     "%" PRIu64 " rows came, %" PRIu64 " are held and %" PRIu64 " are bad",
			     data->received, held, bad);
	return rc;
}

static int compare_labels(const void *a, const void *b)
{
	return agree_order(AGREE_TEXT, a, b);
}

static int compare_ints(const void *a, const void *b)
{
	return agree_order(AGREE_INT, a, b);
}

/* Labels of the training rows with their counts; those of validation rows only have count 0. */
static int count_labels(const struct data_set *data, struct agree_block *part, struct err *err)
{
	const struct label_table *t = &data->label;
	uint64_t *count = calloc(t->n + 1, sizeof(*count));
	bool *seen = calloc(t->n + 1, sizeof(*seen));
	uint8_t *text;
	int rc = 0;

	part->label = malloc(t->n * sizeof(*part->label) + t->text_bytes + 1);
	if (!count || !seen || !part->label) {
		free(count);
		free(seen);
		return no_memory(err, "labels");
	}
	for (int s = ROW_TRAIN; s <= ROW_VALIDATION && !rc; s++)
		for (uint64_t i = 0; i < data->rows[s] && !rc; i++) {
			int32_t label = set_row(data, data->order[s][i])->label;

			if (!(i % SET_LOOK))
				rc = set_canceled(data, err);
			count[label] += s == ROW_TRAIN;
			seen[label] = true;
		}
	text = (uint8_t *)(part->label + t->n);
	for (uint32_t i = 0; i < t->n; i++) {
		struct agree_label *l = &part->label[part->n_labels];
		const uint8_t *from = label_text(t, i, &l->bytes);

		if (!seen[i])
			continue;
		if (l->bytes)
			memcpy(text, from, l->bytes);
		l->value = text;
		l->count = count[i];
		l->weight = NAN;
		text += l->bytes;
		part->n_labels++;
	}
	qsort(part->label, part->n_labels, sizeof(*part->label),
	      part->labels == AGREE_INT ? compare_ints : compare_labels);
	part->outputs = part->n_labels;
	free(count);
	free(seen);
	return rc;
}

/* Length of most target arrays, of equals the larger one. apply() names rows of another. */
static int vector_length(const struct data_set *data, uint32_t *length, struct err *err)
{
	struct label_table t = {0};
	uint64_t *count = NULL, best = 0;
	int rc = 0;

	for (int s = ROW_TRAIN; s <= ROW_VALIDATION && !rc; s++)
		for (uint64_t i = 0; i < data->rows[s] && !rc; i++) {
			uint32_t n = set_row(data, data->order[s][i])->y_count;
			int64_t k = label_find(&t, &n, sizeof(n));

			if (k < 0) {
				uint64_t *p = realloc(count, (t.n + 1) * sizeof(*p));

				if (p)
					count = p;
				k = p ? label_add(&t, &n, sizeof(n), n) : -ENOMEM;
				if (k < 0) {
					rc = no_memory(err, "lengths of arrays");
					break;
				}
				count[k] = 0;
			}
			count[k]++;
		}
	for (uint32_t i = 0; i < t.n && !rc; i++)
		if (count[i] > best || (count[i] == best && t.value[i].tag > *length)) {
			best = count[i];
			*length = t.value[i].tag;
		}
	free(count);
	label_table_free(&t);
	return rc;
}

static int fill_sums(const struct data_set *data, struct agree_block *part, struct err *err)
{
	uint32_t c = data->rows_shape.c;
	struct sums *sums = data->n_shapes ? data->entry[data->shape].sums : NULL;

	part->pixels = data->rows[ROW_TRAIN] * data->rows_shape.h * data->rows_shape.w;
	if (!c || c > AGREE_MAX_CHANNELS)
		return 0;
	part->sum = calloc(c, sizeof(double));
	part->sum2 = calloc(c, sizeof(double));
	if (!part->sum || !part->sum2)
		return no_memory(err, "sums");
	part->n_channels = c;
	if (sums)
		sums_value(sums, part->sum, part->sum2);
	return 0;
}

static int fill_part(const struct data_set *data, struct agree_block *part, struct err *err)
{
	bool any = false;
	int rc = 0;

	for (int s = 0; s < ROW_SETS; s++) {
		part->rows[s] = data->rows[s];
		part->bad[s] = data->bad.count[s];
		part->sent[s] = part->rows[s] + part->bad[s];
		any |= data->rows[s] > 0;
	}
	if (!any)
		return 0;
	part->h = data->rows_shape.h;
	part->w = data->rows_shape.w;
	part->c = data->rows_shape.c;
	part->dtype = data->dtype;
	part->labels = data->labels;
	part->outputs = 1;
	if (data->labels == AGREE_INT || data->labels == AGREE_TEXT || data->labels == AGREE_BOOL)
		rc = count_labels(data, part, err);
	else if (data->labels == AGREE_VECTOR)
		rc = vector_length(data, &part->outputs, err);
	return rc ? rc : fill_sums(data, part, err);
}

int data_collect(struct data_set *data, struct agree_block *part, struct err *err)
{
	int rc;

	memset(part, 0, sizeof(*part));
	if (data->phase != DATA_FEEDING || data->feeders)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       data->feeders ? "%u feeders are still open"
					     : "rows were counted "
					       "already",
			       data->feeders);
	if (data->aborted)
		return err_set(err, ERR_DATA, -ECANCELED, "a feed of rows did not come to its end");
	choose_shape(data);
	rc = settle_shapes(data, err);
	if (!rc)
		rc = order_all(data, err);
	bad_rows_sort(&data->bad);
	if (!rc)
		rc = set_canceled(data, err);
	if (!rc)
		rc = fill_part(data, part, err);
	if (rc) {
		data->phase = DATA_FAILED;
		agree_free(part);
		return rc;
	}
	data->phase = DATA_COLLECTED;
	return 0;
}
