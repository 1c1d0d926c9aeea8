#!/usr/bin/env bash
# Checks what compilers do not: who may include whom, where inline PTX may stand, what a library must not call, that the
# map of the repository is complete. One line per rule; exit code 1 if one is broken. Reads tracked files only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

passed=0 failed=0

# rule NAME FINDINGS: passes when there are no findings, else prints them.
rule() {
  if [ -z "$2" ]; then
    passed=$((passed + 1))
    printf 'ok      %s\n' "$1"
  else
    failed=$((failed + 1))
    printf 'BROKEN  %s\n' "$1"
    printf '%s\n' "$2" | head -40 | sed 's/^/          /'
  fi
}

# Tracked files by pathspec; grep over them that finds nothing is no error.
files() { git ls-files -- "$@"; }
search() { # PATTERN PATHSPEC...
  local pattern=$1
  shift
  files "$@" | tr '\n' '\0' | xargs -0r grep -InHE -- "$pattern" || true
}
# "file:line header" of every #include "header".
includes() {
  search '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$@" | sed -E 's/^([^:]*:[0-9]+):.*"([^"]*)".*/\1 \2/'
}
# Those whose header is not one of the names read from the second argument.
foreign() {
  awk -v allowed="$2" 'BEGIN { split(allowed, names, " "); for (n in names) ok[names[n]] = 1 } NF { sub(".*/", "", $2); if (!($2 in ok)) print $1 " includes " $2 }' <<<"$1"
}
headers() { files "$@" | sed 's|.*/||' | tr '\n' ' '; }

gen=$(headers 'gen/*.h')
runtime=$(headers 'runtime/*.h')

rule "gen/ includes nothing of runtime/" "$(foreign "$(includes 'gen/*.[ch]')" "$gen template_files.h")"
rule "gen/ knows nothing of CUDA" "$(search '#[[:space:]]*include[[:space:]]*<(cuda|nvrtc|dlfcn)' 'gen/*.[ch]')"
rule "runtime/ includes of gen/ only manifest.h status.h text.h, the facade excepted" \
  "$(foreign "$(includes 'runtime/*.[ch]' ':!runtime/qkv*')" "$runtime manifest.h status.h text.h")"
public="qkv.h qkv_build.h qkv_tune.h qkv_pack.h"
rule "the header of engines includes only the standard library" "$(includes 'runtime/qkv.h')"
rule "the other public headers include only public ones" "$(foreign "$(includes runtime/qkv_build.h runtime/qkv_tune.h runtime/qkv_pack.h)" "$public")"
rule "qkvc includes only public headers" "$(foreign "$(includes 'tools/*.[ch]')" "$(headers 'tools/*.h') $public")"
rule "examples include only the header of engines, and packs made as C" "$(foreign "$(includes 'examples/*.c')" "qkv.h packed_kernels.h packed_gpu.h")"
rule "inline PTX stands only in templates/prim" \
  "$(search '(^|[^a-z_])(asm|__asm__)([[:space:]]+volatile)?[[:space:]]*\(' 'templates/*' ':!templates/prim/*')"
rule "the library never prints, exits or aborts" \
  "$(search '(^|[^a-zA-Z0-9_.>])(printf|puts|putchar|perror|exit|abort|assert)[[:space:]]*\(' 'gen/*.c' 'runtime/*.c' | grep -vE ':[0-9]+: ?[/ ]\*' || true)"
rule "nothing sets the locale of the process" "$(search '(^|[^a-z])setlocale[[:space:]]*\(' 'gen/*.c' 'runtime/*.c' 'tools/*.c')"
rule "no path of one machine" "$(search '(^|[^a-zA-Z0-9_./$}])/(work|root|home/[a-z]+)/' ':!tools/check_layers.sh' ':!*.npy')"
rule "no tabs, no trailing blanks" \
  "$(search $'\t|[ \t]+$' '*.c' '*.h' '*.cu' '*.lua' '*.sh' '*.py' '*.yaml' '*.md' | grep -v '^tests/errors/' | cut -c1-100 || true)"

# ARCHITECTURE.md has one line for every folder and source file, and names none that is not there.
if [ -f ARCHITECTURE.md ]; then
  sources=$(files 'gen/*' 'runtime/*' 'templates/*' 'tools/*' 'examples/*' 'tests/*' 'cmake/*' | grep -vE '\.(npy|golden)$|^tests/(golden|errors|data|fuzz)/|__pycache__')
  folders=$(git ls-files | grep / | sed 's|/[^/]*$||' | sort -u)
  # A file is named by its path or, within its folder's list, by its name; brace lists such as x.{c,h} are expanded.
  named=$(python3 - <<'PY'
import re
text = open("ARCHITECTURE.md", encoding="utf-8").read()
for word in re.findall(r"[\w./*{},-]+", text):
    parts = [word.strip(",.") if not word.endswith("}") else word.strip(",")]
    while any("{" in p and "}" in p for p in parts):
        parts = [p[:p.index("{")] + option + p[p.index("}") + 1:] if "{" in p and "}" in p else p
                 for p in parts for option in (p[p.index("{") + 1:p.index("}")].split(",") if "{" in p and "}" in p else [""])]
    for part in parts:
        print(part.strip("/"))
PY
  )
  missing=$(awk 'NR == FNR { named[$0] = 1; next } { name = $0; sub(".*/", "", name); if (!($0 in named) && !(name in named)) print $0 " is not listed" }' \
    <(printf '%s\n' "$named") <(printf '%s\n' "$sources" "$folders"))
  rule "ARCHITECTURE.md lists every folder and source file" "$missing"
  gone=$(grep -E '^[a-zA-Z0-9_/.-]+/[a-zA-Z0-9_.-]+\.(c|h|lua|cu|sh|py)$' <<<"$named" | sort -u | while read -r name; do
    git ls-files --error-unmatch -- "$name" >/dev/null 2>&1 || [ -n "$(git ls-files -- "*/$name")" ] || printf '%s is listed but not there\n' "$name"
  done)
  rule "ARCHITECTURE.md lists nothing that is gone" "$gone"
else
  rule "ARCHITECTURE.md lists every folder and source file" "ARCHITECTURE.md is missing"
fi

# Only reported: a long file may read better as it is, and so may a line.
wide=$(files '*.c' '*.h' | tr '\n' '\0' | xargs -0r awk 'length($0) > 120' | wc -l)
[ "$wide" = 0 ] || printf 'note    %d lines of C above 120 columns\n' "$wide"
long=$(files 'gen/*.[ch]' 'runtime/*.[ch]' 'tools/*.[ch]' 'templates/*' | tr '\n' '\0' | xargs -0r wc -l | awk '$2 != "total" && $1 > 600 { print "        " $1 " lines: " $2 }')
[ -z "$long" ] || printf 'note    files above 600 lines\n%s\n' "$long"

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
