#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# checkpatch.sh DIR: checkpatch --strict over kmod/, from the linux-source that kernel.sh DIR source
# fetched. trace.h: the layout of tracepoints, as in the kernel, is not what two of its rules expect.
set -euo pipefail
cd "$(dirname "$0")/../.."
check="perl $1/source/scripts/checkpatch.pl --no-tree --strict --max-line-length=100 -q -f"
bad=0
for f in kmod/*.[ch] kmod/uapi/linux/*.h tests/kselftest/module/*.c; do
	[ -e "$f" ] || continue
	ignore=
	case $f in */trace.h) ignore=--ignore=OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT ;; esac
	$check $ignore "$f" || bad=1
done
exit $bad
