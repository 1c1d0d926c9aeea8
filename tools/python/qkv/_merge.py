"""States of attention over disjoint keys become one: the arguments of qkv_merge."""

from ctypes import byref

from . import _library as c
from . import _tensor


class MergeCall:
    """The arguments of one merge as C structures, with everything that must stay alive beside them."""

    function = "qkv_merge"
    partial = False  # every element of the outputs is written

    def __init__(self, spec, states, outputs, stream=None):
        self.views, self.states = {}, (c.State * len(states))()
        self.args = c.MergeArgs(count=len(states), states=self.states)
        for n, (o, lse) in enumerate(states):
            self._set("states[%d].o" % n, o, None, stream)
            self._set("states[%d].lse" % n, lse, c.F32, stream)
        self._set("o", outputs["o"], spec._dtype_out, stream)
        self._set("lse", outputs["lse"], c.F32, stream)

    def _set(self, name, tensor, dtype, stream):
        self.views[name] = _tensor.view(tensor, name, dtype, stream)
        self.address(None, name, self.views[name].data)

    def address(self, _, name, data):
        """Replaces the address of tensor `name`."""
        place, _, member = name.rpartition(".")
        owner = self.states[int(place[7:-1])] if place else self.args
        setattr(owner, member, self.views[name].struct(data))


def outputs_for(spec, states, out, lse, dtype_out):
    """The merged state: what is given, the rest allocated like the first state."""
    states = [tuple(state) for state in states]
    if not states:
        raise c.Error(c.INVALID_ARGUMENT, "states: none is given")
    first, sums = states[0]
    if out is None:
        out = _tensor.empty_like(first, tuple(first.shape), dtype_out, "o")
    if lse is None:
        lse = _tensor.empty_like(sums, tuple(sums.shape), c.F32, "lse")
    return states, {"o": out, "lse": lse}


def merge_reference(spec, states, *, out=None, lse=None):
    """Op.merge in f64 on the CPU: the definition of right. All tensors in host memory, o of the spec's format."""
    states, outputs = outputs_for(spec, states, out, lse, spec._dtype_out)
    call = MergeCall(spec, states, outputs)
    for name, view in call.views.items():
        if view.device != "host":
            raise c.Error(c.INVALID_ARGUMENT, "%s: the reference needs tensors in host memory" % name)
    c.call("qkv_merge_reference", spec.handle, byref(call.args))
    return outputs["o"], outputs["lse"]
