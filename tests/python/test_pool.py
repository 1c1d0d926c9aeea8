"""The KV pool through the package, on the emulator; what it does in detail is proved by tests/unit/test_pool.c."""

import numpy
import pytest

import qkv
from qkv import lowlevel

PAGED = """qkvc: 1
name: paged
attention: {heads: {q: 4, kv: 2}, dim: {qk: 24, v: 16}, dtype: f16}
layout: {q: ragged, kv: {paged: {page: 16, order: %s}}}
"""
DENSE = "qkvc: 1\nname: dense\nattention: {heads: {q: 4, kv: 2}, dim: {qk: 24, v: 16}, dtype: f16, mask: causal}\n"
GRANULE = 4096


@pytest.fixture
def engine(tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "pool_cache"
    with qkv.Engine("emu", cache_dir=str(cache), emu_granule=GRANULE) as engine:
        yield engine


def rows(engine, tensor, first, value=None):
    """Reads, or writes with `value`, row by row, the indices `first` of the outer two dims."""
    inner = tensor.shape[2] * tensor.shape[3]
    out = numpy.empty((len(first), inner), numpy.float16)
    for n, (a, b) in enumerate(first):
        address = tensor.data + 2 * (a * tensor.strides[0] + b * tensor.strides[1])
        if value is None:
            lowlevel.call("qkv_copy_to_host", engine.handle, out[n].ctypes.data, address, 2 * inner)
        else:
            lowlevel.call("qkv_copy_to_device", engine.handle, address, value[n].ctypes.data, 2 * inner)
    return out


def test_blocks(engine):
    pool = qkv.Pool(engine, PAGED % "nhd", layers=2, blocks=50)
    assert pool.alloc(3) == [0, 1, 2] and pool.alloc() == [3] and pool.alloc(0) == []
    pool.retain([1, 1, 2])
    pool.release(range(4))
    assert [pool.owners(block) for block in range(4)] == [0, 2, 1, 0]
    assert pool.alloc(2) == [0, 3]
    info = pool.info
    assert (info.page, info.token_bytes, info.page_bytes) == (16, 2 * (24 + 16) * 2, 16 * 2 * (24 + 16) * 2)
    assert (info.blocks, info.blocks_used, info.used, info.granule) == (50, 4, 4 * 2 * info.page_bytes, GRANULE)
    assert info.mapped >= info.used and info.reserved >= info.mapped
    pool.release([0, 1, 1, 2, 3])
    assert pool.trim() == info.mapped and pool.info.mapped == 0
    for refused, status, text in [(lambda: pool.release(1), qkv.INVALID_ARGUMENT, "block 1 is free"),
                                  (lambda: pool.retain([50]), qkv.INVALID_ARGUMENT, "blocks are 0 to 49"),
                                  (lambda: pool.alloc(51), qkv.OUT_OF_MEMORY, "51 blocks are needed, 50 of 50 are free"),
                                  (lambda: pool.resize(0, 1), qkv.INVALID_ARGUMENT, "it has no slots"),
                                  (lambda: qkv.Pool(engine, DENSE, blocks=5), qkv.INVALID_ARGUMENT, "needs a page"),
                                  (lambda: qkv.Pool(engine, DENSE, slots=5, max_len=9, placement="near"),
                                   qkv.INVALID_ARGUMENT, "kv_together")]:
        with pytest.raises(qkv.Error, match=text) as raised:
            refused()
        assert raised.value.status == status
    assert repr(pool) == "<qkv.Pool of 2 layers on emu>"


@pytest.mark.parametrize("order, shape", [("nhd", (50, 16, 2)), ("hnd", (50, 2, 16))])
def test_tensors_of_blocks(engine, order, shape):
    k, v = qkv.Pool(engine, PAGED % order, layers=3, blocks=50, placement="layers_together").tensors(2)
    assert k.shape == shape + (24,) and v.shape == shape + (16,)
    unit = 3 * 16 * 2 * (24 + 16)
    assert k.strides == (unit, shape[2] * 24, 24, 1) and v.strides == (unit, shape[2] * 16, 16, 1)
    assert v.data - k.data == 2 * 16 * 2 * 24
    with pytest.raises(AttributeError):
        k.__cuda_array_interface__


@pytest.mark.parametrize("placement", ["apart", "kv_together", "layers_together"])
def test_kernels_read_slots_that_grow(engine, placement):
    """Keys and values of two sequences grow in place; after each step a call reads what the pool holds."""
    spec, random = qkv.Spec(DENSE), numpy.random.default_rng(5)
    op, pool = engine.prepare(spec), qkv.Pool(engine, spec, layers=2, slots=3, max_len=500, placement=placement)
    k, v = (random.standard_normal((2, 200, 2, dim)).astype(numpy.float16) for dim in (24, 16))
    before = 0
    for length in (1, 37, 38, 200):
        for slot in range(2):
            pool.resize(slot, length)
        new = [(slot, token) for slot in range(2) for token in range(before, length)]
        for tensor, values in zip(pool.tensors(1), (k, v)):
            rows(engine, tensor, new, [numpy.ascontiguousarray(values[at]).reshape(-1) for at in new])
        q = random.standard_normal((2, 3, 4, 24)).astype(numpy.float16)
        got = op(q, *pool.tensors(1, slots=2, len_k=length))
        want = qkv.reference(spec, q, k[:, :length], v[:, :length])
        numpy.testing.assert_allclose(got.astype(numpy.float32), want, rtol=2e-3, atol=2e-3)
        before = length
    assert pool.info.tokens == 400
    with pytest.raises(qkv.Error, match="where not all is mapped"):
        op(q, *pool.tensors(1, slots=2, len_k=500))


def test_the_engine_closes_its_pools(tmp_path):
    engine = qkv.Engine("emu", cache_dir=str(tmp_path))
    pool = qkv.Pool(engine, DENSE, slots=2, max_len=10)
    pool.resize(1, 10)
    engine.close()
    with pytest.raises(qkv.Error, match="this pool is closed"):
        pool.resize(1, 1)


def test_memory_of_another_kind_is_refused(engine):
    spec = qkv.Spec(DENSE)
    pool = qkv.Pool(engine, spec, slots=1, max_len=10)
    pool.resize(0, 10)
    k, v = pool.tensors()
    k.device = "cuda"
    with pytest.raises(qkv.Error, match="k: lies in GPU memory, but the engine's device is emu"):
        engine.prepare(spec)(numpy.zeros((1, 1, 4, 24), numpy.float16), k, v)
