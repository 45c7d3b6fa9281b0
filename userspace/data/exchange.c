// SPDX-License-Identifier: MIT
/*
 * exchange.c: training rows change hosts. A row's host follows from the hash of its contents, which
 * is spread evenly; equal rows meet on one host and are told apart there.
 *
 * Rows go out in the order in which they were fed, so that a spill file is read once, forwards. The
 * rows that stay move to new chunks when those around them are gone, so that old chunks become
 * empty as others fill: a set needs no more room than the rows it holds, and a few chunks.
 */
#include "exchange.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void exchange_free(struct exchange *e)
{
	if (!e)
		return;
	free(e->cursor);
	free(e->live);
	free(e);
}

/* Equal rows have their common hash again: the reverse of what collect did to tell them apart. */
static int undo_apart(struct data_set *data, struct err *err)
{
	uint64_t last[2] = {0}, apart[2], nth = 0;
	int rc = 0;

	for (uint64_t i = 0; i < data->rows[ROW_TRAIN] && !rc; i++) {
		struct row *row = set_row(data, data->order[ROW_TRAIN][i]);

		if (!(i % SET_LOOK))
			rc = set_canceled(data, err);
		if (i) {
			set_hash_apart(last, nth + 1, apart);
			if (row->hash[0] == apart[0] && row->hash[1] == apart[1]) {
				memcpy(row->hash, last, sizeof(last));
				nth++;
				continue;
			}
		}
		memcpy(last, row->hash, sizeof(last));
		nth = 0;
	}
	return rc;
}

static uint64_t row_sum(const struct data_set *data, uint32_t index)
{
	const struct row *row = set_row(data, index);
	uint64_t seed = (row->hash[0] ^ (row->hash[1] << 32 | row->hash[1] >> 32)) + row->id_bytes;
	struct row_origin origin;

	if (row->id_bytes)
		return XXH3_64bits_withSeed(row->aux + row->y_count * sizeof(float), row->id_bytes,
					    seed);
	set_row_origin(data, index, &origin);
	return XXH3_64bits_withSeed(&origin, sizeof(origin), seed);
}

/* Of the checksums of all training rows; hashes are those of the contents. */
static int sum_rows(const struct data_set *data, uint64_t *sum, uint64_t *rows, struct err *err)
{
	int rc = 0;

	*sum = *rows = 0;
	for (uint32_t s = 0; s < data->n_segments && !rc; s++) {
		rc = set_canceled(data, err);
		for (uint32_t i = 0; i < data->segment[s]->n; i++) {
			if (data->segment[s]->row[i].set != ROW_TRAIN)
				continue;
			*sum += row_sum(data, s << SEGMENT_SHIFT | i);
			++*rows;
		}
	}
	return rc;
}

/* Counts the rows of every chunk; a chunk without any was never of use. */
static void count_live(const struct data_set *data, uint32_t *live)
{
	for (uint32_t s = 0; s < data->n_segments; s++)
		for (uint32_t i = 0; i < data->segment[s]->n; i++)
			if (data->segment[s]->row[i].set != ROW_DROPPED)
				live[store_chunk(data->segment[s]->row[i].where)]++;
}

int data_exchange_begin(struct data_set *data, uint32_t hosts, uint32_t self, struct err *err)
{
	struct exchange *e;
	uint64_t rows;
	int rc;

	if (data->phase != DATA_COLLECTED || !hosts || hosts > EXCHANGE_MAX_HOSTS || self >= hosts)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "rows cannot be exchanged now, or not as host %u of %u", self,
			       hosts);
	data->phase = DATA_FAILED;
	e = calloc(1, sizeof(*e));
	if (e) {
		e->hosts = hosts;
		e->self = self;
		e->old = data->n_segments;
		e->cursor = calloc(hosts, sizeof(*e->cursor));
		e->live = calloc(store_chunks(data->store) + 1, sizeof(*e->live));
	}
	if (!e || !e->cursor || !e->live) {
		exchange_free(e);
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	}
	data->exchange = e;
	rc = undo_apart(data, err);
	if (!rc)
		rc = sum_rows(data, &e->counts.sum_before, &rows, err);
	if (rc)
		return rc;
	count_live(data, e->live);
	free(data->order[ROW_TRAIN]);
	data->order[ROW_TRAIN] = NULL;
	store_uncharge(data->store, data->rows[ROW_TRAIN] * sizeof(uint32_t));
	data->rows[ROW_TRAIN] = 0; /* none that could be read */
	e->cursor[self].segment = e->old;
	data->phase = DATA_EXCHANGING;
	return 0;
}

