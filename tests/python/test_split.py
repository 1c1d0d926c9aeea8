"""Decode whose blocks share the keys: who adds up what they found, the last block, a kernel behind or the cluster that
they are, changes no bit where the shares are the same."""

import numpy
import pytest

import qkv
from test_attention import close, draw, spec

FAMILIES = {"attention_decode_sm80": "", "attention_decode_sm90": "warpgroups=2,stages=2", "attention_decode_simt": ""}
OUTPUTS = "\noutputs: [o, lse]"


@pytest.fixture(scope="module")
def hopper(tmp_path_factory):
    engine = qkv.Engine("emu", arch="sm_90a", cache_dir=str(tmp_path_factory.mktemp("cache")))
    yield engine
    engine.close()


def case(batch, len_q, len_k, heads, dim=64):
    """A spec, and tensors for it."""
    s = spec(heads=heads, dim=str(dim), fields=["mask: causal"], tail=OUTPUTS)
    keys = (batch, len_k, heads[1], dim)
    return s, (draw((batch, len_q, heads[0], dim), 1), draw(keys, 2), draw(keys, 3))


def results(engine, family, schedule, s, tensors):
    """o and lse of two calls in a row, which must agree: the first leaves the workspace as the second needs it."""
    q, k = tensors[0], tensors[1]
    schedule = ",".join(words for words in (FAMILIES[family], schedule) if words)
    limits = dict(batch=len(q), len_q=q.shape[1], len_k=k.shape[1])
    with engine.prepare(s, family=family, schedule=schedule, phase="decode", **limits) as op:
        first, again = op(*tensors), op(*tensors)
    for one, other in zip(first, again):
        numpy.testing.assert_array_equal(one, other)
    return first


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(1, 1, 2000, (4, 1)), (3, 2, 700, (8, 2))])
@pytest.mark.parametrize("split", ["split=0", "split=256"])
def test_a_kernel_behind_adds_in_the_same_order(hopper, family, shape, split):
    s, tensors = case(*shape)
    want = results(hopper, family, split + ",merge=0", s, tensors)
    got = results(hopper, family, split + ",merge=1", s, tensors)
    close(want[0], qkv.reference(s, *tensors)[0])
    numpy.testing.assert_array_equal(got[0], want[0])
    numpy.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize("family", ["attention_decode_sm90", "attention_decode_simt"])
@pytest.mark.parametrize("len_k", [1000, 2001])
def test_a_cluster_adds_in_the_same_order(hopper, family, len_k):
    """The emulated device has four SMs: one work is shared by four blocks either way."""
    s, tensors = case(1, 1, len_k, (4, 1))
    same = "blocks=1," if family == "attention_decode_simt" else ""
    want = results(hopper, family, same + "merge=0", s, tensors)
    got = results(hopper, family, same + "merge=4", s, tensors)
    numpy.testing.assert_array_equal(got[0], want[0])
    numpy.testing.assert_array_equal(got[1], want[1])


def test_clusters_need_no_split_for_equal_bits(hopper):
    """deterministic: batch: a cluster's shares follow from its own sequence. split = 1024 of the default gives way."""
    fixed = spec(heads=(8, 2), dim="64", fields=["mask: causal"], tail="\ndeterministic: batch" + OUTPUTS)
    _, tensors = case(3, 1, 900, (8, 2))
    batch = results(hopper, "attention_decode_sm90", "merge=2", fixed, tensors)
    alone = results(hopper, "attention_decode_sm90", "merge=2", fixed, [x[1:2] for x in tensors])
    numpy.testing.assert_array_equal(batch[0][1:2], alone[0])
    numpy.testing.assert_array_equal(batch[1][1:2], alone[1])


@pytest.mark.parametrize("schedule, says", [
    ("merge=8,together=2", "together must be 1"),
    ("merge=4,split=256", "split must be 0"),
    ("merge=3", "merge = 3 is not among the values"),
])
def test_what_clusters_cannot_be_is_said(hopper, schedule, says):
    s, _ = case(1, 1, 100, (8, 4))
    with pytest.raises(qkv.Error, match=says):
        hopper.prepare(s, family="attention_decode_sm90", phase="decode", schedule=schedule, batch=1, len_q=1, len_k=100)


def test_older_gpus_have_no_clusters(emu):
    s, _ = case(1, 1, 100, (4, 4))
    with pytest.raises(qkv.Error, match="sm_80 has no clusters"):
        emu.prepare(s, family="attention_decode_simt", phase="decode", schedule="merge=2", batch=1, len_q=1, len_k=100)
