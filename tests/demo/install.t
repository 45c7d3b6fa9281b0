#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# install.t: make install puts every file where the README says, and the manuals of its list exist.
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 1
. tests/tap.sh
d=$(mktemp -d)
trap 'rm -rf "$d"' EXIT
out=$(make -s BUILD="${BUILD:-build}" install DESTDIR="$d" 2>&1)
ok "make install with DESTDIR"
[ $tap_bad = 0 ] || sed 's/^/# /' <<<"$out"
pg=$(${PG_CONFIG:-pg_config} --sharedir) lib=$(${PG_CONFIG:-pg_config} --pkglibdir)
for f in usr/sbin/cnnd usr/bin/cnnctl etc/cnnd.conf usr/lib/systemd/system/cnnd.service usr/lib/sysusers.d/cnnd.conf \
	usr/lib/tmpfiles.d/cnnd.conf "${lib#/}/gpu_cnn.so" "${pg#/}/extension/gpu_cnn.control"; do
	[ -s "$d/$f" ]
	ok "$f is installed"
done
is "$(cd "$d/usr/share/man" && find . -type f | sort | tr '\n' ' ')" \
	"./man1/cnnctl.1 ./man5/cnnd.conf.5 ./man7/gpu_cnn.7 ./man8/cnnd.8 " "the manuals"
echo "edited = 1" >"$d/etc/cnnd.conf"
make -s BUILD="${BUILD:-build}" install DESTDIR="$d" >/dev/null 2>&1
is "$(cat "$d/etc/cnnd.conf")" "edited = 1" "a configuration that is there is kept"
# what the README links to exists
for f in $(grep -oE '\]\([A-Za-z][^):#]*' README.md | sed 's/](//' | sort -u); do
	[ -e "$f" ]
	ok "README: $f exists"
done
tap_done
