/* SPDX-License-Identifier: MIT */
/* golden.h: reads the golden files of tests/golden/train (make.py there makes them). */
#ifndef TRAIN_GOLDEN_H
#define TRAIN_GOLDEN_H

#include <jansson.h>

#include "../../tap.h"

static inline json_t *golden_load(const char *name)
{
	char path[512];
	json_error_t where;
	json_t *root;

	snprintf(path, sizeof(path), "tests/golden/train/%s", name);
	root = json_load_file(path, 0, &where);
	if (!root)
		BAIL("%s (run from the root of the tree): %s", path, where.text);
	return root;
}

static inline const char *golden_text(json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static inline double golden_at(json_t *array, size_t i)
{
	return json_number_value(json_array_get(array, i));
}

/* malloc'd */
static inline float *golden_floats(json_t *array, size_t *n)
{
	float *v = malloc((json_array_size(array) + 1) * sizeof(*v));

	*n = json_array_size(array);
	for (size_t i = 0; i < *n; i++)
		v[i] = (float)golden_at(array, i);
	return v;
}

#endif
