"""CSV rows and the tables printed last. A row is a dict with the COLUMNS below; missing ones are empty."""

import csv

from . import stats

COLUMNS = ("case implementation schedule status batch len_q len_k heads_q heads_kv dim_qk dim_v dtype mask median_us "
           "p10_us p90_us launches tflops ratio ratio_p10 ratio_p90 registers spills compile_s error_rel error_max "
           "sm_mhz power_w throttle notes gpu driver torch cudnn qkv").split()
OURS = "qkv"
OK = "ok"


class Writer:
    """Rows to a file, each on disk once it is written: a run that is cut short loses nothing."""

    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.csv = csv.DictWriter(self.file, COLUMNS, restval="", extrasaction="raise")
        self.csv.writeheader()
        self.file.flush()

    def write(self, rows, **more):
        self.csv.writerows(dict(row, **more) for row in rows)
        self.file.flush()


def write_csv(path, rows):
    """Rows of any columns at once; a column stands where its key first occurs."""
    fields = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)


def words(row):
    """A row in a line: key=value of all its columns."""
    return " ".join("%s=%s" % (key, "%.4g" % value if isinstance(value, float) else value)
                    for key, value in row.items())


def timing_columns(slices, reading, flops):
    """Columns of one contestant from its slices, the combined reading of the machine (or None) and the operations of
    one launch (or None)."""
    samples = [seconds for one in slices for seconds in one.samples]
    median, low, high = stats.spread(samples)
    columns = dict(median_us="%.2f" % (median * 1e6), p10_us="%.2f" % (low * 1e6), p90_us="%.2f" % (high * 1e6),
                   launches=len(samples), tflops="%.4g" % (flops / median * 1e-12) if flops else "")
    if reading:
        columns.update(sm_mhz="%.0f" % reading.sm_mhz, power_w="%.0f" % reading.power_w,
                       throttle="+".join(reading.reasons))
    return columns


def ratio_columns(peer, ours):
    """Time of a peer over ours, from the slices of both: the median of the rounds, p10 and p90."""
    ratios = stats.paired_ratios([one.mean for one in peer], [one.mean for one in ours])
    return dict(zip(("ratio", "ratio_p10", "ratio_p90"), ("%.3f" % value for value in stats.spread(ratios))))


def table(head, rows):
    """Lines of a table; the first column is left-aligned."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    return ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
            .rstrip() for row in cells]


def timed(rows, implementation):
    """The rows of an implementation that carry a time and are right, one a case: the first of several schedules."""
    found = {}
    for row in rows:
        if row["implementation"] == implementation and row.get("median_us") and row["status"] == OK:
            found.setdefault(row["case"], row)
    return list(found.values())


def peers_of(rows):
    """Names of the peers that have a ratio, in the order of their first row."""
    return list(dict.fromkeys(row["implementation"] for row in rows
                              if row["implementation"] != OURS and row.get("ratio")))


def grid_table(title, cells, digits, summary=False):
    """cells: {((dims, mask), length): number}. One line a (dims, mask), one column a length; with `summary` the
    geometric means of the lines and of all, and the minimum and where it is."""
    if not cells:
        return []
    lines, columns = (list(dict.fromkeys(key[n] for key in cells)) for n in (0, 1))
    columns.sort()
    number = "%%.%df" % digits
    body = []
    for line in lines:
        values = {column: cells.get((line, column)) for column in columns}
        known = [value for value in values.values() if value is not None]
        body.append([" ".join(line), *("-" if value is None else number % value for value in values.values()),
                     *([number % stats.geometric_mean(known)] if summary else [])])
    head = ["D mask", *("T %d" % column for column in columns), *(["geo. mean"] if summary else [])]
    lines = [title, *table(head, body)]
    if summary:
        (worst, length), value = min(cells.items(), key=lambda item: item[1])
        lines.append("geometric mean %.3f, minimum %.3f at D %s, T %d, %d cases" % (
            stats.geometric_mean(list(cells.values())), value, " ".join(worst), length, len(cells)))
    return [*lines, ""]


def grid_report(rows, places):
    """places: {name of a case: key of grid_table}. Ratios per peer, then what we reach."""
    lines = []
    for peer in peers_of(rows):
        cells = {places[row["case"]]: float(row["ratio"]) for row in timed(rows, peer) if row.get("ratio")}
        lines += grid_table("time of %s / ours (over 1: ours is faster)" % peer, cells, 3, summary=True)
    cells = {places[row["case"]]: float(row["tflops"]) for row in timed(rows, OURS) if row["tflops"]}
    return lines + grid_table("TFLOP/s of ours", cells, 0)


def dims_report(rows, tuned):
    """Our TFLOP/s at head dims between the tuned ones, beside what their neighbours promise."""
    lines = []
    for mask in dict.fromkeys(row["mask"] for row in timed(rows, OURS)):
        reached = {int(row["dim_qk"]): float(row["tflops"]) for row in timed(rows, OURS)
                   if row["mask"] == mask and row["tflops"]}
        known = {dim: value for dim, value in reached.items() if dim in tuned}
        body = []
        for dim, value in sorted(reached.items()):
            wanted = stats.interpolate(known, dim)
            body.append([dim, "%.0f" % value] + (["tuned", ""] if dim in tuned else ["-", "-"] if wanted is None else
                                                 ["%.0f" % wanted, "%.1f %%" % (100 * (1 - value / wanted))]))
        lines += [mask, *table(["D", "TFLOP/s", "interpolated", "shortfall"], body), ""]
    return lines


def case_report(rows):
    """Every row of every case, the fastest of ours first, then the peers; those without a time with their reason."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        mine.sort(key=lambda row: (row["implementation"] != OURS, float(row.get("median_us") or "inf")))
        body = [[row["implementation"] + (" " + row["schedule"] if row.get("schedule") else ""),
                 row.get("median_us", ""), "%s..%s" % (row["p10_us"], row["p90_us"]) if row.get("p10_us") else "",
                 *(row.get(key, "") for key in ("tflops", "ratio", "registers", "spills", "compile_s", "error_rel")),
                 "! " + row["status"] if row["status"] != OK else row.get("notes", "")] for row in mine]
        lines += [case, *table(["implementation", "median us", "p10..p90", "TFLOP/s", "ratio", "regs", "spills",
                                "NVRTC s", "rel err", ""], body), ""]
    return lines


def clock_report(rows):
    """One line an implementation: mean clock and power over the cases, and why the clock was held down."""
    lines = []
    for name in dict.fromkeys(row["implementation"] for row in rows if row.get("sm_mhz")):
        mine = [row for row in rows if row["implementation"] == name and row.get("sm_mhz")]
        reasons = dict.fromkeys(reason for row in mine for reason in row["throttle"].split("+") if reason)
        lines.append("%s: %.0f MHz, %.0f W, held by: %s" % (
            name, *(stats.mean([float(row[key]) for row in mine]) for key in ("sm_mhz", "power_w")),
            ", ".join(reasons) or "nothing"))
    return lines
