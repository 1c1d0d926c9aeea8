"""Calls of every kind in CUDA graphs: captured once, replayed with other lengths, pages and parameters in device memory,
and compared with the f64 reference every time. Also what a call costs on the host. Needs PyTorch and a GPU; skipped
elsewhere.

    python -m pytest -s tests/gpu/test_graphs.py      # -s: also prints the host time of a call
"""

import pathlib
import sys
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

HEADS_Q, HEADS_KV, DIM, PAGE, BATCH, MAX_K = 8, 2, 64, 16, 5, 700
TEXT = """qkvc: 1
name: gpu_graphs
attention:
  heads: {q: 8, kv: 2}
  dim: 64
  dtype: bf16
%s
layout: {q: %s, kv: %s}
outputs: [o, lse]
"""
CAUSAL = "  mask: causal"
DOCUMENTS = """  mask: doc[b, q] == doc[b, k] and k <= q
  params:
    doc: {type: i32, shape: [b, len_k]}"""
PAGED = "{paged: {page: 16, order: nhd, table: rows}}"
# Lengths of the keys, replay by replay; slots of length 0 are padding.
LENGTHS = [(700, 1, 64, 333, 17), (3, 0, 0, 0, 0), (0, 0, 0, 0, 0), (128, 700, 700, 0, 129)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with qkv.Engine("cuda", cache_dir=str(tmp_path_factory.mktemp("cache"))) as engine:
        yield engine


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16).cuda()


def fill(*shape, dtype=None):
    return torch.full(shape, float("nan"), dtype=dtype or torch.bfloat16, device="cuda")


def capture(launch):
    launch(stream=torch.cuda.current_stream())  # as engines do: once before, for libraries that need it; ours does not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        launch(stream=torch.cuda.current_stream())
    return graph


def alone(q, k, v, mask=CAUSAL, **params):
    """The reference of one sequence: o [len_q, heads, dim], lse [heads, len_q]."""
    spec = qkv.Spec(TEXT % (mask, "dense", "dense"))
    o, lse = qkv.reference(spec, q[None].cpu(), k[None].cpu(), v[None].cpu(), **params)
    return o[0], lse[0]


def assert_close(what, o, lse, want_o, want_lse):
    o, lse = o.cpu().float(), lse.cpu()
    assert torch.equal(torch.isinf(lse), torch.isinf(want_lse)), "%s: rows without keys" % what
    finite = ~torch.isinf(want_lse)
    assert torch.allclose(lse[finite], want_lse[finite], rtol=2e-3, atol=2e-3), "%s: lse" % what
    error = (o - want_o).norm().item()
    assert error <= 1e-2 * max(want_o.norm().item(), 1e-3), "%s: o is off by %g" % (what, error)


# ---- Decode: one query a sequence ----

