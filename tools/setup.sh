#!/usr/bin/env bash
# Installs what qkvc needs on Debian or Ubuntu and skips what is there; with everything there it needs no network.
#
#   tools/setup.sh        all that building and testing need
#   tools/setup.sh run    only what building and running need: no clang, no cmocka, no Python packages
#
# Other scripts source it to get ROOT, PYTHON (an interpreter with NumPy and pytest, unless `run`) and, when NVRTC comes
# from a Python wheel, VIRTUAL_ENV, where libqkv looks for it. Everything but system packages goes into build/venv.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/build/venv
PYTHON=python3

say() { printf '%s\n' "$*" >&2; }

# A command in PATH, headers that compile together, a module that an interpreter can import.
has_command() { command -v "$1" >/dev/null; }
has_header() { has_command gcc && printf '#include <%s>\n' "$@" | gcc -E -x c - >/dev/null 2>&1; }
has_module() { "$1" -c "import $2" >/dev/null 2>&1; }

# The package, and how to see whether what it brings is there.
needs_of_run=(
  "gcc command gcc" "g++ command g++" "cmake command cmake" "ninja-build command ninja"
  "libc6-dev header stdlib.h" "liblua5.4-dev header lua5.4/lua.h" "libyaml-dev header yaml.h"
  "libxxhash-dev header xxhash.h"
)
needs_of_test=(
  "clang command clang" "pkg-config command pkg-config" "python3 command python3"
  "libcmocka-dev header stdarg.h stddef.h stdint.h setjmp.h cmocka.h"
)

install_packages() {
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    has_command sudo || { say "setup: $* are missing, and there is no sudo to install them with"; return 1; }
    as_root=(sudo)
  fi
  has_command apt-get || { say "setup: please install with your package manager: $*"; return 1; }
  say "setup: installing $* (apt)"
  "${as_root[@]}" apt-get update -qq >&2 || say "setup: apt-get update failed; trying with the lists at hand"
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

setup_packages() {
  local missing=() need package kind names
  for need in "$@"; do
    read -r package kind names <<<"$need"
    # shellcheck disable=SC2086 # names are several words
    "has_$kind" $names || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    install_packages "${missing[@]}"
  fi
}

# build/venv, made when it is first needed.
need_venv() {
  [ -x "$VENV/bin/python" ] && return
  has_command python3 && has_module python3 ensurepip || install_packages python3 python3-venv
  say "setup: creating $VENV"
  python3 -m venv "$VENV"
}

find_nvrtc() {
  local place
  if ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so'; then return 0; fi
  for place in "${CUDA_HOME:-/nonexistent}"/lib*/ "${CUDA_PATH:-/nonexistent}"/lib*/ /usr/local/cuda*/lib64/ \
    "${VIRTUAL_ENV:-/nonexistent}"/lib/python3*/site-packages/nvidia/*/lib/; do
    if compgen -G "${place}libnvrtc.so.1*" >/dev/null; then return 0; fi
  done
  return 1
}

# NVRTC from a CUDA toolkit if there is one, else from its wheel.
setup_nvrtc() {
  find_nvrtc && return
  need_venv
  export VIRTUAL_ENV=$VENV
  find_nvrtc && return
  say "setup: no CUDA toolkit found; installing NVRTC from its Python wheel into build/venv"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvrtc >&2 ||
    say "setup: that failed; everything but compiling for NVIDIA GPUs will work"
}

setup_python() {
  local module missing=()
  for module in numpy pytest ml_dtypes; do
    has_module python3 $module || missing+=("$module")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  need_venv
  PYTHON=$VENV/bin/python missing=()
  for module in numpy pytest ml_dtypes; do
    has_module "$PYTHON" $module || missing+=("$module")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "setup: installing ${missing[*]} into build/venv"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check "${missing[@]}" >&2
}

qkv_setup() {
  mkdir -p "$ROOT/build"
  setup_packages "${needs_of_run[@]}"
  setup_nvrtc
  if [ "${1:-test}" = test ]; then
    setup_packages "${needs_of_test[@]}"
    setup_python
  fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  qkv_setup "${1:-test}"
  say "setup: everything is there"
fi
