# SPDX-License-Identifier: MIT
# tests/gpu/: the same tests of a device's back end on a real GPU (make check-gpu) and on the simulated one
# (make check-fakegpu). Where there is no GPU, or no toolkit to build for one, they skip and say why.
GPU_TEST_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/gpu/*.c))

$(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(LIBS_kernels) $(LIBS_merge)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_kernels) $(SYS_merge)

# trainings of userspace/train on several GPUs
GPU_TRAIN_BIN := $(BUILD)/tests/gpu/parallel $(BUILD)/tests/gpu/parallel_faults
$(GPU_TRAIN_BIN): $(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(LIBS_train)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_train)

.PHONY: check-gpu
check-gpu: cuda $(GPU_TEST_BIN) $(BUILD)/bin/merge_perf ## the CUDA back end on the GPUs of this machine
	CNN_CUDA_LIBRARY=$(abspath $(BUILD))/lib/libcnn_cuda.so CNN_NCCL_LIBRARY=$(abspath $(BUILD))/lib/libcnn_nccl.so \
	LD_LIBRARY_PATH=$(subst $(space),:,$(CUDA_LIB)):$$LD_LIBRARY_PATH \
	BUILD=$(BUILD) tests/harness $(GPU_TEST_BIN) tests/gpu/perf.t tests/gpu/sanitizer.t
space := $(subst ,, )

# The simulated GPUs stop a program at the first wrong use of a library; tests/gpu/fakegpu.sh sets them up
# and checks that nothing is left behind. These tests run on a build with --coverage, host code without
# optimization, kernels with; what they did not run is told at the end (tests/fakegpu/coverage.py). The
# tests of cnnd take the build that is installed.
COVERAGE := $(BUILD)/coverage
.PHONY: check-fakegpu coverage-objects
ifneq ($(FAKEGPU_HAVE),)
coverage-objects: $(FAKEGPU_LIBS) $(COVERAGE)/fakegpu/libkernels.so
	find $(COVERAGE) -name '*.gcda' -delete 2>/dev/null || true
	$(MAKE) BUILD=$(COVERAGE) OPT=-O0 CFLAGS='$(CFLAGS) --coverage' LDFLAGS='$(LDFLAGS) --coverage' \
		CUDA_XFLAGS='-Xcompiler --coverage' CUDA_GENCODE=-arch=compute_80 cuda
check-fakegpu: cuda check-fakegpu-self coverage-objects $(GPU_TEST_BIN) $(BUILD)/bin/merge_perf \
	$(BUILD)/bench/gpu_step $(BUILD)/bench/gpu_roofline ## the CUDA back end on simulated GPUs
	BUILD=$(BUILD) OBJECTS=$(COVERAGE) tests/gpu/fakegpu.sh tests/harness -j 2 $(filter %/ops,$(GPU_TEST_BIN)) \
		$(filter-out %/ops,$(GPU_TEST_BIN)) tests/gpu/perf.t tests/gpu/bench.t
	tests/fakegpu/coverage.py $(COVERAGE)
	# without a GPU both say why they do nothing, and end well
	@[ -e /dev/nvidia0 ] || for t in check-gpu bench-gpu; do \
		TAP_COUNTS= $(MAKE) $$t >$(BUILD)/log.$$t 2>&1 && grep -qi 'skip.*no GPU' $(BUILD)/log.$$t && continue; \
		tail -20 $(BUILD)/log.$$t; echo "make $$t does not skip without a GPU"; exit 1; done
else
check-fakegpu:
	@echo "check-fakegpu: SKIP: no CUDA toolkit to build the CUDA back end with"
endif
