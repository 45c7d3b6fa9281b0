# SPDX-License-Identifier: MIT
# nccl_merge/nccl/: the all-reduce between the GPUs of a host, a shared object like the CUDA back end and
# built where that one is (kernels/cuda/module.mk).
NCCL_SRC := $(wildcard nccl_merge/nccl/*.c)
NCCL_OBJ := $(NCCL_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/nccl_merge/common.o
CFLAGS_nccl_merge_nccl := $(CUDA_INC:%=-isystem %)
ifeq ($(CUDA_MISSING),)
$(BUILD)/lib/libcnn_nccl.so: $(NCCL_OBJ) nccl_merge/nccl/exports.map
	@mkdir -p $(@D)
	$(CC) -shared $(CNN_LDFLAGS) -o $@ $(NCCL_OBJ) -Wl,--version-script=nccl_merge/nccl/exports.map \
		-Wl,-z,defs $(CUDA_LIB:%=-L%) -lnccl -lcudart -lm
cuda: $(BUILD)/lib/libcnn_nccl.so
endif
