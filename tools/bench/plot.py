#!/usr/bin/env python3
"""Draws CSV files of the benchmark as SVG: TFLOP/s against length, a line an implementation, a panel a head dim and
mask. Files of one length are drawn against head dim instead, a panel a mask. Needs nothing but Python; same rows, same
bytes.

    python3 tools/bench/plot.py docs/performance/*.csv      # writes FILE.svg beside each FILE.csv
"""

import csv
import pathlib
import sys
from html import escape
from typing import NamedTuple

# Implementations as the CSV files name them: label, colour (apart for the colour-blind, too), marker. Ours comes first.
STYLES = {
    "qkv": ("qkvc", "#0072b2", "circle"),
    "cudnn": ("cuDNN", "#e69f00", "square"),
    "torch_cudnn": ("cuDNN", "#e69f00", "square"),
    "fa2": ("FlashAttention-2", "#009e73", "diamond"),
    "torch_flash": ("FlashAttention-2", "#009e73", "diamond"),
    "fa3": ("FlashAttention-3", "#d55e00", "triangle"),
    "fa4": ("FlashAttention-4", "#cc79a7", "diamond"),
    "flex": ("FlexAttention", "#56b4e9", "triangle"),
    "flashinfer": ("FlashInfer", "#8c6d31", "square"),
    "naive": ("attention_naive", "#777777", "circle"),
    "math": ("plain torch", "#999999", "diamond"),
}
WIDTH, HEIGHT = 360, 180  # of the area of a panel's lines
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 30, 44  # around it
HEAD = 66  # above all panels: title and legend
FONT = 12
STEPS = (1, 2, 2.5, 5, 10, 20)  # of a scale, times a power of ten


class Row(NamedTuple):
    implementation: str
    dims: str
    heads: str
    mask: str
    length: int
    dim: int
    tflops: float


def read(path):
    """The timed, right rows of a file and one line on the machine. Of several schedules in a case the first counts."""
    with open(path, newline="") as file:
        raw = [row for row in csv.DictReader(file) if row.get("status", "ok") == "ok" and row["tflops"]]
    found = {}
    for row in raw:
        dims = row["dim_qk"] if row["dim_qk"] == row["dim_v"] else "%(dim_qk)s/%(dim_v)s" % row
        heads = row["heads_q"] if row["heads_q"] == row["heads_kv"] else "%(heads_q)s/%(heads_kv)s" % row
        found.setdefault((row["case"], row["implementation"]), Row(
            row["implementation"], dims, heads, row["mask"], int(row["len_k"]), int(row["dim_qk"]),
            float(row["tflops"])))
    machine = "%(gpu)s, %(dtype)s, driver %(driver)s, torch %(torch)s, cuDNN %(cudnn)s" % raw[0] if raw else ""
    return list(found.values()), machine


