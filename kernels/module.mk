# SPDX-License-Identifier: MIT
# kernels/: the compute back ends. ref must not contract a*b+c, so that it stays the oracle.
KERNELS_SRC := $(wildcard kernels/*.c kernels/ref/*.c kernels/cpu/*.c)
CFLAGS_kernels := -O3
CFLAGS_kernels_ref := -ffp-contract=off

$(BUILD)/libkernels.a: $(KERNELS_SRC:%.c=$(BUILD)/obj/%.o)
LIBS_kernels := $(BUILD)/libkernels.a
SYS_kernels := -ldnnl -ldl -lm
all: $(BUILD)/libkernels.a
