#!/usr/bin/env python3
"""Ragged, padded and paged sequences beside dense tensors of equal work.

    python3 tools/bench_sequences.py                         # 16k tokens of equal and of mixed lengths, every layout
    python3 tools/bench_sequences.py --dim 64 --lengths 4096x4 --lengths 8192,1,300x9 --page 16 --order hnd
    python3 tools/bench_sequences.py --family attention_forward_sm80

A case is a list of lengths, each that of a sequence's queries and keys. `dense` is the same spec with dense tensors of
about as many pairs: sequences of one length, the longest. `rate` is our FLOP/s over those of the dense kernel, the
median over the rounds of contestants in turns (bench/rounds.py): 1 means that lengths and pages cost nothing. Pages lie
in a random order. Every layout is first checked against the dense kernel, sequence by sequence. Writes CSV with --csv.
Needs a GPU and torch."""

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
name: sequences
attention:
  heads: {q: %d, kv: %d}
  dim: %d
  dtype: bf16
  mask: %s
%s"""
LENGTHS = ["1024x16", "4096x4", "8192x2", "8192,4096,2048,1024,512,256,128,64,32,16,8,4,2,1", "1x200,8192", "1000x16",
           "8192,1x200"]
LAYOUTS = {"ragged": "layout: {q: ragged, kv: ragged}\n", "padded": "layout: {q: ragged, kv: padded}\n"}


def paged(page, order):
    return "layout: {q: ragged, kv: {paged: {page: %d, order: %s}}}\n" % (page, order)


def parse_lengths(text):
    """"8192,1x200": 8192, then 200 times 1."""
    lengths = []
    for part in text.split(","):
        length, _, times = part.partition("x")
        lengths += [int(length)] * int(times or 1)
    return lengths


def pairs(lengths, causal):
    return sum(n * (n + 1) / 2 if causal else n * n for n in lengths)


def dense_like(lengths, causal):
    """(batch, length): about as many pairs, as the longest of the lengths where that takes a sequence or more."""
    length = max(lengths)
    return max(1, round(pairs(lengths, causal) / pairs([length], causal))), length


def array(values):
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def draw(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


class Sequences:
    """Queries, keys and values of a case in every layout."""

    def __init__(self, lengths, heads_q, heads_kv, dim):
        self.lengths, self.most, self.dim = lengths, max(lengths), dim
        tokens = sum(lengths)
        self.q, self.k, self.v = draw(tokens, heads_q, dim), draw(tokens, heads_kv, dim), draw(tokens, heads_kv, dim)
        self.starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        self.cu = array(self.starts)
        self.lens = array(lengths)

    def arguments(self, layout, page=0, order="nhd"):
        """Arguments of Op.bind."""
        more = dict(cu_seqlens_q=self.cu, max_len_q=self.most, max_len_k=self.most)
        if layout == "ragged":
            return (self.q, self.k, self.v), dict(more, cu_seqlens_k=self.cu)
        more["seqlens_k"] = self.lens
        if layout == "padded":
            return (self.q, self.padded(self.k), self.padded(self.v)), more
        counts = [-(-length // page) for length in self.lengths]
        numbers = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(1))[:sum(counts)].tolist()
        table = torch.full((len(counts), max(counts)), -1, dtype=torch.int32)
        for b, count in enumerate(counts):
            table[b, :count] = torch.tensor(numbers[sum(counts[:b]):][:count], dtype=torch.int32)
        more["page_table"] = table.cuda()
        return (self.q,) + tuple(self.pages(rows, page, order, table) for rows in (self.k, self.v)), more

    def of(self, rows, b):
        return rows[self.starts[b]:self.starts[b + 1]]

    def padded(self, rows):
        made = torch.full((len(self.lengths), self.most) + rows.shape[1:], float("nan"), device="cuda",
                          dtype=rows.dtype)
        for b, length in enumerate(self.lengths):
            made[b, :length] = self.of(rows, b)
        return made

    def pages(self, rows, page, order, table):
        made = torch.full((int((table >= 0).sum()) + 3, page) + rows.shape[1:], float("nan"), device="cuda",
                          dtype=rows.dtype)
        for b, length in enumerate(self.lengths):
            at = torch.arange(length)
            place = table[b, at // page].long() * page + at % page
            made.view((-1,) + rows.shape[1:])[place.cuda()] = self.of(rows, b)
        return made.transpose(1, 2).contiguous() if order == "hnd" else made


class Bench:
    def __init__(self, options):
        self.options, self.engine, self.machine = options, qkv.Engine("cuda:0"), Machine(torch)

    def spec(self, layout):
        o = self.options
        return SPEC % (o.heads[0], o.heads[1], o.dim, o.mask, layout)

    def bind(self, layout, tensors, batch, most, more):
        op = self.engine.prepare(self.spec(layout), batch=batch, len_q=most, len_k=most, aligned_only=True,
                                 family=self.options.family if layout else None,
                                 schedule=self.options.schedule if layout else None)
        memory = torch.zeros(max(op.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
        launch = op.bind(*tensors, workspace=(memory.data_ptr(), op.workspace_bytes), **more)
        return launch, lambda keep=(memory, more): launch(torch.cuda.current_stream())

    def difference(self, made, result):
        """The greatest relative error of a sequence, beside the dense kernel's own call of it."""
        worst = 0.0
        for b in sorted(range(len(made.lengths)), key=lambda b: -made.lengths[b])[:4] + [len(made.lengths) - 1]:
            one = [made.of(rows, b)[None] for rows in (made.q, made.k, made.v)]
            wanted = self.bind("", one, 1, made.lengths[b], {})[0]()
            got = made.of(result, b)[None]
            worst = max(worst, ((got.float() - wanted.float()).norm() / wanted.float().norm()).item())
        return worst

    def measure(self, lengths):
        o, causal = self.options, self.options.mask == "causal"
        made = Sequences(lengths, o.heads[0], o.heads[1], o.dim)
        batch, length = dense_like(lengths, causal)
        dense = [draw(batch, length, heads, o.dim) for heads in (o.heads[0], o.heads[1], o.heads[1])]
        contestants, found = {"dense": [self.bind("", dense, batch, length, {})[1]]}, {}
        cases = [(name, text, ()) for name, text in LAYOUTS.items()]
        cases += [("page%d" % page, paged(page, o.order), (page, o.order)) for page in o.page]
        for name, text, page in cases:
            try:
                tensors, more = made.arguments(name, *page)
                launch, run = self.bind(text, tensors, len(lengths), made.most, more)
            except qkv.Error as error:
                found[name] = str(error).splitlines()[0]
                continue
            launch.result.fill_(float("nan"))
            launch()
            found[name + "_error"] = self.difference(made, launch.result)
            contestants[name] = [run]
        timed = {name: Replayed(torch, runs, self.machine, o.slice) for name, runs in contestants.items()}
        slices = rounds.alternate(timed, o.rounds, warm_up=1)
        times = {name: [one.mean for one in many] for name, many in slices.items()}
        flops = 4 * o.heads[0] * o.dim * pairs(lengths, causal)
        work = flops / (4 * o.heads[0] * o.dim * pairs([length] * batch, causal))
        found["dense_tflops"] = flops / work / stats.quantile(times["dense"], 0.5) * 1e-12
        for name in contestants:
            if name != "dense":
                found[name + "_us"] = stats.quantile(times[name], 0.5) * 1e6
                found[name + "_rate"] = stats.quantile([work * theirs / mine for theirs, mine in
                                                        zip(times["dense"], times[name])], 0.5)
        return dict(found, dense="%dx%d" % (length, batch))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", action="append", help="such as 8192,1x200; several cases")
    parser.add_argument("--heads", type=lambda text: tuple(map(int, text.split("/"))), default=(32, 8), help="QUERY/KV")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--mask", default="causal")
    parser.add_argument("--page", type=int, action="append", help="several; default 8 16 64 128")
    parser.add_argument("--order", default="nhd", choices=["nhd", "hnd"])
    parser.add_argument("--family", help="of the sequences; the dense kernel keeps its own")
    parser.add_argument("--schedule", help="likewise")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--slice", type=float, default=0.02, help="seconds of a contestant's turn")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()
    options.page = options.page or [8, 16, 64, 128]
    bench, rows = Bench(options), []
    for text in options.lengths or LENGTHS:
        torch.manual_seed(0)
        try:
            found = bench.measure(parse_lengths(text))
        except (qkv.Error, RuntimeError) as error:
            found = {"failed": str(error).splitlines()[0]}
        torch.cuda.empty_cache()
        rows.append(dict(lengths=text, heads="%d/%d" % options.heads, dim=options.dim, **found))
        print(report.words(rows[-1]), flush=True)
    if options.csv:
        report.write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
