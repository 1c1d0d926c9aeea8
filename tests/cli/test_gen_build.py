"""gen, build and cache."""

import os
import re
import subprocess
import time

import pytest

from command_line import QKVC, needs_nvrtc


def test_gen_is_the_same_in_two_processes(qkvc, small):
    first = qkvc("gen", small).out
    assert first == qkvc("gen", small, env={"QKV_CACHE_DIR": "", "MALLOC_PERTURB_": "85"}).out
    assert "__global__" in first and "$(" not in first and "#include" not in first
    assert str(small.parent) not in first, "no path in the source"


def test_gen_to_a_file(qkvc, small, tmp_path):
    out = tmp_path / "kernel.cu"
    assert qkvc("gen", small, "-o", out).out == ""
    assert out.read_text() == qkvc("gen", small).out == qkvc("gen", small, "-o", "-").out
    assert "No such file" in qkvc("gen", small, "-o", tmp_path / "no" / "k.cu", code=1).err


def test_gen_does_not_leave_half_a_file(qkvc, bad, tmp_path):
    out = tmp_path / "kernel.cu"
    qkvc("gen", bad, "-o", out, code=3)
    assert not out.exists()


def test_gen_takes_schedule_arch_family_alignment(qkvc, small):
    plain = qkvc("gen", small).out
    other = qkvc("gen", small, "--schedule", "tile_m=64,tile_n=32").out
    assert other != plain and "TILE_M = 64" in other and "TILE_N = 32" in other
    assert "sm_90a" in qkvc("gen", small, "--arch", "sm_90a").out
    assert qkvc("gen", small, env={"QKV_ARCH": "sm_90a"}).out == qkvc("gen", small, "--arch", "sm_90a").out
    assert qkvc("gen", small, "--unaligned").out != plain
    assert "attention_naive" in qkvc("gen", small, "--family", "attention_naive").out


@pytest.mark.parametrize("words, code, says", [
    (["--arch", "sm_999"], 2, "sm_999"),
    (["--arch", "compute_80"], 2, "compute_80"),
    (["--schedule", "tile_q=64"], 2, "tile_q"),
    (["--schedule", "tile_m=63"], 2, "tile_m"),
    (["--schedule", "tile_m"], 2, "tile_m"),
    (["--schedule", "tile_m=banana"], 2, "tile_m"),
    (["--family", "attention_forward_sm8"], None, "attention_forward_sm8"),
    (["--phase", "lunch"], None, "lunch"),
])
def test_wrong_choices_are_named(qkvc, small, words, code, says):
    for command in ("gen", "build"):
        result = qkvc(command, small, *words, code=code)
        assert result.code in (1, 2, 3) and says in result.err, result


def test_template_error_is_located(qkvc, small, tmp_path):
    original = qkvc("gen", small).out
    kernels = tmp_path / "templates" / "kernels"
    kernels.mkdir(parents=True)
    root = os.path.join(os.path.dirname(__file__), "..", "..", "templates", "kernels")
    text = open(os.path.join(root, "attention_forward_sm80.cu")).read()
    (kernels / "attention_forward_sm80.cu").write_text(text + "\n//% local x = no_such_name + 1\n")
    result = qkvc("gen", small, "--template-path", tmp_path / "templates", code=4)
    line = text.count("\n") + 2
    assert f"attention_forward_sm80.cu:{line}" in result.err and "no_such_name" in result.err, result
    (kernels / "attention_forward_sm80.cu").write_text(text)
    assert qkvc("gen", small, "--template-path", tmp_path / "templates").out == original


@needs_nvrtc
def test_build_for_several_architectures(fresh, small, small_bf16):
    arches = ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]
    report = fresh("build", small, small_bf16, "--arch", ",".join(arches), "--json").json()
    assert report["failed"] == 0
    assert [row["arch"] for row in report["builds"]] == arches * 2
    for row in report["builds"]:
        kernel = row["kernels"][0]
        assert not row["from_cache"] and row["image_bytes"] > 1000 and re.fullmatch("[0-9a-f]{32}", row["key"])
        assert 0 < kernel["registers"] <= 255 and kernel["threads"] % 32 == 0 and kernel["shared_bytes"] > 0
    again = fresh("build", small, small_bf16, "--arch", ",".join(arches), "--json").json()
    assert all(row["from_cache"] for row in again["builds"])
    assert [row["key"] for row in again["builds"]] == [row["key"] for row in report["builds"]]
    table = fresh("build", small, "--arch", "sm_80").out
    assert re.search(r"^small +sm_80 .*\(cache\)", table, re.M) and "1 built (1 from the cache), 0 failed" in table


