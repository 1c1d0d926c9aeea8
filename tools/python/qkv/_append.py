"""Appends: the arguments of qkv_append as C structures."""

from ctypes import byref

from . import _library as c
from . import _tensor

_TENSORS = tuple(name for name, kind in c.AppendArgs._fields_ if kind is c.Tensor)


class AppendCall:
    """The arguments of one append, with everything that must stay alive beside them; what a Launch needs of a call."""

    function = "qkv_append"
    partial = True  # a cache keeps what no token writes

    def __init__(self, spec, tensors, rope_factor, stream):
        formats = {"q": spec._dtype_q, "k": spec._dtype_q, "v": spec._dtype_q, "qkv": spec._dtype_q,
                   "q_out": spec._dtype_q, "k_cache": spec._dtype_kv, "v_cache": spec._dtype_kv}
        self.stream, self.views, self.args = stream, {}, c.AppendArgs(rope_factor=rope_factor)
        for name, tensor in tensors.items():
            self.views[name] = _tensor.view(tensor, name, formats.get(name), stream)
            self.address(spec, name, self.views[name].data)

    def address(self, spec, name, data):
        """Replaces the address of tensor `name`."""
        setattr(self.args, name, self.views[name].struct(data))


def describe(spec, arguments, stream=None, dtype_out=None):
    """(AppendCall, outputs by name) of the keyword arguments of Op.append."""
    tensors = {name: tensor for name, tensor in arguments.items() if tensor is not None}
    rope_factor = tensors.pop("rope_factor", 0)
    unknown = sorted(set(tensors) - set(_TENSORS))
    if unknown:
        raise TypeError("unknown argument %s; those of an append are: %s" % (", ".join(unknown), ", ".join(_TENSORS)))
    rows = tensors.get("qkv", tensors.get("k"))
    if rows is None:
        raise TypeError("an append needs qkv, or q, k and v")
    if spec.append and spec.append["query"] and "q_out" not in tensors:
        shape = (tuple(rows.shape)[0], spec.heads_q, spec.dim_qk)
        tensors["q_out"] = _tensor.empty_like(rows, shape, spec._dtype_q if dtype_out is None else dtype_out, "q_out")
    if stream is None:
        stream = _tensor.current_stream(rows)
    else:
        stream = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    outputs = {name: tensors[name] for name in ("q_out", "k_cache", "v_cache") if name in tensors}
    return AppendCall(spec, tensors, rope_factor, int(stream)), outputs


def append_reference(spec, **arguments):
    """The same as Op.append in f64 on the CPU: the definition of right. All tensors in host memory; caches and q_out of
    any float format, a q_out allocated here is f32."""
    call, outputs = describe(spec, arguments, dtype_out=c.F32)
    for name, view in call.views.items():
        if view.device != "host":
            raise c.Error(c.INVALID_ARGUMENT, "%s: the reference needs tensors in host memory" % name)
    c.call("qkv_append_reference", spec.handle, byref(call.args))
    return outputs.get("q_out")
