"""Packs and many specs at once, through the package."""

import pathlib
import subprocess
import os

import numpy
import pytest

import qkv

ROOT = pathlib.Path(__file__).resolve().parents[2]
QKVC = os.environ.get("QKVC") or str(ROOT / "build" / "release" / "qkvc")
SPEC = """qkvc: 1
name: NAME
attention: {heads: {q: 2, kv: 1}, dim: 16, dtype: f16, mask: causal}
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack")
    (folder / "a.yaml").write_text(SPEC.replace("NAME", "first"))
    done = subprocess.run([QKVC, "bundle", str(folder / "a.yaml"), "--device", "emu", "-o", str(folder / "a.qkvpack")],
                          env={**os.environ, "QKV_CACHE_DIR": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "a.qkvpack"


def attend(op):
    q, k, v = (numpy.random.default_rng(n).standard_normal((1, rows, heads, 16), "float32").astype("float16")
               for n, rows, heads in ((0, 5, 2), (1, 9, 1), (2, 9, 1)))
    assert abs(op(q, k, v).astype("f4") - qkv.reference(op.spec, q, k, v)).max() < 2e-3


@pytest.mark.parametrize("how", ["option", "path", "bytes"])
def test_a_pack_serves(pack, how):
    packs = [pack] if how == "option" else []
    with qkv.Engine("emu", cache_dir="", disable_jit=True, packs=packs) as engine:
        if how != "option":
            engine.load_pack(pack if how == "path" else pack.read_bytes())
        spec = qkv.Spec.from_pack(engine, "first")
        assert spec.heads_q == 2 and spec.name == "first"
        attend(engine.prepare(spec))
        attend(engine.prepare(SPEC.replace("NAME", "another_name")))
        counters = engine.counters
        assert (counters.renders, counters.compiles, counters.pack_hits) == (0, 0, 4)
        with pytest.raises(qkv.Error, match="no spec 'second'"):
            qkv.Spec.from_pack(engine, "second")


def test_what_is_no_pack(tmp_path):
    with qkv.Engine("emu", cache_dir="") as engine:
        for bad in (tmp_path / "absent", b"short", b"qkvcpack" + bytes(200)):
            with pytest.raises(qkv.Error) as raised:
                engine.load_pack(bad)
            assert raised.value.status == qkv.IO


def test_many(emu):
    specs = [SPEC.replace("NAME", "first"), qkv.Spec(SPEC.replace("NAME", "second").replace("f16", "bf16")),
             (SPEC.replace("NAME", "third"), {"aligned_only": True})]
    told = []
    ops = emu.prepare_many(specs, threads=2, progress=lambda *words: told.append(words))
    assert [op.spec.name for op in ops] == ["first", "second", "third"]
    attend(ops[0])
    attend(ops[2])
    assert sorted(words[0] for words in told) == [1, 2, 3] and {words[1] for words in told} == {3}
    assert {words[2] for words in told} == {"first", "second", "third"}
    assert {words[3] for words in told} <= {"cache", "compiled"} and all(words[4] >= 0 for words in told)
    assert emu.prepare_many([]) == []


def test_many_with_a_failure(emu):
    with pytest.raises(qkv.Error, match="(?s)1 of 2 specs.*second.*no family 'none'") as raised:
        emu.prepare_many([SPEC.replace("NAME", "first"), (SPEC.replace("NAME", "second"), {"family": "none"})])
    assert raised.value.status == qkv.UNSUPPORTED
    first, second = raised.value.ops
    assert second is None
    attend(first)
