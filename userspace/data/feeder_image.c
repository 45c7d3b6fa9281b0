// SPDX-License-Identifier: MIT
/* feeder_image.c: the images of a feeder on their way to the decoders and back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feeder.h"

struct image_row {
	struct decode_job job; /* first: the decoder frees it as a job */
	struct pending row;
	float data[]; /* target, then id */
};

/* Decoded pixels to the store. */
static int keep_pixels(struct data_feeder *f, struct image_row *image, struct err *err)
{
	struct data_set *data = f->data;
	const struct image_result *r = &image->job.result;
	uint64_t where, bytes = (uint64_t)r->h * r->w * r->c;
	uint32_t index;
	void *place;
	int rc = feeder_shape(f, (struct backend_shape){r->h, r->w, r->c}, &index, err);

	if (rc)
		return rc;
	if (index == MAX_SHAPES)
		return feeder_bad(f, &image->row, "image is one of too many sizes", false, err);
	rc = store_place(data->store, &f->pixels, bytes, &place, err);
	if (!rc)
		rc = decoder_pixels(data->config.decoder, &image->job, place, err);
	if (rc)
		return rc;
	store_keep(&f->pixels, bytes, &where);
	return feeder_keep(f, &image->row, place, where, index, true, err);
}

/* An image that came back: stored, bad, or sent again to a large slot. */
static int take(struct data_feeder *f, struct image_row *image, struct err *err)
{
	struct data_decoder *decoder = f->data->config.decoder;
	char reason[BAD_REASON], clean[IMAGE_REASON];
	int rc;

	switch (image->job.result.code) {
	case IMAGE_OK:
		rc = keep_pixels(f, image, err);
		break;
	case IMAGE_TOO_LARGE:
		while ((rc = decoder_again(decoder, &f->queue, &image->job, err)) == -EAGAIN) {
			rc = decoder_wait(decoder, &f->queue, DECODE_LARGE, err);
			if (rc)
				break;
		}
		if (!rc)
			return 0;
		break;
	default:
		utf8_clean(clean, sizeof(clean), image->job.result.reason,
			   strlen(image->job.result.reason));
		snprintf(reason, sizeof(reason), "image %s", clean);
		rc = feeder_bad(f, &image->row, reason, image->job.crash, err);
		break;
	}
	decoder_release(decoder, &image->job);
	free(image);
	return rc;
}

static int take_all(struct data_feeder *f, struct err *err)
{
	struct decode_job *job;
	int rc = 0;

	while (!rc && (job = decoder_take(f->data->config.decoder, &f->queue)))
		rc = take(f, (struct image_row *)job, err);
	return rc;
}

static struct image_row *copy_row(const struct pending *p)
{
	size_t vector = p->y_count * sizeof(float);
	struct image_row *image = malloc(sizeof(*image) + vector + p->id_bytes);

	if (!image)
		return NULL;
	memset(&image->job, 0, sizeof(image->job));
	image->row = *p;
	if (vector)
		memcpy(image->data, p->vector, vector);
	image->row.vector = image->data;
	image->row.id = (const uint8_t *)image->data + vector;
	if (p->id_bytes)
		memcpy((uint8_t *)image->data + vector, p->id, p->id_bytes);
	return image;
}

int feeder_image(struct data_feeder *f, const struct value *v, const struct pending *p,
		 struct err *err)
{
	struct data_decoder *decoder = f->data->config.decoder;
	const struct backend_shape *wanted = &f->data->config.shape;
	struct image_row *image;
	char reason[BAD_REASON];
	int rc;

	if (!decoder)
		return err_set(err, ERR_INTERNAL, -EINVAL, "no decoder for images");
	if (v->head.x_bytes > decoder_max_bytes(decoder)) {
		snprintf(reason, sizeof(reason),
			 "image has %llu bytes, more than max_image_bytes = %llu",
			 (unsigned long long)v->head.x_bytes,
			 (unsigned long long)decoder_max_bytes(decoder));
		return feeder_bad(f, p, reason, false, err);
	}
	if (wanted->c && wanted->c != 1 && wanted->c != 3) {
		snprintf(reason, sizeof(reason), "image has 1 or 3 channels, the network wants %u",
			 wanted->c);
		return feeder_bad(f, p, reason, false, err);
	}
	image = copy_row(p);
	if (!image)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	image->job.bytes = v->head.x_bytes;
	image->job.request.h = wanted->h;
	image->job.request.w = wanted->w;
	image->job.request.c = wanted->c;
	for (;;) {
		rc = take_all(f, err);
		if (rc)
			break;
		rc = decoder_submit(decoder, &f->queue, &image->job, v->x, err);
		if (!rc)
			return 0;
		if (rc != -EAGAIN)
			break;
		rc = decoder_wait(
			decoder, &f->queue,
			image->job.bytes > DECODER_SMALL ? DECODE_SLOT_LARGE : DECODE_SLOT, err);
		if (rc)
			break;
	}
	free(image);
	return rc;
}

int feeder_drain(struct data_feeder *f, struct err *err)
{
	int rc = 0;

	while (!rc && f->queue.in_flight) {
		rc = decoder_wait(f->data->config.decoder, &f->queue, DECODE_DONE, err);
		if (!rc)
			rc = take_all(f, err);
	}
	return rc;
}
