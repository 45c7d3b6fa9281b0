# SPDX-License-Identifier: MIT
# bench-merge: merges between hosts next to MPI_Allreduce, Gloo and the link, and inside a host next to a
# copy in memory, alternating in one run (run.py, root). BENCH_ARGS: its options. A peer that is not
# installed is not built and named as absent; `tests/setup/packages.sh bench` installs them.
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

.PHONY: bench-merge
bench-merge: $(BENCH_MERGE_BIN) $(BUILD)/bin/merge_perf ## merges against MPI, Gloo, the link and memory (root)
	python3 tests/bench/merge/run.py $(BUILD) $(BENCH_ARGS)
