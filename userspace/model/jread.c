// SPDX-License-Identifier: MIT
/* jread.c: see jread.h. The parse itself, and the typed getters. Finding lines is in jfind.c. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "jread.h"

/* A text of the largest size could hold millions of empty objects of some 300 bytes each: bounded
 * before anything is allocated. A network of 10,000 layers has about 150,000 objects. */
#define MAX_CONTAINERS 600000u
#define MAX_VALUES 5000000u

static int too_many(struct reader *r)
{
	size_t containers = 0, values = 0;
	bool string = false;

	for (size_t i = 0; i < r->length; i++) {
		char c = r->text[i];

		if (string) {
			if (c == '\\')
				i++;
			else if (c == '"')
				string = false;
		} else if (c == '"') {
			string = true;
		} else if (c == '{' || c == '[') {
			containers++;
		} else if (c == ',') {
			values++;
		}
	}
	if (containers > MAX_CONTAINERS || values > MAX_VALUES)
		return err_set(r->err, ERR_ARCH, -E2BIG,
			       "architecture: %zu objects and lists, %zu values; at most %u and %u "
			       "are read",
			       containers, values, MAX_CONTAINERS, MAX_VALUES);
	return 0;
}

void jread_clean(char *text)
{
	unsigned char *s = (unsigned char *)text;

	while (*s) {
		size_t n = *s < 0x80 ? 0 : *s >= 0xf0 ? 3 : *s >= 0xe0 ? 2 : 1, i = 1;

		while (i <= n && (s[i] & 0xc0) == 0x80)
			i++;
		if (*s < 0x20 || *s == 0x7f || (*s >= 0x80 && *s < 0xc2) || *s > 0xf4 || i <= n)
			*s = '?', i = 1;
		s += i;
	}
}

int jread_parse(struct reader *r, json_t **out)
{
	json_error_t error;
	json_t *root;
	int rc = too_many(r);

	if (rc)
		return rc;
	root = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES, &error);
	if (!root) {
		if (json_error_code(&error) == json_error_out_of_memory || !error.text[0])
			return jread_oom(r);
		rc = err_set(r->err, ERR_ARCH, -EINVAL, "architecture: line %d column %d: %s",
			     error.line, error.column, error.text);
		if (r->err)
			jread_clean(r->err->message);
		return rc;
	}
	*out = root;
	return 0;
}

int jread_oom(struct reader *r)
{
	return err_set(r->err, ERR_LIMIT, -ENOMEM, "out of memory while reading the architecture");
}

/* One step of a path; without out only its length. */
static size_t step_text(const struct jpath *step, char *out, size_t size)
{
	int n = step->key ? snprintf(out, size, ".%.60s", step->key)
			  : snprintf(out, size, "[%zu]", step->index);

	return n > 0 ? (size_t)n : 0;
}

/* "config.layers[3].config" into out; where it does not fit its beginning is left out. */
static void path_text(const struct jpath *path, char *out, size_t size)
{
	const struct jpath *item[256];
	size_t n = 0, used = 3, room = size - 1;

	out[0] = '\0';
	for (; path && n < 256; path = path->up) {
		size_t length = step_text(path, NULL, 0);

		if (used + length > room) {
			snprintf(out, size, "...");
			break;
		}
		used += length;
		item[n++] = path;
	}
	used = strlen(out);
	while (n--)
		used += step_text(item[n], out + used, size - used);
	if (out[0] == '.' && out[1] != '.')
		memmove(out, out + 1, used);
}

int jread_error(struct reader *r, const struct jpath *path, const char *fmt, ...)
{
	size_t end = jread_find(r->text, r->length, path), line = 1, column = 1;
	char where[240], layer[112] = "", what[384];
	va_list ap;

	for (size_t i = 0; i < end; i++) {
		column++;
		if (r->text[i] == '\n') {
			line++;
			column = 1;
		}
	}
	path_text(path, where, sizeof(where));
	if (r->layer)
		snprintf(layer, sizeof(layer), " (layer '%.96s')", r->layer);
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	err_set(r->err, ERR_ARCH, -EINVAL, "architecture: line %zu column %zu%s%s%s: %s", line,
		column, where[0] ? ", " : "", where, layer, what);
	if (r->err)
		jread_clean(r->err->message);
	return -EINVAL;
}

static const struct jpath *step(struct reader *r, const struct jpath *up, const char *key,
				size_t index)
{
	struct jpath *p = arena_alloc(r->arena, sizeof(*p));

	if (!p)
		return up; /* a less exact path in messages is all that is lost */
	p->up = up;
	p->key = key;
	p->index = index;
	return p;
}

