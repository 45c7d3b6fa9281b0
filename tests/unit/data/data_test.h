/* SPDX-License-Identifier: MIT */
/* data_test.h: what the tests of userspace/data share: files, images, row values, whole feeds. */
#ifndef DATA_TEST_H
#define DATA_TEST_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stddef.h>
#include <jpeglib.h>
#include <png.h>

#include "../../tap.h"
#include "../../../userspace/data/data.h"
#include "../../../userspace/data/decoder.h"

struct bytes {
	uint8_t *data;
	size_t n;
};

static inline struct bytes file_read(const char *folder, const char *name)
{
	char path[512];
	struct bytes b = {NULL, 0};
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "rb");
	if (!f)
		BAIL("%s: %s", path, strerror(errno));
	b.data = malloc(1 << 20);
	b.n = fread(b.data, 1, 1 << 20, f);
	fclose(f);
	return b;
}

#define GOLDEN "tests/golden/data"

/* A small reproducible generator (xorshift64*): the tests' own, so that nothing is shared. */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 0x2545F4914F6CDD1Dull;
}

/* ---- row values ---- */

struct test_row {
	const char *id; /* NULL: none */
	const void *y, *x;
	uint32_t y_bytes;
	uint64_t x_bytes;
	uint8_t flags, x_dims, y_dims;
	uint32_t dim[ROW_MAX_DIMS];
	double weight;
};

static inline struct bytes row_value(const struct test_row *r)
{
	struct row_head h = {
		.id_bytes = r->id ? (uint32_t)strlen(r->id) : 0,
		.y_bytes = r->y_bytes,
		.x_bytes = r->x_bytes,
		.flags = r->flags,
		.x_dims = r->x_dims,
		.y_dims = r->y_dims,
		.weight = r->weight,
	};
	struct bytes b;
	uint8_t *p;

	memcpy(h.x_dim, r->dim, sizeof(h.x_dim));
	b.n = ROW_HEAD + h.id_bytes + h.y_bytes + h.x_bytes;
	b.data = p = malloc(b.n);
	row_head_encode(&h, p);
	p += ROW_HEAD;
	if (h.id_bytes)
		memcpy(p, r->id, h.id_bytes);
	p += h.id_bytes;
	if (h.y_bytes)
		memcpy(p, r->y, h.y_bytes);
	p += h.y_bytes;
	if (h.x_bytes)
		memcpy(p, r->x, h.x_bytes);
	return b;
}

static inline int feed_value(struct data_feeder *f, const void *value, size_t n, struct err *err)
{
	void *place;
	int rc = data_feeder_row(f, n, &place, err);

	if (rc)
		return rc;
	memcpy(place, value, n);
	return data_feeder_row_end(f, err);
}

static inline int feed_row(struct data_feeder *f, const struct test_row *r, struct err *err)
{
	struct bytes b = row_value(r);
	int rc = feed_value(f, b.data, b.n, err);

	free(b.data);
	return rc;
}

/* bytea x, int label, weight 1 */
static inline int feed_bytes(struct data_feeder *f, const char *id, int32_t label, const void *x,
			     size_t n, struct err *err)
{
	struct test_row r = {
		.id = id, .y = &label, .y_bytes = 4, .x = x, .x_bytes = n, .weight = 1};

	return feed_row(f, &r, err);
}

static inline struct data_feed feed_of_bytes(enum row_set set)
{
	return (struct data_feed){.set = set,
				  .x_type = ROW_BYTES,
				  .y_type = ROW_I32,
				  .has_y = set != ROW_PREDICT,
				  .has_id = true};
}

/* What one daemon's part becomes when it is alone: labels sorted by collect, weights 1. */
static inline struct agree_block agreed_alone(const struct agree_block *part)
{
	struct agree_block a = *part;

	for (uint32_t i = 0; i < a.n_labels; i++)
		a.label[i].weight = 1;
	a.agreed = 1;
	return a;
}

/* ---- whole sets ---- */

static inline struct data_config config_of(struct data_decoder *decoder, uint32_t h, uint32_t w,
					   uint32_t c)
{
	return (struct data_config){.decoder = decoder,
				    .memory = 64 << 20,
				    .shape = {h, w, c},
				    .max_bad_rows = 1000,
				    .need_labels = true};
}

