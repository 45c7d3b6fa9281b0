# SPDX-License-Identifier: MIT
# tests/: unit tests are C programs in TAP, tests/unit/LIBRARY/NAME.c, linked with that library and what
# it needs (tests/ring likewise); prove runs them.
UNIT_LIBS := ring ctl model data train kernels
UNIT_SRC := $(foreach l,$(UNIT_LIBS),$(wildcard tests/unit/$(l)/*.c))
UNIT_BIN := $(UNIT_SRC:%.c=$(BUILD)/%)

define unit_rule
$(BUILD)/tests/unit/$(1)/%: $(BUILD)/obj/tests/unit/$(1)/%.o $$(LIBS_$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(CNN_LDFLAGS) -o $$@ $$^ -Wl,--as-needed $$(SYS_$(1)) -lm
endef
$(foreach l,$(UNIT_LIBS),$(eval $(call unit_rule,$(l))))

.PHONY: check-unit $(UNIT_LIBS:%=check-unit-%)
check-unit: $(UNIT_BIN) ## unit tests of every library
	prove --timer -e '' $(UNIT_BIN)
define unit_one
check-unit-$(1): $$(filter $(BUILD)/tests/unit/$(1)/%,$$(UNIT_BIN))
	prove --timer -e '' $$^
endef
$(foreach l,$(UNIT_LIBS),$(eval $(call unit_one,$(l))))
