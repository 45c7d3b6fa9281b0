# SPDX-License-Identifier: MIT
# tap.sh: TAP for shell tests; source it, call ok/is/like, end with tap_done.
tap_n=0
tap_bad=0
ok() { # name: the last command's status decides
	local rc=$?
	tap_n=$((tap_n + 1))
	if [ $rc = 0 ]; then echo "ok $tap_n - $1"; else
		echo "not ok $tap_n - $1"
		tap_bad=$((tap_bad + 1))
	fi
}
is() { # got wanted name
	tap_n=$((tap_n + 1))
	if [ "$1" = "$2" ]; then echo "ok $tap_n - $3"; else
		echo "not ok $tap_n - $3"
		printf '%s\n' "got: $1" "wanted: $2" | sed 's/^/# /'
		tap_bad=$((tap_bad + 1))
	fi
}
like() { # text pattern name (extended regular expression)
	tap_n=$((tap_n + 1))
	if grep -qE -- "$2" <<<"$1"; then echo "ok $tap_n - $3"; else
		echo "not ok $tap_n - $3"
		printf '%s\n' "wanted /$2/ in:" "$1" | sed 's/^/# /'
		tap_bad=$((tap_bad + 1))
	fi
}
skip() { # reason name
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $2 # SKIP $1"
}
tap_done() {
	echo "1..$tap_n"
	exit $((tap_bad > 0))
}
