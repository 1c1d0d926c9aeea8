"""The KV pool: memory for keys and values that grows and shrinks at fixed addresses (qkv.h, docs/serving.md)."""

from ctypes import byref, c_int32, c_int64, c_void_p
from types import SimpleNamespace

from . import _library as c
from . import _tensor
from ._engine import _as_spec, _Handle

_PLACEMENTS = ("apart", "kv_together", "layers_together")
# What stands for the bits of a format in the CUDA array interface: integers where it has no word for it.
_TYPESTRS = {c.F16: "<f2", c.BF16: "<i2", c.F32: "<f4", c.E4M3: "|i1", c.E5M2: "|i1"}


class PoolTensor(_tensor.View):
    """Keys or values in a pool: data, dtype, shape, strides (in elements). Op takes it as k or v. On a GPU other frameworks
    take it by __cuda_array_interface__: torch.as_tensor(t, device="cuda").view(torch.bfloat16), where the view is for
    formats that the interface lacks, given as integers of their width."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self):
        if self.device != "cuda":
            raise AttributeError("memory of the emulated device is not CUDA memory")
        size = c.DTYPE_BYTES[self.dtype]
        return {"version": 3, "typestr": _TYPESTRS[self.dtype], "data": (self.data, False), "shape": self.shape,
                "strides": tuple(stride * size for stride in self.strides)}


def _list(blocks):
    blocks = [blocks] if isinstance(blocks, int) else list(blocks)
    return len(blocks), (c_int32 * len(blocks))(*blocks)


class Pool(_Handle):
    """Memory for the keys and values of `layers` layers of a spec. Use it from any number of threads.

    blocks          a pool of that many pages; the spec must say layout.kv paged. alloc, retain, release, owners
    slots, max_len  or a contiguous one: a sequence each, of so many tokens at most. resize
    tile            contiguous: memory is there up to the next multiple of so many tokens
    placement       "apart", "kv_together", "layers_together": what lies in one range of addresses
    max_bytes       of physical memory (0: what the device has); granule: bytes mapped at once (0: the device's)

    Memory comes with alloc and resize, and goes with trim and close, which nothing that runs may overlap.
    """

    def __init__(self, engine, spec, *, layers=1, blocks=0, slots=0, max_len=0, tile=0, placement="apart", max_bytes=0,
                 granule=0):
        if placement not in _PLACEMENTS:
            raise c.Error(c.INVALID_ARGUMENT, "placement: '%s' is none of %s" % (placement, ", ".join(_PLACEMENTS)))
        options = c.PoolOptions(mode=c.POOL_CONTIGUOUS if slots or max_len else c.POOL_BLOCKS,
                                placement=_PLACEMENTS.index(placement), layers=layers, blocks=blocks, slots=slots,
                                max_len=max_len, tile=tile, max_bytes=max_bytes, granule=granule)
        spec, pointer = _as_spec(spec), c_void_p()
        c.call("qkv_pool_open", engine.handle, spec.handle, byref(options), byref(pointer))
        self._own(pointer, c.libqkv().qkv_pool_free)
        self.engine, self.layers = engine, layers
        engine._pools.add(self)

    def tensors(self, layer=0, *, slots=None, len_k=None):
        """(k, v) of a layer, PoolTensors: [blocks, page, heads_kv, dim], with order hnd [blocks, heads_kv, page, dim], or
        [slots, max_len, heads_kv, dim]; of the last, the first `slots` and `len_k` when given."""
        structs = c.Tensor(), c.Tensor()
        c.call("qkv_pool_tensors", self.handle, layer, byref(structs[0]), byref(structs[1]))
        device, views = self.engine.device, []
        for struct in structs:
            shape = list(struct.shape[:struct.rank])
            shape[:2] = shape[0] if slots is None else slots, shape[1] if len_k is None else len_k
            views.append(PoolTensor(struct.data, struct.dtype, shape, struct.stride[:struct.rank], device.kind,
                                    device.ordinal if device.kind == "cuda" else None, self))
        return tuple(views)

    def alloc(self, count=1):
        """The numbers of `count` free blocks, the lowest ones, each with one owner. Raises OUT_OF_MEMORY."""
        blocks = (c_int32 * max(count, 1))()
        c.call("qkv_pool_alloc", self.handle, count, blocks)
        return blocks[:max(count, 0)]

    def retain(self, blocks):
        """Adds an owner to each block (an int or several)."""
        c.call("qkv_pool_retain", self.handle, *_list(blocks))

    def release(self, blocks):
        """Takes an owner from each block; without any it is free."""
        c.call("qkv_pool_release", self.handle, *_list(blocks))

    def owners(self, block):
        """Owners of a block; 0 when it is free."""
        owners = c_int64()
        c.call("qkv_pool_owners", self.handle, block, byref(owners))
        return owners.value

    def resize(self, slot, length):
        """Sets the length of a slot in tokens; what stands below it stays."""
        c.call("qkv_pool_resize", self.handle, slot, length)

    def trim(self):
        """Takes away the memory that nothing in use needs; returns its bytes."""
        returned = c_int64()
        c.call("qkv_pool_trim", self.handle, byref(returned))
        return returned.value

    @property
    def info(self):
        """granule, page, token_bytes, page_bytes, reserved, mapped, used, idle, blocks, blocks_used, slots, tokens."""
        info = c.PoolInfo()
        c.call("qkv_pool_get_info", self.handle, byref(info))
        return SimpleNamespace(**{name: getattr(info, name) for name, _ in c.PoolInfo._fields_[1:]})

    def __repr__(self):
        return "<qkv.Pool of %d layers on %s>" % (self.layers, self.engine.device.name)
