"""Tensors of other frameworks, understood by their protocols; the frameworks themselves are not needed."""

import numpy
import pytest

from qkv import _library as c
from qkv import _tensor


class TorchLike:
    """What the package uses of a torch tensor."""

    class Device:
        def __init__(self, kind, index):
            self.type, self.index = kind, index

    def __init__(self, dtype, shape, strides, kind="cuda", index=1):
        self.dtype, self.shape, self._strides, self.device = dtype, shape, strides, self.Device(kind, index)

    def data_ptr(self):
        return 4096

    def stride(self):
        return self._strides


class OnlyDlpack:
    """Hides every protocol of an array but DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **more):
        return self._array.__dlpack__(**more)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("name, code", [("float16", c.F16), ("bfloat16", c.BF16), ("float32", c.F32),
                                        ("float8_e4m3fn", c.E4M3), ("float8_e5m2", c.E5M2), ("int32", c.I32),
                                        ("bool", c.BOOL)])
def test_torch_tensors(name, code):
    view = _tensor.view(TorchLike("torch." + name, (2, 3), (5, -1)), "q")
    assert (view.data, view.dtype, view.shape, view.strides) == (4096, code, (2, 3), (5, -1))
    assert (view.device, view.ordinal) == ("cuda", 1)


def test_cuda_array_interface():
    class Array:
        __cuda_array_interface__ = {"data": (512, False), "typestr": "<f2", "shape": (4, 2), "strides": (16, 2),
                                    "version": 3}
    view = _tensor.view(Array(), "k")
    assert (view.data, view.dtype, view.strides, view.device) == (512, c.F16, (8, 1), "cuda")


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "bool"])
@pytest.mark.parametrize("wrap", [lambda array: array, OnlyDlpack])
def test_numpy_strides_through_both_protocols(dtype, wrap):
    array = numpy.zeros((3, 4, 5), dtype)[::2, ::-1, 1:4]
    view = _tensor.view(wrap(array), "v")
    assert view.data == array.ctypes.data and view.shape == array.shape
    assert view.strides == tuple(step // array.itemsize for step in array.strides)
    first, end = view.span()
    low, high = numpy.lib.array_utils.byte_bounds(array) if hasattr(numpy.lib, "array_utils") else \
        numpy.byte_bounds(array)
    assert (view.data + first, view.data + end) == (low, high)


def test_raw_bits_stand_for_the_dtype_of_the_spec():
    assert _tensor.view(numpy.zeros(2, "uint16"), "q", c.BF16).dtype == c.BF16
    assert _tensor.view(numpy.zeros(2, "uint8"), "q", c.E5M2).dtype == c.E5M2
    with pytest.raises(c.Error, match="q: dtype uint16"):
        _tensor.view(numpy.zeros(2, "uint16"), "q", c.F16)


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = numpy.zeros((2, 3), ml_dtypes.bfloat16)
    assert _tensor.view(array, "q").dtype == c.BF16
    assert _tensor.empty_like(array, (4,), c.BF16, "o").dtype == array.dtype
    assert _tensor.view(numpy.zeros(2, ml_dtypes.float8_e4m3fn), "q").dtype == c.E4M3


@pytest.mark.parametrize("tensor, why", [
    (numpy.zeros(2, "float64"), "dtype float64"), (numpy.zeros(2, ">f2"), "dtype >f2"),
    (numpy.zeros(2, "complex64"), "dtype complex64"), (numpy.zeros((1,) * 6, "float16"), "rank 6"),
    ([1.0, 2.0], "list is not a tensor"), (TorchLike("torch.float16", (1,), (1,), "mps"), "device 'mps'"),
    (TorchLike("torch.int16", (1,), (1,)), "dtype torch.int16")])
def test_refusals_name_the_tensor(tensor, why):
    with pytest.raises(c.Error, match="k: .*" + why.replace("'", ".")) as caught:
        _tensor.view(tensor, "k")
    assert caught.value.status == c.INVALID_ARGUMENT


def test_dlpack_export_is_released():
    array = numpy.zeros(8, "float16")
    export = OnlyDlpack(array)
    import sys
    before = sys.getrefcount(array)
    view = _tensor.view(export, "q")
    assert sys.getrefcount(array) > before
    del view
    assert sys.getrefcount(array) == before
