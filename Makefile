# SPDX-License-Identifier: MIT
# Front door of the project. One include per folder holds the rules of that folder; the names of the
# targets are listed by `make help`.
#
#   BUILD=dir       where everything is built (default build)
#   SAN=address|thread   build with ASan+UBSan or TSan
#   WERROR=1        warnings are errors (CI sets it)
#   PG_CONFIG=path  the PostgreSQL or Greenplum to build the extension for

.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules

TOP := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
VERSION := 0.1.0
BUILD ?= build
PG_CONFIG ?= pg_config
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
AR := $(if $(filter default,$(origin AR)),gcc-ar,$(AR))
SAN ?=
WERROR ?= $(if $(CI),1,)

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter \
	$(if $(WERROR),-Werror)
OPT ?= -O2
CFLAGS_SAN.address := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
CFLAGS_SAN.thread := -fsanitize=thread
CNN_CFLAGS := -std=gnu11 $(OPT) -g -fPIC -pthread -D_GNU_SOURCE -DCNN_VERSION='"$(VERSION)"' $(WARN) \
	$(CFLAGS_SAN.$(SAN)) $(CFLAGS)
CNN_LDFLAGS := -pthread $(CFLAGS_SAN.$(SAN)) $(LDFLAGS)

.PHONY: all help
all:

help:
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 20

include kernels/module.mk
include kernels/cuda/module.mk
-include nccl_merge/module.mk
-include nccl_merge/nccl/module.mk
include userspace/module.mk
include udf/module.mk
include tests/module.mk
-include kmod/module.mk

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CNN_CFLAGS) $(CFLAGS_$(firstword $(subst /, ,$*))) $(CFLAGS_$(subst /,_,$(*D))) -MMD -MP -c -o $@ $<

$(BUILD)/lib%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

.PHONY: clean format
clean:  ## remove everything that was built
	rm -rf $(BUILD)

format: ## run clang-format over the C sources
	git ls-files '*.c' '*.h' | xargs clang-format -i
