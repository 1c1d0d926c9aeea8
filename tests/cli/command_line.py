"""Runs the built qkvc ($QKVC, else build/release/qkvc) in a clean environment with a cache of its own. On a failed
expectation pytest prints the command line, which repeats it."""

import json
import os
import pathlib
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QKVC = os.environ.get("QKVC") or str(ROOT / "build" / "release" / "qkvc")


class Result:
    def __init__(self, command, done):
        self.command, self.code, self.out, self.err = command, done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"$ {self.command}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self):
        return json.loads(self.out)


class Qkvc:
    """Calls qkvc with words; `env` adds to the environment, None removes."""

    def __init__(self, cache):
        self.cache = cache

    def __call__(self, *words, env=None, cwd=ROOT, code=0, timeout=120):
        variables = {k: v for k, v in os.environ.items() if not k.startswith("QKV_")}
        variables["QKV_CACHE_DIR"] = str(self.cache)
        for name, value in (env or {}).items():
            variables.pop(name, None) if value is None else variables.__setitem__(name, str(value))
        words = [str(word) for word in words]
        done = subprocess.run([QKVC, *words], env=variables, cwd=cwd, capture_output=True, text=True, timeout=timeout)
        result = Result(shlex.join(["qkvc", *words]), done)
        assert done.returncode >= 0, f"died of signal {-done.returncode}\n{result}"
        assert code is None or done.returncode == code, f"exit code {code} was expected\n{result}"
        return result


def has_nvrtc():
    done = subprocess.run([QKVC, "build", "specs/minilm_l6.yaml", "--arch", "sm_80", "--device", "none"], cwd=ROOT,
                          capture_output=True, text=True, env={**os.environ, "QKV_CACHE_DIR": ""})
    return done.returncode == 0


def has_gpu():
    done = subprocess.run([QKVC, "run", "specs/minilm_l6.yaml", "--device", "cuda", "--no-check", "--repeats", "0"], cwd=ROOT,
                          capture_output=True, text=True)
    return done.returncode == 0


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not there")
needs_no_gpu = pytest.mark.skipif(has_gpu(), reason="there is a GPU")
