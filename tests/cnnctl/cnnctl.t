#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# cnnctl.t: load from every source, resumed and with bad files; train with progress and Ctrl-C; status;
# plot; wrong usage.
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top" || exit 1
[ -n "${SCRATCH:-}" ] || exec udf/test/scratch.sh run "$0"
. tests/tap.sh
ctl=${BUILD:-build}/bin/cnnctl
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT
q() { "$SCRATCH_BIN/psql" -X -q -At -c "$1" 2>&1; }
q 'CREATE EXTENSION gpu_cnn' >/dev/null

# ---- IDX: 300 images of 2 x 3, pixel = (index + place) % 256, label = index % 3
perl -e 'binmode STDOUT; print pack("N4", 0x803, 300, 2, 3); for $i (0..299) { print pack("C*", map { ($i + $_) % 256 } 0..5) }' | gzip >"$w/images.gz"
perl -e 'binmode STDOUT; print pack("N2", 0x801, 300); print pack("C*", map { $_ % 3 } 0..299)' >"$w/labels"
out=$($ctl load -q -t idx "$w/labels" "$w/images.gz" 2>&1)
ok "IDX, one of the files compressed, in either order"
like "$out" '^300 rows loaded into idx' "says what it loaded"
is "$(q "SELECT count(*), sum(y), min(length(x)), max(length(x)) FROM idx")" "300|300|6|6" "rows, labels, sizes"
is "$(q "SELECT encode(x, 'hex'), y FROM idx WHERE id = 258")" "020304050607|0" "pixels and label of one row"
out=$($ctl load -q -t idx "$w/labels" "$w/images.gz" 2>&1)
is $? 1 "an existing table is not touched"
like "$out" 'exists; --resume' "and the message says what to do"
out=$($ctl load -q -t '"Odd ""Name"' --classes one,two,three "$w/images.gz" "$w/labels" 2>&1)
is "$(q 'SELECT string_agg(DISTINCT y, $$,$$) FROM "Odd ""Name"')" "one,three,two" "class names, a quoted table name"
out=$($ctl load -q -t few --classes a,b "$w/images.gz" "$w/labels" 2>&1)
like "$out" 'label 2 of item 2 has no name' "too few class names are refused"
head -c 900 <(gzip -dc "$w/images.gz") >"$w/short"
out=$($ctl load -q -b 50 -t short "$w/short" "$w/labels" 2>&1)
is $? 1 "a truncated file fails"
like "$out" 'end after 147 of 300' "by saying where"
is "$(q 'SELECT count(*), max(id) FROM short')" "147|146" "what came before is kept"
out=$($ctl load -q -r -t short "$w/images.gz" "$w/labels" 2>&1)
is "$(q 'SELECT count(*), count(DISTINCT id), max(id), sum(y) FROM short')" "300|300|299|300" "--resume completes it, nothing twice"
is "$(q "SELECT count(*) FROM short s JOIN idx i USING (id, x, y)")" 300 "row by row the same"

# ---- CIFAR binary: one record, planes 1, 2, 3
perl -e 'binmode STDOUT; print chr(7), chr(1) x 1024, chr(2) x 1024, chr(3) x 1024' >"$w/batch.bin"
$ctl load -q -t cifar "$w/batch.bin" >/dev/null 2>&1
is "$(q "SELECT y, length(x), encode(substr(x, 1, 6), 'hex'), encode(substr(x, 3070), 'hex') FROM cifar")" "7|3072|010203010203|010203" "CIFAR planes become pixels"
perl -e 'binmode STDOUT; print chr(7), chr(42), chr(1) x 3072' >"$w/c100"
$ctl load -q -f cifar100 -t cifar100 "$w/c100" >/dev/null 2>&1
is "$(q "SELECT y FROM cifar100")" 42 "CIFAR-100: the fine label"
out=$($ctl load -q -f cifar10 -t torn <(head -c 3000 "$w/batch.bin") 2>&1)
like "$out" 'whole CIFAR record' "a torn record is told"

