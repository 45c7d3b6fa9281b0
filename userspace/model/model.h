/* SPDX-License-Identifier: MIT */
/*
 * model.h: a network's description. Reads Keras architecture JSON (Keras 2 and 3, Sequential and
 * Functional) or the name of a built-in architecture, infers every shape, lowers it to the graph
 * of kernels/backend.h, initialises parameters, and reads and writes weight blobs in Keras
 * get_weights order. Knows nothing of data, training or the database.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernels/backend.h"
#include "../base/err.h"

struct model;

#define MODEL_MAX_JSON (16u << 20)
#define MODEL_MAX_LAYERS 10000u
#define MODEL_MAX_PARAMETERS 1000000000ull

/* What is known from the data; 0: not known. The architecture's own input shape wins unless it
 * contradicts (error); a missing or None dimension is filled from here. Rows that are vectors (h =
 * w = 1) fit an image with as many elements, and images a vector. outputs: number of classes; used
 * by the built-in architectures, checked against nothing here. */
struct model_bind {
	uint32_t h, w, c;
	uint32_t outputs;
};

struct model_info {
	const char *name;
	struct backend_shape input;
	uint32_t outputs; /* elements of the output of one row */
	uint32_t layers;
	uint64_t trainable, frozen;   /* parameter counts as Keras' summary shows them */
	enum backend_activation last; /* activation of the output, BACKEND_LINEAR: none */
	bool shape_known;	      /* false: input shape or outputs are still missing */
	bool builtin;
};

/*
 * architecture: JSON text, or 'keras_cnn', 'lenet', 'resnet20', 'vgg_small'. Errors (ERR_ARCH) name
 * line, column, JSON path and layer. With an unknown input shape the text is checked as far as
 * possible and info.shape_known is false; model_graph is NULL then.
 */
int model_open(const char *architecture, size_t length, const struct model_bind *bind,
	       struct model **out, struct err *err);
void model_free(struct model *model);

const struct model_info *model_info(const struct model *model);
const struct backend_graph *model_graph(const struct model *model);
/* Keras-like table in UTF-8, one row for each layer, nested models unfolded; malloc'd. */
char *model_summary(const struct model *model);
/* The architecture as Keras 3 JSON that keras.models.model_from_json reads; malloc'd. For a user's
 * JSON: the text as given, except for an input shape that was filled in. NULL for a built-in whose
 * sizes or classes are not known yet (and out of memory). */
char *model_json(const struct model *model);
/* Number of built-in names; name by index. */
size_t model_builtin_count(void);
const char *model_builtin_name(size_t i);

/* Initialises arenas (sizes of the graph; gaps zeroed) by each layer's initializers. A layer with a
 * seed of its own gets the same values under every run's seed. */
int model_init(const struct model *model, uint64_t seed, float *param, float *stat,
	       struct err *err);

/* Weight blob: packed little-endian f32 in get_weights order. */
uint64_t model_blob_bytes(const struct model *model);
/* Copies bytes [offset, offset + n) of the blob made of the arenas. */
int model_blob_read(const struct model *model, const float *param, const float *stat,
		    uint64_t offset, void *destination, uint64_t n);
/* Writes bytes [offset, offset + n) of a blob into the arenas. offset and n are multiples of 4. */
int model_blob_write(const struct model *model, float *param, float *stat, uint64_t offset,
		     const void *source, uint64_t n);
/* ERR_ARCH with a table of expected shapes when a blob of `bytes` does not fit. */
int model_blob_check(const struct model *model, uint64_t bytes, struct err *err);

#endif
