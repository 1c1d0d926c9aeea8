"""Every spec of specs/masks means what masks.py says: by pair, by tile, and through kernels: on the emulator as two
architectures, or on the device that $QKV_TEST_DEVICE names."""

import os
import pathlib
import re

import numpy
import pytest

import masks
import qkv

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "specs" / "masks"
SPECS = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
BATCH = 2


def load(name, align=None):
    """The spec, with another alignment if asked for."""
    text = SPECS[name].read_text()
    if align:
        text = re.sub(r"\n  align: \w+", "", text).replace("\nattention:\n", f"\nattention:\n  align: {align}\n")
    return qkv.Spec(text)


def problem(name, batch, len_q, len_k):
    rng = numpy.random.default_rng([*name.encode(), len_q, len_k])
    return masks.CASES[name].make(rng, batch, len_q, len_k)


def bf16(shape, seed):
    """Normal numbers as bf16 bits, and their values."""
    bits = (numpy.random.default_rng(seed).standard_normal(shape, "float32").view("uint32") >> 16).astype("uint16")
    return bits, values(bits)


def values(bits):
    return (bits.astype("uint32") << 16).view("float32")


def test_every_spec_has_a_definition():
    assert set(SPECS) == set(masks.CASES) and len(SPECS) >= 35


def tiles_of(pairs, tile):
    """0, 1, 2 by tile: none, some, all visible; keys past the end are hidden."""
    len_q, len_k = pairs.shape
    found = numpy.zeros((-(-len_q // tile[0]), -(-len_k // tile[1])), int)
    for y in range(found.shape[0]):
        for x in range(found.shape[1]):
            part = pairs[y * tile[0]:(y + 1) * tile[0], x * tile[1]:(x + 1) * tile[1]]
            found[y, x] = 0 if not part.any() else 1 + (part.all() and part.shape[1] == tile[1])
    return found


def tiles_by_residue(pairs, offset, dilation, tile):
    """The same where tiles hold tokens of one residue: of queries 0, dilation, 2 dilation ..., then 1 and on."""
    if dilation == 1:
        return tiles_of(pairs, tile)
    len_q, len_k = pairs.shape
    shape = (-(-len_q // dilation), -(-len_k // dilation))
    parts = []
    for first in range(min(dilation, len_q)):
        part = pairs[first::dilation, (first + offset) % dilation::dilation]
        found = numpy.zeros([-(-n // t) for n, t in zip(shape, tile)], int)
        some = tiles_of(part, tile)
        found[:some.shape[0], :some.shape[1]] = some
        parts.append(found)
    return numpy.concatenate(parts)


@pytest.mark.parametrize("name", SPECS)
def test_pairs_and_tiles(name):
    case = masks.CASES[name]
    for align in case.alignments:
        spec = load(name, align)
        for len_q, len_k in case.sizes:
            p = problem(name, BATCH, len_q, len_k)
            offset = len_k - len_q if align == "bottom_right" else 0
            for entry, head in (0, 0), (BATCH - 1, 3):
                where = f"{name}, {align}, {len_q} x {len_k}, entry {entry}, head {head}"
                want = masks.visible(p, entry, head, len_q, len_k, offset)
                which = dict(batch=BATCH, entry=entry, head=head, params=p.params)
                got = numpy.asarray(qkv.visible(spec, len_q, len_k, **which))
                wrong = numpy.argwhere(got != want)
                assert not len(wrong), f"{where}: {len(wrong)} pairs differ, the first is row, key = {wrong[0]}"
                for tile in (16, 16), (32, 8), (128, 48):
                    found = qkv.map_mask(spec, len_q, len_k, tile, **which)
                    planned, actual = numpy.asarray(found.planned), numpy.asarray(found.actual)
                    by_tile = tiles_by_residue(want, offset, found.dilation, tile)
                    assert found.visible == want.sum() and (actual == by_tile).all(), f"{where}, {tile}"
                    assert not actual[planned == 0].any(), f"{where}, {tile}: a tile that is skipped has visible pairs"
                    assert (actual[planned == 2] == 2).all(), f"{where}, {tile}: a tile that is full has hidden pairs"


# (device, architecture or None for the device's own)
TARGETS = [(os.environ["QKV_TEST_DEVICE"], None)] if os.environ.get("QKV_TEST_DEVICE") else [
    ("emu", "sm_80"), ("emu", "sm_90a")]


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: "-".join(filter(None, target)))
def engine(request, tmp_path_factory):
    device, arch = request.param
    engine = qkv.Engine(device, arch=arch, cache_dir=str(tmp_path_factory.mktemp("cache")))
    yield engine
    engine.close()


def sizes_to_run(name, spec):
    """The workload `small`, and more queries than keys where the mask may be asked outside of them."""
    small = next(work for work in spec.workloads if work.name == "small")
    return [tuple(small[1:])] + [(1, 130, 40)] * (masks.ANY[-1] in masks.CASES[name].sizes)


@pytest.mark.parametrize("name", SPECS)
def test_kernels(name, engine):
    spec = load(name)
    text = SPECS[name].read_text()
    top_left, softcap = "align: top_left" in text, 30.0 if name == "softcap" else None
    scale = 1.0 if "scale: 1\n" in text else spec.dim_qk**-0.5
    sizes = sizes_to_run(name, spec)
    batch, len_q, len_k = (max(extents) for extents in zip(*sizes))  # a map of tiles has to fit the workspace
    op = engine.prepare(spec, batch=batch, len_q=len_q, len_k=len_k, aligned_only=True)
    for batch, len_q, len_k in sizes:
        p = problem(name, batch, len_q, len_k)
        (q, q_real), (k, k_real), (v, v_real) = (bf16((batch, n, heads, spec.dim_qk), seed) for seed, (n, heads) in
                                                 enumerate(((len_q, 4), (len_k, 2), (len_k, 2))))
        q_real *= 1 if scale < 1 else spec.dim_qk**-0.5  # unscaled products would make the softmax a choice of one key
        q = (q_real.view("uint32") >> 16).astype("uint16")
        more = {"sink": p.sink} if spec.has_sink else {}
        want = qkv.reference(spec, q, k, v, params=p.params, **more)
        textbook, _ = masks.attention(p, values(q), k_real, v_real, 0 if top_left else len_k - len_q, scale, softcap)
        where = f"{name}, {engine.device.arch}, {batch} x {len_q} x {len_k}"
        assert numpy.abs(want - textbook).max() < 1e-4, f"{where}: the reference is not what the mask means"
        got = values(op(q, k, v, params=p.params, **more))
        assert numpy.linalg.norm(got - want) <= 1e-2 * numpy.linalg.norm(want), f"{where}: the kernel is wrong"
        empty = ~numpy.any(want, axis=(2, 3))
        assert not got[empty].any(), f"{where}: rows without visible keys are 0"


def test_some_rows_see_nothing():
    """The problems above have such rows: under causal masks, before the first image, in an empty graph."""
    for name, (batch, len_q, len_k), offset in (("causal", (1, 130, 40), -90), ("flamingo", (2, 130, 192), 0),
                                                ("graphormer", (2, 97, 97), 0)):
        p = problem(name, batch, len_q, len_k)
        assert any(not masks.visible(p, b, 0, len_q, len_k, offset).any(1).all() for b in range(batch)), name


@pytest.mark.parametrize("name", [name for name in SPECS if re.search(r"shape:", SPECS[name].read_text())])
def test_a_parameter_that_does_not_fit_is_named(name):
    spec = load(name)
    batch, len_q, len_k = sizes_to_run(name, spec)[0]
    p = problem(name, batch, len_q, len_k)
    tensors = [numpy.zeros((batch, n, heads, spec.dim_qk), "uint16")
               for n, heads in ((len_q, 4), (len_k, 2), (len_k, 2))]
    more = {"sink": p.sink} if spec.has_sink else {}
    for param in (param for param in spec.params if param.rank):
        good = p.params[param.name]
        bad = [numpy.concatenate([good, good], axis) for axis in range(param.rank)] + [good[..., None]]
        bad += [good.take(range(good.shape[axis] - 1), axis) for axis in range(param.rank)]
        for tensor in bad:
            with pytest.raises(qkv.Error, match=rf"\b{param.name}\b.*must (be|have)") as caught:
                qkv.reference(spec, *tensors, params={**p.params, param.name: tensor}, **more)
            assert caught.value.status == qkv.INVALID_ARGUMENT
            with pytest.raises(qkv.Error, match=rf"\b{param.name}\b"):
                qkv.visible(spec, len_q, len_k, batch=batch, params={**p.params, param.name: tensor})


def test_questions_that_make_no_sense():
    spec = load("prefix_lm")
    prompt = numpy.zeros(2, "int32")
    for change, says in ((dict(entry=2), "batch entry 2 is not there: the batch has 2"), (dict(head=4), "query head 4"),
                         (dict(head=-1), "query head -1")):
        with pytest.raises(qkv.Error, match=says):
            qkv.visible(spec, 3, 3, batch=2, prompt=prompt, **change)
    with pytest.raises(qkv.Error, match="tile_q and map.tile_k must"):
        qkv.map_mask(spec, 3, 3, (4, 0), batch=2, prompt=prompt)
    with pytest.raises(TypeError, match="missing parameter prompt"):
        qkv.visible(spec, 3, 3)
    assert qkv.visible(spec, 0, 5, batch=2, prompt=prompt).nbytes == 0


WILD = """qkvc: 1
name: wild
attention:
  heads: {q: 4, kv: 2}
  dim: 64
  dtype: bf16
  score: s + w[h, to[b, q] - to[b, k]]
  mask: seen[to[b, q], to[b, k]]
  params:
    to: {type: i32, shape: [b, len_k]}
    seen: {type: bool, shape: [5, 7]}
    w: {type: f32, shape: [hq, 9]}
"""


def test_gathers_stay_within_their_extents(engine):
    """Indices from data, of any value, also where their difference wraps; positions outside of the keys. The emulator
    ends a kernel that reads elsewhere."""
    rng = numpy.random.default_rng(5)
    len_q, len_k = 90, 70
    ends = numpy.array([-2**31, -2**31 + 1, -10**9, -5, -1, *range(10), 10**9, 2**31 - 1], "int32")
    to = rng.choice(ends, (1, len_k))
    seen, w = rng.random((5, 7)) < 0.8, rng.standard_normal((4, 9)).astype("float32")
    params = {"to": to, "seen": seen, "w": w}
    (q, q_real), (k, k_real), (v, v_real) = (bf16((1, n, heads, 64), seed) for seed, (n, heads) in
                                             enumerate(((len_q, 4), (len_k, 2), (len_k, 2))))
    spec = qkv.Spec(WILD)
    rows = to[0, numpy.clip(numpy.arange(len_q) + len_k - len_q, 0, len_k - 1)]
    pairs = seen[numpy.clip(rows, 0, 4)[:, None], numpy.clip(to[0], 0, 6)[None, :]]
    assert (numpy.asarray(qkv.visible(spec, len_q, len_k, params=params)) == pairs).all()
    with numpy.errstate(over="ignore"):
        bias = w[:, numpy.clip(rows[:, None] - to, 0, 8)]
    p = masks.Problem(params, lambda b, h, q, i: numpy.flatnonzero(pairs[i]), lambda b, h, s, q: s + bias[h])
    want, _ = masks.attention(p, q_real, k_real, v_real, len_k - len_q, 0.125)
    assert numpy.abs(qkv.reference(spec, q, k, v, params=params) - want).max() < 1e-4
    op = engine.prepare(spec, batch=1, len_q=len_q, len_k=len_k, aligned_only=True)
    got = values(op(q, k, v, params=params))
    assert numpy.linalg.norm(got - want) <= 1e-2 * numpy.linalg.norm(want)


def test_parameter_values_compile_nothing(engine):
    """Windows, dilations, tables: values are arguments of the kernel, not part of it."""
    spec = qkv.Spec("qkvc: 1\nname: values\nattention:\n  heads: {q: 4, kv: 2}\n  dim: 64\n  dtype: bf16\n"
                    "  mask: abs(q - k) <= w and (q - k) % d == 0 and doc[b, k] != hidden\n  params:\n    w: {type: i32}\n"
                    "    d: {type: i32}\n    hidden: {type: i32}\n    doc: {type: i32, shape: [b, len_k]}\n")
    op = engine.prepare(spec, batch=1, len_q=70, len_k=90, aligned_only=True)
    q, k, v = (bf16((1, n, heads, 64), seed)[0] for seed, (n, heads) in enumerate(((70, 4), (90, 2), (90, 2))))
    before, seen = engine.counters.compiles, []
    for w, d, hidden, base in ((5, 1, 0, 0), (40, 3, 1, 0), (-1, 2, 7, 1), (2**30, -4, 2, 2), (9, 0, 3, 3)):
        params = {"w": w, "d": d, "hidden": hidden, "doc": (numpy.arange(90, dtype="int32")[None] + base) % 4}
        got, want = values(op(q, k, v, params=params)), qkv.reference(spec, q, k, v, params=params)
        assert numpy.linalg.norm(got - want) <= 1e-2 * max(numpy.linalg.norm(want), 1e-6), params
        seen.append(want)
    assert engine.counters.compiles == before
    assert len({one.tobytes() for one in seen}) == len(seen), "the values did not matter"