@needs_nvrtc
def test_build_tries_all_and_fails_if_one_does(fresh, small, bad):
    result = fresh("build", bad, small, "no/such.yaml", "--arch", "sm_80", code=3)
    assert "1 built" in result.out and "2 failed" in result.out, result
    assert f"{bad}:5:" in result.err and "no/such.yaml" in result.err, result
    rows = fresh("build", bad, small, "--arch", "sm_80,sm_999", "--json", code=3).json()["builds"]
    assert [row["ok"] for row in rows] == [False, False, True, False]


@needs_nvrtc
def test_compile_error_names_the_template_line(fresh, small, tmp_path):
    kernels = tmp_path / "templates" / "kernels"
    kernels.mkdir(parents=True)
    root = os.path.join(os.path.dirname(__file__), "..", "..", "templates", "kernels")
    text = open(os.path.join(root, "attention_forward_sm80.cu")).read()
    (kernels / "attention_forward_sm80.cu").write_text(text + "\nint broken = undeclared_name;\n")
    result = fresh("build", small, "--arch", "sm_80", "--template-path", tmp_path / "templates", code=4)
    assert "undeclared_name" in result.err and f"attention_forward_sm80.cu:{text.count(chr(10)) + 2}" in result.err, result
    assert "0 entries" in fresh("cache", "ls").out, "nothing is published"


@needs_nvrtc
def test_lost_speed_is_told(fresh, small, tmp_path):
    """A planted loss shows in the table, as a warning and as JSON, from the compiler and from the cache alike."""
    root = os.path.join(os.path.dirname(__file__), "..", "..", "templates", "kernels")
    text = open(os.path.join(root, "attention_forward_sm80.cu")).read()
    kernels = tmp_path / "templates" / "kernels"
    kernels.mkdir(parents=True)
    other = 'extern "C" __global__ void other() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }'
    (kernels / "attention_forward_sm80.cu").write_text(text + "\n" + other + "\n")
    words = ["build", small, "--arch", "sm_90a", "--family", "attention_forward_sm80"]
    planted = [*words, "--template-path", tmp_path / "templates"]
    warning = "qkvc: warning: small sm_90a: qkv_kernel: setmaxnreg ignored (C7508): "
    for times in range(2):
        result = fresh(*planted)
        assert result.err.count(warning) == result.err.count("\n") == 1, result
        assert re.search(r"^small +sm_90a +qkv_kernel +\d+ +0 +1 ", result.out, re.M), result
        assert f"1 built ({times} from the cache), 0 failed, 0 spilling, 1 with advisories" in result.out, result
        result = fresh(*planted, "--json")
        row = result.json()["builds"][0]
        assert row["advisories"].startswith("qkv_kernel: setmaxnreg ignored (C7508): "), result
        assert row["kernels"][0]["ignored_setmaxnreg"] == 1 and row["kernels"][0]["serialised_wgmma"] == 0, result
        assert warning in result.err, result
    result = fresh(*words)
    assert not result.err and "0 with advisories" in result.out, result


@needs_nvrtc
def test_read_only_cache(fresh, small, tmp_path):
    """A cache that cannot be written costs one warning, never the build. Root may write anywhere, so the folder is a file."""
    blocked = tmp_path / "blocked"
    blocked.write_text("not a folder")
    result = fresh("build", small, "--arch", "sm_80", env={"QKV_CACHE_DIR": blocked / "cache"})
    assert "1 built" in result.out and result.err.count("warning") == 1, result


@needs_nvrtc
def test_memory_only_cache(fresh, small):
    result = fresh("build", small, "--arch", "sm_80", "--cache-dir", "")
    assert "1 built" in result.out and not result.err, result


def test_no_jit(fresh, small):
    result = fresh("build", small, "--arch", "sm_80", env={"QKV_DISABLE_JIT": "1"}, code=4)
    assert "QKV_DISABLE_JIT" in result.err and "attention_forward_sm80" in result.err, result


def entry_files(cache):
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 500)


