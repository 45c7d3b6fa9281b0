/* SPDX-License-Identifier: MIT */
/*
 * intra.h: what stands behind merge_intra_*: a table of calls. The front (intra_front.c) checks
 * ranges and replicas; each implementation's struct begins with struct merge_intra.
 */
#ifndef MERGE_INTRA_H
#define MERGE_INTRA_H

#include "internal.h"

/* Raised whenever a struct or a signature below changes. */
#define MERGE_INTRA_VERSION 2
#define MERGE_INTRA_ENTRY "merge_intra_entry"

struct merge_intra_ops {
	uint32_t version;
	int (*open)(const struct merge_intra_config *config, struct merge_intra **out,
		    struct merge_error *error);
	int (*bucket)(struct merge_intra *intra, uint32_t replica, uint64_t offset, uint64_t length,
		      void *ready, struct merge_error *error);
	int (*wait)(struct merge_intra *intra, uint32_t replica, struct merge_error *error);
	void (*abort)(struct merge_intra *intra);
	void (*close)(struct merge_intra *intra);
	/* device memory that the collectives know; device -1: the current one. NULL: no devices */
	int (*alloc)(int device, size_t bytes, void **out);
	void (*release)(void *memory);
	/* between host memory and a device's; returns when it is done */
	int (*copy)(int device, void *to, const void *from, size_t bytes, bool to_device);
};
typedef const struct merge_intra_ops *(*merge_intra_entry_fn)(uint32_t version);

extern const struct merge_intra_ops merge_intra_shared;

struct merge_intra {
	const struct merge_intra_ops *ops;
	uint32_t replicas;
	uint64_t floats;
};

#endif
