# SPDX-License-Identifier: MIT
# tests/: unit tests are C programs in TAP, tests/unit/LIBRARY/NAME.c, linked with that library and what
# it needs; tests/harness runs them. `make check` is tests/run: installs what is missing, builds, and
# runs every stage.
UNIT_LIBS := ring ctl model data train kernels
UNIT_SRC := $(foreach l,$(UNIT_LIBS),$(wildcard tests/unit/$(l)/*.c))
UNIT_BIN := $(UNIT_SRC:%.c=$(BUILD)/%)

define unit_rule
$(BUILD)/tests/unit/$(1)/%: $(BUILD)/obj/tests/unit/$(1)/%.o $$(LIBS_$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(CNN_LDFLAGS) -o $$@ $$^ -Wl,--as-needed $$(SYS_$(1)) -lm
check-unit-$(1): $$(filter $(BUILD)/tests/unit/$(1)/%,$$(UNIT_BIN)) $$(MORE_TESTS_$(1))
	tests/harness $$^
endef
$(foreach l,$(UNIT_LIBS),$(eval $(call unit_rule,$(l))))

-include tests/ring/module.mk
-include tests/cnnd/module.mk
-include tests/cnnctl/module.mk
-include tests/demo/module.mk
-include tests/fuzz/module.mk
-include tests/cluster/module.mk
-include tests/study/module.mk
-include tests/cluster/sql/module.mk
-include tests/fakegpu/module.mk
-include tests/gpu/module.mk
-include $(wildcard tests/bench/*/module.mk)

.PHONY: check setup check-unit check-san $(UNIT_LIBS:%=check-unit-%)
setup: ## install the packages that are missing
	tests/setup/packages.sh build demo
	tests/setup/probe.sh

check: ## install what is missing, build, run every test that needs no GPU
	BUILD=$(BUILD) tests/run $(STAGES)

check-unit: $(UNIT_BIN) $(foreach l,$(UNIT_LIBS),$(MORE_TESTS_$(l))) ## unit tests of every library
	@code=0; tests/harness $(filter-out $(CNND_TESTS),$^) || code=1; \
		$(MAKE) check-unit-cnnd || code=1; exit $$code

# The same tests under the sanitizers: everything under ASan and UBSan, what has threads under TSan. Their
# instrumentation makes gcc's flow warnings guess wrong, so warnings are no errors there.
SAN_THREAD := ring data train cnnd merge
check-san: ## unit tests under ASan+UBSan and TSan
	@code=0; $(MAKE) BUILD=$(BUILD)/san-address SAN=address OPT=-O1 WERROR= check-unit || code=1; \
	$(MAKE) BUILD=$(BUILD)/san-thread SAN=thread OPT=-O1 WERROR= $(SAN_THREAD:%=check-unit-%) || code=1; exit $$code
