#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# demo.t: the demo on few rows: it runs, learns something, draws, says its last line and leaves nothing.
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 1
. tests/tap.sh
before=$(ls -d /var/tmp/gpu_cnn.* 2>/dev/null | wc -l)
out=$(ROWS=6000 EPOCHS=2 tests/demo/demo.sh fashion 2>&1 </dev/null)
ok "the demo on Fashion-MNIST runs"
last=$(tail -1 <<<"$out")
like "$last" '^demo: accuracy=0\.[0-9]+ seconds=[0-9]+ model=fashion_model plot=.*loss\.png$' "its last line is for scripts"
accuracy=$(sed 's/.*accuracy=\([0-9.]*\).*/\1/' <<<"$last")
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.6 && a < 1) }'
ok "accuracy after 2 epochs on 6000 rows is over .6"
plot=$(sed 's/.*plot=//' <<<"$last")
is "$(head -c 4 "$plot" | od -An -tx1 | tr -d ' ')" 89504e47 "the plot is a PNG"
like "$out" 'confusion matrix' "the confusion matrix is printed"
is "$(ls -d /var/tmp/gpu_cnn.* 2>/dev/null | wc -l)" "$before" "no folder is left"
archive=${CIFAR10:-$top/../shared/data/cifar10-jpeg.tar.zst}
if [ -r "$archive" ]; then
	out=$(CIFAR10=$archive ROWS=600 EPOCHS=1 tests/demo/demo.sh cifar10 2>&1 </dev/null)
	ok "the demo on CIFAR-10, JPEG in bytea, runs"
	like "$(tail -1 <<<"$out")" '^demo: accuracy=0\.[0-9]+ ' "to its last line"
else
	skip "no CIFAR-10 archive" "the demo on CIFAR-10"
fi
tap_done
