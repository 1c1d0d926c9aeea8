"""explain --mask: forms, counts, pictures."""

import os
import pty
import re
import subprocess
import xml.etree.ElementTree

import numpy as np
import pytest

from command_line import QKVC, ROOT

CAUSAL, DOCUMENT = "specs/masks/causal.yaml", "specs/masks/document_causal.yaml"
UTF8 = {"LC_ALL": "C.UTF-8"}


def tiles(result):
    """planned and actual as arrays."""
    found = result.json()
    return tuple(np.array([[int(digit) for digit in row] for row in found[key]]) for key in ("planned", "actual"))


def test_causal_in_numbers(qkvc):
    """8 by 8 tiles: the diagonal is partial, what is below is full, above skipped."""
    result = qkvc("explain", CAUSAL, "--mask", "--q", 512, "--tile", "64x64", "--json")
    found = result.json()
    planned, actual = tiles(result)
    want = np.fromfunction(lambda y, x: np.where(x < y, 2, np.where(x == y, 1, 0)), (8, 8))
    assert (planned == want).all() and (actual == want).all(), result
    assert found["tiles"] == {"skipped": 28, "full": 28, "partial": 8, "wasted": 0, "guarded": 0}
    assert found["visible_pairs"] == 512 * 513 / 2
    assert found["useful"] == pytest.approx(512 * 513 / 2 / (36 * 64 * 64), 1e-5)
    assert {"name": "rows first..last visit keys", "value": "from 0 up to last + 1"} in found["analysis"]
    assert {"name": "free of the mask", "value": "from 0 up to first + 1"} in found["analysis"]


def test_tails_are_not_full(qkvc):
    """The last tile of keys holds some that are not there; rows past the end do not count."""
    result = qkvc("explain", "specs/vit_l.yaml", "--mask", "--q", 100, "--kv", 130, "--tile", "64x64", "--json")
    planned, actual = tiles(result)
    assert (planned == [[2, 2, 1], [2, 2, 1]]).all() and (actual == planned).all(), result


def test_documents_from_a_file(qkvc, tmp_path):
    doc = np.repeat(np.arange(4, dtype=np.int32), 64)[None]
    np.save(tmp_path / "doc.npy", doc)
    words = ("explain", DOCUMENT, "--mask", "--q", 256, "--tile", "64x32", "--json")
    result = qkvc(*words, "--param", f"doc={tmp_path / 'doc.npy'}")
    planned, actual = tiles(result)
    pairs = (doc[0][:, None] == doc[0][None, :]) & np.tri(256, dtype=bool)
    by_tile = pairs.reshape(4, 64, 8, 32).sum((1, 3))
    assert (actual == np.where(by_tile == 0, 0, np.where(by_tile == 64 * 32, 2, 1))).all()
    found = result.json()
    assert found["tiles"]["wasted"] == ((planned > 0) & (actual == 0)).sum()
    assert found["tiles"]["guarded"] == ((planned == 1) & (actual == 2)).sum()
    assert sum(found["tiles"].values()) == 32 and found["visible_pairs"] == pairs.sum()
    assert qkvc(*words).json() == found, "random document numbers are these"


def test_the_tile_is_that_of_the_kernel(qkvc):
    text = qkvc("explain", CAUSAL, "--arch", "sm_80").out
    tile_n = int(re.search(r"tile_n=(\d+)", text)[1])
    rows = int(re.search(r"grid len_q/(\d+)", text)[1])
    found = qkvc("explain", CAUSAL, "--arch", "sm_80", "--mask", "--workload", "small", "--json").json()
    assert (found["tile_q"], found["tile_k"]) == (rows, tile_n)
    assert (found["batch"], found["q"], found["kv"]) == (2, 97, 130)
    words = ("--schedule", "tile_m=64,tile_n=32", "--q", 64)
    found = qkvc("explain", CAUSAL, "--arch", "sm_80", "--mask", "--json", *words).json()
    assert (found["tile_q"], found["tile_k"]) == (64, 32)


def test_heads_and_entries(qkvc, tmp_path):
    np.save(tmp_path / "prompt.npy", np.array([0, 40], np.int32))
    words = ("explain", "specs/masks/prefix_lm.yaml", "--mask", "--batch", 2, "--q", 40, "--param",
             f"prompt={tmp_path / 'prompt.npy'}", "--json")
    assert qkvc(*words).json()["visible_pairs"] == 820 and qkvc(*words, "--entry", 1).json()["visible_pairs"] == 1600
    np.save(tmp_path / "width.npy", np.array([1, 2, 3, 40], np.int32))
    words = ("explain", "specs/masks/head_windows.yaml", "--mask", "--q", 40, "--json", "--param",
             f"width={tmp_path / 'width.npy'}")
    assert [qkvc(*words, "--head", h).json()["visible_pairs"] for h in range(4)] == [40, 79, 117, 820]


def drawing(text):
    """The characters behind the row numbers."""
    return re.findall(r"^ *\d+ (\S+)$", text, re.M)


