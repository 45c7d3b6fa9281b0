/* SPDX-License-Identifier: MIT */
/* fakegpu_kernel.h: between the host build of the kernels and what runs them. */
#ifndef FAKEGPU_KERNEL_H
#define FAKEGPU_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fakegpu_index {
	unsigned int x, y, z;
};
extern struct fakegpu_index fakegpu_thread, fakegpu_block, fakegpu_block_dim, fakegpu_grid_dim;

typedef void (*fakegpu_thunk)(const void *args);
void fakegpu_register(const char *name, fakegpu_thunk run, size_t bytes, int sync);
void fakegpu_barrier(void);
void fakegpu_shuffle(void *value, size_t bytes, unsigned int mask);
/* The i-th kernel and how often it ran; -1 past the last: for the report of what tests covered. */
int fakegpu_kernel_runs(int i, const char **name, uint64_t *runs);

#ifdef __cplusplus
}
#endif

#endif
