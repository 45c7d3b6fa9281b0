# SPDX-License-Identifier: MIT
# tests/fuzz/: libFuzzer targets (clang). Each tests/fuzz/NAME.c lists its sources and its seed corpus in
# FUZZ_SRC_NAME and FUZZ_SEED_NAME; what the fuzzer finds is kept in $(BUILD)/fuzz/NAME.
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60
FUZZ := $(basename $(notdir $(wildcard tests/fuzz/*.c)))

FUZZ_SRC_model_json := $(wildcard userspace/model/*.c) userspace/base/err.c kernels/graph.c \
	kernels/check.c kernels/shape.c
FUZZ_LIBS_model_json := -ljansson $(SYS_kernels)
FUZZ_SEED_model_json := tests/golden/model

FUZZ_SRC_data_image := userspace/data/image.c userspace/data/image_jpeg.c userspace/data/image_png.c
FUZZ_LIBS_data_image := -ljpeg -lpng $(SYS_kernels)
FUZZ_SEED_data_image := tests/golden/data

FUZZ_SRC_data_rows := $(wildcard userspace/data/*.c) userspace/ctl/row.c userspace/ctl/agree.c \
	userspace/base/err.c
FUZZ_LIBS_data_rows := $(SYS_data)

.PHONY: fuzz $(FUZZ:%=fuzz-%)
fuzz: $(FUZZ:%=fuzz-%) ## libFuzzer targets, FUZZ_SECONDS each (clang)

define fuzz_rule
$(BUILD)/fuzz/$(1).bin: tests/fuzz/$(1).c $$(FUZZ_SRC_$(1)) $(BUILD)/libkernels.a
	@mkdir -p $$(@D)
	$$(FUZZ_CC) -std=gnu11 -O1 -g -D_GNU_SOURCE -I. -pthread \
		-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
		-o $$@ $$^ $$(FUZZ_LIBS_$(1))
fuzz-$(1): $(BUILD)/fuzz/$(1).bin
	@mkdir -p $(BUILD)/fuzz/$(1)
	$$< -max_total_time=$$(FUZZ_SECONDS) -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
		-print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/$(1)- \
		$(BUILD)/fuzz/$(1) $$(FUZZ_SEED_$(1))
endef
$(foreach f,$(FUZZ),$(eval $(call fuzz_rule,$(f))))
