"""What cannot be done is refused with a status and a text that names the field, tensor or argument."""

import gc
import subprocess
import sys

import numpy
import pytest

import qkv

TEXT = "qkvc: 1\nname: t\nattention:\n  heads: {q: 4, kv: 2}\n  dim: 16\n  dtype: f16\n"


def tensors(len_q=3, len_k=4, heads_q=4, heads_kv=2, dim=16, dtype="float16"):
    return [numpy.zeros((1, n, h, dim), dtype) for n, h in ((len_q, heads_q), (len_k, heads_kv), (len_k, heads_kv))]


@pytest.fixture(scope="module")
def op(emu):
    return emu.prepare(TEXT)


def test_a_bad_spec_is_diagnosed_with_its_position():
    with pytest.raises(qkv.Error) as caught:
        qkv.Spec(TEXT.replace("heads:", "haeds:"))
    assert caught.value.status == qkv.BAD_SPEC
    assert ":4:3" in str(caught.value) and "did you mean" in str(caught.value) and "^" in str(caught.value)


def test_a_missing_file():
    with pytest.raises(qkv.Error, match="no_such.yaml") as caught:
        qkv.Spec("no_such.yaml")
    assert caught.value.status == qkv.IO


@pytest.mark.parametrize("change, name", [
    (dict(heads_q=3), "q"), (dict(heads_kv=1), "k"), (dict(dim=24), "q"), (dict(dtype="float32"), "q")])
def test_wrong_tensors_are_named(op, change, name):
    with pytest.raises(qkv.Error) as caught:
        op(*tensors(**change))
    assert caught.value.status == qkv.INVALID_ARGUMENT and name in str(caught.value)


def test_wrong_calls(op):
    q, k, v = tensors()
    with pytest.raises(qkv.Error, match="q: shape"):
        op(q[0], k, v)
    with pytest.raises(TypeError, match="unknown argument slope; the parameters of t are: none"):
        op(q, k, v, slope=1)
    with pytest.raises(qkv.Error, match="lse: not among the outputs"):
        op(q, k, v, lse=numpy.zeros((1, 4, 3), "float32"))
    frozen = numpy.zeros_like(q)
    frozen.flags.writeable = False
    with pytest.raises(qkv.Error, match="o: the tensor is read-only"):
        op(q, k, v, out=frozen)
    with pytest.raises(qkv.Error):
        op(q, k, v, out=numpy.zeros((1, 3, 4, 8), "float16"))


def test_missing_parameter_and_sink(emu):
    op = emu.prepare(TEXT + "  sink: per_head\n  score: s * gain\n  params: {gain: {type: f32}}\n")
    with pytest.raises(TypeError, match="missing parameter gain"):
        op(*tensors())
    with pytest.raises(qkv.Error, match="sink"):
        op(*tensors(), gain=1.0)


def test_gpu_memory_on_the_emulator(op):
    class Array:
        shape = (1, 3, 4, 16)
        __cuda_array_interface__ = {"data": (4096, False), "typestr": "<f2", "shape": shape, "version": 3}
    with pytest.raises(qkv.Error, match="q: lies in GPU memory"):
        op(Array(), *tensors()[1:], out=tensors()[0])


def test_bad_schedule_family_and_architecture(emu):
    with pytest.raises(qkv.Error) as caught:
        emu.prepare(TEXT, schedule="tile_m=7")
    assert caught.value.status == qkv.BAD_SCHEDULE and "tile_m" in str(caught.value)
    with pytest.raises(qkv.Error, match="no_such_family"):
        emu.prepare(TEXT, family="no_such_family")
    with pytest.raises(qkv.Error) as caught:
        qkv.Engine("none", arch="sm_999")
    assert caught.value.status == qkv.UNKNOWN_ARCH and "sm_999" in str(caught.value)


def test_without_jit_a_missing_kernel_is_named(tmp_path):
    with qkv.Engine("emu", cache_dir=str(tmp_path), disable_jit=True) as engine:
        with pytest.raises(qkv.Error) as caught:
            engine.prepare(TEXT)
    assert caught.value.status == qkv.NOT_PREPARED and "attention" in str(caught.value)


def test_closing_an_engine_closes_what_it_made(tmp_path):
    engine = qkv.Engine("emu", cache_dir=str(tmp_path))
    op = engine.prepare(TEXT, aligned_only=True)
    launch = op.bind(*tensors())
    launch()
    engine.close()
    engine.close()
    with pytest.raises(qkv.Error, match="this op is closed"):
        op(*tensors())
    with pytest.raises(qkv.Error, match="this engine is closed"):
        engine.prepare(TEXT)
    del launch, op, engine
    gc.collect()


def test_a_wrong_library_path_says_where_it_looked():
    run = subprocess.run([sys.executable, "-c", "import qkv; qkv.Spec('x\\n')"], capture_output=True, text=True,
                         env={"QKV_LIBRARY": "/nowhere/libqkv.so", "PYTHONPATH": ":".join(sys.path)})
    assert run.returncode == 1 and "/nowhere/libqkv.so" in run.stderr and "QKV_LIBRARY" in run.stderr
