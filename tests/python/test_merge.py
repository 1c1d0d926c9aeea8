"""Merges through the package: attention over two parts of the keys, merged, is attention over all of them."""

import numpy
import pytest

import qkv
from test_attention import close, draw, spec

OUTPUTS = "outputs: [o, lse]"


@pytest.fixture(scope="module")
def parts():
    """A spec, q, and the reference's states over keys 0-9 and 10-32; and over all."""
    s = spec(heads=(4, 2), fields=['mask: true'], tail=OUTPUTS)
    q, k, v = draw((2, 5, 4, 16), 1), draw((2, 33, 2, 16), 2), draw((2, 33, 2, 16), 3)
    states = [qkv.reference(s, q, k[:, keys], v[:, keys]) for keys in (slice(0, 10), slice(10, 33))]
    return s, states, qkv.reference(s, q, k, v)


def test_two_parts_are_the_whole(emu, parts):
    s, states, whole = parts
    with emu.prepare(s, phase="merge") as op:
        for got in op.merge(states), op.merge([(o.astype("float16"), lse) for o, lse in states]), \
                qkv.merge_reference(s, states):
            assert got[0].dtype == numpy.float16 and got[1].dtype == numpy.float32
            for mine, theirs in zip(got, whole):
                close(mine, theirs)


def test_in_place_and_without_keys(emu, parts):
    s, states, whole = parts
    with emu.prepare(s, phase="merge") as op:
        o, lse = states[0][0].astype("float16"), states[0][1].copy()
        none = numpy.full_like(o, numpy.nan), numpy.full_like(lse, -numpy.inf)
        got = op.merge([(o, lse), none, states[1]], out=o, lse=lse)
        assert got[0] is o and got[1] is lse
        close(o, whole[0])
        close(lse, whole[1])
        o, lse = op.merge([none, none])
        assert (o == 0).all() and (lse == -numpy.inf).all()


def test_errors(emu, parts):
    s, states, _ = parts
    with emu.prepare(s, phase="merge") as op:
        with pytest.raises(qkv.Error, match="states: none is given"):
            op.merge([])
        with pytest.raises(qkv.Error, match=r"states\[1\].lse: dimension 0, batch is 1, must be 2"):
            op.merge([states[0], (states[1][0], states[1][1][:1])])
        with pytest.raises(qkv.Error, match="call qkv_merge"):
            op(*(numpy.zeros((1, 1, heads, 16), "float16") for heads in (4, 2, 2)))
