#!/usr/bin/env python3
"""Times generated attention kernels beside the attention of torch, in one process on one GPU.

    python3 tools/bench_attention.py                                  # D 64 and 128, T 4096, full and causal, bf16
    python3 tools/bench_attention.py --dim 64 --len 1024 4096 16384 --mask causal
    python3 tools/bench_attention.py --spec specs/gemma2_9b_local.yaml --workload prefill_4k
    python3 tools/bench_attention.py --dim 128 --schedule tile_m=128,tile_n=64 --schedule tile_m=64,tile_n=128

How it measures: every implementation is first compared with a float64 (or, for specs that torch has no equal of, the
attention_naive family) result on poisoned outputs. Then all of them are launched in turn, in alternating order,
--launches times; each launch is timed by its own pair of CUDA events behind a busy GPU, so that no launch gap is
counted. Inputs rotate through several sets, larger together than the L2 cache; --cold also overwrites the L2 before
every launch. Ratios are medians of per-round ratios, which clock changes hardly touch. SM clock and power are read
after each case.

Peers: torch_flash (SDPA's FlashAttention-2 backend), torch_cudnn (SDPA's cuDNN backend), flex (--flex, compiled
FlexAttention), naive (this project's three-kernel baseline). A peer that cannot do a case is left out with its reason.
Writes bench_attention.csv to --out (default $OUT, else the working folder) and prints a short table last.
Exit code 0; 1 when a kernel of this project failed or was wrong; 5 without a GPU. --device emu runs the script without
a GPU on tiny shapes: its times mean nothing.
"""

import argparse
import collections
import csv
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools" / "python"))

import qkv  # noqa: E402

COLUMNS = ("case implementation schedule batch len_q len_k heads_q heads_kv dim_qk dim_v dtype mask median_us p10_us "
           "p90_us launches tflops ratio error_rel error_max sm_mhz power_w gpu driver torch cudnn qkv").split()
DTYPES = {"bf16": "bfloat16", "f16": "float16"}
BASELINE_LAUNCHES = 5
TOLERANCE = {"bf16": 1e-2, "f16": 2e-3}  # relative L2 error against float64


def plain_spec(name, heads_q, heads_kv, dim_qk, dim_v, dtype, mask):
    """The spec of attention that torch knows too."""
    return ("qkvc: 1\nname: %s\nattention:\n  heads: {q: %d, kv: %d}\n  dim: {qk: %d, v: %d}\n  dtype: %s\n  mask: %s\n"
            % (name, heads_q, heads_kv, dim_qk, dim_v, dtype, {"full": "true", "causal": "causal"}[mask]))


class Case:
    """One shape of one spec. `mask` is "full" or "causal" when torch has an equal, else None."""

    def __init__(self, name, spec, batch, len_q, len_k):
        self.name, self.spec, self.batch, self.len_q, self.len_k = name, spec, batch, len_q, len_k
        self.mask = self._plain_mask()

    def _plain_mask(self):
        s = self.spec
        for mask in ("full", "causal"):
            text = plain_spec(s.name, s.heads_q, s.heads_kv, s.dim_qk, s.dim_v, s.dtype_q, mask)
            if qkv.Spec(text).canonical() != s.canonical():
                continue
            # torch aligns causal masks to the top left: the same for as many rows as keys. One last row sees all keys.
            if mask == "full" or self.len_q == 1:
                return "full"
            return mask if self.len_q == self.len_k else None
        return None

    def tensors(self, torch, device):
        """Fresh random q, k, v and the declared parameters."""
        s, dtype = self.spec, getattr(torch, DTYPES[self.spec.dtype_q])
        make = lambda *shape: torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
        q = make(self.batch, self.len_q, s.heads_q, s.dim_qk)
        k = make(self.batch, self.len_k, s.heads_kv, s.dim_qk)
        v = make(self.batch, self.len_k, s.heads_kv, s.dim_v)
        extra = {"sink": torch.randn(s.heads_q, device=device)} if s.has_sink else {}
        for param in s.params:
            extra[param.name] = self._parameter(torch, device, param)
        return q, k, v, extra

    def _parameter(self, torch, device, param):
        """Plausible values: integers count up slowly over the last axis (documents, lengths), floats are small."""
        if param.rank == 0:
            return self.len_k // 4 if param.dtype == "i32" else 0.5
        shape = self.spec.param_shape(param.name, self.batch, self.len_q, self.len_k)
        if param.dtype == "i32":
            last = torch.arange(shape[-1], device=device, dtype=torch.int32) * 8 // max(shape[-1], 1)
            return last.expand(shape).contiguous() if shape[-1] > self.batch else torch.full(
                shape, self.len_k, device=device, dtype=torch.int32)
        return torch.rand(shape, device=device) * 0.1


