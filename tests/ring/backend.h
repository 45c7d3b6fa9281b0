/* SPDX-License-Identifier: MIT */
/* backend.h: the tests of the ring run on either back end: RING_BACKEND=device, else memfd. */
#ifndef BACKEND_H
#define BACKEND_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../userspace/ring/ring.h"

static inline bool on_device(void)
{
	const char *name = getenv("RING_BACKEND");

	return name && !strcmp(name, "device");
}

static inline int make_ring(size_t bytes, struct ring **out)
{
	char why[RING_WHY] = "";
	int rc = ring_create_on(on_device() ? RING_BACKEND_DEVICE : RING_BACKEND_MEMFD, bytes, out,
				why);

	if (why[0])
		printf("# %s\n", why);
	return rc;
}

#endif