@pytest.mark.parametrize("len_q", [1, 4])
@pytest.mark.parametrize("kv", ["padded", PAGED], ids=["padded", "paged"])
def test_decode(engine, kv, len_q):
    """An op of two phases; lengths and page tables change between replays, padded slots come and go."""
    spec, paged = qkv.Spec(TEXT % (CAUSAL, "dense", kv)), kv == PAGED
    op = engine.prepare(spec, batch=BATCH, len_q=512, len_k=MAX_K)
    columns = -(-MAX_K // PAGE)
    q, dense_k, dense_v = draw(BATCH, len_q, HEADS_Q, DIM), *(draw(BATCH, MAX_K, HEADS_KV, DIM, seed=n) for n in (2, 3))
    lengths = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
    out = {"out": fill(BATCH, len_q, HEADS_Q, DIM), "lse": fill(BATCH, HEADS_Q, len_q, dtype=torch.float32)}
    if paged:
        k, v = (fill(BATCH * columns + 1, PAGE, HEADS_KV, DIM) for _ in range(2))
        table = torch.zeros(BATCH, columns, dtype=torch.int32, device="cuda")
        launch = op.bind(q, k, v, seqlens_k=lengths, page_table=table, **out)
    else:
        k, v = fill(BATCH, MAX_K, HEADS_KV, DIM), fill(BATCH, MAX_K, HEADS_KV, DIM)
        launch = op.bind(q, k, v, seqlens_k=lengths, **out)
    graph, compiles = capture(launch), engine.counters.compiles
    for step, now in enumerate(LENGTHS):
        k.fill_(float("nan")), v.fill_(float("nan"))
        if paged:
            table.fill_(0x7fffffff)  # behind the ends
            free = (torch.randperm(BATCH * columns, generator=torch.Generator().manual_seed(step)) + 1).tolist()
        for b, length in enumerate(now):
            if not paged:
                k[b, :length], v[b, :length] = dense_k[b, :length], dense_v[b, :length]
                continue
            for n in range(-(-length // PAGE)):
                page, own = free.pop(), slice(n * PAGE, min((n + 1) * PAGE, length))
                table[b, n] = page
                k[page, :own.stop - own.start], v[page, :own.stop - own.start] = dense_k[b, own], dense_v[b, own]
        q.copy_(draw(BATCH, len_q, HEADS_Q, DIM, seed=100 + step))
        lengths.copy_(torch.tensor(now, dtype=torch.int32))
        for tensor in out.values():
            tensor.fill_(float("nan"))
        for _ in range(3):  # counters are as they were afterwards
            graph.replay()
        torch.cuda.synchronize()
        for b, length in enumerate(now):
            want = alone(q[b], dense_k[b, :length], dense_v[b, :length])
            assert_close("step %d, sequence %d" % (step, b), out["out"][b], out["lse"][b], *want)
    assert engine.counters.compiles == compiles


# ---- Prefill: chunks of many queries ----

CHUNKS = [((200, 1, 0, 300, 64), (700, 1, 64, 333, 64)), ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
          ((1, 1, 1, 1, 1), (5, 700, 0, 2, 1)), ((300, 300, 0, 0, 1), (300, 299, 100, 0, 129))]
TOKENS_Q, TOKENS_K, MAX_Q = 640, 1400, 300


@pytest.mark.parametrize("kv", ["ragged", PAGED], ids=["ragged", "paged"])
def test_chunked_prefill(engine, kv):
    """Packed queries; starts, lengths and page tables change between replays. Rows of no sequence stay as they are."""
    op = engine.prepare(qkv.Spec(TEXT % (CAUSAL, "ragged", kv)), batch=BATCH, len_q=MAX_Q, len_k=MAX_K)
    paged, columns = kv == PAGED, -(-MAX_K // PAGE)
    q = draw(TOKENS_Q, HEADS_Q, DIM)
    out = {"out": fill(TOKENS_Q, HEADS_Q, DIM), "lse": fill(HEADS_Q, TOKENS_Q, dtype=torch.float32)}
    cu_q, cu_k = (torch.zeros(BATCH + 1, dtype=torch.int32, device="cuda") for _ in range(2))
    lengths = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
    rows = BATCH * columns + 1
    k, v = (fill(rows, PAGE, HEADS_KV, DIM) if paged else fill(TOKENS_K, HEADS_KV, DIM) for _ in range(2))
    table = torch.zeros(BATCH, columns, dtype=torch.int32, device="cuda")
    arrays = dict(seqlens_k=lengths, page_table=table) if paged else dict(cu_seqlens_k=cu_k)
    launch = op.bind(q, k, v, cu_seqlens_q=cu_q, max_len_q=MAX_Q, max_len_k=MAX_K, **arrays, **out)  # has the workspace
    graph = capture(launch)
    for step, (lens_q, lens_k) in enumerate(CHUNKS):
        k.fill_(float("nan")), v.fill_(float("nan")), table.fill_(-1)
        for tensor in out.values():
            tensor.fill_(float("nan"))
        parts = [[draw(n, HEADS_KV, DIM, seed=1000 * step + 10 * b + t) for t in (1, 2)] for b, n in enumerate(lens_k)]
        starts_q, starts_k = ([0] + torch.tensor(n).cumsum(0).tolist() for n in (lens_q, lens_k))
        free = list(range(1, rows))[::-1 if step % 2 else 1]
        for b, part in enumerate(parts):
            if not paged:
                for tensor, own in zip((k, v), part):
                    tensor[starts_k[b]:starts_k[b + 1]] = own
                continue
            for n in range(-(-lens_k[b] // PAGE)):
                page = table[b, n] = free.pop()
                for tensor, own in zip((k, v), part):
                    own = own[n * PAGE:(n + 1) * PAGE]
                    tensor[page, :len(own)] = own
        cu_q.copy_(torch.tensor(starts_q, dtype=torch.int32))
        cu_k.copy_(torch.tensor(starts_k, dtype=torch.int32))
        lengths.copy_(torch.tensor(lens_k, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        for b in range(BATCH):
            own = slice(starts_q[b], starts_q[b + 1])
            if lens_q[b]:
                want = alone(q[own], *parts[b])
                assert_close("step %d, sequence %d" % (step, b), out["out"][own], out["lse"][:, own], *want)
        assert torch.isnan(out["out"][starts_q[-1]:]).all() and torch.isnan(out["lse"][:, starts_q[-1]:]).all()


# ---- Dense, with tickets and with plans ----

@pytest.mark.parametrize("mask", [CAUSAL, DOCUMENTS], ids=["causal", "documents"])
def test_dense(engine, mask):
    """Inputs, and documents from which a map of tiles is planned, change between replays: every replay plans anew."""
    documents = mask == DOCUMENTS
    op = engine.prepare(qkv.Spec(TEXT % (mask, "dense", "dense")), batch=2, len_q=500, len_k=500)
    q, k, v = draw(2, 500, HEADS_Q, DIM), draw(2, 500, HEADS_KV, DIM, seed=2), draw(2, 500, HEADS_KV, DIM, seed=3)
    doc = torch.zeros(2, 500, dtype=torch.int32, device="cuda")
    out = {"out": fill(2, 500, HEADS_Q, DIM), "lse": fill(2, HEADS_Q, 500, dtype=torch.float32)}
    launch = op.bind(q, k, v, **out, **({"doc": doc} if documents else {}))  # has the workspace
    graph = capture(launch)
    for step, cuts in enumerate([(), (100, 101, 350), (7,), (250, 499)]):
        for n, tensor in enumerate((q, k, v)):
            tensor.copy_(draw(*tensor.shape, seed=10 * step + n))
        labels = sum((torch.arange(500) >= cut).int() for cut in cuts) if cuts else torch.zeros(500)
        doc.copy_(torch.stack([labels, labels.flip(0)]))
        for tensor in out.values():
            tensor.fill_(float("nan"))
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        for b in range(2):
            params = {"doc": doc[b:b + 1].cpu()} if documents else {}
            assert_close("step %d, entry %d" % (step, b), out["out"][b], out["lse"][b],
                         *alone(q[b], k[b], v[b], mask, **params))


def test_a_cascade(engine):
    """Two parts of the keys and their merge in one graph, the merge in place."""
    full = "  mask: true"
    spec = qkv.Spec(TEXT % (full, "dense", "dense"))
    op, merge = engine.prepare(spec), engine.prepare(spec, phase="merge")
    q, k, v = draw(2, 70, HEADS_Q, DIM), draw(2, 300, HEADS_KV, DIM, seed=2), draw(2, 300, HEADS_KV, DIM, seed=3)
    states = [(fill(2, 70, HEADS_Q, DIM), fill(2, HEADS_Q, 70, dtype=torch.float32)) for _ in range(2)]
    launches = [op.bind(q, k[:, keys], v[:, keys], out=o, lse=lse)
                for keys, (o, lse) in zip((slice(0, 130), slice(130, 300)), states)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        stream = torch.cuda.current_stream()
        for launch in launches:
            launch(stream=stream)
        merge.merge(states, out=states[0][0], lse=states[0][1], stream=stream)
    for seed in (5, 6):
        q.copy_(draw(*q.shape, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        for b in range(2):
            assert_close("seed %d, entry %d" % (seed, b), states[0][0][b], states[0][1][b],
                         *alone(q[b], k[b], v[b], full))


# ---- What a capture forbids ----

def test_refusals_leave_the_capture_whole(engine, tmp_path):
    """Timing and debug checks inside of a capture are refused by status, and the graph still replays."""
    spec = qkv.Spec(TEXT % (CAUSAL, "dense", "dense"))
    q, k, v = draw(1, 64, HEADS_Q, DIM), draw(1, 64, HEADS_KV, DIM, seed=2), draw(1, 64, HEADS_KV, DIM, seed=3)
    op = engine.prepare(spec)
    launch = op.bind(q, k, v)
    want = [tensor.clone() for tensor in launch(stream=torch.cuda.current_stream())]
    with qkv.Engine("cuda", cache_dir=engine.cache_path, debug_checks=True) as careful:
        checked = careful.prepare(spec).bind(q, k, v)
        checked(stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            stream = torch.cuda.current_stream()
            timed = op.bind(q, k, v, out=launch.result[0], lse=launch.result[1], stream=stream)
            for refused in (lambda: checked(stream=stream), timed.time):
                with pytest.raises(qkv.Error) as error:
                    refused()
                assert error.value.status == qkv.CAPTURING
            launch(stream=stream)
        for tensor in launch.result:
            tensor.fill_(0)
        graph.replay()
        torch.cuda.synchronize()
        for got, expected in zip(launch.result, want):
            assert torch.equal(got, expected)


def test_debug_checks_name_what_is_wrong(engine):
    spec = qkv.Spec(TEXT % (CAUSAL, "dense", PAGED))
    with qkv.Engine("cuda", cache_dir=engine.cache_path, debug_checks=True) as careful:
        op = careful.prepare(spec, batch=2, len_q=1, len_k=64)
        q, k, v = draw(2, 1, HEADS_Q, DIM), draw(8, PAGE, HEADS_KV, DIM), draw(8, PAGE, HEADS_KV, DIM)
        lengths = torch.tensor([64, 20], dtype=torch.int32, device="cuda")
        table = torch.arange(8, dtype=torch.int32, device="cuda").reshape(2, 4)
        launch = op.bind(q, k, v, seqlens_k=lengths, page_table=table)
        launch()
        table[1, 3] = -5  # behind the end
        launch()
        table[1, 1] = 8
        with pytest.raises(qkv.Error, match="page 1 of sequence 1 .* is number 8, must be 0 to 7"):
            launch()
        table[1, 1], lengths[0] = 5, 65
        with pytest.raises(qkv.Error, match=r"seqlens_k\[0\]: is 65"):
            launch()
        lengths[0] = 64
        pageable = torch.empty(2, dtype=torch.int32)  # of the host, unknown to the driver
        address = launch._call.args.seqlens_k.data
        launch._call.args.seqlens_k.data = pageable.data_ptr()
        with pytest.raises(qkv.Error, match="seqlens_k: 0x.* is no memory of a GPU"):
            launch()
        launch._call.args.seqlens_k.data = address
        launch()


# ---- The host ----

@pytest.mark.parametrize("kind", ["prefill", "decode", "paged"])
def test_host_time_of_a_call(engine, kind):
    """Reported, not judged: the C call alone, without Python's part, through a queue that never fills."""
    import ctypes
    layout = ("dense", "dense") if kind == "prefill" else ("dense", PAGED if kind == "paged" else "padded")
    op = engine.prepare(qkv.Spec(TEXT % (CAUSAL, *layout)), batch=2, len_q=128, len_k=64)
    q = draw(2, 64 if kind == "prefill" else 1, HEADS_Q, DIM)
    k, v = (draw(*((8, PAGE) if kind == "paged" else (2, 64)), HEADS_KV, DIM, seed=n) for n in (2, 3))
    arrays = {}
    if kind != "prefill":
        arrays["seqlens_k"] = torch.full((2,), 64, dtype=torch.int32, device="cuda")
    if kind == "paged":
        arrays["page_table"] = torch.arange(8, dtype=torch.int32, device="cuda").reshape(2, 4)
    launch = op.bind(q, k, v, **arrays)
    call, handle, args = qkv.lowlevel.libqkv().qkv_attention, op.handle, ctypes.byref(launch._call.args)
    stream, best = torch.cuda.current_stream().cuda_stream, float("inf")
    noop = qkv.lowlevel.libqkv().qkv_status_name
    for _ in range(50):  # batches short enough for the driver's queue
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call(handle, args, stream)
        middle = time.perf_counter()
        for _ in range(200):
            noop(0)
        end = time.perf_counter()
        best = min(best, ((middle - start) - (end - middle)) / 200)
    print("%s: %.2f us a call on the host" % (kind, best * 1e6))
    assert best > 0
