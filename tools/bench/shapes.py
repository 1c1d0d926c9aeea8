"""What is measured: shapes of plain attention and the named grids of them. Pure data."""

import itertools
from typing import NamedTuple

MASKS = ("full", "causal")
DTYPES = {"bf16": "bfloat16", "f16": "float16"}  # ours: torch's
HIDDEN, TOKENS = 2048, 16384


class Shape(NamedTuple):
    """One problem of attention without score, window or other extras. `mask` is one of MASKS; causal masks are
    aligned to the bottom right."""
    batch: int
    len_q: int
    len_k: int
    heads_q: int
    heads_kv: int
    dim_qk: int
    dim_v: int
    dtype: str = "bf16"
    mask: str = "full"

    @property
    def dims(self):
        return str(self.dim_qk) if self.dim_qk == self.dim_v else "%d/%d" % (self.dim_qk, self.dim_v)

    @property
    def name(self):
        dims = "d" + self.dims.replace("/", "v")
        lengths = "t%d" % self.len_k if self.len_q == self.len_k else "q%dk%d" % (self.len_q, self.len_k)
        groups = [] if self.heads_q == self.heads_kv else ["h%dkv%d" % (self.heads_q, self.heads_kv)]
        return "_".join([dims, *groups, lengths, self.mask])

    def spec(self):
        """The spec as YAML text. It does not depend on batch and lengths."""
        return ("qkvc: 1\nname: bench\nattention:\n  heads: {q: %d, kv: %d}\n  dim: {qk: %d, v: %d}\n  dtype: %s\n"
                "  mask: %s\n" % (self.heads_q, self.heads_kv, self.dim_qk, self.dim_v, self.dtype,
                                  {"full": "true", "causal": "causal"}[self.mask]))


def plain(dim, length, mask, *, dim_v=None, heads=None, heads_kv=None, batch=None, dtype="bf16", hidden=HIDDEN,
          tokens=TOKENS):
    """A shape from what people name: heads fill the hidden size, sequences fill the number of tokens."""
    heads = heads or max(1, hidden // dim)
    return Shape(batch or max(1, tokens // length), length, length, heads, heads_kv or heads, dim, dim_v or dim, dtype,
                 mask)


class Grid(NamedTuple):
    """`peers` are measured unless the user names others; `tuned` are the head dims that the others are held against
    (None: the report is the ratio to every peer)."""
    meaning: str
    shapes: tuple
    peers: tuple
    tuned: tuple = None


TUNED_DIMS = (64, 128, 192, 256)
OTHER_DIMS = (72, 80, 96, 112, 160, 224)

GRIDS = {
    "dense": Grid("D 64, 128, 256, T 512 to 16k, 16k tokens, hidden 2048",
                  tuple(plain(*point) for point in itertools.product(
                      (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), MASKS)), ("cudnn", "fa3")),
    "gqa": Grid("64 query and 8 KV heads, D 128, batch 1, T 2k to 32k",
                tuple(plain(128, length, mask, heads=64, heads_kv=8, batch=1)
                      for length, mask in itertools.product((2048, 4096, 8192, 16384, 32768), MASKS)),
                ("cudnn", "fa3")),
    "mla": Grid("D 192/128, 128 heads, causal, batch 1, T 2k to 8k",
                tuple(plain(192, length, "causal", dim_v=128, heads=128, batch=1)
                      for length in (2048, 4096, 8192)), ("cudnn", "fa3")),
    "dims": Grid("head dims between the tuned ones, T 4k, 16k tokens, hidden 2048",
                 tuple(plain(dim, 4096, mask) for dim, mask in
                       itertools.product(sorted(TUNED_DIMS + OTHER_DIMS), MASKS)), ("cudnn",), TUNED_DIMS),
}