static void leave_chunk(struct data_set *data, uint64_t where)
{
	uint32_t chunk = store_chunk(where);

	if (!--data->exchange->live[chunk])
		store_release(data->store, chunk);
}

/* Tells the disk of the rows of a segment, once. */
static void advise(struct data_set *data, uint32_t segment)
{
	struct exchange *e = data->exchange;
	uint64_t bytes = exchange_x_bytes(data);

	if (segment < e->advised || segment >= e->old || !store_spilled(data->store))
		return;
	e->advised = segment + 1;
	for (uint32_t i = 0; i < data->segment[segment]->n; i++)
		store_advise(data->store, data->segment[segment]->row[i].where, bytes);
}

/* Rows that stay, of the old segments that all hosts are past, go to new chunks. */
static int settle(struct data_set *data, struct err *err)
{
	struct exchange *e = data->exchange;
	uint64_t bytes = exchange_x_bytes(data);
	uint32_t past = e->old;
	int rc = 0;

	for (uint32_t k = 0; k < e->hosts; k++)
		if (e->cursor[k].segment < past)
			past = e->cursor[k].segment;
	if (e->hosts == 1)
		e->settled = past;
	for (; e->settled < past && !rc; e->settled++) {
		struct segment *segment = data->segment[e->settled];

		rc = set_canceled(data, err);
		for (uint32_t i = 0; i < segment->n && !rc; i++) {
			struct row *row = &segment->row[i];
			uint64_t from = row->where;
			void *place;

			if (row->set == ROW_DROPPED)
				continue;
			e->counts.kept += row->set == ROW_TRAIN;
			rc = store_place(data->store, &e->x, bytes, &place, err);
			if (!rc)
				rc = store_read(data->store, from, place, bytes, err);
			if (rc)
				break;
			store_keep(&e->x, bytes, &row->where);
			leave_chunk(data, from);
		}
	}
	return rc;
}

/* The label or target of a row, as it goes into a block. */
static const void *row_y(const struct data_set *data, const struct row *row, uint32_t *bytes)
{
	switch (data->labels) {
	case AGREE_INT:
	case AGREE_TEXT:
	case AGREE_BOOL:
		return label_text(&data->label, (uint32_t)row->label, bytes);
	case AGREE_FLOAT:
		*bytes = sizeof(row->target);
		return &row->target;
	case AGREE_VECTOR:
		*bytes = row->y_count * (uint32_t)sizeof(float);
		return row->aux;
	default:
		*bytes = 0;
		return NULL;
	}
}

static uint8_t *put(uint8_t *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
	return to + bytes;
}

static uint8_t *put_u32(uint8_t *to, uint32_t v)
{
	v = htole32(v);
	return put(to, &v, sizeof(v));
}

static uint8_t *put_u64(uint8_t *to, uint64_t v)
{
	v = htole64(v);
	return put(to, &v, sizeof(v));
}

static void put_head(const struct data_set *data, uint8_t *to, uint32_t rows, uint64_t bytes)
{
	const struct backend_shape *s = &data->rows_shape;

	to = put_u32(to, EXCHANGE_MAGIC);
	to = put_u32(to, EXCHANGE_VERSION | (uint32_t)data->dtype << 16 | data->labels << 24);
	to = put_u32(to, s->h);
	to = put_u32(to, s->w);
	to = put_u32(to, s->c);
	to = put_u32(to, rows);
	put_u64(to, bytes);
}

/* Writes a row at most `left` bytes long. *bytes 0: there is no room for it. */
static int put_row(struct data_set *data, uint32_t index, uint8_t *to, size_t left, size_t *bytes,
		   struct err *err)
{
	const struct row *row = set_row(data, index);
	uint64_t x_bytes = exchange_x_bytes(data);
	uint32_t y_bytes, rest = row->id_bytes ? row->id_bytes : EXCHANGE_ORIGIN, weight;
	const void *y = row_y(data, row, &y_bytes);
	uint64_t need = (uint64_t)EXCHANGE_ROW + y_bytes + rest + x_bytes;
	struct row_origin origin;

