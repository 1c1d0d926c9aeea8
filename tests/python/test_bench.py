"""The parts of the benchmark that need neither torch nor a GPU; its clockwork against a torch whose GPU is a number;
and, where there is torch, all of it on the emulator."""

import csv
import math
import pathlib
import re
import subprocess
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import qkv  # noqa: E402
from bench import check, machine, peers, probe, report, rounds, shapes, stats, sweep, timing  # noqa: E402
from bench import compile as compiling  # noqa: E402


# ---- Shapes ---------------------------------------------------------------------------------------------------------

def test_grids_hold_what_they_promise():
    sizes = {name: len(grid.shapes) for name, grid in shapes.GRIDS.items()}
    assert sizes == {"dense": 3 * 6 * 2, "gqa": 5 * 2, "mla": 3, "dims": 10 * 2}
    for shape in shapes.GRIDS["dense"].shapes:
        assert (shape.batch * shape.len_q, shape.heads_q * shape.dim_qk) == (16384, 2048)
    assert {(s.heads_q, s.heads_kv, s.dim_qk, s.batch) for s in shapes.GRIDS["gqa"].shapes} == {(64, 8, 128, 1)}
    assert {(s.heads_q, s.heads_kv, s.dim_qk, s.dim_v, s.mask) for s in shapes.GRIDS["mla"].shapes} == {
        (128, 128, 192, 128, "causal")}
    assert set(shapes.GRIDS["dims"].tuned) < {s.dim_qk for s in shapes.GRIDS["dims"].shapes}
    for grid in shapes.GRIDS.values():
        assert len({shape.name for shape in grid.shapes}) == len(grid.shapes)


@pytest.mark.parametrize("name", shapes.GRIDS)
def test_every_shape_of_a_grid_is_a_valid_spec(name):
    for shape in shapes.GRIDS[name].shapes:
        with qkv.Spec(shape.spec()) as spec:
            assert (spec.heads_q, spec.heads_kv) == (shape.heads_q, shape.heads_kv)
            assert (spec.dim_qk, spec.dim_v) == (shape.dim_qk, shape.dim_v)


# ---- Statistics -----------------------------------------------------------------------------------------------------

def test_statistics():
    assert stats.spread([3.0]) == (3.0, 3.0, 3.0)
    assert stats.spread([float(n) for n in range(11)][::-1]) == (5.0, 1.0, 9.0)
    assert stats.quantile([1.0, 2.0], 0.25) == 1.25
    assert stats.geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)
    assert stats.paired_ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError):
        stats.paired_ratios([1.0], [1.0, 2.0])


def test_interpolation_stays_between_its_points():
    points = {64: 400.0, 128: 600.0, 192: 580.0}
    assert stats.interpolate(points, 96) == 500.0
    assert stats.interpolate(points, 128) == 600.0
    assert stats.interpolate(points, 160) == 590.0
    assert stats.interpolate(points, 48) is None and stats.interpolate(points, 256) is None


# ---- Sweep files ----------------------------------------------------------------------------------------------------

def test_a_sweep_file():
    found = sweep.parse("""
# comment
d128 t1024 full | tile_m=128, tile_n={96,128}   # trailing comment
d128 full t1024 | default
d{64,96} {full,causal} b2 | stages=2
d192/128 h128 b1 t8192 causal | default
h64/8 d128 t2048 k4096 f16 full | x=1
specs/a_b.yaml:decode | tile_n=64
""", hidden=2048, tokens=16384)
    known = list(found.items())
    assert known[0] == (shapes.Shape(16, 1024, 1024, 16, 16, 128, 128, "bf16", "full"),
                        ["tile_m=128,tile_n=96", "tile_m=128,tile_n=128", None])
    assert [(s.dim_qk, s.mask, s.batch, s.heads_q, s.len_q) for s, _ in known[1:5]] == [
        (64, "full", 2, 32, 4096), (64, "causal", 2, 32, 4096), (96, "full", 2, 21, 4096), (96, "causal", 2, 21, 4096)]
    assert known[5] == (shapes.Shape(1, 8192, 8192, 128, 128, 192, 128, "bf16", "causal"), [None])
    assert known[6][0] == shapes.Shape(8, 2048, 4096, 64, 8, 128, 128, "f16", "full")
    assert known[7] == (("specs/a_b.yaml", "decode"), ["tile_n=64"])


