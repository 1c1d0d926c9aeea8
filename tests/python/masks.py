"""What every spec of specs/masks means, written from the papers' definitions and not from the specs.

CASES[name] is a Case: which sizes make sense, and a function that draws the parameters of one problem and says which
keys a query sees (a set of key positions, from windows, documents, trees, pixels as such) and, for scores, what becomes
of the scaled dot products of one head. Positions are q = i + len_k - len_q, or i under top-left alignment; both are
passed. test_masks.py holds the engine against this.
"""

import collections
import math

import numpy

# len_q, len_k: one token, tails, a cache in front, more queries than keys (rows before the first key see nothing).
ANY = ((1, 1), (97, 97), (40, 130), (130, 40))
# Positions that must lie among the keys.
INSIDE = ((1, 1), (97, 97), (40, 130))

Case = collections.namedtuple("Case", "make sizes alignments")
# params: what a call takes; keys(b, h, q, i): the visible keys; scores(b, h, s, q): the scores from the scaled products
# s [len_q, len_k] of head h, q the positions of its rows; sink: the sink's logits, or None.
Problem = collections.namedtuple("Problem", "params keys scores sink", defaults=(None, None))
CASES = {}
BOTH = ("bottom_right", "top_left")


def case(sizes=ANY, alignments=("bottom_right",)):
    def add(make):
        CASES[make.__name__] = Case(make, sizes, alignments)
        return make
    return add


def fixed(name, keys, sizes=ANY, alignments=BOTH):
    """A mask without parameters: keys(q, len_k) is a set or a range."""
    def make(rng, batch, len_q, len_k):
        return Problem({}, lambda b, h, q, i: keys(q, len_k))
    CASES[name] = Case(make, sizes, alignments)


def upto(q):
    return range(0, q + 1)


def visible(problem, b, h, len_q, len_k, offset):
    """The boolean matrix [len_q, len_k] of one head."""
    pairs = numpy.zeros((len_q, len_k), bool)
    for i in range(len_q):
        keys = [k for k in problem.keys(b, h, i + offset, i) if 0 <= k < len_k]
        pairs[i, keys] = True
    return pairs


