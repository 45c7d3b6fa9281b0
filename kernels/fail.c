/* SPDX-License-Identifier: MIT */
/* fail.c: messages of errors, and sizes of element types: what every object of kernels/ needs. */
#include <stdarg.h>
#include <stdio.h>

#include "ops.h"

int backend_fail(struct backend_error *error, int code, const char *fmt, ...)
{
	va_list ap;

	if (!error)
		return code;
	va_start(ap, fmt);
	vsnprintf(error->message, sizeof(error->message), fmt, ap);
	va_end(ap);
	return code;
}

size_t backend_dtype_bytes(enum backend_dtype dtype)
{
	static const uint8_t bytes[BACKEND_DTYPE_COUNT] = {1, 2, 4, 4, 8};

	return (unsigned int)dtype < BACKEND_DTYPE_COUNT ? bytes[dtype] : 0;
}
