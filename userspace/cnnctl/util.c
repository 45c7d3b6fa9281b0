// SPDX-License-Identifier: MIT
/* util.c: messages, interrupts, database calls and the progress line of cnnctl. */
#include "cnnctl.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_flag;

static void on_signal(int sig)
{
	stop_flag = 1;
}

void catch_interrupts(void)
{
	struct sigaction a = {.sa_handler = on_signal}; /* no SA_RESTART: poll must return */

	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
}

bool interrupted(void)
{
	return stop_flag != 0;
}

static void say(const char *kind, const char *fmt, va_list ap)
{
	char line[8192];
	int n = vsnprintf(line, sizeof(line), fmt, ap);

	if (n < 0)
		return;
	if ((size_t)n >= sizeof(line))
		n = (int)sizeof(line) - 1;
	/* libpq's messages end with a newline, ours do not */
	while (n > 0 && line[n - 1] == '\n')
		line[--n] = '\0';
	fprintf(stderr, "cnnctl: %s%s\n", kind, line);
}

void warn_user(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say("warning: ", fmt, ap);
	va_end(ap);
}

int fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say("", fmt, ap);
	va_end(ap);
	return 1;
}

int usage(const char *text, const char *fmt, ...)
{
	va_list ap;

	if (fmt) {
		va_start(ap, fmt);
		say("", fmt, ap);
		va_end(ap);
	}
	fputs(text, fmt ? stderr : stdout);
	return fmt ? 2 : 0;
}

double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *human(double v, char *buf, size_t n)
{
	const char *unit = "";

	if (v >= 999.5e6) {
		v /= 1e9;
		unit = "G";
	} else if (v >= 999.5e3) {
		v /= 1e6;
		unit = "M";
	} else if (v >= 9999.5) {
		v /= 1e3;
		unit = "k";
	}
	snprintf(buf, n, *unit && v < 100 ? "%.1f%s" : "%.0f%s", v, unit);
	return buf;
}

/* ---- database ---- */

PGconn *db_open(const char *conninfo)
{
	const char *key[] = {"dbname", "fallback_application_name", "connect_timeout", NULL};
	const char *value[] = {conninfo ? conninfo : "", "cnnctl", "10", NULL};
	PGconn *db = PQconnectdbParams(key, value, 1);

	if (PQstatus(db) == CONNECTION_OK)
		return db;
	fail("%s", PQerrorMessage(db));
	PQfinish(db);
	return NULL;
}

bool db_good(PGconn *db, const PGresult *r)
{
	ExecStatusType s = PQresultStatus(r);
	const char *hint;

	if (s == PGRES_TUPLES_OK || s == PGRES_COMMAND_OK || s == PGRES_COPY_IN)
		return true;
	fail("%s", r ? PQresultErrorMessage(r) : PQerrorMessage(db));
	hint = r ? PQresultErrorField(r, PG_DIAG_MESSAGE_HINT) : NULL;
	if (hint && !strstr(PQresultErrorMessage(r), hint))
		fprintf(stderr, "HINT:  %s\n", hint);
	return false;
}

PGresult *db_query(PGconn *db, const char *sql, int n, const char *const *value)
{
	PGresult *r = PQexecParams(db, sql, n, NULL, value, NULL, NULL, 0);

	if (db_good(db, r))
		return r;
	PQclear(r);
	return NULL;
}

/* ---- progress ---- */

void bar_begin(struct bar *b, const char *title, const char *unit, double total)
{
	double now = now_seconds();

	*b = (struct bar){title, unit, total, now, now, isatty(STDERR_FILENO) != 0};
}

static int columns(void)
{
	struct winsize w;

	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &w) && w.ws_col > 20)
		return w.ws_col;
	return 80;
}

/* title [#####.....]  45%  12.3k images/s  ETA 0:12  more */
void bar_show(struct bar *b, double done, const char *more, bool force)
{
	double now = now_seconds(), rate, left;
	char line[512], cells[41], speed[16];
	int n, filled;

	if (!force && now - b->shown < (b->terminal ? .1 : 10))
		return;
	b->shown = now;
	rate = now > b->start ? done / (now - b->start) : 0;
	n = snprintf(line, sizeof(line), "%s ", b->title);
	if (b->total > 0) {
		filled = (int)(30 * fmin(1, done / b->total));
		for (int i = 0; i < 30; i++)
			cells[i] = i < filled ? '#' : '.';
		cells[30] = '\0';
		n += snprintf(line + n, sizeof(line) - (size_t)n, "[%s] %3.0f%%", cells,
			      100 * fmin(1, done / b->total));
	} else {
		n += snprintf(line + n, sizeof(line) - (size_t)n, "%.0f", done);
	}
	n += snprintf(line + n, sizeof(line) - (size_t)n, "  %s %s/s",
		      human(rate, speed, sizeof(speed)), b->unit);
	if (b->total > 0 && rate > 0 && done < b->total) {
		left = (b->total - done) / rate;
		n += snprintf(line + n, sizeof(line) - (size_t)n, "  ETA %d:%02d", (int)(left / 60),
			      (int)left % 60);
	}
	snprintf(line + n, sizeof(line) - (size_t)n, "  %s", more ? more : "");
	if (b->terminal)
		fprintf(stderr, "\r\033[K%.*s", columns() - 1, line);
	else
		fprintf(stderr, "%s\n", line);
	fflush(stderr);
}

void bar_clear(struct bar *b)
{
	if (b->terminal)
		fputs("\r\033[K", stderr);
	fflush(stderr);
}
