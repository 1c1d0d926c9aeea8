"""run: inputs, outputs, the check, the reproducer. Everything on the emulator."""

import shlex

import numpy as np
import pytest

from command_line import ROOT

EMU = ("--device", "emu")


def reference(q, k, v):
    """Causal attention, bottom-right, f64; q [b, n, h, d], k and v with fewer heads."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x.astype(np.float64), group, axis=2) for x in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), k) / np.sqrt(q.shape[-1])
    i, j = np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], np.arange(k.shape[1])[None, :]
    s = np.where(j <= i, s, -np.inf)
    top = np.maximum(s.max(-1, keepdims=True), -1e300)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    o = np.einsum("bhij,bjhd->bihd", p / np.where(total > 0, total, 1), v)
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + top)[..., 0]


def save(folder, **arrays):
    words = []
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        words += [f"--{name}-file", folder / f"{name}.npy"]
    return words


def test_files_in_and_out(qkvc, small, tmp_path):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 21, 4, 32), (2, 30, 2, 32), (2, 30, 2, 16)))
    result = qkvc("run", small, *EMU, *save(tmp_path, q=q, k=k, v=v), "--out", tmp_path / "o.npy", "--lse-out", tmp_path / "lse.npy")
    assert "ok" in result.out and "f64 reference" in result.out, result
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "lse.npy")
    assert o.dtype == np.float16 and o.shape == (2, 21, 4, 16) and lse.dtype == np.float32 and lse.shape == (2, 4, 21)
    want_o, want_lse = reference(q, k, v)
    assert np.linalg.norm(o - want_o) / np.linalg.norm(want_o) < 2e-3
    assert np.abs(lse - want_lse).max() < 1e-3


def test_rows_that_see_nothing(qkvc, small, tmp_path):
    """More queries than keys, causal bottom-right: the first rows are empty."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((1, 40, 4, 32), (1, 9, 2, 32), (1, 9, 2, 16)))
    qkvc("run", small, *EMU, *save(tmp_path, q=q, k=k, v=v), "--out", tmp_path / "o.npy", "--lse-out", tmp_path / "lse.npy")
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "lse.npy")
    assert (o[:, :31] == 0).all() and (lse[:, :, :31] == -np.inf).all() and np.isfinite(lse[:, :, 31:]).all()


def test_three_dimensions_and_f32(qkvc, small, tmp_path):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4, 32), (7, 2, 32), (7, 2, 16)))
    qkvc("run", small, *EMU, *save(tmp_path, q=q, k=k, v=v), "--out", tmp_path / "a.npy")
    qkvc("run", small, *EMU, *save(tmp_path, q=q[None].astype(np.float16), k=k[None].astype(np.float16), v=v[None].astype(np.float16)),
         "--out", tmp_path / "b.npy")
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "b.npy")).all()


def test_bf16_bits(qkvc, small_bf16, tmp_path):
    rng = np.random.default_rng(4)
    exact = [(rng.integers(-128, 128, shape) / 64).astype(np.float32) for shape in ((1, 6, 4, 32), (1, 6, 2, 32), (1, 6, 2, 16))]
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in exact]
    qkvc("run", small_bf16, *EMU, *save(tmp_path, q=exact[0], k=exact[1], v=exact[2]), "--out", tmp_path / "a.npy")
    words = save(tmp_path, q=bits[0], k=bits[1], v=bits[2])
    assert "--bf16-bits" in qkvc("run", small_bf16, *EMU, *words, code=2).err
    qkvc("run", small_bf16, *EMU, *words, "--bf16-bits", "--out", tmp_path / "b.npy")
    a, b = np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")
    assert a.dtype == np.float32 and b.dtype == np.uint16
    assert (a.view(np.uint32) >> 16 == b).all()


def test_random_inputs_are_reproducible(qkvc, small, tmp_path):
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        qkvc("run", small, *EMU, "--q", 9, "--kv", 13, "--seed", seed, "--out", tmp_path / f"{name}.npy")
    a, b, c = (np.load(tmp_path / f"{name}.npy") for name in "abc")
    assert (a == b).all() and (a != c).any()


@pytest.mark.parametrize("words, shape", [
    (["--workload", "other"], (1, 8, 8)), (["--q", "5"], (1, 5, 5)), (["--kv", "9"], (1, 9, 9)),
    (["--batch", "3", "--q", "2", "--kv", "70"], (3, 2, 70)), ([], (2, 20, 37)),
    (["--q", "0", "--kv", "5"], (1, 0, 5)), (["--q", "5", "--kv", "0"], (1, 5, 0)), (["--batch", "0", "--q", "4"], (0, 4, 4))])
def test_sizes(qkvc, small, words, shape):
    report = qkvc("run", small, *EMU, *words, "--json").json()
    assert (report["batch"], report["q"], report["kv"]) == shape and report["ok"] and report["device"] == "emu"
    assert report["o"]["relative_l2_error"] < report["tolerance"]


