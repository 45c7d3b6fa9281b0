/* SPDX-License-Identifier: MIT */
/*
 * err.h: how every library of userspace/ reports an error: a kind (what the caller can do about
 * it; the extension turns it into an SQLSTATE), a message and a hint. Libraries never print and
 * never exit; a function that can fail returns 0 or -errno and fills the struct err it was given.
 */
#ifndef CNN_ERR_H
#define CNN_ERR_H

#include <stdarg.h>
#include <stddef.h>

enum err_kind {
	ERR_NONE = 0,
	ERR_INTERNAL = 1,  /* a bug or an impossible state */
	ERR_PARAM = 2,	   /* an argument of the caller: name, value, range */
	ERR_ARCH = 3,	   /* the architecture text */
	ERR_DATA = 4,	   /* rows of the user's table */
	ERR_LIMIT = 5,	   /* memory, disk, connections: message names limit, needed, free */
	ERR_RIGHTS = 6,	   /* secret, role or uid */
	ERR_BUSY = 7,	   /* device taken; try again */
	ERR_CANCELED = 8,  /* the job was ended by its owner */
	ERR_LOST = 9,	   /* the peer is gone or silent */
	ERR_PROTOCOL = 10, /* malformed frame or record */
	ERR_NUMERIC = 11,  /* NaN or Inf in the loss */
	ERR_IO = 12,	   /* system call on a file */
	ERR_DRAINING = 13, /* the daemon takes no new jobs */
	ERR_NOJOB = 14,	   /* no such job on this daemon */
	ERR_KIND_COUNT
};

struct err {
	enum err_kind kind;
	char message[768];
	char hint[256];
};

/* err_set: formats the message, clears the hint, returns code (a negative errno). err may be NULL.
 */
int err_set(struct err *err, enum err_kind kind, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* err_hint: adds a hint to an error already set. err may be NULL. */
void err_hint(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* err_prefix: puts "text: " before the message (for relays that know more of the place). */
void err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *err_kind_name(enum err_kind kind);

#endif
