"""cache gc and export from outside, and directories that cannot be written. What ls, verify and clear do is in
test_gen_build.py."""

import os
import subprocess
import time

import pytest

from command_line import QKVC, ROOT

OLD = 3600


@pytest.fixture
def filled(fresh, small):
    """Two kernels of one spec, one of another family, used an hour ago."""
    fresh("build", small, "--device", "emu")
    fresh("build", small, "--device", "emu", "--schedule", "tile_m=64,tile_n=32")
    fresh("build", small, "--device", "emu", "--family", "attention_naive")
    for n, entry in enumerate(entries(fresh.cache)):
        os.utime(entry, (time.time() - OLD - n, time.time() - OLD - n))
    return fresh


def entries(folder):
    return sorted(folder.glob("*.kernel"))


def test_gc(filled):
    sizes = {entry.name: entry.stat().st_size for entry in entries(filled.cache)}
    total, oldest = sum(sizes.values()), entries(filled.cache)[-1].name
    kept = filled("cache", "gc", "--json").json()
    assert kept == {"path": str(filled.cache), "dry_run": False, "removed": 0, "removed_bytes": 0, "count": 3,
                    "bytes": total, "in_use": 0}
    words = "cache", "gc", "--max-bytes", total - 1
    assert "would remove 1 entry" in filled(*words, "--dry-run").out and len(entries(filled.cache)) == 3
    done = filled(*words, "--json").json()
    assert (done["removed"], done["removed_bytes"], done["bytes"]) == (1, sizes[oldest], total - sizes[oldest])
    assert oldest not in [entry.name for entry in entries(filled.cache)], "the one used longest ago goes first"
    assert filled("cache", "gc", "--older-than", "2h").out.startswith("removed 0 entries")
    assert filled("cache", "gc", "--older-than", "59min").out.startswith("removed 2 entries")


def test_gc_leaves_what_was_just_used(fresh, small):
    fresh("build", small, "--device", "emu")
    result = fresh("cache", "gc", "--max-bytes", "0")
    assert result.out.startswith("removed 0 entries") and "1 more would go, but are in use" in result.err, result


def test_gc_by_the_limit_of_the_environment(filled):
    assert filled("cache", "gc", env={"QKV_CACHE_MAX_BYTES": "0"}).out.startswith("removed 3 entries")


def test_export(filled, small, tmp_path):
    out = tmp_path / "with ä" / "shipped"
    assert filled("cache", "export", "-o", out).out == f"exported 3 entries to {out}\n"
    for entry in entries(filled.cache):
        assert (out / entry.name).read_bytes() == entry.read_bytes()
    assert sorted(path.name for path in out.iterdir()) == [entry.name for entry in entries(filled.cache)]
    moved = out.rename(tmp_path / "elsewhere")
    moved.chmod(0o555)
    try:
        words = "run", small, "--device", "emu", "--q", "20", "--json"
        result = filled(*words, "--cache-dir", moved, env={"QKV_DISABLE_JIT": "1"})
        assert result.json()["ok"] and result.json()["from_cache"] and not result.err, result
    finally:
        moved.chmod(0o755)


def test_export_filters(filled, small, tmp_path):
    def exported(*words, code=0):
        folder = tmp_path / "-".join(str(word).replace("/", "_") for word in words)
        return filled("cache", "export", "-o", folder, "--json", *words, code=code).json()["exported"]

    assert exported("--family", "attention_naive") == 1
    assert exported("--arch", "sm_80") == 3 and exported("--arch", "sm_90a", code=1) == 0
    assert exported(small) == 3 and exported("specs/minilm_l6.yaml", code=1) == 0
    assert exported("specs/minilm_l6.yaml", small, "--family", "attention_forward_sm80") == 2


def test_export_leaves_damage_out(filled, tmp_path):
    victim = entries(filled.cache)[1]
    victim.write_bytes(victim.read_bytes()[:-1])
    result = filled("cache", "export", "-o", tmp_path / "out")
    assert "exported 2 entries" in result.out and "1 corrupt entry was left out" in result.err, result
    assert not (tmp_path / "out" / victim.name).exists()


