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
$p -b 4K -e 4K -n 2 --hosts 3 --cpus 0 >/dev/null 2>&1
ok "--cpus 0"
! $p -b 4K -e 4K -n 2 --hosts 2 --cpus 0,4095 >"$w/c" 2>&1 && grep -q 'processor of host 1' "$w/c"
ok "--cpus: a processor that is not there"
$p -b 64K -e 64K -n 2 --hosts 4 --ring_from 1 >/dev/null 2>&1
ok "the ring"
out=$($p -b 64K -e 256K -f 2 -n 3 --level intra -t 2 -g 2 2>&1)
is $? 0 "replicas inside a host: 2 threads for 2 each"
like "$out" '^# 4 replicas, level intra' "says so"
out=$($p -b 64K -e 256K -f 4 -n 3 --level hier --hosts 3 -t 2 -g 2 2>&1)
is $? 0 "three hosts of four replicas"
like "$out" '^# 3 hosts of 4 replicas, level hier' "says so"
rows=$(grep -E '^ +[0-9]+ ' <<<"$out")
awk '{ a = $1 / ($10 * 1e3) * 4 / 3; if (a - $12 > .006 || $12 - a > .006) bad = 1 } END { exit bad }' <<<"$rows"
ok "hierarchical busbw is that of the part between hosts"
for m in average slowmo easgd adasum median; do
	$p -b 4K -e 4K -n 2 --level hier -t 1 -g 2 --hosts 3 --merge $m >"$w/m" 2>&1
	ok "--level hier --merge $m, checked"
done
if $p -b 4K -e 4K -n 1 --transport ucx --ucx_tls tcp,self >"$w/u" 2>&1 || ! grep -q 'no UCX back end\|libucp' "$w/u"; then
	out=$($p -b 4K -e 1M -f 16 -n 2 --hosts 3 --transport ucx --ucx_tls tcp,self 2>&1)
	is $? 0 "--transport ucx"
	like "$out" '^# 3 hosts, level inter, transport ucx' "says so"
	$p -b 64K -e 64K -n 2 --hosts 3 --transport ucx --ucx_tls tcp,self --ring_from 1 >/dev/null 2>&1
	ok "the ring over UCX"
	$p -b 4K -e 4K -n 2 --hosts 3 --transport ucx --ucx_tls tcp,self --merge adasum >/dev/null 2>&1
	ok "adasum over UCX"
else
	skip "no UCX: $(tail -1 "$w/u")" "rounds over UCX"
fi
out=$($p -b 1k -e 2k -i 512 -n 2 -w 0 -m 2 -c 2 -d all -o all -N 2 -a 3 -T 20 -C 1 -S 1 -t 1 -g 1 2>&1)
is $? 0 "every option of nccl-tests that has a meaning here"
rows=$(grep -E '^ +[0-9]+ ' <<<"$out")
is "$(wc -l <<<"$rows")" 24 "2 cycles, 4 operations, 3 sizes by increment"
is "$(awk '{print $4}' <<<"$rows" | uniq | xargs)" "sum max min avg sum max min avg" "the operation is in the column redop"
like "$out" 'warmup iters: 0 iters: 2 agg iters: 2 validation: 2 ' "the header line repeats the options"
like "$rows" ' 20[0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9:]+$' "timestamps"
like "$out" ' cpu +algbw' "processor time in the place of time"
$p -b 4K -e 4K -n 1 -c 0 | grep -E '^ +4096' | awk '{ exit !($9 == "N/A" && $13 == "N/A") }'
ok "-c 0: nothing is checked, and none is said to be right"
for a in 0 1 2 3; do $p -b 4K -e 4K -n 1 -a $a >/dev/null 2>&1; ok "-a $a"; done
MERGE_PERF_MIN_BW=1000000 $p -b 4K -e 4K -n 2 >"$w/slow" 2>&1
is $? 1 "below .9 of MERGE_PERF_MIN_BW"
like "$(cat "$w/slow")" 'Avg bus bandwidth.* FAILED' "the footer says so"
MERGE_PERF_MIN_BW=0.0000001 $p -b 4K -e 4K -n 2 >/dev/null 2>&1
is $? 0 "above it"
for bad in --bogus "-b 3" "-b 4X" "-e 1K" "-o prod" "-d half" "--level rack" "--merge avarage" \
	"--wire bf16" "--merge none" "--merge median" "--hosts 65" "-n 0" extra "--level intra --merge average" \
	"--level hier -o max" "--level hier --hosts 8 -t 8 -g 2" "--transport rdma" "--level intra --transport ucx" \
	"-a 4" "-S 2" "-C x" "-c -1" "--merge average -o all" "--merge adasum --wire bf16" -n; do
	$p $bad >"$w/out" 2>"$w/err"
	is "$?/$(grep -c . "$w/err" | sed 's/[1-9][0-9]*/said/')" 2/said "$bad is refused"
done
tap_done
