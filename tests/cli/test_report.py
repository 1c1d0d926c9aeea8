"""report: a page that parses, stands alone, escapes, and shows the numbers of its files; errors that name the place."""

import csv
import html.parser
import json
import math
import re
import shlex
import xml.etree.ElementTree

import pytest

from command_line import ROOT

SECTIONS = ["roofline", "length", "batch", "bandwidth", "landscape", "ratio", "files"]
COMMITTED = sorted((ROOT / "docs" / "performance").glob("*.csv"))
EMPTY = {"meta", "link", "br", "hr", "img", "input"}


class Page(html.parser.HTMLParser):
    """The elements of a page, which have to nest; sections with their text, tables with their cells."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.section, self.sections, self.tables, self.attributes = text, [], None, {}, [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in EMPTY:
            self.open.append(tag)
        if tag == "section":
            self.section = dict(attributes)["id"]
            assert self.section not in self.sections
            self.sections[self.section] = ""
        if tag == "table":
            self.tables.append((self.section, []))
        if tag == "tr":
            self.tables[-1][1].append([])
        if tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.section:
            self.sections[self.section] += data
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][1][-1][-1] += data

    def rows(self, section, *heads):
        """Rows of the section's tables that have these columns, as dictionaries."""
        out = []
        for where, table in self.tables:
            if where == section and set(heads) <= set(table[0]):
                out += [dict(zip(table[0], row)) for row in table[1:]]
        return out


def check_page(text):
    """What holds of every page."""
    page = Page(text)
    assert list(page.sections) == SECTIONS
    assert not re.search(r"https?:|//[a-z]|@import|<script|url\(", text), "the page must need no network and no script"
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "onload", "onclick", "style") and tag not in ("script", "iframe", "object"), tag
        if name == "href":
            assert tag == "a" and value.startswith("#") and value[1:] in SECTIONS, value
    pictures = re.findall(r"<svg.*?</svg>", text, re.S)
    for picture in pictures:
        root = xml.etree.ElementTree.fromstring(picture)
        if root.get("class") != "key":
            assert root.find("title").text and root.find("desc").text and root.get("role") == "img"
        for element in root.iter():
            for name, value in element.attrib.items():
                assert not re.search(r"\b(nan|inf)", value), (element.tag, name, value)
                if name in ("x", "y", "x1", "x2", "y1", "y2", "width", "height"):
                    assert math.isfinite(float(value))
    return page, pictures


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def make(qkvc, tmp_path, *words):
    qkvc("report", *words, "-o", tmp_path / "page.html")
    return check_page((tmp_path / "page.html").read_text())


def test_committed_measurements(qkvc, tmp_path):
    page, pictures = make(qkvc, tmp_path, *COMMITTED, "--peak", 989, "--bandwidth", 4800)
    assert len(page.text) < 500_000 and len(pictures) > 20
    for section in ("roofline", "length", "batch", "bandwidth", "ratio", "landscape"):
        assert "No data" not in page.sections[section], section
    shown = page.rows("ratio", "case", "contestant", "time over ours")
    for path in COMMITTED:
        for row in csv.DictReader(path.open()):
            if row.get("implementation") in ("cudnn", "fa3"):
                want = (row["case"], row["implementation"], float(row["ratio"]), float(row["ratio_p10"]), float(row["median_us"]))
                assert any((r["case"], r["contestant"]) == want[:2] and
                           all(math.isclose(float(r[k]), w, rel_tol=1e-5) for k, w in
                               zip(("time over ours", "p10", "\u00b5s"), want[2:])) for r in shown), want
    decode = list(csv.DictReader((ROOT / "docs/performance/decode_h200.csv").open()))
    rates = [float(r["GB/s"]) for r in page.rows("bandwidth", "GB/s")]
    for row in decode:
        assert any(math.isclose(1000 * float(row["tbps"]), rate, rel_tol=1e-5) for rate in rates), row


