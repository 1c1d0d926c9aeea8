"""Fixtures of the command-line tests: qkvc with a shared or an own cache, and small specs."""

import pytest

from command_line import Qkvc


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
