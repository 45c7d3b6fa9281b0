/* SPDX-License-Identifier: MIT */
/*
 * tap.h: the few lines a C test needs to speak TAP to prove. ok() never stops the test; use
 * BAIL only where going on makes no sense. Each program ends with return done();
 */
#ifndef TAP_H
#define TAP_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int tap_count, tap_failed;

static inline __attribute__((format(printf, 4, 5))) bool tap_ok(bool good, const char *file,
								int line, const char *fmt, ...)
{
	va_list ap;

	printf("%sok %d - ", good ? "" : "not ", ++tap_count);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
	if (!good) {
		printf("#   at %s:%d\n", file, line);
		tap_failed++;
	}
	fflush(stdout);
	return good;
}

#define ok(condition, ...) tap_ok(!!(condition), __FILE__, __LINE__, __VA_ARGS__)
/* equal integers, with both values in the message */
#define is(got, wanted, name)                                                    \
	do {                                                                     \
		long long tap_g = (long long)(got), tap_w = (long long)(wanted); \
		if (!ok(tap_g == tap_w, "%s", name))                             \
			printf("#   got %lld, wanted %lld\n", tap_g, tap_w);     \
	} while (0)
#define is_str(got, wanted, name)                                                           \
	do {                                                                                \
		const char *tap_g = (got), *tap_w = (wanted);                               \
		if (!ok(tap_g && tap_w && !strcmp(tap_g, tap_w), "%s", name))               \
			printf("#   got '%s'\n#   wanted '%s'\n", tap_g ? tap_g : "(null)", \
			       tap_w ? tap_w : "(null)");                                   \
	} while (0)
/* the text holds the piece */
#define like(text, piece, name)                                                               \
	do {                                                                                  \
		const char *tap_t = (text), *tap_p = (piece);                                 \
		if (!ok(tap_t && strstr(tap_t, tap_p), "%s", name))                           \
			printf("#   '%s' is not in '%s'\n", tap_p, tap_t ? tap_t : "(null)"); \
	} while (0)
#define near(got, wanted, tolerance, name)                                          \
	do {                                                                        \
		double tap_g = (got), tap_w = (wanted);                             \
		if (!ok(fabs(tap_g - tap_w) <= (tolerance), "%s", name))            \
			printf("#   got %.9g, wanted %.9g +- %.3g\n", tap_g, tap_w, \
			       (double)(tolerance));                                \
	} while (0)
#define skip(why, name) printf("ok %d - %s # SKIP %s\n", ++tap_count, name, why)
#define BAIL(...)                     \
	do {                          \
		printf("Bail out! "); \
		printf(__VA_ARGS__);  \
		putchar('\n');        \
		exit(1);              \
	} while (0)

static inline int done(void)
{
	printf("1..%d\n", tap_count);
	fflush(stdout); /* before a leak checker ends the process */
	return tap_failed ? 1 : 0;
}

#endif
