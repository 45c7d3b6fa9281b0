// SPDX-License-Identifier: MIT
/*
 * feeder.c: rows of one ring. A value is placed where its x will stay (store.h); images go to the
 * decoders and come back in any order. What all feeders share is touched once per SEGMENT_ROWS rows
 * or for a new label, shape or bad row.
 */
#include "feeder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int feeder_bad(struct data_feeder *f, const struct pending *p, const char *reason, bool crash,
	       struct err *err)
{
	char id[SET_NAME];
	int rc;

	set_id_text(id, p->id, p->id_bytes, f->feed.segindex, f->feed.feeder, p->ordinal);
	f->counts.bad++;
	pthread_mutex_lock(&f->data->lock);
	rc = set_add_bad(f->data, f->feed.set, id, reason, crash, err);
	pthread_mutex_unlock(&f->data->lock);
	return rc;
}

/* Number of a class label in the data set's table, through the feeder's own. */
static int label_number(struct data_feeder *f, const struct target *t, int32_t *number,
			struct err *err)
{
	int64_t local = label_find(&f->label, t->label, t->label_bytes);
	int rc;

	if (local >= 0) {
		*number = (int32_t)f->label.value[local].tag;
		return 0;
	}
	rc = set_label(f->data, t->label, t->label_bytes, number, err);
	if (rc)
		return rc;
	if (label_add(&f->label, t->label, t->label_bytes, (uint32_t)*number) < 0)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for labels");
	return 0;
}

int feeder_shape(struct data_feeder *f, struct backend_shape shape, uint32_t *index,
		 struct err *err)
{
	int rc;

	if (f->last_known && !memcmp(&shape, &f->last, sizeof(shape))) {
		*index = f->last_index;
		return 0;
	}
	pthread_mutex_lock(&f->data->lock);
	rc = set_shape(f->data, shape, index, err);
	pthread_mutex_unlock(&f->data->lock);
	if (rc || *index == MAX_SHAPES)
		return rc;
	if (*index >= f->shapes) {
		uint32_t n = *index + 1;
		struct feeder_shape *s = realloc(f->shape, n * sizeof(*s));

		if (!s)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for shapes");
		memset(s + f->shapes, 0, (n - f->shapes) * sizeof(*s));
		f->shape = s;
		f->shapes = n;
	}
	f->last = shape;
	f->last_index = *index;
	f->last_known = true;
	return 0;
}

/* Room for a row, and for what it has at aux. */
static int add_row(struct data_feeder *f, const struct pending *p, struct row **out,
		   struct err *err)
{
	uint32_t rest = p->id_bytes ? p->id_bytes : (uint32_t)sizeof(p->ordinal);
	size_t vector = p->y_count * sizeof(float);
	uint8_t *aux;
	int rc = set_add_row(f->data, &f->rows, f->feed.segindex, f->feed.feeder, vector + rest,
			     out, err);

	if (rc)
		return rc;
	aux = (uint8_t *)(*out)->aux;
	if (p->y_count)
		memcpy(aux, p->vector, vector);
	memcpy(aux + vector, p->id_bytes ? (const void *)p->id : &p->ordinal, rest);
	return 0;
}

/*
 * Rows per shape go to the data set. Every row that is not of the most frequent size will be bad,
 * and that number never falls: past max_bad_rows there is no need to go on.
 */
static int flush(struct data_feeder *f, struct err *err)
{
	struct data_set *data = f->data;
	uint64_t total = 0, most = 0;
	struct backend_shape first = {0}, other = {0};

	pthread_mutex_lock(&data->lock);
	for (uint32_t i = 0; i < f->shapes; i++) {
		data->entry[i].rows += f->shape[i].unflushed;
		f->shape[i].unflushed = 0;
	}
	for (uint32_t i = 0; i < data->n_shapes; i++) {
		uint64_t rows = 0; /* of this height and width: channels may be converted */

		total += data->entry[i].rows;
		for (uint32_t k = 0; k < data->n_shapes && data->n_shapes <= 16; k++)
			if (data->entry[k].shape.h == data->entry[i].shape.h &&
			    data->entry[k].shape.w == data->entry[i].shape.w)
				rows += data->entry[k].rows;
		if (data->n_shapes > 16) /* at most the double, grey and colour */
			rows = 2 * data->entry[i].rows;
		if (rows > most) {
			most = rows;
			first = data->entry[i].shape;
		}
	}
	for (uint32_t i = 0; i < data->n_shapes; i++)
		if (data->entry[i].shape.h != first.h || data->entry[i].shape.w != first.w)
			other = data->entry[i].shape;
	pthread_mutex_unlock(&data->lock);
	f->unflushed = 0;
	if (total < most || total - most <= data->config.max_bad_rows)
		return 0;
	err_set(err, ERR_DATA, -EBADMSG,
		"images are of different sizes (%ux%ux%u, %ux%ux%u): more than max_bad_rows = "
		"%" PRIu64 " are not of the most frequent one",
		first.h, first.w, first.c, other.h, other.w, other.c, data->config.max_bad_rows);
	err_hint(err, "Bring all images to one size before training.");
	return -EBADMSG;
}

