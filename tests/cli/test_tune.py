"""tune, on the emulator: candidates planted by a folder of overriding templates, budgets, kills, resuming, shards.

A family's search space is cut down to a few tiles, told apart by tile_n, so that what each of them does can be planted
into the kernel's text. Nothing in qkvc knows of it."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from command_line import QKVC, ROOT, needs_no_gpu, needs_nvrtc

ONE = "  - {name: one, batch: 1, q: 33, kv: 50}\n"
TWO = "  - {name: two, batch: 2, q: 20, kv: 20}\n"
STEP = "  - {name: step, batch: 2, q: 1, kv: 60}\n"
EMU = ("--device", "emu", "--arch", "sm_80")
FAMILY = "attention_forward_sm80"

# What a kernel does, by tile_n and split_loads. Loops of one thread make times that stand out from the noise of a busy
# machine; (64, 0) is the default; (48, 0) is the fastest that is right.
LOOP = "if (threadIdx.x == 0) for (volatile int n = 0; n < %d; n++) {}"
FAST, SLOW = LOOP % 20000000, LOOP % 100000000
FATES = {(64, 0): SLOW, (48, 0): FAST, (32, 0): "wrong", (16, 0): "*(volatile int *)nullptr = 1;",
         (80, 0): "__builtin_trap();", (96, 0): "for (volatile int forever = 1; forever;) {}",
         (64, 1): "this does not compile;"}
STATUS = {(32, 0): "wrong", (16, 0): "fault", (80, 0): "crashed", (96, 0): "timeout", (64, 1): "compile"}
FEW = {(64, 0): SLOW, (48, 0): FAST, (32, 0): SLOW}


def write_spec(folder, name, workloads):
    path = folder / f"{name}.yaml"
    path.write_text(f"qkvc: 1\nname: {name}\nattention: {{heads: {{q: 2, kv: 1}}, dim: 16, dtype: f16, mask: causal}}\n"
                    f"workloads:\n{workloads}")
    return path


def override(folder, fates):
    """Templates in which attention_forward_sm80 tries the schedules of `fates`, and other families their defaults alone."""
    shutil.copytree(ROOT / "templates", folder)
    for path in (folder / "kernels").glob("attention_*.lua"):
        products = [f"{{tile_n = {{{tile}}}, split_loads = {{{split}}}}}" for tile, split in fates]
        products = "{%s}" % ", ".join(products if path.stem == FAMILY else [])
        text, count = re.subn(r"\n  space = function\(.*?\n  end,\n", f"\n  space = function() return {products} end,\n",
                              path.read_text(), count=1, flags=re.S)
        assert count or path.stem != FAMILY
        path.write_text(text)
    kernel = folder / "kernels" / f"{FAMILY}.cu"
    head = "  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;\n"
    tail = "    multiply_probability_value(output, scores, shared + V_OFFSET + stage * V_BYTES, lane);\n"
    text = kernel.read_text()
    assert text.count(head) == 1 and text.count(tail) == 1
    for (tile, split), fate in fates.items():
        at, line = (tail, "output[0][0][0] += 1.0f;") if fate == "wrong" else (head, fate)
        condition = f"schedule.tile_n == {tile} and schedule.split_loads == {split}"
        text = text.replace(at, f"{at}  //% if {condition} then\n  {line}\n  //% end\n")
    kernel.write_text(text)
    return folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return override(tmp_path_factory.mktemp("planted") / "templates", FATES)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Three tiles, two of them slow."""
    return override(tmp_path_factory.mktemp("few") / "templates", FEW)


def tile_of(schedule):
    return tuple(int(re.search(rf"{axis}=(\d+)", schedule)[1]) for axis in ("tile_n", "split_loads"))


def tables(folder):
    """(file, phase, bucket) -> schedule of all entries below a folder."""
    found = {}
    for path in sorted(folder.rglob("*.yaml")):
        for phase, bucket, schedule in re.findall(r"- phase: (\w+)\n +bucket: ([^\n]*)\n(?:.*\n)*? +schedule: (\S+)",
                                                  path.read_text()):
            found[path.name, phase, bucket] = schedule
    return found


