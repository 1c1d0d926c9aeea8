"""New keys and values into the cache: norm, rotary positions, storage, in every layout of the cache, against a plain
numpy form of the same; what must not be written keeps its bits; what must not matter does not change one."""

import itertools

import numpy
import pytest

import qkv

PI2 = 2 * numpy.pi


# ---- Number formats ----

def decode(bits, dtype):
    """Stored elements as f64."""
    if dtype in ("f16", "f32"):
        return bits.astype("float64")
    if dtype == "bf16":
        return (bits.astype("uint32") << 16).view("float32").astype("float64")
    sign, exponent, fraction = bits >> 7, (bits >> 3 & 15).astype(int), (bits & 7).astype("float64")
    size = numpy.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0**(exponent - 10.0))
    return numpy.where(sign, -1, 1) * numpy.where(bits & 127 == 127, numpy.nan, size)


def encode(values, dtype):
    if dtype == "bf16":
        bits = numpy.asarray(values, "float32").view("uint32")
        return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("uint16")
    return numpy.asarray(values, {"f16": "float16", "f32": "float32"}[dtype])


ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-20, "e4m3": 2.0**-4}  # f32: of the arithmetic
STORAGE = {"f16": "float16", "bf16": "uint16", "f32": "float32", "e4m3": "uint8"}


def close(got, want, dtype):
    """Stored elements are the f64 ones rounded once, but for what f32 arithmetic before it may move."""
    got = decode(got, dtype)
    least = {"e4m3": 2.0**-10, "f16": 2.0**-24}.get(dtype, 0)
    assert not numpy.isnan(got).any()
    excess = numpy.abs(got - want) - (ROUNDING[dtype] * numpy.abs(want) * 1.01 + least + 4e-6)
    assert excess.max(initial=0) <= 0, "off by %g more than rounding at %s" % (
        excess.max(), numpy.unravel_index(excess.argmax(), excess.shape))


# ---- The same in numpy ----

def base(theta, dims):
    return theta ** (-numpy.arange(0, dims, 2) / dims)