int feeder_keep(struct data_feeder *f, const struct pending *p, const void *x, uint64_t where,
		uint32_t shape, bool image, struct err *err)
{
	struct data_set *data = f->data;
	struct feeder_shape *s = &f->shape[shape];
	uint64_t bytes = shape_elements(f->last) * backend_dtype_bytes(data->dtype);
	struct row *row;
	int rc = add_row(f, p, &row, err);

	if (rc)
		return rc;
	if (f->feed.set == ROW_PREDICT) { /* the order of feeding */
		row->hash[0] = (uint64_t)(uint32_t)f->feed.segindex << 32 | f->feed.feeder;
		row->hash[1] = p->ordinal;
	} else {
		set_hash(x, bytes, p->y_hash, p->weight, row->hash);
	}
	row->where = where;
	row->weight = p->weight;
	row->y_count = p->y_count;
	row->id_bytes = p->id_bytes;
	row->image = image;
	row->away = false;
	row->shape = shape;
	row->set = f->feed.set;
	row->split = f->feed.set == ROW_TRAIN && set_split(data, row->hash);
	if (row->split)
		row->set = ROW_VALIDATION;
	if (f->labels == AGREE_FLOAT)
		row->target = p->target;
	else
		row->label = p->label;
	if (row->set == ROW_TRAIN) {
		rc = set_sum(data, &s->sums, f->last, x, err);
		if (rc)
			return rc;
	}
	f->counts.held++;
	s->unflushed++;
	return ++f->unflushed >= 256 ? flush(f, err) : 0;
}

/* What is to be remembered of a value besides x. *good false: the row is bad. */
static int read_pending(struct data_feeder *f, const struct value *v, struct pending *p, bool *good,
			char reason[BAD_REASON], struct err *err)
{
	XXH128_hash_t h;
	const void *bytes;
	size_t n;
	int rc;

	p->ordinal = f->ordinal++;
	p->id = v->id;
	p->id_bytes = v->head.id_bytes;
	*good = value_usable(v, f->labels != AGREE_NO_LABELS, reason);
	if (!*good)
		return 0;
	p->weight = (float)v->head.weight;
	f->target.labels = f->labels;
	rc = target_read(&f->feed, v, &f->target, good, reason);
	if (rc)
		return err_set(err, ERR_LIMIT, rc, "out of memory for a target");
	if (!*good) {
		char id[SET_NAME];

		if (!f->target.fraction)
			return 0;
		set_id_text(id, p->id, p->id_bytes, f->feed.segindex, f->feed.feeder, p->ordinal);
		err_set(err, ERR_DATA, -EINVAL, "row %.80s: %.200s", id, reason);
		err_hint(err, "For a regression choose loss mse or mae.");
		return -EINVAL;
	}
	bytes = target_bytes(&f->target, &n);
	h = XXH3_128bits(bytes, n);
	p->y_hash[0] = h.low64;
	p->y_hash[1] = h.high64;
	p->target = f->target.value;
	p->vector = f->target.vector;
	p->y_count = f->target.count;
	if (f->labels == AGREE_INT || f->labels == AGREE_TEXT || f->labels == AGREE_BOOL)
		return label_number(f, &f->target, &p->label, err);
	return 0;
}

/* Pixels or an array that are there already. */
static int keep_value(struct data_feeder *f, const struct value *v, const struct pending *p,
		      struct err *err)
{
	struct data_set *data = f->data;
	size_t element = backend_dtype_bytes(data->dtype);
	struct backend_shape shape;
	char reason[BAD_REASON];
	uint32_t index;
	uint64_t where;
	int rc;

	if (!value_shape(v, data->config.shape, element, &shape, reason))
		return feeder_bad(f, p, reason, false, err);
	if ((data->dtype == BACKEND_F32 || data->dtype == BACKEND_F64) &&
	    !value_finite(v->x, data->dtype, shape_elements(shape), reason))
		return feeder_bad(f, p, reason, false, err);
	rc = feeder_shape(f, shape, &index, err);
	if (rc)
		return rc;
	if (index == MAX_SHAPES)
		return feeder_bad(f, p, "image is one of too many sizes", false, err);
	store_keep(&f->raw, v->head.x_bytes, &where);
	return feeder_keep(f, p, v->x, where, index, false, err);
}

/* bytea: an image, or pixels. */
static int keep_bytes(struct data_feeder *f, const struct value *v, const struct pending *p,
		      struct err *err)
{
	uint64_t raw = shape_elements(f->data->config.shape);
	bool certain;
	enum image_format format = image_sniff(v->x, v->head.x_bytes, &certain);
	char reason[BAD_REASON];

	if (format == IMAGE_JPEG || format == IMAGE_PNG ||
	    (format == IMAGE_TEST && decoder_test_images(f->data->config.decoder)))
		return feeder_image(f, v, p, err);
	if (format != IMAGE_UNKNOWN && format != IMAGE_TEST &&
	    (certain || raw != v->head.x_bytes)) {
		snprintf(reason, sizeof(reason),
			 "image is %s: only JPEG, PNG and raw pixels are read",
			 image_format_name(format));
		return feeder_bad(f, p, reason, false, err);
	}
	return keep_value(f, v, p, err);
}