def test_planted_candidates(qkvc, planted, tmp_path):
    """Each costs itself; the best of the others is in the table, and runs take it."""
    spec, out, rows = write_spec(tmp_path, "planted", ONE + TWO), tmp_path / "tables", tmp_path / "rows.csv"
    result = qkvc("tune", spec, *EMU, "--template-path", planted, "-o", out, "--time-limit", 15, "--json", "--csv", rows,
                  timeout=900)
    group, = result.json()["groups"]
    failed = {tile_of(f["schedule"]): f["status"] for f in group["failed"] if f["family"] == FAMILY}
    assert failed == STATUS, result
    assert all(f["reason"] for f in group["failed"]), result
    ended = [f for f in group["failed"] if f["status"] in ("fault", "crashed", "timeout")]
    assert result.json()["worker_restarts"] == len(ended) >= 3, result
    assert [c["workload"] for c in group["choices"]] == ["one", "two", None]
    for choice in group["choices"]:
        assert tile_of(choice["schedule"]) == (48, 0) and tile_of(choice["default_schedule"]) == (64, 0) and choice["gain"] > 0.2, result
    found = tables(out)
    assert len(found) == 3 and all(tile_of(s) == (48, 0) for s in found.values()), found
    with open(rows, newline="") as file:
        status = {(r["workload"], tile_of(r["schedule"])): r["status"] for r in csv.DictReader(file) if r["family"] == FAMILY}
    assert status == {(w, tile): STATUS.get(tile, "ok") for w in ("one", "two") for tile in FATES}
    journal = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    assert {"compile", "wrong", "fault", "crashed", "timeout"} <= {line["status"] for line in journal}
    explained = qkvc("explain", spec, "--device", "emu", "--template-path", planted, env={"QKV_TUNED_DIR": out})
    assert "tile_n=48" in explained.out and "tuned" in explained.out, explained


def run_until_killed(qkvc, words, journal, lines):
    """Starts the tuner, kills it when the journal has so many lines, and sees that its worker is gone, too."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("QKV_")} | {"QKV_CACHE_DIR": str(qkvc.cache)}
    tuner = subprocess.Popen([QKVC, *map(str, words)], env=variables, cwd=ROOT, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    end = time.monotonic() + 600
    while not journal.exists() or journal.read_bytes().count(b"\n") < lines:
        assert tuner.poll() is None and time.monotonic() < end
        time.sleep(0.005)
    children = [pid for pid in os.listdir("/proc") if pid.isdigit() and parent_of(pid) == tuner.pid]
    tuner.send_signal(signal.SIGKILL)
    tuner.wait()
    assert children
    while any(parent_of(pid) is not None for pid in children):
        assert time.monotonic() < end, "a worker outlived its tuner"
        time.sleep(0.05)


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
        return None if state == "Z" else int(parent)
    except (FileNotFoundError, ProcessLookupError):
        return None


def command_line(pid):
    with open(f"/proc/{pid}/cmdline") as file:
        return file.read().split("\0")


def test_compilers_that_break(qkvc, few, tmp_path):
    """One that crashes and one that hangs cost their candidates, once: a run that resumes does not try them again."""
    compiler, log, out = tmp_path / "g++", tmp_path / "log", tmp_path / "tables"
    compiler.write_text(f"""#!/bin/sh