static inline struct data_set *create_set(const struct data_config *config)
{
	struct data_set *data;
	struct err err;

	if (data_create(config, &data, &err))
		BAIL("%s", err.message);
	return data;
}

static inline struct data_feeder *open_feed(struct data_set *data, const struct data_feed *feed)
{
	struct data_feeder *f;
	struct err err;

	if (data_feeder_open(data, feed, &f, &err))
		BAIL("%s", err.message);
	return f;
}

/* close, collect, apply; BAILs on an error. */
static inline struct agree_block finish(struct data_set *data, struct data_feeder *f,
					uint32_t outputs)
{
	struct agree_block part, agreed;
	struct data_counts counts;
	struct err err;

	if (data_feeder_close(f, &counts, &err) || data_collect(data, &part, &err))
		BAIL("%s", err.message);
	agreed = agreed_alone(&part);
	if (data_apply(data, &agreed, outputs, &err))
		BAIL("%s", err.message);
	return part;
}

/* collect, agree as one daemon, apply */
static inline int apply(struct data_set *data, uint32_t outputs, struct agree_block *agreed,
			struct err *err)
{
	struct agree_block part;
	int rc = data_collect(data, &part, err);

	if (rc)
		BAIL("%s", err->message);
	part.replicas = 1;
	rc = agree_merge(&part, 1, agreed, err);
	agree_free(&part);
	if (rc)
		return rc;
	return data_apply(data, agreed, outputs, err);
}

/* ---- images ---- */

struct jpeg_spec {
	int w, h, components;
	J_COLOR_SPACE in, file;
	bool progressive;
	int quality;
	int n_scans; /* 0: the library's script */
	const jpeg_scan_info *scans;
	bool no_adobe; /* CMYK without Adobe's marker */
};

static inline struct bytes make_jpeg(const struct jpeg_spec *s, const uint8_t *pixels)
{
	struct jpeg_compress_struct c;
	struct jpeg_error_mgr e;
	unsigned char *out = NULL;
	unsigned long n = 0;

	c.err = jpeg_std_error(&e);
	jpeg_create_compress(&c);
	jpeg_mem_dest(&c, &out, &n);
	c.image_width = (JDIMENSION)s->w;
	c.image_height = (JDIMENSION)s->h;
	c.input_components = s->components;
	c.in_color_space = s->in;
	jpeg_set_defaults(&c);
	jpeg_set_colorspace(&c, s->file);
	if (s->no_adobe)
		c.write_Adobe_marker = FALSE;
	jpeg_set_quality(&c, s->quality, TRUE);
	if (s->progressive)
		jpeg_simple_progression(&c);
	if (s->n_scans) {
		c.num_scans = s->n_scans;
		c.scan_info = s->scans;
	}
	jpeg_start_compress(&c, TRUE);
	while (c.next_scanline < c.image_height) {
		JSAMPROW row = (JSAMPROW)(pixels +
					  (size_t)c.next_scanline * (size_t)(s->w * s->components));

		jpeg_write_scanlines(&c, &row, 1);
	}
	jpeg_finish_compress(&c);
	jpeg_destroy_compress(&c);
	return (struct bytes){out, n};
}

static inline void png_sink(png_structp png, png_bytep data, size_t n)
{
	struct bytes *b = png_get_io_ptr(png);

	b->data = realloc(b->data, b->n + n);
	memcpy(b->data + b->n, data, n);
	b->n += n;
}

/* type: PNG_COLOR_TYPE_GRAY or _RGB, 8 bits */
static inline struct bytes make_png(int w, int h, int type, bool interlaced, const uint8_t *pixels)
{
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	size_t stride = (size_t)w * (type == PNG_COLOR_TYPE_RGB ? 3 : 1);
	int passes;
	struct bytes b = {NULL, 0};

	png_set_write_fn(png, &b, png_sink, NULL);
	png_set_IHDR(png, info, (png_uint_32)w, (png_uint_32)h, 8, type,
		     interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, 0, 0);
	png_write_info(png, info);
	passes = png_set_interlace_handling(png);
	for (int p = 0; p < passes; p++)
		for (int y = 0; y < h; y++)
			png_write_row(png, pixels + (size_t)y * stride);
	png_write_end(png, info);
	png_destroy_write_struct(&png, &info);
	return b;
}

#endif