def test_geometric_means(qkvc):
    result = qkvc("report", *COMMITTED, "--json").json()
    ratios = {}
    for path in COMMITTED:
        for row in csv.DictReader(path.open()):
            if row.get("implementation") == "fa3":
                ratios.setdefault("fa3", []).append(float(row["ratio"]))
            if row.get("fa3"):
                ratios.setdefault("fa3", []).append(float(row["fa3"]))
    fa3 = next(r for r in result["ratio"] if r["contestant"] == "fa3")
    mean = math.exp(sum(map(math.log, ratios["fa3"])) / len(ratios["fa3"]))
    assert fa3["cases"] == len(ratios["fa3"]) and math.isclose(fa3["geometric_mean"], mean, rel_tol=1e-6)
    assert math.isclose(fa3["least"], min(ratios["fa3"])) and math.isclose(fa3["greatest"], max(ratios["fa3"]))


TUNE_HEAD = "spec,workload,phase,family,schedule,model_seconds,median_seconds,p10_seconds,p90_seconds,status,default\n"


def tune_rows():
    """A landscape with a known best: tile_n 128, stages 3; the model is right but for its factor."""
    for tile in (64, 96, 128, 160):
        for stages in (2, 3, 4):
            time = 1e-3 * (1 + abs(tile - 128) / 100 + 0.1 * abs(stages - 3))
            yield tile, stages, time


def tune_file(folder):
    text = TUNE_HEAD
    for tile, stages, time in tune_rows():
        text += (f'a,w,prefill,f,"tile_n={tile},stages={stages}",{0.5 * time:.6g},{time:.6g},{0.99 * time:.6g},'
                 f"{1.02 * time:.6g},ok,{int((tile, stages) == (96, 2))}\n")
    text += 'a,w,prefill,f,"tile_n=256,stages=2",0.0001,,,,compile error,0\na,w,prefill,f,"tile_n=256,stages=3",0.1,,,,wrong,0\n'
    return write(folder, "tune.csv", text)


def test_landscape(qkvc, tmp_path):
    page, _ = make(qkvc, tmp_path, tune_file(tmp_path))
    rows = page.rows("landscape", "rank", "schedule")
    times = sorted(1e6 * time for _, _, time in tune_rows())
    assert len(rows) == 12 and rows[0]["schedule"] == "tile_n=128,stages=3"
    for row, time in zip(rows, times):
        assert math.isclose(float(row["\u00b5s median"]), time, rel_tol=1e-5), row
    assert "compile error 1, wrong 1" in page.sections["landscape"]
    texts = [x for x in re.findall(r"<svg.*?</svg>", page.text, re.S) if "Best time by" in x]
    assert len(texts) == 1
    cells = [t.text for t in xml.etree.ElementTree.fromstring(texts[0]).iter("text") if t.get("class") in ("cell", "oncell")]
    best = min(time for _, _, time in tune_rows())
    assert sorted(cells) == sorted(f"{time / best:.2f}" for _, _, time in tune_rows())
    run = qkvc("report", tune_file(tmp_path), "--json").json()["landscape"][0]
    assert run["candidates"] == 14 and run["measured"] == 12 and run["schedule"] == "tile_n=128,stages=3"
    assert math.isclose(run["rank_correlation"], 1) and math.isclose(run["default_seconds"], 1.42e-3)
    assert math.isclose(run["model_first_8_over_best"], 1) and run["best_seconds"] == 1e-3


def test_landscape_of_any_file(qkvc, tmp_path):
    """Four schedules of one problem make a landscape, three do not."""
    head, rows = "spec,family,batch,len_q,len_k,schedule,seconds\n", [f'a,f,1,64,64,"t={t}",{t}e-3\n' for t in (1, 2, 3, 4)]
    three = qkvc("report", write(tmp_path, "3.csv", head + "".join(rows[:3]) + rows[0]), "--json").json()
    four = qkvc("report", write(tmp_path, "4.csv", head + "".join(rows)), "--json").json()
    assert three["files"][0]["kind"] == "bench" and not three["landscape"]
    assert four["files"][0]["kind"] == "tune" and four["landscape"][0]["best_seconds"] == 1e-3
    assert four["landscape"][0]["workload"] == "a, 1 \u00d7 64 \u00d7 64"