def attention(problem, q, k, v, offset, scale, softcap=None):
    """The textbook: o and lse in f64 from [batch, length, heads, dim] arrays."""
    batch, len_q, heads = q.shape[:3]
    len_k, group = k.shape[1], heads // k.shape[2]
    o, lse = numpy.zeros((batch, len_q, heads, v.shape[3])), numpy.full((batch, heads, len_q), -numpy.inf)
    for b in range(batch):
        for h in range(heads):
            s = scale * q[b, :, h].astype(float) @ k[b, :, h // group].astype(float).T
            s = softcap * numpy.tanh(s / softcap) if softcap else s
            if problem.scores:
                s = problem.scores(b, h, s, numpy.arange(len_q) + offset)
            s = numpy.where(visible(problem, b, h, len_q, len_k, offset), s, -numpy.inf)
            for i in range(len_q):
                seen = s[i] > -numpy.inf
                if not seen.any():
                    continue
                top = s[i][seen].max()
                weights = numpy.exp(s[i][seen] - top)
                total = weights.sum()
                lse[b, h, i] = top + math.log(total)
                if problem.sink is not None:
                    total += math.exp(problem.sink[h] - top)
                o[b, i, h] = weights / total @ v[b, seen, h // group].astype(float)
    return o, lse


# ---- Fixed shapes ----

fixed("causal", lambda q, n: upto(q))
fixed("sliding_window", lambda q, n: range(q - 127, q + 1), ANY + ((150, 300),))
fixed("sink_window", lambda q, n: set(range(q - 127, q + 1)) | set(range(min(4, q + 1))), ANY + ((150, 300),))
fixed("chunked", lambda q, n: range(q - q % 128, q + 1), ANY + ((150, 300),))
fixed("block_causal", lambda q, n: range(0, q - q % 64 + 64), ANY + ((150, 300),))
fixed("dilated_window", lambda q, n: range(q - 128, q + 129, 4), ANY + ((150, 300),))
fixed("strided", lambda q, n: set(range(q - 32, q + 1)) | set(range(q, -1, -32)), ANY + ((150, 300),))
fixed("softcap", lambda q, n: upto(q))


@case(ANY + ((150, 300),), BOTH)
def batchify(rng, batch, len_q, len_k):
    """Sequence n // 128 of a batch, and its token n % 128: causal there."""
    tokens = collections.defaultdict(list)
    for k in range(len_k):
        tokens[k // 128].append(k)
    return Problem({}, lambda b, h, q, i: [k for k in tokens[math.floor(q / 128)] if k <= q])


# ---- Documents ----

def documents(rng, batch, length, most=6):
    """Per batch entry the lengths of consecutive documents."""
    entries = []
    for _ in range(batch):
        cuts = numpy.sort(rng.integers(0, length + 1, rng.integers(1, most)))
        entries.append([int(n) for n in numpy.diff([0, *cuts, length]) if n])
    return entries


def per_token(entries, values):
    """int32 [batch, length] that repeats the value of each document for its tokens."""
    return numpy.array([numpy.repeat(v, lengths) for v, lengths in zip(values, entries)], "int32")


def spans(lengths):
    """[begin, end) of consecutive documents."""
    ends = numpy.cumsum(lengths)
    return [(int(end) - n, int(end)) for n, end in zip(lengths, ends)]


def span_of(lengths, n):
    return next(span for span in spans(lengths) if span[0] <= n < span[1])


@case(INSIDE, BOTH)
def document(rng, batch, len_q, len_k):
    entries = documents(rng, batch, len_k)
    names = [rng.permutation(len(lengths)) for lengths in entries]  # any numbers do
    return Problem({"doc": per_token(entries, names)}, lambda b, h, q, i: range(*span_of(entries[b], q)))


@case(INSIDE, BOTH)
def document_causal(rng, batch, len_q, len_k):
    entries = documents(rng, batch, len_k)
    names = [rng.permutation(len(lengths)) for lengths in entries]
    return Problem({"doc": per_token(entries, names)}, lambda b, h, q, i: range(span_of(entries[b], q)[0], q + 1))


@case(INSIDE, BOTH)
def packed_causal(rng, batch, len_q, len_k):
    entries = documents(rng, batch, len_k)
    begins = [[begin for begin, _ in spans(lengths)] for lengths in entries]
    return Problem({"begin": per_token(entries, begins)},
                   lambda b, h, q, i: range(span_of(entries[b], q)[0], q + 1))


@case(INSIDE, BOTH)
def shared_prefix(rng, batch, len_q, len_k):
    """Document d continues document parent[d], or none (-1)."""
    entries = documents(rng, batch, len_k)
    parents = [[int(rng.integers(-1, d)) if d else -1 for d in range(len(lengths))] for lengths in entries]
    tables = {"begin": [], "shared_begin": [], "shared_end": []}
    for lengths, parent in zip(entries, parents):
        where = spans(lengths)
        tables["begin"].append([begin for begin, _ in where])
        tables["shared_begin"].append([where[p][0] if p >= 0 else 0 for p in parent])
        tables["shared_end"].append([where[p][1] if p >= 0 else 0 for p in parent])

    def keys(b, h, q, i):
        where = spans(entries[b])
        d = where.index(span_of(entries[b], q))
        p = parents[b][d]
        return set(range(where[d][0], q + 1)) | (set(range(*where[p])) if p >= 0 else set())
    return Problem({name: per_token(entries, values) for name, values in tables.items()}, keys)


@case(ANY, BOTH)
def prefix_lm(rng, batch, len_q, len_k):
    prompt = rng.integers(0, len_k + 1, batch).astype("int32")
    return Problem({"prompt": prompt}, lambda b, h, q, i: range(max(q + 1, prompt[b])))


def images(rng, length):
    """[begin, end) of images in text, apart from each other or side by side."""
    cuts = numpy.sort(rng.choice(length + 1, min(6, (length + 1) // 2 * 2), replace=False))
    return [(int(a), int(b)) for a, b in zip(cuts[::2], cuts[1::2])]


def mixed(rng, batch, length):
    """Images per batch entry, and keys() of text with images."""
    entries = [images(rng, length) for _ in range(batch)]

    def keys(b, h, q, i):
        own = next((set(range(*image)) for image in entries[b] if image[0] <= q < image[1]), set())
        return own | set(upto(q))
    return entries, keys


@case(INSIDE, BOTH)
def transfusion(rng, batch, len_q, len_k):
    entries, keys = mixed(rng, batch, len_k)
    span_end = numpy.zeros((batch, len_k), "int32")
    for b, spans_of_entry in enumerate(entries):
        for begin, end in spans_of_entry:
            span_end[b, begin:end] = end
    return Problem({"span_end": span_end}, keys)


@case(INSIDE, BOTH)
def transfusion_ids(rng, batch, len_q, len_k):
    entries, keys = mixed(rng, batch, len_k)
    span = numpy.full((batch, len_k), -1, "int32")
    for b, spans_of_entry in enumerate(entries):
        for n, (begin, end) in enumerate(spans_of_entry):
            span[b, begin:end] = n
    return Problem({"span": span}, keys)


@case(((130, 192), (64, 100), (7, 64)), ("top_left",))
def flamingo(rng, batch, len_q, len_k):
    """Images stand at places of the text; a token looks at the last one at or before it."""
    count = (len_k + 63) // 64
    places = numpy.sort(rng.integers(0, len_q + 1, (batch, count)), axis=1)
    first, last = places.astype("int32"), numpy.full((batch, count), 2**30, "int32")
    last[:, :-1] = first[:, 1:]

    def keys(b, h, q, i):
        before = [m for m in range(count) if places[b, m] <= q]
        return range(64 * before[-1], 64 * before[-1] + 64) if before else ()
    return Problem({"first": first, "last": last}, keys)


# ---- Global tokens, blocks, heads ----

@case(INSIDE + ((150, 300),), BOTH)
def longformer(rng, batch, len_q, len_k):
    marked = rng.random((batch, len_k)) < 0.05

    def keys(b, h, q, i):
        return range(len_k) if marked[b, q] else set(range(q - 128, q + 129)) | set(numpy.flatnonzero(marked[b]))
    return Problem({"is_global": marked}, keys)


def words(bits):
    """Bits along the last axis as 32-bit words, lowest first."""
    padded = numpy.zeros(bits.shape[:-1] + (-(-bits.shape[-1] // 32) * 32,), "uint64")
    padded[..., :bits.shape[-1]] = bits
    grouped = padded.reshape(*bits.shape[:-1], -1, 32) << numpy.arange(32, dtype="uint64")
    return grouped.sum(-1).astype("uint32").view("int32")


@case(((1, 1), (97, 97), (150, 300), (40, 2200)), BOTH)
def bigbird(rng, batch, len_q, len_k):
    """Three blocks in a band, the first and last row and column of blocks, two random blocks a row; per head."""
    n = -(-len_k // 64)
    lists = [[{(y + d) % n for d in (-1, 0, 1)} | {0, n - 1} | set(rng.integers(0, n, 2).tolist()) if 0 < y < n - 1
              else set(range(n)) for y in range(n)] for _ in range(4)]
    bits = numpy.array([[[x in row for x in range(n)] for row in rows] for rows in lists])

    def keys(b, h, q, i):
        return (k for x in lists[h][q // 64] for k in range(64 * x, 64 * x + 64))
    return Problem({"blocks": words(bits)}, keys)


@case(ANY, BOTH)
def head_windows(rng, batch, len_q, len_k):
    width = numpy.array([1, 16, 50, 10**6], "int32")
    return Problem({"width": width}, lambda b, h, q, i: range(max(0, q + 1 - int(width[h])), q + 1))


# ---- Speculation and diffusion ----

@case(((1, 1), (40, 140), (64, 64), (33, 97)))
def tree_verification(rng, batch, len_q, len_k):
    """parent[b][n] < n is the parent of node n of the tree, -1: the prefix itself."""
    parents = [[int(rng.integers(-1, n)) if n else -1 for n in range(len_q)] for _ in range(batch)]

    def path(b, n):
        while n >= 0:
            yield n
            n = parents[b][n]
    bits = numpy.array([[[j in set(path(b, i)) for j in range(len_q)] for i in range(len_q)] for b in range(batch)])
    prefix = len_k - len_q
    return Problem({"ancestors": words(bits)},
                   lambda b, h, q, i: [*range(prefix), *(prefix + n for n in path(b, i))])


@case(((1, 1), (90, 130), (64, 80)), ("top_left",))
def jetspec_training(rng, batch, len_q, len_k):
    n_context = max(len_k - len_q, 0)
    drafts = [[n_context + n for n in range(first, first + 8)] for first in range(0, len_q, 8)]
    return Problem({"n_context": n_context},
                   lambda b, h, q, i: [*range(n_context), *drafts[i // 8][:i % 8 + 1]])


@case(((32, 32), (64, 64), (128, 160), (130, 160), (100, 100)), BOTH)
def block_diffusion(rng, batch, len_q, len_k):
    """Tokens as (copy, block): the noised copy comes first."""
    half = len_k // 2
    tokens = [("noised" if n < half else "clean", n % half // 16) for n in range(len_k)]

    def keys(b, h, q, i):
        copy, block = tokens[q]
        for k, (other, at) in enumerate(tokens):
            if copy == "noised" and ((other == copy and at == block) or (other == "clean" and at < block)):
                yield k
            if copy == "clean" and other == "clean" and at <= block:
                yield k
    return Problem({}, keys)


# ---- Neighbourhoods ----

def nearest(at, size, extent):
    """The `size` places around `at` of a line of `extent`, moved inwards at its ends."""
    begin = min(max(at - size // 2, 0), extent - size)
    return range(begin, begin + size)


def pixels(name, order, window, sizes, alignments=BOTH):
    """Tokens are pixels: order(len_k) lists their coordinates, window(c, shape) those that pixel c sees. `shape` is one
    beyond the greatest coordinates."""
    def make(rng, batch, len_q, len_k):
        places = order(len_k)
        index = {place: n for n, place in enumerate(places)}
        shape = tuple(max(axis) + 1 for axis in zip(*places))
        return Problem({}, lambda b, h, q, i: [index[place] for place in window(places[q], shape)])
    CASES[name] = Case(make, sizes, alignments)


def rows_of_32(len_k):
    return [(y, x) for y in range(len_k // 32) for x in range(32)]


def tiles_of_8(len_k):
    return [(8 * ty + y, 8 * tx + x) for ty in range(len_k // 256) for tx in range(4) for y in range(8)
            for x in range(8)]


def z_order(len_k):
    """Both coordinates' binary digits in turn, y before x, as one number."""
    assert len_k == 1024

    def key(place):
        y, x = (format(n, "05b") for n in place)
        return int("".join(a + b for a, b in zip(y, x)), 2)
    return sorted(rows_of_32(len_k), key=key)


def natten(place, shape):
    return [(y, x) for y in nearest(place[0], 7, shape[0]) for x in nearest(place[1], 7, shape[1])]


def around(place, shape):
    return [(y, x) for y in range(place[0] - 3, place[0] + 4) for x in range(place[1] - 3, place[1] + 4)
            if 0 <= y < shape[0] and 0 <= x < shape[1]]


def tile_window(place, shape):
    """All pixels of the 3 by 3 tiles of 8 by 8 that are nearest to the pixel's tile."""
    return [(8 * ty + y, 8 * tx + x) for ty in nearest(place[0] // 8, 3, shape[0] // 8)
            for tx in nearest(place[1] // 8, 3, shape[1] // 8) for y in range(8) for x in range(8)]


fixed("natten_1d", lambda q, n: nearest(q, 13, n), ((13, 13), (97, 97), (40, 130)))
pixels("natten_2d", rows_of_32, natten, ((224, 224), (100, 288)))
pixels("natten_2d_tiled", tiles_of_8, natten, ((256, 256), (100, 512)))
pixels("natten_2d_morton", z_order, natten, ((100, 1024), (1024, 1024)))
pixels("sasa", rows_of_32, around, ((32, 32), (100, 288)))
pixels("sta_2d", tiles_of_8, tile_window, ((100, 768), (70, 1024)))


@case(((80, 3092), (80, 4136)), BOTH)
def sta_3d(rng, batch, len_q, len_k):
    """Tiles of 64 tokens at (t, y, x) of a grid (n, 4, 4), then text."""
    slabs = len_k // 1024
    n_text = len_k - 1024 * slabs
    tiles = [(t, y, x) for t in range(slabs) for y in range(4) for x in range(4)]

    def keys(b, h, q, i):
        if q >= 1024 * slabs:
            return range(len_k)
        t, y, x = tiles[q // 64]
        near = [tiles.index((at, ay, ax)) for at in nearest(t, 3, slabs) for ay in nearest(y, 3, 4)
                for ax in nearest(x, 3, 4)]
        return [64 * n + m for n in near for m in range(64)] + [*range(1024 * slabs, len_k)]
    return Problem({"n_text": n_text}, keys)


def video(rng):
    """Prompt, frame and width."""
    n_prompt, n_frame, width = (int(n) for n in rng.integers((0, 5, 1), (12, 30, 20)))
    return {"n_prompt": n_prompt, "n_frame": n_frame, "width": width}


@case(INSIDE, BOTH)
def svg_spatial(rng, batch, len_q, len_k):
    p = video(rng)

    def keys(b, h, q, i):
        if q < p["n_prompt"]:
            return range(len_k)
        return {*range(p["n_prompt"] + p["n_frame"]), *range(q - p["width"] + 1, q + p["width"])}
    return Problem(p, keys)


@case(INSIDE, BOTH)
def svg_temporal(rng, batch, len_q, len_k):
    """A video token as (frame, place)."""
    p = video(rng)
    places = {n: divmod(n - p["n_prompt"], p["n_frame"])[1] for n in range(p["n_prompt"], len_k)}

    def keys(b, h, q, i):
        if q < p["n_prompt"]:
            return range(len_k)
        return [*range(p["n_prompt"]), *(k for k, at in places.items() if abs(places[q] - at) < p["width"])]
    return Problem(p, keys)


# ---- Scores ----

def distances(q, len_k):
    """q - k of every pair."""
    return q[:, None] - numpy.arange(len_k)[None, :]


def causal_keys(b, h, q, i):
    return upto(q)


@case()
def alibi(rng, batch, len_q, len_k):
    slopes = (2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8)  # the geometric sequence of the paper for four heads
    return Problem({}, causal_keys, lambda b, h, s, q: s - slopes[h] * distances(q, s.shape[1]))


@case()
def relative_bias(rng, batch, len_q, len_k):
    w = rng.standard_normal((4, 129)).astype("float32")
    return Problem({"w": w}, lambda b, h, q, i: range(len_k),
                   lambda b, h, s, q: s + w[h, 64 - numpy.clip(distances(q, s.shape[1]), -64, 64)])


def t5_bucket(distance):
    """Bucket of memory position minus query position, for 32 buckets of both directions up to 128."""
    bucket = 16 if distance > 0 else 0
    n = abs(distance)
    if n < 8:
        return bucket + n
    large = 0
    while large < 7 and 64 * 2**(large + 1) <= n * n:  # 8 * 16^((large + 1) / 8) <= n, in integers
        large += 1
    return bucket + 8 + large


@case(ANY + ((150, 300),))
def t5_buckets(rng, batch, len_q, len_k):
    w = rng.standard_normal((4, 32)).astype("float32")
    table = numpy.vectorize(t5_bucket)
    return Problem({"w": w}, lambda b, h, q, i: range(len_k),
                   lambda b, h, s, q: s + w[h, table(-distances(q, s.shape[1]))])


@case()
def head_bias(rng, batch, len_q, len_k):
    w = rng.standard_normal(4).astype("float32")
    return Problem({"w": w}, causal_keys, lambda b, h, s, q: s + w[h], rng.standard_normal(4).astype("float32"))


@case()
def sandwich(rng, batch, len_q, len_k):
    n, frequencies = numpy.arange(len_k), 10000.0 ** (-numpy.arange(0, 64, 2) / 64)
    r = numpy.cos(n[:, None] * frequencies).sum(1).astype("float32")
    return Problem({"r": r}, causal_keys,
                   lambda b, h, s, q: s + 4 / (8 * (h + 1)) * r[numpy.clip(distances(q, len_k), 0, len_k - 1)])


@case(((1, 1), (97, 97)))
def graphormer(rng, batch, len_q, len_k):
    """Shortest paths in a random graph; -1: none, which the table has a place for."""
    nodes = rng.integers(1, len_k + 1, batch).astype("int32")
    nodes[-1] = 0 if batch > 1 else nodes[-1]  # an empty graph: rows without visible keys
    edges = rng.random((batch, len_k, len_k)) < 1.5 / len_k
    hops = numpy.full((batch, len_k, len_k), 10**6, "int32")
    for b in range(batch):
        for start in range(len_k):
            front, reached = [start], 0
            while front:
                hops[b, start, front] = reached
                reached += 1
                front = [n for n in range(len_k) if hops[b, start, n] == 10**6 and (edges[b, front, n]
                                                                                   | edges[b, n, front]).any()]
    w = rng.standard_normal((4, 64)).astype("float32")
    return Problem({"w": w, "hops": hops, "nodes": nodes}, lambda b, h, q, i: range(nodes[b]),
                   lambda b, h, s, q: s + w[h, numpy.minimum(hops[b], 63)])
