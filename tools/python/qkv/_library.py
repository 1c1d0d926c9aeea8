"""The C interface of libqkv as ctypes: finding the library, its structures and its prototypes.

Mirrors the public headers of runtime/ by hand; tests/python/test_layout.py compares every size and offset with them.
Nothing here knows of tensors or frameworks.
"""

import ctypes
import ctypes.util
import glob
import os
from ctypes import (CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64,
                    c_void_p)

# qkv_dtype
F16, BF16, F32, E4M3, E5M2, I32, BOOL, I64 = range(8)
DTYPE_NAMES = ("f16", "bf16", "f32", "e4m3", "e5m2", "i32", "bool", "i64")
DTYPE_BYTES = (2, 2, 4, 1, 1, 4, 1, 8)

# qkv_layout, qkv_page_order, qkv_page_table
DENSE, PADDED, RAGGED, PAGED = range(4)
PAGE_NHD, PAGE_HND = range(2)
PAGE_TABLE_ROWS, PAGE_TABLE_CSR = range(2)

# The members of qkv_status that Python code raises or compares with.
OK, INVALID_ARGUMENT, OUT_OF_MEMORY, IO = 0, 1, 2, 3
BAD_SPEC, UNSUPPORTED, BAD_SCHEDULE, UNKNOWN_ARCH = 10, 11, 12, 13
TEMPLATE_ERROR, COMPILE_ERROR, NOT_PREPARED, NO_COMPILER = 20, 21, 22, 23
NO_DEVICE, DEVICE_ERROR, CAPTURING, INTERNAL = 30, 31, 32, 90

MAX_RANK = 5
LogFunction = CFUNCTYPE(None, c_int, c_char_p, c_void_p)


class Error(RuntimeError):
    """A call of libqkv failed. `status` is the qkv_status (an int), the text is the library's message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class _Sized(ctypes.Structure):
    """A structure whose first member is its own size, so that the library can tell versions apart."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(type(self)), **members)


class Options(_Sized):
    _fields_ = [("size", c_size_t), ("device", c_char_p), ("cache_dir", c_char_p), ("template_path", c_char_p),
                ("arch", c_char_p), ("disable_jit", c_int), ("emu_seed", c_uint64), ("log", LogFunction),
                ("log_user", c_void_p), ("emu_granule", c_size_t), ("debug_checks", c_int), ("tuned_dir", c_char_p),
                ("packs", POINTER(c_char_p))]


class Counters(_Sized):
    _fields_ = [("size", c_size_t), ("compiles", c_uint64), ("cache_hits", c_uint64), ("cache_errors", c_uint64),
                ("launches", c_uint64), ("renders", c_uint64), ("pack_hits", c_uint64), ("load_seconds", c_double)]


class DeviceInfo(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char * 128), ("kind", c_char * 16), ("arch", c_char * 16),
                ("ordinal", c_int), ("sm_count", c_int), ("compute_major", c_int), ("compute_minor", c_int),
                ("l2_bytes", c_int64), ("memory_bytes", c_int64), ("driver_version", c_int),
                ("compiler", c_char * 256), ("clock_hz", c_double), ("memory_bandwidth", c_double),
                ("shared_per_block", c_int)]


class SpecInfo(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("heads_q", c_int), ("heads_kv", c_int), ("dim_qk", c_int),
                ("dim_v", c_int), ("dtype_q", c_int), ("dtype_kv", c_int), ("dtype_out", c_int),
                ("wants_lse", c_int), ("wants_lse_with_sink", c_int), ("has_sink", c_int), ("nparams", c_int),
                ("nworkloads", c_int), ("layout_q", c_int), ("layout_kv", c_int), ("page_size", c_int),
                ("page_order", c_int), ("page_table", c_int), ("has_kv_scale", c_int),
                ("has_append", c_int)]


class ParamInfo(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("rank", c_int)]


class Workload(_Sized):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("batch", c_int64), ("len_q", c_int64), ("len_k", c_int64)]


