"""qkv: attention kernels generated from a YAML spec.

    import qkv
    op = qkv.load("specs/llama3_8b.yaml")      # renders, compiles or reads the cache, loads
    o = op(q, k, v)                            # launches; torch, cupy, numpy, or anything with __dlpack__

Pure ctypes over libqkv (found through $QKV_LIBRARY, beside this package, in the build folders of the source tree, or
on the system). Nothing but the standard library is imported; tensors are understood by their protocols.
Failures raise qkv.Error, whose `status` is one of the constants below and whose text says what to do.
"""

from . import _library as lowlevel
from ._append import append_reference
from ._engine import Engine, Launch, Op, Param, Spec, Workload, load, map_mask, reference, visible
from ._library import (BAD_SCHEDULE, BAD_SPEC, CAPTURING, COMPILE_ERROR, DEVICE_ERROR, INTERNAL, INVALID_ARGUMENT, IO,
                       NO_COMPILER, NO_DEVICE, NOT_PREPARED, OUT_OF_MEMORY, TEMPLATE_ERROR, UNKNOWN_ARCH,
                       UNSUPPORTED, Error)
from ._merge import merge_reference
from ._pool import Pool, PoolTensor

__version__ = "0.1.0"
__all__ = ["Engine", "Error", "Launch", "Op", "Param", "Pool", "PoolTensor", "Spec", "Workload", "append_reference",
           "load", "lowlevel", "map_mask", "merge_reference", "reference", "visible",
           "BAD_SCHEDULE", "BAD_SPEC", "CAPTURING", "COMPILE_ERROR", "DEVICE_ERROR", "INTERNAL", "INVALID_ARGUMENT",
           "IO", "NO_COMPILER", "NO_DEVICE", "NOT_PREPARED", "OUT_OF_MEMORY", "TEMPLATE_ERROR", "UNKNOWN_ARCH",
           "UNSUPPORTED"]