def test_a_large_workload_is_made_small_on_the_emulator(qkvc):
    result = qkvc("run", "specs/siglip_so400m.yaml", *EMU)
    assert "made small" in result.err and "ok" in result.out, result


def test_kernel_choices(qkvc, small):
    base = ("run", small, *EMU, "--q", 33, "--kv", 70, "--json")
    assert qkvc(*base, "--schedule", "tile_m=64,tile_n=32").json()["ok"]
    assert qkvc(*base, "--unaligned").json()["ok"]
    assert qkvc(*base, "--family", "attention_naive").json()["family"] == "attention_naive"
    assert qkvc(*base, "--emu-seed", 5).json()["ok"]
    assert "median_seconds" in qkvc(*base, "--repeats", 2).json()
    report = qkvc(*base, "--no-check").json()
    assert not report["checked"] and "ok" not in report


def test_failed_check_ends_with_a_reproducer(qkvc, small):
    result = qkvc("run", small, *EMU, "--q", 11, "--seed", 3, "--tolerance", "1e-9", code=1)
    assert "FAILED" in result.out and "above 1e-09" in result.err, result
    last = result.err.rstrip().split("\n")[-1]
    assert last.startswith("reproduce: qkvc run "), result
    again = qkvc(*shlex.split(last)[2:], code=1)
    assert again.err == result.err, "the reproducer fails in the same way"
    report = qkvc("run", small, *EMU, "--q", 11, "--tolerance", "1e-9", "--json", code=1).json()
    assert not report["ok"] and report["fault"] and report["reproduce"].startswith("qkvc run")


SPEC = """qkvc: 1
name: params
attention:
  heads: 2
  dim: 16
  dtype: f16
  score: s + slope[h] * (k - q)
  mask: k < n and same(doc)
  sink: per_head
  params:
    slope: {type: f32, shape: [hq]}
    n: {type: i32}
    doc: {type: i32, shape: [len_k]}
outputs: [o, lse]
"""