struct place jread_key(struct reader *r, struct place object, const char *key)
{
	struct place p = {json_object_get(object.value, key), object.path};

	if (p.value)
		p.path = step(r, object.path, key, 0);
	return p;
}

struct place jread_item(struct reader *r, struct place array, size_t index)
{
	struct place p = {json_array_get(array.value, index), array.path};

	if (p.value)
		p.path = step(r, array.path, NULL, index);
	return p;
}

struct place jread_tuple(struct reader *r, struct place place)
{
	const char *name = json_string_value(json_object_get(place.value, "class_name"));

	if (name && !strcmp(name, "__tuple__"))
		return jread_key(r, place, "items");
	return place;
}

bool jread_absent(struct place place)
{
	return !place.value || json_is_null(place.value);
}

bool jread_trivial(const json_t *v)
{
	if (json_is_string(v))
		return json_string_length(v) == 0;
	if (json_is_array(v))
		return json_array_size(v) == 0;
	if (json_is_object(v))
		return json_object_size(v) == 0;
	return json_is_null(v) || json_is_false(v);
}

int jread_integer(struct reader *r, struct place p, int64_t min, int64_t max, int64_t *out)
{
	double d = json_number_value(p.value);
	int64_t v;

	if (json_is_integer(p.value)) {
		v = json_integer_value(p.value);
	} else if (json_is_real(p.value) && d == floor(d) && fabs(d) < 9e15) {
		v = (int64_t)d;
	} else {
		return jread_error(r, p.path, "must be an integer from %lld to %lld",
				   (long long)min, (long long)max);
	}
	if (v < min || v > max)
		return jread_error(r, p.path, "must be an integer from %lld to %lld, not %lld",
				   (long long)min, (long long)max, (long long)v);
	*out = v;
	return 0;
}

int jread_u32(struct reader *r, struct place object, const char *key, uint32_t min, uint32_t max,
	      uint32_t *out)
{
	struct place p = jread_key(r, object, key);
	int64_t v;
	int rc;

	if (jread_absent(p))
		return 0;
	rc = jread_integer(r, p, min, max, &v);
	if (!rc)
		*out = (uint32_t)v;
	return rc;
}

int jread_double(struct reader *r, struct place p, double min, double max, double *out)
{
	double v = json_number_value(p.value);

	if (!json_is_number(p.value))
		return jread_error(r, p.path, "must be a number from %g to %g", min, max);
	if (!(v >= min && v <= max))
		return jread_error(r, p.path, "must be a number from %g to %g, not %g", min, max,
				   v);
	*out = v;
	return 0;
}

int jread_float(struct reader *r, struct place object, const char *key, double min, double max,
		float *out)
{
	struct place p = jread_key(r, object, key);
	double v;
	int rc;

	if (jread_absent(p))
		return 0;
	rc = jread_double(r, p, min, max, &v);
	if (!rc)
		*out = (float)v;
	return rc;
}

int jread_bool(struct reader *r, struct place object, const char *key, bool *out)
{
	struct place p = jread_key(r, object, key);

	if (jread_absent(p))
		return 0;
	if (!json_is_boolean(p.value))
		return jread_error(r, p.path, "must be true or false");
	*out = json_is_true(p.value);
	return 0;
}

int jread_string(struct reader *r, struct place object, const char *key, const char **out)
{
	struct place p = jread_key(r, object, key);

	if (jread_absent(p))
		return 0;
	if (!json_is_string(p.value))
		return jread_error(r, p.path, "must be a string");
	*out = json_string_value(p.value);
	return 0;
}

int jread_pair(struct reader *r, struct place object, const char *key, uint32_t min, uint32_t max,
	       uint32_t out[2])
{
	struct place p = jread_tuple(r, jread_key(r, object, key));
	int64_t v[2];
	int rc;

	if (jread_absent(p))
		return 0;
	if (json_is_array(p.value)) {
		if (json_array_size(p.value) != 2)
			return jread_error(r, p.path, "must be one number or a list of two");
		for (size_t i = 0; i < 2; i++) {
			rc = jread_integer(r, jread_item(r, p, i), min, max, &v[i]);
			if (rc)
				return rc;
		}
	} else {
		rc = jread_integer(r, p, min, max, &v[0]);
		if (rc)
			return rc;
		v[1] = v[0];
	}
	out[0] = (uint32_t)v[0];
	out[1] = (uint32_t)v[1];
	return 0;
}

int jread_need(struct reader *r, struct place object, const char *key)
{
	if (!jread_absent(jread_key(r, object, key)))
		return 0;
	return jread_error(r, object.path, "'%s' is missing", key);
}
