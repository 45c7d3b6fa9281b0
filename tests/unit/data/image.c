// SPDX-License-Identifier: MIT
/*
 * image.c: the decoders as plain functions. Right pixels come from Pillow (tests/golden/data,
 * make_images.py) or are what was encoded.
 */
#include "data_test.h"
#include "../../../userspace/data/image.h"

#define W 17
#define H 13

static uint8_t out[64 << 10];

static struct image_result decode(struct bytes b, uint32_t h, uint32_t w, uint32_t c)
{
	struct image_request request = {.h = h, .w = w, .c = c, .max_pixels = 64 << 20};
	struct image_result r;

	memset(out, 0xa5, W * H * 4);
	image_decode(&request, b.data, b.n, out, sizeof(out), &r);
	return r;
}

static const char *const golden[] = {
	"rgb444.jpg", "rgb420.jpg", "progressive.jpg", "cmyk.jpg",    "grey.jpg",	 "rgb.png",
	"grey8.png",  "bits1.png",  "bits2.png",       "palette.png", "palette4.png",	 "rgba.png",
	"la.png",     "grey16.png", "rgb16.png",       "rgba16.png",  "transparent.png",
};

static bool is_grey(const char *name)
{
	return strstr(name, "grey") || strstr(name, "bits") || !strncmp(name, "la", 2);
}

static void test_golden(void)
{
	for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
		struct bytes b = file_read(GOLDEN, golden[i]);
		char stem[64], name[80];

		snprintf(stem, sizeof(stem), "%.*s", (int)(strchr(golden[i], '.') - golden[i]),
			 golden[i]);
		for (uint32_t c = 1; c <= 3; c += 2) {
			struct image_result r = decode(b, 0, 0, c);
			struct bytes want;

			snprintf(name, sizeof(name), "%s.%s", stem, c == 1 ? "grey" : "rgb");
			want = file_read(GOLDEN, name);
			ok(r.code == IMAGE_OK && r.h == H && r.w == W && r.c == c &&
				   !memcmp(out, want.data, want.n) && want.n == W * H * c,
			   "%s to %s as Pillow (%s)", golden[i], c == 1 ? "grey" : "RGB", r.reason);
			free(want.data);
		}
		is(decode(b, 0, 0, 0).c, is_grey(golden[i]) ? 1 : 3, "channels of the file");
		is(decode(b, H, W, 3).code, IMAGE_OK, "the wanted size");
		like(decode(b, H, W + 1, 3).reason, "is 17x13, wanted 18x13 (width x height)",
		     "another size is named");
		/* truncated at every length: never good, never out of bounds (sanitizers) */
		for (size_t n = 0; n < b.n; n++) {
			struct bytes part = {malloc(n + 1), n};
			struct image_result r;

			memcpy(part.data, b.data, n);
			part.data = realloc(part.data, n ? n : 1);
			r = decode(part, 0, 0, 3);
			if (r.code != IMAGE_BAD || !r.reason[0])
				ok(false, "%s cut at %zu is refused", golden[i], n);
			free(part.data);
		}
		/* every byte flipped in turn: refused or decoded, nothing else */
		for (size_t n = 0; n < b.n; n++) {
			b.data[n] ^= 0xff;
			if (decode(b, 0, 0, 3).code == IMAGE_TOO_LARGE && n < 4)
				ok(false, "size from nowhere");
			b.data[n] ^= 0xff;
		}
		free(b.data);
	}
}

static void test_interlaced(void)
{
	uint8_t pixels[H * W * 3];
	uint64_t seed = 5;
	struct bytes b;

	for (size_t i = 0; i < sizeof(pixels); i++)
		pixels[i] = (uint8_t)next_random(&seed);
	b = make_png(W, H, PNG_COLOR_TYPE_RGB, true, pixels);
	ok(decode(b, 0, 0, 3).code == IMAGE_OK && !memcmp(out, pixels, sizeof(pixels)),
	   "interlaced PNG");
	free(b.data);
}

/* YCCK is CMYK after the colour transform: near the CMYK that was encoded. */
static void test_ycck(void)
{
	struct jpeg_spec cmyk = {W, H, 4, JCS_CMYK, JCS_CMYK, false, 100, 0, NULL, false};
	struct jpeg_spec ycck = {W, H, 4, JCS_CMYK, JCS_YCCK, false, 100, 0, NULL, false};
	uint8_t pixels[H * W * 4], first[H * W * 3];
	struct bytes a, b;
	int worst = 0;

	for (int i = 0; i < H * W * 4; i++)
		pixels[i] = (uint8_t)((i / 4 % W) * 9 + (i / 4 / W) * 5 + (i % 4) * 20);
	a = make_jpeg(&cmyk, pixels);
	b = make_jpeg(&ycck, pixels);
	ok(decode(a, 0, 0, 3).code == IMAGE_OK, "CMYK decodes");
	memcpy(first, out, sizeof(first));
	ok(decode(b, 0, 0, 3).code == IMAGE_OK, "YCCK decodes");
	for (size_t i = 0; i < sizeof(first); i++)
		if (abs(first[i] - out[i]) > worst)
			worst = abs(first[i] - out[i]);
	ok(worst <= 8, "YCCK gives the colours of CMYK (largest difference %d)", worst);
	free(a.data);
	free(b.data);
}