# ---- Implementations: bind() makes of one tensor set a function that launches once and one that returns the output ---

Bound = collections.namedtuple("Bound", "run result launch")  # launch: the qkv.Launch, None for peers


class Ours:
    def __init__(self, engine, case, family, schedule):
        self.name = "naive" if family == "attention_naive" else "qkv" + ("[%s]" % schedule if schedule else "")
        self.family, self.schedule = family, schedule
        self.op = engine.prepare(case.spec, batch=case.batch, len_q=case.len_q, len_k=case.len_k, aligned_only=True,
                                 family=family, schedule=schedule)
        self.workspace = None  # one for all input sets: they run one after the other

    def bind(self, torch, q, k, v, extra):
        if self.workspace is None and self.op.workspace_bytes and q.is_cuda:
            self.workspace = torch.empty(self.op.workspace_bytes, dtype=torch.uint8, device=q.device)
        memory = None if self.workspace is None else (self.workspace.data_ptr(), self.op.workspace_bytes)
        launch = self.op.bind(q, k, v, workspace=memory, **extra)
        o = launch.result[0] if isinstance(launch.result, tuple) else launch.result
        o.fill_(float("nan"))
        return Bound(launch, lambda: o, launch)


class Sdpa:
    def __init__(self, name, backend, case):
        if case.mask is None:
            raise ValueError("torch has no equal of this spec")
        self.name, self.backend, self.mask = name, backend, case.mask
        self.gqa = case.spec.heads_q != case.spec.heads_kv

    def bind(self, torch, q, k, v, extra):
        from torch.nn.attention import sdpa_kernel
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        result = [None]

        def run():
            with sdpa_kernel(self.backend):
                result[0] = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=self.mask == "causal", enable_gqa=self.gqa)
        return Bound(run, lambda: result[0].transpose(1, 2), None)


class Flex:
    def __init__(self, torch, case):
        if case.mask is None:
            raise ValueError("not written for this spec")
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        self.name, self.gqa = "flex", case.spec.heads_q != case.spec.heads_kv
        self.function = torch.compile(flex_attention, dynamic=False)
        self.block_mask = None
        if case.mask == "causal":
            self.block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.len_q, case.len_k)

    def bind(self, torch, q, k, v, extra):
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        result = [None]

        def run():
            result[0] = self.function(q, k, v, block_mask=self.block_mask, enable_gqa=self.gqa)
        return Bound(run, lambda: result[0].transpose(1, 2), None)


