#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# dkms.t DIR: what `make install-kmod` installs builds and is signed by dkms as docs/kernel-module.md says.
# DIR as of kernel.sh. dkms itself comes out of its package, with its folders put into a scratch one.
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(cd "${1:-$KMOD_DIR}" && pwd)
cd "$top" || exit 1
. tests/tap.sh
d=$(mktemp -d)
trap 'rm -rf "$d"' EXIT
mkdir "$d"/{dest,tree,install,etc,tmp}
out=$(make -s install-kmod DESTDIR="$d/dest" 2>&1)
ok "make install-kmod with DESTDIR"
[ $tap_bad = 0 ] || sed 's/^/# /' <<<"$out"
version=$(sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' "$d"/dest/usr/src/cnnring-*/dkms.conf)
is "$(cd "$d/dest" && find . -type f | grep -v usr/src | sort | tr '\n' ' ')" \
	"./usr/include/linux/cnnring.h ./usr/lib/modules-load.d/cnnring.conf ./usr/lib/udev/rules.d/60-cnnring.rules ./usr/share/man/man4/cnnring.4 " "beside the sources"
is "$(sed -n 's/^MODULE_VERSION("\(.*\)");/\1/p' kmod/main.c)" "$version" "one version everywhere"
release=$(cat "$dir/kernel/release")
cat >"$d/etc/framework.conf" <<EOF
sign_file="$dir/kernel/headers/scripts/sign-file"
mok_signing_key=$d/mok.key
mok_certificate=$d/mok.pub
EOF
sed "s,/etc/dkms,$d/etc,g; s,/var/lib/dkms,$d/tree,g" "$dir/tools/dkms/usr/sbin/dkms" >"$d/dkms"
out=$(env -u MAKEFLAGS -u MAKELEVEL -u BUILD TMPDIR="$d/tmp" bash "$d/dkms" build -m cnnring -v "$version" -k "$release" \
	--kernelsourcedir "$dir/kernel/headers" --dkmstree "$d/tree" --sourcetree "$d/dest/usr/src" \
	--installtree "$d/install" --arch x86_64 2>&1)
ok "dkms build"
ko=$(find "$d/tree" -name 'cnnring.ko*' -path '*/module/*' | head -1)
[ -n "$ko" ] || sed 's/^/# /' <<<"$out"
like "$(/sbin/modinfo -F vermagic "$ko")" "^$release " "for the kernel asked for"
is "$(/sbin/modinfo -F version "$ko")" "$version" "... of this version"
is "$(/sbin/modinfo -F signer "$ko")" "DKMS module signing key" "... signed with the key that dkms makes"
[ -s "$d/mok.pub" ]
ok "... whose certificate is there for mokutil"
tap_done
