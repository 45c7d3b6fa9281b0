// SPDX-License-Identifier: MIT
/* convert.c: one value to a stored row, outside of any data set. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "value.h"

static int bad(struct err *err, const char *reason)
{
	return err_set(err, ERR_DATA, -EBADMSG, "%s", reason);
}

static double element(const uint8_t *p, enum backend_dtype type, uint64_t i)
{
	int16_t s;
	int32_t n;
	float f;
	double d;

	switch (type) {
	case BACKEND_U8:
		return p[i];
	case BACKEND_I16:
		memcpy(&s, p + 2 * i, sizeof(s));
		return s;
	case BACKEND_I32:
		memcpy(&n, p + 4 * i, sizeof(n));
		return n;
	case BACKEND_F32:
		memcpy(&f, p + 4 * i, sizeof(f));
		return (double)f;
	default:
		memcpy(&d, p + 8 * i, sizeof(d));
		return d;
	}
}

/* Stores v as the type; false: it has no place there. */
static bool put(uint8_t *p, enum backend_dtype type, uint64_t i, double v)
{
	int16_t s;
	int32_t n;
	float f;

	switch (type) {
	case BACKEND_U8:
		if (!(v >= 0 && v <= 255 && v == (double)(uint8_t)v))
			return false;
		p[i] = (uint8_t)v;
		return true;
	case BACKEND_I16:
		if (!(v >= INT16_MIN && v <= INT16_MAX && v == (double)(int16_t)v))
			return false;
		s = (int16_t)v;
		memcpy(p + 2 * i, &s, sizeof(s));
		return true;
	case BACKEND_I32:
		if (!(v >= INT32_MIN && v <= INT32_MAX && v == (double)(int32_t)v))
			return false;
		n = (int32_t)v;
		memcpy(p + 4 * i, &n, sizeof(n));
		return true;
	case BACKEND_F32:
		f = (float)v;
		memcpy(p + 4 * i, &f, sizeof(f));
		return true;
	default:
		memcpy(p + 8 * i, &v, sizeof(v));
		return true;
	}
}

/* n elements of one type as another; whole numbers only where the other is an integer type. */
static int convert(const uint8_t *from, enum backend_dtype from_type, uint64_t n, void *to,
		   enum backend_dtype type, struct err *err)
{
	if (from_type == type) {
		memcpy(to, from, n * backend_dtype_bytes(type));
		return 0;
	}
	for (uint64_t i = 0; i < n; i++) {
		double v = element(from, from_type, i);

		if (!put(to, type, i, v))
			return err_set(err, ERR_DATA, -ERANGE,
				       "element %llu is %g: the model was trained on whole numbers "
				       "of another range",
				       (unsigned long long)i + 1, v);
	}
	return 0;
}

static int submit(struct data_decoder *decoder, struct decode_queue *queue, struct decode_job *job,
		  const void *image, struct err *err)
{
	int rc;

	while ((rc = decoder_submit(decoder, queue, job, image, err)) == -EAGAIN) {
		rc = decoder_wait(decoder, queue,
				  job->bytes > DECODER_SMALL ? DECODE_SLOT_LARGE : DECODE_SLOT,
				  err);
		if (rc)
			return rc;
	}
	return rc;
}

/* Until the only job of the queue is back and ours; on failure it is still the decoder's. */
static int fetch(struct data_decoder *decoder, struct decode_queue *queue, struct err *err)
{
	int rc;

	while (!decoder_take(decoder, queue)) {
		rc = decoder_wait(decoder, queue, DECODE_DONE, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int again(struct data_decoder *decoder, struct decode_queue *queue, struct decode_job *job,
		 struct err *err)
{
	int rc;

	while ((rc = decoder_again(decoder, queue, job, err)) == -EAGAIN) {
		rc = decoder_wait(decoder, queue, DECODE_LARGE, err);
		if (rc)
			return rc;
	}
	return rc;
}

static int take_pixels(struct data_decoder *decoder, const struct decode_job *job, uint8_t **pixels,
		       struct err *err)
{
	const struct image_result *r = &job->result;

	if (r->code != IMAGE_OK)
		return err_set(err, ERR_DATA, -EBADMSG, "image %s", r->reason);
	*pixels = malloc((uint64_t)r->h * r->w * r->c);
	if (!*pixels)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	return decoder_pixels(decoder, job, *pixels, err);
}

/* An image through the workers, waiting for it. pixels: malloc'd */
static int decode(struct data_decoder *decoder, const struct value *v, struct backend_shape shape,
		  uint8_t **pixels, struct err *err)
{
	struct decode_queue queue = {0};
	struct decode_job *job;
	int rc;

	if (!decoder || v->head.x_bytes > decoder_max_bytes(decoder))
		return bad(err, decoder ? "image has more bytes than max_image_bytes"
					: "images cannot be decoded here");
	if (shape.c != 1 && shape.c != 3)
		return err_set(err, ERR_DATA, -EBADMSG,
			       "image has 1 or 3 channels, the network wants %u", shape.c);
	job = calloc(1, sizeof(*job));
	if (!job)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	job->bytes = v->head.x_bytes;
	job->request = (struct image_request){.h = shape.h, .w = shape.w, .c = shape.c};
	rc = submit(decoder, &queue, job, v->x, err);
	if (rc) {
		free(job);
		return rc;
	}
	rc = fetch(decoder, &queue, err);
	if (!rc && job->result.code == IMAGE_TOO_LARGE) {
		rc = again(decoder, &queue, job, err);
		if (!rc)
			rc = fetch(decoder, &queue, err);
	}
	if (!queue.in_flight) {
		if (!rc)
			rc = take_pixels(decoder, job, pixels, err);
		decoder_release(decoder, job);
		free(job);
	}
	decoder_close(decoder, &queue);
	return rc;
}

int data_convert_one(struct data_decoder *decoder, const struct data_feed *feed, const void *value,
		     uint64_t bytes, struct backend_shape shape, enum backend_dtype dtype,
		     void *out_row, struct err *err)
{
	uint64_t n = (uint64_t)shape.h * shape.w * shape.c;
	enum backend_dtype from;
	enum image_format format = IMAGE_UNKNOWN;
	struct backend_shape is;
	char reason[BAD_REASON];
	uint8_t *pixels = NULL;
	struct value v;
	bool certain = false;
	int rc = value_dtype(feed, &from, err);

	if (!rc)
		rc = value_parse(feed, value, bytes, &v, err);
	if (rc)
		return rc;
	v.head.flags &= (uint8_t)~ROW_W_NULL;
	v.head.weight = 1;
	if (!value_usable(&v, false, reason))
		return bad(err, reason);
	if (feed->x_type == ROW_BYTES)
		format = image_sniff(v.x, v.head.x_bytes, &certain);
	if (format == IMAGE_JPEG || format == IMAGE_PNG) {
		rc = decode(decoder, &v, shape, &pixels, err);
		if (!rc)
			rc = convert(pixels, BACKEND_U8, n, out_row, dtype, err);
		free(pixels);
		return rc;
	}
	if (format != IMAGE_UNKNOWN && format != IMAGE_TEST && (certain || v.head.x_bytes != n)) {
		snprintf(reason, sizeof(reason),
			 "image is %s: only JPEG, PNG and raw pixels are read",
			 image_format_name(format));
		return bad(err, reason);
	}
	if (!value_shape(&v, shape, backend_dtype_bytes(from), &is, reason))
		return bad(err, reason);
	if ((from == BACKEND_F32 || from == BACKEND_F64) && !value_finite(v.x, from, n, reason))
		return bad(err, reason);
	return convert(v.x, from, n, out_row, dtype, err);
}