def test_export_to_where_it_cannot(filled, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot export to" in filled("cache", "export", "-o", tmp_path / "file", code=1).err
    assert "the cache directory itself" in filled("cache", "export", "-o", filled.cache, code=2).err
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "everybody may write" in filled("cache", "export", "-o", tmp_path / "open", code=1).err


def test_gc_leaves_what_a_process_has_loaded(filled, small, tmp_path):
    """A process that sleeps in its compiler has the entries it loaded before: no gc takes them, however old they are."""
    slow, waiting, go = tmp_path / "g++", tmp_path / "waiting", tmp_path / "go"
    slow.write_text(f"#!/bin/sh\n[ $1 = --version ] && exec g++ --version\n: > {waiting}\n"
                    f"until [ -e {go} ]; do sleep 0.02; done\nexec g++ \"$@\"\n")
    slow.chmod(0o755)
    env = {**os.environ, "QKV_CACHE_DIR": str(filled.cache), "QKV_EMU_CXX": str(slow)}
    running = subprocess.Popen([QKVC, "build", small, "specs/minilm_l6.yaml", "-j", "1", "--device", "emu"], env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(3000):
            if waiting.exists() or running.poll() is not None:
                break
            time.sleep(0.02)
        assert waiting.exists(), running.communicate()[0]
        for entry in entries(filled.cache):
            os.utime(entry, (time.time() - OLD, time.time() - OLD))
        report = filled("cache", "gc", "--max-bytes", "0", "--json").json()
        assert (report["removed"], report["count"], report["in_use"]) == (2, 1, 1), report
    finally:
        go.touch()
        said = running.communicate(timeout=120)[0]
    assert running.returncode == 0 and "2 built (1 from the cache)" in said, said
    for entry in entries(filled.cache):
        os.utime(entry, (time.time() - OLD, time.time() - OLD))
    assert filled("cache", "gc", "--max-bytes", "0", "--json").json()["removed"] == 2, "the process is gone"


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """tests/fault/filesystem.c as a library to be loaded before libc."""
    library = tmp_path_factory.mktemp("fault") / "fault.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-D_GNU_SOURCE", "-o", library, ROOT / "tests/fault/filesystem.c"],
                   check=True)
    return library


@pytest.mark.parametrize("fault", ["opendir:EIO", "readdir:EIO:1"])
def test_a_directory_that_cannot_be_read(filled, shim, tmp_path, fault):
    """Is no empty one: a verification that saw nothing must not say that all is well."""
    env = {"LD_PRELOAD": shim, "QKV_FAULT": fault, "QKV_FAULT_UNDER": filled.cache}
    for words in (["ls"], ["ls", "--json"], ["verify"], ["gc", "--max-bytes", "0"], ["clear", "--invalid"],
                  ["export", "-o", tmp_path / "out"]):
        result = filled("cache", *words, env=env, code=1)
        assert f"{filled.cache}: Input/output error" in result.err, result
    assert len(entries(filled.cache)) == 3


def test_entries_of_later_versions_are_left_alone(filled):
    newer = filled.cache / ("0" * 32 + ".kernel")
    newer.write_bytes(b"qkvcache" + (7).to_bytes(4, "little") + bytes(500))
    assert "4 entries" in filled("cache", "verify").out
    rows = filled("cache", "ls", "--json").json()
    assert rows["corrupt"] == 0 and [row["newer"] for row in rows["entries"]].count(True) == 1
    assert "  newer" in filled("cache", "ls").out
    assert filled("cache", "clear", "--invalid").out == "removed 0 entries\n" and newer.exists()


@pytest.mark.parametrize("fault,warm", [
    ("open:ENOENT:0:1", True),    # what another host has just renamed is not seen here yet
    ("open:ESTALE:0:1", True), ("read:ESTALE:0:1", True), ("read:short", True), ("read:EIO", True),
    ("rename:+ENOENT", False),    # done, and the reply got lost
    ("rename:lost", False), ("rename:EBUSY", False), ("unlink:EBUSY", False), ("write:ENOSPC", False),
    ("write:short", False), ("fsync:EDQUOT", False), ("mkdir:EROFS", False), ("flock:ENOLCK", False)])
def test_failing_file_system(fresh, small, shim, fault, warm):
    """The program as users have it, on a file system that fails: right results, at most one warning, nothing damaged."""
    words = "run", small, "--device", "emu", "--q", "20", "--json"
    if warm:
        fresh(*words)
    result = fresh(*words, env={"LD_PRELOAD": shim, "QKV_FAULT": fault, "QKV_FAULT_UNDER": fresh.cache})
    assert result.json()["ok"] and result.err.count("warning") <= 1, result
    fresh("cache", "verify")
    assert fresh(*words).json()["ok"] and fresh(*words).json()["from_cache"]
