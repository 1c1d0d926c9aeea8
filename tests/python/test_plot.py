"""tools/bench/plot.py: what it draws is what the CSV says, and readable; the committed pictures are of the committed
files."""

import csv
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from bench import plot  # noqa: E402

FILES = sorted((ROOT / "docs" / "performance").glob("attention_*.csv"))
SVG = "{http://www.w3.org/2000/svg}"


def drawn(path):
    rows, machine = plot.read(path)
    return rows, ElementTree.fromstring(plot.draw(path.stem, rows, machine))


def panels(root):
    """The groups that hold a panel, with the offset of each."""
    for group in root.findall(SVG + "g"):
        yield group, [int(n) for n in re.findall(r"-?\d+", group.get("transform"))]


def texts(root):
    """(x, y, anchor, size, words) of every text that is not turned, in the coordinates of the picture."""
    places = [(one, (0, 0)) for one in root.findall(SVG + "text")]
    places += [(one, offset) for group, offset in panels(root) for one in group.findall(SVG + "text")]
    return [(float(one.get("x")) + dx, float(one.get("y")) + dy, one.get("text-anchor"),
             float(one.get("font-size", root.get("font-size"))), one.text)
            for one, (dx, dy) in places if not one.get("transform")]


def box(x, y, anchor, size, words):
    wide = 0.6 * size * len(words)
    left = x - {"start": 0, "middle": 0.5, "end": 1}[anchor] * wide
    return left, y - 0.8 * size, left + wide, y + 0.2 * size


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_committed_picture_is_of_the_committed_file(path):
    assert path.with_suffix(".svg").read_text() == plot.draw(path.stem, *plot.read(path)), (
        "run: python3 tools/bench/plot.py %s" % path.relative_to(ROOT))
    page = (ROOT / "docs" / "performance.md").read_text()
    assert "(performance/%s.svg)" % path.stem in page


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_is_a_point_at_its_height(path):
    _, root = drawn(path)
    heights = []
    for group, _ in panels(root):
        marks = {float(one.text): float(one.get("y")) - 4 for one in group.findall(SVG + "text")
                 if one.get("text-anchor") == "end"}
        zero, top = marks[0], min(marks.values())
        for line in group.iter(SVG + "polyline"):
            xs, ys = zip(*(map(float, point.split(",")) for point in line.get("points").split()))
            assert list(xs) == sorted(set(xs))
            heights += [(zero - y) / (zero - top) * max(marks) for y in ys]
    with open(path, newline="") as file:
        wanted = [float(row["tflops"]) for row in csv.DictReader(file) if row["tflops"]]
    assert len(heights) == len(wanted)
    for got, want in zip(sorted(heights), sorted(wanted)):
        assert abs(got - want) < 0.5, "drawn at %g, but %g TFLOP/s" % (got, want)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_words_stay_apart_and_inside(path):
    rows, root = drawn(path)
    width, height = float(root.get("width")), float(root.get("height"))
    found = texts(root)
    words = [one[4] for one in found]
    assert {plot.STYLES[row.implementation][0] for row in rows} <= set(words)
    assert {"sequence length", "head dim"} & set(words) and "TFLOP/s" in [one.text for one in root.iter(SVG + "text")]
    for n, one in enumerate(found):
        left, top, right, bottom = box(*one)
        assert 0 <= left and right <= width and 0 <= top and bottom <= height, one
        for other in found[:n]:
            a, b, c, d = box(*other)
            assert right <= a or c <= left or bottom <= b or d <= top, "%s overlaps %s" % (one, other)


def test_what_is_wrong_or_not_timed_is_not_drawn(tmp_path):
    rows = [dict(zip(("case", "implementation", "status", "tflops"), row)) for row in (
        ("a", "qkv", "ok", "500"), ("a", "qkv", "ok", "1"), ("a", "fa3", "WRONG: relative error 1", "900"),
        ("a", "fa4", "not installed", ""), ("b", "qkv", "ok", "600"))]
    for row in rows:
        row.update(len_q=512, len_k=512 if row["case"] == "a" else 4096, heads_q=8, heads_kv=2, dim_qk=64, dim_v=64,
                   mask="full", dtype="bf16", gpu="<G & co>", driver="1", torch="2", cudnn="3")
    with open(tmp_path / "x.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    script = ROOT / "tools" / "bench" / "plot.py"
    subprocess.run([sys.executable, script, tmp_path / "x.csv"], check=True)
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    assert [len(line.get("points").split()) for line in root.iter(SVG + "polyline")] == [2]
    words = [one.text for one in root.iter(SVG + "text")]
    assert "D 64, 8/2 heads, full" in words and "4k" in words and "FlashAttention-3" not in words
    assert any(word.startswith("<G & co>, bf16") for word in words)
    with pytest.raises(ValueError, match="no style for newcomer"):
        plot.draw("x", [plot.Row("newcomer", "64", "8", "full", 512, 64, 1.0)], "")
    with pytest.raises(ValueError, match="no timed row"):
        plot.draw("x", [], "")


@pytest.mark.parametrize("most", [0.5, 1, 9.9, 61, 100, 560, 701, 999, 1300, 98765])
def test_scales_end_above_everything(most):
    marks = plot.ticks(most)
    assert marks[0] == 0 and marks[-2] < most <= marks[-1] and 3 <= len(marks) <= 8
    assert all(len(("%g" % mark).strip("0").replace(".", "")) <= 3 for mark in marks)


def test_every_peer_has_a_style():
    pytest.importorskip("numpy")
    from bench import peers
    assert set(peers.PEERS) <= set(plot.STYLES) and set(style[2] for style in plot.STYLES.values()) == {
        "circle", "square", "diamond", "triangle"}
