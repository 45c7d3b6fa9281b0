/* SPDX-License-Identifier: MIT */
/*
 * cnnctl.h: the pieces of the command line tool. Each command is one file with one entry that takes
 * its own argv and returns the exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
 */
#ifndef CNNCTL_H
#define CNNCTL_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int cmd_load(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_drain(int argc, char **argv);

/* ---- util.c ---- */
void warn_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The message on stderr with the program's name; returns 2 (usage) or 1 (failure). */
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int usage(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
double now_seconds(void);
/* Set by SIGINT and SIGTERM once catch_interrupts was called. */
bool interrupted(void);
void catch_interrupts(void);
/* NULL with a message on stderr when the connection fails. */
PGconn *db_open(const char *conninfo);
/* Runs one statement with text parameters; NULL with a message when it fails. */
PGresult *db_query(PGconn *db, const char *sql, int n, const char *const *value);
/* True when the statement's status is as it should be; prints the error otherwise. */
bool db_good(PGconn *db, const PGresult *result);
/* `12.3k`, `4.5M`: at most 6 characters into buf. */
const char *human(double value, char *buf, size_t n);

/* A one-line progress display on a terminal; on anything else a line every 10 s. */
struct bar {
	const char *title, *unit;
	double total, start, shown;
	bool terminal;
};
void bar_begin(struct bar *bar, const char *title, const char *unit, double total);
void bar_show(struct bar *bar, double done, const char *more, bool force);
void bar_clear(struct bar *bar);

/* ---- source.c: images and labels from files ---- */

enum source_format { SOURCE_AUTO, SOURCE_IDX, SOURCE_CIFAR10, SOURCE_CIFAR100, SOURCE_FILES };

struct source_item {
	const uint8_t *x;
	size_t x_bytes;
	int32_t label;	   /* IDX, CIFAR */
	const char *class; /* folder or tar: name of the parent folder */
	const char *path;
};

struct source_bad {
	char path[4096];
	char reason[128];
};

struct source;

/* Paths: an IDX image file and its label file; CIFAR binary files; folders or tars of images.
 * only: a prefix of the path inside a folder or tar, or NULL. Anything libarchive can decompress
 * may be compressed. NULL with error filled on failure. */
struct source *source_open(enum source_format format, char **path, int n, const char *only,
			   char *error, size_t error_bytes);
void source_close(struct source *source);
bool source_has_paths(const struct source *source); /* items have class and path */
uint64_t source_total(const struct source *source); /* items, 0: not known before the end */
/* 1: item filled (valid until the next call); 0: end; -1: the source is broken, error filled; 2: a
 * bad file, bad filled, the rest goes on. */
int source_next(struct source *source, struct source_item *item, struct source_bad *bad,
		char *error, size_t error_bytes);

#endif
