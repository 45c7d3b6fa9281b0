# SPDX-License-Identifier: MIT
# tests/fakegpu: simulated libcudart, libcudnn, libcublasLt and libnccl, under the sonames and symbol
# versions of the real ones, in $(FAKEGPU). They are compiled against the toolkit's headers, so there
# is nothing to build, and a named SKIP, where there is no toolkit.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null)))
comma := ,
FAKEGPU := $(BUILD)/fakegpu
FAKEGPU_HAVE := $(and $(CUDA_HOME),$(wildcard $(CUDA_HOME)/include/cudnn.h),$(wildcard $(CUDA_HOME)/include/nccl.h))
FAKEGPU_DIR := tests/fakegpu

FAKEGPU_CFLAGS := -std=gnu11 -O2 -g -fPIC -pthread -Wall -Wextra -Wshadow -Wno-deprecated-declarations \
	-Wno-unused-parameter $(if $(WERROR),-Werror) -isystem $(CUDA_HOME)/include
# No FMA contraction: what the kernels compute with plain operators has two roundings, as their rules say.
FAKEGPU_CXXFLAGS := -std=c++17 -O2 -g -fPIC -pthread -ffp-contract=off -Wall -Wno-unknown-pragmas -Wno-unused-function \
	-isystem $(CUDA_HOME)/include -I$(FAKEGPU_DIR) -I.

FAKEGPU_CORE := core fault exec event graph cudart kernels
FAKEGPU_OF_dnn := dnn dnn_run dnn_find
FAKEGPU_OF_blaslt := blaslt
FAKEGPU_OF_nccl := nccl
FAKEGPU_LIBS := $(FAKEGPU)/libcudart.so.13 $(FAKEGPU)/libcudnn.so.9 $(FAKEGPU)/libcublasLt.so.13 $(FAKEGPU)/libnccl.so.2

$(FAKEGPU)/obj/%.o: $(FAKEGPU_DIR)/%.c
	@mkdir -p $(@D)
	$(CC) $(FAKEGPU_CFLAGS) -MMD -MP -c -o $@ $<

# libcudart carries what the others share: a process has one of each.
$(FAKEGPU)/libcudart.so.13: $(FAKEGPU_CORE:%=$(FAKEGPU)/obj/%.o) $(FAKEGPU_DIR)/cudart.map
	$(CC) -shared -Wl,-soname,libcudart.so.13 -Wl,--version-script,$(FAKEGPU_DIR)/cudart.map -o $@ \
		$(filter %.o,$^) -pthread -ldl -lm
define fakegpu_lib
$(FAKEGPU)/$(1): $(FAKEGPU_OF_$(2):%=$(FAKEGPU)/obj/%.o) $(FAKEGPU)/libcudart.so.13
	$$(CC) -shared -Wl,-soname,$(1) $(3) -Wl,-rpath,'$$$$ORIGIN' -o $$@ $$(filter %.o,$$^) $(FAKEGPU)/libcudart.so.13 -lm
endef
$(eval $(call fakegpu_lib,libcudnn.so.9,dnn,-Wl$(comma)--version-script$(comma)$(FAKEGPU_DIR)/cudnn.map))
$(eval $(call fakegpu_lib,libcublasLt.so.13,blaslt,-Wl$(comma)--version-script$(comma)$(FAKEGPU_DIR)/cublasLt.map))
$(eval $(call fakegpu_lib,libnccl.so.2,nccl,))

# The host build of the kernels; the same with the lines counted (one thread runs them all).
$(FAKEGPU)/libkernels.so: $(FAKEGPU_DIR)/all_kernels.cc $(wildcard kernels/cuda/*.cuh kernels/cuda/*.h) $(FAKEGPU)/libcudart.so.13
	$(CXX) $(FAKEGPU_CXXFLAGS) -shared -o $@ $< $(FAKEGPU)/libcudart.so.13
$(BUILD)/coverage/fakegpu/libkernels.so: $(FAKEGPU_DIR)/all_kernels.cc $(wildcard kernels/cuda/*.cuh kernels/cuda/*.h) $(FAKEGPU)/libcudart.so.13
	@mkdir -p $(@D)
	$(CXX) $(FAKEGPU_CXXFLAGS) --coverage -fprofile-update=single -shared -o $@ $< $(FAKEGPU)/libcudart.so.13
$(FAKEGPU)/libself_kernels.so: $(FAKEGPU_DIR)/self_kernels.cc $(FAKEGPU_DIR)/fakegpu_device.h $(FAKEGPU)/libcudart.so.13
	$(CXX) $(FAKEGPU_CXXFLAGS) -shared -o $@ $< $(FAKEGPU)/libcudart.so.13
$(FAKEGPU)/self: $(FAKEGPU)/obj/self.o $(FAKEGPU_LIBS) $(FAKEGPU)/libself_kernels.so
	$(CC) -pthread -o $@ $< $(FAKEGPU_LIBS) -lm -Wl,-rpath,'$$ORIGIN'

.PHONY: check-fakegpu-self
check-fakegpu-self:
ifneq ($(FAKEGPU_HAVE),)
check-fakegpu-self: $(FAKEGPU)/self ## the simulated GPU sees what it is there to see
	FAKEGPU_KERNELS=$(FAKEGPU)/libself_kernels.so tests/harness $<
endif

# cnnd with simulated GPUs: the object that nvcc has built, its libraries replaced. Skipped by name
# where that object is not built.
$(BUILD)/tests/fakegpu/daemon: $(BUILD)/obj/tests/fakegpu/daemon.o $(CNND_LAB_OBJ) $(LIBS_ring) $(LIBS_ctl) | $(BUILD)/bin/cnnd
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed -lcrypto -lm
FAKEGPU_ENV := CNN_CUDA_LIBRARY=$(abspath $(BUILD))/lib/libcnn_cuda.so FAKEGPU_KERNELS=$(abspath $(FAKEGPU))/libkernels.so \
	LD_LIBRARY_PATH=$(abspath $(FAKEGPU)):$$LD_LIBRARY_PATH
.PHONY: check-fakegpu check-fakegpu-cnnd
check-fakegpu: check-fakegpu-cnnd
ifneq ($(FAKEGPU_HAVE),)
check-fakegpu-cnnd: cuda $(FAKEGPU_LIBS) $(FAKEGPU)/libkernels.so
endif
check-fakegpu-cnnd: $(BUILD)/tests/fakegpu/daemon ## cnnd with simulated GPUs
	$(if $(FAKEGPU_HAVE),$(FAKEGPU_ENV)) tests/harness $<

# Two hosts of four simulated GPUs each, from SQL.
.PHONY: check-fakegpu-sql
check-fakegpu: check-fakegpu-sql
ifneq ($(FAKEGPU_HAVE),)
check-fakegpu-sql: cuda $(FAKEGPU_LIBS) $(FAKEGPU)/libkernels.so udf-stage $(BUILD)/bin/cnnd
endif
check-fakegpu-sql: ## trainings from SQL on two hosts with simulated GPUs
	$(if $(FAKEGPU_HAVE),FAKEGPU=$(abspath $(FAKEGPU)) LIBRARIES=$(abspath $(BUILD))/lib) \
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness tests/fakegpu/hosts

-include $(wildcard $(FAKEGPU)/obj/*.d)
