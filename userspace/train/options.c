// SPDX-License-Identifier: MIT
/*
 * options.c: the small grammars inside text values of the spec: "name(key=value, ...)" and
 * "key=value, flag". Names are compared without regard to case. Every refusal names the spec's key,
 * the option, its value and the legal range.
 */
#include "internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Cuts white space at both ends, in place. */
static char *trim(char *s)
{
	size_t n;

	while (isspace((unsigned char)*s))
		s++;
	n = strlen(s);
	while (n && isspace((unsigned char)s[n - 1]))
		s[--n] = '\0';
	return s;
}

bool train_options_item(const char **text, char *item, size_t size, bool *fits)
{
	const char *p = *text;
	size_t n = 0;
	int depth = 0;

	*fits = true;
	if (!*p)
		return false;
	for (; *p && (*p != ',' || depth > 0); p++) {
		depth += *p == '(' ? 1 : *p == ')' ? -1 : 0;
		if (n + 1 < size)
			item[n++] = *p;
		else
			*fits = false;
	}
	item[n] = '\0';
	memmove(item, trim(item), strlen(trim(item)) + 1);
	*text = *p ? p + 1 : p;
	return true;
}

static int add(struct options *o, char *part, struct err *err)
{
	char *equals = strchr(part, '='), *key = part, *value = NULL;

	if (equals) {
		*equals = '\0';
		value = trim(equals + 1);
	}
	key = trim(key);
	if (!*key || (value && !*value))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "%s: an option has no %s, options look like 'name=value'", o->key,
			       *key ? "value" : "name");
	for (uint32_t i = 0; i < o->n; i++)
		if (!strcasecmp(o->option[i].key, key))
			return err_set(err, ERR_PARAM, -EINVAL, "%s: '%.40s' is given twice",
				       o->key, key);
	if (o->n == OPTIONS_MAX)
		return err_set(err, ERR_PARAM, -EINVAL, "%s: more than %d options", o->key,
			       OPTIONS_MAX);
	o->option[o->n].key = key;
	o->option[o->n].value = value;
	o->n++;
	return 0;
}

static int add_all(struct options *o, char *list, struct err *err)
{
	char *save = NULL;

	if (!*trim(list))
		return 0;
	if (strchr(list, '(') || strchr(list, ')'))
		return err_set(err, ERR_PARAM, -EINVAL, "%s: unexpected parenthesis in '%.80s'",
			       o->key, list);
	for (char *part = strtok_r(list, ",", &save); part; part = strtok_r(NULL, ",", &save)) {
		int rc = add(o, part, err);

		if (rc)
			return rc;
	}
	return 0;
}

int train_options_parse(const char *key, const char *text, bool named, struct options *out,
			struct err *err)
{
	char *list, *end;
	int rc;

	memset(out, 0, sizeof(*out));
	out->key = key;
	out->name = "";
	out->copy = strdup(text);
	if (!out->copy)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	list = trim(out->copy);
	if (named) {
		out->name = list;
		list = strchr(list, '(');
		if (!list)
			return 0;
		end = list + strlen(list) - 1;
		if (*end != ')') {
			rc = err_set(err, ERR_PARAM, -EINVAL,
				     "%s is '%.80s', the closing parenthesis is missing", key,
				     text);
			goto free_copy;
		}
		*end = '\0';
		*list++ = '\0';
		out->name = trim((char *)out->name);
	}
	rc = add_all(out, list, err);
	if (!rc)
		return 0;
free_copy:
	train_options_free(out);
	return rc;
}

void train_options_free(struct options *options)
{
	free(options->copy);
	memset(options, 0, sizeof(*options));
}

static int find(struct options *o, const char *name)
{
	for (uint32_t i = 0; i < o->n; i++)
		if (!strcasecmp(o->option[i].key, name)) {
			o->option[i].used = true;
			return (int)i;
		}
	return -1;
}

void train_options_range(struct options_bound b, char *text, size_t size)
{
	snprintf(text, size, "%c%g, %.12g%c", b.low_open ? '(' : '[', b.low, b.high,
		 b.high_open ? ')' : ']');
}

static int refuse(const struct options *o, int i, const char *wanted, struct err *err)
{
	return err_set(err, ERR_PARAM, -EINVAL, "%s: %s is '%.60s', must be %s", o->key,
		       o->option[i].key, o->option[i].value ? o->option[i].value : "", wanted);
}

