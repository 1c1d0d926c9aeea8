#!/usr/bin/env python3
"""Times masks and scores of a spec against FlexAttention and dense causal attention, all in one process.

    tools/bench_masks.py [--case NAME ...] [--len 8192] [--csv FILE] [--planning] [--schedule NAME=K=V,...]

For every case: our time, FlexAttention's (compiled; its block mask is made before the timing, and so is our plan where
data decide tiles), the time of our dense
causal kernel and of cuDNN's at the same size, and useful TFLOP/s: pairs that the mask lets see each other, counted on
the GPU from FlexAttention's own mask function, times 2 (dim + dim_v). Contestants take turns (bench/rounds.py); ratios
are of medians of rounds, with their 10th and 90th percentile. Results are checked against each other first.
--planning instead times what 131072 tokens need before the first call: our map of tiles, FlexAttention's block mask."""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import qkv  # noqa: E402
import torch  # noqa: E402
from bench import report, rounds, stats  # noqa: E402
from bench.machine import Machine  # noqa: E402
from bench.timing import Replayed  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

SPEC = """qkvc: 1
name: %s
attention:
  heads: {q: 16, kv: 16}
  dim: 128
  dtype: bf16
  mask: %s
"""
PARAMS = {"doc": "{type: i32, shape: [b, len_k]}", "start": "{type: i32, shape: [b, len_k]}",
          "bound": "{type: i32, shape: [b]}", "slope": "{type: f32, shape: [hq]}"}


