#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kernel.sh: fetches a Debian kernel and its headers and unpacks them under DIR; nothing is installed.
# Image and headers come from one apt state of their own (DIR/apt), so they are of one version; packages
# are kept and checked by the checksums of that state. Prints nothing unless it has work to do.
#   kernel.sh DIR        afterwards: DIR/kernel/{vmlinuz,modules,headers,release}
#   kernel.sh DIR source adds DIR/source/{scripts,kselftest} out of linux-source (135 MB)
#   kernel.sh DIR tree   adds DIR/linux, all of it (1.5 GB)
#   kernel.sh DIR tools  adds DIR/tools/{udev,dkms}, the packages unpacked
# KERNEL_META=linux-image-cloud-amd64  another flavour
# KERNEL_SUITE=                        another release of Debian (bullseye, bookworm-backports)
set -euo pipefail
mkdir -p "$1"
dir=$(cd "$1" && pwd)
what=${2:-kernel}
meta=${KERNEL_META:-linux-image-cloud-amd64}
pool=$dir/pool
# make may start two of us at once, and there is one apt state
exec 9>"$dir/lock"
flock 9

options=(-o Dir::State="$dir/apt/state" -o Dir::Cache="$dir/apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root
	-o Acquire::Languages=none)
if [ -n "${KERNEL_SUITE:-}" ]; then
	# nothing installed counts there, or the newer packages of this system would be preferred
	touch "$dir/status"
	options+=(-o Dir::Etc::sourcelist="$dir/apt/sources" -o Dir::Etc::sourceparts=- -o Dir::State::status="$dir/status")
else
	options+=(-o Dir::State::status=/var/lib/dpkg/status)
fi
private_apt() { apt-get "${options[@]}" "$@"; }
private_cache() { apt-cache "${options[@]}" "$@"; }
# the mirror is the one that this system uses
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -E '/debian/?$' | head -1; }
update() {
	[ -e "$dir/apt/done" ] && return
	mkdir -p "$dir/apt/state/lists/partial" "$dir/apt/cache/archives/partial"
	[ -z "${KERNEL_SUITE:-}" ] || echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) $KERNEL_SUITE main" >"$dir/apt/sources"
	private_apt update -qq
	touch "$dir/apt/done"
}
get() { # PACKAGE: apt checks the file against the signed lists; a damaged one is fetched again
	local sum file
	file=$(cd "$pool" && ls "$1"_*.deb 2>/dev/null | tail -1 || true)
	if [ -n "$file" ] && [ -e "$pool/$file.sum" ] && (cd "$pool" && sha256sum --status -c "$file.sum"); then
		return
	fi
	update
	echo "fetching $1"
	rm -f "$pool/$1"_*.deb*
	(cd "$pool" && private_apt download -qq "$1" >/dev/null)
	file=$(cd "$pool" && ls "$1"_*.deb | tail -1)
	sum=$(private_cache show "$1" | sed -n 's/^SHA256: //p' | head -1)
	[ "$(sha256sum <"$pool/$file" | cut -d' ' -f1)" = "$sum" ] || { echo "kernel.sh: checksum of $file" >&2; exit 1; }
	(cd "$pool" && sha256sum "$file" >"$file.sum")
}
depends() { # PACKAGE PATTERN
	private_cache depends "$1" | sed -n "s/^ *Depends: \($2\)\$/\1/p" | head -1
}

fetch_kernel() {
	local image release headers p
	update
	image=$(depends "$meta" 'linux-image-[0-9].*')
	release=${image#linux-image-}
	headers=linux-headers-$release
	[ -n "$release" ] || { echo "kernel.sh: $meta is not known to apt" >&2; exit 1; }
	set -- "$image" "$headers"
	for p in 'linux-headers-.*-common' 'linux-kbuild-.*' 'linux-compiler-gcc-.*'; do
		set -- "$@" "$(depends "$headers" "$p")"
	done
	mkdir -p "$pool"
	rm -rf "$dir/kernel" "$dir/kernel.new"
	mkdir -p "$dir/kernel.new/root"
	for p; do
		[ -n "$p" ] || continue
		get "$p"
		dpkg-deb -x "$pool/$(cd "$pool" && ls "$p"_*.deb | tail -1)" "$dir/kernel.new/root"
	done
	mv "$dir/kernel.new" "$dir/kernel"
	# the packages expect to lie under /usr; make their paths those of this folder
	sed -i "s,/usr/src/,$dir/kernel/root/usr/src/,g" "$dir/kernel/root/usr/src/$headers/Makefile"
	[ -e "$dir/kernel/root/usr/src/$headers/scripts/Makefile.build" ] ||
		ln -sfn "$(ls -d "$dir"/kernel/root/usr/lib/linux-kbuild-*/scripts)" "$dir/kernel/root/usr/src/$headers/scripts"
	# built with the compiler that is here; Debian names its own version
	command -v "gcc-$(sed -n 's/.*gcc-\([0-9]*\).*/\1/p' "$dir/kernel/root/usr/src/$headers/.kernelvariables" | head -1)" >/dev/null ||
		sed -i 's/gcc-[0-9]*/gcc/' "$dir/kernel/root/usr/src/$headers/.kernelvariables"
	ln -s "root/usr/src/$headers" "$dir/kernel/headers"
	ln -s "root/boot/vmlinuz-$release" "$dir/kernel/vmlinuz"
	ln -s "root/lib/modules/$release" "$dir/kernel/modules"
	echo "$release" >"$dir/kernel/release"
}

# unpack_source TO PATTERN...: of linux-source; the last file that appears is TO/.source, its checksum
unpack_source() {
	local to=$1 source deb
	shift
	update
	source=$(private_cache depends linux-source | sed -n 's/^ *Depends: //p' | head -1)
	mkdir -p "$pool"
	rm -rf "$to.new"
	mkdir "$to.new"
	get "$source"
	deb=$(cd "$pool" && ls "$source"_*.deb | tail -1)
	dpkg-deb --fsys-tarfile "$pool/$deb" | tar xO "./usr/src/$source.tar.xz" |
		tar xJ -C "$to.new" --strip-components=1 --wildcards "$@"
	cp "$pool/$deb.sum" "$to.new/.source"
	rm -rf "$to"
	mv "$to.new" "$to"
}

fetch_tools() {
	local p
	mkdir -p "$pool"
	rm -rf "$dir/tools" "$dir/tools.new"
	for p in udev dkms; do
		get "$p"
		mkdir -p "$dir/tools.new/$p"
		dpkg-deb -x "$pool/$(cd "$pool" && ls "$p"_*.deb | tail -1)" "$dir/tools.new/$p"
	done
	mv "$dir/tools.new" "$dir/tools"
}

case $what in
# checkpatch and the headers of kselftest; neither is in a package of its own
source)
	[ -e "$dir/source/scripts/checkpatch.pl" ] || unpack_source "$dir/source" \
		'*/scripts/checkpatch.pl' '*/scripts/spelling.txt' '*/scripts/const_structs.checkpatch' \
		'*/selftests/kselftest.h' '*/selftests/kselftest_harness.h' '*/userspace-api/ioctl/ioctl-number.rst'
	;;
tree) [ -e "$dir/linux/.source" ] || unpack_source "$dir/linux" '*' ;;
tools) [ -e "$dir/tools/dkms" ] || fetch_tools ;;
kernel) [ -e "$dir/kernel/release" ] || fetch_kernel ;;
esac
