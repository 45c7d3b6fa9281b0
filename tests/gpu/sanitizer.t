#!/bin/sh
# SPDX-License-Identifier: MIT
# sanitizer.t: compute-sanitizer's memcheck and racecheck over the own kernels, on a real GPU: layers that
# run each of them, with and without the library's convolutions, optimizers, input and merges.
BUILD=${BUILD:-build}
tool=${SANITIZER:-$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null)}
[ -n "$tool" ] || { echo "1..0 # SKIP no compute-sanitizer"; exit 0; }
[ -e /dev/nvidiactl ] || [ -n "$SANITIZER" ] || { echo "1..0 # SKIP no GPU"; exit 0; }
layers="conv_3x3_same_stride2_even conv_groups2 depthwise_3x3_same depthwise_multiplier2 dense batchnorm conv_norm_relu
  maxpool_3x3_stride2_same_even avgpool_3x3_stride2_same_even global_avgpool global_maxpool residual concat_c pad
  upsample_bilinear dropout_image rescale_channels shift crop gelu softmax_inside loss_image_softmax loss_sigmoid"
n=0
one() {
	n=$((n + 1))
	check=$1
	shift
	name=$(basename "$1") program=$BUILD/tests/gpu/$1
	shift
	if out=$("$tool" --tool "$check" --error-exitcode 9 "$program" "$@" 2>&1); then
		echo "ok $n - $check: $name ${1:-}"
	else
		echo "not ok $n - $check: $name ${1:-}"
		echo "$out" | grep -v '^ok' | tail -20 | sed 's/^/# /'
	fi
}
for check in memcheck racecheck; do
	one $check ops f32 $layers
	one $check ops bf16 $layers
	one $check train optimizers
	one $check data
	one $check memory
done
echo "1..$n"
