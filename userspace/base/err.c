// SPDX-License-Identifier: MIT
/* err.c: see err.h. */
#include "err.h"

#include <stdio.h>
#include <string.h>

int err_set(struct err *err, enum err_kind kind, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->kind = kind;
	err->hint[0] = '\0';
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	return code;
}

void err_hint(struct err *err, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return;
	va_start(ap, fmt);
	vsnprintf(err->hint, sizeof(err->hint), fmt, ap);
	va_end(ap);
}

void err_prefix(struct err *err, const char *fmt, ...)
{
	char old[sizeof(err->message)];
	size_t n;
	va_list ap;

	if (!err)
		return;
	memcpy(old, err->message, sizeof(old));
	va_start(ap, fmt);
	vsnprintf(err->message, sizeof(err->message), fmt, ap);
	va_end(ap);
	/* the old message follows, cut where it does not fit */
	n = strlen(err->message);
	for (const char *p = ": "; *p && n + 1 < sizeof(err->message); p++)
		err->message[n++] = *p;
	for (const char *p = old; *p && n + 1 < sizeof(err->message); p++)
		err->message[n++] = *p;
	err->message[n] = '\0';
}

const char *err_kind_name(enum err_kind kind)
{
	static const char *const names[ERR_KIND_COUNT] = {
		"none",	    "internal", "parameter", "architecture", "data",
		"limit",    "rights",	"busy",	     "canceled",     "lost",
		"protocol", "numeric",	"io",	     "draining",     "no_job",
	};

	if ((unsigned int)kind >= ERR_KIND_COUNT)
		return "unknown";
	return names[kind];
}
