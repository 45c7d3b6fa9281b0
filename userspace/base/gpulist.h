/* SPDX-License-Identifier: MIT */
/* gpulist.h: "cuda:0,2" and "cuda:all", as configuration files and arguments name GPUs. */
#ifndef CNN_GPULIST_H
#define CNN_GPULIST_H

#include <stdbool.h>
#include <stdint.h>

#define GPU_LIST_MAX 64

struct gpu_list {
	bool all;
	uint32_t n; /* 0 with all */
	uint32_t index[GPU_LIST_MAX];
};

/* -EINVAL: no such list; an index that is given twice; more than GPU_LIST_MAX of them. */
int gpu_list_parse(const char *text, struct gpu_list *out);

#endif
