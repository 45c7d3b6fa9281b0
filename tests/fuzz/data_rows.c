// SPDX-License-Identifier: MIT
/*
 * data_rows.c: any row values through a whole data set: feed, collect, apply, read. The first bytes
 * choose the types; then rows, each either 2 bytes of length and the raw value, or a head made of
 * 12 bytes and what it promises. There is no decoder: an image ends the feed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "userspace/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(struct data_set *set, enum row_set which)
{
	struct data_reader *reader;
	struct backend_batch batch;
	struct err err;
	volatile uint8_t sink = 0;
	uint64_t bytes = (uint64_t)data_shape(set).h * data_shape(set).w * data_shape(set).c *
			 backend_dtype_bytes(data_dtype(set));

	if (data_reader_open(set, which, 2, true, &reader, &err))
		return;
	data_reader_epoch(reader, 1, 2);
	for (uint64_t i = 0; i < data_rows(set, which); i++) {
		uint32_t n;

		if (data_reader_batch(reader, i, 1, &batch, &err))
			abort();
		for (uint64_t k = 0; k < bytes; k++)
			sink ^= ((const uint8_t *)batch.x[0])[k];
		data_reader_id(reader, i, &n);
	}
	data_reader_close(reader);
}

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* One value at *at into buffer; its length. Values that add up are rare by chance. */
static size_t next_value(const uint8_t *data, size_t size, size_t *at, uint8_t *buffer)
{
	const uint8_t *p = data + *at;
	struct row_head h = {0};
	size_t n, total;

	if (p[0] & 0x80) {
		n = least((size_t)(p[0] & 0xf) << 8 | p[1], size - *at - 2);
		memcpy(buffer, p + 2, n);
		*at += n + 2;
		return n;
	}
	h.id_bytes = p[0] & 0xf;
	h.y_bytes = p[1];
	h.x_bytes = p[2];
	h.flags = p[3] & (p[3] >> 4) & 0xf;
	h.x_dims = p[4] % (ROW_MAX_DIMS + 1);
	for (int i = 0; i < h.x_dims; i++)
		h.x_dim[i] = p[5 + i];
	h.weight = p[11] == 255 ? (double)NAN : p[11] - 2.0;
	row_head_encode(&h, buffer);
	*at += 12;
	total = h.id_bytes + h.y_bytes + (size_t)h.x_bytes;
	n = least(total, size - *at);
	memset(buffer + ROW_HEAD, 0, total);
	memcpy(buffer + ROW_HEAD, data + *at, n);
	*at += n;
	return ROW_HEAD + total;
}

static int feed(struct data_set *set, const uint8_t *data, size_t size)
{
	struct data_feed types = {.set = (enum row_set)(data[0] % ROW_SETS),
				  .x_type = (enum row_type)(data[1] % ROW_TYPE_COUNT),
				  .y_type = (enum row_type)(data[2] % ROW_TYPE_COUNT),
				  .x_array = data[3] & 1,
				  .y_array = data[3] & 2,
				  .has_y = data[3] & 4,
				  .has_id = true};
	struct data_feeder *feeder;
	struct data_counts counts;
	struct err err;
	size_t at = 8;

	if (data_feeder_open(set, &types, &feeder, &err))
		return -1;
	while (at + 12 <= size) {
		uint8_t value[5000];
		size_t n = next_value(data, size, &at, value);
		void *place;

		if (data_feeder_row(feeder, n, &place, &err)) {
			data_feeder_abort(feeder);
			return -1;
		}
		memcpy(place, value, n);
		if (data_feeder_row_end(feeder, &err)) {
			data_feeder_abort(feeder);
			return -1;
		}
	}
	return data_feeder_close(feeder, &counts, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct data_config config = {.memory = 1 << 20, .max_bad_rows = 1000};
	struct agree_block part, agreed;
	struct data_set *set;
	struct err err;

	if (size < 8)
		return 0;
	config.shape = (struct backend_shape){data[4] % 4, data[5] % 4, data[6] % 4};
	config.need_labels = data[7] & 1;
	config.regression = data[7] & 2;
	config.validation_fraction = data[7] & 4 ? .5 : 0;
	if (data_create(&config, &set, &err))
		return 0;
	if (!feed(set, data, size) && !data_collect(set, &part, &err)) {
		part.replicas = 1;
		if (!agree_merge(&part, 1, &agreed, &err)) {
			if (!data_apply(set, &agreed, agreed.outputs ? agreed.outputs : 1, &err))
				for (int s = 0; s < ROW_SETS; s++)
					read_all(set, (enum row_set)s);
			agree_free(&agreed);
		}
		agree_free(&part);
	}
	data_free(set);
	return 0;
}