int data_feeder_row(struct data_feeder *f, uint64_t bytes, void **place, struct err *err)
{
	int rc;

	if (bytes < ROW_HEAD)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "row of %" PRIu64 " bytes", bytes);
	rc = store_place(f->data->store, &f->raw, bytes, &f->place, err);
	f->bytes = rc ? 0 : bytes;
	if (!rc)
		*place = f->place;
	return rc;
}

static int end_row(struct data_feeder *f, struct err *err)
{
	char reason[BAD_REASON];
	struct pending p = {0};
	struct value v;
	bool good;
	int rc;

	if (!f->bytes)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no row was begun");
	rc = value_parse(&f->feed, f->place, f->bytes, &v, err);
	if (rc)
		return rc;
	f->counts.rows++;
	f->counts.bytes += f->bytes;
	f->bytes = 0;
	rc = read_pending(f, &v, &p, &good, reason, err);
	if (rc)
		return rc;
	if (!good)
		return feeder_bad(f, &p, reason, false, err);
	if (f->feed.x_type == ROW_BYTES)
		return keep_bytes(f, &v, &p, err);
	return keep_value(f, &v, &p, err);
}

int data_feeder_row_end(struct data_feeder *f, struct err *err)
{
	int rc = end_row(f, err);

	f->failed |= rc != 0;
	return rc;
}

/* The first feeder decides what all must be. */
static int agree_types(struct data_set *data, enum backend_dtype dtype, uint32_t labels,
		       struct err *err)
{
	if (data->phase != DATA_FEEDING)
		return err_set(err, ERR_INTERNAL, -EINVAL, "rows come after they were counted");
	if (data->typed && data->dtype != dtype)
		return err_set(err, ERR_DATA, -EINVAL,
			       "images of the training and the validation rows are of different "
			       "types");
	if (data->labelled && labels != AGREE_NO_LABELS && data->labels != labels)
		return err_set(err, ERR_DATA, -EINVAL,
			       "labels of the training and the validation rows are of different "
			       "kinds");
	if (!data->typed) { /* written once: open feeders read it without the lock */
		data->typed = true;
		data->dtype = dtype;
	}
	if (!data->labelled && labels != AGREE_NO_LABELS) {
		data->labelled = true;
		data->labels = labels;
	}
	data->feeders++;
	return 0;
}

int data_feeder_open(struct data_set *data, const struct data_feed *feed, struct data_feeder **out,
		     struct err *err)
{
	enum backend_dtype dtype = BACKEND_U8;
	uint32_t labels = AGREE_NO_LABELS;
	struct data_feeder *f;
	int rc;

	if ((unsigned int)feed->set >= ROW_SETS)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "feed of an unknown set");
	rc = value_dtype(feed, &dtype, err);
	if (!rc && data->config.need_labels && feed->set != ROW_PREDICT)
		rc = value_labels(feed, data->config.regression, &labels, err);
	if (rc)
		return rc;
	f = calloc(1, sizeof(*f));
	if (!f)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	f->data = data;
	f->feed = *feed;
	f->labels = labels;
	pthread_mutex_lock(&data->lock);
	rc = agree_types(data, dtype, labels, err);
	pthread_mutex_unlock(&data->lock);
	if (rc) {
		free(f);
		return rc;
	}
	*out = f;
	return 0;
}

/* Sums and counts to the data set; the feeder is gone after it. */
static void leave(struct data_feeder *f, bool aborted)
{
	struct data_set *data = f->data;

	if (f->queue.last || f->queue.in_flight)
		decoder_close(data->config.decoder, &f->queue);
	store_writer_close(data->store, &f->raw);
	store_writer_close(data->store, &f->pixels);
	pthread_mutex_lock(&data->lock);
	for (uint32_t i = 0; i < f->shapes; i++) {
		struct sums **to = &data->entry[i].sums, *from = f->shape[i].sums;

		data->entry[i].rows += f->shape[i].unflushed;
		if (!from)
			continue;
		if (*to) {
			sums_merge(*to, from);
			store_uncharge(data->store,
				       sums_bytes(data->dtype, data->entry[i].shape.c));
			sums_free(from);
		} else {
			*to = from;
		}
	}
	data->received += f->counts.rows;
	data->feeders--;
	data->aborted += aborted;
	pthread_mutex_unlock(&data->lock);
	label_table_free(&f->label);
	free(f->target.vector);
	free(f->shape);
	free(f);
}

int data_feeder_close(struct data_feeder *f, struct data_counts *counts, struct err *err)
{
	int rc = f->failed ? err_set(err, ERR_INTERNAL, -ECANCELED, "the feed has failed before")
			   : feeder_drain(f, err);

	if (!rc)
		rc = flush(f, err);
	if (!rc)
		*counts = f->counts;
	leave(f, rc != 0);
	return rc;
}

void data_feeder_abort(struct data_feeder *f)
{
	if (f)
		leave(f, true);
}
