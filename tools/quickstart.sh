#!/usr/bin/env bash
# From a fresh Debian or Ubuntu to a real tensor through a generated kernel: installs what is missing, builds qkvc, runs one
# attention layer of a sentence-embedding model on the GPU if there is one (else on the emulator), checks it against the
# f64 reference, and compiles two models' kernels for Hopper. Takes about two minutes on two cores; safe to run again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

begin() { printf '\n== %s\n' "$*"; started=$SECONDS; }
finish() { printf -- '-- %s (%d s)\n' "$*" $((SECONDS - started)); }
# Runs a command quietly; shows its output only when it fails.
quietly() {
  local log=$ROOT/build/quickstart.log
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; printf 'quickstart: failed: %s (all of it in %s)\n' "$*" "$log" >&2; exit 1; }
}

begin "1/4 set-up: compilers, libraries, NVRTC"
qkv_setup run
finish "everything is there"

begin "2/4 build: build/release/qkvc"
[ -f build/release/build.ninja ] || quietly cmake --preset release -DQKV_TESTS=OFF
quietly cmake --build --preset release --target qkvc qkv
qkvc=$ROOT/build/release/qkvc
finish "$("$qkvc" version)"

begin "3/4 one attention layer of all-MiniLM-L6-v2: captured Q, K, V through a generated kernel"
run=("$qkvc" run specs/minilm_l6.yaml --q-file tests/data/minilm_l6_q.npy --k-file tests/data/minilm_l6_k.npy
  --v-file tests/data/minilm_l6_v.npy --out build/minilm_l6_o.npy)
printf '$ qkvc %s\n' "${run[*]:1}"
"${run[@]}" | tee build/quickstart.run
finish "the output is in build/minilm_l6_o.npy"

begin "4/4 two models' kernels for Hopper, compiled without a GPU"
printf '$ qkvc build specs/llama3_8b.yaml specs/gemma2_9b_local.yaml --arch sm_90a\n'
compiled=ok
"$qkvc" build specs/llama3_8b.yaml specs/gemma2_9b_local.yaml --arch sm_90a || compiled="failed, see above; qkvc doctor says what is missing"
finish "compiled: $compiled"

# "minilm_l6: FAMILY for ARCH on DEVICE" and the error of O, from what the run printed.
layer="ok on $(sed -n '1s/.* on //p' build/quickstart.run), $(sed -nE 's/^  o +.*(relative L2 error .*)/\1/p' build/quickstart.run)"
cat <<END

   step                     result
   set-up and build         ok, build/release/qkvc
   MiniLM layer             $layer
   two kernels for sm_90a   $compiled

Where to go next, from $ROOT:
  build/release/qkvc gen specs/minilm_l6.yaml | less    the kernel that just ran
  build/release/qkvc explain specs/llama3_8b.yaml       which kernel a model gets, and why
  build/release/qkvc doctor                             what this machine can do
  specs/                                                attention of many models; write your own: docs/spec-reference.md
  tools/test.sh --quick                                 build and run the tests
END
[ "$compiled" = ok ]
