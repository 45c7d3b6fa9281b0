# SPDX-License-Identifier: MIT
# tests/study/: the convergence study. study.py says which cells there are; bin/cell runs one.
# STUDY_PYTHON: one that has matplotlib, numpy and pillow (Debian: python3-matplotlib).
# DATA_CIFAR10=FILE: the archive of CIFAR-10 as JPEG files (TRAIN|TEST/CLASS/NAME.jpg, tar.zst).
STUDY_SRC := $(wildcard tests/study/*.c)
STUDY_PYTHON ?= $(firstword $(foreach p,python3 /usr/bin/python3,$(shell $(p) -c 'import matplotlib' 2>/dev/null && echo $(p))) /usr/bin/python3)
STUDY = BUILD=$(BUILD) DATA_CIFAR10=$(DATA_CIFAR10) $(STUDY_PYTHON) tests/study/study.py

$(BUILD)/study/cell: $(STUDY_SRC:%.c=$(BUILD)/obj/%.o) $(LIBS_train)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_train)

.PHONY: convergence convergence-full check-convergence convergence-plots
convergence: ## convergence study, 30 minutes at most: merges x 3 seeds, table and plots
	tests/setup/packages.sh build demo study
	$(MAKE) -s BUILD=$(BUILD) $(BUILD)/study/cell
	$(STUDY) standard
convergence-full: ## the whole study (hours; goes on where it was stopped), into docs/convergence
	tests/setup/packages.sh build demo study
	$(MAKE) -s BUILD=$(BUILD) $(BUILD)/study/cell
	$(STUDY) full
convergence-plots: ## tables and plots from the cells that were run
	tests/setup/packages.sh build demo study
	$(STUDY) report
check-convergence: ## does a merged training converge: 3 minutes, TAP
	tests/setup/packages.sh build demo
	$(MAKE) -s BUILD=$(BUILD) $(BUILD)/study/cell
	BUILD=$(BUILD) tests/harness tests/study/check.t
