#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The check at the end of the demo finds what it is there for: a sample that is missing, doubled,
# changed, cut, or made up.
set -euo pipefail
check=${STOKER_BUILD:?}/tools/demo_check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

printf '{"a": "", "b": ""}\n\n{"b": "two", "a": "one"}\n' >source.jsonl
# XXH3-64 of "\n" and of "one\ntwo".
first='sample 0 1 384868fba0c21fdc'
second='sample 1 7 b01da31010489bb7'

# refused WHY LINE...: a trainer's output, and what the check must say of it.
refused() {
	printf '%s\n' "${@:2}" figure\ batches\ 1 >rank
	if "$check" source.jsonl a,b rank >out 2>&1; then
		echo "accepted: ${*:2}"
		exit 1
	fi
	grep -q "$1" out || { cat out; echo "want \"$1\""; exit 1; }
}

printf '%s\n' "$first" >rank0
printf '%s\n' "$second" >rank1
"$check" source.jsonl a,b rank0 rank1 | grep -q '^2 samples, each exactly once over 2 ranks'
refused 'sample 1: did not arrive' "$first"
refused 'sample 0: arrived more than once' "$first" "$second" "$first"
refused 'sample 1: its bytes are not' "$first" 'sample 1 7 b01da31010489bb8'
refused 'sample 1: its bytes are not' "$first" 'sample 1 6 b01da31010489bb7'
refused 'sample 2: there is none' "$first" "$second" 'sample 2 7 b01da31010489bb7'
refused 'not a line of a trainer' "$first" "$second" 'sample x'
echo "ok - missing, doubled, changed, cut and made-up samples are found"
