// SPDX-License-Identifier: MIT
/* all_kernels.cc: the host build of every kernel, run by kernels.c in place of the GPU's code. */
#include "kernels/cuda/all.cuh"
