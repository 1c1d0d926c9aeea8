#!/usr/bin/env python3
"""Times generated attention kernels beside other attention kernels, in one process on one GPU.

    python3 tools/bench_attention.py --grid dense                     # a named grid: see --list
    python3 tools/bench_attention.py --dim 64 --len 1024 4096 --mask causal
    python3 tools/bench_attention.py --dim 128 --schedule tile_m=128,tile_n=64 --schedule tile_m=64,tile_n=128
    python3 tools/bench_attention.py --sweep schedules.txt            # many schedules on many shapes: see --list
    python3 tools/bench_attention.py --spec specs/gemma2_9b_local.yaml --workload prefill_4k

How it measures. All kernels are compiled first, in parallel, and each is tried once on a small case whose sizes no tile
divides, in a process that it may take with it. A long matrix product then brings the GPU to the clock that its power
limit allows; its rate is printed as the ceiling of this run. For every case each implementation is compared with
float64 on poisoned outputs; what is wrong is reported and not timed. Then all take turns: a slice of --slice-ms of
back-to-back launches each, --rounds times, every second round backwards. The first quarter of a slice is not timed, so
that the clock can follow the change of power. Launches are replays of a CUDA graph; inputs rotate through sets that are
larger together than the L2 cache. Ratios are medians over the rounds of the time of the peer over ours: over 1, ours is
faster. For a peer they are against the first of our schedules, for a schedule of ours against the first peer. --cold
times single launches instead, after the L2 cache was overwritten: for decode.

Peers: cudnn and fa2 (SDPA's backends), fa3 (flash_attn_interface or fa3_fwd_interface), fa4 (flash_attn.cute), flex,
flashinfer, naive (this project's three-kernel baseline), math (SDPA in plain torch). One that is not there or cannot do
a case is left out with its reason. Below the tables stand the ceilings of the run: a cuBLAS product of 8192^3, and bytes
read and written by a copy of 1 GiB.

Writes NAME.csv to --out (default $OUT, else the working folder) and prints tables last. Exit code 0; 1 when a kernel
that was not part of a sweep failed or was wrong; 2 for bad arguments; 5 without a GPU. --device emu runs the script
without a GPU on tiny shapes: its times mean nothing.
"""

