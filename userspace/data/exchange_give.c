// SPDX-License-Identifier: MIT
/*
 * exchange_give.c: rows that come from another host. Nothing in a block is believed: lengths are
 * held against what is left, values are checked as those of a feed, and the hash is computed anew:
 * it tells whether the row belongs here at all.
 */
#include <endian.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "exchange.h"
#include "value.h"

struct incoming { /* a row in a block */
	uint32_t y_bytes, id_bytes;
	float weight;
	const uint8_t *y, *rest, *x;
};

static int bad_block(struct err *err, const char *what)
{
	return err_set(err, ERR_PROTOCOL, -EPROTO, "a block of rows from another host: %s", what);
}

static uint32_t get_u32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static uint64_t get_u64(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static int read_head(const uint8_t *p, size_t bytes, struct exchange_head *h, struct err *err)
{
	uint32_t kinds;

	if (bytes < EXCHANGE_HEAD)
		return bad_block(err, "it is too short");
	kinds = get_u32(p + 4);
	if (get_u32(p) != EXCHANGE_MAGIC)
		return bad_block(err, "wrong magic number");
	if ((kinds & 0xffff) != EXCHANGE_VERSION)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "a block of rows from another host: version %u, wanted %u",
			       kinds & 0xffff, EXCHANGE_VERSION);
	h->dtype = (uint8_t)(kinds >> 16);
	h->labels = (uint8_t)(kinds >> 24);
	h->shape = (struct backend_shape){get_u32(p + 8), get_u32(p + 12), get_u32(p + 16)};
	h->rows = get_u32(p + 20);
	h->bytes = get_u64(p + 24);
	if (h->bytes != bytes)
		return bad_block(err, "its length is not the one it states");
	if (!h->rows)
		return bad_block(err, "it has no rows");
	return 0;
}

static bool has_rows(const struct data_set *data)
{
	const struct exchange *e = data->exchange;

	if (e->counts.received || e->counts.sent)
		return true;
	for (uint32_t s = 0; s < e->old; s++)
		for (uint32_t i = 0; i < data->segment[s]->n; i++)
			if (data->segment[s]->row[i].set != ROW_DROPPED)
				return true;
	return false;
}

/* A set without rows becomes one of the block's rows; any other must have such rows. */
static int adopt(struct data_set *data, const struct exchange_head *h, struct err *err)
{
	struct backend_shape s = h->shape;
	bool labels = data->config.need_labels;
	uint64_t n;

	if (h->dtype >= BACKEND_DTYPE_COUNT || !s.h || !s.w || !s.c ||
	    __builtin_mul_overflow((uint64_t)s.h * s.w, (uint64_t)s.c, &n) || n > h->bytes ||
	    n * backend_dtype_bytes((enum backend_dtype)h->dtype) > h->bytes)
		return bad_block(err, "shape or type of its rows");
	if (h->labels > AGREE_FLOAT || labels != (h->labels != AGREE_NO_LABELS))
		return bad_block(err, "kind of its labels");
	if (has_rows(data)) {
		if (memcmp(&s, &data->rows_shape, sizeof(s)) || h->dtype != data->dtype ||
		    h->labels != data->labels)
			return bad_block(err, "its rows are of another shape, type or kind of "
					      "labels than those here");
		return 0;
	}
	if (set_shape(data, s, &data->shape, err))
		return -ENOMEM;
	if (data->shape == MAX_SHAPES)
		return bad_block(err, "its rows are of one of too many shapes");
	data->rows_shape = s;
	data->dtype = (enum backend_dtype)h->dtype;
	data->labels = h->labels;
	data->typed = data->labelled = true;
	return 0;
}

/* Takes the next row off a block. */
static int read_row(const struct data_set *data, const uint8_t **p, uint64_t *left,
		    struct incoming *in, struct err *err)
{
	uint64_t x_bytes = exchange_x_bytes(data), rest, bytes;

	if (*left < EXCHANGE_ROW)
		return bad_block(err, "it ends within a row");
	in->y_bytes = get_u32(*p);
	in->id_bytes = get_u32(*p + 4);
	memcpy(&in->weight, *p + 8, sizeof(in->weight));
	if (in->id_bytes > ROW_MAX_ID)
		return bad_block(err, "length of an id");
	if (!(in->weight >= 0 && in->weight <= FLT_MAX))
		return bad_block(err, "weight of a row");
	rest = in->id_bytes ? in->id_bytes : EXCHANGE_ORIGIN;
	bytes = (uint64_t)EXCHANGE_ROW + in->y_bytes + rest; /* x_bytes is below the block's */
	if (bytes > *left || x_bytes > *left - bytes)
		return bad_block(err, "it ends within a row");
	in->y = *p + EXCHANGE_ROW;
	in->rest = in->y + in->y_bytes;
	in->x = in->rest + rest;
	*p += bytes + x_bytes;
	*left -= bytes + x_bytes;
	return 0;
}

