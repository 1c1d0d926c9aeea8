#!/usr/bin/env python3
"""Decode: one query a sequence against a long cache, beside the peers and beside reading the same bytes.

    python3 tools/bench_decode.py                        # the grid
    python3 tools/bench_decode.py --case 64x4096 --heads 32/8 --schedule warps=8,stages=4 --schedule warps=4,stages=3
    python3 tools/bench_decode.py --case 64x4096 --page 16 --page 1     # pages in random order against one allocation
    python3 tools/bench_decode.py --mixed 4x131072+40x2048              # lengths of one batch

Launches are replays of a CUDA graph over input sets that together exceed the L2 cache, in turns with the peers
(bench/rounds.py); a ratio is the median over the rounds of a peer's time over ours, so above 1 ours is faster. `read`
is a Triton kernel that reads as many bytes and keeps nothing: `bandwidth` is its time over ours. `ours_first` is a call
that does not say reuse_plan. Writes CSV with --csv. Needs a GPU, torch and Triton."""

import argparse
import itertools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
for folder in (ROOT / "tools", ROOT / "tools" / "python"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import qkv  # noqa: E402
from bench import peers, report, rounds, stats  # noqa: E402
from bench.machine import Machine  # noqa: E402
from bench.timing import Replayed  # noqa: E402

SPEC = """qkvc: 1
name: decode
attention:
  heads: {q: %d, kv: %d}
  dim: %d
  dtype: {q: bf16, kv: %s}
  mask: %s
  sink: %s
layout: {q: dense, kv: %s}
deterministic: %s
"""
GRID = [(16, 32768), (64, 4096), (64, 16384), (128, 8192)] + [(1, n) for n in (1024, 4096, 16384, 32768, 131072)]
L2_BYTES = 160 << 20  # of all input sets at least: three times the cache


@triton.jit
def read_kernel(source, kept, count, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.int32)
    step = tl.num_programs(0) * BLOCK
    for begin in range(tl.program_id(0) * BLOCK, count, step):
        at = begin + tl.arange(0, BLOCK)
        total += tl.load(source + at, mask=at < count, other=0)
    if tl.sum(total) == 123456789:
        tl.store(kept, 1)


def reader(k, v, kept):
    whole = torch.as_strided(k, (2 * k.numel(),), (1,)).view(torch.int32)  # V follows K

    def run():
        read_kernel[(132 * 8,)](whole, kept, whole.numel(), BLOCK=2048, num_warps=4)
    return run


class Bench:
    def __init__(self, options):
        self.options, self.engine, self.machine = options, qkv.Engine("cuda:0"), Machine(torch)
        self.key_bytes = 2 if options.kv == "e4m3" else 4  # of an element of K and one of V
        self.kept = torch.zeros(1, dtype=torch.int32, device="cuda")

    def sets(self, batch, length, heads_q, heads_kv, dim):
        """Input sets (q, k, v); K and V of one set follow each other."""
        size = self.key_bytes * batch * length * heads_kv * dim
        made = []
        for _ in range(max(1, -(-L2_BYTES // size))):
            shape = (2, batch, heads_kv, length, dim) if self.options.hnd else (2, batch, length, heads_kv, dim)
            both = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            both = both.to(torch.float8_e4m3fn) if self.options.kv == "e4m3" else both
            both = both.transpose(2, 3) if self.options.hnd else both
            q = torch.randn(batch, 1, heads_q, dim, device="cuda", dtype=torch.bfloat16)
            made.append((q, both[0], both[1]))
        return made

    def spec(self, heads_q, heads_kv, dim, kv="dense"):
        o = self.options
        return SPEC % (heads_q, heads_kv, dim, o.kv, o.mask, "per_head" if o.sink else "none", kv,
                       "batch" if o.batch_invariant else "false")

    def ours(self, text, sets, schedule, reuse=True, **more):
        """Launches over the input sets, and functions that run them on the stream of the moment."""
        batch, length = sets[0][0].shape[0], more.pop("length", sets[0][1].shape[1])
        op = self.engine.prepare(text, batch=batch, len_q=1, len_k=length, aligned_only=True, phase="decode",
                                 schedule=schedule, family=self.options.family)
        memory = torch.full((max(op.workspace_bytes, 16),), 255, dtype=torch.uint8, device="cuda")
        workspace = (memory.data_ptr(), op.workspace_bytes)
        if self.options.sink:
            more["sink"] = torch.zeros(sets[0][0].shape[2], device="cuda")
        launches = []
        for q, k, v in sets:
            op.bind(q, k, v, workspace=workspace, **more)()
            launches.append(op.bind(q, k, v, workspace=workspace, reuse_plan=reuse, **more))
        return launches, [lambda one=one, keep=memory: one(torch.cuda.current_stream()) for one in launches]

    def paged(self, text, sets, schedule, page):
        """The same keys in pages of `page` tokens, in random order."""
        (batch, length), tables, made = sets[0][1].shape[:2], None, []
        columns = -(-length // page)
        order = torch.randperm(batch * columns, device="cuda", dtype=torch.int32)
        for q, k, v in sets:
            pages = []
            for tensor in (k, v):
                full = torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, columns * page - length))
                full = full.reshape(batch * columns, page, *tensor.shape[2:])
                pages.append(torch.empty_like(full).index_copy_(0, order.long(), full))
            made.append((q, *pages))
        lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        return self.ours(text, made, schedule, length=length, seqlens_k=lengths, page_table=order.view(batch, columns))

    def cudnn(self, sets):
        def make(q, k, v):
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))

            def run():
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            return run
        return [make(*one) for one in sets]

    def flash3(self, sets, scale):
        peers.find("fa3_fwd_interface")
        return [lambda q=q, k=k, v=v: torch.ops.fa3_fwd.fwd(q, k, v, softmax_scale=scale, is_causal=False,
                                                             num_splits=0) for q, k, v in sets]

    def measure(self, batch, length, heads_q, heads_kv, dim):
        text = self.spec(heads_q, heads_kv, dim)
        sets = self.sets(batch, length, heads_q, heads_kv, dim)
        contestants, found = {}, {}
        q, k, v = sets[0]
        group = heads_q // heads_kv
        scores = torch.einsum("bkgd,bnkd->bkgn", q[:, 0].view(batch, heads_kv, group, dim).float(), k.float())
        wanted = torch.einsum("bkgn,bnkd->bkgd", (scores * dim ** -0.5).softmax(-1), v.float())
        wanted = wanted.reshape(batch, 1, heads_q, dim)
        for number, schedule in enumerate(self.options.schedule or [None]):
            name = "ours" if number == 0 else "ours_" + schedule
            try:
                launches, contestants[name] = self.ours(text, sets, schedule)
            except qkv.Error as error:
                found[name] = str(error).splitlines()[0]
                continue
            for launch in launches[:1]:
                result = launch.result[0] if isinstance(launch.result, tuple) else launch.result
                result.fill_(float("nan"))
                launch()
                difference = ((result.float() - wanted).norm() / wanted.norm()).item()
                if not difference < 0.01 and self.options.mask == "causal" and not self.options.sink:
                    found[name + "_wrong"] = difference
        if not self.options.schedule:
            contestants["ours_first"] = self.ours(text, sets, None, reuse=False)[1]
        for page, schedule in itertools.product(self.options.page, self.options.schedule or [None]):
            name = "page_%d" % page + (schedule and "_" + schedule or "")
            spec = self.spec(heads_q, heads_kv, dim, "{paged: {page: %d, order: nhd}}" % page)
            launches, contestants[name] = self.paged(spec, sets, schedule, page)
            launches[0]()
            result = launches[0].result
            other = (result[0] if isinstance(result, tuple) else result).float()
            found[name + "_difference"] = ((other - wanted).norm() / wanted.norm()).item()
        contestants["read"] = [reader(k, v, self.kept) for q, k, v in sets]
        if self.options.mask != "causal" or self.options.sink or self.options.kv != "bf16":
            self.options.peers = []
        for name, make in (("cudnn", lambda: self.cudnn(sets)), ("fa3", lambda: self.flash3(sets, dim ** -0.5))):
            if name in self.options.peers:
                try:
                    made = make()
                    made[0]()
                    contestants[name] = made
                except (ImportError, RuntimeError) as error:
                    found[name] = str(error).splitlines()[0][:60]
        timed = {name: Replayed(torch, runs, self.machine, self.options.slice) for name, runs in contestants.items()}
        found.update({name + "_why": one.why for name, one in timed.items() if one.why})
        slices = rounds.alternate(timed, self.options.rounds, warm_up=1)
        times = {key: [one.mean for one in made] for key, made in slices.items()}
        read_bytes = self.key_bytes * batch * length * heads_kv * dim
        found["us"] = stats.quantile(times["ours"], 0.5) * 1e6
        found["tbps"] = read_bytes / found["us"] * 1e-6
        for key in times:
            if key != "ours":
                name = "bandwidth" if key == "read" else key
                ratios = [theirs / mine for theirs, mine in zip(times[key], times["ours"])]
                found[name], found[name + "_p10"], found[name + "_p90"] = (stats.quantile(ratios, f)
                                                                          for f in (0.5, 0.1, 0.9))
        return found


    def mixed(self, parts, heads_q, heads_kv, dim):
        """Sequences of several lengths in one padded cache, against reading as many bytes."""
        lengths = torch.tensor([length for count, length in parts for _ in range(count)], dtype=torch.int32,
                               device="cuda")
        lengths = lengths[torch.randperm(len(lengths), device="cuda")]
        batch, total, page = len(lengths), int(lengths.sum()), 64
        columns = -(-int(lengths.max()) // page)
        used = (lengths + page - 1) // page
        table, at = torch.zeros(batch, columns, dtype=torch.int32, device="cuda"), 0
        order = torch.randperm(int(used.sum()), device="cuda", dtype=torch.int32)
        for b in range(batch):
            table[b, :used[b]], at = order[at:at + used[b]], at + int(used[b])
        both = torch.randn(2, len(order), page, heads_kv, dim, device="cuda", dtype=torch.bfloat16)
        q = torch.randn(batch, 1, heads_q, dim, device="cuda", dtype=torch.bfloat16)
        text = self.spec(heads_q, heads_kv, dim, "{paged: {page: %d, order: nhd}}" % page)
        launches, ours = self.ours(text, [(q, both[0], both[1])], None, length=int(lengths.max()), seqlens_k=lengths,
                                   page_table=table)
        contestants = {"ours": ours, "read": [reader(both[0], both[1], self.kept)]}
        timed = {name: Replayed(torch, runs, self.machine, self.options.slice) for name, runs in contestants.items()}
        slices = rounds.alternate(timed, self.options.rounds, warm_up=1)
        times = {key: [one.mean for one in made] for key, made in slices.items()}
        us = stats.quantile(times["ours"], 0.5) * 1e6
        return {"us": us, "tbps": 4 * total * heads_kv * dim / us * 1e-6,
                "bandwidth": stats.quantile([r / o for r, o in zip(times["read"], times["ours"])], 0.5)}


def pair(text, by):
    return tuple(int(part) for part in text.split(by))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", type=lambda text: pair(text, "x"), help="BATCHxLENGTH")
    parser.add_argument("--heads", action="append", type=lambda text: pair(text, "/"), help="QUERY/KV; default 32/8")
    parser.add_argument("--hnd", action="store_true", help="the keys of a head follow each other in memory")
    parser.add_argument("--page", action="append", type=int, default=[], help="also in pages of so many tokens")
    parser.add_argument("--mixed", action="append", default=[], metavar="COUNTxLENGTH+...",
                        type=lambda text: [pair(part, "x") for part in text.split("+")])
    parser.add_argument("--mask", default="causal")
    parser.add_argument("--kv", default="bf16", choices=["bf16", "e4m3"], help="format of K and V")
    parser.add_argument("--sink", action="store_true")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--family")
    parser.add_argument("--schedule", action="append", default=[], help="several: the first is `ours`")
    parser.add_argument("--peers", nargs="*", default=["cudnn", "fa3"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--slice", type=float, default=0.02, help="seconds of a contestant's turn")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()
    bench, rows = Bench(options), []
    for heads_q, heads_kv in options.heads or [(32, 8)]:
        for parts in options.mixed:
            found = bench.mixed(parts, heads_q, heads_kv, options.dim)
            rows.append(dict(batch=sum(count for count, _ in parts), heads_q=heads_q, heads_kv=heads_kv, **found))
            print("mixed %s %s" % (parts, found), flush=True)
        for batch, length in options.case or ([] if options.mixed else GRID):
            torch.manual_seed(0)
            try:
                found = bench.measure(batch, length, heads_q, heads_kv, options.dim)
            except (qkv.Error, RuntimeError) as error:
                found = {"failed": str(error).splitlines()[0]}
            torch.cuda.empty_cache()
            rows.append(dict(batch=batch, length=length, heads_q=heads_q, heads_kv=heads_kv, dim=options.dim, **found))
            print(report.words(rows[-1]), flush=True)
    if options.csv:
        report.write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
