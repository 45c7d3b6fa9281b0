# SPDX-License-Identifier: MIT
# tests/cluster/sql/: whole hosts (network namespace, PostgreSQL, cnnd) that train together, and what
# happens to them. Four clusters at a time, as cases wait more than they work. CASES="NAME ..." runs some
# of the cases only.
CLUSTER_SQL_NEEDS := udf-stage $(BUILD)/bin/cnnd $(BUILD)/bin/cnnctl
CASES ?=
CLUSTER_SQL := tests/cluster/sql/run
CLUSTER_SQL_PARTS = $(if $(CASES),"$(CLUSTER_SQL) cases.py $(CASES)",$(foreach p,1 2 3 4,"$(CLUSTER_SQL) cases.py $p"))
SOAK ?= 200
SEED ?= $(shell date +%s)
.PHONY: check-cluster-sql soak
check-cluster-sql: $(CLUSTER_SQL_NEEDS) ## trainings on three hosts in network namespaces, and their faults
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness -j 4 $(CLUSTER_SQL_PARTS)

check-cluster: check-cluster-sql

soak: $(CLUSTER_SQL_NEEDS) ## SOAK random faults in a row on three hosts (SEED=N repeats a run; about 8 s each)
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness "$(CLUSTER_SQL) soak.py $(SOAK) $(SEED)"
