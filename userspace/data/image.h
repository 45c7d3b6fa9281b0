/* SPDX-License-Identifier: MIT */
/*
 * image.h: what an image in bytea is, and decoding it to 8-bit pixels. The decoders run in a worker
 * process (worker.h); they are plain functions so that tests and fuzzers can call them.
 *
 * Conversions: palette -> its colours; 16 bits -> 8, round(v * 255 / 65535); 1, 2, 4 bits -> 8,
 * scaled; alpha and transparent colours are dropped, the stored colour counts (as Pillow's
 * convert("RGB") and tf.io.decode_png(channels=3)); CMYK and YCCK -> RGB, (255-C)(255-K)/255, with
 * Adobe's inverted values where the file has Adobe's marker; grey in an RGB job is replicated; RGB
 * in a grey job is luma, (19595 R + 38470 G + 7471 B + 32768) >> 16 (ITU-R 601-2, as Pillow).
 * Colour profiles, gamma and EXIF orientation are not applied.
 */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_REASON 160
#define IMAGE_MAX_SIDE 65535u
#define IMAGE_MAX_SCANS 100 /* of a JPEG */

enum image_format {
	IMAGE_UNKNOWN = 0, /* raw pixels, or anything */
	IMAGE_JPEG,
	IMAGE_PNG,
	IMAGE_BMP, /* this one and those below: known by name only */
	IMAGE_GIF,
	IMAGE_WEBP,
	IMAGE_TIFF,
	IMAGE_HEIF,
	IMAGE_JPEG2000,
	IMAGE_JPEGXL,
	IMAGE_TEST /* "CNNTEST:": see worker.c */
};

/* By the first bytes, never by a name. certain: raw pixels would hardly begin like this. */
enum image_format image_sniff(const uint8_t *x, size_t bytes, bool *certain);
const char *image_format_name(enum image_format format);

enum image_code {
	IMAGE_OK = 0,
	IMAGE_BAD,	/* reason says why */
	IMAGE_TOO_LARGE /* for out; h, w say how large it is */
};

struct image_request {
	uint32_t h, w; /* wanted, 0: any */
	uint32_t c;    /* wanted: 1, 3; 0: as in the file */
	uint32_t pad;
	uint64_t max_pixels;
};

struct image_result {
	uint32_t code; /* enum image_code */
	uint32_t h, w, c;
	char reason[IMAGE_REASON];
};

/* Decodes to h * w * c bytes at out; capacity must be h * w * 3 (4 * w more for CMYK is allocated).
 */
void image_decode(const struct image_request *request, const uint8_t *in, size_t bytes,
		  uint8_t *out, size_t capacity, struct image_result *result);

/* Of the decoders, internal: checks the size in a header against the request; false: do not go on.
 */
bool image_accept(const struct image_request *request, uint64_t h, uint64_t w, size_t capacity,
		  struct image_result *result);
void image_fail(struct image_result *result, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* n RGB pixels to grey, in place allowed. */
void image_luma(const uint8_t *rgb, uint64_t n, uint8_t *grey);
void image_decode_jpeg(const struct image_request *request, const uint8_t *in, size_t bytes,
		       uint8_t *out, size_t capacity, struct image_result *result);
void image_decode_png(const struct image_request *request, const uint8_t *in, size_t bytes,
		      uint8_t *out, size_t capacity, struct image_result *result);

#endif
