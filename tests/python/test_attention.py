"""Calls through the package on the emulator, compared with the f64 reference. Small shapes only."""

import numpy
import pytest

import qkv

BASE = """qkvc: 1
name: test
attention:
  heads: {q: %d, kv: %d}
  dim: %s
  dtype: %s
%s
%s
"""


def spec(heads=(2, 2), dim="16", dtype="f16", fields=(), tail=""):
    return qkv.Spec(BASE % (*heads, dim, dtype, "\n".join("  " + field for field in fields), tail))


def draw(shape, seed, dtype="float16"):
    return numpy.random.default_rng(seed).standard_normal(shape, "float32").astype(dtype)


def inputs(s, batch, len_q, len_k, seed=1):
    return (draw((batch, len_q, s.heads_q, s.dim_qk), seed), draw((batch, len_k, s.heads_kv, s.dim_qk), seed + 1),
            draw((batch, len_k, s.heads_kv, s.dim_v), seed + 2))


def close(got, want, tolerance=2e-3):
    numpy.testing.assert_allclose(got.astype("float32"), want, rtol=tolerance, atol=tolerance)


CAUSAL = spec(fields=["mask: causal"])


@pytest.mark.parametrize("lengths", [(5, 5), (1, 33), (70, 66), (17, 3), (0, 4), (4, 0)])
def test_tails_and_empty_rows(emu, lengths):
    q, k, v = inputs(CAUSAL, 2, *lengths)
    got = emu.prepare(CAUSAL)(q, k, v)
    assert got.shape == (2, lengths[0], 2, 16) and got.dtype == numpy.float16
    close(got, qkv.reference(CAUSAL, q, k, v))