/* No ink is white; Adobe stores the values inverted, and marks the file. */
static void test_ink(void)
{
	struct jpeg_spec spec = {W, H, 4, JCS_CMYK, JCS_CMYK, false, 100, 0, NULL, true};
	uint8_t pixels[H * W * 4] = {0};
	struct bytes b = make_jpeg(&spec, pixels);

	ok(decode(b, 0, 0, 3).code == IMAGE_OK && out[0] > 250 && out[1] > 250 && out[2] > 250,
	   "CMYK without a marker: no ink is white");
	free(b.data);
	spec.no_adobe = false;
	b = make_jpeg(&spec, pixels);
	ok(decode(b, 0, 0, 3).code == IMAGE_OK && out[0] < 5 && out[1] < 5 && out[2] < 5,
	   "with Adobe's marker the same values are black");
	free(b.data);
}

static void put_be32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* ISO 3309, as PNG wants it */
static uint32_t crc32_of(const uint8_t *p, size_t n)
{
	uint32_t c = ~0u;

	while (n--) {
		c ^= *p++;
		for (int k = 0; k < 8; k++)
			c = c & 1 ? 0xedb88320u ^ c >> 1 : c >> 1;
	}
	return ~c;
}

/* A valid PNG header of any size, nothing behind it. */
static struct bytes png_header(uint32_t w, uint32_t h)
{
	static const uint8_t start[] = "\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
	struct bytes b = {calloc(1, 64), 33};

	memcpy(b.data, start, 16);
	put_be32(b.data + 16, w);
	put_be32(b.data + 20, h);
	b.data[24] = 8;
	b.data[25] = 2;
	put_be32(b.data + 29, crc32_of(b.data + 12, 17));
	return b;
}

static void test_large(void)
{
	struct jpeg_spec spec = {W, H, 3, JCS_RGB, JCS_YCbCr, false, 90, 0, NULL, false};
	uint8_t pixels[H * W * 3] = {0};
	struct bytes b = png_header(25000, 20000);
	struct image_result r = decode(b, 0, 0, 3);

	like(r.reason, "is 25000x20000: more than max_image_pixels = 67108864",
	     "a PNG of 500 megapixels is refused by its header");
	free(b.data);
	b = png_header(1u << 31, 1);
	is(decode(b, 0, 0, 3).code, IMAGE_BAD, "a PNG of 2^31 pixels a row");
	free(b.data);
	b = png_header(0, 5);
	is(decode(b, 0, 0, 3).code, IMAGE_BAD, "a PNG without pixels");
	free(b.data);
	b = png_header(4000, 4000);
	r = decode(b, 0, 0, 3);
	ok(r.code == IMAGE_TOO_LARGE && r.h == 4000 && r.w == 4000, "too large for this buffer");
	free(b.data);
	b = make_jpeg(&spec, pixels);
	for (size_t i = 0; i + 9 < b.n; i++) /* SOF0: marker, length, precision, height, width */
		if (b.data[i] == 0xff && b.data[i + 1] == 0xc0) {
			b.data[i + 5] = 20000 >> 8;
			b.data[i + 6] = 20000 & 255;
			b.data[i + 7] = 25000 >> 8;
			b.data[i + 8] = 25000 & 255;
		}
	like(decode(b, 0, 0, 3).reason, "is 25000x20000: more than max_image_pixels",
	     "a JPEG of 500 megapixels is refused by its header");
	free(b.data);
}

/* Each scan of a progressive JPEG costs a pass over the image: 128 of them, two a coefficient. */
static void test_scans(void)
{
	jpeg_scan_info scans[128] = {0};
	struct jpeg_spec spec = {W, H, 1, JCS_GRAYSCALE, JCS_GRAYSCALE, true, 90, 0, scans, false};
	uint8_t pixels[H * W];
	struct bytes b;

	for (int i = 0; i < H * W; i++)
		pixels[i] = (uint8_t)(i * 7);
	for (int k = 0; k < 128; k++)
		scans[k] = (jpeg_scan_info){1, {0}, k / 2, k / 2, k % 2, 1 - k % 2};
	b = make_jpeg(&spec, pixels);
	ok(decode(b, 0, 0, 0).code == IMAGE_OK, "a progressive JPEG");
	free(b.data);
	spec.n_scans = 128;
	b = make_jpeg(&spec, pixels);
	like(decode(b, 0, 0, 0).reason, "is a JPEG of more than 100 scans", "128 scans");
	free(b.data);
}

static void test_sniff(void)
{
	static const struct {
		const char *file;
		enum image_format format;
		const char *name;
	} files[] = {
		{"rgb.png", IMAGE_PNG, "PNG"},	      {"rgb444.jpg", IMAGE_JPEG, "JPEG"},
		{"picture.bmp", IMAGE_BMP, "BMP"},    {"picture.gif", IMAGE_GIF, "GIF"},
		{"picture.webp", IMAGE_WEBP, "WebP"}, {"picture.tiff", IMAGE_TIFF, "TIFF"},
	};
	bool certain;

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		struct bytes b = file_read(GOLDEN, files[i].file);

		is(image_sniff(b.data, b.n, &certain), files[i].format, files[i].file);
		is_str(image_format_name(files[i].format), files[i].name, "its name");
		for (size_t n = 0; n < 12; n++) /* short: no read past the end (sanitizers) */
			image_sniff(b.data, n, &certain);
		free(b.data);
	}
	is(image_sniff((const uint8_t *)"", 0, &certain), IMAGE_UNKNOWN, "nothing at all");
	is(image_sniff((const uint8_t *)"BMxxxxxx", 8, &certain), IMAGE_BMP, "two bytes are BMP");
	ok(!certain, "but not certain: pixels may begin so");
	is(decode((struct bytes){(uint8_t *)"hello", 5}, 0, 0, 3).code, IMAGE_BAD, "no image");
}

int main(void)
{
	test_golden();
	test_interlaced();
	test_ycck();
	test_ink();
	test_large();
	test_scans();
	test_sniff();
	return done();
}
