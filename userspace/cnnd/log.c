// SPDX-License-Identifier: MIT
/* log.c: see log.h. A line is built in one buffer and written by one call, so that lines of several
 * threads do not mix. */
#include "log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "../ctl/ctl.h"

#define LINE 2048

/* The one piece of state that every part of the daemon shares without a handle: where lines go. */
static struct {
	bool to_syslog, journal;
	atomic_bool debug;
} out;

void log_open(const char *program, bool foreground, bool debug)
{
	out.to_syslog = !foreground;
	out.journal = foreground && getenv("JOURNAL_STREAM");
	atomic_store(&out.debug, debug);
	if (out.to_syslog)
		openlog(program, LOG_PID, LOG_DAEMON);
}

void log_set_debug(bool debug)
{
	atomic_store(&out.debug, debug);
}

size_t log_quote(char *dst, size_t capacity, const char *text)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = 0;

	if (capacity < 8) {
		if (capacity)
			dst[0] = '\0';
		return 0;
	}
	dst[n++] = '"';
	for (; *text && n + 6 < capacity; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < 0x20 || c == 0x7f) {
			dst[n++] = '\\';
			dst[n++] = 'x';
			dst[n++] = hex[c >> 4];
			dst[n++] = hex[c & 15];
		} else {
			if (c == '"' || c == '\\')
				dst[n++] = '\\';
			dst[n++] = (char)c;
		}
	}
	dst[n++] = '"';
	dst[n] = '\0';
	return n;
}

static size_t put(char *line, size_t n, const char *key, const char *value)
{
	bool first = !n || line[n - 1] == '>';
	int k = snprintf(line + n, LINE - n, "%s%s=", first ? "" : " ", key);

	if (k < 0 || (size_t)k >= LINE - n)
		return n;
	n += (size_t)k;
	if (value[0] && !value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					     "0123456789_-.:/")]) {
		k = snprintf(line + n, LINE - n, "%s", value);
		return k < 0 || (size_t)k >= LINE - n ? n : n + (size_t)k;
	}
	return n + log_quote(line + n, LINE - n, value);
}

static size_t put_time(char *line)
{
	struct timespec t;
	struct tm tm;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &t);
	if (!gmtime_r(&t.tv_sec, &tm))
		return 0;
	n = strftime(line, LINE, "%Y-%m-%dT%H:%M:%S", &tm);
	return n + (size_t)snprintf(line + n, LINE - n, ".%03ldZ", t.tv_nsec / 1000000);
}

static void emit(int priority, const char *level, const struct log_tag *tag, const char *fmt,
		 va_list ap)
{
	char line[LINE + 2], text[1024], job[2 * CTL_ID + 1];
	size_t n = 0;

	vsnprintf(text, sizeof(text), fmt, ap);
	if (!out.to_syslog)
		n = out.journal ? (size_t)snprintf(line, LINE, "<%d>", priority) : put_time(line);
	n = put(line, n, "level", level);
	if (tag && tag->code)
		n = put(line, n, "code", tag->code);
	if (tag && tag->job) {
		for (int i = 0; i < CTL_ID; i++)
			snprintf(job + 2 * i, 3, "%02x", tag->job[i]);
		n = put(line, n, "job", job);
	}
	if (tag && tag->role)
		n = put(line, n, "role", tag->role);
	if (tag && tag->wait)
		n = put(line, n, "wait", tag->wait);
	n = put(line, n, "msg", text);
	if (out.to_syslog) {
		syslog(priority, "%s", line);
		return;
	}
	line[n++] = '\n';
	/* a log that cannot be written (closed terminal, full disk) must not stop the daemon */
	if (write(STDERR_FILENO, line, n) < 0)
		return;
}

#define LOG_FUNCTION(name, priority, level)                        \
	void name(const struct log_tag *tag, const char *fmt, ...) \
	{                                                          \
		va_list ap;                                        \
                                                                   \
		va_start(ap, fmt);                                 \
		emit(priority, level, tag, fmt, ap);               \
		va_end(ap);                                        \
	}

LOG_FUNCTION(log_error, LOG_ERR, "error")
LOG_FUNCTION(log_warn, LOG_WARNING, "warn")
LOG_FUNCTION(log_info, LOG_INFO, "info")

void log_debug(const struct log_tag *tag, const char *fmt, ...)
{
	va_list ap;

	if (!atomic_load(&out.debug))
		return;
	va_start(ap, fmt);
	emit(LOG_DEBUG, "debug", tag, fmt, ap);
	va_end(ap);
}
