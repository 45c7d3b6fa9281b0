# SPDX-License-Identifier: MIT
# kernels/cuda/: the CUDA back end, a shared object that is loaded when a GPU is asked for. Built where
# nvcc, cudnn.h and nccl.h are found; elsewhere `make all` says in one line that it is not.
#
#   CUDA_HOME=dir    toolkit (default: that of nvcc, or /usr/local/cuda)
#   CUDA_ARCHS=80    what to compile for: numbers, `native` (the GPU of this machine) or `all` (of the list
#                    below, what this nvcc offers); PTX of the newest goes along, for GPUs to come
#   CUDA_XFLAGS=     more options for nvcc, such as -Xcompiler --coverage
CUDA_HOME ?= $(or $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v nvcc 2>/dev/null))),/usr/local/cuda)
NVCC := $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA_INC := $(wildcard $(CUDA_HOME)/include)
CUDA_LIB := $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib)
cuda_header = $(firstword $(wildcard $(CUDA_INC:%=%/$(1)) /usr/include/$(1) /usr/local/include/$(1) \
	/usr/include/x86_64-linux-gnu/$(1)))
CUDA_MISSING := $(if $(NVCC),,nvcc under $(CUDA_HOME)) $(if $(call cuda_header,cudnn.h),,cudnn.h) \
	$(if $(call cuda_header,nccl.h),,nccl.h)
CUDA_MISSING := $(strip $(CUDA_MISSING))

CUDA_SRC := $(wildcard kernels/cuda/*.c)
CUDA_CU := $(wildcard kernels/cuda/*.cu)
# what a back end takes from kernels/
CUDA_COMMON := kernels/fail.c kernels/net.c kernels/graph.c kernels/loss.c kernels/update.c
CUDA_OBJ := $(CUDA_SRC:%.c=$(BUILD)/obj/%.o) $(CUDA_CU:%=$(BUILD)/obj/%.o) $(CUDA_COMMON:%.c=$(BUILD)/obj/%.o)
CFLAGS_kernels_cuda := $(CUDA_INC:%=-isystem %) -Wno-deprecated-declarations

CUDA_ARCHS ?= 80
CUDA_OFFERED = $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code))
CUDA_LIST = $(if $(filter all,$(CUDA_ARCHS)),$(filter $(CUDA_OFFERED),75 80 86 89 90 100 120),$(CUDA_ARCHS))
CUDA_GENCODE = $(if $(filter native,$(CUDA_ARCHS)),-arch=native,$(foreach a,$(CUDA_LIST),\
	-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_$(lastword $(CUDA_LIST)),code=compute_$(lastword $(CUDA_LIST)))
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-Wall $(if $(WERROR),-Werror all-warnings) \
	$(CUDA_GENCODE) $(CUDA_XFLAGS)
# equal gradients give equal parameters, and equal rows equal inputs, on every back end
NVCC_update := -fmad=false
NVCC_input := -fmad=false
NVCC_merge := -fmad=false

.PHONY: cuda
ifeq ($(CUDA_MISSING),)
$(BUILD)/obj/kernels/cuda/%.cu.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_$*) -MD -MP -MF $(@:.o=.d) -MT $@ -c -o $@ $<

# libcudart as a shared object, no search path in the file: the system's loader finds the libraries
$(BUILD)/lib/libcnn_cuda.so: $(CUDA_OBJ) kernels/cuda/exports.map
	@mkdir -p $(@D)
	$(CC) -shared $(CNN_LDFLAGS) -o $@ $(CUDA_OBJ) -Wl,--version-script=kernels/cuda/exports.map \
		-Wl,-z,defs $(CUDA_LIB:%=-L%) -lcudnn -lcublasLt -lcudart -lstdc++ -lm
cuda: $(BUILD)/lib/libcnn_cuda.so ## the CUDA back end, where the toolkit is
all: cuda
else
cuda:
	@echo "libcnn_cuda.so is not built: missing $(CUDA_MISSING)"
all: cuda
endif
