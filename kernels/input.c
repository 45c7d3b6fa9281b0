/* SPDX-License-Identifier: MIT */
/*
 * input.c: one stored row to the f32 NHWC values that the network sees. Scaling, then in training
 * flip, pad-and-crop, cutout (backend.h, struct backend_input). One definition for all back ends.
 */
#include <string.h>

#include "ops.h"

/* The geometry of one row: output (y, x) shows source (y + dy, mirror(x + dx)), zero outside. */
struct augmentation {
	bool flip;
	int32_t dy, dx;
	int32_t cut_y, cut_x, cut; /* square [cut_y, cut_y + cut) set to zero; cut 0: none */
};

static void augmentation_draw(const struct backend_input *in, uint64_t seed, uint32_t epoch,
			      uint64_t hash, struct augmentation *a)
{
	const uint32_t counter[4] = {(uint32_t)hash, (uint32_t)(hash >> 32), epoch,
				     BACKEND_RANDOM_AUGMENT};
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	uint32_t r[4];

	backend_philox(counter, key, r);
	a->flip = in->flip && (r[0] & 1);
	a->dy = (int32_t)(r[1] % (2 * in->pad + 1)) - (int32_t)in->pad;
	a->dx = (int32_t)(r[2] % (2 * in->pad + 1)) - (int32_t)in->pad;
	a->cut = (int32_t)in->cutout;
	a->cut_y = (int32_t)((r[3] & 0xffff) % in->shape.h) - a->cut / 2;
	a->cut_x = (int32_t)((r[3] >> 16) % in->shape.w) - a->cut / 2;
}

/* Rows lie in a cache without alignment: memcpy, which compiles to a load. */
#define SCALE_PIXELS(type)                                                              \
	do {                                                                            \
		const char *pixel = (const char *)row + first * c * sizeof(type);       \
		for (uint64_t p = 0; p < n; p++)                                        \
			for (uint32_t k = 0; k < c; k++) {                              \
				type v;                                                 \
				memcpy(&v, pixel + (p * c + k) * sizeof(v), sizeof(v)); \
				out[p * c + k] = (float)v * in->mul[k] + in->add[k];    \
			}                                                               \
	} while (0)

/* n pixels from pixel `first` of the row on: x = raw * mul[c] + add[c]. */
static void scale_pixels(const struct backend_input *in, const void *row, uint64_t first,
			 uint64_t n, float *out)
{
	const uint32_t c = in->shape.c;

	switch (in->dtype) {
	case BACKEND_U8:
		SCALE_PIXELS(uint8_t);
		break;
	case BACKEND_I16:
		SCALE_PIXELS(int16_t);
		break;
	case BACKEND_I32:
		SCALE_PIXELS(int32_t);
		break;
	case BACKEND_F32:
		SCALE_PIXELS(float);
		break;
	case BACKEND_F64:
		SCALE_PIXELS(double);
		break;
	default:
		break;
	}
}

static bool inside(int32_t v, int32_t begin, int32_t length)
{
	return v >= begin && v < begin + length;
}

void backend_input_row(const struct backend_input *in, const void *row, bool augment, uint64_t seed,
		       uint32_t epoch, uint64_t hash, float *out)
{
	const int32_t h = (int32_t)in->shape.h, w = (int32_t)in->shape.w;
	const uint32_t c = in->shape.c;
	struct augmentation a;

	if (!augment || (!in->flip && !in->pad && !in->cutout)) {
		scale_pixels(in, row, 0, (uint64_t)h * w, out);
		return;
	}
	augmentation_draw(in, seed, epoch, hash, &a);
	for (int32_t y = 0; y < h; y++) {
		for (int32_t x = 0; x < w; x++) {
			float *to = out + ((uint64_t)y * w + x) * c;
			int32_t sy = y + a.dy, sx = x + a.dx;

			if (!inside(sy, 0, h) || !inside(sx, 0, w) ||
			    (inside(y, a.cut_y, a.cut) && inside(x, a.cut_x, a.cut))) {
				memset(to, 0, c * sizeof(float));
				continue;
			}
			if (a.flip)
				sx = w - 1 - sx;
			scale_pixels(in, row, (uint64_t)sy * w + sx, 1, to);
		}
	}
}
