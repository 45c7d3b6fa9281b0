#!/bin/sh
# SPDX-License-Identifier: MIT
# on_cpu.sh: a rank of MPI on its processor.  on_cpu.sh A,B,...|none PROGRAM [ARG...]
cpus=$1
shift
[ "$cpus" != none ] || exec "$@"
n=$(echo "$cpus" | tr ',' '\n' | wc -l)
exec taskset -c "$(echo "$cpus" | cut -d, -f$((OMPI_COMM_WORLD_RANK % n + 1)))" "$@"
