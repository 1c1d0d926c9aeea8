"""Keys and values in e4m3 through the package, as each architecture converts them: every code, and queries whose
magnitudes no single format between bf16 and the products could hold."""

import math

import numpy
import pytest

import qkv

SPEC = """qkvc: 1
name: bytes
attention: {heads: {q: 4, kv: 1}, dim: %s, dtype: {q: %s, kv: e4m3, out: bf16}, scale: %s}
outputs: [o, lse]
"""


@pytest.fixture(scope="module", params=["sm_80", "sm_89", "sm_90a"])
def engine(request, tmp_path_factory):
    engine = qkv.Engine("emu", arch=request.param, cache_dir=str(tmp_path_factory.mktemp(request.param)))
    engine.hardware = request.param != "sm_80"
    yield engine
    engine.close()


def attend(engine, text, q, k, v):
    op = engine.prepare(text, phase="decode", batch=len(q), len_q=q.shape[1], len_k=k.shape[1])
    assert "attention_decode_sm80" in engine.generate(text, phase="decode")
    o, lse = op(q, k, v)
    op.close()
    return to_f64(o), lse


def to_f64(bits):
    return (bits.astype("uint32") << 16).view("float32").astype("float64")


def to_bf16(values):
    return (numpy.asarray(values, "float32").view("uint32") >> 16).astype("uint16")


def test_every_code(engine):
    """Of one key, the output is its value."""
    codes = numpy.arange(256, dtype="uint8")
    q, k = numpy.zeros((1, 1, 4, 16), "uint16"), numpy.zeros((1, 1, 1, 16), "uint8")
    got, _ = attend(engine, SPEC % ("{qk: 16, v: 256}", "bf16", 1), q, k, codes.reshape(1, 1, 1, 256))
    exponent, fraction = (codes >> 3 & 15).astype(int), codes & 7
    want = numpy.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0**(exponent - 10.0))
    want *= numpy.where(codes >> 7, -1, 1)
    want[(codes & 127) == 127] = numpy.nan if engine.hardware else [480, -480]  # 0x7f, 0xff
    numpy.testing.assert_array_equal(got, numpy.broadcast_to(want, got.shape))


@pytest.mark.parametrize("dim", [16, 48, 128])
def test_rows_of_every_magnitude(engine, dim):
    """Each row is scaled for itself: rows of 2^-133, the least there is, to 2^100, one of zeros, one of elements from
    2^-100 to 2^100."""
    random = numpy.random.default_rng(dim)
    sizes = 2.0 ** numpy.array([-133, -130, -100, -40, -15, 0, 15, 40, 100], float)
    q = random.uniform(-2, 2, (1, len(sizes) + 2, 4, dim))
    q[0, :len(sizes)] *= sizes[:, None, None]
    q[0, -2] *= 2.0 ** random.integers(-100, 100, (4, dim))
    q[0, -1] = 0
    q = to_bf16(q)
    codes = numpy.delete(numpy.arange(256, dtype="uint8"), [0x7f, 0x80, 0xff])
    # In no dimension do two keys have the same number, so that f32 sees none as equals.
    k = numpy.stack([random.permutation(codes)[:50] for _ in range(dim)], axis=-1).reshape(1, 50, 1, dim)
    v = random.choice(codes, (1, 50, 1, dim))
    for scale in 2.0**-100, 0.125, -4.0:
        text = SPEC % (dim, "bf16", scale)
        o, lse = attend(engine, text, q, k, v)
        want_o, want_lse = qkv.reference(text, q, k, v)
        numpy.testing.assert_allclose(o, want_o, rtol=2.0**-8, atol=0.5, err_msg=str(scale))
        numpy.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=1e-4, err_msg=str(scale))


def test_infinite_queries_stay_in_their_rows(engine):
    """An infinity or a NaN makes a row what it does in f32, and leaves its neighbours what they were."""
    random = numpy.random.default_rng(3)
    q = to_bf16(random.uniform(-1, 1, (1, 4, 4, 16)))
    k, v = (random.integers(1, 0x60, (1, 20, 1, 16)).astype("uint8") for _ in range(2))
    text = SPEC % (16, "bf16", 0.25)
    plain, _ = attend(engine, text, q, k, v)
    q[0, 0, 3, 4:6], q[0, 1, 2, 5], q[0, 2, 1, 6], q[0, 3, 0, 15] = 0x7f80, 0x7fc0, 0x7f80, 0xff80
    got, _ = attend(engine, text, q, k, v)
    for row in (0, 3), (1, 2), (2, 1):
        assert numpy.isnan(got[0][row]).all(), row
        got[0][row] = plain[0][row]
    assert (got[0, 3, 0] == 0).all()  # all keys are positive, all scores -inf: as if there were no key
    got[0, 3, 0] = plain[0, 3, 0]
    numpy.testing.assert_array_equal(got, plain)


def test_many_keys_of_small_weight(engine):
    """One key outweighs every other 2^22 times, and together they weigh a good part of it: P's least numbers count."""
    keys, dim = 1 << 16, 16
    q, k, v = numpy.zeros((1, 1, 4, dim)), numpy.zeros((1, keys, 1, dim), "uint8"), numpy.zeros((1, keys, 1, dim))
    q[..., 0] = 1
    k[0, 100, 0, 0] = 0x58  # 16
    v = numpy.full((1, keys, 1, dim), 0x7e, "uint8")  # 448
    v[0, 100] = 0
    for power in 20, 22, 24, 26:
        text = SPEC % (dim, "bf16", power * math.log(2) / 16)
        o, _ = attend(engine, text, to_bf16(q), k, v)
        weight = (keys - 1) * 2.0**-power
        numpy.testing.assert_allclose(o, 448 * weight / (1 + weight), rtol=2.0**-8, err_msg=str(power))
