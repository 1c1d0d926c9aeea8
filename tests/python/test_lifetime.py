"""Specs made of text on the way into a call live as long as the call. Freed memory is filled, so that a dangling handle
cannot pass by luck."""

import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "python"
TEXT = "qkvc: 1\nname: text\nattention:\n  heads: 2\n  dim: 16\n  dtype: bf16\n"


@pytest.mark.parametrize("call", ["engine.generate(TEXT)", "engine.build(TEXT)", "engine.explain(TEXT)"])
def test_spec_of_text_outlives_the_call(call):
    program = "import sys; sys.path.insert(0, %r)\nimport qkv\nTEXT = %r\nwith qkv.Engine('emu') as engine:\n    %s\n" % (
        str(PACKAGE), TEXT, call)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env=dict(os.environ, MALLOC_PERTURB_="165"))
    assert done.returncode == 0, done.stderr