# ---- folders and tars
mkdir -p "$w/set/train/cat" "$w/set/train/dog" "$w/set/test/cat"
printf '\377\330\377\340jpeg' >"$w/set/train/cat/1.jpg"
printf '\211PNG\r\n\032\npng' >"$w/set/train/dog/2.png"
printf '\377\330\377\340test' >"$w/set/test/cat/3.jpg"
printf 'BM bitmap' >"$w/set/train/cat/named.jpg"
printf 'GIF89a' >"$w/set/train/dog/g.jpg"
: >"$w/set/train/dog/empty.png"
printf '\377\330\377\340x' >"$w/set/.hidden.jpg"
out=$($ctl load -q -t folder -p train/ "$w/set" 2>&1)
is "$(q "SELECT string_agg(path || ':' || y, ' ' ORDER BY id) FROM folder")" "train/cat/1.jpg:cat train/dog/2.png:dog" "a folder: class and path, prefix"
like "$out" 'bad file: train/cat/named.jpg is a BMP' "a bitmap named .jpg is listed"
like "$out" 'bad file: train/dog/empty.png is empty' "an empty file is listed"
like "$out" '3 bad files were left out' "and counted"
tar -C "$w/set" -cf - . | zstd -q >"$w/set.tar.zst"
$ctl load -q -t tarred "$w/set.tar.zst" >/dev/null 2>&1
is "$(q "SELECT count(*), count(DISTINCT y) FROM tarred")" "3|2" "a compressed tar"
head -c 700 "$w/set.tar.zst" | head -c 150 >"$w/torn.tar.zst"
out=$($ctl load -q -t torn2 "$w/torn.tar.zst" 2>&1)
is $? 1 "a torn archive fails"
out=$($ctl load -q -t nothing "$w/absent" 2>&1)
like "$out" 'cannot read ".*absent": No such file' "a missing file is named"

# ---- train
dense='{"class_name":"Sequential","config":{"layers":[{"class_name":"InputLayer","config":{"batch_input_shape":[null,2,3,1]}},{"class_name":"Flatten","config":{}},{"class_name":"Dense","config":{"units":3,"activation":"softmax"}}]}}'
out=$($ctl train -e -t idx -m m1 architecture="$dense" epochs=2 batch_size=50 precision=f32 2>&1)
ok "train"
like "$out" "epochs := '2'" "prints the statement"
like "$out" 'epoch 2/2: loss' "shows the epochs"
is "$(q "SELECT count(*) FROM gpu_cnn_history('m1')")" 2 "the history is there"
$ctl plot -m m1 -o "$w/m1.png" && is "$(head -c 4 "$w/m1.png" | od -An -tx1 | tr -d ' ')" 89504e47 "plot writes a PNG"
out=$($ctl plot -m none -o "$w/x.png" 2>&1)
is $? 1 "plot of an unknown model fails"
out=$($ctl train -t idx -m m0 epochs=0 2>&1)
like "$out" 'epochs is 0' "an error of the server is shown"
out=$($ctl train -t idx -m m2 'epochs' 2>&1)
is $? 2 "an argument without a value is wrong usage"
out=$($ctl train -t idx -m m2 'x;drop=1' 2>&1)
is $? 2 "so is a name that is none"

# status and drain as the server's user, an admin of the daemon
cp "$ctl" "$SCRATCH/bin/"
daemon() { udf/test/scratch.sh as "$SCRATCH" "$SCRATCH/bin/cnnctl" "$@" 2>&1; }

# ---- Ctrl-C in the middle
$ctl train -q -t idx -m m3 architecture="$dense" epochs=100000 >"$w/out" 2>&1 </dev/null &
pid=$!
for _ in $(seq 100); do
	[ "$(q "SELECT count(*) FROM gpu_cnn_progress() WHERE epoch > 0")" = 1 ] && break
	kill -0 $pid 2>/dev/null || break
	sleep .1
done
status=$(daemon status -S "$CNND_SOCKET" -j)
if [ "$(id -u)" = 0 ]; then
	like "$($ctl status -S "$CNND_SOCKET")" 'train +busy' "others see only that the device is busy"
fi
like "$status" '"kind": "train"' "status shows the job"
like "$(daemon status -S "$CNND_SOCKET")" 'train .*epoch [0-9]+/100000' "as text too"
kill -INT $pid
wait $pid
is $? 130 "Ctrl-C ends train with 130"
is "$(q "SELECT to_regclass('m3') IS NULL")" t "nothing is stored"
for _ in $(seq 20); do
	[ "$(q "SELECT count(*) FROM gpu_cnn_progress()")" = 0 ] && break
	sleep .1
done
is "$(q "SELECT count(*) FROM gpu_cnn_progress()")" 0 "the job is gone"
like "$(daemon status -S "$CNND_SOCKET" -j)" '"reason": "[^"]+"' "status remembers it, and why it ended"
is "$(daemon status -S "$CNND_SOCKET" | grep -c '^ended')" 1 "as text too"
if [ "$(id -u)" = 0 ]; then
	is "$($ctl status -S "$CNND_SOCKET" | grep -c '^ended')" 0 "others do not see it"
fi

# ---- drain
daemon drain -S "$CNND_SOCKET" >/dev/null
like "$($ctl train -t idx -m m4 2>&1)" 'no new jobs|drain' "a draining daemon takes no job"
daemon undrain -S "$CNND_SOCKET" >/dev/null
out=$($ctl status -S "$w/no.sock" 2>&1)
like "$out" 'is not running' "a missing daemon is told"
$ctl >/dev/null 2>&1
is $? 2 "no command is wrong usage"
$ctl load -q -t x >/dev/null 2>&1
is $? 2 "no files is wrong usage"
tap_done
