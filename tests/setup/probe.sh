#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# probe.sh: says what the build found, what it goes without, and how to get it. Exits 1 when something
# is missing that the build cannot go without.
set -uo pipefail
PG_CONFIG=${PG_CONFIG:-pg_config}
CC=${CC:-gcc}
bad=0

line() { printf '  %-12s %-9s %s\n' "$1" "$2" "$3"; }
header() { # name, header, macro that shows a version, package
	local v
	if v=$(printf '#include <stdio.h>\n#include <%s>\n@@%s\n' "$2" "$3" | sed 's/@@/CNN_V /' | $CC -E -P -x c - 2>/dev/null); then
		line "$1" found "$(printf '%s\n' "$v" | sed -n 's/^CNN_V //p' | tr -d '" ')"
	else
		line "$1" MISSING "install $4"
		bad=1
	fi
}
echo "probes:"
line compiler found "$($CC --version 2>/dev/null | head -1)"
header jansson jansson.h JANSSON_VERSION libjansson-dev
header libjpeg jpeglib.h JPEG_LIB_VERSION libjpeg62-turbo-dev
header libpng png.h PNG_LIBPNG_VER_STRING libpng-dev
header oneDNN oneapi/dnnl/dnnl_version.h 'DNNL_VERSION_MAJOR.DNNL_VERSION_MINOR' libdnnl-dev
header xxhash xxhash.h 'XXH_VERSION_MAJOR.XXH_VERSION_MINOR' libxxhash-dev
header libarchive archive.h ARCHIVE_VERSION_ONLY_STRING libarchive-dev
header libcrypto openssl/opensslv.h OPENSSL_VERSION_STR libssl-dev
if command -v "$PG_CONFIG" >/dev/null && [ -r "$($PG_CONFIG --includedir-server)/postgres.h" ]; then
	line database found "$($PG_CONFIG --version) ($PG_CONFIG)"
else
	line database MISSING "install postgresql and postgresql-server-dev-NN, or set PG_CONFIG"
	bad=1
fi
if [ -e /usr/include/ucp/api/ucp.h ]; then line UCX found "merge_transport ucx is built"; else line UCX skipped "no merge_transport ucx; install libucx-dev"; fi
if command -v gnuplot >/dev/null; then line gnuplot found "$(gnuplot --version)"; else line gnuplot skipped "no plots; install gnuplot-nox"; fi
if command -v nvcc >/dev/null; then line CUDA found "$(nvcc --version | sed -n 's/.*release \([^,]*\),.*/\1/p') (the CUDA back end is not part of this version)"; else line CUDA skipped "no nvcc: CPU only"; fi
if [ -e /dev/cnnring ]; then line cnnring found "/dev/cnnring"; else line cnnring skipped "no /dev/cnnring: rows go through memfd"; fi
exit $bad