def test_rows_that_failed_have_no_time(qkvc, tmp_path):
    """What was measured before a check failed is shown nowhere: not as fastest, as a line, as a ratio."""
    tune = write(tmp_path, "t.csv", TUNE_HEAD.replace("\n", ",batch,len_q,len_k,flops,bytes\n") + "".join(
        f"a,w,decode,f,t={t},1,{t}e-3,,,{status},0,1,1,64,1e6,1e6\n" for t, status in ((1, "wrong"), (2, "ok"), (3, "ok"), (4, "ok"))))
    result = qkvc("report", tune, "--json").json()
    assert [r["seconds"] for r in result["roofline"]] == [2e-3] and result["landscape"][0]["best_seconds"] == 2e-3
    bench = write(tmp_path, "b.csv", "spec,workload,contestant,batch,q,kv,median_us,bytes,ratio,status\n" + "".join(
        f"a,w,{who},{batch},1,64,{time},1e6,{ratio},{status}\n" for who, batch, time, ratio, status in (
            ("qkv", 1, 1, "", "wrong"), ("qkv", 2, 2, "", "ok"), ("qkv", 3, 3, "", "ok"), ("fa3", 3, 4, 9, "error"))))
    result = qkvc("report", bench, "--json").json()
    assert [p["batch"] for p in result["batch"][0]["points"]] == [2, 3] and len(result["batch"]) == 1
    assert len(result["bandwidth"]) == 2 and not result["ratio"]


def test_runs_are_told_apart(qkvc, tmp_path):
    """By sizes where workloads have no name, by file where two runs tuned the same."""
    head = "family,batch,len_q,len_k,schedule,seconds,flops,bytes\n"
    rows = "".join(f"f,{batch},1,64,t={t},{batch * t}e-3,1e6,1e6\n" for batch in (1, 2) for t in (1, 2, 3, 4))
    result = qkvc("report", write(tmp_path, "r.csv", head + rows), "--json").json()
    assert [r["best_seconds"] for r in result["landscape"]] == [1e-3, 2e-3]
    assert [r["seconds"] for r in result["roofline"]] == [1e-3, 2e-3]
    again = write(tmp_path, "again.csv", head + rows.replace("e-3", "e-4"))
    two = qkvc("report", tmp_path / "r.csv", again, "--json").json()
    assert [(r["workload"], r["candidates"], r["best_seconds"]) for r in two["landscape"]] == [
        (f"{batch} \u00d7 1 \u00d7 64, {name}", 4, batch * scale) for name, scale in (("r.csv", 1e-3), ("again.csv", 1e-4))
        for batch in (1, 2)]
    assert [r["seconds"] for r in two["roofline"]] == [1e-3, 2e-3, 1e-4, 2e-4]


def test_problems_are_told_apart(qkvc, tmp_path):
    """By all of a long mask, by number formats; also in the ratio to peers."""
    long = "q >= k and " * 20
    text = "mask,dtype,workload,batch,q,kv,us\n" + "".join(
        f"{long}{n},{dtype},w,1,1,{kv},1\n" for n in (1, 2) for dtype in ("bf16", "f16") for kv in (64, 128))
    result = qkvc("report", write(tmp_path, "b.csv", text), "--json").json()
    assert [len(r["points"]) for r in result["length"]] == [2, 2, 2, 2]
    assert len({r["series"] for r in result["length"]}) == 4
    ours = write(tmp_path, "o.csv", "workload,dtype,us\nw,bf16/e4m3,1\nw,bf16,2\n")
    peers = write(tmp_path, "p.csv", "workload,contestant,dtype,seconds\nw,fa3,bf16,4e-6\n")
    assert qkvc("report", ours, "--peers", peers, "--json").json()["ratio"][0]["geometric_mean"] == 2


