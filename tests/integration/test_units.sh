#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `meson install` puts in place is what systemd accepts, without a word.
set -euo pipefail
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; exit 77; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
DESTDIR=$root meson install -C "${STOKER_BUILD:?}" --no-rebuild --quiet

cd "$root"
units=$(find . -name 'stokerd.service' -o -name 'stokerd.socket' | sort)
if [[ -z $units ]]; then
	echo "built without libsystemd"
	exit 77
fi
unitdir=$(dirname "$(head -n 1 <<<"$units")")

# The unit starts what was installed, with the configuration that was installed.
read -r program option config < <(sed -n 's/^ExecStart=//p' "$unitdir/stokerd.service")
[[ -x ./$program && $option == --config && -f ./$config ]]
find . -path '*/sysusers.d/stoker.conf' | grep -q .
find . -path '*/tmpfiles.d/stoker.conf' | grep -q .

# verify: the program must exist, and the targets that units name.
verify() {
	mkdir -p check
	sed "s|^ExecStart=|&$root|" "$unitdir/stokerd.service" >check/stokerd.service
	cp "$unitdir/stokerd.socket" check/
	SYSTEMD_LOG_LEVEL=notice systemd-analyze verify --man=no check/stokerd.service check/stokerd.socket 2>&1
}
said=$(verify) || { echo "systemd-analyze verify failed: $said"; exit 1; }
[[ -z $said ]] || { echo "systemd-analyze verify said: $said"; exit 1; }

# It would have said so.
sed -i 's/^Restart=.*/Restart=sometimes/' "$unitdir/stokerd.service"
verify | grep -q 'restart' || { echo "systemd-analyze verify accepts anything"; exit 1; }

mkdir -p "$root/etc"
systemd-sysusers --root="$root" "$(find "$root" -path '*/sysusers.d/stoker.conf')"
grep -q '^stoker:' "$root/etc/passwd"
grep -q '^stoker:' "$root/etc/group"
systemd-tmpfiles --create --root="$root" "$(find "$root" -path '*/tmpfiles.d/stoker.conf')"
[[ $(stat -c %a "$root/run/stoker") == 755 ]]
