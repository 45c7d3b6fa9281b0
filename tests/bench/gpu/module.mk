# SPDX-License-Identifier: MIT
# bench-gpu: a training step on a GPU next to PyTorch's, the own kernels against the speed of memory, and
# all-reduces; BENCH_ARGS: options of run.py. PyTorch is that of BUILD/venv, or of python3; nothing is fetched.
# Where there is no GPU, or no PyTorch, it says SKIP and why.
$(BUILD)/bench/gpu_step: $(BUILD)/obj/tests/bench/gpu/step.o $(LIBS_kernels)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_kernels)
CFLAGS_tests_bench_gpu := $(CUDA_INC:%=-isystem %)
$(BUILD)/bench/gpu_roofline: $(BUILD)/obj/tests/bench/gpu/roofline.o $(CUDA_CU:%=$(BUILD)/obj/%.o)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ $(CUDA_LIB:%=-L%) -lcudart -lstdc++ -lm

.PHONY: bench-gpu
ifeq ($(CUDA_MISSING),)
bench-gpu: cuda $(BUILD)/bench/gpu_step $(BUILD)/bench/gpu_roofline $(BUILD)/bin/merge_perf ## training on a GPU against PyTorch
	CNN_CUDA_LIBRARY=$(abspath $(BUILD))/lib/libcnn_cuda.so CNN_NCCL_LIBRARY=$(abspath $(BUILD))/lib/libcnn_nccl.so \
	LD_LIBRARY_PATH=$(subst $(space),:,$(CUDA_LIB)):$$LD_LIBRARY_PATH \
		$(or $(wildcard $(BUILD)/venv/bin/python),python3) tests/bench/gpu/run.py $(BUILD) $(BENCH_ARGS)
else
bench-gpu:
	@echo "bench-gpu: SKIP: missing $(CUDA_MISSING)"
endif
