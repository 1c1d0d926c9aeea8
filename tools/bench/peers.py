"""Ours and the peers: each makes of one set of tensors a function that launches once and one that returns the output.

A peer is found by name in PEERS. Its constructor raises ValueError, ImportError or RuntimeError when it cannot do a
case; so may the first launch. `remark` is what a reader of its figures must know."""

import importlib
from typing import Callable, NamedTuple

import qkv

from . import shapes


class Bound(NamedTuple):
    run: Callable
    result: Callable
    launch: object = None  # the qkv.Launch; None for peers


class Case:
    """A spec at one size. `mask` is "full" or "causal" when this is plain attention, else None; `table` is the row and
    column of the case in a grid's tables."""

    def __init__(self, name, spec, source, batch, len_q, len_k, table=None):
        self.name, self.spec, self.source, self.table = name, spec, source, table
        self.batch, self.len_q, self.len_k = batch, len_q, len_k
        self.mask = self._plain_mask()

    @classmethod
    def of_shape(cls, shape):
        source = shape.spec()
        return cls(shape.name, qkv.Spec(source), source, shape.batch, shape.len_q, shape.len_k,
                   ((shape.dims, shape.mask), shape.len_k))

    @classmethod
    def of_workload(cls, path, name):
        """Raises ValueError when the spec has no such workload."""
        spec = qkv.Spec(path)
        for work in spec.workloads:
            if work.name == name:
                return cls("%s/%s" % (spec.name, name), spec, path, work.batch, work.len_q, work.len_k)
        raise ValueError("%s: no workload '%s'" % (path, name))

    def _plain_mask(self):
        s = self.spec
        for mask in shapes.MASKS:
            shape = shapes.Shape(0, 0, 0, s.heads_q, s.heads_kv, s.dim_qk, s.dim_v, s.dtype_q, mask)
            if s.dtype_q in shapes.DTYPES and qkv.Spec(shape.spec()).canonical() == s.canonical():
                return mask
        return None

    def peer_mask(self):
        """The mask for peers that align to the top left, as torch does: the same for as many rows as keys, and one last
        row sees all keys. Raises ValueError when they have no equal."""
        if self.mask == "full" or (self.mask == "causal" and self.len_q == 1):
            return "full"
        if self.mask is None or self.len_q != self.len_k:
            raise ValueError("torch has no equal of this case")
        return self.mask

    def tensors(self, torch, device):
        """Fresh random q, k, v and the declared parameters."""
        s, dtype = self.spec, getattr(torch, shapes.DTYPES[self.spec.dtype_q])
        make = lambda *shape: torch.randn(shape, device=device, dtype=dtype)
        q = make(self.batch, self.len_q, s.heads_q, s.dim_qk)
        k = make(self.batch, self.len_k, s.heads_kv, s.dim_qk)
        v = make(self.batch, self.len_k, s.heads_kv, s.dim_v)
        extra = {"sink": torch.randn(s.heads_q, device=device)} if s.has_sink else {}
        for param in s.params:
            extra[param.name] = self._parameter(torch, device, param)
        return q, k, v, extra

    def _parameter(self, torch, device, param):
        """Plausible values: integers count up slowly over the last axis (documents, lengths), floats are small."""
        if param.rank == 0:
            return self.len_k // 4 if param.dtype == "i32" else 0.5
        shape = self.spec.param_shape(param.name, self.batch, self.len_q, self.len_k)
        if param.dtype == "i32":
            last = torch.arange(shape[-1], device=device, dtype=torch.int32) * 8 // max(shape[-1], 1)
            return last.expand(shape).contiguous() if shape[-1] > self.batch else torch.full(
                shape, self.len_k, device=device, dtype=torch.int32)
        return torch.rand(shape, device=device) * 0.1


class Ours:
    """One schedule of one family."""
    remark = ""

    def __init__(self, engine, case, family=None, schedule=None):
        self.op = engine.prepare(case.spec, batch=case.batch, len_q=case.len_q, len_k=case.len_k, aligned_only=True,
                                 family=family, schedule=schedule)
        self.workspace = None  # one for all input sets: they run one after the other

    def bind(self, torch, q, k, v, extra):
        if self.workspace is None and self.op.workspace_bytes and q.is_cuda:
            self.workspace = torch.full((self.op.workspace_bytes,), 255, dtype=torch.uint8, device=q.device)
        memory = None if self.workspace is None else (self.workspace.data_ptr(), self.op.workspace_bytes)
        launch = self.op.bind(q, k, v, workspace=memory, **extra)
        o = launch.result[0] if isinstance(launch.result, tuple) else launch.result
        o.fill_(float("nan"))
        # The stream of the moment: a graph is captured on another one than the first launch ran on.
        run = (lambda: launch(torch.cuda.current_stream())) if q.is_cuda else launch
        return Bound(run, lambda: o, launch)


def naive(torch, engine, case):
    return Ours(engine, case, "attention_naive")


