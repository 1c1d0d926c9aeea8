#!/usr/bin/env python3
"""How far the model of `qkvc explain --candidates` is from measured times, and how well it orders schedules.

    QKVC=build/qkvc tools/model_error.py [--arch sm_90a] [--rows] FILE.csv...

Reads four kinds of CSV files:
  of qkvc tune --csv   in the root of the sources, where the specs are
  landscapes   columns spec (a path), family, batch, len_q, len_k, schedule, seconds; perhaps phase. Several schedules
               of one workload tell where the best of them stands in the model's order.
  of tools/bench_attention.py   the rows of qkv with a schedule
  of tools/bench_decode.py      one query, default schedules

Prints the ratio expected / measured of every file (median, and the 10th and 90th percentile), and of landscapes the
rank of the fastest schedule and what the model's first 1, 4 and 8 lose against it.
"""
import argparse
import csv
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile

QKVC = os.environ.get("QKVC", "qkvc")
FOLDER = tempfile.TemporaryDirectory()


def spec_file(heads_q, heads_kv, dim_qk, dim_v, dtype, mask):
    """The path of a spec for columns of a benchmark."""
    text = (f"qkvc: 1\nname: measured\nattention: {{heads: {{q: {heads_q}, kv: {heads_kv}}}, "
            f"dim: {{qk: {dim_qk}, v: {dim_v}}}, dtype: {dtype}, mask: {mask}}}\n")
    path = os.path.join(FOLDER.name, f"{heads_q}_{heads_kv}_{dim_qk}_{dim_v}_{dtype}_{mask}.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def named_spec(name, workload):
    """The path of a spec of the zoo; of several of one name that which has the workload."""
    found = sorted(path for path in glob.glob(f"specs/**/{name}.yaml", recursive=True) if "/tuned/" not in path)
    if not found:
        sys.exit(f"no spec {name} below specs/: run this in the root of the sources")
    if len(found) > 1:
        having = [path for path in found if f"name: {workload}," in open(path, encoding="utf-8").read()]
        if len(having) != 1:
            sys.exit(f"{' and '.join(found)} are both called {name}, and not one of them alone has workload {workload}")
        found = having
    return found[0]


def measurements(path):
    """Dictionaries of spec, family, phase, batch, len_q, len_k, schedule, seconds."""
    family = "attention_forward_sm80" if "forward_sm80" in os.path.basename(path) else "attention_forward_sm90"
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if "median_seconds" in row: # of qkvc tune --csv
                if row["median_seconds"] and row["status"] == "ok":
                    yield {**row, "spec": named_spec(row["spec"], row["workload"]), "seconds": float(row["median_seconds"])}
            elif "seconds" in row:
                row.setdefault("phase", "")
                yield {**row, "seconds": float(row["seconds"])}
            elif row.get("implementation") == "qkv":
                mask = {"full": "true"}.get(row["mask"], row["mask"])
                spec = spec_file(row["heads_q"], row["heads_kv"], row["dim_qk"], row["dim_v"], row["dtype"], mask)
                yield {"spec": spec, "family": family, "phase": "prefill", "batch": row["batch"], "len_q": row["len_q"],
                       "len_k": row["len_k"], "schedule": row["schedule"], "seconds": float(row["median_us"]) * 1e-6}
            elif "tbps" in row:
                spec = spec_file(row["heads_q"], row["heads_kv"], row["dim"], row["dim"], "bf16", "true")
                yield {"spec": spec, "family": "", "phase": "decode", "batch": row["batch"], "len_q": "1",
                       "len_k": row["length"], "schedule": "", "seconds": float(row["us"]) * 1e-6}


def expected(row, arch):
    """Seconds of the model for a row; None where the schedule is not legal."""
    words = [QKVC, "explain", row["spec"], "--arch", arch, "--candidates", "1", "--effort", "quick", "--json",
             "--batch", row["batch"], "--q", row["len_q"], "--kv", row["len_k"]]
    for option in ("family", "phase", "schedule"):
        if row.get(option):
            words += [f"--{option}", row[option]]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode:
        print(f"{' '.join(words)}: {result.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(result.stdout)["candidates"][0]["seconds"]


def print_ranks(rows):
    """Of every workload with several schedules."""
    groups = {}
    for row in rows:
        key = (row["spec"], row["phase"], row["batch"], row["len_q"], row["len_k"])
        groups.setdefault(key, []).append(row)
    losses = []
    for key, group in groups.items():
        if len({row["schedule"] for row in group}) < 2:
            continue
        group.sort(key=lambda row: (row["expected"], row["schedule"]))
        best = min(row["seconds"] for row in group)
        rank = next(n for n, row in enumerate(group) if row["seconds"] == best)
        loss = [min(row["seconds"] for row in group[:n]) / best - 1 for n in (1, 4, 8)]
        losses.append(loss)
        lost = ", ".join(f"{100 * x:.1f}" for x in loss)
        print(f"  {os.path.basename(key[0])} {key[1]} {'x'.join(key[2:])}: {len(group)} schedules, the fastest is "
              f"number {rank + 1}; the first 1, 4, 8 lose {lost} %")
    if losses:
        within = sum(loss[2] <= 0.03 for loss in losses) / len(losses)
        print(f"  first 8 within 3 % of the fastest: {100 * within:.0f} % of {len(losses)} workloads")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.csv")
    parser.add_argument("--arch", default="sm_90a", help="of the GPU that was measured; its best-known one is modelled")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    os.environ["QKV_DEVICE"] = "none"
    for path in options.files:
        rows = []
        for row in measurements(path):
            row["expected"] = expected(row, options.arch)
            if row["expected"]:
                rows.append(row)
        if not rows:
            print(f"{path}: nothing to compare")
            continue
        ratios = sorted(row["expected"] / row["seconds"] for row in rows)
        tenth = len(ratios) // 10
        print(f"{path}: {len(rows)} rows, expected / measured {statistics.median(ratios):.2f} "
              f"({ratios[tenth]:.2f} to {ratios[-1 - tenth]:.2f})")
        if options.rows:
            for row in rows:
                print(f"  {os.path.basename(row['spec']):32} {row['batch']:>4} x {row['len_q']:>6} x {row['len_k']:>6} "
                      f"{row['seconds'] * 1e6:10.1f} {row['expected'] * 1e6:10.1f} us "
                      f"{row['expected'] / row['seconds']:5.2f}  {row['schedule']}"[:119])
        print_ranks(rows)


if __name__ == "__main__":
    main()