def documents(batch, length, mean):
    """Ids of documents of about `mean` tokens (half to one and a half of it), and where each one's begins."""
    random = torch.Generator().manual_seed(length)
    ids, starts = torch.zeros(batch, length, dtype=torch.int32), torch.zeros(batch, length, dtype=torch.int32)
    for b in range(batch):
        at, number = 0, 0
        while at < length:
            end = min(length, at + mean // 2 + int(torch.randint(mean, (1,), generator=random)))
            ids[b, at:end], starts[b, at:end] = number, at
            at, number = end, number + 1
    return {"doc": ids.cuda(), "start": starts.cuda()}


def no_data(batch, length):
    return {}


def docs(batch, length):
    return documents(batch, length, 1000)


# name: mask, score (or None), data, FlexAttention's mask function of the data (or None), its score function (or None)
CASES = {
    "causal_expression": ("k <= i + (len_k - len_q)", None, no_data, lambda d: lambda b, h, q, k: q >= k, None),
    "window_1024": ("k <= q and q - k < 1024", None, no_data,
                    lambda d: lambda b, h, q, k: (q >= k) & (q - k < 1024), None),
    "document_causal": ("k <= q and doc[b, q] == doc[b, k]", None, docs,
                        lambda d: lambda b, h, q, k: (q >= k) & (d["doc"][b, q] == d["doc"][b, k]), None),
    "packed_causal": ("start[b, q] <= k and k <= q", None, docs,
                      lambda d: lambda b, h, q, k: (q >= k) & (d["start"][b, q] <= k), None),
    "prefix_2048": ("k < bound[b] or k <= q", None,
                    lambda b, n: {"bound": torch.full((b,), 2048, dtype=torch.int32, device="cuda")},
                    lambda d: lambda b, h, q, k: (k < d["bound"][b]) | (q >= k), None),
    "chunked_2048": ("k <= q and q // 2048 == k // 2048", None, no_data,
                     lambda d: lambda b, h, q, k: (q >= k) & (q // 2048 == k // 2048), None),
    "sink_4_window_512": ("k <= q and (q - k < 512 or k < 4)", None, no_data,
                          lambda d: lambda b, h, q, k: (q >= k) & ((q - k < 512) | (k < 4)), None),
    "alibi_causal": ("k <= q", "s + slope[h] * (k - q)",
                     lambda b, n: {"slope": torch.tensor([2.0 ** (-8 * (h + 1) / 16) for h in range(16)]).cuda()},
                     lambda d: lambda b, h, q, k: q >= k, lambda d: lambda s, b, h, q, k: s + d["slope"][h] * (k - q)),
    "softcap_30_causal": ("k <= q", "30 * tanh(s / 30)", no_data, lambda d: lambda b, h, q, k: q >= k,
                          lambda d: lambda s, b, h, q, k: 30 * torch.tanh(s / 30)),
    "dilated_4_window_1024": ("k <= q and q - k < 1024 and (q - k) % 4 == 0", None, no_data,
                              lambda d: lambda b, h, q, k: (q >= k) & (q - k < 1024) & ((q - k) % 4 == 0), None),
}


def spec_of(name):
    mask, score = CASES[name][:2]
    text = SPEC % (name, '"%s"' % mask) + ('  score: "%s"\n' % score if score else "")
    used = [param for param in PARAMS if param + "[" in mask + (score or "")]
    return text + ("  params:\n" + "".join("    %s: %s\n" % (param, PARAMS[param]) for param in used) if used else "")


def visible_pairs(mask, batch, length):
    """Of one head, over all batch entries, counted in stripes of rows."""
    q, k = torch.arange(length, device="cuda"), torch.arange(length, device="cuda")
    total = 0
    for b in range(batch):
        for first in range(0, length, 1024):
            total += int(mask(b, 0, q[first:first + 1024, None], k[None]).sum())
    return total


class Bench:
    def __init__(self, options):
        self.options, self.engine, self.machine = options, qkv.Engine("cuda:0"), Machine(torch)
        self.batch, self.length, self.heads, self.dim = options.batch, options.len, 16, 128
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.randn(self.batch, self.length, self.heads, self.dim, device="cuda",
                                              dtype=torch.bfloat16) for _ in range(3))
        self.turned = [tensor.transpose(1, 2) for tensor in (self.q, self.k, self.v)]

    def ours(self, text, data, schedule=None):
        op = self.engine.prepare(text, batch=self.batch, len_q=self.length, len_k=self.length, aligned_only=True,
                                 schedule=schedule)
        memory = torch.zeros(max(op.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
        workspace = (memory.data_ptr(), op.workspace_bytes)
        self.kept = getattr(self, "kept", []) + [memory]
        op.bind(self.q, self.k, self.v, params=data, workspace=workspace)()
        launch = op.bind(self.q, self.k, self.v, params=data, workspace=workspace, reuse_plan=True)
        return launch, lambda: launch(torch.cuda.current_stream())  # of the moment: a graph is captured on another one

    def flex(self, mask, score, **options):
        block_mask = create_block_mask(mask, self.batch, None, self.length, self.length)
        compiled = torch.compile(flex_attention, dynamic=False)
        q, k, v = self.turned
        return lambda: compiled(q, k, v, block_mask=block_mask, score_mod=score, kernel_options=options or None)

    def cudnn(self):
        def run():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(*self.turned, is_causal=True)
        return run

    def measure(self, name):
        mask, score, make, flex_mask, flex_score = CASES[name]
        data = make(self.batch, self.length)
        used = {param: tensor for param, tensor in data.items() if param + "[" in mask + (score or "")}
        contestants, found = {}, {}
        launch, run = self.ours(spec_of(name), used, dict(self.options.schedule).get(name))
        contestants["ours"] = run
        _, contestants["causal"] = self.ours(SPEC % ("causal", "causal"), {})
        contestants["cudnn_causal"] = self.cudnn()
        if not self.options.no_flex:
            torch._dynamo.reset()
            contestants["flex"] = self.flex(flex_mask(data), flex_score and flex_score(data))
            theirs = contestants["flex"]().transpose(1, 2).float()
            run()
            mine = (launch.result[0] if isinstance(launch.result, tuple) else launch.result).float()
            found["difference"] = ((mine - theirs).norm() / theirs.norm()).item()
        if self.options.flash:
            torch._dynamo.reset()
            try:
                flash = self.flex(flex_mask(data), flex_score and flex_score(data), BACKEND="FLASH")
                flash()
                contestants["flex_flash"] = flash
            except Exception as error:  # whatever a compiler of a package that may not be there raises
                found["flex_flash"] = str(error).strip().splitlines()[-1][:100]
        timed = {key: Replayed(torch, [function], self.machine, self.options.slice) for key, function in
                 contestants.items()}
        slices = rounds.alternate(timed, self.options.rounds, warm_up=1)
        times = {key: [one.mean for one in made] for key, made in slices.items()}
        pairs = visible_pairs(flex_mask(data), self.batch, self.length)
        causal_pairs = self.batch * self.length * (self.length + 1) // 2
        flops = 4 * self.dim * self.heads
        middle = {key: stats.quantile(values, 0.5) for key, values in times.items()}
        found.update({"us": middle["ours"] * 1e6, "useful_tflops": flops * pairs / middle["ours"] * 1e-12,
                      "causal_tflops": flops * causal_pairs / middle["causal"] * 1e-12,
                      "visible": pairs / (self.batch * self.length ** 2)})
        found["useful_ratio"] = found["useful_tflops"] / found["causal_tflops"]
        for key in middle:
            if key != "ours":
                ratios = [theirs / mine for theirs, mine in zip(times[key], times["ours"])]
                found[key + "_ratio"] = stats.quantile(ratios, 0.5)
                found[key + "_p10"], found[key + "_p90"] = (stats.quantile(ratios, f) for f in (0.1, 0.9))
        return found

    def planning(self, name, length=131072):
        """What `length` tokens need before the first call: milliseconds on the device of our plan (a call less one that
        reuses it), of FlexAttention's compiled block mask with all its host work, and the memory that takes."""
        mask, score, make, flex_mask, _ = CASES[name]
        data, found = make(1, length), {}
        used = {param: tensor for param, tensor in data.items() if param + "[" in mask + (score or "")}
        self.batch, self.length = 1, length
        self.q, self.k, self.v = (torch.randn(1, length, self.heads, self.dim, device="cuda", dtype=torch.bfloat16)
                                  for _ in range(3))
        op = self.engine.prepare(spec_of(name), batch=1, len_q=length, len_k=length, aligned_only=True)
        memory = torch.zeros(max(op.workspace_bytes, 16), dtype=torch.uint8, device="cuda")
        workspace = (memory.data_ptr(), op.workspace_bytes)
        calls = [op.bind(self.q, self.k, self.v, params=used, workspace=workspace, reuse_plan=reuse)
                 for reuse in (False, True)]
        timed = [Replayed(torch, [lambda call=call: call(torch.cuda.current_stream())], self.machine,
                          self.options.slice) for call in calls]
        slices = rounds.alternate(dict(enumerate(timed)), self.options.rounds, warm_up=1)
        whole, reused = (stats.quantile([one.mean for one in slices[n]], 0.5) for n in (0, 1))
        found.update({"call_ms": whole * 1e3, "plan_ms": (whole - reused) * 1e3,
                      "workspace_mib": op.workspace_bytes / 2 ** 20})
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        try:
            for _ in range(2):
                torch.cuda.synchronize()
                started = time.perf_counter()
                create_block_mask(flex_mask(data), 1, None, length, length, _compile=True)
                torch.cuda.synchronize()
                found["flex_ms"] = (time.perf_counter() - started) * 1e3
        except (RuntimeError, torch.OutOfMemoryError) as error:
            found["flex_ms"] = str(error).splitlines()[0][:80]
        found["flex_mib"] = (torch.cuda.max_memory_allocated() - before) / 2 ** 20
        return found


def schedule_option(text):
    name, _, schedule = text.partition("=")
    return name, schedule


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--len", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--slice", type=float, default=0.03, help="seconds of a contestant's turn")
    parser.add_argument("--no-flex", action="store_true", help="FlexAttention compiles slowly")
    parser.add_argument("--flash", action="store_true", help="FlexAttention on flash_attn.cute, too, where that is there")
    parser.add_argument("--planning", action="store_true")
    parser.add_argument("--schedule", action="append", type=schedule_option, default=[], metavar="CASE=K=V,...")
    parser.add_argument("--csv", default="")
    options = parser.parse_args()
    bench, rows = Bench(options), []
    for name in options.case or CASES:
        try:
            found = bench.planning(name) if options.planning else bench.measure(name)
        except (qkv.Error, RuntimeError) as error:
            found = {"failed": str(error).splitlines()[0]}
        rows.append(dict(case=name, **found))
        print(name, report.words(found), flush=True)
    if options.csv:
        report.write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
