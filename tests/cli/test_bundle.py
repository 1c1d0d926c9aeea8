"""bundle and pack: what goes in serves without a compiler; the same inputs give the same bytes; damage is named."""

import pathlib
import shutil
import subprocess

import pytest

from command_line import QKVC, Qkvc, needs_nvrtc

NOTHING = {"PATH": "", "QKV_NVRTC": "/nonexistent", "QKV_EMU_CXX": "/nonexistent", "QKV_CACHE_DIR": "",
           "QKV_DISABLE_JIT": "1"}


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("specs")
    for name, dtype, more in (("one", "f16", "outputs: [o, lse]\n"), ("two", "bf16", "")):
        (folder / f"{name}.yaml").write_text(
            f"qkvc: 1\nname: {name}\n"
            f"attention: {{heads: {{q: 2, kv: 1}}, dim: 16, dtype: {dtype}, mask: causal}}\n{more}"
            "workloads: [{name: tiny, batch: 1, q: 20, kv: 37}]\n")
    return folder


@pytest.fixture(scope="module")
def pack(specs, shared_cache):
    path = specs / "both.qkvpack"
    Qkvc(shared_cache)("bundle", specs / "one.yaml", specs / "two.yaml", "--device", "emu", "-o", path)
    return path


def test_it_serves_without_a_compiler(qkvc, pack, specs, tmp_path):
    moved = tmp_path / "elsewhere.bin"
    shutil.copy(pack, moved)
    for name in ("one", "two"):
        result = qkvc("run", specs / f"{name}.yaml", "--device", "emu", env={**NOTHING, "QKV_PACKS": moved})
        assert "PASS" in result.out or "ok" in result.out, result


def test_what_is_missing_is_named(qkvc, pack, specs):
    result = qkvc("run", specs / "one.yaml", "--device", "emu", "--arch", "sm_90a", env={**NOTHING, "QKV_PACKS": pack},
                  code=4)
    for part in ("spec one", "primary: attention_forward_sm90 for sm_90a, phase prefill, schedule warpgroups=",
                 "qkvc bundle one.yaml --device emu --arch sm_90a", str(pack)):
        assert part in result.err, result


def test_the_named_command_makes_it(fresh, specs, tmp_path):
    """What the message says is what helps."""
    env = {"QKV_DISABLE_JIT": "1"}
    said = fresh("run", specs / "one.yaml", "--device", "emu", env=env, code=4).err
    command = said[said.index("qkvc bundle ") + len("qkvc "):].splitlines()[0].split()
    assert command[1] == "one.yaml"
    command[1], command[-1] = specs / "one.yaml", tmp_path / "made.qkvpack"
    fresh(*command, env={"QKV_CACHE_DIR": ""})
    fresh("run", specs / "one.yaml", "--device", "emu", env={**env, "QKV_PACKS": tmp_path / "made.qkvpack"})


def test_the_bytes_follow_from_the_inputs(fresh, specs, tmp_path, pack):
    """Another cache, another order, another number of threads."""
    path = tmp_path / "again.qkvpack"
    fresh("bundle", specs / "two.yaml", specs / "one.yaml", "--device", "emu", "-o", path, "-j", "1",
          env={"TMPDIR": tmp_path})
    assert path.read_bytes() == pack.read_bytes()


def test_ls_shows_and_verifies(qkvc, pack, tmp_path):
    listing = qkvc("pack", "ls", pack).out
    assert "attention_forward_sm80" in listing and "one g++ sm_80" in listing and "0 damaged" in listing
    records = qkvc("pack", "ls", pack, "--json").json()["records"]
    assert {record["kind"] for record in records} == {"kernel", "request", "spec"}
    assert {record["name"] for record in records if record["kind"] == "spec"} == {"one", "two"}
    assert any("phase=merge" in record["name"] for record in records), "one asks for lse, so it can be merged"
    damaged = bytearray(pack.read_bytes())
    damaged[-1] ^= 1
    bad = tmp_path / "bad.qkvpack"
    bad.write_bytes(damaged)
    result = qkvc("pack", "ls", bad, code=1)
    assert "DAMAGED" in result.out and "1 damaged" in result.out
    bad.write_bytes(damaged[:-1])
    assert str(bad) in qkvc("pack", "ls", bad, code=1).err
    newer = bytearray(pack.read_bytes())
    newer[8] = 2
    bad.write_bytes(newer)
    assert "newer" in qkvc("pack", "ls", bad, code=None).err
    assert bad.read_bytes() == newer, "left alone"
    assert "absent" in qkvc("pack", "ls", tmp_path / "absent", code=1).err


def test_a_start_takes_milliseconds(qkvc, pack):
    result = qkvc("pack", "time", pack, "--device", "emu", "--most", "100", "--repeats", "7")
    assert "0 sources rendered" in result.out and "one" in result.out
    assert "more than" in qkvc("pack", "time", pack, "--device", "emu", "--most", "0.001", code=1).err


