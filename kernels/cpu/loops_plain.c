/* SPDX-License-Identifier: MIT */
/* loops_plain.c: the loops for the base instruction set of the build. */
#define LOOPS_NAME cpu_loops_plain
#define LOOPS_ISA "plain"
#include "loops_body.h"