if grep -qs 'TILE_N = 48;' ./*; then echo crash >>{log}; kill -SEGV $PPID; sleep 100; fi
if grep -qs 'TILE_N = 32;' ./*; then echo hang >>{log}; sleep 1000; fi
exec g++ "$@"
""")
    compiler.chmod(0o755)
    spec, env = write_spec(tmp_path, "broken", ONE), {"QKV_EMU_CXX": compiler, "QKV_CACHE_DIR": tmp_path / "cache"}
    for words in ((), ("--resume",)):
        result = qkvc("tune", spec, *EMU, "--template-path", few, "-o", out, "--compile-limit", 20, "--json", *words, env=env,
                      timeout=600)
        group, = result.json()["groups"]
        failed = {tile_of(f["schedule"]): (f["status"], f["reason"]) for f in group["failed"] if f["family"] == FAMILY}
        assert failed == {(48, 0): ("crashed", "the process that compiled it ended: signal 11 (Segmentation fault)"),
                          (32, 0): ("timeout", "not compiled within 20 s")}, result
        broken = {f["schedule"] for f in group["failed"]}
        assert len(group["choices"]) == 2 and all(c["schedule"] not in broken for c in group["choices"]), result
        assert result.json()["worker_restarts"] == 0, result
        assert sorted(log.read_text().split()) == ["crash", "hang"]


def test_groups_are_compiled_ahead(qkvc, few, tmp_path):
    """With cores to spare, kernels of the second group are compiled while the first is timed: one that crashes then costs
    its candidate alone, and both groups have what they have one after the other."""
    compiler, log, out = tmp_path / "g++", tmp_path / "log", tmp_path / "tables"
    specs = [write_spec(tmp_path, "first", ONE), write_spec(tmp_path, "second", ONE)]
    specs[1].write_text(specs[1].read_text().replace("q: 2, kv: 1", "q: 3, kv: 1"))
    compiler.write_text(f"""#!/bin/sh
if grep -qs 'HEADS_Q = 3;' ./*; then test -e {out}/*/first.yaml || echo ahead >>{log}
  if grep -qs 'TILE_N = 32;' ./*; then kill -SEGV $PPID; sleep 100; fi
fi
exec g++ "$@"
""")
    compiler.chmod(0o755)
    env = {"QKV_EMU_CXX": compiler, "QKV_CACHE_DIR": tmp_path / "cache"}
    words = ("tune", *specs, *EMU, "--template-path", few, "-o", out, "--json", "-j", 4)
    groups = qkvc(*words, env=env, timeout=600).json()["groups"]
    assert "ahead" in log.read_text()
    failed = [[(tile_of(f["schedule"]), f["status"]) for f in g["failed"] if f["family"] == FAMILY] for g in groups]
    assert failed == [[], [((32, 0), "crashed")]], groups
    assert all(tile_of(c["schedule"]) == (48, 0) for g in groups for c in g["choices"]), groups


def test_gain_is_that_of_turns(qkvc, few, tmp_path):
    """When clocks step between the turns of two candidates, their medians lie on different sides of the step: planted in
    the journal. What the table says of the default is what was gained turn by turn."""
    spec, out = write_spec(tmp_path, "stepped", ONE), tmp_path / "tables"
    words = ("tune", spec, *EMU, "--template-path", few, "-o", out, "--json")
    qkvc(*words, timeout=900)
    journal, lines = out / "journal.jsonl", []
    for line in map(json.loads, (out / "journal.jsonl").read_text().splitlines()):
        times = line.get("seconds", [])
        if len(times) >= 10: # of the final: five turns
            rows = [times[n:n + 5] for n in range(0, len(times), 5)]
            fastest = min(sorted(row)[2] for row in rows)
            rows = [[1, 1, 3, 3, 3] if sorted(row)[2] == fastest else [1.5, 1.5, 1.5, 4.5, 4.5] for row in rows]
            line["seconds"] = [time for row in rows for time in row]
        lines.append(json.dumps(line))
    journal.write_text("\n".join(lines) + "\n")
    group, = qkvc(*words, "--resume", timeout=900).json()["groups"]
    times = re.findall(r"us: {median: ([0-9.]+)|default_us: ([0-9.]+)", next(out.rglob("stepped.yaml")).read_text())
    ratios = [float(theirs[1]) / float(ours[0]) for ours, theirs in zip(times[::2], times[1::2])]
    assert len(ratios) == 2 and all(abs(ratio - 1.5) < 0.01 for ratio in ratios), times
    assert all(abs(choice["gain"] - 0.5) < 0.01 for choice in group["choices"]), group


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """A library that tells planted clocks, of a GPU that the emulator is taken for."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, ROOT / "tests/fault/nvml_stub.c"], check=True)
    return {"QKV_NVML": library, "QKV_NVML_BUS": "0000:17:00.0"}


def test_clocks_are_kept(qkvc, few, nvml, tmp_path):
    """Planted clocks are in the journal, in the CSV file and in the table; a run that is resumed has the same."""
    spec, out = write_spec(tmp_path, "clocks", ONE), tmp_path / "tables"
    words = ("tune", spec, *EMU, "--template-path", few, "-o", out, "--csv")
    result = qkvc(*words, tmp_path / "1.csv", env=nvml | {"QKV_STUB_NVML": "1755:650:4"}, timeout=900)
    timed = [line for line in map(json.loads, (out / "journal.jsonl").read_text().splitlines())
             if line["question"].startswith("time ")]
    assert timed and all(line["sm_mhz"] == line["sm_mhz_low"] == 1755 and line["memory_mhz"] == 3201 and line["watts"] == 650
                         and line["power_capped"] == 1 and line["thermal_capped"] == 0 and line["clock_readings"] > 0
                         for line in timed), timed
    with open(tmp_path / "1.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and all(row["sm_mhz"] == "1755" for row in rows if row["median_seconds"]), rows
    table, = out.rglob("*.yaml")
    for note in ("sm_clock: 1755 MHz (1755 to 1755)", "power_capped: 1", "thermal_capped: 0", "memory_clock: 3201 MHz", "power: 650 W"):
        assert f"      {note}\n" in table.read_text(), table.read_text()
    assert "note:" not in result.out, result
    qkvc(*words, tmp_path / "2.csv", "--resume", timeout=900) # without the library
    assert (tmp_path / "2.csv").read_text() == (tmp_path / "1.csv").read_text()
    for first, said in (1840, False), (1855, True):
        journal = out / "journal.jsonl"
        journal.write_text(re.sub(r'"sm_mhz_first":\d+,"sm_mhz_last":\d+', f'"sm_mhz_first":{first},"sm_mhz_last":1755',
                                  journal.read_text()))
        result = qkvc(*words, tmp_path / "3.csv", "--resume", timeout=900)
        assert (f"  note: one: the SM clock went from {first} to 1755 MHz during the final" in result.out) == said, result
        assert "tile_n" in result.out and len(tables(out)) == 2, result


def test_without_clocks(qkvc, few, nvml, tmp_path):
    """A GPU that NVML does not know costs the clocks and nothing else."""
    spec, out = write_spec(tmp_path, "none", ONE), tmp_path / "tables"
    words = ("tune", spec, *EMU, "--template-path", few, "-o", out, "--csv", tmp_path / "rows.csv", "-v")
    result = qkvc(*words, env=nvml | {"QKV_NVML_BUS": "0000:18:00.0"}, timeout=900)
    assert result.err.count("clocks are not read: NVML tells none of 0000:18:00.0") == 1, result
    assert "sm_mhz" not in (out / "journal.jsonl").read_text()
    table, = out.rglob("*.yaml")
    assert "sm_clock" not in table.read_text() and tables(out)
    with open(tmp_path / "rows.csv", newline="") as file:
        assert all(row["sm_mhz"] == "" for row in csv.DictReader(file))


def test_budget_ends_compilers(qkvc, few, tmp_path):
    """One that hangs is ended when its group has no time for it, long before --compile-limit; the rest is tuned."""
    compiler = tmp_path / "g++"
    compiler.write_text("""#!/bin/sh
if grep -qs 'TILE_N = 32;' ./*; then sleep 1000; fi
exec g++ "$@"
""")
    compiler.chmod(0o755)
    spec, start = write_spec(tmp_path, "slow", ONE), time.monotonic()
    result = qkvc("tune", spec, *EMU, "--template-path", few, "-o", tmp_path / "tables", "--budget", "40s", "--json",
                  env={"QKV_EMU_CXX": compiler, "QKV_CACHE_DIR": tmp_path / "cache"}, timeout=600)
    assert time.monotonic() - start < 44, result
    group, = result.json()["groups"]
    assert [(tile_of(f["schedule"]), f["status"]) for f in group["failed"] if f["family"] == FAMILY] == [((32, 0), "skipped")], result
    assert group["tuned"] and all(tile_of(c["schedule"]) == (48, 0) for c in group["choices"]), result


@needs_nvrtc
def test_a_device_that_is_gone_ends_the_run(qkvc, few, tmp_path):
    """On a driver without a GPU: the worker is killed, and then there is no driver for another one."""
    driver, journal = tmp_path / "driver", tmp_path / "tables" / "journal.jsonl"
    driver.mkdir()
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", driver / "libcuda.so.1", ROOT / "tests/fault/cuda_stub.c"], check=True)
    variables = {k: v for k, v in os.environ.items() if not k.startswith("QKV_")} | {"QKV_CACHE_DIR": str(qkvc.cache)}
    spec = write_spec(tmp_path, "gone", STEP + ONE)
    words = ["tune", spec, "--device", "cuda", "--template-path", few, "-o", tmp_path / "tables"]
    tuner = subprocess.Popen([QKVC, *map(str, words)], env=variables | {"LD_LIBRARY_PATH": str(driver)}, cwd=ROOT,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    worker = None
    while tuner.poll() is None and not (journal.exists() and b'"check' in journal.read_bytes()):
        time.sleep(0.005)
    (driver / "libcuda.so.1").unlink()
    for pid in os.listdir("/proc"):
        if pid.isdigit() and parent_of(pid) == tuner.pid and "none" not in command_line(pid): # those compile
            worker = int(pid)
    os.kill(worker, signal.SIGKILL)
    said = tuner.communicate(timeout=300)[1]
    assert tuner.returncode == 1 and "the device cannot be opened any more" in said, said
    assert "no worker can be started" in said and said.count("cannot be opened") == 1, said
    asked = [json.loads(line) for line in journal.read_text().splitlines()]
    assert not any("no worker" in line.get("reason", "") for line in asked), asked
    assert not list((tmp_path / "tables").rglob("gone.yaml"))


def test_kill_and_resume(qkvc, few, tmp_path):
    spec = write_spec(tmp_path, "killed", ONE)
    words = ["tune", spec, *EMU, "--template-path", few]
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    qkvc(*words, "-o", whole, timeout=900)
    lines = (whole / "journal.jsonl").read_text().splitlines(keepends=True)
    table = next(whole.rglob("killed.yaml")).read_text()
    assert {tile_of(s) for s in tables(whole).values()} == {(48, 0)}
    for kill_at in (2, len(lines) // 2, len(lines) - 2):
        shutil.rmtree(torn, ignore_errors=True)
        journal = torn / "journal.jsonl"
        run_until_killed(qkvc, [*words, "-o", torn], journal, kill_at)
        before = journal.read_bytes()
        with open(journal, "ab") as file:
            file.write(b'{"context":"torn')
        result = qkvc(*words, "-o", torn, "--resume", timeout=900)
        assert "torn" in result.err, result
        after = journal.read_bytes()
        whole_lines = before[:before.rfind(b"\n") + 1]
        assert after.startswith(whole_lines)
        questions = [json.loads(line)["question"] for line in after.splitlines()]
        assert len(questions) == len(set(questions)) == len(lines), result  # nothing was asked twice
        assert tables(torn) == tables(whole), result
    # Given the same answers, cut off anywhere and the rest filled in from the whole run: the same table.
    replayed = tmp_path / "replayed"
    replayed.mkdir()
    shutil.copy(whole / "journal.jsonl", replayed)
    qkvc(*words, "-o", replayed, "--resume", timeout=900)
    assert next(replayed.rglob("killed.yaml")).read_text() == table
    assert (replayed / "journal.jsonl").read_text() == "".join(lines)


def test_incumbent_is_what_the_table_has(qkvc, few, tmp_path):
    """A second run meets the first one's winner, and an old journal is set aside."""
    spec, out = write_spec(tmp_path, "again", ONE), tmp_path / "tables"
    for _ in range(2):
        qkvc("tune", spec, *EMU, "--template-path", few, "-o", out, timeout=900)
    found = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines() if '"find ' in line]
    assert found and all(f["found"] == 1 and tile_of(f["schedule"]) == (48, 0) for f in found)
    assert (out / "journal.jsonl.old").exists()


def test_budget(qkvc, few, tmp_path):
    spec, out = write_spec(tmp_path, "budget", ONE + TWO + STEP), tmp_path / "tables"
    start = time.monotonic()
    result = qkvc("tune", spec, *EMU, "--template-path", few, "-o", out, "--budget", "1s", "--json", timeout=900)
    assert time.monotonic() - start < 60, result
    groups = result.json()["groups"]
    said = [g["outcome"] for g in groups] + [f["status"] for g in groups for f in g["failed"]]
    assert any(s and ("time" in s or s == "skipped") for s in said), result


def test_budget_of_several_groups(qkvc, few, tmp_path):
    """Half of the time that all takes: what is begun comes to an end, and the run does not go on far beyond."""
    specs = [write_spec(tmp_path, name, ONE + TWO + STEP) for name in ("first", "second", "third")]
    words = ["tune", *specs, *EMU, "--template-path", few, "--json"]
    qkvc(*words, "-o", tmp_path / "compiled", timeout=900)
    whole = qkvc(*words, "-o", tmp_path / "whole", timeout=900).json()["seconds"]
    result = qkvc(*words, "-o", tmp_path / "half", "--budget", f"{whole / 2:.2f}s", timeout=900)
    took, groups = result.json()["seconds"], result.json()["groups"]
    assert took < 0.5 * whole + 1.5 * whole / len(groups), result
    tuned = {(g["spec"], g["phase"]) for g in groups if g["choices"]}
    assert tuned and len(tuned) < len(groups) or any(g["outcome"] or g["failed"] for g in groups), result
    written = tables(tmp_path / "half")
    assert {phase for _, phase in tuned} <= {phase for _, phase, _ in written}, result


def test_json_alone_on_standard_output(qkvc, few, tmp_path):
    """Also where no time is left for a group, and of a dry run; rows that cannot be written are told of."""
    spec, out = write_spec(tmp_path, "alone", ONE), tmp_path / "tables"
    words = ["tune", spec, *EMU, "--template-path", few, "-o", out, "--json"]
    group, = qkvc(*words, "--budget", "0.001s", timeout=900).json()["groups"]
    assert group["outcome"] == "no time was left" and not group["tuned"]
    group, = qkvc(*words, "--dry-run", timeout=900).json()["groups"]
    assert group["spec"] == "alone" and group["workloads"][0]["candidates"] > 0 and group["estimated_seconds"] > 0
    if os.path.exists("/dev/full"):
        result = qkvc(*words, "--csv", "/dev/full", code=1, timeout=900)
        assert "/dev/full: " in result.err and result.json()["groups"][0]["tuned"], result


def test_shards(qkvc, few, tmp_path):
    """Two shards have what one run has, no group twice."""
    words = ["tune", write_spec(tmp_path, "shared", ONE + STEP), *EMU, "--template-path", few]
    qkvc(*words, "-o", tmp_path / "whole", timeout=900)
    parts = []
    for n in (1, 2):
        qkvc(*words, "-o", tmp_path / "parts", "--shard", f"{n}/2", timeout=900)
        parts.append(tables(tmp_path / "parts" / f"shard-{n}-of-2"))
    assert not parts[0].keys() & parts[1].keys()
    assert parts[0].keys() | parts[1].keys() == tables(tmp_path / "whole").keys()
    assert len(parts[0]) == len(parts[1]) == 2
    files = sorted((tmp_path / "parts").rglob("*.yaml"))
    qkvc("tuned", "merge", *files, "-o", tmp_path / "merged", timeout=60)
    assert tables(tmp_path / "merged") == parts[0] | parts[1]


def test_unwritable_output_is_refused_first(fresh, tmp_path):
    spec = write_spec(tmp_path, "nowhere", ONE)
    (tmp_path / "file").write_text("")
    result = fresh("tune", spec, *EMU, "-o", tmp_path / "file" / "tables", code=1)
    assert "file/tables" in result.err and "compiling" not in result.err, result
    result = fresh("tune", spec, *EMU, "-o", tmp_path / "tables", "--csv", tmp_path / "file" / "x.csv", code=1)
    assert "x.csv" in result.err and "compiling" not in result.err, result
    result = fresh("tune", spec, *EMU, "--cache-dir", "", code=1)
    assert "tuned_dir" in result.err or "-o DIR" in result.err, result


def test_dry_run_needs_no_device(fresh):
    result = fresh("tune", "specs/llama3_8b.yaml", "--dry-run", "--device", "none", "--arch", "sm_90a")
    assert result.out.count("llama3_8b") == 2 and "decode_b32" in result.out and "estimate" in result.out, result
    less = fresh("tune", "specs/llama3_8b.yaml", "--dry-run", "--device", "none", "--arch", "sm_90a", "--phase", "prefill",
                 "--workload", "chunk_512", "--workload", "2x128x256", "--shard", "1/1")
    assert "chunk_512" in less.out and "2x128x256" in less.out and "prefill_4k" not in less.out, less
    assert "decode" not in less.out, less


@pytest.mark.parametrize("words, says", [
    (("--quick", "--full"), "--full"),
    (("--budget", "10x"), "10x"),
    (("--budget", "0"), "--budget"),
    (("--phase", "backward"), "backward"),
    (("--shard", "3/2", "-o", "x"), "3/2"),
    (("--shard", "1/2"), "-o DIR"),
    (("--workload", "twoo"), "twoo"),
    (("--workload", "1x0x5"), "1x0x5"),
    (("--time-limit", "-1"), "--time-limit"),
    (("--device", "none"), "none"),
    (("--phase", "decode"), "nothing to tune"),
])
def test_usage_errors(fresh, tmp_path, words, says):
    spec = write_spec(tmp_path, "usage", ONE)
    device = () if "--device" in words else ("--device", "emu")
    result = fresh("tune", spec, *device, *words, code=2, cwd=tmp_path)
    assert says in result.err, result
    assert not list(tmp_path.rglob("journal.jsonl"))


def test_errors_before_anything_starts(fresh, tmp_path):
    result = fresh("tune", tmp_path / "absent.yaml", "--device", "emu", code=3)
    assert "absent.yaml" in result.err, result
    result = fresh("tune", write_spec(tmp_path, "x", ONE), "--device", "cuda:77", code=5)
    assert "cuda:77" in result.err or "driver" in result.err, result


@needs_no_gpu
def test_the_emulator_is_never_tuned_unasked(fresh, tmp_path):
    """Workloads of a GPU would take it for weeks."""
    assert "emu" in fresh("tune", write_spec(tmp_path, "x", ONE), code=5).err


def test_decode_of_one_and_of_several_queries(qkvc, few, tmp_path):
    """One group, though its workloads may take different families; here both are in one bucket, which has one schedule."""
    spec = write_spec(tmp_path, "rows", STEP + "  - {name: draft, batch: 2, q: 4, kv: 60}\n")
    result = qkvc("tune", spec, *EMU, "--template-path", few, "-o", tmp_path / "tables", "--json", timeout=900)
    group, = result.json()["groups"]
    assert group["phase"] == "decode" and [c["tuned"] for c in group["choices"]] == [True] * 3, result
    assert {bucket for _, _, bucket in tables(tmp_path / "tables")} == {"any", "b2 r8 k64"}, result
    one, draft, _ = group["choices"]
    assert one["schedule"] == draft["schedule"] and one["seconds"] != draft["seconds"], result


def ask_worker(cache, *questions):
    done = subprocess.run([QKVC, "tune-worker", "--device", "emu"], input="".join(q + "\n" for q in questions), text=True,
                          capture_output=True, timeout=60, env={**os.environ, "QKV_CACHE_DIR": str(cache)})
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_worker(qkvc, tmp_path):
    """It is hidden, says what it works on, and survives questions that cannot be answered."""
    assert "tune-worker" not in qkvc("help").out
    spec = json.dumps(str(write_spec(tmp_path, "worker", ONE)))
    done, (hello, absent, unknown, wrong, lost) = ask_worker(
        qkvc.cache, '{"ask":"check","spec":"absent.yaml"}', f'{{"ask":"dance","spec":{spec}}}',
        f'{{"ask":"check","spec":{spec},"phase":"prefill","family":"{FAMILY}","schedule":"tile_n=7","q":33}}',
        f'{{"ask":"write","spec":{spec},"entries":1}}')
    assert done.returncode == 0
    assert hello["status"] == "ok" and hello["kind"] == "emu"
    assert absent["status"] == unknown["status"] == "failed" and "absent.yaml" in absent["reason"]
    assert wrong["status"] == "error" and "tile_n" in wrong["reason"]
    assert lost["status"] == "failed" and "0 of 1 entries" in lost["reason"]  # of a worker before it
    assert len(ask_worker(qkvc.cache, "no record", '{"ask":"check"}')[1]) == 1


def test_worker_builds(qkvc, tmp_path):
    """A candidate's kernels, or those of a family by its default; what does not compile says so in one line."""
    spec = json.dumps(str(write_spec(tmp_path, "builds", ONE)))
    ask = f'{{"ask":"build","spec":{spec},"phase":"prefill","family":"%s"%s,"unaligned":1}}'
    _, (_, default, chosen, illegal) = ask_worker(qkvc.cache, ask % ("attention_naive", ""),
                                                  ask % (FAMILY, ',"schedule":"tile_n=32"'), ask % (FAMILY, ',"schedule":"tile_n=7"'))
    assert default["status"] == chosen["status"] == "ok", (default, chosen)
    assert len(default["key"]) == len(chosen["key"]) == 32 and default["key"] != chosen["key"]
    assert illegal["status"] == "compile" and "tile_n" in illegal["reason"] and "\n" not in illegal["reason"]
