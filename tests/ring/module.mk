# SPDX-License-Identifier: MIT
# tests/ring: tests of the ring between processes and threads; run by check-unit. weak_order is
# transitions.c once more, on a ring built with RING_WEAK_ORDER: it passes if a wake-up gets lost. A
# sanitizer's own locks would hide that loss, so it is built without one only.
RING_TESTS := transitions values threads
MORE_TESTS_ring := $(RING_TESTS:%=$(BUILD)/tests/ring/%) $(if $(SAN),,$(BUILD)/tests/ring/weak_order)
$(RING_TESTS:%=$(BUILD)/tests/ring/%): $(BUILD)/tests/ring/%: $(BUILD)/obj/tests/ring/%.o $(LIBS_ring)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^

RING_WEAK_SRC := tests/ring/transitions.c $(wildcard userspace/ring/*.c)
$(BUILD)/tests/ring/weak_order: $(RING_WEAK_SRC) $(wildcard userspace/ring/*.h tests/ring/*.h) tests/tap.h
	@mkdir -p $(@D)
	$(CC) $(CNN_CFLAGS) -DRING_WEAK_ORDER $(CNN_LDFLAGS) -o $@ $(RING_WEAK_SRC)

$(BUILD)/tests/ring/bench: $(BUILD)/obj/tests/ring/bench.o $(LIBS_ring)
	@mkdir -p $(@D)
	$(CC) $(CNN_LDFLAGS) -o $@ $^
.PHONY: bench-ring
bench-ring: $(BUILD)/tests/ring/bench ## rows and wake-ups through the ring next to a pipe and memcpy; device next to memfd
	@mkdir -p $(BUILD)/bench && rm -f $(BUILD)/bench/ring.jsonl
	BENCH_JSONL=$(BUILD)/bench/ring.jsonl $<
	$(MAKE) bench-ring-device

check-unit-ring: $(MORE_TESTS_ring)
