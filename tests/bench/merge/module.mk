# SPDX-License-Identifier: MIT
# bench-merge: merges between hosts next to MPI_Allreduce, Gloo and the link, and inside a host next to a
# copy in memory, alternating in one run (run.py, root). BENCH_ARGS: its options. The peers'
# packages are installed; one that cannot be is not built and named as absent.
BENCH_MERGE_BIN := $(BUILD)/bench/merge_limit
ifneq ($(shell command -v mpicc 2>/dev/null),)
BENCH_MERGE_BIN += $(BUILD)/bench/merge_ar_mpi
endif
ifneq ($(wildcard /usr/include/gloo/allreduce.h),)
BENCH_MERGE_BIN += $(BUILD)/bench/merge_ar_gloo
endif

$(BUILD)/bench/merge_limit: $(BUILD)/obj/tests/bench/merge/limit.o
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^

$(BUILD)/bench/merge_ar_mpi: tests/bench/merge/ar_mpi.c
	@mkdir -p $(@D)
	mpicc -std=gnu11 $(OPT) -Wall -Wextra -Wno-unused-parameter -o $@ $<

# -isystem: Gloo's own headers are not held to this project's warnings
$(BUILD)/bench/merge_ar_gloo: tests/bench/merge/ar_gloo.cc
	@mkdir -p $(@D)
	g++ -std=c++17 $(OPT) -Wall -pthread -o $@ $< -lgloo

.PHONY: bench-merge bench-merge-run
bench-merge: ## merges against MPI, Gloo, the link and memory (root)
	tests/setup/packages.sh build bench
	$(MAKE) bench-merge-run
# a make of its own: what it builds depends on what has just been installed
bench-merge-run: $(BENCH_MERGE_BIN) $(BUILD)/bin/merge_perf
	python3 tests/bench/merge/run.py $(BUILD) $(BENCH_ARGS)
