#!/usr/bin/env python3
"""Append: new keys and values of a fused projection into a paged cache, beside a copy of as many bytes.

    python3 tools/bench_append.py                                 # the grid
    python3 tools/bench_append.py --case 64x1 --schedule default --schedule rows=1,warps=8 --schedule rows=4,warps=4

A case is SEQUENCESxTOKENS: so many sequences that get so many tokens each; a line for each schedule of each case, the
schedules of a case in turns in one process. Launches are replays of a CUDA graph over input sets that together exceed
the L2 cache (64 sets at most; bench/rounds.py). `bandwidth` is the time of torch's copy_ of a tensor that reads and
writes as many bytes as the append does over that of the append, round by round, so 1 is the speed of a copy. `torch`
is the same in eager torch over the append: norm, rotation, index_put_. Results are compared with it before anything is
timed. At the end, with several schedules, the least and the mean `bandwidth` of each over all cases.
Writes CSV with --csv. Needs a GPU and torch."""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
for folder in (ROOT / "tools", ROOT / "tools" / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402

import qkv  # noqa: E402
from bench import report, rounds, stats  # noqa: E402
from bench.machine import Machine  # noqa: E402
from bench.timing import Replayed  # noqa: E402

SPEC = """qkvc: 1
name: append
attention:
  heads: {q: %(heads_q)d, kv: %(heads_kv)d}
  dim: %(dim)d
  dtype: {q: bf16, kv: %(kv)s}
  mask: causal
layout: {q: ragged, kv: {paged: {page: %(page)d, order: %(order)s}}}
rope: {theta: 500000, dims: %(dims)d, style: %(style)s}
append: {norm: %(norm)s, slots: %(slots)s}
"""
GRID = [(1, 1), (16, 1), (64, 1), (256, 1), (1, 2048), (1, 8192), (8, 4096)]
L2_BYTES = 160 << 20  # of all input sets at least: three times the cache
KINDS = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


class Set:
    """The tensors of one call."""

    def __init__(self, o, sequences, new):
        row = (o.heads_q + 2 * o.heads_kv) * o.dim
        self.tokens, self.length = sequences * new, new + o.past
        self.qkv = torch.randn(self.tokens, row, device="cuda", dtype=torch.bfloat16)
        self.q_out = torch.empty(self.tokens, o.heads_q, o.dim, device="cuda", dtype=torch.bfloat16)
        per_sequence = -(-self.length // o.page)
        pages = sequences * per_sequence
        shape = (pages, o.page, o.heads_kv, o.dim) if o.order == "nhd" else (pages, o.heads_kv, o.page, o.dim)
        self.k_cache, self.v_cache = (torch.zeros(shape, device="cuda", dtype=KINDS[o.kv]) for _ in range(2))
        self.table = torch.randperm(pages, device="cuda").to(torch.int32).view(sequences, per_sequence)
        self.positions = (torch.arange(new, device="cuda") + o.past).repeat(sequences)
        sequence = torch.arange(sequences, device="cuda").repeat_interleave(new)
        numbers = self.table[sequence, self.positions // o.page].long()
        self.slots = numbers * o.page + self.positions % o.page
        self.starts = torch.arange(sequences + 1, device="cuda", dtype=torch.int32) * new
        self.lengths = torch.full((sequences,), self.length, device="cuda", dtype=torch.int32)
        self.bytes = self.tokens * ((2 * row - 2 * o.heads_kv * o.dim) * 2  # q, k, v in; q out
                                    + 2 * o.heads_kv * o.dim * self.k_cache.element_size())

    def arguments(self, o, weights):
        places = {"mapping": dict(slots=self.slots, positions=self.positions),
                  "positions": dict(positions=self.positions), "lengths": {}}[o.slots]
        if o.slots != "mapping":
            places.update(cu_seqlens_q=self.starts, seqlens_k=self.lengths, page_table=self.table)
        return dict(qkv=self.qkv, q_out=self.q_out, k_cache=self.k_cache, v_cache=self.v_cache, **weights, **places)


def turned(x, cosine, sine, o):
    """x [tokens, heads, dim] in f32."""
    first, second = ((slice(0, o.dims, 2), slice(1, o.dims, 2)) if o.style == "interleaved"
                     else (slice(0, o.dims // 2), slice(o.dims // 2, o.dims)))
    a, b, out = x[..., first], x[..., second], x.clone()
    out[..., first], out[..., second] = a * cosine - b * sine, b * cosine + a * sine
    return out


def in_torch(one, o, weights, cosine, sine):
    """A call of the same in eager torch; cosine and sine [positions, 1, dims / 2]."""
    def run():
        q, k, v = one.qkv.split([o.heads_q * o.dim, o.heads_kv * o.dim, o.heads_kv * o.dim], 1)
        parts = []
        for rows, weight in (q, weights.get("q_norm")), (k, weights.get("k_norm")):
            rows = rows.unflatten(1, (-1, o.dim)).float()
            if weight is not None:
                rows = rows * torch.rsqrt((rows * rows).mean(-1, keepdim=True) + 1e-6) * weight
            parts.append(turned(rows, cosine[one.positions], sine[one.positions], o))
        one.q_out.copy_(parts[0])
        for cache, rows in (one.k_cache, parts[1]), (one.v_cache, v.unflatten(1, (-1, o.dim))):
            if cache.element_size() == 1:  # of which torch copies no single elements
                rows = rows.float().clamp(-448, 448).to(cache.dtype).view(torch.uint8)
                cache = cache.view(torch.uint8)
            rows = rows.to(cache.dtype)
            if o.order == "hnd":
                cache = cache.transpose(1, 2)
            cache[one.slots // o.page, one.slots % o.page] = rows
    return run


class Bench:
    def __init__(self, options):
        self.options, self.engine, self.machine = options, qkv.Engine("cuda:0"), Machine(torch)
        dims = options.dims = options.dims or options.dim
        last = options.past + max(new for _, new in options.case)
        frequencies = 500000.0 ** (-torch.arange(0, dims, 2, device="cuda", dtype=torch.float64) / dims)
        positions = torch.arange(last + 1, device="cuda", dtype=torch.float64)
        angles = positions[:, None, None] * frequencies.float().double()
        self.cosine, self.sine = angles.cos().float(), angles.sin().float()

    def check(self, one, launch, reference):
        """Fraction by which results miss those of torch; the caches start from zero both times."""
        results = []
        for run in launch, reference:
            one.q_out.fill_(float("nan"))
            one.k_cache.view(torch.uint8).zero_(), one.v_cache.view(torch.uint8).zero_()
            run()
            results.append([tensor.float().clone() for tensor in (one.q_out, one.k_cache, one.v_cache)])
        return max(((a - b).norm() / b.norm()).item() for a, b in zip(*results))

    def prepare(self, schedule, sets, weights):
        """The launches of a schedule ("default": that of the family), and what is wrong with it, or neither."""
        o = self.options
        try:
            op = self.engine.prepare(SPEC % vars(o), phase="append", aligned_only=True,
                                     schedule=None if schedule == "default" else schedule)
        except qkv.Error as error:
            if error.status != qkv.BAD_SCHEDULE:
                raise
            return None, str(error).splitlines()[0]
        launches = [op.bind_append(**one.arguments(o, weights)) for one in sets]
        off = self.check(sets[0], launches[0], in_torch(sets[0], o, weights, self.cosine, self.sine))
        return launches, None if off < (0.03 if o.kv == "e4m3" else 0.005) else "off by %.3g" % off

    def measure(self, sequences, new):
        """A dict for each schedule."""
        o = self.options
        names = ("q_norm", "k_norm") if o.norm == "rms" else ()
        weights = {name: torch.rand(o.dim, device="cuda") + 0.5 for name in names}
        sets = [Set(o, sequences, new)]
        sets += [Set(o, sequences, new) for _ in range(min(-(-L2_BYTES // sets[0].bytes), 64) - 1)]
        contestants, wrong = {}, {}
        for schedule in o.schedule:
            launches, wrong[schedule] = self.prepare(schedule, sets, weights)
            if launches:
                contestants[schedule] = [lambda one=one: one(torch.cuda.current_stream()) for one in launches]
        halves = [torch.empty(2, sets[0].bytes // 2, device="cuda", dtype=torch.uint8).random_() for _ in sets]
        contestants["copy"] = [lambda half=half: half[0].copy_(half[1]) for half in halves]
        if o.torch:
            contestants["torch"] = [in_torch(one, o, weights, self.cosine, self.sine) for one in sets]
        timed = {name: Replayed(torch, runs, self.machine, o.slice) for name, runs in contestants.items()}
        slices = rounds.alternate(timed, o.rounds, warm_up=1)
        times = {key: [one.mean for one in made] for key, made in slices.items()}
        return [dict(schedule=schedule, **self.columns(times, schedule, sets[0].bytes), wrong=wrong[schedule] or "",
                     why=getattr(timed.get(schedule), "why", "") or "") for schedule in o.schedule]

    @staticmethod
    def columns(times, schedule, size):
        """`bandwidth` is the time of a copy over that of the schedule, `torch` likewise: of each the median."""
        if schedule not in times:
            return {}
        found = {"us": stats.quantile(times[schedule], 0.5) * 1e6}
        found["tbps"] = size / found["us"] * 1e-6
        for name, key in ("bandwidth", "copy"), ("torch", "torch"):
            if key in times:
                ratios = stats.paired_ratios(times[key], times[schedule])
                found[name], found[name + "_p10"], found[name + "_p90"] = (stats.quantile(ratios, f)
                                                                          for f in (0.5, 0.1, 0.9))
        return found


def pair(text, by):
    return tuple(int(part) for part in text.split(by))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", type=lambda text: pair(text, "x"), help="SEQUENCESxTOKENS")
    parser.add_argument("--heads", type=lambda text: pair(text, "/"), default=(32, 8), help="QUERY/KV; default 32/8")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dims", type=int, default=0, help="that turn; default: all")
    parser.add_argument("--style", default="half", choices=["half", "interleaved"])
    parser.add_argument("--norm", default="rms", choices=["none", "rms"])
    parser.add_argument("--kv", default="bf16", choices=list(KINDS))
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--order", default="nhd", choices=["nhd", "hnd"])
    parser.add_argument("--slots", default="mapping", choices=["mapping", "positions", "lengths"])
    parser.add_argument("--past", type=int, default=1024, help="tokens that a sequence has already")
    parser.add_argument("--schedule", action="append", help="several are compared; default: `default`")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="do not time eager torch")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--slice", type=float, default=0.02, help="seconds of a contestant's turn")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()
    options.heads_q, options.heads_kv = options.heads
    options.case, options.schedule = options.case or GRID, list(dict.fromkeys(options.schedule or ["default"]))
    bench, rows = Bench(options), []
    for sequences, new in options.case:
        torch.manual_seed(0)
        try:
            found = bench.measure(sequences, new)
        except (qkv.Error, RuntimeError) as error:
            found = [{"wrong": str(error).splitlines()[0]}]
        torch.cuda.empty_cache()
        for one in found:
            rows.append(dict(sequences=sequences, new=new, heads_q=options.heads_q, heads_kv=options.heads_kv,
                             dim=options.dim, kv=options.kv, slots=options.slots, **one))
            print(report.words({key: value for key, value in rows[-1].items() if value != ""}), flush=True)
    for schedule in options.schedule if len(options.schedule) > 1 else ():
        shares = [row["bandwidth"] for row in rows if row.get("schedule") == schedule and "bandwidth" in row]
        if shares:
            print("%-44s of a copy: least %.3f, mean %.3f of %d cases" % (
                schedule, min(shares), stats.geometric_mean(shares), len(shares)))
    if options.csv:
        report.write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
