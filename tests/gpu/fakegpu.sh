#!/bin/sh
# SPDX-License-Identifier: MIT
# fakegpu.sh: runs a command with the simulated GPUs in place of the CUDA libraries. Fails when it fails,
# when a library was used in a wrong way, or when memory, streams, events or communicators are left.
#   BUILD=dir [OBJECTS=dir] fakegpu.sh COMMAND...	OBJECTS: where another build of the back end lies
set -eu
build=$(cd "${BUILD:-build}" && pwd)
objects=$(cd "${OBJECTS:-$build}" && pwd)
report=$(mktemp)
trap 'rm -f "$report"' EXIT
export LD_LIBRARY_PATH="$build/fakegpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export CNN_CUDA_LIBRARY="$objects/lib/libcnn_cuda.so" CNN_NCCL_LIBRARY="$objects/lib/libcnn_nccl.so"
export FAKEGPU_KERNELS="$objects/fakegpu/libkernels.so" FAKEGPU_REPORT="$report"
export FAKEGPU_MAJOR="${FAKEGPU_MAJOR:-8}" # the workspace that newer devices want is slow to poison
export FAKEGPU_DEVICES="${FAKEGPU_DEVICES:-8}" FAKEGPU_ABORT="${FAKEGPU_ABORT-1}"
rc=0
"$@" || rc=$?
if grep -v '"violations":0,' "$report"; then
	echo "fakegpu: wrong use of a library"
	rc=1
fi
if sed 's/"violations.*"copies":[0-9]*//; s/"peak":[0-9]*//' "$report" | grep -E '"[a-z_]+":[1-9]' |
	grep -vE '^\{"fakegpu":1,"pkeys":(true|false),(,"[a-z_]+":0)*,?\}$'; then
	echo "fakegpu: something was not given back"
	rc=1
fi
exit $rc
