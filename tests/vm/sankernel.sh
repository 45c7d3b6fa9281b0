#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sankernel.sh DIR BED: a kernel that looks at itself, for the bed uml, kasan or kcsan (check-kmod-san),
# built once out of Debian's linux-source and kept under a key of source, configuration and compiler.
# Afterwards: DIR/san/BED/kernel/{vmlinuz or linux,headers,release}.
#   KERNEL_JOBS=2  jobs of the build; it runs with nice 10
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
bed=$2
here=$(cd "$(dirname "$0")" && pwd)
case $bed in
uml) fragments="common faults uml" arch="ARCH=um SUBARCH=x86_64" images=linux ;;
kasan) fragments="common x86 faults kasan" arch=ARCH=x86_64 images=bzImage ;;
kcsan) fragments="common x86 kcsan" arch=ARCH=x86_64 images=bzImage ;;
*) echo "sankernel.sh: no bed '$bed'" >&2; exit 2 ;;
esac
# one at a time
exec 8>"$dir/lock.$bed"
flock 8
"$here/kernel.sh" "$dir" tree
cd "$here/config"
key=$({ echo "$dir"; cat "$dir/linux/.source" $fragments; gcc --version | head -1; } | sha256sum | cut -c1-12)
out=$dir/cache/$bed-$key
# the kernel's build must not see the variables of ours
kmake() { env -u MAKEFLAGS -u MAKELEVEL -u BUILD -u CC make -s -C "$dir/linux" O="$out" $arch "$@"; }

configure() {
	local line key
	kmake tinyconfig
	# tinyconfig says no to a lot; what comes last counts
	cat $fragments >>"$out/.config"
	kmake olddefconfig
	# an option that cannot be had would be a detector that is not there
	for line in $(grep -h '^CONFIG' $fragments); do
		key=${line%%=*}
		case $line in
		*=n) ! grep -q "^$key=" "$out/.config" ;;
		*) grep -qx "$line" "$out/.config" ;;
		esac || { echo "sankernel.sh: $bed: $line is not taken" >&2; return 1; }
	done
}

if [ ! -e "$out/.built" ]; then
	start=$SECONDS
	echo "building the kernel of $bed"
	rm -rf "$dir/cache/$bed"-* # older ones
	mkdir -p "$out"
	configure >"$out.log" 2>&1 || { tail -20 "$out.log"; exit 1; }
	nice -n 10 env -u MAKEFLAGS -u MAKELEVEL -u BUILD -u CC make -s -C "$dir/linux" O="$out" $arch \
		-j"${KERNEL_JOBS:-2}" $images modules >>"$out.log" 2>&1 || { tail -30 "$out.log"; exit 1; }
	echo "built in $((SECONDS - start)) s"
	touch "$out/.built"
fi
kernel=$dir/san/$bed/kernel
mkdir -p "$kernel"
ln -sfn "$out" "$kernel/headers"
if [ "$bed" = uml ]; then
	ln -sfn "$out/linux" "$kernel/linux"
else
	ln -sfn "$out/arch/x86/boot/bzImage" "$kernel/vmlinuz"
fi
# touched only if it changes: the module is built against it
echo "$(cat "$out/include/config/kernel.release") $bed-$key" >"$kernel/release.new"
cmp -s "$kernel/release.new" "$kernel/release" || cp "$kernel/release.new" "$kernel/release"
rm "$kernel/release.new"
