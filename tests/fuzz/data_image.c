// SPDX-License-Identifier: MIT
/*
 * data_image.c: the image decoders on any bytes. The last byte chooses the channels that are
 * wanted; the rest is the image, in an allocation of just its size.
 */
#include <stdlib.h>
#include <string.h>

#include "userspace/data/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint32_t channels[] = {0, 1, 3};
	struct image_request request = {.max_pixels = 1 << 16};
	size_t capacity = 3 << 16;
	struct image_result result;
	uint8_t *out, *in;

	if (size < 1)
		return 0;
	request.c = channels[data[size - 1] % 3];
	in = malloc(size);
	out = malloc(capacity);
	memcpy(in, data, size);
	image_decode(&request, in, size, out, capacity, &result);
	if (result.code == IMAGE_OK &&
	    (!result.h || !result.w || (uint64_t)result.h * result.w > request.max_pixels ||
	     (result.c != 1 && result.c != 3) || (request.c && request.c != result.c)))
		abort();
	if (result.code == IMAGE_BAD && !memchr(result.reason, 0, sizeof(result.reason)))
		abort();
	free(in);
	free(out);
	return 0;
}
