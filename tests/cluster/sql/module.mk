# SPDX-License-Identifier: MIT
# tests/cluster/sql/: whole hosts (network namespace, PostgreSQL, cnnd) that train together, and what
# happens to them. CASES="NAME ..." runs some of the cases only.
CLUSTER_SQL_NEEDS := udf-stage $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl
SOAK ?= 200
SEED ?= $(shell date +%s)
.PHONY: check-cluster-sql soak
check-cluster-sql: $(CLUSTER_SQL_NEEDS) ## trainings on three hosts in network namespaces, and their faults
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness "tests/cluster/sql/run cases.py $(CASES)"

soak: $(CLUSTER_SQL_NEEDS) ## SOAK random faults in a row on three hosts (SEED=N repeats a run; about 8 s each)
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness "tests/cluster/sql/run soak.py $(SOAK) $(SEED)"
