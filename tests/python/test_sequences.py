"""Sequences of lengths of their own through the package: ragged, padded and paged calls give what each sequence gives
alone, missing and wrong arrays are named, and what no sequence owns is left alone."""

import numpy
import pytest

import qkv
from test_attention import close, draw, spec

LENS_Q, LENS_K = (3, 0, 9, 1), (7, 5, 0, 23)
MASK = ["mask: causal"]
OUTPUTS = "\noutputs: [o, lse]"
PAGE = 4


def starts(lengths):
    return numpy.cumsum((0,) + tuple(lengths)).astype("int32")


def lengths_of(*values):
    return numpy.array(values, "int32")


def alone(q, k, v):
    """The reference of one sequence: o [len_q, heads, dim], lse [heads, len_q]."""
    o, lse = qkv.reference(spec(heads=(4, 2), fields=MASK, tail=OUTPUTS), q[None], k[None], v[None])
    return o[0], lse[0]


def sequences():
    return [(draw((i, 4, 16), 10 + b), draw((j, 2, 16), 20 + b), draw((j, 2, 16), 30 + b))
            for b, (i, j) in enumerate(zip(LENS_Q, LENS_K))]


def pages(parts, order):
    """The parts in pages of PAGE tokens, backwards, NaN in the ends; and the numbers of each part's pages."""
    need = [-(-len(part) // PAGE) for part in parts]
    pool = numpy.full((sum(need) + 1, PAGE) + parts[0].shape[1:], numpy.nan, parts[0].dtype)
    numbers, free = [], list(range(1, sum(need) + 1))
    for part, count in zip(parts, need):
        own = [free.pop() for _ in range(count)]
        for n, page in enumerate(own):
            tokens = part[n * PAGE:(n + 1) * PAGE]
            pool[page, :len(tokens)] = tokens
        numbers.append(own)
    return (pool.swapaxes(1, 2) if order == "hnd" else pool), numbers


def check(got, parts):
    """Packed outputs with two rows of nobody behind them."""
    (o, lse), cu = got, starts(LENS_Q)
    for b, (q, k, v) in enumerate(parts):
        want_o, want_lse = alone(q, k, v)
        close(o[cu[b]:cu[b + 1]], want_o)
        close(lse[:, cu[b]:cu[b + 1]], want_lse)
    assert numpy.isnan(o[cu[-1]:].astype("float32")).all() and numpy.isnan(lse[:, cu[-1]:]).all()


def packed_q(parts):
    behind = numpy.full((2, 4, 16), numpy.nan, "float16")
    q = numpy.concatenate([part[0] for part in parts] + [behind])
    return q, {"out": numpy.full_like(q, numpy.nan), "lse": numpy.full((4, len(q)), numpy.nan, "float32"),
               "cu_seqlens_q": starts(LENS_Q), "max_len_q": max(LENS_Q)}


def test_ragged(emu):
    s, parts = spec(heads=(4, 2), fields=MASK, tail="layout: {q: ragged, kv: ragged}" + OUTPUTS), sequences()
    assert (s.layout_q, s.layout_kv, s.page_size) == ("ragged", "ragged", None)
    q, rest = packed_q(parts)
    k, v = (numpy.concatenate([part[n] for part in parts]) for n in (1, 2))
    op = emu.prepare(s, len_k=32)
    launch = op.bind(q, k, v, cu_seqlens_k=starts(LENS_K), **rest)
    launch.check()
    check(launch(), parts)
    pairs = sum(max(0, min(j, j - i + n + 1)) for i, j in zip(LENS_Q, LENS_K) for n in range(i))
    assert launch.work()[0] == 2 * 32 * 4 * pairs
    check(launch(), parts)  # asking on the host left the device's arrays in place


@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("table", ["rows", "csr"])
def test_paged(emu, order, table):
    layout = "layout: {q: ragged, kv: {paged: {page: %d, order: %s, table: %s}}}" % (PAGE, order, table)
    s, parts = spec(heads=(4, 2), fields=MASK, tail=layout + OUTPUTS), sequences()
    assert (s.page_size, s.page_order, s.page_table) == (PAGE, order, table)
    q, rest = packed_q(parts)
    (k, numbers), (v, _) = (pages([part[n] for part in parts], order) for n in (1, 2))
    if table == "csr":
        rest["page_table"] = lengths_of(*sum(numbers, []), -1)
        rest["page_indptr"] = starts([len(own) for own in numbers])
    else:
        rest["page_table"] = numpy.full((len(parts), 8), -1, "int32")
        for b, own in enumerate(numbers):
            rest["page_table"][b, :len(own)] = own
    launch = emu.prepare(s, len_k=32).bind(q, k, v, seqlens_k=lengths_of(*LENS_K), **rest)
    launch.check()
    check(launch(), parts)
    rest["page_table"].reshape(-1)[1] = len(k)  # of sequence 0, which has two pages
    with pytest.raises(qkv.Error, match="page 1 of sequence 0"):
        launch.check()


def test_padded_cache(emu):
    s = spec(heads=(4, 2), fields=MASK, tail="layout: {kv: padded}" + OUTPUTS)
    q, lengths = draw((4, 2, 4, 16), 1), lengths_of(7, 1, 0, 23)
    k, v = (draw((4, 23, 2, 16), seed) for seed in (2, 3))
    for b, length in enumerate(lengths):
        k[b, length:] = v[b, length:] = numpy.nan
    o, lse = emu.prepare(s)(q, k, v, seqlens_k=lengths)
    for b, length in enumerate(lengths):
        want_o, want_lse = alone(q[b], k[b, :length], v[b, :length])
        close(o[b], want_o)
        close(lse[b], want_lse)
    want = qkv.reference(s, q, k, v, seqlens_k=lengths)
    close(o, want[0])


def test_wrong_arrays_are_named(emu):
    s, parts = spec(heads=(4, 2), fields=MASK, tail="layout: {q: ragged, kv: ragged}" + OUTPUTS), sequences()
    q, rest = packed_q(parts)
    k, v = (numpy.concatenate([part[n] for part in parts]) for n in (1, 2))
    op = emu.prepare(s, len_q=9, len_k=23)
    with pytest.raises(qkv.Error, match="cu_seqlens_k: is not given"):
        op(q, k, v, **rest)
    with pytest.raises(qkv.Error, match="cu_seqlens_k"):
        op(q, k, v, cu_seqlens_k=starts(LENS_K).astype("int64"), **rest)
    with pytest.raises(qkv.Error, match="cu_seqlens_k: dimension 0, batch . 1 is 4, must be 5"):
        op(q, k, v, cu_seqlens_k=starts(LENS_K[:3]), **rest)
    with pytest.raises(qkv.Error, match="len_q is 10; the op was prepared for at most 9"):
        op(q, k, v, cu_seqlens_k=starts(LENS_K), **dict(rest, max_len_q=10))
    with pytest.raises(qkv.Error, match="q: shape"):
        op(q[None], k, v, cu_seqlens_k=starts(LENS_K), **rest)
    del rest["max_len_q"]  # the op's maxima
    check(op(q, k, v, cu_seqlens_k=starts(LENS_K), **rest), parts)
    with pytest.raises(qkv.Error, match="max_len_k: is 0, and neither tensors nor limits.len_k"):
        emu.prepare(s, len_q=9)(q, k, v, cu_seqlens_k=starts(LENS_K), **rest)


def test_debug_checks_look_before_every_call(tmp_path):
    """Lengths and pages that no launch looks at are named by an engine with debug_checks, and nothing is launched."""
    s = spec(heads=(4, 2), fields=MASK, tail="layout: {q: dense, kv: {paged: {page: 4}}}" + OUTPUTS)
    with qkv.Engine("emu", cache_dir=str(tmp_path), debug_checks=True) as engine:
        op = engine.prepare(s, batch=2, len_q=1, len_k=12)
        q, k, v = draw((2, 1, 4, 16), 1), draw((5, 4, 2, 16), 2), draw((5, 4, 2, 16), 3)
        table = numpy.array([[4, 2, -1], [0, 1, 3]], "int32")
        call = dict(seqlens_k=lengths_of(7, 12), page_table=table)
        op(q, k, v, **call)
        launches = engine.counters.launches
        table[0, 1] = 5
        with pytest.raises(qkv.Error, match="page 1 of sequence 0 .* is number 5, must be 0 to 4"):
            op(q, k, v, **call)
        call = dict(seqlens_k=lengths_of(3, 13), page_table=table)
        with pytest.raises(qkv.Error, match=r"debug checks: seqlens_k\[1\]: is 13"):
            op(q, k, v, **call)
        assert engine.counters.launches == launches