def test_parameters_and_sink(qkvc, tmp_path):
    spec = tmp_path / "params.yaml"
    spec.write_text(SPEC)
    np.save(tmp_path / "slope.npy", np.array([0.5, -0.25], np.float32))
    np.save(tmp_path / "doc.npy", np.arange(24, dtype=np.int64) // 10)
    np.save(tmp_path / "sink.npy", np.array([0.0, 2.0], np.float64))
    words = ["run", spec, *EMU, "--q", 24, "--param", f"slope={tmp_path / 'slope.npy'}", "--param", f"doc={tmp_path / 'doc.npy'}",
             "--sink-file", tmp_path / "sink.npy"]
    assert "ok" in qkvc(*words, "--param", "n=9").out
    assert "n=12" in qkvc(*words).err, "the default is said"
    assert "number of type i32" in qkvc(*words, "--param", "n=1.5", code=2).err
    assert "did you mean slope?" in qkvc(*words, "--param", "slop=1", code=2).err
    assert "shape [2], where [24] is needed" in qkvc(*words, "--param", f"doc={tmp_path / 'slope.npy'}", code=2).err


BYTES = """qkvc: 1
name: bytes
attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: {q: f16, kv: e4m3}, kv_scale: per_head, mask: causal}
layout: {kv: padded}
"""


def test_bytes_and_their_scales(qkvc, tmp_path):
    spec, out, ones = tmp_path / "bytes.yaml", [tmp_path / "one.npy", tmp_path / "scaled.npy"], tmp_path / "ones.npy"
    spec.write_text(BYTES)
    scales = np.array([2, 0.5], np.float32)
    np.save(ones, np.ones(2, np.float32))
    np.save(tmp_path / "scales.npy", scales)
    for file, to in zip((ones, tmp_path / "scales.npy"), out):
        words = ["run", spec, *EMU, "--q", 1, "--kv", 70, "--lengths", "full", "--k-scale-file", ones, "--v-scale-file", file]
        result = qkvc(*words, "--out", to)
        assert "attention_decode_sm80" in result.out and "f16, k and v e4m3" in result.out and ": ok" in result.out
    one, scaled = (np.load(to).astype(np.float32) for to in out)
    assert np.array_equal(scaled, one * np.repeat(scales, 2)[:, None])


@pytest.mark.parametrize("array, says", [
    (np.zeros((2, 3), np.float16), "has 2 dimensions"),
    (np.zeros((1, 8, 4, 16), np.float16), "shape [1, 8, 4, 16], where [1, 8, 4, 32] is needed"),
    (np.zeros((1, 8, 4, 32), ">f4"), "big-endian"),
    (np.asfortranarray(np.zeros((1, 8, 4, 32), np.float32)), "Fortran order"),
    (np.zeros((1, 8, 4, 32), np.int32), "element type i4, where f16 is needed"),
    (np.zeros((1, 8, 4, 32), np.complex64), "element type '<c8' is not supported"),
])
def test_files_that_do_not_fit(qkvc, small, tmp_path, array, says):
    np.save(tmp_path / "q.npy", array)
    result = qkvc("run", small, *EMU, "--q-file", tmp_path / "q.npy", code=2)
    assert says in result.err and "q.npy" in result.err, result


def test_files_that_are_no_files(qkvc, small, tmp_path):
    assert "No such file" in qkvc("run", small, *EMU, "--q-file", tmp_path / "none.npy", code=2).err
    (tmp_path / "q.npy").write_bytes(b"PK\x03\x04 not an array at all")
    assert "not a .npy file" in qkvc("run", small, *EMU, "--q-file", tmp_path / "q.npy", code=2).err
    np.save(tmp_path / "q.npy", np.zeros((1, 8, 4, 32), np.float16))
    data = (tmp_path / "q.npy").read_bytes()
    (tmp_path / "q.npy").write_bytes(data[:-2])
    assert "needs 2048 bytes of data, the file has 2046" in qkvc("run", small, *EMU, "--q-file", tmp_path / "q.npy", code=2).err


def test_the_captured_layer(qkvc, tmp_path):
    """The main job: one real layer, against what the model itself made of it."""
    data = ROOT / "tests" / "data"
    result = qkvc("run", "specs/minilm_l6.yaml", *EMU, "--q-file", data / "minilm_l6_q.npy", "--k-file", data / "minilm_l6_k.npy",
                  "--v-file", data / "minilm_l6_v.npy", "--out", tmp_path / "o.npy")
    assert "ok" in result.out, result
    o, want = np.load(tmp_path / "o.npy").astype(np.float64), np.load(data / "minilm_l6_o.npy").astype(np.float64)
    assert np.linalg.norm(o - want.reshape(o.shape)) / np.linalg.norm(want) < 5e-3


def test_the_emulator_needs_no_nvrtc_and_compiles_once(fresh, small):
    assert fresh("run", small, *EMU, "--q", 8, "--json", env={"QKV_NVRTC": "/nowhere/libnvrtc.so"}).json()["ok"]
    assert fresh("cache", "ls", "--json").json()["count"] == 1


@pytest.mark.parametrize("words, env, says", [
    (["--device", "tpu"], {}, "tpu"), (["--tolerance", "-1"], {}, "--tolerance"), ([], {"QKV_EMU_SEED": "x"}, "QKV_EMU_SEED"),
    ([], {"QKV_EMU_POLICY": "x"}, "QKV_EMU_POLICY"), ([], {"QKV_DEVICE": "x"}, "'x'")])
def test_wrong_settings_are_usage_errors(qkvc, small, words, env, says):
    assert says in qkvc("run", small, "--q", 8, *words, env={"QKV_DEVICE": "emu", **env}, code=2).err


SEQUENCES = """qkvc: 1
name: sequences
attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: causal, sink: per_head}
layout: %s
outputs: [o, lse, lse_with_sink]
"""


@pytest.mark.parametrize("layout", ["{q: ragged, kv: ragged}", "{kv: padded}", "{kv: {paged: {page: 3, order: hnd}}}",
                                    "{q: ragged, kv: {paged: {page: 16, table: csr}}}"])
def test_sequences(qkvc, tmp_path, layout):
    """Random lengths, shuffled pages, NaN behind every end: against the reference, and repeated by its own words."""
    path = tmp_path / "sequences.yaml"
    path.write_text(SEQUENCES % layout)
    words = ("run", path, *EMU, "--batch", 9, "--q", 20, "--kv", 50, "--json")
    result = qkvc(*words)
    first = result.json()
    assert first["ok"] and first["against"] == "f64 reference", result
    again = qkvc(*shlex.split(first["reproduce"])[1:], "--json").json()
    assert {name: first[name] for name in ("o", "lse")} == {name: again[name] for name in ("o", "lse")}
    full = qkvc(*words, "--lengths", "full").json()
    assert full["ok"] and "--lengths full" in full["reproduce"] and full["o"] != first["o"]
    assert "kv 50" in qkvc("run", path, *EMU, "--batch", 0, "--q", 20, "--kv", 50).out


def test_sequences_are_not_in_files(qkvc, small, tmp_path):
    path = tmp_path / "sequences.yaml"
    path.write_text(SEQUENCES % "{q: ragged, kv: ragged}")
    np.save(tmp_path / "q.npy", np.zeros((5, 4, 32), np.float16))
    assert "lengths of their own" in qkvc("run", path, *EMU, "--q-file", tmp_path / "q.npy", code=2).err
    assert "--lengths takes mixed or full, not 'some'" in qkvc("run", path, *EMU, "--lengths", "some", code=2).err
    assert "have the same lengths" in qkvc("run", small, *EMU, "--lengths", "full", code=2).err
    shown = qkvc("explain", path, "--mask", "--q", 12, "--kv", 20, "--tile", "4x4")
    assert "tiles of 4 queries by 4 keys" in shown.out, shown
