// SPDX-License-Identifier: MIT
/* notice.c: collects lines for the user; "W:" before one makes it a warning (ctl.h, apply_ok). */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_notice_add(struct notice *notice, const char *fmt, ...)
{
	char line[768], *grown;
	size_t old = notice->text ? strlen(notice->text) : 0, n;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	n = strlen(line);
	grown = realloc(notice->text, old + n + 2);
	if (!grown) {
		notice->failed = true;
		return;
	}
	if (old)
		grown[old++] = '\n';
	memcpy(grown + old, line, n + 1);
	notice->text = grown;
}
