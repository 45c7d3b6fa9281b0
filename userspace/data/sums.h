/* SPDX-License-Identifier: MIT */
/*
 * sums.h: per-channel sums of values and of their squares over rows. The result does not depend on
 * the order of the rows nor on how they were split: integers are summed as integers, floats within
 * a row in a fixed order and then exactly (exact.h).
 */
#ifndef DATA_SUMS_H
#define DATA_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "../../kernels/backend.h"

struct sums;

struct sums *sums_create(enum backend_dtype dtype, uint32_t channels); /* NULL: no memory */
void sums_free(struct sums *sums);
size_t sums_bytes(enum backend_dtype dtype, uint32_t channels);
/* One row of `pixels` times channels elements, without alignment; floats are finite. */
void sums_add(struct sums *sums, const void *x, uint64_t pixels);
void sums_merge(struct sums *sums, struct sums *other); /* of the same type and channels */
void sums_value(struct sums *sums, double *sum, double *sum2);

#endif
