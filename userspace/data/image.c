// SPDX-License-Identifier: MIT
/* image.c: see image.h. */
#include "image.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct magic {
	enum image_format format;
	uint8_t offset, bytes;
	bool certain;
	const char *text;
};

/* PNG: ISO 15948; JPEG: T.81 B.1.1.2; the others after their registrations. */
static const struct magic magics[] = {
	{IMAGE_PNG, 0, 8, true, "\x89PNG\r\n\x1a\n"},
	{IMAGE_JPEG, 0, 3, true, "\xff\xd8\xff"},
	{IMAGE_GIF, 0, 6, true, "GIF87a"},
	{IMAGE_GIF, 0, 6, true, "GIF89a"},
	{IMAGE_WEBP, 8, 4, true, "WEBP"},
	{IMAGE_JPEG2000, 0, 12, true, "\0\0\0\x0cjP  \r\n\x87\n"},
	{IMAGE_JPEGXL, 0, 12, true, "\0\0\0\x0cJXL \r\n\x87\n"},
	{IMAGE_HEIF, 4, 8, true, "ftypheic"},
	{IMAGE_HEIF, 4, 8, true, "ftypmif1"},
	{IMAGE_HEIF, 4, 8, true, "ftypavif"},
	{IMAGE_TEST, 0, 8, true, "CNNTEST:"},
	{IMAGE_TIFF, 0, 4, false, "II*\0"},
	{IMAGE_TIFF, 0, 4, false, "MM\0*"},
	{IMAGE_BMP, 0, 2, false, "BM"},
	{IMAGE_JPEGXL, 0, 2, false, "\xff\x0a"},
};

enum image_format image_sniff(const uint8_t *x, size_t bytes, bool *certain)
{
	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
		const struct magic *m = &magics[i];

		if (bytes < (size_t)m->offset + m->bytes ||
		    memcmp(x + m->offset, m->text, m->bytes))
			continue;
		if (m->format == IMAGE_WEBP && memcmp(x, "RIFF", 4))
			continue;
		*certain = m->certain;
		return m->format;
	}
	*certain = false;
	return IMAGE_UNKNOWN;
}

const char *image_format_name(enum image_format format)
{
	static const char *const names[] = {"unknown",	 "JPEG",    "PNG",  "BMP",
					    "GIF",	 "WebP",    "TIFF", "HEIF",
					    "JPEG 2000", "JPEG XL", "test"};

	return (unsigned int)format < sizeof(names) / sizeof(names[0]) ? names[format] : "unknown";
}

void image_fail(struct image_result *result, const char *fmt, ...)
{
	va_list ap;

	result->code = IMAGE_BAD;
	va_start(ap, fmt);
	vsnprintf(result->reason, sizeof(result->reason), fmt, ap);
	va_end(ap);
}

bool image_accept(const struct image_request *request, uint64_t h, uint64_t w, size_t capacity,
		  struct image_result *result)
{
	if (!h || !w) {
		image_fail(result, "is an image without pixels");
		return false;
	}
	if (h > IMAGE_MAX_SIDE || w > IMAGE_MAX_SIDE || h * w > request->max_pixels) {
		image_fail(result, "is %llux%llu: more than max_image_pixels = %llu",
			   (unsigned long long)w, (unsigned long long)h,
			   (unsigned long long)request->max_pixels);
		return false;
	}
	result->h = (uint32_t)h;
	result->w = (uint32_t)w;
	if ((request->h && request->h != h) || (request->w && request->w != w)) {
		image_fail(result, "is %llux%llu, wanted %ux%u (width x height)",
			   (unsigned long long)w, (unsigned long long)h, request->w, request->h);
		return false;
	}
	if (h * w * 3 > capacity) {
		result->code = IMAGE_TOO_LARGE;
		return false;
	}
	return true;
}

void image_luma(const uint8_t *rgb, uint64_t n, uint8_t *grey)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];

		grey[i] = (uint8_t)((19595 * r + 38470 * g + 7471 * b + 32768) >> 16);
	}
}

void image_decode(const struct image_request *request, const uint8_t *in, size_t bytes,
		  uint8_t *out, size_t capacity, struct image_result *result)
{
	bool certain;

	memset(result, 0, sizeof(*result));
	switch (image_sniff(in, bytes, &certain)) {
	case IMAGE_JPEG:
		image_decode_jpeg(request, in, bytes, out, capacity, result);
		break;
	case IMAGE_PNG:
		image_decode_png(request, in, bytes, out, capacity, result);
		break;
	default:
		image_fail(result, "is no JPEG or PNG");
		break;
	}
}
