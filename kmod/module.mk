# SPDX-License-Identifier: MIT
# kmod/: the kernel module, built out of the tree; and check-kmod: its tests in a virtual machine. Nothing
# is loaded into the kernel of the machine that builds.
#   KDIR=dir  kernel headers for `make kmod` (default: those of the running kernel)
# KERNEL_SUITE (another release of Debian) and KERNEL_BED (a kernel of check-kmod-san) are for inner use.
KDIR ?= /lib/modules/$(shell uname -r)/build
KMOD_TOP := $(abspath $(BUILD))/kmod
KMOD := $(KMOD_TOP)$(if $(KERNEL_BED),/san/$(KERNEL_BED),$(if $(KERNEL_SUITE),/$(KERNEL_SUITE)))
KMOD_FILES := Kbuild $(wildcard kmod/Kbuild kmod/probes.mk kmod/*.[ch] kmod/uapi/linux/*.h)
KMOD_TEST_FILES := $(wildcard tests/kselftest/module/*)
KMOD_W := $(if $(KERNEL_BED),$(if $(filter uml,$(KERNEL_BED)),ARCH=um SUBARCH=x86_64),W=1 \
	$(if $(shell command -v sparse),C=1 CF=-D__CHECK_ENDIAN__))
# the kernel's build must not see our variables
KMOD_MAKE = env -u MAKEFLAGS -u MAKELEVEL -u BUILD -u CC $(MAKE) --no-print-directory

.PHONY: kmod check-kmod check-kmod-build check-kmod-boot
kmod: ## the kernel module for KDIR, in BUILD/kmod/here
	@mkdir -p $(KMOD)/here
	cp -r --parents $(KMOD_FILES) $(KMOD)/here/
	$(KMOD_MAKE) -C $(KDIR) M=$(KMOD)/here modules

# ---- for the test machine ----
# A kernel of a bed is looked at each time: its key may be another one.
.PHONY: kmod-look
$(KMOD)/kernel/release: $(if $(KERNEL_BED),kmod-look)
	$(if $(KERNEL_BED),tests/vm/sankernel.sh $(KMOD_TOP) $(KERNEL_BED),KERNEL_SUITE=$(KERNEL_SUITE) tests/vm/kernel.sh $(KMOD))
$(KMOD_TOP)/source/scripts/checkpatch.pl:
	KERNEL_SUITE= tests/vm/kernel.sh $(KMOD_TOP) source

$(KMOD)/guest/cnnring.ko: $(KMOD)/kernel/release $(KMOD_FILES) $(KMOD_TEST_FILES) kmod/module.mk
	@mkdir -p $(KMOD)/src $(KMOD)/guest
	cp -r --parents $(KMOD_FILES) $(KMOD_TEST_FILES) $(KMOD)/src/
	grep -q kselftest $(KMOD)/src/Kbuild || echo 'obj-m += tests/kselftest/module/' >>$(KMOD)/src/Kbuild
	$(KMOD_MAKE) -C $(KMOD)/kernel/headers M=$(KMOD)/src CONFIG_DEBUG_INFO_BTF_MODULES= $(KMOD_W) modules >$(KMOD)/build.log 2>&1 || { cat $(KMOD)/build.log; exit 1; }
	! grep -E 'warning:|error:' $(KMOD)/build.log
	strip -g -o $(KMOD)/guest/cnnring_test.ko $(KMOD)/src/tests/kselftest/module/cnnring_test.ko
	strip -g -o $(KMOD)/guest/cnnring_planted.ko $(KMOD)/src/tests/kselftest/module/cnnring_planted.ko
	strip -g -o $(KMOD)/cnnring.ko $(KMOD)/src/kmod/cnnring.ko
	tests/vm/sign.sh $(KMOD)
	cp $(KMOD)/cnnring.ko $@

KSFT := $(patsubst tests/kselftest/%.c,%,$(wildcard tests/kselftest/*.c))
KSFT_FLAGS := -std=gnu11 -O2 -g -static -pthread -D_GNU_SOURCE -Wall -Wextra -Wno-unused-parameter \
	-Wno-unused-function -Wno-sign-compare -Wno-missing-field-initializers $(if $(WERROR),-Werror)
$(KMOD)/guest/t/%: tests/kselftest/%.c $(wildcard tests/kselftest/*.h tests/kselftest/module/*.h) \
		kmod/uapi/linux/cnnring.h | $(KMOD_TOP)/source/scripts/checkpatch.pl
	@mkdir -p $(@D)
	$(CC) $(KSFT_FLAGS) -isystem $(KMOD_TOP)/source/tools/testing/selftests -o $@ $<

$(KMOD)/guest/t/nth: tests/kselftest/san/nth.c $(wildcard tests/kselftest/*.h tests/kselftest/module/*.h) \
		kmod/uapi/linux/cnnring.h tests/tap.h
	@mkdir -p $(@D)
	$(CC) $(KSFT_FLAGS) -o $@ $<

# the tests of the ring, the same as for memfd, linked for a machine without libraries
KMOD_RING := $(patsubst tests/unit/ring/%.c,unit/ring/%,$(wildcard tests/unit/ring/*.c)) $(RING_TESTS:%=ring/%)
KMOD_RING_BIN := $(foreach t,$(KMOD_RING),$(KMOD)/guest/t/ring_$(notdir $t))
define kmod_ring
$(KMOD)/guest/t/ring_$(notdir $(1)): $(BUILD)/obj/tests/$(1).o $(LIBS_ring)
	@mkdir -p $$(@D)
	$$(CC) -static -pthread -o $$@ $$^ -lm
endef
$(foreach t,$(KMOD_RING),$(eval $(call kmod_ring,$(t))))
$(KMOD)/guest/vmexit $(KMOD)/guest/warn: $(KMOD)/guest/%: tests/vm/%.c
	@mkdir -p $(@D)
	$(CC) -O2 -static -Wall -o $@ $<

$(KMOD_TOP)/tools/dkms:
	KERNEL_SUITE= tests/vm/kernel.sh $(KMOD_TOP) tools

check-kmod-build: $(KMOD)/guest/cnnring.ko $(KSFT:%=$(KMOD)/guest/t/%) $(KMOD_RING_BIN) $(KMOD)/guest/vmexit \
		$(KMOD)/guest/warn $(KMOD_TOP)/source/scripts/checkpatch.pl
	tests/vm/checkpatch.sh $(KMOD_TOP)

# the kernel that every check boots has everything: a SKIP is a failure there
check-kmod-boot: check-kmod-build
	tests/vm/boot.sh $(KMOD); code=$$?; \
	tests/harness $(foreach t,$(KSFT) $(KMOD_RING_BIN:$(KMOD)/guest/t/%=%) machine,$(KMOD)/run/$t) && exit $$code
	$(if $(KERNEL_SUITE),,! grep '# SKIP' $(KMOD)/run/.[a-z]*)

# packages first, in a make of its own: sparse is looked for when the rules are read
check-kmod: ## the module in booted kernels: kselftests, ring tests, PostgreSQL with ring = device
	tests/setup/packages.sh kmod
	$(MAKE) check-kmod-boot check-kmod-database check-kmod-dkms

.PHONY: check-kmod-dkms
check-kmod-dkms: $(KMOD_TOP)/kernel/release $(KMOD_TOP)/tools/dkms
	KMOD_DIR=$(KMOD_TOP) tests/harness tests/vm/dkms.t

.PHONY: check-kmod-database
check-kmod-database: check-kmod-build udf-stage $(BUILD)/bin/cnnd $(KMOD_TOP)/tools/dkms
	BUILD=$(abspath $(BUILD)) PG_CONFIG=$(PG_CONFIG) tests/vm/database.sh $(KMOD) $(KMOD_TOP)/tools; code=$$?; \
	tests/harness $(KMOD)/run.database/database && exit $$code

# The same on other kernels of Debian.
KMOD_SUITES ?= bullseye bookworm-backports
.PHONY: check-kmod-matrix $(KMOD_SUITES:%=check-kmod-%)
$(KMOD_SUITES:%=check-kmod-%): check-kmod-%:
	tests/vm/kernel.sh $(KMOD_TOP)
	$(MAKE) KERNEL_SUITE=$* check-kmod-boot
	$(MAKE) KERNEL_SUITE=$* check-kmod-database
check-kmod-matrix: $(KMOD_SUITES:%=check-kmod-%) ## the module's tests on the kernels of other releases

# bench-ring's second part: the device next to memfd. Called by bench-ring, which wrote the first lines.
$(KMOD)/guest/bench: $(BUILD)/obj/tests/ring/bench.o $(LIBS_ring)
	@mkdir -p $(@D)
	$(CC) -static -pthread -o $@ $^
.PHONY: bench-ring-device bench-ring-boot
bench-ring-device:
	tests/setup/packages.sh kmod
	$(MAKE) bench-ring-boot
bench-ring-boot: $(KMOD)/guest/cnnring.ko $(KMOD)/guest/bench $(KMOD)/guest/vmexit
	VM_RUN=bench tests/vm/boot.sh $(KMOD) CNN_BENCH=1
	sh $(KMOD)/run.bench/bench && cat $(KMOD)/run.bench/.jsonl >>$(BUILD)/bench/ring.jsonl

# Kernels that look at themselves: see docs/kernel-module.md. Built once (a quarter of an hour each), then kept.
KERNEL_BEDS ?= uml kasan kcsan
KMOD_FUZZ_SECONDS ?= 600
PLANT_uml := lock_order,use_after_free,out_of_bounds
PLANT_kasan := lock_order,use_after_free,out_of_bounds,shift,sleep,leak
PLANT_kcsan := race,lock_order,sleep
BED_uml := CNNRING_WITHOUT=dmabuf,numa,compat,dontfork CNNRING_SLOWER=2
BED_kasan := CNNRING_SLOWER=4
# an emulated processor does little in the 80 us that KCSAN waits for a second access; so it waits longer
BED_kcsan := CNNRING_SLOWER=4 kcsan.udelay_task=500 kcsan.skip_watch=2000
MEMORY_uml := 512
MEMORY_kasan := 768
MEMORY_kcsan := 768
KMOD_BOOT = VM_LOG="loglevel=5 log_buf_len=4M" VM_MEMORY=$(MEMORY_$(KERNEL_BED)) tests/vm/boot.sh $(KMOD) CNN_BED=$(KERNEL_BED) $(BED_$(KERNEL_BED))
.PHONY: check-kmod-bed check-kmod-san $(KERNEL_BEDS:%=check-kmod-%)
# failing allocations: where the kernel can make them fail
BED_NTH := $(if $(filter uml kasan,$(KERNEL_BED)),nth)
check-kmod-bed: check-kmod-build $(BED_NTH:%=$(KMOD)/guest/t/%)
	VM_RUN=planted VM_SECONDS=3000 $(KMOD_BOOT) kasan_multi_shot CNN_PLANT=$(PLANT_$(KERNEL_BED)); code=$$?; \
	tests/harness $(KMOD)/run.planted/planted && exit $$code
	VM_SECONDS=$$(($(KMOD_FUZZ_SECONDS) + 3000)) $(KMOD_BOOT) CNNRING_SECONDS=$(KMOD_FUZZ_SECONDS) $(if $(KMOD_FUZZ_SEED),CNNRING_SEED=$(KMOD_FUZZ_SEED)); code=$$?; \
	tests/harness $(foreach t,$(KSFT) $(BED_NTH) $(KMOD_RING_BIN:$(KMOD)/guest/t/%=%) machine,$(KMOD)/run/$t) && exit $$code
$(KERNEL_BEDS:%=check-kmod-%): check-kmod-%:
	tests/setup/packages.sh kmod-san
	$(MAKE) KERNEL_BED=$* check-kmod-bed
check-kmod-san: $(KERNEL_BEDS:%=check-kmod-%) ## the module under KASAN, lockdep, kmemleak, KCSAN, failing allocations; fuzzed (an hour, KMOD_FUZZ_SECONDS=600)

# Sources for dkms, the udev rule, the manual. Not part of `make install`: a host can do without the module.
.PHONY: install-kmod
install-kmod: ## sources of the module for dkms, udev rule, cnnring(4); then: dkms install cnnring/VERSION
	install -d $(DESTDIR)/usr/src/cnnring-$(VERSION)
	cp --parents $(KMOD_FILES) $(DESTDIR)/usr/src/cnnring-$(VERSION)/
	sed 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="$(VERSION)"/' kmod/dkms.conf >$(DESTDIR)/usr/src/cnnring-$(VERSION)/dkms.conf
	install -D -m 644 kmod/60-cnnring.rules $(DESTDIR)/usr/lib/udev/rules.d/60-cnnring.rules
	install -D -m 644 kmod/modules-load.conf $(DESTDIR)/usr/lib/modules-load.d/cnnring.conf
	install -D -m 644 kmod/uapi/linux/cnnring.h $(DESTDIR)$(PREFIX)/include/linux/cnnring.h
	install -D -m 644 docs/man/cnnring.4 $(DESTDIR)$(PREFIX)/share/man/man4/cnnring.4
