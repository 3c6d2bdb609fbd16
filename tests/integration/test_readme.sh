#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The README's commands work as they stand there, and its program compiles and runs.
set -euo pipefail

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${STOKER_BUILD:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$build/tools:$PATH STOKERD=$build/daemon/serve/stokerd XDG_RUNTIME_DIR=$work/run
mkdir -m 0700 "$work/run"
cd "$work"

# block LANGUAGE: all fenced blocks of a language, one after the other.
block() { awk -v fence="\`\`\`$1" '$0 == "```" { on = 0 } on { print } $0 == fence { on = 1 }' "$source/README.md"; }

block sh >commands.sh
[[ $(wc -l <commands.sh) -ge 8 ]]
bash -eux commands.sh >commands.out 2>&1 || { cat commands.out; exit 1; }
grep -q '"two and more"' commands.out
[[ -s where.state ]]
echo "ok - the commands of the README"

block c >trainer.c
sed -i 's|<stoker.h>|"client/stoker.h"|' trainer.c
gcc -std=gnu17 -Wall -Wextra -Werror -I"$source" trainer.c -o trainer $(grep -q sanitize "$build/build.ninja" && \
	sed -n 's/.*\(-fsanitize=[a-z,]*\).*/\1/p' "$build/build.ninja" | head -n 1) \
	-L"$build/client" -lstoker -Wl,-rpath,"$build/client"
./trainer set >trainer.out 2>&1 || { cat trainer.out; exit 1; }
tokens=$(awk '{ n += $(NF - 1) } END { print n }' trainer.out)
# "one", "two and more", "three of them", "4"
[[ $tokens -eq $((3 + 12 + 13 + 1)) ]] || { cat trainer.out; echo "$tokens tokens"; exit 1; }
echo "ok - the program of the README"
