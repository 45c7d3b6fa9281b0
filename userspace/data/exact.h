/* SPDX-License-Identifier: MIT */
/*
 * exact.h: a sum of doubles without rounding (a fixed-point number as wide as the range of double,
 * after Kulisch), so that the result does not depend on the order or on who added what.
 */
#ifndef DATA_EXACT_H
#define DATA_EXACT_H

#include <stdint.h>

/* 2^-1074 .. 2^1024 in digits of 32 bits, and room for carries */
#define EXACT_DIGITS 68

struct exact {
	int64_t digit[EXACT_DIGITS]; /* digit i counts 2^(32 i - 1074) */
	uint32_t pending;	     /* additions since carries were moved up */
};

void exact_add(struct exact *sum, double value); /* value is finite */
void exact_merge(struct exact *sum, struct exact *other);
/* The sum, rounded; a function of the exact value alone. */
double exact_value(struct exact *sum);

#endif
