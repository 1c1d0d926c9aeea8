"""qkvc tuned: lists, checks and merges tables; what explain, build and run make of them."""

import json
import re

import pytest

from command_line import ROOT

ENTRY = """    - phase: {phase}
      bucket: {bucket}
      workload: {{name: w, batch: {batch}, q: {q}, kv: {kv}}}
      family: {family}
      schedule: {schedule}
      us: {{median: {us}, p10: {us}, p90: {us}}}
      default: tile_m=128
      default_us: 100.000
"""
HEAD = """qkvc_tuned: 1
spec: small
tables:
  - gpu: {{name: emu, class: emu, capability: 8.0, sm_count: 4, l2_bytes: 4194304,
          memory_bandwidth: 100000000000, shared_per_block: 232448}}
    variant: {variant}
    qkvc: 0.1.0
    measured:
      clock: {clock}
    entries:
"""
PREFILL = "tile_m=64,tile_n=32,warps=4"
OTHER = "tile_m=64,tile_n=16,warps=4"


@pytest.fixture
def variant(fresh, small):
    return fresh("explain", small, "--device", "emu", "--json").json()["kernel"]["variant_hash"]


def table(variant, *entries, clock="1"):
    return HEAD.format(variant=variant, clock=clock) + "".join(entries)


def entry(batch, q, kv, schedule=PREFILL, us="80.000"):
    bucket = "b%d q%d k%d" % tuple(1 << (n - 1).bit_length() for n in (batch, q, kv))
    return ENTRY.format(phase="prefill", bucket=bucket, batch=batch, q=q, kv=kv, family="attention_forward_sm80",
                        schedule=schedule, us=us)


@pytest.fixture
def tables(fresh, variant):
    """The user's table of emu, with one entry."""
    path = fresh.cache / "tuned" / "emu" / "small.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(table(variant, entry(2, 20, 37)))
    return path


def test_path(fresh, tmp_path):
    assert fresh("tuned", "path").out.strip() == str(fresh.cache / "tuned")
    assert fresh("tuned", "path", "--tuned-dir", tmp_path / "x").out.strip() == str(tmp_path / "x")
    assert fresh("tuned", "path", env={"QKV_TUNED_DIR": tmp_path / "y"}).out.strip() == str(tmp_path / "y")


def test_ls(fresh, tables):
    result = fresh("tuned", "ls")
    line = next(line for line in result.out.splitlines() if line.startswith("small"))
    assert line.split() == ["small", "emu", "prefill", "b2", "q32", "k64", "80.0", "us", "1.25",
                            "attention_forward_sm80", PREFILL]
    assert "from %s" % tables.parent.parent in result.out
    listing = fresh("tuned", "ls", "--json", "--device", "emu").json()
    found = [e for e in listing["entries"] if e["file"] == str(tables)]
    assert len(found) == 1 and listing["count"] == len(listing["entries"])
    assert found[0]["match"] == "same" and found[0]["notes"] == "clock: 1\n" and found[0]["bucket"] == "b2 q32 k64"
    assert found[0]["seconds"] == pytest.approx(80e-6) and found[0]["default_seconds"] == pytest.approx(100e-6)
    assert fresh("tuned", "ls", tables).out.endswith("1 entry\n")
    fresh("tuned", "ls", "/nowhere.yaml", code=3)


def test_check(fresh, tables, tmp_path):
    assert fresh("tuned", "check", tables).out == f"{tables}: ok\n"
    damaged = tmp_path / "damaged.yaml"
    damaged.write_text(tables.read_text().replace("median", "medium"))
    result = fresh("tuned", "check", tables, damaged, code=3)
    assert result.out == f"{tables}: ok\n"
    assert f"{damaged}:16:12: error: unknown key 'medium' in tables[0].entries[0].us" in result.err
    assert "did you mean 'median'?" in result.err
    newer = tmp_path / "newer.yaml"
    newer.write_text("qkvc_tuned: 7\n")
    assert "format 7, of a later version" in fresh("tuned", "check", newer, code=3).err


def test_merge(fresh, variant, tmp_path):
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(table(variant, entry(1, 64, 64), entry(2, 64, 64, us="90.000"), clock="1"))
    two.write_text(table(variant, entry(2, 64, 64, OTHER, us="70.000"), entry(4, 64, 64), clock="2"))
    texts = []
    for n, files in enumerate([(one, two), (two, one)]):
        out = tmp_path / f"out{n}"
        assert "merged 2 files" in fresh("tuned", "merge", "-o", out, *files).out
        texts.append((out / "emu" / "small.yaml").read_text())
    assert texts[0] == texts[1]
    fresh("tuned", "check", tmp_path / "out0" / "emu" / "small.yaml")
    assert re.findall(r"bucket: (\S+)", texts[0]) == ["b1", "b2", "b4"] and OTHER in texts[0]
    fresh("tuned", "merge", "-o", tmp_path / "out0", one)  # what is there already stays where it gained more
    assert (tmp_path / "out0" / "emu" / "small.yaml").read_text() == texts[0]
    (tmp_path / "file").write_text("")
    assert "small.yaml" in fresh("tuned", "merge", "-o", tmp_path / "file" / "x", one, code=3).err


def test_explain_says_where_a_schedule_is_from(fresh, small, tables):
    said = fresh("explain", small, "--device", "emu", "--workload", "tiny").out
    assert f"other calls          tuned, from {tables}, bucket b2 q32 k64, 1.25 times as fast as the default" in said
    said = fresh("explain", small, "--device", "emu", "--batch", "9", "--q", "99", "--kv", "99", "--json").json()
    assert "outside of the tuned range" in said["kernel"]["schedule_from"]
    said = fresh("explain", small, "--device", "emu", "--workload", "tiny", "--tuned-dir", "", "--json").json()
    assert said["kernel"]["schedule_from"] == "built-in default: tables are turned off"


def test_run_takes_the_table(fresh, small, tables):
    result = fresh("run", small, "--device", "emu", "--workload", "tiny", "--json").json()
    assert result["schedule"].startswith(PREFILL)
    assert fresh("cache", "ls", "--json").json()["count"] == 1, "what was built is what was loaded"


def test_damage_is_said_and_skipped(fresh, small, tables, variant):
    tables.write_text(table(variant, entry(2, 20, 37).replace("family", "famly"), entry(1, 8, 8)))
    result = fresh("explain", small, "--device", "emu", "--batch", "1", "--q", "20", "--kv", "8")
    assert f"qkvc: warning: {tables}:14:7: unknown key 'famly' in tables[0].entries[0]; it is skipped" in result.err


def test_the_documented_table_is_one(qkvc, tmp_path):
    page = (ROOT / "docs" / "tuned-tables.md").read_text()
    path = tmp_path / "documented.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", page, re.S).group(1))
    qkvc("tuned", "check", path)
    qkvc("tuned", "merge", "-o", tmp_path, path)
    assert (tmp_path / "h200" / "llama3_8b.yaml").read_text() == path.read_text()


def test_tables_of_the_library_are_sound(qkvc):
    files = sorted((ROOT / "specs" / "tuned").rglob("*.yaml"))
    for path in files:
        qkvc("tuned", "check", path)
    built_in = {e["file"] for e in qkvc("tuned", "ls", "--json").json()["entries"] if e["file"].startswith("built in")}
    assert built_in == {"built in: %s" % path.relative_to(ROOT / "specs" / "tuned") for path in files}
