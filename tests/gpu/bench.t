#!/bin/sh
# SPDX-License-Identifier: MIT
# bench.t: bench-gpu runs through, on simulated GPUs: every kernel, a training step, all-reduces, and it
# says by name what it cannot compare. Its figures mean nothing there.
export BUILD="${BUILD:-build}"
out=$(python3 tests/bench/gpu/run.py "$BUILD" --trial --seconds 0.1 --case keras_cnn,resnet20 --precision bf16 2>&1)
rc=$?
n=0
check() {
	n=$((n + 1))
	if "$@"; then
		echo "ok $n - $name"
	else
		echo "not ok $n - $name"
		echo "$out" | sed 's/^/# /'
	fi
}
seen() { echo "$out" | grep -qE "$1"; }
name="it ends well" check [ $rc = 0 ]
name="kernels against a copy" check seen 'optimizer: momentum SGD .* of the copy'
name="a step of each network" check [ "$(echo "$out" | grep -cE '^(keras_cnn|resnet20) +bf16 .* images/s')" = 2 ]
name="no PyTorch for a simulated GPU: said by name" check seen 'comparison with PyTorch: SKIP: no PyTorch'
name="all-reduces" check seen '^all-reduce of 8 GPUs'
echo "1..$n"