class Peer:
    """Attention as a function of q, k, v in [batch, len, heads, dim]."""
    remark = ""

    def __init__(self, function):
        self.function = function

    def bind(self, torch, q, k, v, extra):
        made = [None]

        def run():
            made[0] = self.function(q, k, v)
        return Bound(run, lambda: made[0][0] if isinstance(made[0], tuple) else made[0])


def find(module, name=None):
    """A module or what it calls `name`. Raises ImportError whatever goes wrong, so that a peer whose libraries do not
    load is left out with that one line."""
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except Exception as error:
        raise ImportError("%s: %s" % (module, error)) from error


class Sdpa(Peer):
    """torch.nn.functional.scaled_dot_product_attention with one backend."""

    def __init__(self, torch, backend, case):
        self.backend, self.causal = getattr(torch.nn.attention.SDPBackend, backend), case.peer_mask() == "causal"
        self.group, self.expand = case.spec.heads_q // case.spec.heads_kv, False

    def bind(self, torch, q, k, v, extra):
        from torch.nn.attention import sdpa_kernel
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        if self.expand:
            k, v = (tensor.repeat_interleave(self.group, dim=1) for tensor in (k, v))
        made = [None]

        def run():
            with sdpa_kernel(self.backend):
                made[0] = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=self.causal, enable_gqa=self.group > 1 and not self.expand)
        try:
            run()
        except RuntimeError:
            if self.group == 1 or self.expand:
                raise
            self.expand, self.remark = True, "KV heads repeated before the timing: the backend refused groups"
            return self.bind(torch, *(tensor.transpose(1, 2) for tensor in (q, k, v)), extra)
        return Bound(run, lambda: made[0].transpose(1, 2))


def flash3(torch, engine, case):
    """FlashAttention-3, from its own package or the forward-only wheel fa3-fwd. Of that the operator itself is called:
    its Python wrapper makes tensors on the host, which a CUDA graph may not capture."""
    causal, scale = case.peer_mask() == "causal", case.spec.dim_qk ** -0.5
    try:
        flash_attn_func = find("flash_attn_interface", "flash_attn_func")
        return Peer(lambda q, k, v: flash_attn_func(q, k, v, causal=causal))
    except ImportError:
        find("fa3_fwd_interface")  # registers the operator
    return Peer(lambda q, k, v: torch.ops.fa3_fwd.fwd(q, k, v, softmax_scale=scale, is_causal=causal, num_splits=1))


def flash4(torch, engine, case):
    """FlashAttention's CuTe kernels: the package flash-attn-4."""
    causal, flash_attn_func = case.peer_mask() == "causal", find("flash_attn.cute", "flash_attn_func")
    return Peer(lambda q, k, v: flash_attn_func(q, k, v, causal=causal))


def flex(torch, engine, case):
    """FlexAttention, compiled: slow to start."""
    causal, module, block_mask = case.peer_mask() == "causal", find("torch.nn.attention.flex_attention"), None
    if causal:
        block_mask = module.create_block_mask(lambda b, h, i, j: i >= j, None, None, case.len_q, case.len_k)
    compiled, grouped = torch.compile(module.flex_attention, dynamic=False), case.spec.heads_q != case.spec.heads_kv
    return Peer(lambda q, k, v: compiled(*(tensor.transpose(1, 2) for tensor in (q, k, v)), block_mask=block_mask,
                                         enable_gqa=grouped).transpose(1, 2))


class FlashInfer(Peer):
    """One sequence by single_prefill_with_kv_cache, several by the ragged wrapper, planned once for all input sets.
    Causal masks are aligned to the bottom right, as ours are."""
    WORKSPACE_BYTES = 256 << 20  # of the wrapper, for what it splits over keys

    def __init__(self, torch, engine, case):
        if not case.mask:
            raise ValueError("flashinfer has no equal of this case")
        flashinfer, self.causal, self.wrapper = find("flashinfer"), case.mask == "causal", None
        self.single = flashinfer.single_prefill_with_kv_cache
        if case.batch == 1:
            return
        s, dtype = case.spec, getattr(torch, shapes.DTYPES[case.spec.dtype_q])
        ends_q, ends_k = (torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * length
                          for length in (case.len_q, case.len_k))
        self.wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
            torch.empty(self.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"), "NHD")
        self.wrapper.plan(ends_q, ends_k, s.heads_q, s.heads_kv, s.dim_qk, head_dim_vo=s.dim_v, causal=self.causal,
                          q_data_type=dtype)

    def function(self, q, k, v):
        tokens = [tensor.reshape(-1, *tensor.shape[2:]) for tensor in (q, k, v)]
        made = self.wrapper.run(*tokens) if self.wrapper else self.single(*tokens, causal=self.causal)
        return made.reshape(*q.shape[:3], v.shape[3])


PEERS = {
    "cudnn": lambda torch, engine, case: Sdpa(torch, "CUDNN_ATTENTION", case),
    "fa2": lambda torch, engine, case: Sdpa(torch, "FLASH_ATTENTION", case),
    "fa3": flash3,
    "fa4": flash4,
    "flashinfer": FlashInfer,
    "flex": flex,
    "math": lambda torch, engine, case: Sdpa(torch, "MATH", case),
    "naive": naive,
}
