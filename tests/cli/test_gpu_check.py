"""tools/gpu_check.sh without a GPU: fake programs in place of the built ones, and a fake interpreter."""

import os
import subprocess

import pytest

from command_line import ROOT

SCRIPT = ROOT / "tools" / "gpu_check.sh"
PASSES = "echo \"$@\"; echo '7 passed, 0 failed, 2 refused as allowed; greatest error 0.31 of its tolerance; 0.1 s'"
NO_MODULES = "exit 1"
# An interpreter with every module, whose pytest shows what it was given.
PYTHON = ('case $1 in -c) echo ;; *) echo "device: ${QKV_TEST_DEVICE:-none}; library: $QKV_LIBRARY; $*";'
          'echo "3 passed in 1s" ;; esac')


def program(path, body):
    path.write_text("#!/bin/sh\n%s\n" % body)
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    for name in ("qkvc", "conformance", "primitives"):
        program(folder / name, PASSES)
    (folder / "libqkv.so.0").write_text("")
    program(tmp_path / "python", NO_MODULES)
    return folder


def check(tree, *words, code=0):
    """(stdout, stderr) of one run, whose logs lie beside the tree."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("QKV_")}
    env.update(OUT=str(tree.parent / "logs"), PYTHON=str(tree.parent / "python"))
    done = subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, "gpu_check.sh %s: exit code %d\n%s%s" % (words, done.returncode, done.stdout,
                                                                            done.stderr)
    return done.stdout, done.stderr


def stages(out):
    """{name: ok, FAILED or left} of the lines of stages."""
    lines = [line.split() for line in out.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) > 1 and line[1] in ("ok", "FAILED", "left")}


def log(tree, name):
    return (tree.parent / "logs" / (name + ".log")).read_text()


def test_help(tree):
    out, _ = check(tree, "--help")
    assert "--quick" in out and "Exit code" in out and not out.startswith("#") and out == check(tree, "-h")[0]


@pytest.mark.parametrize("words, says", [
    (["--fast"], "no option --fast"),
    (["nowhere"], "no folder nowhere"),
    (["a", "b"], "b is too many"),
])
def test_usage(tree, words, says):
    assert says in check(tree, *words, code=2)[1]


@pytest.mark.parametrize("missing, says", [
    ("primitives", "has no program primitives"), ("qkvc", "has no program qkvc"), ("libqkv.so.0", "has no libqkv.so")])
def test_a_tree_that_is_not_whole(tree, missing, says):
    (tree / missing).unlink()
    out, err = check(tree, tree, code=2)
    assert says in err and not out


def test_all_stages_pass(tree):
    out, _ = check(tree, tree)
    assert stages(out) == {"primitives": "ok", "conformance-full": "ok", "conformance-packed": "ok",
                           "pytest-gpu": "left", "pytest-masks": "left"}
    assert out.endswith("\n21 passed, 0 failed\n") and str(tree.parent / "logs") in out
    assert log(tree, "primitives").startswith("--device cuda\n")
    assert log(tree, "conformance-full").startswith("--device cuda --set full\n")


def test_quick_takes_smaller_sets(tree):
    out, _ = check(tree, "--quick", tree)
    assert [name for name in stages(out) if name.startswith("conf")] == [
        "conformance-quick", "conformance-walks", "conformance-packed"]


def test_python_stages(tree):
    program(tree.parent / "python", PYTHON)
    out, _ = check(tree, tree)
    assert stages(out)["pytest-gpu"] == stages(out)["pytest-masks"] == "ok" and out.endswith("27 passed, 0 failed\n")
    assert log(tree, "pytest-masks").startswith("device: cuda; library: %s; " % (tree / "libqkv.so.0"))
    assert log(tree, "pytest-gpu").startswith("device: none; ") and " tests/gpu\n" in log(tree, "pytest-gpu")


@pytest.mark.parametrize("body, counts, why", [
    ("echo 'FAILED wgmma/17'; echo '  word 3 is 1'; echo '5 passed, 2 failed'; exit 1", (5, 2), "wgmma/17"),
    ("echo '0 passed, 0 failed'", (0, 1), "no test ran"),
    ("echo 'no device' >&2; exit 2", (0, 1), "exit code 2"),
    ("echo '5 passed, 0 failed'; exit 139", (5, 1), "exit code 139"),
    ("echo '4 passed, 3 skipped, 2 errors in 1s'; exit 1", (4, 2), "2 failed"),
])
def test_a_stage_that_fails(tree, body, counts, why):
    program(tree / "primitives", body)
    out, _ = check(tree, tree, code=1)
    found = stages(out)
    assert found["primitives"] == "FAILED" and found["conformance-full"] == "ok", out
    assert why in out and "\nfailed: primitives\n" in out and str(tree.parent / "logs" / "primitives.log") in out
    assert out.endswith("\n%d passed, %d failed\n" % (14 + counts[0], counts[1]))
