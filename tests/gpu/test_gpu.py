"""What only a GPU can show: graph capture, streams, threads, lifetime, several devices. Needs PyTorch and a GPU; skipped
elsewhere. Finds libqkv as the Python package does ($QKV_LIBRARY first).

    python -m pytest tests/gpu
"""

import os
import pathlib
import subprocess
import sys
import threading

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

TEXT = """qkvc: 1
name: gpu_%(dim)d
attention:
  heads: {q: 8, kv: 2}
  dim: %(dim)d
  dtype: bf16
  mask: causal
outputs: [o, lse]
"""
HEADS_Q, HEADS_KV, DIM = 8, 2, 64


def spec_text(dim=DIM):
    return TEXT % {"dim": dim}


def draw(batch, len_q, len_k, dim=DIM, device="cuda", seed=1):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, len_q, HEADS_Q, dim), (batch, len_k, HEADS_KV, dim), (batch, len_k, HEADS_KV, dim))
    return [torch.randn(shape, generator=generator).to(torch.bfloat16).to(device) for shape in shapes]


def outputs(q):
    batch, length, heads, _ = q.shape
    o = torch.full_like(q, float("nan"))
    return {"out": o, "lse": torch.full((batch, heads, length), float("nan"), device=q.device)}


def assert_right(spec, q, k, v, o):
    """o within bf16 rounding of the f64 reference."""
    want = qkv.reference(spec, q.cpu(), k.cpu(), v.cpu())[0]
    error = ((o.cpu().float() - want).norm() / want.norm()).item()
    assert error < 1e-2, "relative L2 error %g" % error


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with qkv.Engine("cuda", cache_dir=str(tmp_path_factory.mktemp("cache"))) as engine:
        yield engine


@pytest.fixture(scope="module")
def spec():
    return qkv.Spec(spec_text())


@pytest.fixture(scope="module")
def op(engine, spec):
    return engine.prepare(spec)


# ---- Graphs ----

