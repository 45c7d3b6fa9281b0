# SPDX-License-Identifier: MIT
# bench-train: images/s of a training step next to PyTorch's, in one run (run.py).
$(BUILD)/bench/train_step: $(BUILD)/obj/tests/bench/train/step.o $(LIBS_model)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^ -Wl,--as-needed $(SYS_model)

$(BUILD)/venv/torch.stamp:
	python3 -m venv $(BUILD)/venv
	$(BUILD)/venv/bin/pip install --quiet numpy pillow torch
	@touch $@

.PHONY: bench-train
bench-train: $(BUILD)/bench/train_step $(BUILD)/venv/torch.stamp ## training speed against PyTorch
	$(BUILD)/venv/bin/python tests/bench/train/run.py $(BUILD)
