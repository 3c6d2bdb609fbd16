#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/setup without root names every missing package in one go; with nothing missing it says nothing.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$source/tools/setup" "$work/"
chmod a+rx "$work" "$work/setup"

printf '# build\nlibc6\nno-such-package-a\n\n# tests\nno-such-package-b\n' >"$work/packages.txt"
chmod a+r "$work/packages.txt"
cp "${STOKER_BUILD:?}/tests/lib/deny" "$work/"
as_user=()
[[ $(id -u) -ne 0 ]] || as_user=("$work/deny" --uid 65534)
status=0
said=$("${as_user[@]}" "$work/setup" 2>&1) || status=$?
[[ $status -eq 1 && $said == *'no-such-package-a no-such-package-b'* && $said != *libc6* ]] ||
	{ echo "status $status: $said"; exit 1; }

printf 'libc6\n' >"$work/packages.txt"
said=$("${as_user[@]}" env -i "$work/setup" 2>&1)
[[ -z $said ]] || { echo "$said"; exit 1; }
echo "ok - every missing package in one go"
