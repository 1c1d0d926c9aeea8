#!/usr/bin/env bash
# Builds qkvc every way and runs all its tests. The last line is "N passed, N failed" over all stages; exit code 0 when
# nothing failed. A stage's full output is in build/test-logs.
#
#   tools/test.sh             everything: about ten minutes on two cores
#   tools/test.sh --quick     one build, its tests, the layer rules and the command line: for the edit loop
#   tools/test.sh --coverage  everything, and line coverage of gen/ and runtime/, which must reach 85 %
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

quick=0 coverage=0
for word in "$@"; do
  case $word in
  --quick) quick=1 ;;
  --coverage) coverage=1 ;;
  -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
  *) printf 'test.sh: no option %s; there are --quick and --coverage\n' "$word" >&2 && exit 2 ;;
  esac
done

logs=$ROOT/build/test-logs
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0 jobs=$(nproc)
failures=()
export QKV_CACHE_DIR=$ROOT/build/test-cache # nobody's own cache helps or suffers
rm -rf "$QKV_CACHE_DIR"
unset QKV_DEVICE QKV_ARCH QKV_TEMPLATE_PATH QKV_DISABLE_JIT QKV_EMU_SEED QKV_EMU_GRANULE QKV_DEBUG_CHECKS

# How many tests a stage's log counts: the last "N passed" and "N failed" of pytest, ctest or our own scripts.
count() { # LOG WORD
  local total failing
  if grep -qE '% tests passed, ' "$1"; then
    failing=$(sed -nE 's/.*tests passed, ([0-9]+) tests? failed out of [0-9]+.*/\1/p' "$1" | tail -1)
    total=$(sed -nE 's/.*tests? failed out of ([0-9]+).*/\1/p' "$1" | tail -1)
    [ "$2" = failed ] && echo "${failing:-0}" || echo $((${total:-0} - ${failing:-0}))
  else
    tail -n 3 "$1" | grep -oE "[0-9]+ $2" | tail -1 | cut -d' ' -f1 | grep . || echo 0
  fi
}

# stage NAME COMMAND...: runs it into a log and adds up what it counted. A stage without counts is one test.
stage() {
  local name=$1 log=$logs/$1.log start=$SECONDS code=0 good bad
  shift
  printf '%-22s ' "$name"
  "$@" >"$log" 2>&1 || code=$?
  good=$(count "$log" passed) bad=$(count "$log" failed)
  [ "$good" != 0 ] || [ "$bad" != 0 ] || [ "$code" != 0 ] || good=1
  [ "$code" = 0 ] || [ "$bad" != 0 ] || bad=1
  passed=$((passed + good)) failed=$((failed + bad))
  if [ "$bad" = 0 ]; then
    printf 'ok      %4d passed, %d s\n' "$good" $((SECONDS - start))
  else
    printf 'FAILED  %4d passed, %d failed, %d s; see %s\n' "$good" "$bad" $((SECONDS - start)) "build/test-logs/$name.log"
    tail -n 60 "$log" | sed 's/^/    /'
    failures+=("$name")
  fi
}

build() { cmake --preset "$1" && cmake --build --preset "$1"; }
run_ctest() { ctest --test-dir "$1" -j "$jobs" --timeout 300 --output-on-failure "${@:2}"; }
run_pytest() { "$PYTHON" -m pytest -q -p no:cacheprovider "$@"; }
# The pytest folders that have tests and need nothing but qkvc and libqkv.
suites=()
for folder in tests/cli tests/python; do
  compgen -G "$folder/test_*.py" >/dev/null && suites+=("$folder")
done

# Under the sanitizers only the unit tests: the emulator has fibers and an instrumentation of its own.
unit_tests() {
  local names
  names=$(basename -a -s .c tests/unit/test_*.c | paste -sd'|')
  run_ctest build/asan -R "^($names)\$"
}

# Under the thread sanitizer what has threads of its own; the emulated device is left out by the test itself.
thread_tests() { run_ctest build/tsan -R '^(test_threads|test_build|test_error)$'; }

# Every model for every architecture, every mask for one of each family, every served model for decode and its append,
# with a table of what each kernel needs.
zoo() {
  local code=0 built bad
  local -x QKV_CACHE_DIR=$ROOT/build/test-cache/zoo
  {
    "$ROOT/build/ci-gcc/qkvc" build specs/*.yaml --arch sm_80,sm_89,sm_90a,sm_100a,sm_120 || code=$?
    "$ROOT/build/ci-gcc/qkvc" build specs/masks/*.yaml --arch sm_80,sm_90a || code=$?
    "$ROOT/build/ci-gcc/qkvc" build specs/serving/*.yaml --phase decode --arch sm_90a || code=$?
    "$ROOT/build/ci-gcc/qkvc" build specs/serving/*.yaml --phase append --arch sm_80,sm_90a || code=$?
  } >"$logs/zoo-table.txt" 2>&1
  cat "$logs/zoo-table.txt"
  built=$(sed -nE 's/^([0-9]+) built .*/\1/p' "$logs/zoo-table.txt" | awk '{ n += $1 } END { print n + 0 }')
  bad=$(sed -nE 's/^[0-9]+ built .*, ([0-9]+) failed, .*/\1/p' "$logs/zoo-table.txt" | awk '{ n += $1 } END { print n + 0 }')
  printf '%d passed, %d failed\n' "${built:-0}" "${bad:-1}"
  return $code
}

# Line coverage of the library by the tests of one build, emulator and command line included.
measure_coverage() {
  need_venv
  has_module "$VENV/bin/python" gcovr || "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check gcovr
  find build/coverage -name '*.gcda' -delete
  run_ctest build/coverage || return 1
  local suite
  for suite in "${suites[@]}"; do
    QKVC=$ROOT/build/coverage/qkvc QKV_LIBRARY=$ROOT/build/coverage/libqkv.so run_pytest "$suite" || return 1
  done
  "$VENV/bin/python" -m gcovr --root . --object-directory build/coverage --filter 'gen/' --filter 'runtime/' \
    --gcov-ignore-parse-errors negative_hits.warn_once_per_file --merge-mode-functions separate \
    --print-summary --fail-under-line 85 build/coverage 2>&1 | tee "$logs/coverage.txt"
}

qkv_setup test
printf 'testing %s with %s jobs; logs in build/test-logs\n\n' "$(git describe --always --dirty 2>/dev/null || echo qkvc)" "$jobs"

stage layers tools/check_layers.sh
stage build-gcc build ci-gcc
export QKVC=$ROOT/build/ci-gcc/qkvc QKV_LIBRARY=$ROOT/build/ci-gcc/libqkv.so
stage ctest-gcc run_ctest build/ci-gcc
for suite in "${suites[@]}"; do
  stage "pytest-$(basename "$suite")" run_pytest "$suite"
done
if [ $quick = 0 ]; then
  stage build-clang build ci-clang
  stage golden-clang run_ctest build/ci-clang -R "^test_golden$"
  stage build-sanitizers build asan
  stage ctest-sanitizers unit_tests
  stage build-tsan build tsan
  stage ctest-tsan thread_tests
  stage zoo zoo
  printf '\n%s\n\n' "$(cat "$logs/zoo-table.txt")"
fi
if [ $coverage = 1 ]; then
  stage build-coverage build coverage
  stage coverage measure_coverage
  tail -n 4 "$logs/coverage.txt" 2>/dev/null || true
fi

[ ${#failures[@]} = 0 ] || printf '\nfailed: %s\n' "${failures[*]}"
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
