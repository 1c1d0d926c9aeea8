"""The planned order of tiles of rows (scheduler = 3 of attention_forward_sm90): what the plan counts is what the mask's
tiles say, its order is theirs by falling count, and it changes no result. On the emulator, or on the device that
$QKV_TEST_DEVICE names."""

import collections
import os

import numpy
import pytest

import qkv
from qkv import _library as c

HEADS_Q, HEADS_KV, TILE_N = 6, 2, 16
SPEC = """qkvc: 1
name: order
attention: {heads: {q: 6, kv: 2}, dim: %d, dtype: bf16, mask: "%s", params: {%s}}
"""
EMPTY = 2**31 - 1
PARAMS = {
    "doc": ("{type: i32, shape: [b, len_k]}", lambda r, b, n: numpy.sort(r.integers(0, 5, (b, n)), 1).astype("int32")),
    "mixed": ("{type: i32, shape: [b, len_k]}", lambda r, b, n: (r.integers(0, 40, (b, n)) // 39).astype("int32")),
    "start": ("{type: i32, shape: [b, len_k]}",
              lambda r, b, n: (numpy.arange(n) - r.integers(0, 130, (b, n))).astype("int32")),
    "far": ("{type: i32, shape: [len_k]}", lambda r, b, n: (40 * (numpy.arange(n) - n + 200)).astype("int32")),
    "width": ("{type: i32, shape: [hq]}", lambda r, b, n: numpy.array([3, 90, 17, 200, 0, 64], "int32")),
    "block": ("{type: bool, shape: [hq, 20, 20]}", lambda r, b, n: r.random((HEADS_Q, 20, 20)) < 0.2),
    "gap": ("{type: i32}", lambda r, b, n: 3),
}

# mask: the text; by: what it tells apart; sizes: queries and keys; more: axes besides; dim.
Case = collections.namedtuple("Case", "mask by sizes more dim", defaults=((330, 330), "", 16))
CASES = {
    "documents by ids": Case("causal and doc[b, q] == doc[b, k]", "b"),
    "documents by ids, pack": Case("causal and doc[b, q] == doc[b, k]", "b", (130, 300), "pack=1"),
    "documents by offsets": Case("start[b, q] <= k and k <= q", "b", (200, 330)),
    "rows without keys": Case("mixed[b, q] == 1 and mixed[b, k] == 1 and k <= q", "b", (330, 200)),
    "no keys": Case("k < 0", ""),
    "chunks": Case("causal and q // 100 == k // 100", ""),
    "sink and window": Case("causal and (q - k < 40 or k < 20)", "", (330, 400)),
    "windows by head": Case("causal and (q - k < width[h] or k < 3)", "h"),
    "windows by head, pack": Case("causal and (q - k < width[h] or k < 3)", "h", (130, 130), "pack=1"),
    "blocks by head": Case("block[h, i // 16, k // 16]", "h", (300, 310)),
    "KV heads and entries": Case("where(hk == 0, causal, doc[b, q] == doc[b, k])", "kb", (140, 300)),
    "KV heads": Case("where(hk == 0, q - k == 3, abs(q % 24 - k % 24) <= 3)", "k", (200, 200)),
    "neighbourhoods": Case("abs(q % 24 - k % 24) <= 3 and abs(q // 24 - k // 24) <= 2", "", (576, 576), "pack=0"),
    "residues": Case("causal and (q - k) % 3 == 0", "", (400, 410)),
    "residues by parameter": Case("(k < 50 or q - k < 30) and k <= q and (q - k) % gap == 0", "", (390, 300)),
    "more residues than queries": Case("(q - k) % 97 == 0", "", (90, 300)),
    "many tiles of rows": Case("k < where(q % 640 < 300, 16, 40) and q % 7 != 3", "", (4500, 48)),
    "stretches": Case("far[q] <= k and k < far[q] + 30", "", (200, 8000), "", 256),
    "causal": Case("causal", ""),
}
BATCH = 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    device = os.environ.get("QKV_TEST_DEVICE")
    engine = qkv.Engine(device or "emu", arch=None if device else "sm_90a",
                        cache_dir=str(tmp_path_factory.mktemp("cache")))
    if engine.device.arch != "sm_90a":
        pytest.skip("the order is that of a kernel for sm_90a")
    yield engine
    engine.close()


class Problem:
    """The tensors of a case, and launches of them."""

    def __init__(self, engine, name, batch=BATCH):
        self.engine, self.case, self.name, self.batch = engine, CASES[name], name, batch
        self.len_q, self.len_k = self.case.sizes
        random = numpy.random.default_rng([*name.encode()])
        used = [param for param in PARAMS if param in self.case.mask]
        self.spec = qkv.Spec(SPEC % (self.case.dim, self.case.mask, ", ".join(
            "%s: %s" % (param, PARAMS[param][0]) for param in used)))
        self.params = {param: PARAMS[param][1](random, batch, self.len_k) for param in used}
        self.tensors = self.draw(random)

    def draw(self, random):
        shapes = [(self.batch, n, heads, self.case.dim)
                  for n, heads in ((self.len_q, HEADS_Q), (self.len_k, HEADS_KV), (self.len_k, HEADS_KV))]
        return [(random.standard_normal(shape, "float32").view("uint32") >> 16).astype("uint16") for shape in shapes]

    def op(self, scheduler):
        words = ["warpgroups=1", "tile_n=%d" % TILE_N, "order=0", "carry=0", "scheduler=%d" % scheduler,
                 "l2_mib=%d" % (4 if scheduler == 3 else 0), "q_buffers=1", "stages=2", "o_buffer=1"]
        words += [self.case.more] if self.case.more else ["pack=0"]
        return self.engine.prepare(self.spec, batch=self.batch, len_q=self.len_q, len_k=self.len_k, aligned_only=True,
                                   family="attention_forward_sm90", schedule=",".join(words))

    def bind(self, op, **more):
        return op.bind(*self.tensors, params=self.params, **more)

    def counts(self, entry, head, queries):
        """Which tiles of keys every tile of rows visits, as the plan numbers them: the first tile of all residues, then
        the second; and how many residues there are."""
        found = qkv.map_mask(self.spec, self.len_q, self.len_k, (queries, TILE_N), batch=self.batch, entry=entry,
                             head=head, params=self.params)
        visited = numpy.asarray(found.planned) != 0
        residues = min(found.dilation, self.len_q)
        visited = visited.reshape(residues, -1, visited.shape[1]).swapaxes(0, 1).reshape(visited.shape)
        return visited, residues


def plan_of(p, op, launch, queries, classes):
    """The regions of the workspace after a call: visits [classes, tiles, 3], order [classes, tiles], heads together."""
    tiles = next(iter(classes.values()))[0].shape[0]
    room = p.len_q if "(q - k) %" in p.case.mask else tiles
    memory = numpy.zeros(op.workspace_bytes, "uint8")
    c.call("qkv_copy_to_host", p.engine.handle, memory.ctypes.data, launch._call.args.workspace, memory.nbytes)
    regions, at = {}, op.workspace_bytes
    for name, size in (("together", 4), ("order", 4 * room * len(classes)), ("visits", 12 * room * len(classes))):
        at -= -(-size // 256) * 256  # the last regions
        regions[name] = memory[at:at + size].view("int32")
    assert at >= 256  # before them the ticket, perhaps a map
    count = tiles * len(classes)
    return (regions["visits"][:3 * count].reshape(len(classes), tiles, 3),
            regions["order"][:count].reshape(len(classes), tiles), int(regions["together"][0]))


def reach_of(visited):
    """From the first tile of keys that is visited to the last; 0: none."""
    columns = numpy.flatnonzero(visited.any(0))
    return int(columns[-1] - columns[0] + 1) if len(columns) else 0


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_the_masks(engine, name):
    p = Problem(engine, name)
    packed = "pack=1" in p.case.more
    queries = 64 // (HEADS_Q // HEADS_KV) if packed else 64
    heads = range(HEADS_Q)[::1 if "h" in p.case.by and not packed else 3] if set("hk") & set(p.case.by) else [0]
    entries = range(BATCH if "b" in p.case.by else 1)
    group = range(3) if packed and "h" in p.case.by else [0]  # the heads of a tile
    classes = {}
    for entry in entries:
        for head in heads:
            parts = [p.counts(entry, head + more, queries) for more in group]
            classes[entry, head] = numpy.any([visited for visited, _ in parts], 0), parts[0][1]
    op = p.op(3)
    launch = p.bind(op)
    launch()
    visits, order, together = plan_of(p, op, launch, queries, classes)
    keys_in_l2, reached = (4 << 20) // (4 * p.case.dim), []
    for n, (which, (visited, residues)) in enumerate(classes.items()):
        where = f"{name}, entry and head {which}"
        tiles, some = visited.shape[0], visited.any(1)
        counts = visits[n, :, 0]
        # Of a residue with a query less than others the last tile may be empty; what a kernel visits there is its own.
        there = numpy.arange(tiles) // residues * queries < (
            p.len_q - numpy.arange(tiles) % residues - 1) // residues + 1 if residues > 1 else numpy.full(tiles, True)
        assert (counts == visited.sum(1))[there].all(), f"{where}: {counts} tiles, not {visited.sum(1)}"
        begin, end = visited.argmax(1), visited.shape[1] - visited[:, ::-1].argmax(1)
        assert (visits[n, :, 1] == numpy.where(some, begin, EMPTY))[there].all(), f"{where}: {visits[n, :, 1]}"
        assert (visits[n, :, 2] == numpy.where(some, end, 0))[there].all(), f"{where}: {visits[n, :, 2]}"
        seen = counts > 0
        reach = int(visits[n, seen, 2].max() - visits[n, seen, 1].min()) * residues * TILE_N if seen.any() else 1
        reached.append((visits[n, seen, 1].min(initial=EMPTY), visits[n, seen, 2].max(initial=0)))
        stretches = -(-reach // keys_in_l2)
        length = -(-tiles // stretches)
        wanted = sorted(range(tiles), key=lambda tile: ((tiles - 1 - tile) // length, -counts[tile], -tile))
        assert order[n].tolist() == wanted, f"{where}: {stretches} stretches, counts {counts.tolist()}"
        assert (stretches > 1) == (name == "stretches"), f"{where}: reach {reach} of {keys_in_l2}"
    reach = max(max(end for _, end in reached) - min(begin for begin, _ in reached), 0) * residues * TILE_N
    fit = max(keys_in_l2 // max(reach, 1), 1)
    assert together == min(fit if packed else fit * 3, BATCH * (HEADS_KV if packed else HEADS_Q)), f"{name}: {reach}"
    launch.close()


@pytest.mark.parametrize("name", CASES)
def test_the_order_changes_no_result(engine, name):
    p = Problem(engine, name)
    bits = p.bind(p.op(3))()
    want, got = qkv.reference(p.spec, *p.tensors, params=p.params), (bits.astype("uint32") << 16).view("float32")
    assert numpy.linalg.norm(got - want) <= 1e-2 * numpy.linalg.norm(want), f"{name}: the kernel is wrong"
    for scheduler in range(3) if name in ("documents by ids", "chunks") else (2,):
        assert (p.bind(p.op(scheduler))() == bits).all(), f"{name}: scheduler {scheduler} and 3 differ"


@pytest.mark.parametrize("name", ["documents by ids", "documents by offsets", "residues by parameter"])
def test_calls_may_reuse_the_order(engine, name):
    p = Problem(engine, name)
    op = p.op(3)
    first = p.bind(op)
    before = engine.counters.launches
    first()
    planning = engine.counters.launches - before
    assert planning == (4 if name == "documents by ids" else 3)
    p.tensors = p.draw(numpy.random.default_rng(7))
    workspace = (first._call.args.workspace, op.workspace_bytes)
    again = p.bind(op, workspace=workspace, reuse_plan=True)
    before = engine.counters.launches
    got = again()
    assert engine.counters.launches - before == 1
    assert (got == p.bind(op)()).all(), f"{name}: the planned order is another one's"
    first.close()


def test_nothing_to_order(engine):
    p = Problem(engine, "documents by ids")
    op = p.op(3)
    p.tensors[0] = p.tensors[0][:, :0]
    assert p.bind(op)().shape == (BATCH, 0, HEADS_Q, 16)
    p = Problem(engine, "documents by ids")
    p.tensors[1:] = [tensor[:, :0] for tensor in p.tensors[1:]]
    p.params = {name: value[:, :0] for name, value in p.params.items()}
    assert not p.bind(op)().any()


LIMITS = "warpgroups=1,tile_n=16,order=0,carry=0,pack=0,q_buffers=1,"


def test_what_an_order_needs(engine):
    p = Problem(engine, "documents by offsets")
    for words, says in (("scheduler=3,l2_mib=0", "l2_mib of at least 4"),
                        ("scheduler=3,l2_mib=4,cluster=2", "cluster")):
        with pytest.raises(qkv.Error, match=says):
            engine.prepare(p.spec, batch=1, len_q=9, len_k=9, aligned_only=True, schedule=LIMITS + words)
    with pytest.raises(qkv.Error, match="declared maxima"):
        engine.prepare(p.spec, len_q=9, aligned_only=True, schedule=LIMITS + "scheduler=3,l2_mib=4")

