"""Every spec of the zoo says what it is, checks, names its workloads, and renders."""

import pathlib
import re

import pytest

import qkv

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "specs"
MODELS, MASKS = sorted(FOLDER.glob("*.yaml")), sorted(FOLDER.glob("masks/*.yaml"))
SERVING = sorted(FOLDER.glob("serving/*.yaml"))
# Served models whose append turns nothing, and why.
UNTURNED = {"command_a_global": "no positions", "command_r7b_global": "no positions", "granite4_h_small": "no positions",
            "hunyuan_a13b": "its norm comes after rope", "hunyuan_large": "its norm comes after rope",
            "jamba": "no positions", "kimi_linear_prefill": "no positions", "llama4_scout_global": "no positions",
            "nemotron_h_8b": "no positions", "starcoder": "learned positions"}


@pytest.fixture(scope="module")
def compiler():
    engine = qkv.Engine("none", cache_dir="")
    yield engine
    engine.close()


def test_there_are_enough():
    assert len(MODELS) >= 12 and len(MASKS) >= 35 and len(SERVING) >= 95


@pytest.mark.parametrize("path", MODELS + MASKS + SERVING, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_spec(path, compiler):
    text = path.read_text()
    lines = 6 if path in MASKS else 4
    assert text.startswith("# ") and text.split("\nqkvc: 1\n")[0].count("\n") < lines, "a head comment of a few lines"
    assert max(map(len, text.splitlines())) <= 130
    assert re.fullmatch("[a-z][a-z0-9_]{0,63}", path.stem)
    spec = qkv.Spec(path)
    assert spec.name == path.stem
    names = [work.name for work in spec.workloads]
    assert names and len(set(names)) == len(names)
    assert path not in MASKS or len(names) >= 2 and "small" in names, "a real workload and a small one"
    assert qkv.Spec(text).canonical() == spec.canonical()
    for arch in "sm_80", "sm_90a":
        source = compiler.generate(spec, arch=arch)
        assert 'extern "C"' in source and "$(" not in source
        assert source == compiler.generate(spec, arch=arch), "rendering is reproducible"
        assert max(source.splitlines(), key=len)[120:] == "", f"{arch}: a line of 120 columns at most"


@pytest.mark.parametrize("path", SERVING, ids=lambda path: path.stem)
def test_served(path, compiler):
    """Steps of decode split their keys, whatever the group, the dimension and the mask."""
    spec = qkv.Spec(path)
    assert spec.layout_q == "ragged" and spec.layout_kv == "paged"
    source = compiler.generate(spec, arch="sm_90a", phase="decode")
    family = "attention_decode_sm80" if spec.dtype_kv == "e4m3" else "attention_decode_sm90"
    assert source.startswith(f"// {family} for sm_90a"), source.splitlines()[0]


@pytest.mark.parametrize("path", SERVING, ids=lambda path: path.stem)
def test_appended(path, compiler):
    """Every served model says how its tokens get into the cache, positions included."""
    spec = qkv.Spec(path)
    assert spec.append, "no section append"
    assert ("rope" in spec.json()) == (path.stem not in UNTURNED)
    for arch in "sm_80", "sm_90a":
        source = compiler.generate(spec, arch=arch, phase="append")
        assert source.startswith("// kv_append_sm80 for %s" % arch), source.splitlines()[0]
        assert max(source.splitlines(), key=len)[120:] == "", f"{arch}: a line of 120 columns at most"


def test_unturned_are_served():
    assert set(UNTURNED) <= {path.stem for path in SERVING}


def test_template_lines():
    folder = FOLDER.parent / "templates"
    wide = [f"{path.relative_to(folder)}:{number}"
            for path in sorted(folder.rglob("*.*")) if path.is_file()
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
    assert not wide, f"lines above 120 columns: {wide}"
