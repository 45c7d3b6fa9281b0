# SPDX-License-Identifier: MIT
# udf/: the extension, built with PGXS by udf/Makefile out of the source tree.
.PHONY: udf udf-stage check-sql
UDF_BUILD := $(abspath $(BUILD))/udf
UDF_MAKE = env -u MAKEFLAGS -u MAKELEVEL $(MAKE) $(if $(findstring s,$(firstword -$(MAKEFLAGS))),-s) \
	--no-print-directory -C $(UDF_BUILD) -f $(TOP)/udf/Makefile \
	PG_CONFIG=$(PG_CONFIG) WERROR=$(WERROR)

udf:
	@mkdir -p $(UDF_BUILD)
	@cmp -s udf/gpu_cnn.control $(UDF_BUILD)/gpu_cnn.control || cp udf/gpu_cnn.control $(UDF_BUILD)/
	$(UDF_MAKE) -j2 all

# Staged for tests and the demo: nothing is written to the system's folders.
udf-stage: udf
	$(UDF_MAKE) install DESTDIR=$(abspath $(BUILD))/stage
all: udf

UDF_TESTS := udf/test/manual udf/test/regress udf/test/faults udf/test/dump udf/test/catalog
check-sql: udf-stage $(BUILD)/bin/cnnd ## the extension on a private PostgreSQL server with a private cnnd
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness $(UDF_TESTS)

NODES_TESTS := tests/sql/nodes tests/sql/refused tests/sql/order
.PHONY: check-nodes check-compile
check-nodes: udf-stage $(BUILD)/bin/cnnd ## trainings over several nodes, all of them in one private server
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/harness -j 3 $(NODES_TESTS)

check-compile: ## the extension against the headers of other server versions, and Greenplum's symbols
	udf/test/headers $(BUILD)/headers
	PG_HEADERS=$(abspath $(BUILD))/headers tests/harness udf/test/compat

.PHONY: install-udf
install-udf: udf
	$(UDF_MAKE) install DESTDIR=$(DESTDIR)