class BuildOptions(_Sized):
    _fields_ = [("size", c_size_t), ("arch", c_char_p), ("family", c_char_p), ("phase", c_char_p),
                ("schedule", c_char_p), ("unaligned", c_int), ("len_q", c_int64), ("batch", c_int64),
                ("len_k", c_int64)]


class BuildEntry(ctypes.Structure):
    _fields_ = [("name", c_char * 64), ("registers", c_int), ("spill_stores", c_int), ("spill_loads", c_int),
                ("stack", c_int), ("shared_bytes", c_int), ("threads", c_int), ("serialised_wgmma", c_int),
                ("ignored_setmaxnreg", c_int), ("added_waits", c_int), ("added_fences", c_int), ("warnings", c_int)]


class BuildReport(_Sized):
    _fields_ = [("size", c_size_t), ("family", c_char * 64), ("arch", c_char * 16), ("schedule", c_char * 256),
                ("key", c_char * 33), ("from_cache", c_int), ("render_seconds", c_double),
                ("compile_seconds", c_double), ("load_seconds", c_double), ("image_bytes", c_int64),
                ("nentries", c_int), ("entries", BuildEntry * 4), ("notes", c_void_p), ("advisories", c_void_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("rank", c_int), ("shape", c_int64 * MAX_RANK),
                ("stride", c_int64 * MAX_RANK)]


class Limits(_Sized):
    _fields_ = [("size", c_size_t), ("batch", c_int64), ("len_q", c_int64), ("len_k", c_int64),
                ("aligned_only", c_int), ("family", c_char_p), ("phase", c_char_p), ("schedule", c_char_p)]


ProgressFunction = CFUNCTYPE(None, c_int, c_int, c_char_p, c_char_p, c_double, c_void_p)


class PrepareManyOptions(_Sized):
    _fields_ = [("size", c_size_t), ("threads", c_int), ("progress", ProgressFunction), ("user", c_void_p)]


class ParamValue(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("value", c_double)]


class AttentionArgs(_Sized):
    _fields_ = [("size", c_size_t), ("q", Tensor), ("k", Tensor), ("v", Tensor), ("o", Tensor), ("lse", Tensor),
                ("lse_with_sink", Tensor), ("sink", Tensor), ("params", POINTER(ParamValue)), ("nparams", c_int),
                ("workspace", c_void_p), ("workspace_bytes", c_size_t), ("reuse_plan", c_int),
                ("cu_seqlens_q", Tensor), ("cu_seqlens_k", Tensor), ("seqlens_k", Tensor), ("page_table", Tensor),
                ("page_indptr", Tensor), ("max_len_q", c_int64), ("max_len_k", c_int64),
                ("k_scale", Tensor), ("v_scale", Tensor)]


class State(ctypes.Structure):
    _fields_ = [("o", Tensor), ("lse", Tensor)]


class MergeArgs(_Sized):
    _fields_ = [("size", c_size_t), ("count", c_int), ("states", POINTER(State)), ("o", Tensor), ("lse", Tensor)]


class AppendArgs(_Sized):
    _fields_ = [("size", c_size_t)] + [(name, Tensor) for name in (
        "q", "k", "v", "qkv", "q_out", "k_cache", "v_cache", "slots", "positions", "q_norm", "k_norm", "cos_sin",
        "frequencies")] + [("rope_factor", c_double)] + [(name, Tensor) for name in (
            "k_scale", "v_scale", "cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "page_table", "page_indptr")]


class MaskMap(_Sized):
    _fields_ = [("size", c_size_t), ("batch", c_int64), ("head", c_int64), ("tile_q", c_int64), ("tile_k", c_int64),
                ("most", c_double), ("rows", c_int64), ("columns", c_int64), ("planned", c_void_p),
                ("actual", c_void_p), ("visible", c_double), ("analysis", c_void_p), ("dilation", c_int64)]


# qkv_pool_mode
POOL_BLOCKS, POOL_CONTIGUOUS = 0, 1


class PoolOptions(_Sized):
    _fields_ = [("size", c_size_t), ("mode", c_int), ("placement", c_int), ("layers", c_int64), ("blocks", c_int64),
                ("slots", c_int64), ("max_len", c_int64), ("tile", c_int64), ("max_bytes", c_int64),
                ("granule", c_int64)]


class PoolInfo(_Sized):
    _fields_ = [("size", c_size_t)] + [(name, c_int64) for name in (
        "granule", "page", "token_bytes", "page_bytes", "reserved", "mapped", "used", "idle", "blocks", "blocks_used",
        "slots", "tokens")]


# name: (result, arguments). c_int results of qkv_status functions are checked by call().
PROTOTYPES = {
    "qkv_status_name": (c_char_p, [c_int]),
    "qkv_version": (c_char_p, []),
    "qkv_open": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "qkv_close": (None, [c_void_p]),
    "qkv_last_error": (c_char_p, [c_void_p]),
    "qkv_get_counters": (None, [c_void_p, POINTER(Counters)]),
    "qkv_device_get_info": (c_int, [c_void_p, POINTER(DeviceInfo)]),
    "qkv_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "qkv_free": (c_int, [c_void_p, c_void_p]),
    "qkv_copy_to_device": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "qkv_copy_to_host": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "qkv_copy_on_device": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "qkv_synchronize": (c_int, [c_void_p]),
    "qkv_spec_load": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "qkv_spec_check": (c_int, [c_char_p, c_int, POINTER(c_void_p)]),
    "qkv_spec_free": (None, [c_void_p]),
    "qkv_spec_get_info": (None, [c_void_p, POINTER(SpecInfo)]),
    "qkv_spec_get_param": (c_int, [c_void_p, c_int, POINTER(ParamInfo)]),
    "qkv_spec_param_shape": (c_int, [c_void_p, c_int, c_int64, c_int64, c_int64, POINTER(c_int64)]),
    "qkv_spec_get_workload": (c_int, [c_void_p, c_int, POINTER(Workload)]),
    "qkv_spec_canonical": (c_int, [c_void_p, POINTER(c_void_p)]),
    "qkv_spec_json": (c_int, [c_void_p, POINTER(c_void_p)]),
    "qkv_json_schema": (c_int, [POINTER(c_void_p)]),
    "qkv_string_free": (None, [c_void_p]),
    "qkv_generate": (c_int, [c_void_p, c_void_p, POINTER(BuildOptions), POINTER(c_void_p)]),
    "qkv_build": (c_int, [c_void_p, c_void_p, POINTER(BuildOptions), POINTER(BuildReport)]),
    "qkv_explain": (c_int, [c_void_p, c_void_p, POINTER(BuildOptions), c_int, POINTER(c_void_p)]),
    "qkv_cache_path": (c_char_p, [c_void_p]),
    "qkv_tuned_path": (c_char_p, [c_void_p]),
    "qkv_pool_open": (c_int, [c_void_p, c_void_p, POINTER(PoolOptions), POINTER(c_void_p)]),
    "qkv_pool_free": (None, [c_void_p]),
    "qkv_pool_tensors": (c_int, [c_void_p, c_int64, POINTER(Tensor), POINTER(Tensor)]),
    "qkv_pool_alloc": (c_int, [c_void_p, c_int64, POINTER(c_int32)]),
    "qkv_pool_retain": (c_int, [c_void_p, c_int64, POINTER(c_int32)]),
    "qkv_pool_release": (c_int, [c_void_p, c_int64, POINTER(c_int32)]),
    "qkv_pool_owners": (c_int, [c_void_p, c_int32, POINTER(c_int64)]),
    "qkv_pool_resize": (c_int, [c_void_p, c_int64, c_int64]),
    "qkv_pool_trim": (c_int, [c_void_p, POINTER(c_int64)]),
    "qkv_pool_get_info": (c_int, [c_void_p, POINTER(PoolInfo)]),
    "qkv_prepare": (c_int, [c_void_p, c_void_p, POINTER(Limits), POINTER(c_void_p)]),
    "qkv_prepare_many": (c_int, [c_void_p, c_int, POINTER(c_void_p), POINTER(POINTER(Limits)), POINTER(c_void_p),
                                 POINTER(c_int), POINTER(PrepareManyOptions)]),
    "qkv_op_free": (None, [c_void_p]),
    "qkv_pack_load": (c_int, [c_void_p, c_char_p]),
    "qkv_pack_load_memory": (c_int, [c_void_p, c_void_p, c_size_t]),
    "qkv_spec_from_pack": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "qkv_workspace_size": (c_size_t, [c_void_p]),
    "qkv_attention": (c_int, [c_void_p, POINTER(AttentionArgs), c_void_p]),
    "qkv_merge": (c_int, [c_void_p, POINTER(MergeArgs), c_void_p]),
    "qkv_merge_reference": (c_int, [c_void_p, POINTER(MergeArgs)]),
    "qkv_append": (c_int, [c_void_p, POINTER(AppendArgs), c_void_p]),
    "qkv_append_reference": (c_int, [c_void_p, POINTER(AppendArgs)]),
    "qkv_reference": (c_int, [c_void_p, POINTER(AttentionArgs)]),
    "qkv_check_sequences": (c_int, [c_void_p, POINTER(AttentionArgs)]),
    "qkv_visible": (c_int, [c_void_p, POINTER(AttentionArgs), c_int64, c_int64, c_void_p]),
    "qkv_map_mask": (c_int, [c_void_p, c_void_p, POINTER(BuildOptions), POINTER(AttentionArgs), POINTER(MaskMap)]),
    "qkv_mask_map_free": (None, [POINTER(MaskMap)]),
    "qkv_time": (c_int, [c_void_p, POINTER(AttentionArgs), c_void_p, c_int, POINTER(c_double), POINTER(c_double),
                         POINTER(c_double)]),
    "qkv_work": (c_int, [c_void_p, POINTER(AttentionArgs), POINTER(c_double), POINTER(c_double)]),
}


def _candidates():
    """Paths to try, in order: $QKV_LIBRARY alone when set; else beside the package, the build folders of the source
    tree this package stands in (release first, then newest first), the system."""
    chosen = os.environ.get("QKV_LIBRARY")
    if chosen:
        return [chosen]
    package = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(os.path.dirname(package)))
    paths = glob.glob(os.path.join(package, "libqkv.so*"))
    release = os.path.join(root, "build", "release", "libqkv.so")
    if os.path.exists(release):
        paths.append(release)
    build = os.path.join(root, "build")
    builds = glob.glob(os.path.join(build, "libqkv.so")) + glob.glob(os.path.join(build, "*", "libqkv.so"))
    paths += sorted((path for path in builds if path != release), key=os.path.getmtime, reverse=True)
    return paths + ["libqkv.so.0", ctypes.util.find_library("qkv") or "libqkv.so"]


def _open():
    tried = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            for name, (result, arguments) in PROTOTYPES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            return library
        except (OSError, AttributeError) as error:
            tried.append("  %s: %s" % (path, error))
    raise ImportError("libqkv.so was not found; build it (cmake --preset release && cmake --build --preset release) "
                      "or set QKV_LIBRARY to its path. Tried:\n" + "\n".join(tried))


_library = None


def libqkv():
    """The loaded library; loading happens at the first use, so that `import qkv` works without one."""
    global _library
    if _library is None:
        _library = _open()
    return _library


def call(name, *arguments):
    """Calls a function that returns a qkv_status; raises Error with the library's message unless it is QKV_OK."""
    lib = libqkv()
    status = getattr(lib, name)(*arguments)
    if status != OK:
        message = lib.qkv_last_error(None).decode("utf-8", "replace")
        raise Error(status, message or "%s: %s" % (name, lib.qkv_status_name(status).decode()))


def take_string(pointer):
    """Copies a text made by the library into a str and frees it."""
    if not pointer.value:
        return ""
    try:
        return ctypes.string_at(pointer.value).decode("utf-8", "replace")
    finally:
        libqkv().qkv_string_free(pointer)


def encode(text):
    """str or path-like to bytes, None to None (NULL)."""
    return None if text is None else os.fsencode(text)
