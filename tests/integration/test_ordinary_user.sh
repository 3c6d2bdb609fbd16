#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The whole path as an ordinary user: 8 MiB may be locked, and mbind, move_pages and io_uring are
# refused, as containers do. It works, with one warning for each thing that was asked for and failed.
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${STOKER_BUILD:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Source and build may lie where only their owner looks.
mkdir -p "$work/source/tools" "$work/build/"{client,daemon/serve,tools}
cp "$source/tools/"{demo,setup,packages.txt} "$work/source/tools/"
cp -a "$build/client/"libstoker.so* "$work/build/client/"
cp "$build/daemon/serve/stokerd" "$work/build/daemon/serve/"
cp "$build/tools/"{stoker,stokerctl,demo_trainer,demo_check} "$work/build/tools/"
cp "$build/tests/lib/deny" "$work/"
chmod -R a+rX "$work"

# Lengths to 4000, so that the slots do not fit into 8 MiB.
awk 'BEGIN {
	for (i = 0; i < 3000; i++) {
		n = i % 100 ? i * 7919 % 400 + 20 : 4000
		text = sprintf("%d ", i)
		while (length(text) < n)
			text = text sprintf("%c", 97 + (i + length(text) * 31) % 26)
		print "{\"text\": \"" text "\"}"
	}
}' >"$work/text.jsonl"

as_user=(--memlock 8388608 --calls)
[[ $(id -u) -ne 0 ]] || as_user=(--uid 65534 "${as_user[@]}")

run() { TMPDIR=/tmp STOKER_BUILD_DIR=$work/build "$work/deny" "$@" "$work/source/tools/demo" "$work/text.jsonl"; }
said=$(run "${as_user[@]}" 2>&1) || { echo "$said"; exit 1; }

expect() {
	[[ $(grep -c -e "$1" <<<"$said") -eq $2 ]] || { echo "$said"; echo "want $2 lines with \"$1\""; exit 1; }
}
expect '3000 samples, each exactly once over 2 ranks, bytes equal to the source' 1
expect 'stokerd warned: .*NUMA' 1
# Under a sanitizer mlock() does nothing, and says that it worked.
unlocked=1
! grep -q -e '-fsanitize' "$build/build.ninja" || unlocked=0
expect 'stokerd warned: .*lock' $unlocked
expect 'stokerd warned' $((1 + unlocked))
echo "ok - as an ordinary user, with a warning each"
