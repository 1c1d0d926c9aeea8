"""Tensors of any framework as pointer, dtype, shape and strides, without importing the framework.

Understood, in this order: data_ptr()/stride() (torch), __cuda_array_interface__ (cupy, numba), __array_interface__
(numpy, ml_dtypes), __dlpack__ (the rest). Nothing is copied here.
"""

import ctypes
import sys
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p

from . import _library as c

_TORCH_DTYPES = {"torch.float16": c.F16, "torch.bfloat16": c.BF16, "torch.float32": c.F32,
                 "torch.float8_e4m3fn": c.E4M3, "torch.float8_e5m2": c.E5M2, "torch.int32": c.I32,
                 "torch.bool": c.BOOL, "torch.int64": c.I64}
_ARRAY_DTYPES = {"float16": c.F16, "bfloat16": c.BF16, "float32": c.F32, "float8_e4m3fn": c.E4M3,
                 "float8_e5m2": c.E5M2, "int32": c.I32, "bool": c.BOOL, "int64": c.I64}
_TYPESTR_DTYPES = {"f2": c.F16, "f4": c.F32, "i4": c.I32, "b1": c.BOOL, "i8": c.I64}
# (DLPack type code, bits)
_DLPACK_DTYPES = {(2, 16): c.F16, (4, 16): c.BF16, (2, 32): c.F32, (10, 8): c.E4M3, (12, 8): c.E5M2,
                  (0, 32): c.I32, (6, 8): c.BOOL, (0, 64): c.I64}
# Unsigned integers of the right width stand for the bits of a format that numpy lacks.
_RAW_BITS = {"u2": (c.BF16,), "u1": (c.E4M3, c.E5M2)}
_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED = 1, 2, 3, 13


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", ctypes.POINTER(c_int64)),
                ("strides", ctypes.POINTER(c_int64)), ("byte_offset", c_uint64)]


class View:
    """Where a tensor lies. `strides` count elements; `device` is "host", "cuda" or "emu"; `ordinal` may be None (unknown);
    `owner` keeps the memory alive."""

    __slots__ = ("data", "dtype", "shape", "strides", "device", "ordinal", "owner", "readonly")

    def __init__(self, data, dtype, shape, strides, device, ordinal, owner, readonly=False):
        self.data, self.dtype, self.shape, self.strides = data, dtype, tuple(shape), tuple(strides)
        self.device, self.ordinal, self.owner, self.readonly = device, ordinal, owner, readonly

    def span(self):
        """(first, end): the bytes the elements occupy, relative to `data`; (0, 0) when there are none."""
        if 0 in self.shape:
            return 0, 0
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        size = c.DTYPE_BYTES[self.dtype]
        return sum(r for r in reach if r < 0) * size, (sum(r for r in reach if r > 0) + 1) * size

    def struct(self, data=None):
        """As a qkv_tensor; `data` replaces the address."""
        tensor = c.Tensor(data=self.data if data is None else data, dtype=self.dtype, rank=len(self.shape))
        tensor.shape[:len(self.shape)] = self.shape
        tensor.stride[:len(self.shape)] = self.strides
        return tensor


def _refuse(name, why):
    raise c.Error(c.INVALID_ARGUMENT, "%s: %s" % (name, why))


def _unknown_dtype(name, dtype):
    _refuse(name, "dtype %s is not supported; convert it to one of %s" % (dtype, " ".join(c.DTYPE_NAMES)))


def _dense_strides(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return strides[::-1]


def _from_torch(tensor, name):
    dtype = _TORCH_DTYPES.get(str(tensor.dtype))
    if dtype is None:
        _unknown_dtype(name, tensor.dtype)
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        _refuse(name, "a tensor on device '%s' is neither host nor CUDA memory" % kind)
    return View(tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), "host" if kind == "cpu" else "cuda",
                tensor.device.index, tensor)