int train_options_number(struct options *o, const char *name, struct options_bound b, double *out,
			 struct err *err)
{
	int i = find(o, name);
	char range[64], wanted[96], *end;
	double v;

	if (i < 0)
		return 0;
	train_options_range(b, range, sizeof(range));
	snprintf(wanted, sizeof(wanted), "a number in %s", range);
	if (!o->option[i].value)
		return refuse(o, i, wanted, err);
	v = strtod(o->option[i].value, &end);
	if (*end || !isfinite(v) || v < b.low || v > b.high || (b.low_open && v == b.low) ||
	    (b.high_open && v == b.high))
		return refuse(o, i, wanted, err);
	*out = v;
	return 0;
}

int train_options_integer(struct options *o, const char *name, uint32_t low, uint32_t high,
			  uint32_t *out, struct err *err)
{
	int i = find(o, name);
	char wanted[64], *end;
	long long v;

	if (i < 0)
		return 0;
	snprintf(wanted, sizeof(wanted), "an integer in [%u, %u]", low, high);
	if (!o->option[i].value)
		return refuse(o, i, wanted, err);
	errno = 0;
	v = strtoll(o->option[i].value, &end, 10);
	if (*end || errno || v < low || v > high)
		return refuse(o, i, wanted, err);
	*out = (uint32_t)v;
	return 0;
}

int train_options_flag(struct options *o, const char *name, bool *out, struct err *err)
{
	int i = find(o, name);
	const char *v;

	if (i < 0)
		return 0;
	v = o->option[i].value;
	if (!v || !strcasecmp(v, "true") || !strcasecmp(v, "on") || !strcmp(v, "1"))
		*out = true;
	else if (!strcasecmp(v, "false") || !strcasecmp(v, "off") || !strcmp(v, "0"))
		*out = false;
	else
		return refuse(o, i, "true or false", err);
	return 0;
}

int train_options_text(struct options *o, const char *name, char *out, size_t size, struct err *err)
{
	int i = find(o, name);
	const char *v;

	if (i < 0)
		return 0;
	v = o->option[i].value;
	if (!v || strlen(v) >= size)
		return refuse(o, i, "a name", err);
	snprintf(out, size, "%s", v);
	return 0;
}

/* Edits (insert, delete, replace, swap of neighbours) between two short words. */
static unsigned int distance(const char *a, const char *b)
{
	size_t n = strlen(a), m = strlen(b);
	unsigned int d[3][48], *above2 = d[0], *above = d[1], *row = d[2];

	if (n > 47 || m > 47)
		return 99;
	for (size_t j = 0; j <= m; j++)
		above[j] = (unsigned int)j;
	for (size_t i = 1; i <= n; i++) {
		unsigned int *spare = above2;

		row[0] = (unsigned int)i;
		for (size_t j = 1; j <= m; j++) {
			int x = tolower((unsigned char)a[i - 1]);
			int y = tolower((unsigned char)b[j - 1]);
			unsigned int best = above[j - 1] + (x != y);

			if (above[j] + 1 < best)
				best = above[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
			    y == tolower((unsigned char)a[i - 2]) && above2[j - 2] + 1 < best)
				best = above2[j - 2] + 1;
			row[j] = best;
		}
		above2 = above;
		above = row;
		row = spare;
	}
	return above[m];
}

const char *train_options_nearest(const char *word, const char *const *names)
{
	size_t n = strlen(word);
	unsigned int limit = n <= 3 ? 1 : n <= 8 ? 2 : 3, best = limit + 1;
	const char *nearest = NULL;

	for (; *names; names++) {
		unsigned int d = distance(word, *names);

		if (d < best) {
			best = d;
			nearest = *names;
		}
	}
	return nearest;
}

int train_options_rest(struct options *o, const char *const *names, struct err *err)
{
	char legal[256] = "";
	size_t used = 0;

	for (uint32_t i = 0; i < o->n; i++) {
		const char *near;

		if (o->option[i].used)
			continue;
		for (const char *const *p = names; *p && used < sizeof(legal); p++)
			used += (size_t)snprintf(legal + used, sizeof(legal) - used, "%s%s",
						 p == names ? "" : ", ", *p);
		err_set(err, ERR_PARAM, -EINVAL,
			"%s%s%s has no option '%.40s', its options are: %s", o->key,
			*o->name ? " " : "", o->name, o->option[i].key, *legal ? legal : "none");
		near = train_options_nearest(o->option[i].key, names);
		if (near)
			err_hint(err, "Did you mean '%s'?", near);
		return -EINVAL;
	}
	return 0;
}
