#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# packages.sh: installs what the project builds and tests with, if it is missing (Debian and Ubuntu). Needs
# root or sudo only when something is missing. No PostgreSQL cluster is created, started or touched.
#   packages.sh [build|demo|bench|study|kmod|kmod-san]   more groups add to `build`
set -euo pipefail

build="gcc make binutils perl procps util-linux zstd xz-utils libc6-dev
  libjansson-dev libpng-dev libjpeg62-turbo-dev libdnnl-dev libxxhash-dev libpq-dev libarchive-dev
  libssl-dev libucx-dev iproute2 python3"
demo="gnuplot-nox dataset-fashion-mnist"
bench="python3 python3-venv g++ libopenmpi-dev openmpi-bin libgloo-dev"
study="python3-matplotlib python3-pil dataset-fashion-mnist"
kmod="qemu-system-x86 qemu-system-common seabios busybox-static cpio kmod sparse libelf1"
kmod_san="flex bison bc libelf-dev openssl"

want="$build"
for group in "$@"; do
	case $group in
	build) ;;
	demo) want="$want $demo" ;;
	bench) want="$want $bench" ;;
	study) want="$want $study" ;;
	kmod) want="$want $kmod" ;;
	kmod-san) want="$want $kmod $kmod_san" ;;
	*) echo "packages.sh: unknown group '$group'" >&2; exit 2 ;;
	esac
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
	echo "packages.sh: not a Debian system; these packages are needed by their Debian names:" $want "postgresql and its server headers" >&2
	exec "$(dirname "$0")/probe.sh"
fi

have() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

missing=
for p in $want; do have "$p" || missing="$missing $p"; done
# the server and its headers, in one version
pg=$(ls /usr/lib/postgresql 2>/dev/null | sort -rn | head -1 || true)
need_pg=
[ -n "$pg" ] && [ -x "/usr/lib/postgresql/$pg/bin/initdb" ] && have "postgresql-server-dev-$pg" || need_pg=1
[ -z "$missing$need_pg" ] && exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || { echo "packages.sh: these packages are missing and neither root nor sudo is at hand:$missing ${need_pg:+postgresql}" >&2; exit 1; }
	sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300"
install() {
	echo "installing: $*"
	$apt install -y -qq --no-install-recommends "$@" >"$log" 2>&1 || { tail -20 "$log" >&2; exit 1; }
}
log=$(mktemp)
conf=/etc/postgresql-common/createcluster.d/cnnd-no-main-cluster.conf
clean() {
	rm -f "$log"
	[ ! -e "$conf" ] || $sudo rm -f "$conf"
}
trap clean EXIT
$apt update -qq >"$log" 2>&1 || { tail -20 "$log" >&2; echo "packages.sh: apt-get update failed" >&2; exit 1; }
if [ -n "$need_pg" ]; then
	install postgresql-common
	# the package would start a server on port 5432
	$sudo mkdir -p "$(dirname "$conf")"
	echo 'create_main_cluster = false' | $sudo tee "$conf" >/dev/null
	grep -q "^include_dir" /etc/postgresql-common/createcluster.conf ||
		{ echo "packages.sh: /etc/postgresql-common/createcluster.conf does not read createcluster.d; set create_main_cluster = false there and run again" >&2; exit 1; }
	pg=${pg:-$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)}
	[ -n "$pg" ] || { echo "packages.sh: no PostgreSQL server package is known to apt" >&2; exit 1; }
	missing="$missing postgresql-$pg postgresql-server-dev-$pg"
fi
# shellcheck disable=SC2086
install $missing
