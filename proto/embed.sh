#!/bin/sh
# embed.sh NAME HEADER INPUT OUTPUT: a text file as a C string called NAME, declared in HEADER.
set -eu
{
	printf '#include "%s"\n\nconst char %s[] =\n' "$2" "$1"
	sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/\t"/' -e 's/$/\\n"/' "$3"
	printf '\t;\n'
} >"$4"