def test_repetitions_in_a_sweep_count_once():
    (schedules,) = sweep.parse("d64 full | a=1\nd64 full | a={1,2}\nd64 full | default\nd64 full | default").values()
    assert schedules == ["a=1", "a=2", None]


@pytest.mark.parametrize("text, wrong", [
    ("d64 full", "s.txt:1: no schedule"),
    ("\nd64 full |", "s.txt:2: no schedule"),
    ("d64 half | a=1", "s.txt:1: 'half' is no word"),
    ("d64 t8/9 full | a=1", "s.txt:1: 't8/9' is no word"),
    ("d0 full | a=1", "s.txt:1: 'd0' is no word"),
    ("t64 full | a=1", "s.txt:1: a shape needs a head dim"),
    ("d64 | a=1", "s.txt:1: a shape needs a head dim"),
    ("# nothing\n", "s.txt: no line"),
])
def test_bad_sweep_files_name_the_line(text, wrong):
    with pytest.raises(sweep.SweepError) as error:
        sweep.parse(text, "s.txt")
    assert str(error.value).startswith(wrong)


def test_braces_expand_in_order():
    assert sweep.expand("a{1,2}b{x, y}") == ["a1bx", "a1by", "a2bx", "a2by"]
    assert sweep.expand("plain") == ["plain"]


# ---- Rounds ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seconds, sets", [(1e-6, 1), (30e-6, 8), (150e-6, 3), (3e-3, 2), (55e-3, 1), (2.0, 1)])
def test_a_plan_fills_its_slice(seconds, sets):
    plan = rounds.plan(seconds, 40e-3, sets)
    assert plan.launches % sets == 0 and plan.samples >= 1
    total = (plan.settle + plan.samples) * plan.launches * seconds
    batch = plan.launches * seconds
    assert total == pytest.approx(40e-3, abs=max(batch / 2, 1e-9)) or plan.samples == 1
    assert plan.settle <= (plan.settle + plan.samples) / 3
    assert plan.launches == 1 or batch <= rounds.SAMPLE_SECONDS * 1.5 + sets * seconds


class Counting:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def slice(self):
        self.log.append(self.name)
        return rounds.Slice([float(len(self.log))])


def test_rounds_alternate_and_leave_out_the_warm_up():
    log = []
    slices = rounds.alternate({name: Counting(name, log) for name in "abc"}, 2, warm_up=1)
    assert "".join(log) == "cba" "abc" "cba"
    assert {name: [one.mean for one in made] for name, made in slices.items()} == {
        "a": [4.0, 9.0], "b": [5.0, 8.0], "c": [6.0, 7.0]}


# ---- Timing, against a torch whose GPU is a clock -------------------------------------------------------------------

class FakeCuda:
    """Enough of torch.cuda: launches advance a clock, graphs record and replay them, events read the clock."""

    def __init__(self, capturable=True):
        self.now, self.recording, self.capturable = 0.0, None, capturable
        fake = self

        class Event:
            def __init__(self, enable_timing):
                self.at = None

            def record(self):
                self.at = fake.now

            def synchronize(self):
                assert self.at is not None

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        class CUDAGraph:
            def capture_begin(self, capture_error_mode):
                fake.recording = []

            def capture_end(self):
                self.launches, fake.recording = fake.recording, None

            def replay(self):
                fake.now += sum(self.launches)

        class Stream:
            pass

        class stream:
            def __init__(self, _):
                pass

            def __enter__(self):
                pass

            def __exit__(self, *_):
                pass

        self.Event, self.CUDAGraph, self.Stream, self.stream = Event, CUDAGraph, Stream, stream

    def synchronize(self):
        pass

    def launch(self, seconds):
        if self.recording is None:
            self.now += seconds
        elif self.capturable:
            self.recording.append(seconds)
        else:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize("capturable", (True, False))
