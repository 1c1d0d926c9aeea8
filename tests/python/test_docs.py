"""The code in the documents runs: all ```python blocks of a file in one process, every ```c block as a program."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
         if "```python" in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_blocks(path, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.S | re.M)
    script = "import sys\nsys.path.insert(0, %r)\n" % str(ROOT / "tools" / "python") + "\n".join(blocks)
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_c_blocks(tmp_path):
    from qkv import _library
    library = pathlib.Path(_library.libqkv()._name).resolve()
    blocks = re.findall(r"^```c\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.S | re.M)
    assert blocks
    for number, block in enumerate(blocks):
        source, program = tmp_path / ("block%d.c" % number), tmp_path / ("block%d" % number)
        source.write_text(block)
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "runtime", "-o", program, source, library,
                        "-Wl,-rpath," + str(library.parent)], check=True)
        run = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=120,
                             env=dict(os.environ, QKV_DEVICE="emu"))
        assert (run.returncode, run.stdout) == (0, "ones\n"), run.stderr


# ---- Quoted kernels ----

KERNEL = ROOT / "tests" / "golden" / "causal.sm_90a.cu"  # test_golden holds it against what is generated


@pytest.mark.parametrize("name, blocks", [("README.md", 1), ("docs/annotated-kernel.md", 15)])
def test_quoted_kernels_are_as_generated(name, blocks):
    """Every ```cuda block stands in the source as it is, but for what its lines `// ...` leave out."""
    source, page = KERNEL.read_text(), (ROOT / name).read_text()
    found = re.findall(r"^```cuda\n(.*?)^```", page, flags=re.S | re.M)
    assert len(found) >= blocks
    for block in found:
        at = 0
        for piece in re.split(r"^ *// \.\.\.\n", block, flags=re.M):
            next_at = source.find("\n" + piece, at)
            assert piece.strip() and next_at >= 0, "%s quotes what %s does not say%s:\n%s" % (
                name, KERNEL.name, " there" if "\n" + piece in source else "", piece)
            at = next_at + len(piece)


def test_the_annotated_kernel_names_what_is_there():
    """Every name in backticks is in the source, every file that is linked or named is there."""
    source, page = KERNEL.read_text(), (ROOT / "docs" / "annotated-kernel.md").read_text()
    prose = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        assert (ROOT / "docs" / target).exists(), target
    for quoted in re.findall(r"`([^`]+)`", prose):
        assert "\n" not in quoted, quoted
        if re.search(r"\w/\w", quoted):
            assert all((ROOT / word).exists() for word in quoted.split() if "/" in word), quoted
        elif quoted not in ("rs", "_t", "// ..."):
            assert re.search(r"(?<!\w)%s(?!\w)" % re.escape(quoted.removesuffix("()")), source), quoted
