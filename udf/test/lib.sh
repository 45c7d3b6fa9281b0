# SPDX-License-Identifier: MIT
# lib.sh: what the shell tests share; sourced with the variables of a scratch server set.

n=0
failed=0
ok() { # condition's exit status, name
	n=$((n + 1))
	if [ "$1" = 0 ]; then
		echo "ok $n - $2"
	else
		echo "not ok $n - $2"
		failed=1
	fi
}
check() { # name, command...
	local name=$1
	shift
	if "$@"; then ok 0 "$name"; else ok 1 "$name"; fi
}
like() { # text, extended regular expression, name
	if grep -qE -- "$2" <<<"$1"; then
		ok 0 "$3"
	else
		ok 1 "$3"
		sed 's/^/#   /' <<<"got: $1"
		echo "#   wanted: $2"
	fi
}
is() { # got, wanted, name
	if [ "$1" = "$2" ]; then
		ok 0 "$3"
	else
		ok 1 "$3"
		echo "#   got '$1', wanted '$2'"
	fi
}
done_testing() {
	echo "1..$n"
	exit $failed
}

now() { date +%s%N; }
# milliseconds since
since() { echo $((($(now) - $1) / 1000000)); }
# does it become true within so many milliseconds?
within() {
	local end=$(($(now) + $1 * 1000000))
	shift
	while ! "$@"; do
		[ "$(now)" -lt $end ] || return 1
		sleep .02
	done
}

sql() { psql -Xqtc "$1" 2>&1 | sed 's/^ *//;/^$/d'; }
jobs_are() { [ "$(sql 'SELECT count(*) FROM gpu_cnn_progress()')" = "$1" ]; }
state_is() { [ "$(sql "SELECT string_agg(DISTINCT state, ',') FROM gpu_cnn_progress()")" = "$1" ]; }
rows_come() { [ "$(sql "SELECT coalesce(max(rows), 0) FROM gpu_cnn_progress()")" -gt "${1:-0}" ]; }
backend_of() { sql "SELECT pid FROM pg_stat_activity WHERE application_name = '$1' AND backend_type = 'client backend'"; }
gone() { ! kill -0 "$1" 2>/dev/null; }

# starts a statement in the background under a name; its output goes to $SCRATCH/out.NAME
background() { # name, sql
	PGAPPNAME=$1 psql -Xqt -c "$2" >"$SCRATCH/out.$1" 2>&1 &
	eval "pid_$1=\$!"
}
finish() { # name; the output comes in $out
	eval "wait \$pid_$1" 2>/dev/null || true
	out=$(cat "$SCRATCH/out.$1")
}

# Did the postmaster ever restart its processes, or a backend end by a signal? Are jobs left?
server_clean() {
	local bad=0
	if grep -E 'terminated by signal|all server processes terminated|PANIC' "$SCRATCH/postgres.log" |
		sed 's/^/# /' | grep .; then
		bad=1
	fi
	if [ "$(sql "SELECT count(*) FROM pg_extension WHERE extname = 'gpu_cnn'")" = 1 ] && ! within 1000 jobs_are 0; then
		psql -Xc "SELECT * FROM gpu_cnn_progress()" | sed 's/^/# /'
		bad=1
	fi
	return $bad
}
cnnd_memory() { awk '/^RssAnon/ {print $2}' "/proc/$(cat "$SCRATCH/cnnd/pid")/status"; }
