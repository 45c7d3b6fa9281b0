# SPDX-License-Identifier: MIT
# lib.sh: several nodes within one scratch server: nodes are databases of it, reached through its socket;
# each may have a daemon of its own, by a gpu_cnn.socket per database. Sourced in a scratch server's
# environment, after udf/test/lib.sh.

daemons=
# starts a further cnnd in folder cnnd$1, with more lines of configuration; with a third argument, on a
# machine of that name (root only)
start_daemon() { # number, lines
	local dir=$SCRATCH/cnnd$1 i
	mkdir -p "$dir/state"
	rm -f "$dir/cnnd.sock"
	sed "s|$SCRATCH/cnnd/|$dir/|" "$SCRATCH/cnnd/cnnd.conf" >"$dir/cnnd.conf"
	printf '%s\n' "${2:-}" >>"$dir/cnnd.conf"
	[ "$(id -u)" != 0 ] || chown -R "$SCRATCH_USER:" "$dir"
	as_server ${3:+unshare --uts bash -c "hostname $3; exec \"\$@\"" bash} -- \
		bash -c "echo \$\$ >$dir/pid; exec $SCRATCH/bin/cnnd -d -f $dir/cnnd.conf" >>"$dir/log" 2>&1 </dev/null &
	for i in $(seq 200); do
		[ ! -S "$dir/cnnd.sock" ] || break
		sleep .05
	done
	daemons="$daemons $1"
}
# a command as the server's user, in front of which others, up to --, are run as root
as_server() {
	local first=()
	while [ "$1" != -- ]; do
		first+=("$1")
		shift
	done
	shift
	[ "$(id -u)" != 0 ] || [ "$SCRATCH_USER" = root ] ||
		first+=(setpriv --reuid="$SCRATCH_USER" --regid="$(id -gn "$SCRATCH_USER")" --init-groups)
	(cd "$SCRATCH" && exec "${first[@]}" "$@")
}
daemon_signal() { kill "-$2" "$(cat "$SCRATCH/cnnd$1/pid")"; }
stop_daemons() {
	local i
	for i in $daemons; do
		daemon_signal "$i" CONT 2>/dev/null
		daemon_signal "$i" TERM 2>/dev/null
	done
	wait
}

on() { PGDATABASE=$1 sql "$2"; }
# a database with the extension and the functions of setup.sql; with a number, that daemon's
make_node() { # name, daemon
	psql -Xq -c "CREATE DATABASE $1"
	PGDATABASE=$1 psql -Xq -v ON_ERROR_STOP=1 -o /dev/null -f "$here/../../udf/test/setup.sql"
	PGDATABASE=$1 psql -Xq -v ON_ERROR_STOP=1 -o /dev/null -f "$here/setup.sql"
	[ -z "${2:-}" ] || psql -Xq -c "ALTER DATABASE $1 SET gpu_cnn.socket = '$SCRATCH/cnnd$2/cnnd.sock'"
}
# servers in the database of the coordinator
make_server() { # name of the database
	sql "CREATE SERVER $1 FOREIGN DATA WRAPPER gpu_cnn OPTIONS (host '$SCRATCH/run', dbname '$1');
		CREATE USER MAPPING FOR postgres SERVER $1 OPTIONS (user 'postgres')"
}
# nodes by name, in order; NULL is the coordinator
set_nodes() {
	local i=0 n text="DELETE FROM gpu_cnn_nodes"
	for n in "$@"; do
		i=$((i + 1))
		[ "$n" = NULL ] || n="'$n'"
		text="$text; INSERT INTO gpu_cnn_nodes VALUES ($i, $n)"
	done
	sql "$text"
}
# rows of the common table that a database has
place() { # database, condition, order
	on "$1" "DROP TABLE IF EXISTS rows" >/dev/null
	on "$1" "CREATE TABLE rows AS SELECT * FROM all_rows WHERE $2 ORDER BY ${3:-id};
		ALTER TABLE rows ADD PRIMARY KEY (id); ANALYZE rows"
}
# a training in the database of the coordinator; its output in $out
train() { # model, arguments
	out=$(sql "SELECT hosts || ' hosts, ' || rows || ' rows, ' || lost || ' lost' FROM gpu_cnn_train('rows', '$1',
			on_exists := 'replace', backend := 'ref', architecture := 'dense2', $2)")
}
no_jobs() { # on any daemon of a database
	local db
	for db in "$@"; do
		PGDATABASE=$db within 2000 jobs_are 0 || return 1
	done
}