def short(number):
    """16384 as 16k."""
    return "%dk" % (number // 1024) if number >= 1024 and number % 1024 == 0 else str(number)


def panels_of(rows):
    """(label of the x axis, its values, [(title, {implementation: {x: TFLOP/s}})]), the masks of a head dim side by
    side."""
    lengths, dims = (sorted({row[n] for row in rows}) for n in (4, 5))
    against_length = len(lengths) > 1 or len(dims) == 1
    panels = {}
    for row in rows:
        title = "D %s, %s heads, %s" % (row.dims, row.heads, row.mask) if against_length else (
            "T %s, %s" % (short(row.length), row.mask))
        lines = panels.setdefault(title, {})
        lines.setdefault(row.implementation, {})[row.length if against_length else row.dim] = row.tflops
    if against_length:
        return "sequence length", lengths, list(panels.items())
    return "head dim", dims, list(panels.items())


def ticks(most):
    """Round numbers from 0 to the first one that is at least `most`, at most eight of them."""
    power = 10 ** (len(str(int(most))) - 2)
    step = next(step * power for step in STEPS if most <= 7 * step * power)
    return [step * n for n in range(int(-(-most // step)) + 1)]


def text(x, y, words, anchor="middle", more=""):
    return '<text x="%g" y="%g" text-anchor="%s"%s>%s</text>' % (x, y, anchor, more, escape(words))


def marker(kind, x, y, colour, r=4):
    if kind == "circle":
        return '<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>' % (x, y, r, colour)
    corners = {"square": ((-1, -1), (1, -1), (1, 1), (-1, 1)), "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
               "triangle": ((0, -1.2), (1.2, 1), (-1.2, 1))}[kind]
    points = " ".join("%.1f,%.1f" % (x + r * dx, y + r * dy) for dx, dy in corners)
    return '<polygon points="%s" fill="%s"/>' % (points, colour)


def ordered(implementations):
    return sorted(implementations, key=list(STYLES).index)


def panel(title, lines, xs, label, marks):
    """One panel with its lines' area at (0, 0)."""
    def at(x, tflops):  # the values of x stand at even distances: lengths double, head dims lie close
        return WIDTH * (xs.index(x) + 0.5) / len(xs), HEIGHT * (1 - tflops / marks[-1])

    out = [text(WIDTH / 2, -10, title, more=' font-weight="bold"')]
    for mark in marks:
        y = at(xs[0], mark)[1]
        out += ['<path d="M0 %.1fH%d" stroke="%s"/>' % (y, WIDTH, "#ddd" if mark else "#222"),
                text(-8, round(y + 4, 1), "%g" % mark, "end")]
    for x in xs:
        out.append(text(round(at(x, 0)[0], 1), HEIGHT + 16, short(x) if label == "sequence length" else str(x)))
    out += [text(WIDTH / 2, HEIGHT + 34, label),
            text(0, 0, "TFLOP/s", more=' transform="translate(-44 %g) rotate(-90)"' % (HEIGHT / 2))]
    for name in reversed(ordered(lines)):  # ours on top
        _, colour, kind = STYLES[name]
        places = [at(x, tflops) for x, tflops in sorted(lines[name].items())]
        out.append('<g class="%s"><polyline points="%s" fill="none" stroke="%s" stroke-width="%g"/>' % (
            name, " ".join("%.1f,%.1f" % place for place in places), colour, 2.5 if name == "qkv" else 1.5))
        out += [marker(kind, *place, colour) for place in places] + ["</g>"]
    return out


def legend(names, x, y):
    out = []
    for name in names:
        words, colour, kind = STYLES[name]
        out += ['<path d="M%g %gh28" stroke="%s" stroke-width="2"/>' % (x, y, colour),
                marker(kind, x + 14, y, colour), text(x + 34, y + 4, words, "start")]
        x += 34 + 8 * len(words) + 14
    return out


def draw(name, rows, machine):
    """The SVG text of one file's rows. Raises ValueError when there is none, or an implementation without a style."""
    unknown = {row.implementation for row in rows} - set(STYLES)
    if unknown or not rows:
        raise ValueError("%s: %s" % (name, "no style for " + ", ".join(sorted(unknown)) if rows else "no timed row"))
    label, xs, panels = panels_of(rows)
    columns = min(2, len(panels))
    wide, high = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    width, height = columns * wide, HEAD + -(-len(panels) // columns) * high
    if columns == 1:  # the title needs the room
        width += wide // 2
    marks = ticks(max(row.tflops for row in rows))
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" '
           'font-family="sans-serif" font-size="%d" fill="#222">' % (width, height, width, height, FONT),
           "<title>%s: TFLOP/s by %s</title>" % (escape(name), label), '<rect width="100%" height="100%" fill="#fff"/>',
           text(14, 22, name, "start", ' font-weight="bold"'), text(14, 40, machine, "start", ' font-size="11"'),
           *legend(ordered({row.implementation for row in rows}), 14, 56)]
    for number, (title, lines) in enumerate(panels):
        x, y = LEFT + number % columns * wide, HEAD + TOP + number // columns * high
        out += ['<g transform="translate(%d %d)">' % (x, y), *panel(title, lines, xs, label, marks), "</g>"]
    return "\n".join(out + ["</svg>", ""])


def main(paths):
    if not paths or paths[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if paths else 2
    for path in map(pathlib.Path, paths):
        try:
            path.with_suffix(".svg").write_text(draw(path.stem, *read(path)))
        except (OSError, KeyError, ValueError) as error:
            print("plot.py: %s: %s" % (path, error), file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