def test_cache_life(fresh, small):
    assert fresh("cache", "path").out.strip() == str(fresh.cache)
    assert "0 entries" in fresh("cache", "ls").out
    fresh("build", small, "--device", "emu")
    fresh("build", small, "--device", "emu", "--schedule", "tile_m=64,tile_n=32")
    listing = fresh("cache", "ls", "--json").json()
    assert listing["count"] == 2 and listing["corrupt"] == 0 and listing["path"] == str(fresh.cache)
    assert all(entry["family"] == "attention_forward_sm80" and entry["valid"] for entry in listing["entries"])
    assert "2 entries" in fresh("cache", "verify").out
    assert fresh("cache", "clear").out == "removed 2 entries\n"
    assert "0 entries" in fresh("cache", "ls").out


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_corrupt_entry(fresh, small, damage):
    words = ("run", small, "--device", "emu", "--q", "8", "--json")
    good = fresh(*words).json()
    assert not good["from_cache"] and fresh(*words).json()["from_cache"]
    for file in entry_files(fresh.cache):
        bytes_ = bytearray(file.read_bytes())
        if damage == "flip":
            bytes_[len(bytes_) // 2] ^= 1
        file.write_bytes({"truncate": bytes_[: len(bytes_) // 2], "flip": bytes_, "empty": b"", "garbage": os.urandom(2000)}[damage])
    verify = fresh("cache", "verify", code=1)
    assert "CORRUPT" in verify.out and "cache clear --invalid" in verify.err, verify
    again = fresh(*words)
    assert not again.json()["from_cache"] and again.json()["ok"] and "warning" in again.err, again
    assert fresh(*words).json()["from_cache"], "the entry was rebuilt"
    fresh("cache", "clear", "--invalid")
    fresh("cache", "verify")
    assert fresh(*words).json()["from_cache"], "clear --invalid keeps what is right"


@needs_nvrtc
def test_a_filled_cache_needs_no_compiler(fresh, small):
    """As in a slim image: kernels are built where there is a compiler and used where there is none."""
    without = {"QKV_NVRTC": "/nowhere/libnvrtc.so", "QKV_EMU_CXX": "/nowhere/g++"}
    assert "was not found" in fresh("build", small, "--arch", "sm_90a", env=without, code=4).err
    assert "g++" in fresh("run", small, "--device", "emu", "--q", 8, env=without, code=4).err
    fresh("build", small, "--arch", "sm_90a")
    fresh("run", small, "--device", "emu", "--q", 8)
    assert fresh("build", small, "--arch", "sm_90a", "--json", env=without).json()["builds"][0]["from_cache"]
    assert fresh("run", small, "--device", "emu", "--q", 8, "--json", env=without).json()["ok"]
    fresh("build", small, "--arch", "sm_80", env=without, code=4)


def test_build_for_the_emulator(fresh, small):
    """What was built beforehand runs where compiling is forbidden."""
    fresh("run", small, "--device", "emu", "--q", 8, env={"QKV_DISABLE_JIT": "1"}, code=4)
    for phase in "decode", "prefill":  # of 8 queries, and of 20
        report = fresh("build", small, "--device", "emu", "--phase", phase, "--json").json()["builds"][0]
        assert report["kernels"][0]["registers"] == -1, report
    for queries in 8, 20:
        words = "run", small, "--device", "emu", "--q", queries, "--json"
        assert fresh(*words, env={"QKV_DISABLE_JIT": "1"}).json()["ok"]


def test_too_many_architectures(qkvc, small):
    assert "16" in qkvc("build", small, "--arch", ",".join(["sm_80"] * 17), code=2).err


def test_size_limit_that_is_no_number(qkvc):
    assert "QKV_CACHE_MAX_BYTES" in qkvc("cache", "ls", env={"QKV_CACHE_MAX_BYTES": "1G"}).err


@needs_nvrtc
def test_many_processes_and_some_die(fresh, small, tmp_path):
    """Ten processes want one kernel of an empty cache; three are killed on the way. The others succeed, one entry is left,
    and what the dead left behind is not taken for an entry."""
    env = {**os.environ, "QKV_CACHE_DIR": str(fresh.cache)}
    running = [subprocess.Popen([QKVC, "build", str(small), "--arch", "sm_80"], env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for _ in range(10)]
    for n, process in enumerate(running[:3]):
        time.sleep(0.02 * n)
        process.kill()
    for process in running[3:]:
        said = process.communicate(timeout=120)[0]
        assert process.returncode == 0 and "1 built" in said, said
    for process in running[:3]:
        process.communicate()
    listing = fresh("cache", "ls", "--json").json()
    assert listing["count"] == 1 and listing["corrupt"] == 0, listing