@pytest.mark.parametrize("batch, len_q, len_k", [(1, 128, 128), (2, 1, 777), (1, 300, 1000), (3, 65, 64), (1, 1, 1)])
def test_captured_equals_eager(engine, spec, op, batch, len_q, len_k):
    """One op, captured anew for other lengths; replays see the inputs of their time."""
    q, k, v = draw(batch, len_q, len_k)
    captured, eager = outputs(q), outputs(q)
    launch, plain = op.bind(q, k, v, **captured), op.bind(q, k, v, **eager)
    compiles = engine.counters.compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(stream=torch.cuda.current_stream())
    for seed in (2, 3):
        for tensor, fresh in zip((q, k, v), draw(batch, len_q, len_k, seed=seed)):
            tensor.copy_(fresh)
        graph.replay()
        plain(stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        for name in ("out", "lse"):
            assert torch.equal(captured[name], eager[name]), "%s differs at seed %d" % (name, seed)
        if len_q <= len_k:
            assert_right(spec, q, k, v, captured["out"])
    assert engine.counters.compiles == compiles


def test_preparing_inside_a_capture_leaves_it_whole(op, tmp_path):
    """A first use while this thread captures, in the strictest mode: it works or is refused, and what is captured before
    and after it replays."""
    q, k, v = draw(1, 64, 64)
    before, after, eager = outputs(q), outputs(q), outputs(q)
    first, second = op.bind(q, k, v, **before), op.bind(q, k, v, **after)
    op.bind(q, k, v, **eager)()
    with qkv.Engine("cuda", cache_dir=str(tmp_path)) as cold:
        cold.build(spec_text(96))  # compiled; what is left for the capture is loading
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            first(stream=torch.cuda.current_stream())
            try:
                cold.prepare(spec_text(96), aligned_only=True).close()
            except qkv.Error as error:
                print("refused:", error)
            second(stream=torch.cuda.current_stream())
        graph.replay()
        torch.cuda.synchronize()
    for made in (before, after):
        assert torch.equal(made["out"], eager["out"]) and torch.equal(made["lse"], eager["lse"])


def test_preparing_beside_a_capture(op, tmp_path):
    """Another thread prepares while this one captures."""
    q, k, v = draw(1, 64, 64)
    made, eager = outputs(q), outputs(q)
    launch = op.bind(q, k, v, **made)
    op.bind(q, k, v, **eager)()
    failures = []

    def prepare():
        try:
            with qkv.Engine("cuda", cache_dir=str(tmp_path)) as other:
                other.prepare(spec_text(80)).close()
        except Exception as error:  # shown by the assertion below
            failures.append(error)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        thread = threading.Thread(target=prepare)
        thread.start()
        thread.join()
        launch(stream=torch.cuda.current_stream())
    graph.replay()
    torch.cuda.synchronize()
    assert not failures
    assert torch.equal(made["out"], eager["out"])


# ---- Streams and threads ----

def test_runs_on_the_stream_it_is_given(spec, op):
    """The inputs are written late on a side stream: a launch on any other stream reads them too early."""
    right, late = draw(1, 200, 200, seed=5), draw(1, 200, 200, seed=6)
    made = outputs(late[0])
    launch = op.bind(*late, **made)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for tensor, fresh in zip(late, right):
            tensor.copy_(fresh, non_blocking=True)
        launch(stream=stream)
    stream.synchronize()
    assert_right(spec, *right, made["out"])


def test_two_streams_at_once(op):
    q, k, v = draw(2, 500, 500)
    want = outputs(q)
    op.bind(q, k, v, **want)()
    torch.cuda.synchronize()
    streams, made = [torch.cuda.Stream() for _ in range(2)], [outputs(q) for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, result in zip(streams, made):
            op.bind(q, k, v, stream=stream, **result)()
    torch.cuda.synchronize()
    for result in made:
        assert torch.equal(result["out"], want["out"]) and torch.equal(result["lse"], want["lse"])


def run_in_threads(works):
    """Runs functions in threads of their own; raises the first failure."""
    failures = []

    def guarded(work):
        try:
            work()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_a_thread_without_a_context(op):
    q, k, v = draw(1, 100, 100)
    made, want = outputs(q), outputs(q)
    launch, plain = op.bind(q, k, v, stream=0, **made), op.bind(q, k, v, **want)
    torch.cuda.synchronize()
    run_in_threads([launch])
    plain()
    torch.cuda.synchronize()
    assert torch.equal(made["out"], want["out"])


def test_kernels_of_unlike_shared_memory_from_two_threads(engine):
    """The limit of dynamic shared memory is a kernel's own and is set once: a small one never lowers it for a large one."""
    pairs = []
    for dim in (32, 256):
        op, (q, k, v) = engine.prepare(spec_text(dim)), draw(1, 257, 257, dim)
        made, want = outputs(q), outputs(q)
        op.bind(q, k, v, **want)()
        pairs.append((op.bind(q, k, v, stream=0, **made), made, want))
    torch.cuda.synchronize()
    run_in_threads([lambda launch=launch: [launch() for _ in range(300)] for launch, _, _ in pairs])
    torch.cuda.synchronize()
    for _, made, want in pairs:
        assert torch.equal(made["out"], want["out"])


# ---- Memory ----

def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def test_memory_is_flat_over_prepare_and_free(engine, spec):
    for _ in range(10):
        engine.prepare(spec).close()
    before = free_bytes()
    for _ in range(200):
        engine.prepare(spec).close()
    assert before - free_bytes() < 8 << 20


def test_memory_is_flat_over_engines(engine, spec):
    def cycle():
        with qkv.Engine("cuda", cache_dir=engine.cache_path) as other:
            other.prepare(spec)
    for _ in range(3):
        cycle()
    before = free_bytes()
    for _ in range(20):
        cycle()
    assert before - free_bytes() < 8 << 20


# ---- Layouts ----

LAYOUTS = {
    "heads before tokens": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "batch inside": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "every second element": lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
    "every third token": lambda x: x.repeat_interleave(3, dim=1)[:, ::3],
    "a slice of a packed tensor": lambda x: torch.cat([x, x, x], dim=3)[..., x.shape[3]:2 * x.shape[3]],
    "one element off": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "rows of odd pitch": lambda x: torch.nn.functional.pad(x, (0, 3))[..., :x.shape[3]],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("which", ["q", "k", "v", "all"])
def test_strides(spec, op, name, which):
    contiguous = dict(zip("qkv", draw(2, 33, 65)))
    tensors = {key: LAYOUTS[name](x) if which in (key, "all") else x for key, x in contiguous.items()}
    for key, x in tensors.items():
        assert torch.equal(x, contiguous[key])
    o, _ = op(tensors["q"], tensors["k"], tensors["v"])
    assert_right(spec, *contiguous.values(), o)


def test_expanded_heads_and_batch(spec, op):
    """Strides of 0 in K and V equal the repeated copy."""
    q, k, v = draw(3, 40, 70)
    k, v = (x[:1, :, :1].expand(3, -1, HEADS_KV, -1) for x in (k, v))
    o, _ = op(q, k, v)
    assert_right(spec, q, k.contiguous(), v.contiguous(), o)


def test_outputs_with_strides(spec, op):
    q, k, v = draw(2, 33, 65)
    store = torch.full((2, HEADS_Q, 40, DIM + 8), float("nan"), dtype=torch.bfloat16, device="cuda")
    out = store[:, :, 3:36, :DIM].transpose(1, 2)
    op(q, k, v, out=out)
    torch.cuda.synchronize()
    assert_right(spec, q, k, v, out)
    out.fill_(float("nan"))
    assert store.isnan().all(), "something outside the output was written"


def test_memory_of_the_host_is_refused_or_staged(spec, op):
    q, k, v = (x.cpu() for x in draw(1, 20, 20))
    o, _ = op(q, k, v)
    assert o.device.type == "cpu"
    assert_right(spec, q, k, v, o)


# ---- Processes ----

PROGRAM = """
import sys
sys.path.insert(0, %r)
import qkv
TEXT = %r
def run():
    import torch
    q = torch.ones(1, 16, 8, 64, dtype=torch.bfloat16, device="cuda")
    k = torch.ones(1, 16, 2, 64, dtype=torch.bfloat16, device="cuda")
    o, lse = qkv.load(TEXT, "cuda")(q, k, k)
    torch.cuda.synchronize()
    assert (o == 1).all()
"""


def run_program(body):
    program = PROGRAM % (str(PACKAGE), spec_text()) + body
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, "exit code %d\n%s%s" % (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("body", [
    "run()",                                                       # the package closes its handles at exit
    "import atexit; run(); [e._finalizer.detach() for e in qkv._engine._engines.values()]",  # nobody closes them
    "import threading; t = threading.Thread(target=run); t.start(); t.join()",
    "run(); qkv._engine._engines['cuda'].close(); run_again = qkv.Engine('cuda'); run_again.prepare(TEXT)",
])
def test_exit_with_live_handles(body):
    run_program(body)


def test_fork_before_the_first_use():
    """A process that has loaded the library and checked a spec, but not touched CUDA, may fork; both sides then work."""
    run_program("""
import os
qkv.Spec(TEXT)
child = os.fork()
run()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
""")


# ---- Several devices ----

@pytest.mark.skipif(not have_gpu or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(spec):
    """The op's device counts, not the current one, which stays as it was; tensors of the other device are refused."""
    with qkv.Engine("cuda:0") as zero, qkv.Engine("cuda:1") as one:
        ops = [zero.prepare(spec), one.prepare(spec)]
        for current in (0, 1):
            torch.cuda.set_device(current)
            for device in (0, 1):
                q, k, v = draw(1, 90, 90, device="cuda:%d" % device)
                torch.cuda.synchronize(device)
                o, _ = ops[device](q, k, v)
                torch.cuda.synchronize(device)
                assert torch.cuda.current_device() == current
                assert_right(spec, q, k, v, o)
                with pytest.raises(qkv.Error) as refused:
                    ops[1 - device](q, k, v)
                assert "cuda:%d" % device in str(refused.value)
        torch.cuda.set_device(0)
