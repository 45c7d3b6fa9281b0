/* SPDX-License-Identifier: MIT */
/*
 * jread.h: reading a parsed JSON document with typed, range-checked getters whose errors name line,
 * column and path. jansson keeps no positions, so a place carries its path, and the line is found
 * by walking the text again, only when there is an error to report. Also the block allocator that
 * owns everything a model is made of. Internal to userspace/model.
 */
#ifndef MODEL_JREAD_H
#define MODEL_JREAD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"

/* Memory freed all at once; blocks are zeroed and aligned to 16. */
struct arena {
	struct arena_chunk *first;
};
void *arena_alloc(struct arena *arena, size_t size);
/* n items of `size`; NULL on overflow too. */
void *arena_array(struct arena *arena, size_t n, size_t size);
char *arena_printf(struct arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *arena);

struct jpath {
	const struct jpath *up;
	const char *key; /* NULL: an array index */
	size_t index;
};

/* A value (NULL: missing) and where it stands. */
struct place {
	json_t *value;
	const struct jpath *path;
};

struct reader {
	const char *text;
	size_t length;
	struct arena *arena;
	struct err *err;
	const char *layer; /* name of the layer being read, NULL: none */
	int generation;	   /* of Keras: 2 or 3 */
	bool builtin;
	uint32_t n_layers, n_unnamed;
};

/* Parses the text; ERR_ARCH with line and column. *out is a new reference. */
int jread_parse(struct reader *r, json_t **out);
/* Sets ERR_ARCH "line L column C, PATH (layer 'NAME'): ..." and returns -EINVAL. */
int jread_error(struct reader *r, const struct jpath *path, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int jread_oom(struct reader *r);

struct place jread_key(struct reader *r, struct place object, const char *key);
struct place jread_item(struct reader *r, struct place array, size_t index);
/* The list inside a Keras tuple object, else the place itself. */
struct place jread_tuple(struct reader *r, struct place place);
/* No value, or null. */
bool jread_absent(struct place place);
/* null, false, "", [] or {}: a key that asks for nothing. */
bool jread_trivial(const json_t *value);

/* Each leaves *out alone where the key is missing or null. */
int jread_u32(struct reader *r, struct place object, const char *key, uint32_t min, uint32_t max,
	      uint32_t *out);
int jread_float(struct reader *r, struct place object, const char *key, double min, double max,
		float *out);
int jread_double(struct reader *r, struct place place, double min, double max, double *out);
int jread_bool(struct reader *r, struct place object, const char *key, bool *out);
int jread_string(struct reader *r, struct place object, const char *key, const char **out);
/* A number for both, or a list (or tuple) of two. */
int jread_pair(struct reader *r, struct place object, const char *key, uint32_t min, uint32_t max,
	       uint32_t out[2]);
int jread_integer(struct reader *r, struct place place, int64_t min, int64_t max, int64_t *out);
int jread_need(struct reader *r, struct place object, const char *key);

/* What was cut by bytes and may quote the user: what is not whole UTF-8, or a control character,
 * becomes '?', so that a database can show it. */
void jread_clean(char *text);
/* Offset in the text where the path leads; as far as it can be followed. */
size_t jread_find(const char *text, size_t length, const struct jpath *path);

#endif
