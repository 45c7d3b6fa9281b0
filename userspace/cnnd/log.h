/* SPDX-License-Identifier: MIT */
/*
 * log.h: the daemon's log. Four functions; a line is key=value pairs: level, code, job, role, wait
 * where they are known, then msg. Codes are listed in cnnd(8). Text of clients is quoted and
 * escaped, so a line stays a line.
 */
#ifndef CNND_LOG_H
#define CNND_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a line is about; any member may be NULL. job: CTL_ID bytes. */
struct log_tag {
	const char *code;
	const uint8_t *job;
	const char *role, *wait;
};

#define LOG_CODE(code_) (&(const struct log_tag){.code = (code_)})

/* foreground: to standard error (with the journal's level prefix under systemd), else to syslog. */
void log_open(const char *program, bool foreground, bool debug);
void log_set_debug(bool debug);

void log_error(const struct log_tag *tag, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void log_warn(const struct log_tag *tag, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void log_info(const struct log_tag *tag, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void log_debug(const struct log_tag *tag, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Appends text as "quoted", control characters as \xNN; cuts at the end of the buffer, which stays
 * terminated. Returns the length written. */
size_t log_quote(char *out, size_t capacity, const char *text);

#endif
