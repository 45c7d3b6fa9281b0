#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# agent.sh: what mpirun takes for ssh: a host is a network namespace of the same name.
host=$1
shift
exec ip netns exec "$host" unshare -u bash -c "hostname $host; $*"