static bool label_fits(uint32_t labels, const struct incoming *in)
{
	switch (labels) {
	case AGREE_INT:
		return in->y_bytes == 8;
	case AGREE_BOOL:
		return in->y_bytes == 1 && *in->y <= 1;
	case AGREE_TEXT:
		return in->y_bytes <= LABEL_MAX_BYTES;
	case AGREE_FLOAT:
		return in->y_bytes == sizeof(float);
	case AGREE_VECTOR:
		return in->y_bytes && in->y_bytes % sizeof(float) == 0;
	default:
		return !in->y_bytes;
	}
}

/* Label or target; vector: the row's place for it. */
static int take_label(struct data_set *data, const struct incoming *in, struct row *row,
		      float *vector, struct err *err)
{
	switch (data->labels) {
	case AGREE_INT:
	case AGREE_BOOL:
	case AGREE_TEXT: {
		int32_t number;
		int rc = set_label(data, in->y, in->y_bytes, &number, err);

		row->label = number;
		return rc;
	}
	case AGREE_FLOAT:
		memcpy(&row->target, in->y, sizeof(row->target));
		return isfinite(row->target) ? 0 : bad_block(err, "a target is not a number");
	case AGREE_VECTOR:
		memcpy(vector, in->y, in->y_bytes);
		for (uint32_t i = 0; i < row->y_count; i++)
			if (!isfinite(vector[i]))
				return bad_block(err, "a target is not a number");
		return 0;
	default:
		row->label = 0;
		return 0;
	}
}

static int take_x(struct data_set *data, const struct incoming *in, void **place, uint64_t *where,
		  struct err *err)
{
	uint64_t bytes = exchange_x_bytes(data);
	char reason[BAD_REASON];
	int rc = store_place(data->store, &data->exchange->x, bytes, place, err);

	if (rc)
		return rc;
	memcpy(*place, in->x, bytes);
	if ((data->dtype == BACKEND_F32 || data->dtype == BACKEND_F64) &&
	    !value_finite(*place, data->dtype, shape_elements(data->rows_shape), reason))
		return bad_block(err, reason);
	store_keep(&data->exchange->x, bytes, where);
	return 0;
}

static int add_row(struct data_set *data, const struct incoming *in, struct err *err)
{
	struct exchange *e = data->exchange;
	bool vector = data->labels == AGREE_VECTOR;
	size_t vector_bytes = vector ? in->y_bytes : 0;
	size_t rest = in->id_bytes ? in->id_bytes : sizeof(struct row_origin);
	uint64_t where, y_hash[2];
	struct row *row;
	uint8_t *aux;
	void *x;
	int rc;

	if (!label_fits(data->labels, in))
		return bad_block(err, "length of a label");
	rc = take_x(data, in, &x, &where, err);
	if (!rc)
		rc = set_add_row(data, &e->rows, -1, 0, vector_bytes + rest, &row, err);
	if (rc)
		return rc;
	aux = (uint8_t *)row->aux;
	*row = (struct row){.aux = aux,
			    .where = where,
			    .weight = in->weight,
			    .y_count = (uint32_t)(vector_bytes / sizeof(float)),
			    .id_bytes = in->id_bytes,
			    .set = ROW_TRAIN,
			    .shape = data->shape,
			    .away = true};
	rc = take_label(data, in, row, (float *)aux, err);
	if (rc)
		return rc;
	if (in->id_bytes)
		memcpy(aux + vector_bytes, in->rest, in->id_bytes);
	else
		memcpy(aux + vector_bytes,
		       &(struct row_origin){get_u64(in->rest), (int32_t)get_u32(in->rest + 8),
					    get_u32(in->rest + 12)},
		       sizeof(struct row_origin));
	set_target_hash(data, row, y_hash);
	set_hash(x, exchange_x_bytes(data), y_hash, row->weight, row->hash);
	if (exchange_host(e, row->hash) != e->self)
		return bad_block(err, "a row that belongs to another host");
	if (set_split(data, row->hash))
		return bad_block(err, "a row that is one for validation");
	e->counts.received++;
	return 0;
}

static int give(struct data_set *data, const uint8_t *block, size_t bytes, struct err *err)
{
	const uint8_t *p = block + EXCHANGE_HEAD;
	struct exchange_head h = {0};
	struct incoming in = {0};
	uint64_t left = bytes;
	int rc = read_head(block, bytes, &h, err);

	if (!rc)
		rc = adopt(data, &h, err);
	if (rc)
		return rc;
	left -= EXCHANGE_HEAD;
	for (uint32_t i = 0; i < h.rows && !rc; i++) {
		rc = read_row(data, &p, &left, &in, err);
		if (!rc)
			rc = add_row(data, &in, err);
		if (!rc && i % 1024 == 1023)
			rc = set_canceled(data, err);
	}
	if (!rc && left)
		rc = bad_block(err, "it is longer than its rows");
	return rc;
}

int data_exchange_give(struct data_set *data, const void *block, size_t bytes, struct err *err)
{
	int rc;

	if (data->phase != DATA_EXCHANGING)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no exchange of rows is under way");
	rc = set_canceled(data, err);
	if (!rc && bytes)
		rc = give(data, block, bytes, err);
	if (rc)
		data->phase = DATA_FAILED;
	return rc;
}
