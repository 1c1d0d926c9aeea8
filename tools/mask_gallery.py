#!/usr/bin/env python3
"""Writes docs/masks/*.svg and the table of docs/masks.md: what qkvc makes of the masks of specs/masks.

    python3 tools/mask_gallery.py        needs a built qkvc ($QKVC, else build/release/qkvc) and NumPy

Parameters are those that tests/python/masks.py draws for the tests. Same sources, same bytes."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "python"))

import masks  # noqa: E402

QKVC = os.environ.get("QKVC") or str(ROOT / "build" / "release" / "qkvc")
PICTURES = ("sliding_window sink_window prefix_lm document_causal shared_prefix transfusion longformer block_diffusion strided "
            "natten_2d natten_2d_tiled sta_2d").split()
LENGTH, TILE = 2048, "64x64"
LENGTHS = {"natten_2d_morton": (1024, 1024), "flamingo": (2048, 512), "sta_3d": (4160, 4160), "tree_verification": (64, 1024),
           "graphormer": (256, 256), "jetspec_training": (1024, 2048)}
VIDEO = {"n_prompt": 64, "n_frame": 248, "width": 32}  # the tests' frames are too small to show anything here
PARAMS = {"svg_spatial": VIDEO, "svg_temporal": VIDEO}


def explain(name, folder):
    """The JSON of qkvc explain --mask for one spec; its picture if it has one."""
    len_q, len_k = LENGTHS.get(name, (LENGTH, LENGTH))
    problem = masks.CASES[name].make(numpy.random.default_rng([*name.encode(), 1]), 1, len_q, len_k)
    words = [QKVC, "explain", f"specs/masks/{name}.yaml", "--mask", "--json", "--tile", TILE, "--q", str(len_q), "--kv",
             str(len_k)]
    if name in PICTURES:
        words += ["--svg", f"docs/masks/{name}.svg"]
    for param, value in PARAMS.get(name, problem.params).items():
        if isinstance(value, numpy.ndarray):
            numpy.save(folder / f"{param}.npy", value)
            value = folder / f"{param}.npy"
        words += ["--param", f"{param}={value}"]
    return json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def row(name, found):
    lines = [(line["name"], line["value"]) for line in found["analysis"]]
    values, tiles = dict(lines), found["tiles"]
    form = values["form"].split(":")[0]
    if values.get("exact", "").startswith("no"):
        form += ", inexact"
    counts = " | ".join(str(tiles[key]) for key in ("skipped", "full", "partial", "wasted", "guarded"))
    useful = "-" if found["useful"] is None else "%.0f %%" % (100 * found["useful"])
    return f"| [`{name}`](../specs/masks/{name}.yaml) | {form} | {counts} | {useful} |"


def main():
    names = sorted(masks.CASES)
    page = ROOT / "docs" / "masks.md"
    (ROOT / "docs" / "masks").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, explain(name, pathlib.Path(folder))) for name in names]
    head = ["| spec | form | skipped | full | partial | wasted | guarded | useful |", "|---|---|---|---|---|---|---|---|"]
    table = "\n".join(["<!-- table: written by tools/mask_gallery.py -->", *head, *rows, "<!-- end of table -->"])
    text = page.read_text()
    page.write_text(re.sub(r"<!-- table:.*?<!-- end of table -->", lambda _: table, text, flags=re.S))


if __name__ == "__main__":
    main()
