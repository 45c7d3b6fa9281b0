/* SPDX-License-Identifier: MIT */
/* all.cuh: every kernel of the back end, for a build that wants them in one piece. */
#include "input.cuh"
#include "linear.cuh"
#include "elementwise.cuh"
#include "move.cuh"
#include "pool.cuh"
#include "norm.cuh"
#include "conv.cuh"
#include "depthwise.cuh"
#include "loss.cuh"
#include "update.cuh"
#include "merge.cuh"