import argparse
import itertools
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
for folder in (ROOT / "tools", ROOT / "tools" / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import qkv  # noqa: E402
from bench import check, machine, peers, probe, report, rounds, shapes, sweep, timing  # noqa: E402
from bench import compile as compiling  # noqa: E402

GRID_BUDGET = 170  # seconds


def note(text):
    print(text, file=sys.stderr, flush=True)


class Run:
    """What all cases share."""

    def __init__(self, torch, options):
        self.torch, self.options, self.started = torch, options, time.monotonic()
        self.on_gpu = options.device == "cuda"
        compiling.share_nvrtc()
        self.engine = qkv.Engine(options.device, cache_dir=options.cache_dir)
        self.machine = machine.Machine(torch) if self.on_gpu else None
        self.builds, self.tried, self.missing = {}, {}, {}

    @property
    def tensor_device(self):
        return "cuda" if self.on_gpu else "cpu"

    def identity(self):
        """The columns that are the same in every row."""
        torch = self.torch
        return dict(gpu=self.engine.device.name, driver=self.machine.driver if self.machine else "",
                    torch=torch.__version__, cudnn=torch.backends.cudnn.version() or "" if self.on_gpu else "",
                    qkv=qkv.lowlevel.libqkv().qkv_version().decode())

    def job(self, case, schedule):
        """None for the cache means the library's own folder, which both processes then find."""
        return compiling.Job("none" if self.on_gpu else "emu", self.engine.device.arch, self.options.cache_dir,
                             case.source, self.options.family, schedule)

    def trial(self, case, schedule):
        return probe.Job(self.options.device, self.options.cache_dir, case.source, self.options.family, schedule)

    def compile(self, work):
        """Builds every kernel and tries every one that could be built."""
        pairs = [(case, schedule) for case, schedules in work for schedule in schedules]
        begin = time.monotonic()
        self.builds = compiling.build_all([self.job(*pair) for pair in pairs], self.options.compile_timeout)
        note("%d kernels compiled in %.1f s" % (len(self.builds), time.monotonic() - begin))
        for other in {build.compiler for build in self.builds.values()} - {"", self.engine.device.compiler}:
            note("  by %s, but this process has %s: it compiles them again" % (other, self.engine.device.compiler))
        if self.options.tails:
            begin = time.monotonic()
            self.tried = probe.try_all([self.trial(*pair) for pair in pairs
                                        if not self.builds[self.job(*pair)].problem])
            note("%d kernels tried in %.1f s" % (len(self.tried), time.monotonic() - begin))

    def problem(self, case, schedule):
        """One line on why a schedule is not to be timed, or ""."""
        return self.builds[self.job(case, schedule)].problem or self.tried.get(self.trial(case, schedule), "")

    def contestant(self, runs):
        if not self.on_gpu:
            return timing.Clocked(runs)
        if self.options.cold:
            return timing.Cold(self.torch, runs, self.machine)
        return timing.Replayed(self.torch, runs, self.machine, self.options.slice_ms * 1e-3)

    def over_budget(self):
        return self.options.budget and time.monotonic() - self.started > self.options.budget


class Entry:
    """One implementation in one case: its row, and what it takes to run it."""

    def __init__(self, name, make, schedule=None, build=None):
        self.name, self.make, self.schedule = name, make, schedule
        self.row = dict(implementation=name, status=report.OK, schedule=schedule or "")
        if build:
            self.row.update(schedule=build.schedule or schedule or "", registers=_known(build.registers),
                            spills=_known(build.spills), compile_s=_known(build.seconds, "%.2f"),
                            notes=" / ".join(build.notes.split("\n")))
        self.bound, self.contestant, self.slices = [], None, []

    @property
    def ours(self):
        return self.name == report.OURS


def _known(value, form="%d"):
    return "" if value is None else form % value


def entries_of(run, case, schedules):
    """Ours, one a schedule, then the peers."""
    torch, engine, options = run.torch, run.engine, run.options

    def ours(schedule):
        def make():
            if run.problem(case, schedule):
                raise ValueError(run.problem(case, schedule))
            return peers.Ours(engine, case, options.family, schedule)
        return Entry(report.OURS, make, schedule, run.builds[run.job(case, schedule)])
    others = [name for name in options.peers if name not in run.missing]
    return [ours(schedule) for schedule in schedules] + [
        Entry(name, lambda name=name: peers.PEERS[name](torch, engine, case)) for name in others]


def start(run, case, entry, sets, wanted):
    """Makes, checks and binds one implementation. Fills its row; False when it will not be timed."""
    try:
        made = entry.make()
        entry.bound = [made.bind(run.torch, *tensors) for tensors in sets]
        entry.bound[0].run()
        wrong = judge(run, case, entry, wanted)
        remarks = [made.remark]
        if not wrong:
            entry.contestant = run.contestant([one.run for one in entry.bound])
            remarks.append(entry.contestant.why)
    except ImportError as error:
        run.missing[entry.name] = compiling.first_line(error)
        note("  %s is not here: %s" % (entry.name, run.missing[entry.name]))
        entry.row["status"] = "not installed"
        return False
    except Exception as error:  # a peer may raise anything; it costs one line
        wrong = compiling.first_line(error)
    if wrong:
        entry.row["status"] = wrong
        note("  %s: %s" % (" ".join(filter(None, (entry.name, entry.schedule))), wrong))
        return False
    for remark in filter(None, remarks):
        note("  %s: %s" % (entry.name, remark))
    return True


def judge(run, case, entry, wanted):
    """Compares the output of the first input set; one line on what is wrong, or ""."""
    if wanted is None:
        entry.row["error_rel"] = "unchecked"
        return ""
    error = check.errors(wanted, entry.bound[0].result())
    entry.row.update(error_rel="%.1e" % error[0], error_max="%.1e" % error[1])
    return check.judge(case.spec.dtype_q, error)


def wanted_output(run, case, tensors):
    """What check.errors compares with: float64, or attention_naive for specs that torch has no equal of, or None."""
    if case.mask:
        return check.expected(run.torch, case.spec, case.mask, *tensors[:3])
    try:
        bound = peers.naive(run.torch, run.engine, case).bind(run.torch, *tensors)
        bound.run()
        return bound.result().clone()
    except qkv.Error as error:
        note("  outputs are not checked: attention_naive: %s" % compiling.first_line(error))
        return None


def set_count(run, case):
    """How many input sets: together at least 256 MiB, at most 8."""
    s = case.spec
    size = 2 * case.batch * (s.dim_qk + s.dim_v) * (case.len_q * s.heads_q + case.len_k * s.heads_kv)
    return max(1, min(8, -(-(256 << 20) // max(size, 1)))) if run.on_gpu else 1


def run_case(run, case, schedules):
    """Checks and times one case. Returns its rows."""
    note("%s: batch %d, %d x %d, %r" % (case.name, case.batch, case.len_q, case.len_k, case.spec))
    sets = [case.tensors(run.torch, run.tensor_device) for _ in range(set_count(run, case))]
    wanted = wanted_output(run, case, sets[0])
    entries = entries_of(run, case, schedules)
    ready = [entry for entry in entries if start(run, case, entry, sets, wanted)]
    slices = rounds.alternate(dict(enumerate(entry.contestant for entry in ready)), run.options.rounds,
                              run.options.warm_up_rounds if run.on_gpu else 0)
    flops = next((entry.bound[0].launch.work()[0] for entry in ready if entry.bound[0].launch), None)
    for number, entry in enumerate(ready):
        entry.slices = slices[number]
        reading = machine.combine([one.reading for one in entry.slices])
        entry.row.update(report.timing_columns(entry.slices, reading, flops))
        if entry.ours:  # a race shows under load, not in the first launch
            entry.row["status"] = judge(run, case, entry, wanted) or entry.row["status"]
    add_ratios(ready)
    s = case.spec
    shape = dict(case=case.name, batch=case.batch, len_q=case.len_q, len_k=case.len_k, heads_q=s.heads_q,
                 heads_kv=s.heads_kv, dim_qk=s.dim_qk, dim_v=s.dim_v, dtype=s.dtype_q, mask=case.mask or "spec")
    return [dict(entry.row, **shape) for entry in entries]


def add_ratios(ready):
    ours = [entry for entry in ready if entry.ours]
    others = [entry for entry in ready if not entry.ours]
    if ours and others:
        for entry in ours:
            entry.row.update(report.ratio_columns(others[0].slices, entry.slices))
        for entry in others:
            entry.row.update(report.ratio_columns(entry.slices, ours[0].slices))


# ---- What to run ----------------------------------------------------------------------------------------------------

def work_of(options):
    """[(Case, schedules)] that the options ask for. Raises ValueError and qkv.Error."""
    schedules = options.schedule or [None]
    if options.sweep:
        found = sweep.parse(options.sweep.read_text(), options.sweep.name, dtype=options.dtype, hidden=options.hidden,
                            tokens=options.tokens)
        return [(peers.Case.of_shape(one) if isinstance(one, shapes.Shape) else
                 peers.Case.of_workload(*one), asked) for one, asked in found.items()]
    if options.spec:
        named = [(path, work.name) for path in options.spec for work in qkv.Spec(path).workloads
                 if not options.workload or work.name in options.workload]
        return [(peers.Case.of_workload(*one), schedules) for one in named]
    if options.grid:
        found = shapes.GRIDS[options.grid].shapes
    else:
        found = [shapes.plain(dim, length, mask, heads=options.heads, heads_kv=options.heads_kv, dtype=options.dtype,
                              hidden=options.hidden, tokens=options.tokens)
                 for dim, length, mask in itertools.product(options.dim, options.len, options.mask)]
    return [(peers.Case.of_shape(shape), schedules) for shape in found]


def default_peers(options):
    if options.device != "cuda":
        return ["math"]
    if options.grid:
        return list(shapes.GRIDS[options.grid].peers)
    return ["cudnn"] if options.sweep else ["cudnn", "fa2", "fa3"]


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--grid", choices=sorted(shapes.GRIDS), help="a named grid; --list says what is in it")
    add("--sweep", type=pathlib.Path, metavar="FILE", help="schedules by shape; --list describes the file")
    add("--list", action="store_true", help="print the grids and the form of sweep files")
    add("--spec", action="append", default=[], help="benchmark the workloads of this spec; may be repeated")
    add("--workload", action="append", default=[], help="only this workload of the specs; may be repeated")
    add("--dim", type=int, nargs="+", default=[64, 128], help="head dims of plain cases")
    add("--len", type=int, nargs="+", default=[4096], help="sequence lengths")
    add("--mask", nargs="+", choices=shapes.MASKS, default=list(shapes.MASKS))
    add("--dtype", choices=sorted(shapes.DTYPES), default="bf16")
    add("--hidden", type=int, default=shapes.HIDDEN, help="heads = hidden / dim")
    add("--heads", type=int, help="query heads, instead of --hidden")
    add("--heads-kv", type=int, help="KV heads; default: as many as query heads")
    add("--tokens", type=int, default=shapes.TOKENS, help="batch = tokens / length")
    add("--family", help="kernel family; default: what dispatch chooses")
    add("--schedule", action="append", default=[], help="tile_m=128,tile_n=64,...; may be repeated")
    add("--peers", nargs="*", choices=sorted(peers.PEERS), help="what to measure beside ours")
    add("--rounds", type=int, help="timed rounds (default 6; 60 with --cold)")
    add("--warm-up-rounds", type=int, default=2, help="rounds before them (default 2)")
    add("--slice-ms", type=float, default=40, help="what one implementation gets in a round (default 40)")
    add("--warm-up", type=float, default=3, help="seconds of matrix products before the first case (default 3)")
    add("--budget", type=float, help="start no case after so many seconds (default: none; a grid %d)" % GRID_BUDGET)
    add("--cold", action="store_true", help="single launches, the L2 cache overwritten before each")
    add("--no-tails", dest="tails", action="store_false", help="without the small check of sizes that no tile divides")
    add("--compile-timeout", type=float, default=90, help="seconds for all compiling together (default 90)")
    add("--cache-dir", help="of compiled kernels; default: the library's")
    add("--device", choices=("cuda", "emu"), default="cuda")
    add("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", ".")), help="folder of the CSV file")
    options = parser.parse_args(arguments)
    if bool(options.grid) + bool(options.sweep) + bool(options.spec) > 1:
        parser.error("--grid, --sweep and --spec exclude each other")
    options.peers = default_peers(options) if options.peers is None else options.peers
    options.rounds = options.rounds or (60 if options.cold else 6)
    options.budget = GRID_BUDGET if options.budget is None and options.grid else options.budget
    return options


def print_list():
    for name, grid in shapes.GRIDS.items():
        print("%-6s %d cases, beside %s: %s" % (name, len(grid.shapes), ", ".join(grid.peers), grid.meaning))
    print("\n" + sweep.__doc__)


def print_report(options, work, rows):
    grid = shapes.GRIDS.get(options.grid)
    failed = [row for row in rows if row["status"] not in (report.OK, "not installed")]
    if grid and grid.tuned:
        lines = report.grid_report(rows, places_of(work)) + report.dims_report(rows, grid.tuned)
    elif grid:
        lines = report.grid_report(rows, places_of(work))
    else:
        lines, failed = report.case_report(rows), []
    lines += ["%s %s %s: %s" % (row["case"], row["implementation"], row["schedule"], row["status"]) for row in failed]
    print("\n".join(lines + report.clock_report(rows)))


def places_of(work):
    return {case.name: case.table for case, _ in work}


def main(arguments=None):
    options = parse_arguments(arguments)
    if options.list:
        return print_list() or 0
    try:
        work = work_of(options)
    except (ValueError, OSError, qkv.Error) as error:
        note("bench_attention.py: %s" % error)
        return 2
    import torch
    if options.device == "cuda" and not torch.cuda.is_available():
        note("torch sees no GPU; --device emu runs this script without one, with times that mean nothing")
        return 5
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    run = Run(torch, options)
    note("%s, %s" % (run.engine.device.name, run.engine.device.compiler))
    run.compile(work)
    ceilings = []
    if run.on_gpu:  # the product last: it leaves the GPU at the clock of its power limit
        copied = machine.copy(torch, run.machine)
        ceilings = [machine.cublas(torch, run.machine, options.warm_up), copied]
    options.out.mkdir(parents=True, exist_ok=True)
    writer = report.Writer(options.out / ("%s.csv" % (options.grid or (options.sweep and options.sweep.stem) or
                                                      "bench_attention")))
    rows, skipped = [], 0
    for case, schedules in work:
        if run.over_budget():
            skipped += 1
            continue
        made = run_case(run, case, schedules)
        writer.write(made, **run.identity())
        rows += made
    print_report(options, work, rows)
    for ceiling in ceilings:
        print(ceiling)
    if run.machine:
        print(run.machine.why or "%s, driver %s" % (run.machine.name, run.machine.driver))
    if skipped:
        print("%d cases left out: the budget of %g s was spent" % (skipped, options.budget))
    bad = [row for row in rows if row["implementation"] == report.OURS and row["status"] != report.OK]
    return 1 if not rows or (bad and not options.sweep) else 0


if __name__ == "__main__":
    sys.exit(main())