def test_names_of_any_length_and_with_line_feeds(qkvc, tmp_path):
    names = ["a" * 3000 + "b", "a" * 3000 + "c", "line\nfeed", "line\nbreak"]
    rows = [{"spec": name, "workload": "w", "batch": 1, "q": 1, "kv": kv, "us": kv} for name in names for kv in (64, 128)]
    for name in ("b.json", "c.json"):
        write(tmp_path, name, json.dumps(rows))
    result = qkvc("report", tmp_path / "b.json", tmp_path / "c.json", "--json").json()
    assert [r["series"] for r in result["length"]] == [
        f"{name}, qkv, q 1, batch 1, {file}" for file in ("b.json", "c.json") for name in names]


def test_roofline(qkvc, tmp_path):
    path = write(tmp_path, "b.csv", "spec,workload,batch,q,kv,family,median_us,flops,bytes,peak_tflops,peak_gbps\n"
                 "a,low,64,1,4096,f,100,1e9,1e8,1000,4000\na,high,1,4096,4096,f,100,5e10,1e8,1000,4000\n")
    page, _ = make(qkvc, tmp_path, path)
    low, high = page.rows("roofline", "FLOP/B")
    assert (low["FLOP/B"], low["TFLOP/s"], low["GB/s"], low["of bandwidth, %"], low["bound by"]) == ("10", "10", "1000", "25", "memory")
    assert (high["FLOP/B"], high["TFLOP/s"], high["of peak, %"], high["bound by"]) == ("500", "500", "50", "tensor cores")
    assert "1000 TFLOP/s" in page.text and "4 TB/s" in page.text
    assert len(page.rows("bandwidth", "GB/s")) == 1


def test_lines(qkvc, tmp_path):
    text = "spec,workload,batch,q,kv,family,median_us\n"
    for batch in (1, 4):
        for kv in (1024, 2048, 4096):
            text += f"a,w,{batch},1,{kv},f,{batch * kv / 100}\n"
    text += "a,alone,1,7,4096,f,3\na,w,1,1,1,f,0.01\n"  # as many queries as keys by chance: on the line of one query
    result = qkvc("report", write(tmp_path, "b.csv", text), "--json").json()
    assert {r["series"]: [p["keys"] for p in r["points"]] for r in result["length"]} == {
        "a, f, q 1, batch 1": [1, 1024, 2048, 4096], "a, f, q 1, batch 4": [1024, 2048, 4096]}
    assert {r["series"]: [p["batch"] for p in r["points"]] for r in result["batch"]} == {
        f"a, f, q 1, kv {k}k": [1, 4] for k in (1, 2, 4)}
    page, _ = make(qkvc, tmp_path, tmp_path / "b.csv")
    assert "1 more rows have no other" in page.sections["length"]
    two = qkvc("report", tmp_path / "b.csv", write(tmp_path, "c.csv", text), "--json").json()
    assert [r["series"] for r in two["length"]][1:3] == ["a, f, q 1, batch 4, b.csv", "a, f, q 1, batch 1, c.csv"]


def test_peers(qkvc, tmp_path):
    ours = write(tmp_path, "b.csv", "spec,workload,batch,q,kv,family,median_us,p10_us,p90_us\na,w,1,1,64,f,10,9,11\na,v,1,1,64,f,20,19,21\n")
    peers = write(tmp_path, "p.csv", "workload,contestant,seconds\nw,cudnn,12e-6\nv,cudnn,10e-6\nw,other,1e-3\n")
    page, _ = make(qkvc, tmp_path, ours, "--peers", peers)
    got = {(r["case"], r["contestant"]): float(r["time over ours"]) for r in page.rows("ratio", "time over ours")}
    assert got == {("a, w", "cudnn"): 1.2, ("a, v", "cudnn"): 0.5, ("a, w", "other"): 100}
    assert "No data" not in page.sections["ratio"]
    result = qkvc("report", ours, "--peers", ours, "-o", tmp_path / "x.html", code=2)
    assert "b.csv:1: no column names a contestant" in result.err


HOSTILE = "<script>alert(1)</script>&amp;\"'</title></style>\x01\x1b"


