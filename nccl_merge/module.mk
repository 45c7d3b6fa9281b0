# SPDX-License-Identifier: MIT
# nccl_merge/: merging replicas. Depends on nothing of the project. No contraction: sums must have the
# same bits on every instruction set.
MERGE_SRC := $(wildcard nccl_merge/*.c nccl_merge/tcp/*.c)
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