def implementations(torch, engine, case, options):
    """All that can do the case, ours first; prints why the others cannot."""
    def ours(schedule):
        return lambda: Ours(engine, case, options.family, schedule)
    makers = [("qkv %s" % (schedule or ""), ours(schedule)) for schedule in options.schedule or [None]]
    if options.device == "cuda":
        backend = torch.nn.attention.SDPBackend
        makers += [("torch_flash", lambda: Sdpa("torch_flash", backend.FLASH_ATTENTION, case)),
                   ("torch_cudnn", lambda: Sdpa("torch_cudnn", backend.CUDNN_ATTENTION, case))]
        if options.flex:
            makers.append(("flex", lambda: Flex(torch, case)))
    else:
        makers.append(("torch_math", lambda: Sdpa("torch_math", torch.nn.attention.SDPBackend.MATH, case)))
    if not options.no_naive or case.mask is None:
        makers.append(("naive", lambda: Ours(engine, case, "attention_naive", None)))
    made, failed = [], False
    for name, make in makers:
        try:
            made.append(make())
        except (qkv.Error, ValueError, RuntimeError) as error:
            failed |= name.startswith("qkv")
            note("  %s left out: %s" % (name.strip(), str(error).strip().splitlines()[0]))
    return made, failed


# ---- Correctness ----------------------------------------------------------------------------------------------------

