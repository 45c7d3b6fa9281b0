#!/bin/sh
# SPDX-License-Identifier: MIT
# sanitizer.t: compute-sanitizer's memcheck and racecheck over the own kernels, on a real GPU.
BUILD=${BUILD:-build}
tool=$(command -v compute-sanitizer || true)
[ -n "$tool" ] || { echo "1..0 # SKIP no compute-sanitizer"; exit 0; }
[ -e /dev/nvidiactl ] || { echo "1..0 # SKIP no GPU"; exit 0; }
n=0
for check in memcheck racecheck; do
	for case in conv_3x3_same_stride2_even depthwise_3x3_same maxpool_3x3_stride2_same_even residual dropout_image; do
		n=$((n + 1))
		if "$tool" --tool $check --error-exitcode 9 "$BUILD/tests/gpu/ops" f32 $case >/dev/null 2>&1; then
			echo "ok $n - $check: $case"
		else
			echo "not ok $n - $check: $case"
		fi
	done
done
echo "1..$n"
