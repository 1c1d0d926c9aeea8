"""bench: what is measured, and the table, CSV, JSON and page that say so. On the emulator, whose times mean nothing."""

import csv
import json
import math

import pytest

from test_report import check_page

EMU = ("--device", "emu")
COLUMNS = ("spec,workload,phase,batch,q,kv,heads_q,heads_kv,dim_qk,dim_v,dtype,family,schedule,source,median_us,p10_us,"
           "p90_us,samples,flops,bytes,tflops,gbps,peak_tflops,peak_gbps,tensor_share,memory_share,bound,method,arch,gpu,"
           "status,note")


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def visible(q, kv):
    """Pairs of a causal mask, bottom-right."""
    return sum(max(0, min(kv, i + 1 + kv - q)) for i in range(q))


def test_csv_json_and_page_agree(qkvc, small, small_bf16, tmp_path):
    table, data, page = tmp_path / "b.csv", tmp_path / "b.json", tmp_path / "b.html"
    small_bf16.write_text(small_bf16.read_text().replace("name: small", "name: other_spec"))
    result = qkvc("bench", small, small_bf16, *EMU, "--csv", table, "--json-file", data, "--html", page)
    assert "times of the emulator say nothing of a GPU" in result.err and "of peak" in result.out
    rows = read(table)
    assert ",".join(rows[0]) == COLUMNS
    assert [(r["spec"], r["workload"], r["batch"], r["q"], r["kv"], r["dtype"]) for r in rows] == [
        ("small", "tiny", "2", "20", "37", "f16"), ("small", "other", "1", "8", "8", "f16"),
        ("other_spec", "tiny", "2", "20", "37", "bf16"), ("other_spec", "other", "1", "8", "8", "bf16")]
    for row in rows:
        batch, q, kv = (int(row[k]) for k in ("batch", "q", "kv"))
        assert int(row["flops"]) == batch * 4 * visible(q, kv) * 2 * (32 + 16)
        assert int(row["bytes"]) == batch * 2 * (q * 4 * (32 + 16) + kv * 2 * (32 + 16))
        assert row["status"] == "ok" and row["source"] == "default" and row["method"] == "emulation" and row["gpu"] == "emu"
        assert row["phase"] == ("decode" if q <= 16 else "prefill") and row["family"] and row["schedule"]
        assert row["samples"] == "3" and 0 < float(row["p10_us"]) <= float(row["median_us"]) <= float(row["p90_us"])
        assert row["peak_tflops"] == row["peak_gbps"] == row["tensor_share"] == row["bound"] == ""
        assert math.isclose(float(row["tflops"]), 1e-6 * int(row["flops"]) / float(row["median_us"]), rel_tol=1e-4)
    objects = json.loads(data.read_text())["rows"]
    for row, one in zip(rows, objects, strict=True):
        assert list(one) == list(row)
        for key, value in one.items():
            text = row[key]
            assert (value is None and not text) or value == text or math.isclose(value, float(text), rel_tol=1e-5), key
    shown, _ = check_page(page.read_text())
    assert "Times of the emulator say nothing of a GPU" in page.read_text()
    points = shown.rows("roofline", "problem", "\u00b5s")
    assert len(points) == 4
    for row, point in zip(rows, sorted(points, key=lambda p: [r["spec"] + r["workload"] for r in rows].index(
            p["problem"] + p["workload"])), strict=True):
        assert math.isclose(float(point["\u00b5s"]), float(row["median_us"]), rel_tol=1e-5)
    for path in (table, data):
        again, _ = check_page(qkvc("report", path, "-o", "-").out)
        assert [p["\u00b5s"] for p in again.rows("roofline", "\u00b5s")] == [p["\u00b5s"] for p in points]


def test_sizes_and_sweeps(qkvc, small):
    def sizes(*words):
        rows = qkvc("bench", small, *EMU, "--samples", 1, "--json", *words).json()["rows"]
        return [(r["workload"], r["batch"], r["q"], r["kv"]) for r in rows]

    assert sizes("-w", "tiny", "-w", "2x3x5") == [("tiny", 2, 20, 37), ("2x3x5", 2, 3, 5)]
    assert sizes("--sweep", "kv=8..50", "-w", "1x1x9") == [(f"1x1x9/kv={k}", 1, 1, k) for k in (8, 16, 32, 50)]
    assert sizes("--sweep", "kv=16..32", "-w", "other") == [("other/kv=16", 1, 16, 16), ("other/kv=32", 1, 32, 32)]
    assert sizes("--sweep", "batch=1..3", "--sweep", "kv=1..1") == [
        ("tiny/batch=1", 1, 20, 37), ("tiny/batch=2", 2, 20, 37), ("tiny/batch=3", 3, 20, 37), ("tiny/kv=1", 2, 20, 1)]
    assert sizes("--sweep", "kv=1k..1k", "-w", "1x1x1k") == [("1x1x1k/kv=1k", 1, 1, 1024)]


