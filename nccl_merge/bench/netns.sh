#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# netns.sh: runs merge_perf between network namespaces around a bridge, which it makes and removes (root).
#   netns.sh MERGE_PERF HOSTS [options of merge_perf]
set -euo pipefail
perf=$1
hosts=$2
shift 2
id=mpf$$
clean() { for i in $(seq 0 "$hosts"); do ip netns del "$id.$i" 2>/dev/null || true; done; }
trap clean EXIT
trap 'exit 1' INT TERM
hub=$id.$hosts
ip netns add "$hub"
ip -n "$hub" link add name bridge0 type bridge
ip -n "$hub" link set bridge0 up
names= addresses=
for i in $(seq 0 $((hosts - 1))); do
	ns=$id.$i
	ip netns add "$ns"
	ip -n "$hub" link add "v$i" type veth peer name eth0 netns "$ns"
	ip -n "$hub" link set "v$i" master bridge0 up
	ip -n "$ns" link set lo up
	ip -n "$ns" addr add "10.98.0.$((i + 1))/24" dev eth0
	ip -n "$ns" link set eth0 up
	names=$names,$ns
	addresses=$addresses,10.98.0.$((i + 1))
done
"$perf" --level inter --hosts "$hosts" --netns "${names#,}" --address "${addresses#,}" "$@"
