"""Shared by the Python tests: the package of the source tree and an emulator engine with a cache of its own."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "python"))

import qkv  # noqa: E402


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def emu(tmp_path_factory):
    """One engine for all tests, so that each kernel is compiled once."""
    engine = qkv.Engine("emu", cache_dir=str(tmp_path_factory.mktemp("cache")))
    yield engine
    engine.close()
