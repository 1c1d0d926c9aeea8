"""Every spec of the zoo says what it is, checks, names its workloads, and renders."""

import pathlib
import re

import pytest

import qkv

SPECS = sorted((pathlib.Path(__file__).resolve().parents[2] / "specs").glob("*.yaml"))


@pytest.fixture(scope="module")
def compiler():
    engine = qkv.Engine("none", cache_dir="")
    yield engine
    engine.close()


def test_there_are_enough():
    assert len(SPECS) >= 12


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_spec(path, compiler):
    text = path.read_text()
    assert text.startswith("# ") and text.split("\nqkvc: 1\n")[0].count("\n") <= 3, "a head comment of a few lines"
    assert max(map(len, text.splitlines())) <= 130
    assert re.fullmatch("[a-z][a-z0-9_]{0,63}", path.stem)
    spec = qkv.Spec(path)
    assert spec.name == path.stem
    names = [work.name for work in spec.workloads]
    assert names and len(set(names)) == len(names)
    assert qkv.Spec(text).canonical() == spec.canonical()
    source = compiler.generate(spec, arch="sm_90a")
    assert 'extern "C"' in source and "$(" not in source
    assert source == compiler.generate(spec, arch="sm_90a"), "rendering is reproducible"
