// SPDX-License-Identifier: MIT
/*
 * image_jpeg.c: JPEG by libjpeg-turbo. Damage that the library would only warn of and paint over
 * (a truncated file, for one) is an error here. Slow integer DCT and fancy upsampling, so that
 * every processor gets the same pixels.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <jerror.h>

#include "image.h"

struct decoding {
	struct jpeg_decompress_struct jpeg;
	struct jpeg_error_mgr error;
	struct jpeg_progress_mgr progress;
	jmp_buf fail;
	struct image_result *result;
	uint8_t *cmyk; /* one row */
};

static void on_error(j_common_ptr cinfo)
{
	struct decoding *d = cinfo->client_data;
	char text[JMSG_LENGTH_MAX];

	cinfo->err->format_message(cinfo, text);
	image_fail(d->result, "is a damaged or unsupported JPEG: %.100s", text);
	longjmp(d->fail, 1);
}

/* Level -1 is damage; what is only odd is let through. */
static void on_message(j_common_ptr cinfo, int level)
{
	if (level >= 0)
		return;
	switch (cinfo->err->msg_code) {
	case JWRN_EXTRANEOUS_DATA:
	case JWRN_JFIF_MAJOR:
	case JWRN_ADOBE_XFORM:
	case JWRN_BOGUS_ICC:
	case JWRN_TOO_MUCH_DATA:
		return;
	default:
		on_error(cinfo);
	}
}

static void on_output(j_common_ptr cinfo)
{
}

/* A progressive file of many scans costs a full pass for each (CVE-2018-11813's kind). */
static void on_progress(j_common_ptr cinfo)
{
	struct decoding *d = cinfo->client_data;

	if (d->jpeg.input_scan_number <= IMAGE_MAX_SCANS)
		return;
	image_fail(d->result, "is a JPEG of more than %d scans", IMAGE_MAX_SCANS);
	longjmp(d->fail, 1);
}

/* Which colour space to ask the library for. */
static void choose_colours(const struct image_request *request, struct decoding *d)
{
	struct jpeg_decompress_struct *j = &d->jpeg;

	j->dct_method = JDCT_ISLOW;
	j->do_fancy_upsampling = TRUE;
	switch (j->jpeg_color_space) {
	case JCS_GRAYSCALE:
		d->result->c = request->c ? request->c : 1;
		j->out_color_space = d->result->c == 3 ? JCS_RGB : JCS_GRAYSCALE;
		break;
	case JCS_YCbCr:
	case JCS_RGB:
		d->result->c = request->c ? request->c : 3;
		j->out_color_space = JCS_RGB;
		break;
	case JCS_CMYK:
	case JCS_YCCK:
		d->result->c = request->c ? request->c : 3;
		j->out_color_space = JCS_CMYK;
		break;
	default:
		image_fail(d->result, "is a JPEG of %d components in an unknown colour space",
			   j->num_components);
		longjmp(d->fail, 1);
	}
}

/* v * k / 255, rounded (Pillow's MULDIV255) */
static uint8_t multiply(uint32_t v, uint32_t k)
{
	uint32_t t = v * k + 128;

	return (uint8_t)(((t >> 8) + t) >> 8);
}

static void cmyk_to_rgb(const uint8_t *cmyk, uint32_t n, bool inverted, uint8_t *rgb)
{
	uint8_t flip = inverted ? 0 : 255;

	for (uint32_t i = 0; i < n; i++)
		for (int k = 0; k < 3; k++)
			rgb[3 * i + (uint32_t)k] =
				multiply(cmyk[4 * i + (uint32_t)k] ^ flip, cmyk[4 * i + 3] ^ flip);
}

static void read_rows(struct decoding *d, uint8_t *out)
{
	struct jpeg_decompress_struct *j = &d->jpeg;
	bool cmyk = j->out_color_space == JCS_CMYK;
	uint32_t channels = cmyk ? 3 : (uint32_t)j->output_components;

	if (cmyk) {
		d->cmyk = malloc((size_t)j->output_width * 4);
		if (!d->cmyk) {
			image_fail(d->result, "is a JPEG that needs too much memory");
			longjmp(d->fail, 1);
		}
	}
	while (j->output_scanline < j->output_height) {
		uint8_t *to = out + (size_t)j->output_scanline * j->output_width * channels;
		JSAMPROW row = cmyk ? d->cmyk : to;

		if (jpeg_read_scanlines(j, &row, 1) != 1) {
			image_fail(d->result, "is a damaged JPEG: ends early");
			longjmp(d->fail, 1);
		}
		if (cmyk)
			cmyk_to_rgb(d->cmyk, j->output_width, j->saw_Adobe_marker, to);
	}
	jpeg_finish_decompress(j);
	if (channels == 3 && d->result->c == 1)
		image_luma(out, (uint64_t)j->output_width * j->output_height, out);
}

void image_decode_jpeg(const struct image_request *request, const uint8_t *in, size_t bytes,
		       uint8_t *out, size_t capacity, struct image_result *result)
{
	struct decoding *d = calloc(1, sizeof(*d)); /* on the heap: it lives across longjmp */

	if (!d) {
		image_fail(result, "is a JPEG that needs too much memory");
		return;
	}
	d->result = result;
	d->jpeg.err = jpeg_std_error(&d->error);
	d->error.error_exit = on_error;
	d->error.emit_message = on_message;
	d->error.output_message = on_output;
	d->jpeg.client_data = d;
	if (setjmp(d->fail))
		goto end;
	jpeg_create_decompress(&d->jpeg);
	d->jpeg.client_data = d;
	d->progress.progress_monitor = on_progress;
	d->jpeg.progress = &d->progress;
	jpeg_mem_src(&d->jpeg, in, bytes);
	jpeg_read_header(&d->jpeg, TRUE);
	if (!image_accept(request, d->jpeg.image_height, d->jpeg.image_width, capacity, result))
		goto end;
	choose_colours(request, d);
	jpeg_start_decompress(&d->jpeg);
	read_rows(d, out);
end:
	jpeg_destroy_decompress(&d->jpeg);
	free(d->cmyk);
	free(d);
}