def test_replayed_launches_are_timed_right(capturable):
    cuda = FakeCuda(capturable)
    runs = [lambda: cuda.launch(1e-3), lambda: cuda.launch(3e-3)]  # two input sets
    reading = machine.Reading(1600, 690, ("SW power cap",))
    timer = timing.Replayed(types.SimpleNamespace(cuda=cuda), runs, types.SimpleNamespace(read=lambda: reading), 40e-3)
    before = cuda.now
    made = timer.slice()
    assert made.samples == pytest.approx([2e-3] * timer.plan.samples)
    assert cuda.now - before == pytest.approx(40e-3) and timer.plan.settle == 2
    assert made.reading is reading
    assert timer.why == ("" if capturable else "no CUDA graph: operation not permitted when stream is capturing")


# ---- Machine --------------------------------------------------------------------------------------------------------

def test_readings():
    assert machine.reason_names(0) == ()
    assert machine.reason_names(0x4 | 0x40) == ("SW power cap", "HW thermal")
    first, second = machine.Reading(1500, 680, ("HW thermal",)), machine.Reading(1700, 700, ("SW power cap",))
    assert machine.combine([first, None, second]) == machine.Reading(1600, 690, ("SW power cap", "HW thermal"))
    assert machine.combine([None]) is None


def test_a_machine_without_nvml_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    absent = machine.Machine(None)
    assert absent.read() is None and absent.why.startswith("clock and power are unknown")


class FakeTensor:
    """Memory of a FakeCuda: copying takes bytes / (1 TB/s)."""

    def __init__(self, cuda, size):
        self.cuda, self.size = cuda, size

    def zero_(self):
        pass

    def copy_(self, other):
        self.cuda.launch(other.size * 1e-12)


def test_ceilings_count_what_they_promise():
    cuda = FakeCuda()
    reading = machine.Reading(1450, 692, ("SW power cap",))
    fake = types.SimpleNamespace(
        cuda=cuda, uint8=None, bfloat16=None, empty=lambda size, **_: FakeTensor(cuda, size), empty_like=lambda a: a,
        randn=lambda *shape, **_: shape, mm=lambda a, b, out: cuda.launch(2 * a[0] * a[1] * b[1] / 600e12))
    here = types.SimpleNamespace(read=lambda: reading)
    copied = machine.copy(fake, here)
    assert copied.rate == pytest.approx(2.0) and copied.reading == reading
    assert str(copied) == "copy of 1024 MiB, read and written: 2 TB/s, 1450 MHz, 692 W, held by: SW power cap"
    before = cuda.now
    product = machine.cublas(fake, types.SimpleNamespace(read=lambda: None), 3)
    assert str(product) == "cuBLAS 8192^3 bf16: 600 TFLOP/s" and cuda.now - before > 3


# ---- Peers ----------------------------------------------------------------------------------------------------------

def case_of(batch, len_q, len_k, mask="causal", **more):
    shape = shapes.plain(64, len_k, mask, heads=4, heads_kv=2, batch=batch, **more)._replace(len_q=len_q)
    return peers.Case.of_shape(shape)


@pytest.mark.parametrize("name, modules", [("fa3", ["flash_attn_interface", "fa3_fwd_interface"]),
                                           ("fa4", ["flash_attn", "flash_attn.cute"]), ("flashinfer", ["flashinfer"]),
                                           ("flex", ["torch", "torch.nn", "torch.nn.attention.flex_attention"])])
def test_a_peer_that_is_not_installed_says_so(name, modules, monkeypatch):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(modules[-1])):
        peers.PEERS[name](None, None, case_of(1, 64, 64))


