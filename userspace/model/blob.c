// SPDX-License-Identifier: MIT
/*
 * blob.c: weights as one packed little-endian f32 blob in get_weights order, read and written in
 * any pieces; the arenas have gaps, the blob has none.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blobs are copied as they are");

uint64_t model_blob_bytes(const struct model *model)
{
	return model->info.shape_known ? model->blob[model->graph.n_tensors] * sizeof(float) : 0;
}

/* The tensor that holds float `at` of the blob. */
static uint32_t tensor_at(const struct model *model, uint64_t at)
{
	uint32_t low = 0, high = model->graph.n_tensors;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (model->blob[middle] <= at)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static int check_range(const struct model *model, uint64_t offset, uint64_t n)
{
	uint64_t bytes = model_blob_bytes(model);

	if (!model->info.shape_known || offset > bytes || n > bytes - offset)
		return -ERANGE;
	return 0;
}

/* Walks the pieces of [offset, offset + n) tensor by tensor; byte offsets, any alignment. */
static void copy(const struct model *model, float *const arena[2], uint64_t offset, uint64_t n,
		 unsigned char *blob, bool to_blob)
{
	uint32_t i = tensor_at(model, offset / sizeof(float));

	while (n) {
		const struct backend_tensor *t = &model->graph.tensor[i];
		uint64_t inside = offset - model->blob[i] * sizeof(float);
		uint64_t piece = t->count * sizeof(float) - inside;
		unsigned char *tensor =
			(unsigned char *)(arena[t->arena == BACKEND_STAT] + t->offset) + inside;

		if (piece > n)
			piece = n;
		if (to_blob)
			memcpy(blob, tensor, piece);
		else
			memcpy(tensor, blob, piece);
		blob += piece;
		offset += piece;
		n -= piece;
		i++;
	}
}

int model_blob_read(const struct model *model, const float *param, const float *stat,
		    uint64_t offset, void *destination, uint64_t n)
{
	float *const arena[2] = {(float *)param, (float *)stat};
	int rc = check_range(model, offset, n);

	if (!rc)
		copy(model, arena, offset, n, destination, true);
	return rc;
}

int model_blob_write(const struct model *model, float *param, float *stat, uint64_t offset,
		     const void *source, uint64_t n)
{
	float *const arena[2] = {param, stat};
	int rc = check_range(model, offset, n);

	if (!rc && (offset % sizeof(float) || n % sizeof(float)))
		rc = -EINVAL;
	if (!rc)
		copy(model, arena, offset, n, (unsigned char *)source, false);
	return rc;
}

int model_blob_check(const struct model *model, uint64_t bytes, struct err *err)
{
	const struct backend_graph *g = &model->graph;
	uint64_t want = model_blob_bytes(model);
	char table[600];
	size_t used = 0;
	uint32_t i;

	if (!model->info.shape_known)
		return err_set(err, ERR_ARCH, -EINVAL, "the model's input shape is not known yet");
	if (bytes == want)
		return 0;
	for (i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *t = &g->tensor[i];
		char row[200];
		int n = snprintf(row, sizeof(row), "\n  %s (", t->name);

		for (uint32_t d = 0; d < t->rank; d++)
			n += snprintf(row + n, sizeof(row) - (size_t)n, "%s%u", d ? "," : "",
				      t->dim[d]);
		n += snprintf(row + n, sizeof(row) - (size_t)n, ") %llu",
			      (unsigned long long)t->count);
		if (used + (size_t)n > 480)
			break;
		memcpy(table + used, row, (size_t)n);
		used += (size_t)n;
	}
	if (i < g->n_tensors)
		used += (size_t)snprintf(table + used, sizeof(table) - used, "\n  ... and %u more",
					 g->n_tensors - i);
	table[used] = '\0';
	return err_set(err, ERR_ARCH, -EINVAL,
		       "weights of %llu bytes (%llu numbers%s) do not fit the architecture, which "
		       "has %llu numbers:%s",
		       (unsigned long long)bytes, (unsigned long long)bytes / 4,
		       bytes % 4 ? " and a piece" : "", (unsigned long long)want / 4, table);
}
