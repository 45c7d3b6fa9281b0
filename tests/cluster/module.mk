# SPDX-License-Identifier: MIT
# Tests of nccl_merge: unit tests in this process, faults between processes in network namespaces that
# the test makes itself (root), and the benchmark.
MERGE_UNIT_SRC := $(wildcard tests/unit/merge/*.c)
MERGE_UNIT_BIN := $(MERGE_UNIT_SRC:%.c=$(BUILD)/%)

$(MERGE_UNIT_BIN): $(BUILD)/%: $(BUILD)/obj/%.o $(LIBS_merge)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_merge)

.PHONY: check-unit-merge
check-unit-merge: $(MERGE_UNIT_BIN) ## unit tests of the merge library
	tests/harness $^
check-unit: $(MERGE_UNIT_BIN)

# ---- faults between processes: root, network namespaces ------------------------------------------
CLUSTER_TESTS := hostile faults
CLUSTER_BIN := $(CLUSTER_TESTS:%=$(BUILD)/tests/cluster/%)
SOAK_BIN := $(BUILD)/tests/cluster/soak
SOAK ?= 200
# SEED, and ucx for rounds over UCX: make soak-merge SOAK_ARGS="7 ucx"
SOAK_ARGS ?=
CLUSTER_LAB := $(patsubst %,$(BUILD)/obj/tests/cluster/%.o,lab host)
$(CLUSTER_BIN) $(SOAK_BIN): $(BUILD)/%: $(BUILD)/obj/%.o $(CLUSTER_LAB) $(LIBS_merge)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_merge)

.PHONY: check-cluster check-cluster-merge
check-cluster: check-cluster-merge ## faults between hosts, in network namespaces (root)
check-cluster-merge: $(CLUSTER_BIN) $(BUILD)/bin/merge_perf ## of these, what concerns the merge library
	BUILD=$(BUILD) tests/harness $(CLUSTER_BIN:%="tests/cluster/as_root %") tests/cluster/perf.t

.PHONY: soak-merge
soak-merge: $(SOAK_BIN) ## SOAK random faults in a row on a cluster of namespaces (root; about 5 s each)
	tests/harness "tests/cluster/as_root $< $(SOAK) $(SOAK_ARGS)"
