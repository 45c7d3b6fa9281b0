#!/bin/sh
# SPDX-License-Identifier: MIT
# perf.t: merge_perf with replicas on GPUs: NCCL inside a host, and hosts above it; sums are exact.
p=${BUILD:-build}/bin/merge_perf
why=$("$p" --level intra --gpus -t 2 -b 4K -e 4K -n 1 -w 0 2>&1 >/dev/null) || {
	echo "1..0 # SKIP no GPU, or only one: $(echo "$why" | head -1)"
	exit 0
}
n=0
check() {
	n=$((n + 1))
	name=$1
	shift
	if out=$("$p" "$@" 2>&1) && echo "$out" | grep -q '^# Out of bounds values : 0 OK'; then
		echo "ok $n - $name"
	else
		echo "not ok $n - $name"
		echo "$out" | sed 's/^/# /'
	fi
}
check "replicas on two GPUs" --level intra --gpus -t 2 -b 4K -e 1M -f 16 -n 3 -w 1
check "one thread for two GPUs" --level intra --gpus -t 1 -g 2 -b 64K -e 64K -n 3 -w 1
check "two hosts of two GPUs each" --level hier --gpus --hosts 2 -t 2 -b 4K -e 64K -f 16 -n 3 -w 1
echo "1..$n"