def test_large_workloads_are_made_small(qkvc, small):
    small.write_text(small.read_text().replace("batch: 2, q: 20, kv: 37", "batch: 64, q: 8192, kv: 8192"))
    result = qkvc("bench", small, *EMU, "--json", "-n", 1)
    assert "workload tiny of small is made small: batch 1," in result.err
    assert result.json()["rows"][0]["flops"] <= 3e8


def test_chosen_kernels(qkvc, small):
    def row(*words):
        return qkvc("bench", small, *EMU, "-w", "1x20x20", "-n", 1, "--json", *words).json()["rows"][0]

    given = row("--schedule", "tile_m=64,warps=4")
    assert given["source"] == "given" and "tile_m=64," in given["schedule"]
    assert row("--family", "attention_naive")["family"] == "attention_naive"
    assert row("--phase", "decode")["phase"] == "decode"
    assert row("--arch", "sm_90a")["arch"] == "sm_90a"


def test_parameters_and_layouts(qkvc, tmp_path):
    spec = tmp_path / "paged.yaml"
    spec.write_text("""qkvc: 1
name: paged
attention:
  heads: {q: 4, kv: 2}
  dim: 32
  dtype: bf16
  mask: causal and q - k < n
  params: {n: {type: i32}}
layout: {q: ragged, kv: {paged: {page: 16}}}
workloads: [{name: w, batch: 3, q: 1, kv: 40}]
""")
    rows = qkvc("bench", spec, *EMU, "-n", 1, "--param", "n=10", "--json").json()["rows"]
    assert rows[0]["status"] == "ok" and rows[0]["flops"] == 3 * 4 * 10 * 2 * 64
    assert "has no parameter 'm'" in qkvc("bench", spec, *EMU, "-n", 1, "--param", "m=10", code=2).err


def test_failures_are_rows(qkvc, small, tmp_path):
    """A schedule that only one of two workloads' families has: the other is measured all the same."""
    words = ("bench", small, *EMU, "-n", 1, "--schedule", "split=0")
    result = qkvc(*words, "--json", code=2)
    first, second = result.json()["rows"]
    assert first["status"] == "bad schedule" and first["median_us"] is None and "split" in first["note"]
    assert second["status"] == "ok" and second["source"] == "given" and "split=0" in second["schedule"]
    assert "small, tiny" in result.err
    qkvc(*words, "--csv", tmp_path / "b.csv", "--html", tmp_path / "b.html", code=2)
    assert [row["status"] for row in read(tmp_path / "b.csv")] == ["bad schedule", "ok"]
    check_page((tmp_path / "b.html").read_text())


@pytest.mark.parametrize("words, says", [
    (["-w", "tny"], "did you mean tiny?"),
    (["-w", "1x2"], "batch x queries x keys"),
    (["-w", "0x1x1"], "has no workload '0x1x1'"),
    (["-w", "1x1x2000M"], "has no workload"),
    (["--sweep", "q=1..2"], "--sweep takes kv=FIRST..LAST"),
    (["--sweep", "kv=8..4"], "--sweep takes"),
    (["--sweep", "kv=0..4"], "--sweep takes"),
    (["--sweep", "kv=1..2x"], "--sweep takes"),
    (["--samples", "0"], "--samples takes 1 to 100000"),
    (["--phase", "append"], "--phase takes prefill or decode"),
    (["--unaligned"], "bench has no option --unaligned"),
    (["--device", "none"], "device none")])
def test_usage(qkvc, small, words, says):
    assert says in qkvc("bench", small, *EMU, *words, code=2).err


def test_other_errors(qkvc, small, bad, tmp_path):
    for option in ("--csv", "--html", "--json-file"):
        result = qkvc("bench", small, *EMU, option, tmp_path / "none" / "x", code=1)
        assert "No such file" in result.err and not result.out, "refused before anything is measured"
    result = qkvc("bench", bad, small, *EMU, "-n", 1, "-w", "other", code=3)
    assert "did you mean" in result.err and "small" in result.out
    small.write_text(small.read_text().split("workloads:")[0])
    assert "has no workloads; --workload gives sizes" in qkvc("bench", small, *EMU, code=2).err
