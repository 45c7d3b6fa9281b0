# SPDX-License-Identifier: MIT
# nccl_merge/: merging replicas. Depends on nothing of the project. No contraction: sums must have the
# same bits on every instruction set.
# The UCX back end is built where its headers are (libucx-dev); the library is loaded at run time.
UCX ?= $(if $(wildcard $(addsuffix /ucp/api/ucp.h,/usr/include $(subst :, ,$(CPATH)))),1)
MERGE_UCX_SRC := nccl_merge/ucx/absent.c
ifeq ($(UCX),1)
MERGE_UCX_SRC := $(filter-out nccl_merge/ucx/absent.c,$(wildcard nccl_merge/ucx/*.c))
endif
MERGE_SRC := $(wildcard nccl_merge/*.c nccl_merge/tcp/*.c) $(MERGE_UCX_SRC)
CFLAGS_nccl_merge := -O3 -ffp-contract=off

$(BUILD)/libmerge.a: $(MERGE_SRC:%.c=$(BUILD)/obj/%.o)
LIBS_merge := $(BUILD)/libmerge.a
SYS_merge := -lcrypto -ldl -lm
all: $(BUILD)/libmerge.a

PERF_SRC := $(wildcard nccl_merge/bench/*.c)
$(BUILD)/bin/merge_perf: $(PERF_SRC:%.c=$(BUILD)/obj/%.o) $(LIBS_merge)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_merge)
all: $(BUILD)/bin/merge_perf
