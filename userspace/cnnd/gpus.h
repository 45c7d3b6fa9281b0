/* SPDX-License-Identifier: MIT */
/*
 * gpus.h: which GPUs this host has. Asking touches their driver, which may crash, or never answer;
 * so a child asks, and tells by a pipe.
 */
#ifndef CNND_GPUS_H
#define CNND_GPUS_H

#include "../../kernels/backend.h"
#include "../base/err.h"
#include "../base/gpulist.h"

#define GPUS_DEADLINE_MS 20000u

struct gpus {
	uint32_t n;
	struct backend_device gpu[GPU_LIST_MAX];
};

/*
 * Forks: to be called while the process has no threads. -ENOENT: the CUDA back end is not
 * installed; 0 with n = 0: it is, and there is no GPU; else the child's end, or its own error, in
 * err.
 */
int gpus_find(unsigned int deadline_ms, struct gpus *out, struct err *err);

#endif
