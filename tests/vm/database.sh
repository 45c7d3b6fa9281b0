#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# database.sh DIR TOOLS: makes a server on this machine (quicker than in an emulated one), stops it, boots the
# second test machine on this machine's files, and lets it run there. DIR/run.database/database as in boot.sh.
set -euo pipefail
dir=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
tools=$(cd "$2" && pwd)
virtiofsd=
for f in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd; do
	[ ! -x "$f" ] || virtiofsd=$f
done
[ -n "$virtiofsd" ] || { echo "database.sh: no virtiofsd (package qemu-system-common or virtiofsd)" >&2; exit 1; }
scratch=
daemon=
# virtiofsd serves this machine's files to the guest's root: it needs root itself
root=
[ "$(id -u)" = 0 ] || root="sudo -n"
sockets=$(mktemp -d /var/tmp/cnnvm.XXXXXX)
socket=$sockets/fs
clean() {
	[ -z "$daemon" ] || $root kill "$daemon" 2>/dev/null || true
	# the guest's root may have left files of its own there
	[ -z "$scratch" ] || $root rm -rf "$scratch"
	rm -rf "$sockets"
}
trap clean EXIT

# the machine's user postgres must reach the test's files: a clone under /root is not readable to it
scratch=$(SCRATCH_CNND_CONF='ring = device' "$top/udf/test/scratch.sh" up)
. "$scratch/env"
psql -Xq -v ON_ERROR_STOP=1 -o /dev/null -f "$top/udf/test/setup.sql"
psql -Xq -v ON_ERROR_STOP=1 -o /dev/null -f "$top/udf/test/faults.sql"
"$top/udf/test/scratch.sh" cnnd "$scratch" stop
"$top/udf/test/scratch.sh" as "$scratch" "$SCRATCH_BIN/pg_ctl" -D "$scratch/data" -w -s -m fast stop
mkdir -p "$scratch/top/tests/vm" "$scratch/top/udf/test"
cp "$here/database" "$top/kmod/60-cnnring.rules" "$scratch/top/tests/vm/"
cp "$tools/udev/bin/udevadm" "$scratch/top/tests/vm/"
cp "$top"/udf/test/{scratch.sh,lib.sh} "$scratch/top/udf/test/"
chmod -R a+rX "$scratch/top"
rm -f "$scratch/cnnd/log"

guest=$dir/guest.database
rm -rf "$guest"
mkdir -p "$guest"/{bin,dev,proc,sys,mods}
cp "$(command -v busybox)" "$guest/bin/busybox"
cp "$here/init.database" "$guest/init"
chmod 755 "$guest/init"
cp "$dir/guest/vmexit" "$dir/guest/cnnring.ko" "$guest/"
release=$(cat "$dir/kernel/release")
[ -e "$dir/kernel/modules/modules.dep" ] || /sbin/depmod -b "$dir/kernel/root" "$release"
for m in virtio_pci virtiofs overlay; do
	/sbin/modprobe -d "$dir/kernel/root" -S "$release" --show-depends "$m"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r path; do
	cp "$path" "$guest/mods/"
	basename "$path" >>"$guest/mods/list"
done
echo "$scratch/top" >"$guest/test"
echo "$scratch" >"$guest/scratch"
(cd "$guest" && find . | cpio -o -H newc --quiet -R 0:0) >"$dir/initrd.database"

$root "$virtiofsd" --socket-path="$socket" --socket-group="$(id -gn)" -o source=/ -o sandbox=chroot -o cache=always >"$dir/virtiofsd.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do [ -S "$socket" ] && break; sleep .05; done
rm -rf "$dir"/{console,results,run}.database
start=$SECONDS
set +e
timeout -k 5 "${VM_SECONDS:-600}" qemu-system-x86_64 -M pc -accel tcg,thread=multi -cpu max,cx16=off -smp 2 -m 1024 \
	-object memory-backend-memfd,id=mem,size=1024M,share=on -numa node,memdev=mem \
	-chardev "socket,id=fs,path=$socket" -device vhost-user-fs-pci,chardev=fs,tag=host \
	-nodefaults -no-user-config -nographic -no-reboot -serial "file:$dir/console.database" \
	-serial "file:$dir/results.database" -device isa-debug-exit,iobase=0xf4,iosize=0x04 \
	-kernel "$dir/kernel/vmlinuz" -initrd "$dir/initrd.database" \
	-append "console=ttyS0 quiet no_timer_check panic=-1 oops=panic rdinit=/init" </dev/null
code=$?
set -e
mkdir -p "$dir/run.database"
tr -d '\r' <"$dir/results.database" | sed '/^@@/d' >"$dir/run.database/.database"
rc=$(tr -d '\r' <"$dir/results.database" | sed -n 's/^@@= //p')
printf '#!/bin/sh\ncat "$(dirname "$0")/.database"\nexit %d\n' "${rc:-99}" >"$dir/run.database/database"
chmod 755 "$dir/run.database/database"
echo "machine with PostgreSQL: $release, $((SECONDS - start)) s"
if [ "$code" != 3 ]; then
	echo "the machine did not come to its end (qemu exit $code); its console:"
	tail -40 "$dir/console.database"
	exit 1
fi