def test_as_c(qkvc, pack, specs, tmp_path):
    """The array holds the pack's bytes; a program with it compiles as C and its header as C++."""
    qkvc("bundle", specs / "one.yaml", specs / "two.yaml", "--device", "emu", "--c-array", "-o",
         tmp_path / "my-kernels.c")
    (tmp_path / "main.c").write_text('#include <stdio.h>\n#include "my-kernels.h"\nint main(void) {\n'
                                     "  return fwrite(my_kernels, 1, my_kernels_size, stdout) != my_kernels_size;\n}\n")
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "main", "main.c", "my-kernels.c"],
                   cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == pack.read_bytes()
    text = (tmp_path / "my-kernels.c").read_text()
    assert str(tmp_path) not in text and max(map(len, text.splitlines())) <= 120


def test_limits_and_phases(qkvc, specs, tmp_path):
    path = tmp_path / "a.qkvpack"
    qkvc("bundle", specs / "two.yaml", "--device", "emu", "--arch", "sm_90a", "-o", path, "--phase", "prefill",
         "--aligned-only", "--limits", "len_q=4096,batch=2", "--limits", "len_q=64")
    names = [record["name"] for record in qkvc("pack", "ls", path, "--json").json()["records"]
             if record["kind"] == "request"]
    assert sorted(names) == [f"two g++ sm_90a phase=prefill batch={b} len_q={n}" for b, n in ((0, 0), (0, 64), (2, 4096))], names
    kernels = [record for record in qkvc("pack", "ls", path, "--json").json()["records"] if record["kind"] == "kernel"]
    assert len(kernels) < 3 * 2


@pytest.mark.parametrize("words, code, says", [
    (["-o", "/nonexistent/a"], 1, "/nonexistent"),
    (["-o", "."], 1, ". cannot be written: it names no file"),
    (["-o", "a/"], 1, "a/ cannot be written: it names no file"),
    (["-o", ""], 1, "it names no file"),
    ([], 2, "--output"),
    (["-o", "a", "--limits", "len=4"], 2, "len=4"),
    (["-o", "a", "--limits", "batch=x"], 2, "batch=x"),
    (["-o", "a", "--phase", "lunch"], 2, "lunch"),
    (["-o", "a", "--arch", "sm_999"], 2, "sm_999"),
    (["-o", "a", "--phase", "append"], 3, "append"),
    (["-o", "a", "--template-path", "/tmp"], 2, "built-in templates"),
])
def test_wrong_words_are_named(qkvc, specs, tmp_path, words, code, says):
    result = qkvc("bundle", specs / "one.yaml", "--device", "emu", *words, code=code, cwd=tmp_path)
    assert says in result.err, result
    assert not (tmp_path / "a").exists()


def test_phases_follow_from_the_spec(qkvc, specs, tmp_path):
    """Append where there is such a section, and an error where no kernel can do it: nothing is left out unsaid."""
    served = (specs / "two.yaml").read_text().replace("workloads", "append: {slots: lengths}\nworkloads").replace(
        "name: two\n", "name: served\nlayout: {q: ragged, kv: {paged: {page: 16, order: nhd}}}\n")
    (tmp_path / "served.yaml").write_text(served)
    qkvc("bundle", tmp_path / "served.yaml", specs / "one.yaml", "--device", "emu", "-o", tmp_path / "a")
    names = {record["name"].split(" len_q")[0] for record in qkvc("pack", "ls", tmp_path / "a", "--json").json()["records"]
             if record["kind"] == "request"}
    assert names == {"served g++ sm_80", "served g++ sm_80 phase=append", "one g++ sm_80", "one g++ sm_80 phase=merge"}


def test_names_are_unique(qkvc, specs, tmp_path):
    twin = tmp_path / "twin.yaml"
    twin.write_text((specs / "two.yaml").read_text().replace("two", "one"))
    result = qkvc("bundle", specs / "one.yaml", twin, "--device", "emu", "-o", tmp_path / "a", code=2)
    assert "two specs are named 'one'" in result.err and not (tmp_path / "a").exists()


@needs_nvrtc
def test_for_gpus(qkvc, specs, tmp_path):
    """Images of several architectures in one file, without line numbers."""
    path = tmp_path / "a.qkvpack"
    qkvc("bundle", specs / "one.yaml", "--arch", "sm_80,sm_90a", "-o", path)
    records = qkvc("pack", "ls", path, "--json").json()["records"]
    assert {record["arch"] for record in records if record["kind"] == "kernel"} == {"sm_80", "sm_90a"}
    assert b".debug_line" not in path.read_bytes() and b"__global__" not in path.read_bytes()
    assert qkvc("bundle", specs / "one.yaml", "--arch", "sm_80,sm_90a", "-o", tmp_path / "b", env={"QKV_CACHE_DIR": ""})
    assert (tmp_path / "b").read_bytes() == path.read_bytes()


def test_the_example_runs_with_nothing_at_hand(qkvc):
    """Built with its kernels inside; neither compilers nor files at run time."""
    program = pathlib.Path(QKVC).parent / "packed"
    if not program.exists():
        pytest.skip("examples/packed.c is not built")
    done = subprocess.run([program, "emu"], env={name: value for name, value in NOTHING.items()}, cwd="/",
                          capture_output=True, text=True)
    assert done.returncode == 0 and "0 sources generated, 0 compiled" in done.stdout, done.stdout + done.stderr
