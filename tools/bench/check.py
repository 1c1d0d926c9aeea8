"""Right before fast: outputs against attention in float64."""

import itertools

TOLERANCE = {"bf16": 1e-2, "f16": 2e-3}  # relative L2 error
TAILS = (2, 200, 333)  # batch, len_q, len_k: no tile divides them
MOST_ROWS = 2048


def sample_rows(length, most=MOST_ROWS):
    """At most `most` rows, the first and the last among them; an odd step visits every row of a tile."""
    if length <= most:
        return list(range(length))
    step = -(-length // (most - 1)) | 1
    return sorted({*range(0, length, step), length - 1})


def expected(torch, spec, mask, q, k, v):
    """[(batch entry, head, rows, float64 result)] of some heads. Causal masks are aligned to the bottom right; a row
    that sees no key is 0."""
    (batch, len_q), len_k = q.shape[:2], k.shape[1]
    group = spec.heads_q // spec.heads_kv
    rows = torch.tensor(sample_rows(len_q), device=q.device)
    found = []
    for entry, head in itertools.product(sorted({0, batch - 1}), sorted({0, spec.heads_q // 2, spec.heads_q - 1})):
        keys, values = k[entry, :, head // group].double(), v[entry, :, head // group].double()
        scores = q[entry, rows, head].double() @ keys.T / spec.dim_qk ** 0.5
        if mask == "causal":
            last = rows[:, None] + (len_k - len_q)
            scores.masked_fill_(torch.arange(len_k, device=q.device)[None] > last, float("-inf"))
        found.append((entry, head, rows, torch.softmax(scores, dim=-1).nan_to_num_(0.0) @ values))
    return found


def errors(wanted, got):
    """(relative L2, largest) error; `wanted` from expected(), or a tensor. NaN stays NaN."""
    if isinstance(wanted, list):
        pairs = [(got[entry, rows, head].double(), want) for entry, head, rows, want in wanted]
    else:
        pairs = [(got.double(), wanted.double())]
    difference = sum(float((x - y).square().sum()) for x, y in pairs)
    size = sum(float(y.square().sum()) for _, y in pairs)
    # max() of Python drops a NaN, that of torch does not; the relative error tells of it either way.
    return (difference / max(size, 1e-300)) ** 0.5, max(float((x - y).abs().max()) for x, y in pairs)


def judge(dtype, error):
    """One line on what is wrong, or ""."""
    return "" if error[0] <= TOLERANCE[dtype] else "WRONG: relative error %.2e" % error[0]
