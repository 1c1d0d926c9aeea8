#!/usr/bin/env bash
# Runs on a GPU what only a GPU can show, with programs that are built already: builds and installs nothing. One line a
# stage, totals last. Exit code 0 all passed, 1 something failed or a stage ran no test, 2 usage or set-up.
#
#   tools/gpu_check.sh            every stage, with the programs of build/ci-gcc or build/release
#   tools/gpu_check.sh FOLDER     with those of FOLDER: qkvc, conformance, primitives and libqkv.so (or libqkv.so.N)
#   tools/gpu_check.sh --quick    of conformance only the sets quick, walks and packed
#
# $PYTHON (default python3) runs the Python stages; those that it lacks torch, NumPy or pytest for are left out with a line
# that says so. Logs go to $OUT, else to a temporary folder, which is named.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-python3}

stop() { printf 'gpu_check.sh: %s\n' "$*" >&2 && exit 2; }

quick=0 folder=
for word in "$@"; do
  case $word in
  --quick) quick=1 ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
  -*) stop "no option $word; there is --quick" ;;
  *)
    [ -z "$folder" ] || stop "$word is too many: one folder is enough"
    folder=$word
    ;;
  esac
done

# The folder with the programs, and the shared library in it.
find_folder() {
  local place
  for place in "$ROOT/build/ci-gcc" "$ROOT/build/release"; do
    [ ! -x "$place/conformance" ] || { printf '%s\n' "$place" && return; }
  done
  stop "nothing is built in build/ci-gcc or build/release: build there, or name a folder"
}
find_library() { # FOLDER
  local file
  for file in "$1"/libqkv.so "$1"/libqkv.so.*; do
    [ ! -f "$file" ] || { printf '%s\n' "$file" && return; }
  done
  stop "$1 has no libqkv.so"
}

[ -n "$folder" ] || folder=$(find_folder)
[ -d "$folder" ] || stop "no folder $folder"
folder=$(cd "$folder" && pwd)
for program in qkvc conformance primitives; do
  [ -x "$folder/$program" ] || stop "$folder has no program $program"
done
library=$(find_library "$folder")
logs=${OUT:-$(mktemp -d "${TMPDIR:-/tmp}/gpu_check.XXXXXX")}
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)

has_modules() { "$PYTHON" -c "import $1" >/dev/null 2>&1; } # "torch, pytest"

unset QKV_DEVICE QKV_ARCH QKV_TEMPLATE_PATH QKV_DISABLE_JIT QKV_EMU_SEED
export QKVC=$folder/qkvc QKV_LIBRARY=$library QKV_CACHE_DIR=$logs/cache
# The library looks for NVRTC here, among other places: where a wheel of $PYTHON has it.
[ -n "${VIRTUAL_ENV:-}" ] || ! has_modules sys || VIRTUAL_ENV=$("$PYTHON" -c 'import sys; print(sys.prefix)')
[ -z "${VIRTUAL_ENV:-}" ] || export VIRTUAL_ENV

passed=0 failed=0
failures=()

# What a stage's log counts: the last "N passed" or "N failed" near its end; pytest's errors fail too.
count() { # LOG PATTERN
  { tail -n 3 "$1" | grep -oE "[0-9]+ ($2)" || true; } | awk '{ n += $1 } END { print n + 0 }'
}

# stage NAME COMMAND...: runs it into a log and adds up what it counted. One that counts nothing has failed.
stage() {
  local name=$1 log=$logs/$1.log start=$SECONDS code=0 good bad why=
  shift
  printf '%-20s ' "$name"
  (cd "$ROOT" && "$@") >"$log" 2>&1 || code=$?
  good=$(count "$log" passed) bad=$(count "$log" 'failed|errors?')
  [ "$code" = 0 ] || [ "$bad" != 0 ] || { bad=1 && why=", exit code $code"; }
  [ "$good" != 0 ] || [ "$bad" != 0 ] || { bad=1 && why=", no test ran"; }
  passed=$((passed + good)) failed=$((failed + bad))
  if [ "$bad" = 0 ]; then
    printf 'ok      %5d passed, %d s\n' "$good" $((SECONDS - start))
  else
    printf 'FAILED  %5d passed, %d failed%s, %d s; see %s\n' "$good" "$bad" "$why" $((SECONDS - start)) "$log"
    { grep -A 2 '^FAILED' "$log" || tail -n 5 "$log"; } | head -n 30 | sed 's/^/    /' || true
    failures+=("$name")
  fi
}

# python_stage NAME "MODULES" ARGUMENTS...: by pytest, or left out when a module is missing.
python_stage() {
  local name=$1 modules=$2
  shift 2
  if has_modules "$modules"; then
    stage "$name" "$PYTHON" -m pytest -q -p no:cacheprovider "$@"
  else
    printf '%-20s left out: %s lacks one of %s\n' "$name" "$PYTHON" "$modules"
  fi
}

sets=(full packed) # `packed` is no part of `full`
[ $quick = 0 ] || sets=(quick walks packed)
printf 'checking %s on a GPU; logs in %s\n\n' "$folder" "$logs"

stage primitives "$folder/primitives" --device cuda
for set in "${sets[@]}"; do
  stage "conformance-$set" "$folder/conformance" --device cuda --set "$set"
done
python_stage pytest-gpu "torch, pytest" tests/gpu
QKV_TEST_DEVICE=cuda python_stage pytest-masks "numpy, pytest" tests/python/test_masks.py tests/python/test_order.py

[ ${#failures[@]} = 0 ] || printf '\nfailed: %s\n' "${failures[*]}"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