def yarn(theta, dims, factor, original, fast, slow, truncate):
    def pair(turns):
        return dims * numpy.log(original / (PI2 * turns)) / (2 * numpy.log(theta))
    first, last = pair(fast), pair(slow)
    if truncate:
        first, last = numpy.floor(first), numpy.ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    ramp = numpy.clip((numpy.arange(dims // 2) - first) / max(last - first, 0.001), 0, 1)
    plain = base(theta, dims)
    return plain / factor * ramp + plain * (1 - ramp)


def llama3(theta, dims, factor, low, high, original):
    plain = base(theta, dims)
    wave = PI2 / plain
    smooth = (original / wave - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    return numpy.where(wave > original / low, plain / factor, numpy.where(wave < original / high, plain, blended))


#: rope's numbers as YAML: (frequencies of dims, attention factor)
SCALINGS = {
    "theta: 500": (lambda dims: base(500, dims), 1),
    "theta: 1000, scaling: {linear: {factor: 4}}": (lambda dims: base(1000, dims) / 4, 1),
    "scaling: {ntk: {factor: 8}}": (lambda dims: base(10000 * 8 ** (dims / (dims - 2)), dims), 1),
    "theta: 5000, scaling: {yarn: {factor: 16, original: 256}}":
        (lambda dims: yarn(5000, dims, 16, 256, 32, 1, True), 0.1 * numpy.log(16) + 1),
    "theta: 150000, scaling: {yarn: {factor: 32, original: 4096, beta_fast: 16, beta_slow: 2, truncate: false, "
    "attention_factor: 1.25}}": (lambda dims: yarn(150000, dims, 32, 4096, 16, 2, False), 1.25),
    "theta: 500000, scaling: {llama3: {factor: 8, low: 1, high: 4, original: 8192}}":
        (lambda dims: llama3(500000, dims, 8, 1, 4, 8192), 1),
}


def turned(rows, cosine, sine, dims, interleaved):
    """rows [tokens, heads, dim], cosine and sine [tokens, dims / 2]."""
    rows, cosine, sine = rows.copy(), cosine[:, None], sine[:, None]
    first, second = (slice(0, dims, 2), slice(1, dims, 2)) if interleaved else (slice(0, dims // 2),
                                                                                 slice(dims // 2, dims))
    x, y = rows[..., first].copy(), rows[..., second].copy()
    rows[..., first], rows[..., second] = x * cosine - y * sine, y * cosine + x * sine
    return rows


def normed(rows, weights, epsilon):
    return rows / numpy.sqrt((rows**2).mean(-1, keepdims=True) + epsilon) * weights


# ---- Cases ----

class Case:
    """One call: the spec, arguments in host memory, and where each token goes."""

    def __init__(self, *, heads=(4, 2), dim=(32, 32), dtype="f16", kv=None, layout=("ragged", "page", 4, "nhd", "rows"),
                 rope="theta: 500", dims=None, style="half", table=False, norm=False, slots="mapping", query=True,
                 lens=((3, 7), (0, 5), (5, 5), (1, 12)), wide=False, seed=1, far=0,
                 scaled=False):
        self.random = numpy.random.default_rng(seed)
        self.heads, self.dim, self.dtype, self.kv_dtype = heads, dim, dtype, kv or dtype
        self.layout, self.dims, self.interleaved = layout, dims or dim[0], style == "interleaved"
        self.scaled = scaled
        self.slots, self.norm, self.query, self.table, self.rope = slots, norm, query, table, rope
        if layout[0] == "dense":
            lens = [(3, k) for _, k in lens]
        if layout[1] == "dense":
            lens = [(q, 12) for q, _ in lens]
        self.lens, self.capacity = lens, 12 + 3
        self.spec = qkv.Spec(self.text())
        self.query = self.spec.append["query"]  # nothing happens to queries without norm and rope
        self.tokens = sum(q for q, _ in lens)
        self.pages = self.numbers = None
        self.args = {}
        self.make_places()
        self.make_rows()
        if rope and slots == "mapping":  # rotary positions of their own, the slots' are elsewhere
            self.positions = self.positions + far
        self.make_arrays("int64" if wide else "int32")

    def text(self):
        kind, rest = self.layout[1], self.layout[2:]
        kv = kind if kind != "page" else "{paged: {page: %d, order: %s, table: %s}}" % rest
        lines = ["qkvc: 1", "name: appended", "attention:", "  heads: {q: %d, kv: %d}" % self.heads,
                 "  dim: {qk: %d, v: %d}" % self.dim, "  dtype: {q: %s, kv: %s}" % (self.dtype, self.kv_dtype),
                 "  kv_scale: %s" % ("per_head" if self.scaled else "none"),
                 "layout: {q: %s, kv: %s}" % (self.layout[0], kv)]
        if self.rope:
            how = "table: true" if self.table else self.rope
            lines.append("rope: {dims: %d, style: %s, %s}" % (self.dims, "interleaved" if self.interleaved else "half",
                                                             how))
        norm = "norm: rms, epsilon: 0.001, " if self.norm else ""
        lines.append("append: {%sslots: %s, query: %s}" % (norm, self.slots, str(self.query).lower()))
        return "\n".join(lines) + "\n"

    def make_places(self):
        """Where tokens lie in the cache: self.place [tokens] of (index into the cache), and their positions."""
        kind = self.layout[1]
        self.position_of, self.sequence_of = [], []
        for b, (q, k) in enumerate(self.lens):
            self.position_of += list(range(k - q, k))
            self.sequence_of += [b] * q
        self.positions = numpy.array(self.position_of, "int64")
        batch = len(self.lens)
        if kind == "page":
            page, order, form = self.layout[2:]
            need = [-(-k // page) for _, k in self.lens]
            free = list(self.random.permutation(sum(need) + 2))
            self.numbers = [[int(free.pop()) for _ in range(n)] for n in need]
            shape = (sum(need) + 2, page)
            self.slot = [self.numbers[b][p // page] * page + p % page
                         for b, p in zip(self.sequence_of, self.position_of)]
            if form == "rows":
                table = numpy.full((batch, max(need, default=0) + 1), 2**30, "int32")
                for b, own in enumerate(self.numbers):
                    table[b, :len(own)] = own
            else:
                table = numpy.array(sum(self.numbers, []) + [2**30], "int32")
                self.args["page_indptr"] = numpy.cumsum([0] + need).astype("int32")
            self.args["page_table"] = table
        elif kind == "ragged":
            starts = numpy.cumsum([0] + [k for _, k in self.lens])
            shape = (starts[-1] + 2,)
            self.slot = [int(starts[b]) + p for b, p in zip(self.sequence_of, self.position_of)]
            self.args["cu_seqlens_k"] = starts.astype("int32")
        else:
            shape = (batch, self.capacity if kind == "padded" else 12)
            self.slot = [b * shape[1] + p for b, p in zip(self.sequence_of, self.position_of)]
        self.cache_shape = shape
        if kind in ("page", "padded"):
            self.args["seqlens_k"] = numpy.array([k for _, k in self.lens], "int32")
        if self.layout[0] == "ragged":
            self.args["cu_seqlens_q"] = numpy.cumsum([0] + [q for q, _ in self.lens]).astype("int32")
        if self.slots == "mapping":
            for name in ("seqlens_k", "cu_seqlens_q", "cu_seqlens_k", "page_table", "page_indptr"):
                self.args.pop(name, None)

    def cache(self, dim):
        shape = self.cache_shape + (self.heads[1], dim)
        if self.layout[1] == "page" and self.layout[3] == "hnd":
            shape = (shape[0], shape[2], shape[1], shape[3])
        if self.kv_dtype == "e4m3":
            return self.random.integers(0, 120, shape).astype("uint8")
        return encode(self.random.normal(size=shape), self.kv_dtype)

    def make_rows(self):
        (hq, hk), (dqk, dv) = self.heads, self.dim
        def draw(*shape):
            return encode(self.random.normal(size=shape), self.dtype)
        self.args.update(k=draw(self.tokens, hk, dqk), v=draw(self.tokens, hk, dv), k_cache=self.cache(dqk),
                         v_cache=self.cache(dv))
        if self.query:
            self.args["q"] = draw(self.tokens, hq, dqk)
        if self.norm:
            self.args["k_norm"] = self.random.uniform(0.5, 2, dqk).astype("float32")
            if self.query:
                self.args["q_norm"] = self.random.uniform(0.5, 2, dqk).astype("float32")
        if self.scaled:
            self.args["k_scale"] = self.random.uniform(0.005, 2, hk).astype("float32")
            self.args["v_scale"] = numpy.broadcast_to(numpy.float32([0.25]), (hk,))

    def make_arrays(self, index):
        if self.slots == "mapping":
            self.args["slots"] = numpy.array(self.slot, index)
        if self.slots == "positions" or (self.rope and self.slots == "mapping"):
            self.args["positions"] = self.positions.astype(index)
        if self.rope and self.table:
            angles = numpy.arange(20)[:, None] * base(300, self.dims)
            self.args["cos_sin"] = numpy.concatenate([numpy.cos(angles), numpy.sin(angles)], 1).astype("float32")

    def angles(self):
        """cosine and sine [tokens, dims / 2] of f32 frequencies, or of the table."""
        if self.table:
            rows = self.args["cos_sin"][numpy.clip(self.positions, 0, 19)].astype("float64")
            return rows[:, :self.dims // 2], rows[:, self.dims // 2:]
        frequencies, factor = SCALINGS[self.rope]
        frequencies = self.args.get("frequencies", frequencies(self.dims).astype("float32")).astype("float64")
        factor = self.args.get("rope_factor", factor)
        angles = self.positions[:, None] * frequencies
        return factor * numpy.cos(angles), factor * numpy.sin(angles)

    def expected(self):
        """Rows in f64, before storage: q (or None), k, v."""
        rows = {name: decode(self.args[name], self.dtype) for name in "qkv" if name in self.args}
        for name in "qk":
            if name in rows and self.norm:
                rows[name] = normed(rows[name], self.args[name + "_norm"].astype("float64"), numpy.float32(0.001))
            if name in rows and self.rope:
                rows[name] = turned(rows[name], *self.angles(), self.dims, self.interleaved)
        for name in "kv":
            if self.scaled:
                rows[name] = rows[name] / self.args[name + "_scale"].astype("float64")[:, None]
            if self.kv_dtype == "e4m3":
                rows[name] = numpy.clip(rows[name], -448, 448)
        return rows

    def rows_of(self, cache):
        """The cache as [slots, heads, dim]: a view."""
        if self.layout[1] == "page" and self.layout[3] == "hnd":
            cache = cache.swapaxes(1, 2)
        return cache.reshape((-1,) + cache.shape[-2:]) if cache.flags.c_contiguous else numpy.concatenate(list(cache))

    def check(self, q_out, k_cache, v_cache, before, kept=None):
        """`kept`: the tokens that are stored; the rest of the cache is as it was."""
        want, kept = self.expected(), range(self.tokens) if kept is None else kept
        for name, cache, old in ("k", k_cache, before[0]), ("v", v_cache, before[1]):
            got, old = self.rows_of(cache), self.rows_of(old)
            places = [self.slot[t] for t in kept]
            close(got[places], want[name][list(kept)], self.kv_dtype)
            others = numpy.setdiff1d(numpy.arange(len(got)), places)
            assert (got[others] == old[others]).all(), "%s: rows of nobody were written" % name
        if self.query:
            close(q_out, want["q"], self.dtype)


def run(engine, case, **changes):
    """q_out, k_cache, v_cache of a call on the emulator, and of the reference."""
    args = dict(case.args, **changes)
    op = prepared(engine, case)
    results = []
    for function in op.append, lambda **a: qkv.append_reference(case.spec, **a):
        caches = {name: args[name].copy() for name in ("k_cache", "v_cache")}
        given = dict(args, **caches)
        if case.query and function != op.append:
            given["q_out"] = numpy.empty(args["q"].shape, STORAGE[case.dtype])
        results.append((function(**given), caches["k_cache"], caches["v_cache"]))
    return results


_ops = {}


def prepared(engine, case):
    key = case.spec.canonical()
    if key not in _ops:
        _ops[key] = engine.prepare(case.spec, phase="append")
    return _ops[key]


PAGED = {(page, order, form): ("ragged", "page", page, order, form) for page, order, form in itertools.product(
    (1, 3, 16), ("nhd", "hnd"), ("rows", "csr"))}
CASES = {
    # layouts of the cache and ways to say a place
    "paged": dict(),
    "paged_1_hnd": dict(layout=PAGED[1, "hnd", "csr"], slots="positions"),
    "paged_3_hnd": dict(layout=PAGED[3, "hnd", "rows"], slots="lengths", norm=True),
    "paged_16_csr": dict(layout=PAGED[16, "nhd", "csr"], slots="lengths", wide=True),
    "paged_16_hnd": dict(layout=PAGED[16, "hnd", "csr"], wide=True, far=100000),
    "paged_3": dict(layout=PAGED[3, "nhd", "rows"], slots="positions", wide=True),
    "padded": dict(layout=("ragged", "padded"), slots="lengths"),
    "padded_map": dict(layout=("dense", "padded"), wide=True),
    "padded_dense": dict(layout=("dense", "padded"), slots="positions"),
    "dense_paged": dict(layout=("dense", "page", 4, "nhd", "rows"), slots="lengths"),
    "dense": dict(layout=("dense", "dense"), slots="lengths"),
    "dense_map": dict(layout=("dense", "dense")),
    "packed": dict(layout=("ragged", "ragged"), slots="positions"),
    "packed_map": dict(layout=("ragged", "ragged"), norm=True),
    # rope
    "linear": dict(rope="theta: 1000, scaling: {linear: {factor: 4}}", far=2000),
    "ntk": dict(rope="scaling: {ntk: {factor: 8}}", dim=(64, 32), far=3000),
    "yarn": dict(rope="theta: 5000, scaling: {yarn: {factor: 16, original: 256}}", dim=(128, 64), far=4000),
    "gpt_oss": dict(rope="theta: 150000, scaling: {yarn: {factor: 32, original: 4096, beta_fast: 16, beta_slow: 2, "
                         "truncate: false, attention_factor: 1.25}}", dim=(64, 64), heads=(8, 1)),
    "llama3": dict(rope="theta: 500000, scaling: {llama3: {factor: 8, low: 1, high: 4, original: 8192}}",
                   dim=(128, 128), dtype="bf16", far=1000000),
    "interleaved": dict(style="interleaved", dim=(64, 64), norm=True),
    "partial": dict(dims=16, dim=(40, 24), dtype="bf16"),
    "partial_odd": dict(dims=6, dim=(24, 8), norm=True),
    "partial_odd_interleaved": dict(dims=22, style="interleaved", dim=(40, 40)),
    "partial_interleaved": dict(dims=24, style="interleaved", dim=(80, 16), dtype="f32"),
    "table": dict(table=True, style="interleaved", dims=16, dtype="f32", far=-5),  # before its beginning
    "table_half": dict(table=True, norm=True, far=15),  # beyond its end
    "none": dict(rope=None, slots="lengths"),
    "none_normed": dict(rope=None, norm=True, dim=(72, 72), dtype="f32"),
    "none_map": dict(rope=None),
    # formats, shapes
    "f32": dict(dtype="f32", slots="lengths", norm=True),
    "f32_to_bf16": dict(dtype="f32", kv="bf16"),
    "bf16_to_f16": dict(dtype="bf16", kv="f16", norm=True),
    "bf16_to_f32": dict(dtype="bf16", kv="f32", dim=(48, 16)),
    "e4m3": dict(dtype="bf16", kv="e4m3", norm=True),
    "e4m3_scaled": dict(dtype="bf16", kv="e4m3", norm=True, scaled=True),
    "scaled": dict(scaled=True),
    "e4m3_f16": dict(kv="e4m3", dim=(40, 40), slots="positions", scaled=True),
    "e4m3_f32": dict(dtype="f32", kv="e4m3", scaled=True, dims=6, dim=(16, 16), slots="lengths", query=False),
    "keys_alone": dict(query=False, slots="lengths", norm=True),
    "keys_alone_map": dict(query=False),
    "mla": dict(dim=(576, 512), heads=(3, 1), dims=64, norm=True),
    "wide_heads": dict(dim=(256, 256), heads=(5, 5)),
    "many_sequences": dict(lens=[((n + 1) % 3, n % 3 + n % 7 + 2) for n in range(70)], slots="lengths", heads=(1, 1),
                           dim=(8, 8), rope=None),
}


@pytest.mark.parametrize("name", CASES)
def test_case(emu, name):
    case = Case(seed=len(name), **CASES[name])
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    for q_out, k_cache, v_cache in run(emu, case):
        case.check(q_out, k_cache, v_cache, before)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_e4m3_rounds_as_the_hardware(arch, tmp_path):
    """Every f16 there is, as a value: to the nearest e4m3, of two the even one, saturated; NaN stays one. By integers
    before sm_89, by an instruction since."""
    case = Case(kv="e4m3", rope=None, query=False, heads=(8, 8), dim=(128, 128), layout=("ragged", "ragged"),
                lens=[(64, 64)])
    everything = numpy.arange(65536, dtype="uint16").view("float16").reshape(64, 8, 128)
    with qkv.Engine("emu", arch=arch, cache_dir=str(tmp_path)) as engine:
        _ops.clear()
        (_, got, _), (_, reference, _) = run(engine, case, k=everything, v=everything)
        assert ("cvt.rn.satfinite.e4m3x2" in engine.generate(case.spec, phase="append")) == (arch == "sm_90a")
        _ops.clear()
    grid = decode(numpy.arange(127, dtype="uint8"), "e4m3")
    got, reference = (rows[:64].reshape(-1) for rows in (got, reference))
    values = everything.reshape(-1).astype("float64")
    finite = ~numpy.isnan(values)
    assert (got[~finite] & 127 == 127).all() and (reference[~finite] & 127 == 127).all()
    sizes = numpy.abs(values[finite])
    above = numpy.clip(numpy.searchsorted(grid, sizes), 1, 126)
    low, high = sizes - grid[above - 1], grid[above] - sizes
    want = numpy.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    want = want | numpy.where(numpy.signbit(values[finite]), 128, 0)
    assert (got[finite] == want).all() and (reference[finite] == want).all()


def test_slots_that_skip(emu):
    """-1, and slots beyond the cache: neither key nor value; the query turns."""
    case = Case(wide=True)
    slots = case.args["slots"].copy()
    slots[0], slots[3], slots[5] = -1, 2**40, int(numpy.prod(case.cache_shape))
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    for results in run(emu, case, slots=slots):
        case.check(*results, before, [t for t in range(case.tokens) if t not in (0, 3, 5)])


@pytest.mark.parametrize("layout", ["ragged", "page", "padded"])
def test_positions_outside_of_their_sequence(emu, layout):
    case = Case(slots="positions", wide=True,
                layout=("ragged", "page", 4, "hnd", "csr") if layout == "page" else ("ragged", layout))
    positions = case.positions.copy()
    positions[1], positions[4], positions[6] = -1, 2**33, case.lens[2][1]  # the third sequence's length
    case.positions = numpy.clip(positions, -2**31 + 1, 2**31 - 1)
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    kept = [t for t in range(case.tokens) if t not in (1, 4, 6)]
    q = case.args["q"].copy()
    for q_out, k_cache, v_cache in run(emu, case, positions=positions):
        case.query = False
        case.check(None, k_cache, v_cache, before, kept)
        case.query = True
        assert numpy.isfinite(q_out.astype("float32")).all()
    assert (q == case.args["q"]).all()


def test_rows_of_no_sequence_are_left_alone(emu):
    """Rows before the first sequence and behind the last, of NaN: neither queries nor keys of theirs."""
    case = Case(slots="lengths")
    lead, tail = 2, 3
    def padded(rows):
        return numpy.concatenate([numpy.full((lead,) + rows.shape[1:], numpy.nan, rows.dtype), rows,
                                  numpy.full((tail,) + rows.shape[1:], numpy.nan, rows.dtype)])
    arguments = dict(case.args, **{name: padded(case.args[name]) for name in "qkv"},
                     cu_seqlens_q=case.args["cu_seqlens_q"] + numpy.int32(lead))
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    for function in prepared(emu, case).append, lambda **a: qkv.append_reference(case.spec, **a):
        caches = {name: case.args[name].copy() for name in ("k_cache", "v_cache")}
        q_out = numpy.full(arguments["q"].shape, 7, "float16")
        function(**dict(arguments, q_out=q_out, **caches))
        case.check(q_out[lead:-tail], caches["k_cache"], caches["v_cache"], before)
        assert (q_out[:lead] == 7).all() and (q_out[-tail:] == 7).all()


def wild(engine, case, **changes):
    """A call with arrays of anything writes nothing outside of the cache: the emulator sees to that."""
    return run(engine, case, **changes)


def test_arrays_of_anything_stay_inside(emu):
    random = numpy.random.default_rng(4)
    for layout in ("ragged", "ragged"), ("ragged", "padded"):
        case = Case(layout=layout, slots="lengths")
        for _ in range(6):
            arrays = {name: random.choice([-2**31, -5, 0, 1, 3, 7, 2**31 - 1], case.args[name].shape).astype("int32")
                      for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k") if name in case.args}
            wild(emu, case, **arrays)


def test_empty(emu):
    case = Case()
    none = {name: case.args[name][:0] for name in ("q", "k", "v", "slots", "positions")}
    before = case.args["k_cache"].copy()
    for q_out, k_cache, _ in run(emu, case, **none):
        assert q_out.shape == (0, 4, 32) and (k_cache == before).all()
    case = Case(slots="lengths", lens=[])
    run(emu, case)


# ---- What must not change a bit ----

def same(results, others):
    for one, other in zip(results, others):
        assert (numpy.asarray(one).view("uint8") == numpy.asarray(other).view("uint8")).all()


def test_fused_is_apart(emu):
    case = Case(norm=True, dim=(32, 16), dtype="bf16")
    apart = run(emu, case)[0]
    rows = [case.args[name].reshape(case.tokens, -1) for name in "qkv"]
    fused = numpy.concatenate(rows, 1)
    rest = {name: value for name, value in case.args.items() if name not in ("q", "k", "v")}
    caches = {name: case.args[name].copy() for name in ("k_cache", "v_cache")}
    op = prepared(emu, case)
    q_out = op.append(**dict(rest, qkv=fused, **caches))
    same(apart, (q_out, caches["k_cache"], caches["v_cache"]))
    # In place: turned queries end up in the projection.
    caches = {name: case.args[name].copy() for name in ("k_cache", "v_cache")}
    whole = fused.copy()
    part = numpy.lib.stride_tricks.as_strided(whole, (case.tokens, 4, 32), (whole.strides[0], 64, 2))
    op.append(**dict(rest, qkv=whole, q_out=part, **caches))
    same(apart, (part.copy(), caches["k_cache"], caches["v_cache"]))
    assert (whole[:, rows[0].shape[1]:] == fused[:, rows[0].shape[1]:]).all()


def test_in_place(emu):
    for style in "half", "interleaved":
        case = Case(style=style, norm=True)
        apart = run(emu, case)[0]
        q = case.args["q"].copy()
        caches = {name: case.args[name].copy() for name in ("k_cache", "v_cache")}
        prepared(emu, case).append(**dict(case.args, q=q, q_out=q, **caches))
        same(apart, (q, caches["k_cache"], caches["v_cache"]))


def test_any_alignment_and_strides(emu):
    """Elements apart, odd addresses, keys and values in one allocation."""
    for changes in dict(norm=True), dict(kv="e4m3", dtype="bf16", scaled=True), dict(style="interleaved", dtype="f32"):
        case = Case(**changes)
        apart = run(emu, case)[0]
        loose = {}
        for name in ("q", "k", "v"):
            rows = case.args[name]
            room = numpy.zeros(rows.shape[:2] + (2 * rows.shape[2] + 1,), rows.dtype)
            loose[name] = room[..., 1::2]
            loose[name][...] = rows
        both = numpy.zeros(case.args["k_cache"].shape[:1] + (2,) + case.args["k_cache"].shape[1:],
                           case.args["k_cache"].dtype)
        both[:, 0], both[:, 1] = case.args["k_cache"], case.args["v_cache"]
        q_out = prepared(emu, case).append(**dict(case.args, k_cache=both[:, 0], v_cache=both[:, 1], **loose))
        same(apart, (q_out, both[:, 0].copy(), both[:, 1].copy()))


def test_schedules_agree(emu):
    case = Case(heads=(6, 3), norm=True)
    first = run(emu, case)[0]
    for schedule in ("rows=1,warps=1,tokens=1", "rows=4,warps=2,tokens=8", "rows=8,warps=1,tokens=4",
                     "rows=1,warps=3,tokens=2,resident=64"):
        caches = {name: case.args[name].copy() for name in ("k_cache", "v_cache")}
        with emu.prepare(case.spec, phase="append", aligned_only=True, schedule=schedule) as op:
            same(first, (op.append(**dict(case.args, **caches)), caches["k_cache"], caches["v_cache"]))


def test_company_order_and_pages_change_nothing(emu):
    """Each token alone, and all in another order, in other pages: the same bits in each row."""
    case = Case(norm=True, dim=(64, 32))
    q_out, k_cache, v_cache = run(emu, case)[0]
    rows = {"q": q_out, "k": case.rows_of(k_cache)[case.slot], "v": case.rows_of(v_cache)[case.slot]}
    slots = case.random.permutation(int(numpy.prod(case.cache_shape)))[:case.tokens]
    order = case.random.permutation(case.tokens)
    for tokens in [order] + [[t] for t in range(case.tokens)]:
        changes = {name: case.args[name][tokens] for name in ("q", "k", "v", "positions")}
        q_out, k_cache, v_cache = run(emu, case, slots=slots[tokens].astype("int32"), **changes)[0]
        same((q_out, case.rows_of(k_cache)[slots[tokens]], case.rows_of(v_cache)[slots[tokens]]),
             (rows[name][tokens] for name in "qkv"))


def test_numbers_compile_nothing(emu):
    """Theta, scaling, epsilon, and all that attention says of scores."""
    case = Case(norm=True)
    sources = {emu.generate(spec, phase="append") for spec in (
        case.text(), case.text().replace("theta: 500", "theta: 77, scaling: {yarn: {factor: 3, original: 99}}"),
        case.text().replace("0.001", "1e-5"),
        case.text().replace("  heads:", "  mask: causal\n  softcap: 30\n  sink: per_head\n  heads:"))}
    assert len(sources) == 1
    with_append, without = (emu.generate(text) for text in (
        case.text(), case.text().split("rope:")[0]))
    assert with_append == without


def test_frequencies_of_a_call(emu):
    case = Case()
    case.args["frequencies"] = case.random.uniform(-2, 2, 16).astype("float32")
    case.args["rope_factor"] = 1.5
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    for results in run(emu, case):
        case.check(*results, before)


def test_far_positions_are_exact(emu):
    """Angles of position 2^24 - 1 in f32: the product alone would be off by whole radians."""
    case = Case(dtype="f32", far=2**24 - 20)
    before = case.args["k_cache"].copy(), case.args["v_cache"].copy()
    for results in run(emu, case):
        case.check(*results, before)


# ---- With attention ----

@pytest.mark.parametrize("slots", ["mapping", "lengths"])
def test_append_then_attention_is_attention_of_turned_tensors(emu, slots):
    """A prefill in two chunks and a decode step through the cache, against dense tensors turned in numpy."""
    text = """qkvc: 1
name: served
attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: causal}
layout: {q: ragged, kv: {paged: {page: 4, order: hnd}}}
rope: {theta: 500, dims: 16}
append: {norm: rms, slots: %s}
""" % slots
    random, totals, steps = numpy.random.default_rng(8), (13, 6), ((8, 2), (4, 3), (1, 1))
    rows = [{name: encode(random.normal(size=(total, heads, 32)), "f16") for name, heads in zip("qkv", (4, 2, 2))}
            for total in totals]
    weights = {name: random.uniform(0.5, 2, 32).astype("float32") for name in ("q_norm", "k_norm")}
    k_cache, v_cache = (numpy.full((8, 2, 4, 32), numpy.nan, "float16") for _ in range(2))
    table = numpy.array([[5, 0, 7, 2], [6, 1, 3, 4]], "int32")
    append, attend = (emu.prepare(text, phase=phase, batch=2, len_q=8, len_k=16) for phase in ("append", "prefill"))
    outputs, done = [[], []], [0, 0]
    for step in steps:
        parts = [{name: tensor[start:start + n] for name, tensor in row.items()}
                 for row, start, n in zip(rows, done, step)]
        q, k, v = (numpy.concatenate([part[name] for part in parts]) for name in "qkv")
        positions = numpy.concatenate([numpy.arange(start, start + n) for start, n in zip(done, step)]).astype("int32")
        sequence = numpy.repeat([0, 1], step)
        done = [start + n for start, n in zip(done, step)]
        arrays = {"cu_seqlens_q": numpy.cumsum((0,) + step).astype("int32"), "page_table": table,
                  "seqlens_k": numpy.array(done, "int32")}
        places = arrays if slots == "lengths" else {
            "positions": positions, "slots": table[sequence, positions // 4] * 4 + positions % 4}
        turned_q = append.append(q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, **weights, **places)
        o = attend(turned_q, k_cache, v_cache, **arrays)
        for b in range(2):
            outputs[b].append(o[sequence == b])
    for b, total in enumerate(totals):
        angles = numpy.arange(total)[:, None] * base(500, 16)
        q, k = (turned(normed(decode(rows[b][name], "f16"), weights[name + "_norm"], 1e-6), numpy.cos(angles),
                       numpy.sin(angles), 16, False) for name in "qk")
        want = qkv.reference("qkvc: 1\nname: t\nattention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f32, mask: causal}\n",
                             *(numpy.ascontiguousarray(t[None], "float32") for t in (q, k, rows[b]["v"])))[0]
        got = numpy.concatenate(outputs[b]).astype("float64")
        assert numpy.abs(got - want).max() < 4e-3
    append.close(), attend.close()


def test_append_then_attention_through_scaled_bytes(emu):
    """What an append divides by, attention multiplies by: a cache of e4m3 is as good as its three bits."""
    text = """qkvc: 1
name: bytes
attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: {q: f16, kv: e4m3, out: f16}, kv_scale: per_head, mask: causal}
layout: {q: ragged, kv: {paged: {page: 4, order: nhd}}}
rope: {theta: 500}
append: {slots: lengths}
"""
    random, total = numpy.random.default_rng(9), 11
    rows = {name: encode(random.normal(size=(total, heads, 32)), "f16") for name, heads in zip("qkv", (4, 2, 2))}
    caches = {name: numpy.full((4, 4, 2, 32), 127, "uint8") for name in ("k_cache", "v_cache")}  # NaN
    arrays = {"cu_seqlens_q": numpy.array([0, total], "int32"), "seqlens_k": numpy.array([total], "int32"),
              "page_table": numpy.array([[2, 0, 3]], "int32")}
    scales = {"k_scale": numpy.float32([0.02, 0.3]), "v_scale": numpy.float32([0.01, 2])}
    append, attend = (emu.prepare(text, phase=phase, batch=1, len_q=16, len_k=16) for phase in ("append", "prefill"))
    q = append.append(**rows, **caches, **arrays, **scales)
    got = attend(q, *caches.values(), **arrays, **scales).astype("float64")
    angles = numpy.arange(total)[:, None] * base(500, 32)
    q, k = (turned(decode(rows[name], "f16"), numpy.cos(angles), numpy.sin(angles), 32, False) for name in "qk")
    want = qkv.reference("qkvc: 1\nname: t\nattention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f32, mask: causal}\n",
                         *(numpy.ascontiguousarray(t[None], "float32") for t in (q, k, rows["v"])))[0]
    assert numpy.linalg.norm(got - want) / numpy.linalg.norm(want) < 0.05
    append.close(), attend.close()


# ---- Errors ----

@pytest.mark.parametrize("changes, message", [
    (dict(k=None), "an append needs qkv, or q, k and v"),
    (dict(v=None), "v: is not given; the spec's append needs it"),
    (dict(slots=None), "slots: is not given; the spec's append needs it"),
    (dict(k_norm=numpy.ones(31, "float32")), "k_norm: dimension 0, dim_qk is 31, must be 32"),
    (dict(k_norm=numpy.ones(32, "float16")), "k_norm: is f16, must be f32"),
    (dict(slots=numpy.ones(9, "float32")), "slots: is f32, must be i32 or i64"),
    (dict(positions=numpy.ones(8, "int32")), "positions: dimension 0, tokens is 8, must be 9"),
    (dict(q=numpy.ones((9, 4, 32), "float32")), "q: is f32, the spec says f16"),
    (dict(k_cache=numpy.ones((3, 4, 2, 32), "float32")), "k_cache: is f32, the spec says f16"),
    (dict(v_cache=numpy.ones((3, 4, 2, 32), "float16")), "v_cache: dimension 0, pages is 3, must be "),
    (dict(qkv=numpy.ones((9, 256), "float16")), "qkv: holds q, k and v, so these must not be given as well"),
    (dict(qkv=numpy.ones((9, 255), "float16"), q=None, k=None, v=None),
     "qkv: dimension 1, q, k and v is 255, must be 256"),
    (dict(frequencies=numpy.ones(15, "float32")), "frequencies: dimension 0, rope.dims / 2 is 15, must be 16"),
    (dict(k_cache=numpy.broadcast_to(numpy.float16([1]), (7, 4, 2, 32))), "k_cache: "),
])
def test_errors_name_the_argument(emu, changes, message):
    case = Case(norm=True)
    args = {name: value for name, value in dict(case.args, **changes).items() if value is not None}
    with pytest.raises((qkv.Error, TypeError)) as error:
        prepared(emu, case).append(**args)
    assert message in str(error.value)


def test_ops_of_another_phase(emu):
    case = Case()
    with pytest.raises(qkv.Error, match="prepared for phase append: call qkv_append"):
        zeros = numpy.zeros((1, 4, 32), "float16")
        prepared(emu, case)(zeros, case.args["k_cache"], case.args["v_cache"])
    text = "qkvc: 1\nname: t\nattention: {heads: 2, dim: 16, dtype: f16}\n"
    with emu.prepare(text) as op, pytest.raises(qkv.Error, match='prepared with limits.phase "append"'):
        op.append(k=zeros, v=zeros, k_cache=zeros, v_cache=zeros)
    with pytest.raises(qkv.Error, match="append: the spec has no such section"):
        emu.prepare(text, phase="append")


def test_aligned_only(emu):
    case = Case()
    loose = numpy.zeros(case.args["k"].size + 1, "float16")[1:].reshape(case.args["k"].shape)
    with emu.prepare(case.spec, phase="append", aligned_only=True) as op:
        if loose.ctypes.data % 16 == 0:
            pytest.skip("aligned by chance")
        with pytest.raises(qkv.Error, match="^k: address and rows must be 16-byte aligned"):
            op.append(**dict(case.args, k=loose))
