// SPDX-License-Identifier: MIT
/*
 * jfind.c: the place of a JSON path in the text, for error messages. The text has been accepted by
 * the parser, so the walk only follows it; it still never reads past the end.
 */
#include <string.h>

#include "jread.h"

struct walk {
	const char *text;
	size_t length, at;
};

static void space(struct walk *w)
{
	while (w->at < w->length && strchr(" \t\r\n", w->text[w->at]) && w->text[w->at])
		w->at++;
}

static char peek(const struct walk *w)
{
	return w->at < w->length ? w->text[w->at] : '\0';
}

static void skip_string(struct walk *w)
{
	w->at++;
	while (w->at < w->length && w->text[w->at] != '"')
		w->at += w->text[w->at] == '\\' ? 2 : 1;
	w->at++;
	if (w->at > w->length)
		w->at = w->length;
}

static void skip_value(struct walk *w)
{
	size_t depth = 0;

	do {
		char c;

		space(w);
		c = peek(w);
		if (c == '"') {
			skip_string(w);
			continue;
		}
		if (c == '{' || c == '[')
			depth++;
		else if ((c == '}' || c == ']') && depth)
			depth--;
		else if (c != ',' && c != ':')
			while (w->at + 1 < w->length &&
			       !strchr(",:]}[{\" \t\r\n", w->text[w->at + 1]))
				w->at++;
		w->at++;
	} while (depth && w->at < w->length);
	if (w->at > w->length)
		w->at = w->length;
}

/* Whether the string token at [at, end) spells key; escapes are left to the parser. */
static bool same_key(const struct walk *w, size_t at, const char *key)
{
	size_t length = w->at - at;
	json_t *s;
	bool same;

	if (!memchr(w->text + at, '\\', length))
		return length == strlen(key) + 2 && !memcmp(w->text + at + 1, key, length - 2);
	s = json_loadb(w->text + at, length, JSON_DECODE_ANY, NULL);
	same = s && json_is_string(s) && !strcmp(json_string_value(s), key);
	json_decref(s);
	return same;
}

static bool enter_key(struct walk *w, const char *key, size_t *found)
{
	if (peek(w) != '{')
		return false;
	for (w->at++; w->at < w->length; w->at++) {
		size_t at;
		bool same;

		space(w);
		at = w->at;
		if (peek(w) != '"')
			return false;
		skip_string(w);
		same = same_key(w, at, key);
		space(w);
		w->at++; /* : */
		if (same) {
			space(w);
			*found = at;
			return true;
		}
		skip_value(w);
		space(w);
		if (peek(w) != ',')
			return false;
	}
	return false;
}

static bool enter_index(struct walk *w, size_t index, size_t *found)
{
	if (peek(w) != '[')
		return false;
	w->at++;
	while (index--) {
		skip_value(w);
		space(w);
		if (peek(w) != ',')
			return false;
		w->at++;
	}
	space(w);
	*found = w->at;
	return w->at < w->length;
}

size_t jread_find(const char *text, size_t length, const struct jpath *path)
{
	const struct jpath *item[256];
	struct walk w = {text, length, 0};
	size_t n = 0, found;

	for (const struct jpath *p = path; p; p = p->up)
		n++;
	if (n > 256) /* deeper than the reader goes */
		return 0;
	for (size_t i = n; path; path = path->up)
		item[--i] = path;
	space(&w);
	found = w.at;
	for (size_t i = 0; i < n; i++)
		if (item[i]->key ? !enter_key(&w, item[i]->key, &found)
				 : !enter_index(&w, item[i]->index, &found))
			break;
	return found;
}
