#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# boot.sh DIR: boots DIR/kernel/vmlinuz once in qemu (emulated, no KVM needed) with DIR/guest as its
# root, and takes the results apart: DIR/run/NAME prints what NAME printed in the machine and ends as
# it ended, so that tests/harness can run it. Exits 0 when the machine came to its end.
#   VM_SECONDS=400  longer is a failure (a minute on an idle machine)
#   VM_LOG=quiet    or loglevel=8: the kernel's messages on DIR/console
# cx16=off: under qemu 7.2 the 6.12 kernel died at a cmpxchg16b with wrong flags; see docs/kernel-module.md.
set -euo pipefail
dir=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
guest=$dir/guest
mkdir -p "$guest"/{bin,dev,proc,sys,tmp,t}
cp "$(command -v busybox)" "$guest/bin/busybox"
cp "$here/init" "$guest/init"
chmod 755 "$guest/init"
(cd "$guest" && find . | cpio -o -H newc --quiet -R 0:0) >"$dir/initrd"
rm -rf "$dir"/{console,results,run}
start=$SECONDS
set +e
timeout -k 5 "${VM_SECONDS:-400}" qemu-system-x86_64 -M pc -accel tcg,thread=multi -cpu max,cx16=off -smp 2,sockets=2 -m 512 \
	-object memory-backend-ram,id=m0,size=256M -object memory-backend-ram,id=m1,size=256M \
	-numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
	-nodefaults -no-user-config -nographic -no-reboot -serial "file:$dir/console" -serial "file:$dir/results" \
	-device isa-debug-exit,iobase=0xf4,iosize=0x04 -kernel "$dir/kernel/vmlinuz" -initrd "$dir/initrd" \
	-append "console=ttyS0 ${VM_LOG:-quiet} panic=-1 oops=panic rdinit=/init ${VM_APPEND:-}" </dev/null
code=$?
set -e
mkdir -p "$dir/run"
tr -d '\r' <"$dir/results" | awk -v dir="$dir/run" '
	/^@@ / { name = $2; file = dir "/." name; printf "" > file; next }
	/^@@= / { script = dir "/" name
		printf "#!/bin/sh\ncat \"$(dirname \"$0\")/.%s\"\nexit %d\n", name, $2 > script
		close(script); close(file); name = ""; next }
	name != "" { print > file }
	END { if (name != "") { printf "#!/bin/sh\ncat \"$(dirname \"$0\")/.%s\"\necho \"# the machine ended here\"\nexit 99\n", name > (dir "/" name) } }'
rm -f "$dir/run/dmesg"
chmod 755 "$dir"/run/* 2>/dev/null || true
echo "machine: $(cat "$dir/kernel/release"), $((SECONDS - start)) s"
if [ "$code" != 3 ]; then
	echo "the machine did not come to its end (qemu exit $code); its console:"
	tail -40 "$dir/console"
	exit 1
fi
