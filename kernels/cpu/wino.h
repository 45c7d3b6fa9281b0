/* SPDX-License-Identifier: MIT */
/*
 * wino.h: Winograd's F(4x4, 3x3) (Lavin and Gray 2016) on NHWC, for 3x3 kernels with stride 1 and
 * channels in multiples of 16: a quarter of the multiplications of the direct sum, at the price of
 * an error of some 1e-5 of the largest value. The three products of training are the same 36 small
 * matrix products between transforms:
 *   forward   y = A^T [(G w G^T) . (B^T x B)] A
 *   weights   dw = G^T [sum over tiles (B^T x B) . (A dy A^T)] G
 *   data      dx = sum over tiles B [(G w G^T) . (A dy A^T)] B^T
 * the two of backward being the adjoints of the first, so that they share A dy A^T.
 * Planes of 36 are apart by a cache line more than they need, so that they do not meet in one set.
 */
#ifndef CPU_WINO_H
#define CPU_WINO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WINO_PLANES 36
#define WINO_PAD 16   /* floats between planes */
#define WINO_TILE 4   /* output pixels of a tile, each way */
#define WINO_TILES 24 /* tiles are computed in groups that divide this */

/* One image of one side: its pixels, and the zeros around it. */
struct wino_image {
	uint32_t h, w, c;
	int32_t pad_top, pad_left; /* of the tile grid: tile 0 begins at pixel -pad */
};

/* Tiles [first, first + n) of an image, row by row, tw in a row. */
struct wino_tiles {
	uint32_t tw, first, n;
};

struct wino_loops {
	/* u (36, c, k), or transposed (36, k, c), of the kernel w (3, 3, c, k) */
	void (*kernel)(float *u, const float *w, uint32_t c, uint32_t k, bool transposed);
	/* v (36, tiles, c), planes `plane` floats apart: B^T x B of each tile's 6x6 pixels */
	void (*input)(float *v, size_t plane, const float *x, const struct wino_image *image,
		      const struct wino_tiles *tiles);
	/* m (36, tiles, k) = v (36, tiles, c) u; tiles up to a multiple of WINO_TILES are written
	 */
	void (*multiply)(float *m, size_t m_plane, const float *v, size_t v_plane, const float *u,
			 uint32_t tiles, uint32_t c, uint32_t k);
	/* y = A^T m A [+ bias] [relu] */
	void (*output)(float *y, const float *m, size_t plane, const struct wino_image *image,
		       const struct wino_tiles *tiles, const float *bias, bool relu);
	/* dx += B m B^T: patches of 6x6 pixels that overlap */
	void (*output_back)(float *dx, const float *m, size_t plane, const struct wino_image *image,
			    const struct wino_tiles *tiles);
	/* z (36, tiles, k) = A dy A^T */
	void (*gradient)(float *z, size_t plane, const float *dy, const struct wino_image *image,
			 const struct wino_tiles *tiles);
	/* du (36, c, k) (+)= v^T z */
	void (*weights)(float *du, const float *v, size_t v_plane, const float *z, size_t z_plane,
			uint32_t tiles, uint32_t c, uint32_t k, bool add);
	/* dw (3, 3, c, k) (+)= G^T du G */
	void (*kernel_gradient)(float *dw, const float *du, uint32_t c, uint32_t k, bool add);
};

/* NULL: none for this processor, use the library. */
const struct wino_loops *wino_loops_best(void);

#endif
