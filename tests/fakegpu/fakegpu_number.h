/* SPDX-License-Identifier: MIT */
/* fakegpu_number.h: f16 and bf16 to f32 and back, round to nearest even (IEEE 754). */
#ifndef FAKEGPU_NUMBER_H
#define FAKEGPU_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float number_from_bf16(uint16_t v)
{
	uint32_t bits = (uint32_t)v << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static inline uint16_t number_to_bf16(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	if (f != f)
		return 0x7fff;
	bits += 0x7fff + ((bits >> 16) & 1);
	return (uint16_t)(bits >> 16);
}

static inline float number_from_half(uint16_t v)
{
	int exponent = (v >> 10) & 31, mantissa = v & 1023;
	float f;

	if (exponent == 31)
		f = mantissa ? NAN : INFINITY;
	else if (exponent)
		f = ldexpf((float)(1024 + mantissa), exponent - 25);
	else
		f = ldexpf((float)mantissa, -24);
	return v & 0x8000 ? -f : f;
}

static inline uint16_t number_to_half(float f)
{
	uint16_t sign = signbit(f) ? 0x8000 : 0;
	float a = fabsf(f);
	int exponent;
	float scaled;

	if (f != f)
		return 0x7fff;
	if (a == 0)
		return sign;
	if (a >= 65520)
		return (uint16_t)(sign | 0x7c00);
	frexpf(a, &exponent);
	if (exponent < -13)
		return (uint16_t)(sign | (uint16_t)rintf(ldexpf(a, 24)));
	scaled = rintf(ldexpf(a, 11 - exponent)); /* 1024 .. 2048 */
	if (scaled == 2048) {
		scaled = 1024;
		exponent++;
	}
	return (uint16_t)(sign | ((unsigned int)(exponent + 14) << 10) |
			  ((unsigned int)scaled - 1024));
}

#endif
