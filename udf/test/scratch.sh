#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scratch.sh: a private PostgreSQL server and a cnnd beside it, in one folder under /var/tmp, run by an
# unprivileged user (as root: postgres), reached over unix sockets only. The extension is found in a
# copy of the staged files through extension_destdir; nothing outside the folder is written.
#
#   scratch.sh up [DIR]         make and start it; prints the folder. DIR/env holds shell variables
#   scratch.sh down DIR         stop it and remove the folder
#   scratch.sh psql DIR ARG...  psql as the superuser
#   scratch.sh as DIR CMD...    run a command as the server's operating system user
#   scratch.sh cnnd DIR start|stop|kill|restart|pid
#   scratch.sh run CMD...       up, CMD with the variables of env exported, down
#
# From the environment: BUILD (default build), PG_CONFIG, SCRATCH_USER, SCRATCH_CONF (more lines of
# postgresql.conf), SCRATCH_CNND_CONF (more lines of cnnd.conf), SCRATCH_CNND_WRAP (command in front
# of cnnd), SCRATCH_PG_ENV (NAME=value ... for the server's environment).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
BUILD=${BUILD:-$top/build}
case $BUILD in /*) ;; *) BUILD=$top/$BUILD ;; esac
PG_CONFIG=${PG_CONFIG:-pg_config}

die() { echo "scratch.sh: $*" >&2; exit 1; }

as() { # run as the server's user, out of any folder that it may not read
	if [ "$(id -u)" = 0 ] && [ "$SCRATCH_USER" != root ]; then
		(cd "$SCRATCH" && exec setpriv --reuid="$SCRATCH_USER" --regid="$(id -gn "$SCRATCH_USER")" \
			--init-groups env HOME="$SCRATCH" PATH="$PATH" "$@")
	else
		(cd "$SCRATCH" && exec "$@")
	fi
}

load() {
	[ -f "$1/env" ] || die "no scratch server in $1"
	. "$1/env"
}

# a zombie that its parent has not yet collected counts as gone
running() { [ -r "/proc/$1/stat" ] && ! grep -q ') Z ' "/proc/$1/stat" 2>/dev/null; }
cnnd_alive() { [ -s "$SCRATCH/cnnd/pid" ] && running "$(cat "$SCRATCH/cnnd/pid")"; }

cnnd_start() {
	cnnd_alive && return 0
	rm -f "$SCRATCH/cnnd/cnnd.sock"
	as bash -c 'echo $$ >cnnd/pid; exec "$@" >>cnnd/log 2>&1 </dev/null' cnnd setsid --fork \
		bash -c 'echo $$ >cnnd/pid; exec "$@"' cnnd ${SCRATCH_CNND_WRAP:-} \
		"$SCRATCH/bin/cnnd" -d -f "$SCRATCH/cnnd/cnnd.conf"
	for _ in $(seq 200); do
		[ -S "$SCRATCH/cnnd/cnnd.sock" ] && return 0
		sleep .05
	done
	tail -20 "$SCRATCH/cnnd/log" >&2
	die "cnnd did not start"
}

cnnd_stop() { # signal
	cnnd_alive || return 0
	local pid
	pid=$(cat "$SCRATCH/cnnd/pid")
	kill "-$1" "$pid" 2>/dev/null || true
	for _ in $(seq 100); do
		running "$pid" || { rm -f "$SCRATCH/cnnd/pid"; return 0; }
		sleep .05
	done
	kill -KILL "$pid" 2>/dev/null || true
	rm -f "$SCRATCH/cnnd/pid"
}

make_cluster() {
	as "$SCRATCH_BIN/initdb" -D "$SCRATCH/data" -U postgres --auth=trust -E UTF8 --locale=C.UTF-8 \
		--no-sync --no-instructions >"$SCRATCH/initdb.log" 2>&1 || { cat "$SCRATCH/initdb.log" >&2; die initdb; }
	cat >>"$SCRATCH/data/postgresql.conf" <<-EOF
	listen_addresses = ''
	unix_socket_directories = '$SCRATCH/run'
	unix_socket_permissions = 0777
	extension_destdir = '$SCRATCH/stage'
	dynamic_library_path = '$SCRATCH/stage$SCRATCH_LIB:\$libdir'
	fsync = off
	full_page_writes = off
	shared_buffers = 128MB
	max_connections = 40
	logging_collector = off
	log_line_prefix = '%m [%p] '
	gpu_cnn.socket = '$SCRATCH/cnnd/cnnd.sock'
	gpu_cnn.daemon_user = '$SCRATCH_USER'
	${SCRATCH_CONF:-}
	EOF
}

make_cnnd() {
	cat >"$SCRATCH/cnnd/cnnd.conf" <<-EOF
	socket = $SCRATCH/cnnd/cnnd.sock
	socket_group = $(id -gn "$SCRATCH_USER")
	state_dir = $SCRATCH/cnnd/state
	database_uids = $SCRATCH_USER
	admin_uids = $SCRATCH_USER
	${SCRATCH_CNND_CONF:-}
	EOF
}

up() {
	local user=${SCRATCH_USER:-}
	if [ -z "$user" ]; then
		user=$(id -un)
		[ "$user" != root ] || user=postgres
	fi
	id "$user" >/dev/null 2>&1 || die "there is no user $user"
	SCRATCH_USER=$user
	SCRATCH=${1:-$(mktemp -d /var/tmp/gpu_cnn.XXXXXX)}
	SCRATCH_BIN=$("$PG_CONFIG" --bindir)
	SCRATCH_LIB=$("$PG_CONFIG" --pkglibdir)
	[ -x "$SCRATCH_BIN/initdb" ] || die "no initdb in $SCRATCH_BIN"
	[ -f "$BUILD/stage$SCRATCH_LIB/gpu_cnn.so" ] || die "no staged extension in $BUILD/stage; make udf-stage"
	mkdir -p "$SCRATCH"/{run,bin,cnnd/state}
	cat >"$SCRATCH/env" <<-EOF
	export SCRATCH='$SCRATCH' SCRATCH_USER='$SCRATCH_USER' SCRATCH_BIN='$SCRATCH_BIN'
	export SCRATCH_LIB='$SCRATCH_LIB' SCRATCH_CNND_WRAP='${SCRATCH_CNND_WRAP:-}'
	export PGHOST='$SCRATCH/run' PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
	export CNND_SOCKET='$SCRATCH/cnnd/cnnd.sock'
	EOF
	cp -r "$BUILD/stage" "$SCRATCH/stage"
	[ ! -x "$BUILD/bin/cnnd" ] || cp "$BUILD/bin/cnnd" "$SCRATCH/bin/cnnd"
	make_cnnd
	[ "$(id -u)" != 0 ] || chown -R "$SCRATCH_USER:" "$SCRATCH"
	chmod 0711 "$SCRATCH"
	make_cluster
	as env ${SCRATCH_PG_ENV:-} "$SCRATCH_BIN/pg_ctl" -D "$SCRATCH/data" -l "$SCRATCH/postgres.log" -w -s -t 60 start ||
		{ tail -20 "$SCRATCH/postgres.log" >&2; die "the server did not start"; }
	[ ! -x "$SCRATCH/bin/cnnd" ] || cnnd_start
}

down() {
	cnnd_stop TERM
	if [ -f "$SCRATCH/data/postmaster.pid" ]; then
		as "$SCRATCH_BIN/pg_ctl" -D "$SCRATCH/data" -w -s -t 20 -m immediate stop || true
	fi
	rm -rf "$SCRATCH"
}

command=${1:-}
[ -n "$command" ] || { sed -n '3,18s/^# \{0,1\}//p' "$0"; exit 2; }
shift
case $command in
up)
	trap '[ -z "${SCRATCH:-}" ] || { down; } ' ERR
	up "$@" >&2
	echo "$SCRATCH"
	;;
down) load "$1" && down ;;
psql)
	load "$1"
	shift
	exec "$SCRATCH_BIN/psql" -X "$@"
	;;
as)
	load "$1"
	shift
	as "$@"
	;;
cnnd)
	load "$1"
	case $2 in
	start) cnnd_start ;;
	stop) cnnd_stop TERM ;;
	kill) cnnd_stop KILL ;;
	restart) cnnd_stop TERM && cnnd_start ;;
	pid) cat "$SCRATCH/cnnd/pid" ;;
	*) die "cnnd start|stop|kill|restart|pid" ;;
	esac
	;;
run)
	trap 'rc=$?; trap "" INT TERM; [ -z "${SCRATCH:-}" ] || { [ $rc = 0 ] || [ -z "${SCRATCH_KEEP:-}" ] || exit $rc; down; }; exit $rc' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	up >&2
	. "$SCRATCH/env"
	"$@"
	;;
*) die "unknown command $command" ;;
esac