def test_hostile_names(qkvc, tmp_path):
    def cell(text):
        return '"' + text.replace('"', '""') + '"'

    quoted = cell(HOSTILE)
    heads = "spec,workload,family,schedule,contestant,gpu,status,mask,batch,q,kv,median_us,flops,bytes,ratio\n"
    path = write(tmp_path, "b.csv", heads + "".join(
        f"{quoted},{cell(HOSTILE + str(k))},{quoted},{quoted},{c},{quoted},ok,{quoted},{k},1,{k},{k},1e6,1e3,1.5\n"
        for k in (1, 2) for c in ("qkv", quoted)))
    tune = write(tmp_path, "t.csv", TUNE_HEAD + "".join(
        f'{quoted},{quoted},{quoted},{quoted},"<b>={a},<i>={b}",1,{a}{b},1,1,{s},0\n' for a in (1, 2) for b in (1, 2)
        for s in ("ok", quoted)))
    page, _ = make(qkvc, tmp_path, path, tune, "--title", HOSTILE)
    assert "<script" not in page.text and "<b>" not in page.text and "\x01" not in page.text
    assert "<script>alert(1)</script>" in "".join(page.sections.values())
    named = write(tmp_path, "<b>&.csv", "workload,median_us\nw,1\n")
    page, _ = make(qkvc, tmp_path, named)
    assert "<b>&.csv" in page.sections["files"]
    qkvc("report", path, "--json").json()


@pytest.mark.parametrize("text", [
    "workload,median_us\n",                                        # no rows
    "workload,median_us\nw,1\n",                                   # one point, no sizes
    "workload,batch,q,kv,median_us,flops,bytes\nw,1,1,1,1,1,1\n",  # one point
    "workload,batch,q,kv,median_us,flops,bytes\nw,0,0,0,1,0,0\n",  # nothing to do
    "workload,batch,q,kv,median_us,status\nw,1,1,1,,failed\n",     # nothing measured
    "workload,median_us,model_us,schedule\nw,,,x\nw,,1,\n",
    "workload,median_us,model_us,schedule\nw,1,1,a=1\n",
    "workload,batch,median_us\nw,1,1e-20\nw,2,1e20\n"])
def test_little_data(qkvc, tmp_path, text):
    page, _ = make(qkvc, tmp_path, write(tmp_path, "f.csv", text))
    assert any("No data" in part for part in page.sections.values())
    qkvc("report", tmp_path / "f.csv", "--json").json()


@pytest.mark.parametrize("text, says", [
    ("", "f.csv: is empty"),
    ("workload,median_us\nw,nan\n", "f.csv:2: column 'median_us': 'nan' is not finite"),
    ("workload,median_us\nw,1\nw,inf\n", "f.csv:3: column 'median_us': 'inf' is not finite"),
    ("workload,median_us\nw,-1\n", "f.csv:2: column 'median_us': '-1' is not above 0"),
    ("workload,median_us\nw,0\n", "f.csv:2: column 'median_us': '0' is not above 0"),
    ("workload,median_us\nw,1 us\n", "f.csv:2: column 'median_us': '1 us' is not a number"),
    ("workload,median_us\nw,1e99\n", "f.csv:2: column 'median_us': '1e99' is out of range"),
    ("workload,median_us,kv\nw,1,1.5\n", "f.csv:2: column 'kv': '1.5' is not a whole number"),
    ("workload,median_us,flops\nw,1,-2\n", "f.csv:2: column 'flops': '-2' is below 0"),
    ("workload,cudnn,cudnn_p10,cudnn_p90\nw,1,x,2\n", "f.csv:2: column 'cudnn_p10': 'x' is not a number"),
    ("workload,time\nw,1\n", "f.csv:1: no column names a time: median_us"),
    ("name,median_us\nw,1\n", "f.csv:1: no column names a problem: workload"),
    ("workload,median_us\nw\n", "f.csv:2: 1 cells, but the header names 2 columns"),
    ('workload,median_us\n"w,1\n', "f.csv:2: the quote that opens cell 1 is never closed"),
    ('[{"workload": "w", "median_us": }]', "f.csv:1: JSON: a value is missing"),
    ('[{"workload": "w",\n "median_us": "x"}]', "f.csv:1: column 'median_us': 'x' is not a number")])