def test_pictures(qkvc):
    words = ("explain", CAUSAL, "--mask", "--q", 8, "--kv", 10)
    plain = drawing(qkvc(*words, "--ascii", env=UTF8).out)
    assert plain == ["#" * (i + 3) + "." * (7 - i) for i in range(8)], "pair by pair, the last query on the last key"
    fine = qkvc(*words, env=UTF8).out
    assert drawing(fine) == [row.replace("#", "\u2588").replace(".", "\u00b7") for row in plain]
    for env in {"LC_ALL": "C"}, {"LC_ALL": None, "LC_CTYPE": None, "LANG": "POSIX"}:
        assert drawing(qkvc(*words, env=env).out) == plain
    large = qkvc("explain", CAUSAL, "--mask", "--q", 512, "--tile", "64x64", "--ascii").out
    assert drawing(large) == ["#" * i + "+" + "." * (7 - i) for i in range(8)]
    wide = qkvc("explain", CAUSAL, "--mask", "--q", 8192, "--tile", "64x64", "--ascii").out
    assert "2 by 2 tiles" in wide and {len(row) for row in drawing(wide)} == {64}
    assert "\033" not in fine + large and all(ord(c) < 128 for c in large)


def test_colour_on_a_terminal_only():
    def run(**env):
        ours, theirs = pty.openpty()
        subprocess.run([QKVC, "explain", CAUSAL, "--mask", "--q", "8"], cwd=ROOT, stdout=theirs, stdin=theirs,
                       env={**os.environ, "TERM": "xterm", **env}, check=True)
        os.close(theirs)
        return os.read(ours, 100000).decode()
    assert "\033[34m" in run() and "\033" not in run(NO_COLOR="1") and "\033" not in run(TERM="dumb")


def test_svg(qkvc, tmp_path):
    path = tmp_path / "mask.svg"
    words = ("explain", DOCUMENT, "--q", 512, "--tile", "64x64", "--svg", path)
    found = qkvc(*words, "--json").json()
    root = xml.etree.ElementTree.parse(path).getroot()
    name = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in root.iter(name + "text")]
    assert root.get("role") == "img" and "document_causal" in root.find(name + "title").text
    assert {"key", "query row", "0", "128", "512"} <= set(texts)
    areas = {}
    for node in root.find(name + "g"):  # a path a class; M x y H right V below H x z
        boxes = re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H\d+z", node.get("d"))
        areas[node.get("fill")] = sum((int(r) - int(x)) * (int(b) - int(y)) for x, y, r, b in boxes) // 4096
    shown = {key: count for key, count in found["tiles"].items() if count}
    assert sorted(areas.values()) == sorted(shown.values()) and len(areas) == len(shown)
    for key, count in shown.items():
        assert any(text.startswith(f"{key}: {count} tiles") for text in texts), key
    assert "http" not in path.read_text().replace("http://www.w3.org/2000/svg", ""), "nothing is loaded"
    first = path.read_bytes()
    qkvc(*words)
    assert path.read_bytes() == first


def test_too_many_pairs(qkvc):
    words = ("explain", CAUSAL, "--mask", "--kv", 100000, "--q", 4000, "--tile", "512x512", "--json")
    found = qkvc(*words).json()
    assert found["visible_pairs"] is None and found["useful"] is None and found["actual"] is None
    assert found["tiles"]["wasted"] == 0 and found["tiles"]["full"] > 0
    words = ("explain", CAUSAL, "--mask", "--kv", 100000, "--q", 4000, "--tile", "512x512")
    assert "--exact does" in qkvc(*words).out
    nothing = qkvc("explain", CAUSAL, "--mask", "--kv", 0, "--q", 40, "--tile", "16x16", "--json").json()
    assert nothing["visible_pairs"] == 0 and nothing["useful"] is None


@pytest.mark.parametrize("words, code, says", [
    (["--workload", "nine"], 2, "no workload 'nine'"),
    (["--tile", "64"], 2, "--tile goes with --mask"),
    (["--mask", "--tile", "64y"], 2, "not '64y'"),
    (["--mask", "--tile", "0x64"], 2, "not '0x64'"),
    (["--mask", "--tile", "64x"], 2, "not '64x'"),
    (["--mask", "--workload", "smal"], 2, "did you mean small?"),
    (["--mask", "--head", "4"], 2, "query head 4 is not there: the spec has 4"),
    (["--mask", "--entry", "1"], 2, "batch entry 1 is not there: the batch has 1"),
    (["--mask", "--param", "x=1"], 2, "has no parameter 'x'"),
    (["--mask", "--family", "attention_naive"], 2, "attention_naive has no tiles"),
    (["--svg", "/no/such/folder/mask.svg"], 1, "/no/such/folder/mask.svg: No such file"),
])
def test_what_is_refused(qkvc, words, code, says):
    result = qkvc("explain", CAUSAL, *words, code=None)
    assert says in result.err and result.code == code and not result.out, result
