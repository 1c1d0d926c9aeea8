"""The KV pool on the driver's virtual memory. Needs PyTorch and a GPU; skipped elsewhere.

    python -m pytest -s tests/gpu/test_pool.py      # -s: also prints what mapping costs
"""

import pathlib
import sys
import threading
import time

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "python"
sys.path.insert(0, str(PACKAGE))

import qkv  # noqa: E402

try:
    import torch
    have_gpu = torch.cuda.is_available()
except ImportError:
    have_gpu = False
pytestmark = pytest.mark.skipif(not have_gpu, reason="needs PyTorch and a GPU")

HEADS_Q, HEADS_KV, DIM = 8, 2, 64
TEXT = """qkvc: 1
name: gpu_pool
attention: {heads: {q: 8, kv: 2}, dim: 64, dtype: bf16, mask: causal}
layout: {q: %s, kv: %s}
"""
PAGED = TEXT % ("ragged", "{paged: {page: 16, order: nhd}}")
DENSE = TEXT % ("dense", "dense")
MIB = 1 << 20
PLACEMENTS = ["apart", "kv_together", "layers_together"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with qkv.Engine("cuda", cache_dir=str(tmp_path_factory.mktemp("cache"))) as engine:
        yield engine


@pytest.fixture(scope="module")
def op(engine):
    return engine.prepare(qkv.Spec(DENSE))


def as_torch(tensor):
    """A bf16 view of a pool's tensor. Its first byte must be mapped, for torch asks the driver what lies there, and nothing
    of it may be touched that is not."""
    return torch.as_tensor(tensor, device="cuda").view(torch.bfloat16)


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16).cuda()


def assert_right(spec, q, k, v, o):
    want = qkv.reference(spec, q.cpu(), k.cpu(), v.cpu())
    error = ((o.cpu().float() - want).norm() / want.norm()).item()
    assert error < 1e-2, "relative L2 error %g" % error


