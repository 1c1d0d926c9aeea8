"""Shared by the command-line tests: runs the built qkvc ($QKVC, else build/release/qkvc) in a clean environment with a
cache of its own. On a failed expectation pytest prints the command line, which repeats it."""

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


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def qkvc(shared_cache):
    """With one cache for all tests, so that each kernel is compiled once."""
    return Qkvc(shared_cache)


@pytest.fixture
def fresh(tmp_path):
    """With a cache of the test's own."""
    return Qkvc(tmp_path / "cache")


SMALL = """qkvc: 1
name: small
attention:
  heads: {q: 4, kv: 2}
  dim: {qk: 32, v: 16}
  dtype: DTYPE
  mask: causal
outputs: [o, lse]
workloads:
  - {name: tiny, batch: 2, q: 20, kv: 37}
  - {name: other, batch: 1, q: 8, kv: 8}
"""


@pytest.fixture
def small(tmp_path):
    """A spec that compiles and runs fast: 4 query heads on 2 KV heads, dims 32 and 16, causal, f16, with LSE."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("DTYPE", "f16"))
    return path


@pytest.fixture
def small_bf16(tmp_path):
    path = tmp_path / "small_bf16.yaml"
    path.write_text(SMALL.replace("DTYPE", "bf16"))
    return path


@pytest.fixture
def bad(tmp_path):
    """A spec with two errors."""
    path = tmp_path / "bad.yaml"
    path.write_text("qkvc: 1\nname: bad\nattention:\n  heads: 4\n  dims: 64\n  dim: 64\n  mask: causl\n")
    return path


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