@pytest.mark.parametrize("text", ["raise OSError('libcudart.so.12: cannot open')", "import no_such_thing", "x = 1"])
def test_a_peer_that_does_not_load_is_not_installed(text, tmp_path, monkeypatch):
    (tmp_path / "half_a_peer.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "half_a_peer", raising=False)
    with pytest.raises(ImportError, match="^half_a_peer: .*(libcudart|no_such_thing|attention)"):
        peers.find("half_a_peer", "attention")


class FakeFlashInfer:
    """Attention of each sequence by numpy, as the real one takes its arguments: tokens of all sequences in a row, and
    causal masks aligned to the bottom right."""

    def single_prefill_with_kv_cache(self, q, k, v, causal=False):
        numpy = pytest.importorskip("numpy")
        k, v = (numpy.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        s = numpy.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
        rows, keys = numpy.ogrid[:q.shape[0], :k.shape[0]]
        p = numpy.exp(numpy.where((keys <= rows + len(k) - len(q)) | (not causal), s, -numpy.inf))
        return numpy.einsum("hqk,khd->qhd", p / p.sum(axis=2, keepdims=True), v).astype(q.dtype)

    def BatchPrefillWithRaggedKVCacheWrapper(self, workspace, layout):
        assert workspace.nbytes >= 128 << 20 and layout == "NHD"
        made, single = types.SimpleNamespace(), self.single_prefill_with_kv_cache

        def plan(ends_q, ends_k, heads_q, heads_kv, dim_qk, head_dim_vo, causal, q_data_type):
            assert (heads_q, heads_kv, dim_qk, head_dim_vo, q_data_type) == (4, 2, 64, 64, "bf16")
            made.ends, made.causal = (ends_q, ends_k), causal

        def run(q, k, v):
            numpy, (ends_q, ends_k) = pytest.importorskip("numpy"), made.ends
            assert ends_q[-1] == len(q) and ends_k[-1] == len(k) == len(v)
            return numpy.concatenate([single(q[a:b], k[c:d], v[c:d], made.causal) for a, b, c, d in zip(
                ends_q, ends_q[1:], ends_k, ends_k[1:])])
        made.plan, made.run = plan, run
        return made


@pytest.mark.parametrize("mask", shapes.MASKS)
@pytest.mark.parametrize("batch, len_q, len_k", [(1, 9, 9), (1, 5, 12), (3, 9, 9), (2, 5, 12)])
def test_flashinfer_is_given_our_problem(batch, len_q, len_k, mask, monkeypatch):
    numpy = pytest.importorskip("numpy")
    monkeypatch.setitem(sys.modules, "flashinfer", FakeFlashInfer())
    fake = types.SimpleNamespace(
        int32="int32", uint8="uint8", bfloat16="bf16", arange=lambda n, device, dtype: numpy.arange(n, dtype=dtype),
        empty=lambda n, device, dtype: numpy.empty(n, dtype))
    case = case_of(batch, len_q, len_k, mask)
    rng = numpy.random.default_rng(1)
    q, k, v = (rng.standard_normal((batch, n, heads, 64), "float32") for n, heads in ((len_q, 4), (len_k, 2), (len_k, 2)))
    bits = [(x.view("uint32") >> 16).astype("uint16") for x in (q, k, v)]
    q, k, v = ((x.astype("uint32") << 16).view("float32") for x in bits)
    bound = peers.PEERS["flashinfer"](fake, None, case).bind(fake, q, k, v, {})
    bound.run()
    assert numpy.abs(bound.result() - qkv.reference(case.spec, *bits)).max() < 1e-5


def test_peers_say_what_they_have_no_equal_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", FakeFlashInfer())
    source = case_of(1, 64, 64).source.replace("causal", "window(9, 0)")
    case = peers.Case("window", qkv.Spec(source), source, 1, 64, 64)
    for name in ("fa3", "fa4", "flashinfer", "flex"):
        with pytest.raises(ValueError, match="no equal"):
            peers.PEERS[name](None, None, case)


# ---- Reports --------------------------------------------------------------------------------------------------------

def row(case, implementation, **more):
    return dict(dict(case=case, implementation=implementation, status=report.OK, median_us="10.00", p10_us="9.00",
                     p90_us="11.00", tflops="500.0", mask="full", dim_qk=64), **more)


def test_rows_survive_the_file(tmp_path):
    writer = report.Writer(tmp_path / "x.csv")
    writer.write([row("a", "qkv", status='no, "really"')], gpu="G")
    with open(tmp_path / "x.csv", newline="") as file:  # the writer is still open: the row is on disk already
        (found,) = csv.DictReader(file)
    assert list(found) == report.COLUMNS
    assert (found["status"], found["median_us"], found["gpu"], found["ratio"]) == ('no, "really"', "10.00", "G", "")


def test_columns_of_slices():
    slices = [rounds.Slice([1e-3, 2e-3]), rounds.Slice([3e-3, 4e-3, 5e-3])]
    made = report.timing_columns(slices, machine.Reading(1611.4, 689.6, ("SW power cap", "idle")), 3e12)
    assert made == dict(median_us="3000.00", p10_us="1400.00", p90_us="4600.00", launches=5, tflops="1000",
                        sm_mhz="1611", power_w="690", throttle="SW power cap+idle")
    unread = report.timing_columns(slices, None, None)
    assert unread["tflops"] == "" and "sm_mhz" not in unread
    peer = [rounds.Slice([2e-3]), rounds.Slice([3e-3]), rounds.Slice([8e-3])]
    ours = [rounds.Slice([1e-3]), rounds.Slice([1e-3, 3e-3]), rounds.Slice([8e-3])]
    assert report.ratio_columns(peer, ours) == dict(ratio="1.500", ratio_p10="1.100", ratio_p90="1.900")


def test_the_table_of_a_grid():
    rows = [row("a", "qkv", tflops="512.4", ratio="1.100"), row("a", "cudnn", ratio="1.100"),
            row("b", "qkv", tflops="601.0", ratio="0.900"), row("b", "cudnn", ratio="0.900"),
            row("c", "qkv", tflops="700.0"), row("c", "qkv", schedule="second", tflops="1.0"),
            row("c", "cudnn", status="refused", median_us="")]
    places = {"a": (("64", "full"), 1024), "b": (("64", "full"), 512), "c": (("192/128", "causal"), 512)}
    text = "\n".join(report.grid_report(rows, places))
    assert text == """\
time of cudnn / ours (over 1: ours is faster)
D mask   T 512  T 1024  geo. mean
64 full  0.900   1.100      0.995
geometric mean 0.995, minimum 0.900 at D 64 full, T 512, 2 cases

TFLOP/s of ours
D mask          T 512  T 1024
64 full           601     512
192/128 causal    700       -
"""
    assert 0.995 == round(math.sqrt(0.9 * 1.1), 3)


def test_a_wrong_kernel_has_no_place_in_a_table():
    rows = [row("a", "qkv", status="WRONG: relative error 1.0e+00"), row("a", "cudnn")]
    assert report.grid_report(rows, {"a": (("64", "full"), 512)}) == []


def test_the_table_of_dims():
    rows = [row("d%d" % dim, "qkv", dim_qk=dim, tflops=tflops)
            for dim, tflops in ((64, "400.0"), (96, "450.0"), (128, "600.0"), (160, "500.0"))]
    assert report.dims_report(rows, (64, 128, 192)) == [
        "full",
        "D    TFLOP/s  interpolated  shortfall",
        "64       400         tuned",
        "96       450           500     10.0 %",
        "128      600         tuned",
        "160      500             -          -", ""]


def test_the_table_of_schedules_puts_the_fastest_first():
    rows = [row("a", "qkv", schedule="s=1", median_us="12.00", registers="168", spills="0", compile_s="0.50"),
            row("a", "qkv", schedule="s=2", status="it hung", median_us="", p10_us="", tflops=""),
            row("a", "qkv", schedule="s=3", median_us="9.00", ratio="1.050"), row("a", "cudnn", median_us="1.00")]
    lines = report.case_report(rows)
    assert [line.split()[:2] for line in lines[2:6]] == [["qkv", "s=3"], ["qkv", "s=1"], ["qkv", "s=2"],
                                                         ["cudnn", "1.00"]]
    assert lines[4].endswith("! it hung") and "1.050" in lines[2] and "168" in lines[3]


def test_the_clocks():
    rows = [row("a", "qkv", sm_mhz="1600", power_w="690", throttle="SW power cap"),
            row("b", "qkv", sm_mhz="1700", power_w="700", throttle=""), row("b", "cudnn")]
    assert report.clock_report(rows) == ["qkv: 1650 MHz, 695 W, held by: SW power cap"]


# ---- Correctness and compiling --------------------------------------------------------------------------------------

@pytest.mark.parametrize("length", (1, 200, 2048, 2049, 16384, 32768))
def test_sampled_rows(length):
    rows = check.sample_rows(length)
    assert rows[0] == 0 and rows[-1] == length - 1 and len(rows) == len(set(rows)) <= check.MOST_ROWS
    assert {one % 64 for one in rows} == set(range(min(length, 64)))


def test_judging():
    assert check.judge("bf16", (0.009, 1.0)) == ""
    assert check.judge("bf16", (0.02, 1.0)) == "WRONG: relative error 2.00e-02"
    assert check.judge("f16", (float("nan"), 1.0)).startswith("WRONG")


def test_building_in_other_processes(tmp_path):
    shape = shapes.plain(16, 64, "full", heads=1, batch=1, dtype="f16")
    jobs = [compiling.Job("emu", None, str(tmp_path), shape.spec(), None, schedule) for schedule in (None, "tile_n=7")]
    good, refused = compiling.build_all([*jobs, jobs[0]], 120, workers=2).values()
    assert good.problem == "" and good.seconds > 0 and "tile_n=" in good.schedule
    assert "tile_n = 7" in refused.problem and refused.registers is None
    with qkv.Engine("emu", cache_dir=str(tmp_path)) as engine:
        assert engine.build(shape.spec()).from_cache and engine.device.compiler == good.compiler


# ---- With torch -----------------------------------------------------------------------------------------------------

def run(tmp_path, *options):
    """(exit code, rows of the only CSV file, tables) of the benchmark on the emulator."""
    command = [sys.executable, ROOT / "tools" / "bench_attention.py", "--device", "emu", "--rounds", "2",
               "--out", tmp_path, "--cache-dir", tmp_path / "cache", *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    (path,) = tmp_path.glob("*.csv")
    with open(path, newline="") as file:
        return done.returncode, list(csv.DictReader(file)), done.stdout + done.stderr


def test_the_benchmark_runs_without_a_gpu(tmp_path):
    pytest.importorskip("torch")
    options = "--dim 16 --len 24 --hidden 32 --tokens 24 --dtype f16 --peers math naive"
    code, rows, text = run(tmp_path, *options.split())
    assert code == 0, text
    assert [(one["implementation"], one["mask"], one["status"]) for one in rows] == [
        (name, mask, "ok") for mask in ("full", "causal") for name in ("qkv", "math", "naive")]
    assert all(float(one["error_rel"]) < 2e-3 and float(one["ratio"]) > 0 for one in rows)


def test_a_bad_schedule_costs_a_sweep_one_line(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "tiny.txt"
    file.write_text("d16 t40 h2/1 b1 f16 causal | tile_n={7,16,32}\n")
    code, rows, text = run(tmp_path, "--sweep", file)
    assert code == 0, text
    assert [one["status"][:19] for one in rows] == ["schedule: tile_n = ", "ok", "ok", "ok"]
    assert [bool(one["median_us"]) for one in rows] == [False, True, True, True]
    assert "! schedule: tile_n = 7" in text


def test_float64_agrees_with_the_reference():
    torch = pytest.importorskip("torch")
    shape = shapes.plain(16, 9, "causal", heads=4, heads_kv=2, batch=2)._replace(len_q=12)
    spec = qkv.Spec(shape.spec())  # the first three rows see no key
    q, k, v = (torch.randn(2, length, heads, 16).bfloat16() for length, heads in ((12, 4), (9, 2), (9, 2)))
    wanted = check.expected(torch, spec, "causal", q, k, v)
    got = qkv.reference(spec, q, k, v)
    assert {one[:2] for one in wanted} == {(b, h) for b in (0, 1) for h in (0, 2, 3)}
    relative, largest = check.errors(wanted, got)
    assert relative < 1e-6 and largest < 1e-6
    got[1, 11, 3, 15] = float("nan")
    assert check.judge("bf16", check.errors(wanted, got)).startswith("WRONG")


def test_a_schedule_that_kills_its_process_kills_no_other(tmp_path):
    pytest.importorskip("torch")
    shape = shapes.plain(16, 64, "causal", heads=1, batch=1, dtype="f16")
    job = probe.Job("emu", str(tmp_path), shape.spec(), None, None)
    child = probe._Child(job)
    assert child.ready
    child.process.kill()
    assert child.ask(job) is None and child.stop() == "it crashed (exit code -9)"
    assert list(probe.try_all([job, job._replace(schedule="tile_n=7")]).values())[0] == ""