def test_addresses_cost_no_memory(engine):
    """Four times the GPU's memory is reserved; only what is mapped is missing afterwards, and it comes back."""
    before, page_bytes = free_bytes(), 16 * HEADS_KV * 2 * DIM * 2
    blocks = 4 * engine.device.memory_bytes // page_bytes
    with qkv.Pool(engine, PAGED, blocks=blocks) as pool:
        info = pool.info
        assert info.granule % (64 << 10) == 0 and info.page_bytes == page_bytes
        assert info.reserved >= 4 * engine.device.memory_bytes * 0.99 and info.mapped == 0
        assert before - free_bytes() < 64 * MIB  # page tables at most
        taken = pool.alloc(256 * MIB // page_bytes)
        assert taken == list(range(len(taken))) and pool.info.mapped == 256 * MIB
        assert 256 * MIB <= before - free_bytes() < 320 * MIB
        pool.release(taken)
        assert pool.info.idle == 256 * MIB
        assert pool.trim() == 256 * MIB and pool.info.mapped == 0
        assert before - free_bytes() < 64 * MIB
    assert before - free_bytes() < 64 * MIB


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_blocks_hold_what_is_written(engine, placement):
    with qkv.Pool(engine, PAGED, layers=3, blocks=100000, placement=placement) as pool:
        assert pool.alloc() == [0]
        tensors = [as_torch(tensor) for layer in range(3) for tensor in pool.tensors(layer)]
        written = {}
        for count in (1, 700, 5000):
            for block in pool.alloc(count)[::97]:
                for number, tensor in enumerate(tensors):
                    written[block, number] = float((block * 6 + number) % 251)
                    tensor[block] = written[block, number]
        torch.cuda.synchronize()
        for (block, number), value in written.items():
            assert (tensors[number][block] == value).all(), "block %d of tensor %d" % (block, number)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_slots_grow_in_place_and_kernels_read_them(engine, op, placement):
    """Two sequences grow; what stood there stays, and a call reads all of it."""
    k, v = draw(2, 5000, HEADS_KV, DIM), draw(2, 5000, HEADS_KV, DIM, seed=2)
    with qkv.Pool(engine, DENSE, layers=2, slots=4, max_len=1 << 20, placement=placement) as pool:
        before = 0
        for length in (1, 63, 64, 700, 5000):
            for slot in range(2):
                pool.resize(slot, length)
            views = pool.tensors(1, slots=2, len_k=length)
            for view, values in zip(views, (k, v)):
                as_torch(view)[:, before:] = values[:, before:length]
            q = draw(2, min(length, 33), HEADS_Q, DIM, seed=length)
            assert_right(op.spec, q, k[:, :length], v[:, :length], op(q, *views))
            before = length
        assert pool.info.tokens == 10000


def test_graphs_replay_over_memory_that_came_later(engine, op):
    """A captured call reads addresses; memory may be mapped behind it, and during the capture, without ending either."""
    length, q = 3000, draw(1, 16, HEADS_Q, DIM)
    k, v = draw(1, length, HEADS_KV, DIM), draw(1, length, HEADS_KV, DIM, seed=2)
    with qkv.Pool(engine, DENSE, slots=2, max_len=1 << 20) as pool:
        views = pool.tensors(slots=1, len_k=length)
        pool.resize(0, 10)  # not all the graph will read
        o = torch.zeros_like(q)
        launch = op.bind(q, *views, out=o)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            launch(stream=torch.cuda.current_stream())
            pool.resize(1, 100000)
        pool.resize(0, length)
        for view, values in zip(views, (k, v)):
            as_torch(view)[:] = values
        graph.replay()
        torch.cuda.synchronize()
        assert_right(op.spec, q, k, v, o)
        pool.resize(1, 0)
        assert pool.trim() > 0  # of the other slot; this one's memory stays where it is
        graph.replay()
        torch.cuda.synchronize()
        assert_right(op.spec, q, k, v, o)


def test_a_full_device_is_an_error_and_nothing_more(engine):
    """More than the GPU has is asked for, by large granules: refused, all given back, and the pool goes on."""
    before, page_bytes = free_bytes(), 16 * HEADS_KV * 2 * DIM * 2
    blocks = 2 * engine.device.memory_bytes // page_bytes
    with qkv.Pool(engine, PAGED, blocks=blocks, granule=1 << 30) as pool:
        with pytest.raises(qkv.Error, match="the device refuses more: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY") as raised:
            pool.alloc(blocks)
        assert raised.value.status == qkv.OUT_OF_MEMORY
        assert pool.info.mapped == 0 and before - free_bytes() < 64 * MIB
        assert pool.alloc(2) == [0, 1]
        as_torch(pool.tensors()[0])[0] = 1
    with qkv.Pool(engine, PAGED, blocks=4000, max_bytes=8 * MIB) as pool:
        with pytest.raises(qkv.Error, match="of options.max_bytes, 8388608, 0 are mapped"):
            pool.alloc(4000)


def test_threads(engine):
    """Threads take and give blocks of one pool, without a context of their own; no block has two takers."""
    errors = []

    def work(number, pool, tensor):
        try:
            for _ in range(200):
                blocks = pool.alloc(1 + number)
                for block in blocks:
                    tensor[block] = number
                torch.cuda.synchronize()
                if any((tensor[block] != number).any() for block in blocks):
                    errors.append("thread %d saw another's block" % number)
                pool.release(blocks)
        except Exception as error:
            errors.append(str(error))

    with qkv.Pool(engine, PAGED, blocks=5000) as pool:
        first = pool.alloc()
        tensor = as_torch(pool.tensors()[0])
        threads = [threading.Thread(target=work, args=(number, pool, tensor)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
        pool.release(first)
        assert pool.info.blocks_used == 0


def test_every_device(tmp_path):
    """A pool lies on its engine's device, whichever is current."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    with qkv.Engine("cuda:1", cache_dir=str(tmp_path)) as second, torch.cuda.device(0):
        free = torch.cuda.mem_get_info(1)[0]
        with qkv.Pool(second, PAGED, blocks=100000) as pool:
            pool.alloc(20000)
            k = torch.as_tensor(pool.tensors()[0], device="cuda:1").view(torch.bfloat16)
            k[19999] = 3
            torch.cuda.synchronize(1)
            assert (k[19999] == 3).all() and free - torch.cuda.mem_get_info(1)[0] >= pool.info.used


def test_what_mapping_costs(engine):
    """Printed, with whether the calls wait for a kernel that runs; only a gross loss fails."""
    granules, page_bytes = 64, 16 * HEADS_KV * 2 * DIM * 2
    for granule in (0, 32 * MIB):
        with qkv.Pool(engine, PAGED, blocks=1 << 20, placement="kv_together", granule=granule) as pool:
            size = pool.info.granule
            for busy in (False, True):
                torch.cuda.synchronize()
                if busy:
                    torch.cuda._sleep(2_000_000_000)  # about a second
                start = time.perf_counter()
                blocks = pool.alloc(granules * size // page_bytes)
                mapped = time.perf_counter()
                pool.release(blocks)
                pool.trim()
                end = time.perf_counter()
                print("granules of %d MiB, %s: map %.1f us, unmap %.1f us each" % (
                    size // MIB, "beside a kernel" if busy else "idle", (mapped - start) / granules * 1e6,
                    (end - mapped) / granules * 1e6))
                torch.cuda.synchronize()
                assert busy or (end - start) / granules < 20e-3
