# SPDX-License-Identifier: MIT
# tests/cnnd/: tests of the daemon. A unit test is linked with exactly the files that it is about; the
# others start the real daemon in a folder of their own (lab.h) and talk to it by userspace/ctl.
CNND_UNIT := conf admit memory drain wire vote
# the longest first: they wait more than they compute, and run side by side
CNND_LAB := faults hosts ucx session kill hostile limits start train requests

CNND_GPUS := $(BUILD)/tests/cnnd/gpus

CFLAGS_tests_cnnd := -DBAD_DRIVER='"$(abspath $(BUILD))/tests/cnnd/bad_driver.so"' -DCNND_BIN='"$(abspath $(BUILD))/bin/cnnd"' -DCNND_SOURCE='"$(TOP)/userspace/cnnd"' \
	-DCNND_MAN='"$(TOP)/docs/man/cnnd.conf.5"' -DMERGE_UCX_BUILT=$(if $(filter 1,$(UCX)),1,0)

cnnd_objects = $(1:%=$(BUILD)/obj/userspace/cnnd/%.o)
CNND_LINK_conf := $(call cnnd_objects,conf conf_value conf_net) $(LIBS_base)
CNND_LINK_admit := $(call cnnd_objects,admit) $(LIBS_base)
CNND_LINK_memory := $(call cnnd_objects,memory host) $(LIBS_base)
CNND_LINK_wire := $(call cnnd_objects,wire) $(LIBS_base)
CNND_LINK_vote := $(call cnnd_objects,vote)
CNND_LINK_drain := $(call cnnd_objects,drain) $(LIBS_ring) $(LIBS_ctl)

CNND_UNIT_BIN := $(CNND_UNIT:%=$(BUILD)/tests/cnnd/%)
CNND_LAB_BIN := $(CNND_LAB:%=$(BUILD)/tests/cnnd/%)

define cnnd_unit_rule
$(BUILD)/tests/cnnd/$(1): $(BUILD)/obj/tests/cnnd/$(1).o $$(CNND_LINK_$(1))
	@mkdir -p $$(@D)
	$$(CC) $$(CNN_LDFLAGS) -o $$@ $$^ -Wl,--as-needed -lcrypto -lm
endef
$(foreach t,$(CNND_UNIT),$(eval $(call cnnd_unit_rule,$(t))))

$(BUILD)/tests/cnnd/faults: $(BUILD)/obj/userspace/cnnd/wire.o
$(CNND_LAB_BIN): $(BUILD)/tests/cnnd/%: $(BUILD)/obj/tests/cnnd/%.o $(BUILD)/obj/tests/cnnd/lab.o \
		$(BUILD)/obj/tests/cnnd/lab_job.o $(BUILD)/obj/tests/cnnd/lab_hosts.o $(LIBS_ring) $(LIBS_ctl) | $(BUILD)/bin/cnnd
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed -lcrypto -ldl -lm

# The list of devices itself, with a driver of its own kind, and the daemon with it.
CNND_LAB_OBJ := $(patsubst %,$(BUILD)/obj/tests/cnnd/%.o,lab lab_job lab_hosts)
$(BUILD)/tests/cnnd/bad_driver.so: $(BUILD)/obj/tests/cnnd/bad_driver.o
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -shared -o $@ $^
$(CNND_GPUS): $(BUILD)/obj/tests/cnnd/gpus.o $(call cnnd_objects,gpus devices) $(CNND_LAB_OBJ) $(LIBS_ring) $(LIBS_ctl) \
		$(LIBS_kernels) $(LIBS_merge) | $(BUILD)/bin/cnnd $(BUILD)/tests/cnnd/bad_driver.so
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_kernels) $(SYS_merge)

CNND_TESTS := $(CNND_LAB_BIN) $(CNND_GPUS) $(CNND_UNIT_BIN)
check-unit: $(CNND_TESTS)
.PHONY: check-unit-cnnd
check-unit-cnnd: $(CNND_TESTS) ## tests of the daemon alone
	tests/harness -j 3 $^
