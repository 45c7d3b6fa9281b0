#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sign.sh DIR: signs DIR/cnnring.ko as docs/kernel-module.md says for Secure Boot, with a key made here and
# of no further use, into DIR/guest/signed/; and, where the kernel was built here and knows a key,
# with that one into DIR/guest/trusted/. Fails if modinfo does not see the signature.
set -euo pipefail
dir=$(cd "$1" && pwd)
sign=
# that of an older release may not run here; the format is the same
for f in "$dir/kernel/headers/scripts/sign-file" "$dir/../kernel/headers/scripts/sign-file"; do
	[ -n "$sign" ] || [ ! -x "$f" ] || ldd "$f" 2>&1 | grep -q 'not found' || sign=$f
done
if [ -z "$sign" ]; then
	grep -qs '^CONFIG_MODULE_SIG=y' "$dir/kernel/headers/.config" || exit 0 # nothing to sign for
	echo "sign.sh: no sign-file that runs here" >&2
	exit 1
fi
key=$dir/key
if [ ! -s "$key/cert.der" ]; then
	mkdir -p "$key"
	openssl req -new -x509 -newkey rsa:2048 -nodes -sha256 -days 30 -subj "/CN=cnnring test key/" \
		-addext extendedKeyUsage=codeSigning -keyout "$key/key.pem" -outform DER -out "$key/cert.der" 2>/dev/null
fi
signed() { # KEY CERT FOLDER
	mkdir -p "$dir/guest/$3"
	cp "$dir/cnnring.ko" "$dir/guest/$3/cnnring.ko"
	"$sign" sha256 "$1" "$2" "$dir/guest/$3/cnnring.ko"
	[ "$(/sbin/modinfo -F sig_hashalgo "$dir/guest/$3/cnnring.ko")" = sha256 ]
}
signed "$key/key.pem" "$key/cert.der" signed
[ "$(/sbin/modinfo -F signer "$dir/guest/signed/cnnring.ko")" = "cnnring test key" ] || {
	echo "sign.sh: modinfo does not name the signer" >&2
	exit 1
}
[ -z "$(/sbin/modinfo -F signer "$dir/cnnring.ko")" ]
own=$dir/kernel/headers/certs
[ ! -s "$own/signing_key.pem" ] || signed "$own/signing_key.pem" "$own/signing_key.x509" trusted
