// SPDX-License-Identifier: MIT
/* exact.c: see exact.h. */
#include "exact.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A digit takes 2^30 additions of less than 2^32 before it could overflow. */
#define EXACT_PENDING (1u << 30)

/* Every digit but the last to [0, 2^32); the last keeps the sign. */
static void normalize(struct exact *sum)
{
	for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
		int64_t carry = sum->digit[i] >> 32;

		sum->digit[i] -= carry * ((int64_t)1 << 32);
		sum->digit[i + 1] += carry;
	}
	sum->pending = 0;
}

void exact_add(struct exact *sum, double value)
{
	uint64_t bits, mantissa;
	unsigned int exponent, at, shift;
	uint64_t low, high;
	int64_t sign;

	memcpy(&bits, &value, sizeof(bits));
	exponent = (bits >> 52) & 0x7ff;
	mantissa = bits & (((uint64_t)1 << 52) - 1);
	if (exponent)
		mantissa |= (uint64_t)1 << 52;
	else
		exponent = 1; /* subnormal */
	if (!mantissa || exponent == 0x7ff)
		return;
	sign = bits >> 63 ? -1 : 1;
	/* value = mantissa * 2^(exponent - 1075) */
	at = (exponent - 1) / 32;
	shift = (exponent - 1) % 32;
	low = mantissa << shift;
	high = shift ? mantissa >> (64 - shift) : 0;
	sum->digit[at] += sign * (int64_t)(low & 0xffffffff);
	sum->digit[at + 1] += sign * (int64_t)(low >> 32);
	sum->digit[at + 2] += sign * (int64_t)high;
	if (++sum->pending >= EXACT_PENDING)
		normalize(sum);
}

void exact_merge(struct exact *sum, struct exact *other)
{
	normalize(sum);
	normalize(other);
	for (int i = 0; i < EXACT_DIGITS; i++)
		sum->digit[i] += other->digit[i];
	sum->pending = 2;
}

double exact_value(struct exact *sum)
{
	struct exact copy = *sum;
	bool negative;
	double value = 0;

	normalize(&copy);
	negative = copy.digit[EXACT_DIGITS - 1] < 0;
	if (negative) { /* the digits of the magnitude, so that x and -x round alike */
		for (int i = 0; i < EXACT_DIGITS; i++)
			copy.digit[i] = -copy.digit[i];
		normalize(&copy);
	}
	for (int i = EXACT_DIGITS - 1; i >= 0; i--)
		if (copy.digit[i])
			value += ldexp((double)copy.digit[i], 32 * i - 1074);
	return negative ? -value : value;
}