def expected_slice(torch, case, q, k, v):
    """(batch, head, float64 result [len_q, dim_v]) of a few heads of a plain case."""
    heads = sorted({0, case.spec.heads_q // 2, case.spec.heads_q - 1})
    group = case.spec.heads_q // case.spec.heads_kv
    for batch, head in itertools.product(sorted({0, case.batch - 1}), heads):
        scores = q[batch, :, head].double() @ k[batch, :, head // group].double().T / case.spec.dim_qk ** 0.5
        if case.mask == "causal":
            hidden = torch.ones(case.len_q, case.len_k, device=q.device, dtype=torch.bool)
            scores.masked_fill_(hidden.triu(1 + case.len_k - case.len_q), float("-inf"))
        yield batch, head, torch.softmax(scores, dim=-1) @ v[batch, :, head // group].double()


def errors(torch, case, got, tensors, baseline):
    """(relative L2, largest) error of `got` against float64, or against `baseline` when torch has no equal; None when
    there is neither."""
    if case.mask is None and baseline is None:
        return None
    if case.mask is None:
        pairs = [(got.double(), baseline.double())]
    else:
        pairs = [(got[b, :, h].double(), want) for b, h, want in expected_slice(torch, case, *tensors[:3])]
    difference = sum(float((x - y).square().sum()) for x, y in pairs)
    size = sum(float(y.square().sum()) for _, y in pairs)
    return (difference / max(size, 1e-300)) ** 0.5, max(float((x - y).abs().max()) for x, y in pairs)


# ---- Timing ---------------------------------------------------------------------------------------------------------

class Timer:
    """Times single launches: by events on a GPU, by the clock elsewhere."""

    def __init__(self, torch, device, cold):
        self.torch, self.device = torch, device
        self.flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda") if cold and device == "cuda" else None

    def start(self, run):
        """Launches once; returns what seconds() needs."""
        if self.device != "cuda":
            begin = time.perf_counter()
            run()
            return time.perf_counter() - begin
        if self.flush is not None:
            self.flush.zero_()
        self.torch.cuda._sleep(400_000)  # about 200 us: the launch is queued before the GPU is free
        pair = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        run()
        pair[1].record()
        return pair

    def seconds(self, started):
        if self.device != "cuda":
            return started
        started[1].synchronize()
        return started[0].elapsed_time(started[1]) * 1e-3


def time_rounds(timer, runs, launches):
    """runs[name] is a list of launch functions over the input sets. Returns seconds[name][round]."""
    names, seconds = list(runs), {name: [] for name in runs}
    for name, number in itertools.product(names, range(3)):  # warm-up; the check of the baseline warmed it
        if name == "naive":
            continue
        timer.seconds(timer.start(runs[name][number % len(runs[name])]))
    for number in range(launches):
        # The baseline is hundreds of times slower: a few rounds say all there is to say.
        present = [name for name in names if name != "naive" or number < BASELINE_LAUNCHES]
        order = present if number % 2 == 0 else present[::-1]
        started = {name: timer.start(runs[name][number % len(runs[name])]) for name in order}
        for name in present:
            seconds[name].append(timer.seconds(started[name]))
    return seconds


def gpu_state():
    """{"sm_mhz", "power_w", "gpu", "driver"} from nvidia-smi; empty strings without it."""
    fields = ("sm_mhz", "power_w", "gpu", "driver")
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,name,driver_version",
                               "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20,
                              check=True).stdout
        return dict(zip(fields, (value.strip() for value in text.splitlines()[0].split(",")), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return dict.fromkeys(fields, "")


# ---- The run --------------------------------------------------------------------------------------------------------

def note(text):
    print(text, file=sys.stderr, flush=True)


def set_count(case, device):
    """How many input sets: together at least 256 MiB, at most 8."""
    s = case.spec
    dims = s.dim_qk + s.dim_v
    size = 2 * case.batch * dims * (case.len_q * s.heads_q + case.len_k * s.heads_kv)
    return 1 if device != "cuda" else max(2, min(8, -(-(256 << 20) // max(size, 1))))


def run_case(torch, engine, case, options):
    """Checks and times one case. Returns (rows, ok)."""
    note("%s: batch %d, %d x %d, %r" % (case.name, case.batch, case.len_q, case.len_k, case.spec))
    candidates, failed = implementations(torch, engine, case, options)
    sets = [case.tensors(torch, "cuda" if options.device == "cuda" else "cpu")
            for _ in range(set_count(case, options.device))]
    runs, accuracy, bound, flops, baseline = {}, {}, {}, None, None
    # The naive family is the baseline of specs that torch has no equal of, so it is checked first.
    for candidate in sorted(candidates, key=lambda one: one.name != "naive"):
        try:
            made = [candidate.bind(torch, *tensors) for tensors in sets]
            made[0].run()
            got = made[0].result()
            if candidate.name == "naive":
                baseline = got.clone()
            accuracy[candidate.name] = errors(torch, case, got, sets[0], baseline)
        except (qkv.Error, RuntimeError) as error:
            failed |= candidate.name.startswith("qkv")
            note("  %s left out: %s" % (candidate.name, str(error).strip().splitlines()[0]))
            continue
        if made[0].launch:
            flops = made[0].launch.work()[0]
        if accuracy[candidate.name] is None:
            note("  %s is not checked: neither torch nor attention_naive can do this case" % candidate.name)
        elif not accuracy[candidate.name][0] <= TOLERANCE[case.spec.dtype_q]:
            failed |= isinstance(candidate, Ours)
            note("  %s IS WRONG: relative error %.2e" % (candidate.name, accuracy[candidate.name][0]))
        runs[candidate.name], bound[candidate.name] = [one.run for one in made], candidate
    if not runs:
        return [], False
    order = [candidate.name for candidate in candidates if candidate.name in runs]
    seconds = time_rounds(Timer(torch, options.device, options.cold), {name: runs[name] for name in order},
                          options.launches)
    rows = [row(case, bound[name], seconds[name], seconds[order[0]], flops, accuracy[name]) for name in order]
    state = dict(gpu_state(), torch=torch.__version__, cudnn=torch.backends.cudnn.version() or "",
                 qkv=qkv.lowlevel.library().qkv_version().decode())
    for one in rows:
        one.update(state)
    return rows, not failed


def row(case, candidate, seconds, first, flops, accuracy):
    """One CSV row; ratio is this implementation's time over that of the first one, round by round."""
    deciles = statistics.quantiles(seconds, n=10) if len(seconds) > 1 else seconds * 9
    median = statistics.median(seconds)
    s = case.spec
    return dict(case=case.name, implementation=candidate.name, schedule=getattr(candidate, "schedule", None) or "",
                batch=case.batch, len_q=case.len_q, len_k=case.len_k, heads_q=s.heads_q, heads_kv=s.heads_kv,
                dim_qk=s.dim_qk, dim_v=s.dim_v, dtype=s.dtype_q, mask=case.mask or "spec",
                median_us="%.2f" % (median * 1e6), p10_us="%.2f" % (deciles[0] * 1e6),
                p90_us="%.2f" % (deciles[8] * 1e6), launches=len(seconds),
                tflops="%.1f" % (flops / median * 1e-12) if flops else "",
                ratio="%.3f" % statistics.median(x / y for x, y in zip(seconds, first)),
                error_rel="%.1e" % accuracy[0] if accuracy else "unchecked",
                error_max="%.1e" % accuracy[1] if accuracy else "")


def cases(options):
    """The cases asked for: specs and their workloads, or the grid of plain shapes."""
    for path in options.spec:
        spec = qkv.Spec(path)
        for work in spec.workloads:
            if not options.workload or work.name in options.workload:
                yield Case("%s/%s" % (spec.name, work.name), spec, work.batch, work.len_q, work.len_k)
    if options.spec:
        return
    for dim, length, mask in itertools.product(options.dim, options.len, options.mask):
        heads = options.heads or max(1, options.hidden // dim)
        name = "d%d_t%d_%s" % (dim, length, mask)
        text = plain_spec(name, heads, options.heads_kv or heads, dim, dim, options.dtype, mask)
        yield Case(name, qkv.Spec(text), max(1, options.tokens // length), length, length)


def print_table(rows):
    """The short table: time, TFLOP/s, and time relative to our kernel (over 1: ours is faster)."""
    print("%-28s %-34s %10s %18s %8s %7s %8s" % ("case", "implementation", "median us", "p10..p90", "TFLOP/s", "t/ours",
                                                  "rel err"))
    for one in rows:
        print("%-28s %-34s %10s %18s %8s %7s %8s" % (
            one["case"], one["implementation"], one["median_us"], one["p10_us"] + ".." + one["p90_us"], one["tflops"],
            one["ratio"], one["error_rel"]))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--spec", action="append", default=[], help="benchmark the workloads of this spec; may be repeated")
    add("--workload", action="append", default=[], help="only this workload of the specs; may be repeated")
    add("--dim", type=int, nargs="+", default=[64, 128], help="head dims of the plain cases")
    add("--len", type=int, nargs="+", default=[4096], help="sequence lengths")
    add("--mask", nargs="+", choices=("full", "causal"), default=["full", "causal"])
    add("--dtype", choices=sorted(DTYPES), default="bf16")
    add("--hidden", type=int, default=2048, help="heads = hidden / dim")
    add("--heads", type=int, default=0, help="query heads, instead of --hidden")
    add("--heads-kv", type=int, default=0, help="KV heads; default: as many as query heads")
    add("--tokens", type=int, default=16384, help="batch = tokens / length")
    add("--family", help="kernel family; default: what dispatch chooses")
    add("--schedule", action="append", default=[], help="tile_m=128,tile_n=64,...; may be repeated: a sweep")
    add("--flex", action="store_true", help="also compiled FlexAttention (slow to start)")
    add("--no-naive", action="store_true", help="without the three-kernel baseline")
    add("--cold", action="store_true", help="overwrite the L2 cache before every launch")
    add("--launches", type=int, default=60, help="timed launches of each implementation (default 60)")
    add("--device", choices=("cuda", "emu"), default="cuda")
    add("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", ".")), help="folder of the CSV file")
    return parser.parse_args()


def main():
    options = parse_arguments()
    import torch
    if options.device == "cuda" and not torch.cuda.is_available():
        note("torch sees no GPU; --device emu runs this script without one, with times that mean nothing")
        return 5
    torch.manual_seed(1)
    engine = qkv.Engine(options.device)
    note("%s, %s" % (engine.device.name, engine.device.compiler))
    rows, ok = [], True
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "bench_attention.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case in cases(options):
            made, good = run_case(torch, engine, case, options)
            writer.writerows(made)
            file.flush()
            rows, ok = rows + made, ok and good
    print_table(rows)
    return 0 if ok and rows else 1


if __name__ == "__main__":
    sys.exit(main())