def test_errors_name_the_place(qkvc, tmp_path, text, says):
    path = write(tmp_path, "f.csv", text)
    result = qkvc("report", path, "-o", tmp_path / "page.html", code=2)
    assert says in result.err and len(result.err.splitlines()) == 1, result
    assert not (tmp_path / "page.html").exists()


def test_messages_command_no_terminal(qkvc, tmp_path):
    """What a file holds reaches a terminal as text: no escape sequences, no other control characters."""
    path = write(tmp_path, "f.csv", "workload,median_us\nw,\x1b]0;title\x07\x1b[2J\n")
    result = qkvc("report", path, code=2)
    assert "column 'median_us': '?]0;title??[2J' is not a number" in result.err, result


def test_options(qkvc, tmp_path):
    path = write(tmp_path, "f.csv", "workload,median_us\nw,1\n")
    assert "--peak and --bandwidth take numbers above 0" in qkvc("report", path, "--peak", 0, code=2).err
    assert "No such file" in qkvc("report", tmp_path / "none.csv", code=2).err
    assert "none/x.html" in qkvc("report", path, "-o", tmp_path / "none" / "x.html", code=1).err
    check_page(qkvc("report", path, "-o", "-").out)
    qkvc("report", path, cwd=tmp_path)
    assert (tmp_path / "report.html").exists()
    assert "--json and a page do not both go to standard output" in qkvc("report", path, "--json", "-o", "-", code=2).err
    assert not qkvc("report", path, "--json", "-o", tmp_path / "y.html").err and (tmp_path / "y.html").exists()


def test_same_page_every_time_and_in_every_locale(qkvc, tmp_path):
    pages = [qkvc("report", *COMMITTED, "-o", "-", env={"LC_ALL": locale, "LANG": locale}).out for locale in ("C", "de_DE.UTF-8", "C.UTF-8")]
    assert pages[0] == pages[1] == pages[2]


def test_json_is_csv(qkvc, tmp_path):
    """The same rows as CSV, as JSON of rows and as an object a line make the same page."""
    rows = [{"spec": "a", "workload": "w", "batch": 1, "q": 1, "kv": k, "median_us": k / 8, "flops": 1e9, "bytes": 1e8} for k in (64, 128)]
    one = ",".join(rows[0]) + "\n" + "".join(",".join(map(str, r.values())) + "\n" for r in rows)
    two = json.dumps({"version": "x", "rows": rows, "more": [1, {"a": None}]})
    three = "\n".join(map(json.dumps, rows))
    pages = []
    for text in (one, two, three):
        pages.append(qkvc("report", write(tmp_path, "same.csv", text), "-o", "-").out)
    assert pages[0] == pages[1] == pages[2]


def test_example_page_is_current(qkvc):
    """docs/performance/report.html is what the command in docs/performance.md makes."""
    command = next(line for line in (ROOT / "docs" / "performance.md").read_text().splitlines() if line.startswith("qkvc report "))
    words = shlex.split(command)[1:]
    where = words.index("-o") + 1
    assert words[where] == "docs/performance/report.html"
    page = (ROOT / words[where]).read_text()
    assert qkvc(*words[:where], "-", *words[where + 1:]).out == page, f"run: {command}"
    assert len(page) < 200_000


def test_many_rows(qkvc, tmp_path):
    """A page stays readable: tables and pictures are cut, and say so; JSON has all."""
    text = "spec,workload,batch,q,kv,family,median_us,flops,bytes\n"
    for n in range(700):
        text += f"s{n % 350},w,1,1,{1 + n},f,{1 + n / 7},1e9,1e8\n"
    page, _ = make(qkvc, tmp_path, write(tmp_path, "b.csv", text))
    assert len(page.rows("roofline", "FLOP/B")) == 500 and "The first 500 of 700 rows" in page.sections["roofline"]
    assert len(page.rows("bandwidth", "GB/s")) == 500
    assert "The first 24 of 44 pictures" in page.sections["length"]
    everything = qkvc("report", tmp_path / "b.csv", "--json").json()
    assert len(everything["roofline"]) == len(everything["bandwidth"]) == 700 and len(everything["length"]) == 350
