"""Every spec of the zoo says what it is, checks, names its workloads, and renders."""

import math
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


def figures(path):
    """What docs/models.md says of a spec: heads of all shards together, dims, scores, and rope and norm where it appends."""
    spec, text = qkv.Spec(path).json(), path.read_text()
    a, shards = spec["attention"], int((re.search(r"_tp(\d+)", path.stem) or [1, 1])[1])
    qk, v = a["dim"]["qk"], a["dim"]["v"]
    mask = re.search(r"^  mask: (.*)$", text, re.M)
    scores = [f"`{mask[1] if mask else 'true'}`"]
    if not math.isclose(a["scale"], qk**-0.5, rel_tol=1e-6):
        scores.append(f"scale {a['scale']:.6g}")
    if "softcap" in a:
        scores.append(f"softcap {a['softcap']:g}")
    if a["score"] != "s":
        scores.append(f"`{a['score']}`")
    if a["sink"] != "none":
        scores.append("sink")
    cells = ["%d/%d" % (a["heads"]["q"] * shards, a["heads"]["kv"] * shards), f"{qk}" if qk == v else f"{qk}/{v}",
             "; ".join(scores)]
    return cells + [turned(spec, qk)] if spec.get("append") else cells


def turned(spec, qk):
    """What append does to keys."""
    said, rope = [], spec.get("rope")
    if rope:
        said.append(f"theta {rope['theta']:.10g}")
        if rope["dims"] != qk:
            said.append(f"dims {rope['dims']}")
        if rope["style"] != "half":
            said.append(rope["style"])
        if rope["scaling"] != "none":
            (kind, numbers), = rope["scaling"].items()
            said.append(f"{kind} ({', '.join(f'{key} {number:.7g}' for key, number in numbers.items())})")
    if spec["append"]["norm"] == "rms":
        said.append(f"norm {spec['append']['epsilon']:g}")
    return "; ".join(said) or "none"


def test_models_page():
    """docs/models.md has every model of the zoo, and the figures of its specs."""
    page, named = (FOLDER.parent / "docs" / "models.md").read_text(), []
    for row in re.findall(r"^\| (.*`.*) \|$", page, re.M):
        model, names, *cells, source = row.split(" | ")
        for name in re.findall(r"`(\w+)`", names):
            named.append(name)
            paths = [path for path in MODELS + SERVING if path.stem == name]
            assert paths, f"{model}: no spec {name}"
            for path in paths:
                wanted = figures(path)
                assert cells[:len(wanted)] == wanted, f"{model}: {path.relative_to(FOLDER)} is | {' | '.join(wanted)} |"
        assert source
    models = {path.stem for path in MODELS + SERVING if not re.match("mask_|align_", path.stem)}
    assert sorted(named) == sorted(models)


def test_template_lines():
    folder = FOLDER.parent / "templates"
    wide = [f"{path.relative_to(folder)}:{number}"
            for path in sorted(folder.rglob("*.*")) if path.is_file()
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
    assert not wide, f"lines above 120 columns: {wide}"
