// SPDX-License-Identifier: MIT
/* gpulist.c: see gpulist.h. */
#include "gpulist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST 1023ul /* index */

static int add(struct gpu_list *l, unsigned long index)
{
	if (index > MOST || l->n == GPU_LIST_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < l->n; i++)
		if (l->index[i] == index)
			return -EINVAL;
	l->index[l->n++] = (uint32_t)index;
	return 0;
}

int gpu_list_parse(const char *text, struct gpu_list *out)
{
	struct gpu_list l = {.n = 0};
	const char *at = text + 5;

	if (strncasecmp(text, "cuda:", 5) != 0)
		return -EINVAL;
	if (!strcasecmp(at, "all")) {
		*out = (struct gpu_list){.all = true};
		return 0;
	}
	for (;; at++) {
		char *end;

		if (*at < '0' || *at > '9' || add(&l, strtoul(at, &end, 10)))
			return -EINVAL;
		at = end;
		if (!*at)
			break;
		if (*at != ',')
			return -EINVAL;
	}
	*out = l;
	return 0;
}
