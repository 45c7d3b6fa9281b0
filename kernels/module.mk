# SPDX-License-Identifier: MIT
# kernels/: the compute back ends. Shared code and ref must not contract a*b+c, so that every
# instruction set gives the same optimizer and the oracle stays one; cpu may.
KERNELS_SRC := $(wildcard kernels/*.c kernels/ref/*.c kernels/cpu/*.c)
CFLAGS_kernels := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off
CFLAGS_kernels_cpu := -ffp-contract=fast

$(BUILD)/libkernels.a: $(KERNELS_SRC:%.c=$(BUILD)/obj/%.o)
LIBS_kernels := $(BUILD)/libkernels.a
SYS_kernels := -ldnnl -ldl -lm
all: $(BUILD)/libkernels.a
