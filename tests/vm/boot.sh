#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# boot.sh DIR [NAME=VALUE...]: boots DIR/kernel/vmlinuz once in qemu (emulated, no KVM needed), or runs
# DIR/kernel/linux (User-Mode Linux), with DIR/guest as its root, and takes the results apart:
# DIR/run/NAME prints what NAME printed in the machine and ends as it ended, so that tests/harness can run
# it. NAME=VALUE go to tests/vm/init. Exits 0 when the machine came to its end.
#   VM_SECONDS=600  longer is a failure (a minute on an idle machine)
#   VM_MEMORY=512   MiB, in two NUMA nodes
#   VM_RUN=name     DIR/run.name, DIR/console.name, ... instead of DIR/run, DIR/console
#   VM_LOG=quiet    or loglevel=8: the kernel's messages on DIR/console
# no_timer_check: on a busy host the emulated timer may come too late for the kernel's liking, and it panics.
# cx16=off: under qemu 7.2 the 6.12 kernel died at a cmpxchg16b with wrong flags; see docs/kernel-module.md.
set -euo pipefail
dir=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
guest=$dir/guest
of=${VM_RUN:+.$VM_RUN}
console=$dir/console$of
results=$dir/results$of
run=$dir/run$of
memory=${VM_MEMORY:-512}
mkdir -p "$guest"/{bin,dev,proc,sys,tmp,t}
cp "$(command -v busybox)" "$guest/bin/busybox"
cp "$here/init" "$guest/init"
chmod 755 "$guest/init"
(cd "$guest" && find . | cpio -o -H newc --quiet -R 0:0) >"$dir/initrd$of"
rm -rf "$console" "$results" "$run"
append="${VM_LOG:-quiet} panic=-1 oops=panic rdinit=/init $*"

machine() {
	timeout -k 5 "${VM_SECONDS:-600}" qemu-system-x86_64 -M pc -accel tcg,thread=multi -cpu max,cx16=off -smp 2,sockets=2 \
		-m "$memory" -object memory-backend-ram,id=m0,size=$((memory / 2))M -object memory-backend-ram,id=m1,size=$((memory / 2))M \
		-numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
		-nodefaults -no-user-config -nographic -no-reboot -serial "file:$console" -serial "file:$results" \
		-device isa-debug-exit,iobase=0xf4,iosize=0x04 -kernel "$dir/kernel/vmlinuz" -initrd "$dir/initrd$of" \
		-append "console=ttyS0 no_timer_check $append" </dev/null
}
# It ends with 0 whatever happened, and writes its results into a folder of ours: the last line decides.
user_mode() {
	local out=$dir/host$of
	rm -rf "$out"
	mkdir "$out"
	timeout -k 5 "${VM_SECONDS:-600}" "$dir/kernel/linux" "mem=${memory}M" "initrd=$dir/initrd$of" "uml_dir=$out/uml" \
		con=null con0=null,fd:1 console=tty0 "CNN_RESULTS=$out" $append </dev/null >"$console" 2>&1
	cp "$out/results" "$results" 2>/dev/null || : >"$results"
	[ "$(tail -1 "$results")" != "@@= 0" ] || return 3
}
start=$SECONDS
set +e
if [ -e "$dir/kernel/linux" ]; then user_mode; else machine; fi
code=$?
set -e
mkdir -p "$run"
touch "$results"
tr -d '\r' <"$results" | awk -v dir="$run" '
	/^@@ / { name = $2; file = dir "/." name; printf "" > file; next }
	/^@@= / { script = dir "/" name
		printf "#!/bin/sh\ncat \"$(dirname \"$0\")/.%s\"\nexit %d\n", name, $2 > script
		close(script); close(file); name = ""; next }
	name != "" { print > file }
	END { if (name != "") { printf "#!/bin/sh\ncat \"$(dirname \"$0\")/.%s\"\necho \"# the machine ended here\"\nexit 99\n", name > (dir "/" name) } }'
rm -f "$run/dmesg"
chmod 755 "$run"/* 2>/dev/null || true
echo "machine${VM_RUN:+ ($VM_RUN)}: $(cat "$dir/kernel/release"), $((SECONDS - start)) s"
if [ "$code" != 3 ]; then
	echo "the machine did not come to its end (exit $code); its console:"
	tail -40 "$console"
	exit 1
fi