	*bytes = 0;
	if (need > left)
		return 0;
	*bytes = need;
	memcpy(&weight, &row->weight, sizeof(weight));
	to = put_u32(to, y_bytes);
	to = put_u32(to, row->id_bytes);
	to = put_u32(to, weight);
	to = put(to, y, y_bytes);
	if (row->id_bytes) {
		to = put(to, row->aux + row->y_count * sizeof(float), row->id_bytes);
	} else {
		set_row_origin(data, index, &origin);
		to = put_u64(to, origin.ordinal);
		to = put_u32(to, (uint32_t)origin.segindex);
		to = put_u32(to, origin.feeder);
	}
	return store_read(data->store, row->where, to, x_bytes, err);
}

/* Moves the host's cursor to its next row; false: there is none. */
static bool next_row(struct data_set *data, uint32_t host)
{
	struct exchange *e = data->exchange;
	uint32_t s = e->cursor[host].segment, i = e->cursor[host].row;

	while (s < e->old) {
		const struct segment *segment = data->segment[s];

		for (; i < segment->n; i++)
			if (segment->row[i].set == ROW_TRAIN &&
			    exchange_host(e, segment->row[i].hash) == host)
				break;
		if (i < segment->n)
			break;
		advise(data, ++s + 1);
		i = 0;
	}
	e->cursor[host].segment = s;
	e->cursor[host].row = i;
	return s < e->old;
}

static int take(struct data_set *data, uint32_t host, uint8_t *block, size_t size, size_t *bytes,
		struct err *err)
{
	struct exchange *e = data->exchange;
	size_t at = EXCHANGE_HEAD, n;
	uint32_t rows = 0;
	int rc = 0;

	while (!rc && next_row(data, host)) {
		uint32_t s = e->cursor[host].segment, i = e->cursor[host].row;
		struct row *row = &data->segment[s]->row[i];

		rc = put_row(data, s << SEGMENT_SHIFT | i, block + at, size > at ? size - at : 0,
			     &n, err);
		if (rc || !n)
			break;
		at += n;
		rows++;
		row->set = ROW_DROPPED;
		leave_chunk(data, row->where);
		rc = rows % 1024 ? 0 : set_canceled(data, err);
	}
	if (!rc && !rows && e->cursor[host].segment < e->old)
		rc = err_set(err, ERR_LIMIT, -E2BIG,
			     "one row is larger than a block of %zu bytes for an exchange", size);
	if (rc)
		return rc;
	if (rows)
		put_head(data, block, rows, at);
	e->counts.sent += rows;
	*bytes = rows ? at : 0;
	return settle(data, err);
}

int data_exchange_take(struct data_set *data, uint32_t host, void *block, size_t size,
		       size_t *bytes, struct err *err)
{
	int rc;

	if (data->phase != DATA_EXCHANGING || host >= data->exchange->hosts ||
	    host == data->exchange->self)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "no exchange of rows with host %u is under way", host);
	rc = set_canceled(data, err);
	if (!rc)
		rc = take(data, host, block, size, bytes, err);
	if (rc)
		data->phase = DATA_FAILED;
	return rc;
}

int data_exchange_end(struct data_set *data, struct data_exchange_counts *counts, struct err *err)
{
	struct exchange *e = data->exchange;
	uint64_t rows = 0, left = 0;
	int rc;

	if (data->phase != DATA_EXCHANGING)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no exchange of rows is under way");
	data->phase = DATA_FAILED;
	for (uint32_t k = 0; k < e->hosts; k++)
		left += k != e->self && next_row(data, k);
	if (left)
		return err_set(err, ERR_INTERNAL, -EINVAL,
			       "an exchange of rows ends while %" PRIu64 " hosts want more", left);
	rc = settle(data, err);
	store_writer_close(data->store, &e->x);
	if (!rc)
		rc = sum_rows(data, &e->counts.sum_after, &rows, err);
	if (!rc && e->hosts == 1)
		e->counts.kept = rows;
	if (!rc && rows != e->counts.kept + e->counts.received)
		rc = err_set(err, ERR_INTERNAL, -EINVAL,
			     "%" PRIu64 " rows stayed, %" PRIu64 " came, %" PRIu64 " are here",
			     e->counts.kept, e->counts.received, rows);
	if (!rc)
		rc = set_order_rows(data, ROW_TRAIN, ROW_TRAIN, err);
	if (rc)
		return rc;
	*counts = e->counts;
	exchange_free(e);
	data->exchange = NULL;
	data->phase = DATA_COLLECTED;
	return 0;
}
