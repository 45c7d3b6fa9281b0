// SPDX-License-Identifier: MIT
/*
 * image_png.c: PNG by libpng. Only the chunks that make the pixels are read; text, profiles and the
 * rest are skipped unread, so that a small chunk cannot unfold into a large one. Transformations:
 * see image.h.
 */
#include <endian.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "image.h"

#define CHUNK_BYTES (4u << 20) /* of memory that a chunk may take */
#define CHUNKS 128

struct decoding {
	png_structp png;
	png_infop info;
	const uint8_t *in;
	size_t left;
	struct image_result *result;
};

static void on_error(png_structp png, png_const_charp text)
{
	struct decoding *d = png_get_error_ptr(png);

	image_fail(d->result, "is a damaged or unsupported PNG: %.100s", text);
	png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
}

static void on_read(png_structp png, png_bytep to, size_t bytes)
{
	struct decoding *d = png_get_io_ptr(png);

	if (bytes > d->left)
		png_error(png, "ends early");
	memcpy(to, d->in, bytes);
	d->in += bytes;
	d->left -= bytes;
}

static void set_limits(const struct decoding *d)
{
	static const png_byte skipped[] = "iCCP\0tEXt\0zTXt\0iTXt\0eXIf\0sPLT\0hIST\0pCAL\0"
					  "sCAL\0tIME\0pHYs\0oFFs\0cHRM\0gAMA\0sRGB\0bKGD";

	png_set_user_limits(d->png, IMAGE_MAX_SIDE, IMAGE_MAX_SIDE);
	png_set_chunk_malloc_max(d->png, CHUNK_BYTES);
	png_set_chunk_cache_max(d->png, CHUNKS);
	png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
	png_set_keep_unknown_chunks(d->png, PNG_HANDLE_CHUNK_NEVER, skipped,
				    (int)(sizeof(skipped) / 5));
}

/* Everything to 8-bit grey or RGB without alpha. */
static void set_transformations(const struct image_request *request, const struct decoding *d)
{
	int type = png_get_color_type(d->png, d->info);
	bool colour = type & PNG_COLOR_MASK_COLOR; /* palette included */

	d->result->c = request->c ? request->c : colour ? 3 : 1;
	if (type == PNG_COLOR_TYPE_PALETTE)
		png_set_palette_to_rgb(d->png);
	if (type == PNG_COLOR_TYPE_GRAY)
		png_set_expand_gray_1_2_4_to_8(d->png);
	png_set_scale_16(d->png);
	png_set_strip_alpha(d->png);
	if (!colour && d->result->c == 3)
		png_set_gray_to_rgb(d->png);
}

static void read_pixels(const struct decoding *d, uint8_t *out)
{
	uint32_t h = d->result->h, w = d->result->w;
	int passes = png_set_interlace_handling(d->png);
	size_t stride;

	png_read_update_info(d->png, d->info);
	stride = png_get_rowbytes(d->png, d->info);
	if (stride != (size_t)w && stride != (size_t)w * 3)
		png_error(d->png, "unexpected row size");
	for (int pass = 0; pass < passes; pass++)
		for (uint32_t y = 0; y < h; y++)
			png_read_row(d->png, out + y * stride, NULL);
	png_read_end(d->png, NULL); /* checks the last sum */
	if (stride == (size_t)w * 3 && d->result->c == 1)
		image_luma(out, (uint64_t)h * w, out);
}

/* IHDR is the first chunk: the size is known, and can be refused, before libpng sees anything. */
static bool accept_header(const struct image_request *request, const uint8_t *in, size_t bytes,
			  size_t capacity, struct image_result *result)
{
	uint32_t w, h;

	if (bytes < 24 || memcmp(in + 12, "IHDR", 4))
		return true; /* libpng says what is wrong */
	memcpy(&w, in + 16, sizeof(w));
	memcpy(&h, in + 20, sizeof(h));
	return image_accept(request, be32toh(h), be32toh(w), capacity, result);
}

void image_decode_png(const struct image_request *request, const uint8_t *in, size_t bytes,
		      uint8_t *out, size_t capacity, struct image_result *result)
{
	struct decoding *d;

	if (!accept_header(request, in, bytes, capacity, result))
		return;
	d = calloc(1, sizeof(*d)); /* on the heap: it lives across longjmp */
	if (d) {
		d->result = result;
		d->in = in;
		d->left = bytes;
		d->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_error, on_warning);
	}
	if (d && d->png)
		d->info = png_create_info_struct(d->png);
	if (!d || !d->png || !d->info) {
		image_fail(result, "is a PNG that needs too much memory");
		goto end;
	}
	if (setjmp(png_jmpbuf(d->png)))
		goto end;
	set_limits(d);
	png_set_read_fn(d->png, d, on_read);
	png_read_info(d->png, d->info);
	if (!image_accept(request, png_get_image_height(d->png, d->info),
			  png_get_image_width(d->png, d->info), capacity, result))
		goto end;
	set_transformations(request, d);
	read_pixels(d, out);
end:
	if (d && d->png)
		png_destroy_read_struct(&d->png, &d->info, NULL);
	free(d);
}