@pytest.mark.parametrize("heads", [(6, 2), (5, 1), (3, 3)])
def test_grouped_heads(emu, heads):
    s = spec(heads=heads)
    q, k, v = inputs(s, 1, 9, 20)
    v[:] = numpy.arange(heads[1])[:, None]  # the value is the KV head's number
    got = emu.prepare(s)(q, k, v)
    for head in range(heads[0]):
        close(got[:, :, head], numpy.float32(head // (heads[0] // heads[1])))


def test_different_dims_scale_and_softcap(emu):
    s = spec(dim="{qk: 24, v: 8}", fields=["scale: -0.5", "softcap: 2.0"])
    q, k, v = inputs(s, 1, 12, 19)
    close(emu.prepare(s)(q, k, v), qkv.reference(s, q, k, v))


def test_layouts_agree_bit_for_bit(emu):
    op = emu.prepare(CAUSAL)
    q, k, v = inputs(CAUSAL, 2, 21, 37)
    want = op(q, k, v)
    heads_first = [numpy.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    assert numpy.array_equal(op(*heads_first), want)
    padded = []
    for x in (q, k, v):
        wide = numpy.full(x.shape[:3] + (x.shape[3] + 3,), numpy.nan, "float16")  # rows that no 16-byte load can take
        wide[..., :x.shape[3]] = x
        padded.append(wide[..., :x.shape[3]])
    assert numpy.array_equal(op(*padded), want)
    backwards = [numpy.ascontiguousarray(x[:, ::-1])[:, ::-1] for x in (q, k, v)]
    assert numpy.array_equal(op(*backwards), want)


def test_out_keeps_what_lies_between(emu):
    op = emu.prepare(CAUSAL)
    q, k, v = inputs(CAUSAL, 1, 6, 6)
    canary = numpy.full((1, 6, 2, 24), 7, "float16")
    got = op(q, k, v, out=canary[..., 4:20])
    assert got.base is canary and numpy.array_equal(got, op(q, k, v))
    assert (canary[..., :4] == 7).all() and (canary[..., 20:] == 7).all()


def test_kv_scale(emu):
    s, plain = (spec(fields=["mask: causal"] + more) for more in (["kv_scale: per_head"], []))
    q, k, v = inputs(s, 2, 3, 40)
    k_scale, v_scale = numpy.array([0.5, 4], "float32"), numpy.array([2, 0.25], "float32")  # exact products
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    got = emu.prepare(s, batch=2, len_q=3, len_k=40)(q, k, v, **scales)
    scaled = k * k_scale[:, None].astype("float16"), v * v_scale[:, None].astype("float16")
    assert s.has_kv_scale and not plain.has_kv_scale
    want = qkv.reference(s, q, k, v, **scales)
    assert numpy.array_equal(want, qkv.reference(plain, q, *scaled))
    close(got, want)
    with pytest.raises(qkv.Error, match="v_scale"):
        qkv.reference(s, q, k, v, k_scale=k_scale)


def test_lse_and_sink(emu):
    s = spec(fields=["sink: per_head", "mask: causal"], tail="outputs: [o, lse, lse_with_sink]")
    q, k, v = inputs(s, 1, 8, 8)
    sink = numpy.array([0.5, -numpy.inf], "float32")
    got, want = emu.prepare(s)(q, k, v, sink=sink), qkv.reference(s, q, k, v, sink=sink)
    assert s.outputs == ("o", "lse", "lse_with_sink") and len(got) == 3
    for x, y in zip(got, want):
        close(x, y)
    lse, with_sink = want[1], want[2]
    numpy.testing.assert_allclose(with_sink[:, 0], numpy.logaddexp(lse[:, 0], 0.5), rtol=1e-5)
    numpy.testing.assert_allclose(with_sink[:, 1], lse[:, 1], rtol=1e-5)


def test_parameters_tensors_and_numbers(emu):
    s = spec(fields=["mask: q - k < width and doc[b, q] == doc[b, k]", "score: s + slope[h] * (k - q)",
                     "params: {width: {type: i32}, slope: {type: f32, shape: [hq]}, "
                     "doc: {type: i32, shape: [b, len_k]}}"])
    assert [param.name for param in s.params] == ["width", "slope", "doc"]
    assert s.param_shape("doc", 2, 5, 9) == (2, 9) and s.param_shape("width", 2, 5, 9) == ()
    q, k, v = inputs(s, 2, 9, 9)
    more = dict(slope=numpy.array([0.25, 1.5], "float32"), doc=numpy.array([[0] * 4 + [1] * 5, [0] * 9], "int32"))
    op = emu.prepare(s, batch=2, len_q=9, len_k=9)
    compiles = emu.counters.compiles
    for width in (3, 1):
        close(op(q, k, v, width=width, **more), qkv.reference(s, q, k, v, width=width, **more))
    assert emu.counters.compiles == compiles, "a parameter's value compiles nothing"
    visible = sum(i - j < 3 and doc[i] == doc[j] for doc in more["doc"] for i in range(9) for j in range(9))
    launch = op.bind(q, k, v, width=3, **more)
    assert launch.work()[0] == 2 * (16 + 16) * 2 * visible
    assert numpy.array_equal(launch(), op(q, k, v, width=3, **more)), "counting changes no argument"
    assert not numpy.array_equal(op(q, k, v, width=3, **more), op(q, k, v, params=dict(more, width=1)))


def test_bf16_as_raw_bits_and_as_ml_dtypes(emu):
    s = spec(dtype="bf16")
    exact = [draw((1, 7, 2, 16), seed, "float32") for seed in range(3)]
    bits = [(x.view("uint32") >> 16).astype("uint16") for x in exact]
    op = emu.prepare(s)
    got = op(*bits)
    assert got.dtype == numpy.uint16
    widened = (got.astype("uint32") << 16).view("float32")
    close(widened, qkv.reference(s, *bits), 2e-2)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    named = op(*[x.view(ml_dtypes.bfloat16) for x in bits])
    assert named.dtype == ml_dtypes.bfloat16 and numpy.array_equal(named.view("uint16"), got)


def test_a_launch_is_bound_once_and_sees_new_inputs(emu):
    q, k, v = inputs(CAUSAL, 1, 6, 6)
    launch = emu.prepare(CAUSAL).bind(q, k, v)
    first = launch().copy()
    v *= 2
    close(launch(), first.astype("float32") * 2)
    assert launch.result is launch()
    flops, size = launch.work()
    assert flops == 2 * (16 + 16) * 21 * 2 and size == 4 * q.nbytes
    median, fastest, slowest = launch.time(3)
    assert 0 < fastest <= median <= slowest


def test_reference_reproduces_a_real_layer(root):
    """Tensors of a real model: what the model's own attention made of them."""
    q, k, v, o = (numpy.load(root / "tests" / "data" / ("minilm_l6_%s.npy" % name)) for name in "qkvo")
    got = qkv.reference(root / "specs" / "minilm_l6.yaml", q, k, v)
    close(got, o.astype("float32"), 3e-3)


def test_a_real_layer_on_the_emulator(emu, root):
    q, k, v, o = (numpy.load(root / "tests" / "data" / ("minilm_l6_%s.npy" % name)) for name in "qkvo")
    op = emu.prepare(root / "specs" / "minilm_l6.yaml")
    close(op(q[:, 40:72], k, v), o[:, 40:72].astype("float32"), 3e-3)


def test_workspace_of_the_naive_family(emu):
    with pytest.raises(qkv.Error) as caught:
        emu.prepare(CAUSAL, family="attention_naive")
    assert "attention_naive" in str(caught.value) or "maxim" in str(caught.value)
    op = emu.prepare(CAUSAL, family="attention_naive", batch=1, len_q=9, len_k=9)
    assert op.workspace_bytes > 0
    q, k, v = inputs(CAUSAL, 1, 9, 9)
    close(op(q, k, v), qkv.reference(CAUSAL, q, k, v))
