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
    library = pathlib.Path(_library.library()._name).resolve()
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