def _from_interface(array, interface, device, expected, name):
    named = str(getattr(array, "dtype", ""))
    typestr = interface["typestr"]
    dtype = _ARRAY_DTYPES.get(named, _TYPESTR_DTYPES.get(typestr[1:]))
    if dtype is None and expected in _RAW_BITS.get(typestr[1:], ()):
        dtype = expected
    if dtype is None or (typestr[0] == ">" and c.DTYPE_BYTES[dtype] > 1):
        _unknown_dtype(name, named or typestr)
    shape, size = interface["shape"], c.DTYPE_BYTES[dtype]
    byte_strides = interface.get("strides")
    strides = _dense_strides(shape) if byte_strides is None else [step // size for step in byte_strides]
    if byte_strides is not None and any(step % size for step in byte_strides):
        _refuse(name, "strides %s are not multiples of the %d-byte element" % (tuple(byte_strides), size))
    data, readonly = interface["data"]
    return View(data, dtype, shape, strides, device, None, array, readonly)


def _from_dlpack(tensor, name, stream):
    device = tensor.__dlpack_device__()[0] if hasattr(tensor, "__dlpack_device__") else _DLPACK_CPU
    cuda = device in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED)
    # DLPack numbers the legacy default stream 1. The producer makes its work visible on the stream we name.
    capsule = tensor.__dlpack__(stream=int(stream) if stream else 1) if cuda else tensor.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
    managed = _DLTensor.from_address(get(capsule, b"dltensor"))
    if managed.device_type not in (_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED):
        _refuse(name, "DLPack device type %d is neither host nor CUDA memory" % managed.device_type)
    dtype = _DLPACK_DTYPES.get((managed.code, managed.bits)) if managed.lanes == 1 else None
    if dtype is None:
        _unknown_dtype(name, "(DLPack code %d, %d bits, %d lanes)" % (managed.code, managed.bits, managed.lanes))
    shape = managed.shape[:managed.ndim]
    strides = managed.strides[:managed.ndim] if managed.strides else _dense_strides(shape)
    # The capsule keeps its name, so the producer's destructor frees the export when the view goes.
    return View((managed.data or 0) + managed.byte_offset, dtype, shape, strides, "cuda" if cuda else "host",
                managed.device_id if cuda else None, (tensor, capsule))


def view(tensor, name, expected=None, stream=None):
    """Describes `tensor`. `expected` is the dtype that raw unsigned bits (numpy uint16, uint8) stand for."""
    if isinstance(tensor, View):
        return tensor
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
        result = _from_torch(tensor, name)
    elif getattr(tensor, "__cuda_array_interface__", None) is not None:
        result = _from_interface(tensor, tensor.__cuda_array_interface__, "cuda", expected, name)
    elif getattr(tensor, "__array_interface__", None) is not None:
        result = _from_interface(tensor, tensor.__array_interface__, "host", expected, name)
    elif hasattr(tensor, "__dlpack__"):
        result = _from_dlpack(tensor, name, stream)
    else:
        _refuse(name, "a %s is not a tensor: it has none of data_ptr, __cuda_array_interface__, __array_interface__, "
                      "__dlpack__" % type(tensor).__name__)
    if len(result.shape) > c.MAX_RANK:
        _refuse(name, "rank %d exceeds %d" % (len(result.shape), c.MAX_RANK))
    return result


def framework(tensor):
    """"torch", "cupy", "numpy", or the top module of the tensor's type."""
    return type(tensor).__module__.partition(".")[0]


def empty_like(tensor, shape, dtype, name):
    """An uninitialised contiguous tensor of the framework and device of `tensor`."""
    kind = framework(tensor)
    if hasattr(tensor, "data_ptr") and "torch" in sys.modules:
        torch = sys.modules["torch"]
        names = {number: text.partition(".")[2] for text, number in _TORCH_DTYPES.items()}
        return torch.empty(shape, dtype=getattr(torch, names[dtype]), device=tensor.device)
    if kind == "cupy" and dtype in (c.F16, c.F32):
        return sys.modules["cupy"].empty(shape, dtype=c.DTYPE_NAMES[dtype].replace("f", "float"))
    if kind == "numpy":
        return _numpy_empty(tensor, shape, dtype)
    _refuse(name, "cannot be allocated as %s by '%s'; pass it as an argument" % (c.DTYPE_NAMES[dtype], kind))


def _numpy_empty(tensor, shape, dtype):
    numpy = sys.modules["numpy"]
    if dtype in (c.F16, c.F32):
        return numpy.empty(shape, dtype="float16" if dtype == c.F16 else "float32")
    raw = "uint%d" % (8 * c.DTYPE_BYTES[dtype])
    if str(tensor.dtype) != raw:
        try:
            import ml_dtypes
            return numpy.empty(shape, dtype={c.BF16: ml_dtypes.bfloat16, c.E4M3: ml_dtypes.float8_e4m3fn,
                                             c.E5M2: ml_dtypes.float8_e5m2}[dtype])
        except ImportError:
            pass
    return numpy.empty(shape, dtype=raw)


def current_stream(tensor):
    """The stream on which the tensor's framework would launch now: an integer handle, 0 for the default stream."""
    if hasattr(tensor, "data_ptr") and getattr(getattr(tensor, "device", None), "type", "") == "cuda":
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    if framework(tensor) == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0
