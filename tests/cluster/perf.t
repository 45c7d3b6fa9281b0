#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# perf.t: merge_perf: rows that can be read by what reads nccl-tests, checks, exit status.
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 1
. tests/tap.sh
p=${BUILD:-build}/bin/merge_perf
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT

out=$($p -b 1K -e 64K -f 8 -n 3 --hosts 3 -J "$w/o.json" 2>&1)
is $? 0 "three hosts over loopback"
rows=$(grep -E '^ +[0-9]+ ' <<<"$out")
is "$(wc -l <<<"$rows")" 3 "a row for each size"
is "$(awk '{print $1}' <<<"$rows" | xargs)" "1024 8192 65536" "sizes by the factor"
is "$(awk '{print NF}' <<<"$rows" | sort -u)" 14 "the columns of nccl-tests, and one more"
# busbw = algbw * 2(n-1)/n, algbw = bytes / time; two decimals are printed
awk '{ a = $1 / ($10 * 1e3); if (a - $11 > .006 || $11 - a > .006) bad = 1; b = a * 4 / 3; if (b - $12 > .006 || $12 - b > .006) bad = 1 } END { exit bad }' <<<"$rows"
ok "algbw and busbw follow from size and time"
is "$(awk '{print $9, $13}' <<<"$rows" | sort -u)" "0 0" "nothing is wrong"
like "$out" '^# Out of bounds values : 0 OK$' "the footer counts"
like "$out" '^# Avg bus bandwidth    : [0-9.e-]+$' "the footer's mean"
perl -MJSON::PP -0777 -ne '$j = decode_json($_); exit !(@{$j->{results}} == 3 && $j->{results}[2]{in_place}{nwrong} == 0 && $j->{results}[1]{size} == 8192)' "$w/o.json"
ok "JSON with the same rows"
SECRET_THING=hunter2 $p -b 4 -e 4 -n 1 -J "$w/e.json" >/dev/null 2>&1
! grep -q hunter2 "$w/e.json"
ok "JSON without the environment"
for op in sum max min avg; do
	$p -b 4K -e 4K -n 2 --hosts 3 -o $op >/dev/null 2>&1
	ok "-o $op"
done
for m in gradient average slowmo diloco lookahead easgd adasum trimmed_mean median; do
	$p -b 4K -e 4K -n 2 --hosts 3 --merge $m >"$w/m" 2>&1 && grep -q " $m " "$w/m"
	ok "--merge $m, checked, in the column redop"
done
$p -b 4K -e 4K -n 2 --hosts 4 --merge average --wire bf16 >/dev/null 2>&1
ok "--wire bf16"
$p -b 64K -e 64K -n 2 --hosts 4 --ring_from 1 >/dev/null 2>&1
ok "the ring"
out=$($p -b 64K -e 256K -f 2 -n 3 --level intra -t 2 -g 2 2>&1)
is $? 0 "replicas inside a host: 2 threads for 2 each"
like "$out" '^# 4 replicas, level intra' "says so"
MERGE_PERF_MIN_BW=1000000 $p -b 4K -e 4K -n 2 >"$w/slow" 2>&1
is $? 1 "below .9 of MERGE_PERF_MIN_BW"
like "$(cat "$w/slow")" 'Avg bus bandwidth.* FAILED' "the footer says so"
MERGE_PERF_MIN_BW=0.0000001 $p -b 4K -e 4K -n 2 >/dev/null 2>&1
is $? 0 "above it"
for bad in --bogus "-b 3" "-b 4X" "-e 1K" "-o prod" "-d half" "--level hier" "--merge avarage" \
	"--wire bf16" "--merge none" "--merge median" "--hosts 65" "-n 0" extra "--level intra --merge average"; do
	$p $bad >"$w/out" 2>"$w/err"
	is "$?/$(grep -c . "$w/err" | sed 's/[1-9][0-9]*/said/')" 2/said "$bad is refused"
done
tap_done
