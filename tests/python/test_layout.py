"""The ctypes mirror of the public headers is exact: a C program made from it prints their sizes and offsets."""

import ctypes
import re
import subprocess

from qkv import _library as c

HEADERS = ["qkv.h", "qkv_build.h", "qkv_tune.h", "qkv_pack.h"]
STRUCTS = {"qkv_options": c.Options, "qkv_counters": c.Counters, "qkv_device_info": c.DeviceInfo,
           "qkv_spec_info": c.SpecInfo, "qkv_param_info": c.ParamInfo, "qkv_workload": c.Workload,
           "qkv_build_options": c.BuildOptions, "qkv_build_entry": c.BuildEntry, "qkv_build_report": c.BuildReport,
           "qkv_tensor": c.Tensor, "qkv_limits": c.Limits, "qkv_param_value": c.ParamValue,
           "qkv_prepare_many_options": c.PrepareManyOptions,
           "qkv_append_args": c.AppendArgs, "qkv_attention_args": c.AttentionArgs, "qkv_state": c.State, "qkv_merge_args": c.MergeArgs,
           "qkv_mask_map": c.MaskMap,
           "qkv_pool_options": c.PoolOptions, "qkv_pool_info": c.PoolInfo}
STATUSES = ("OK INVALID_ARGUMENT OUT_OF_MEMORY IO BAD_SPEC UNSUPPORTED BAD_SCHEDULE UNKNOWN_ARCH TEMPLATE_ERROR "
            "COMPILE_ERROR NOT_PREPARED NO_COMPILER NO_DEVICE DEVICE_ERROR CAPTURING INTERNAL").split()
DTYPES = "F16 BF16 F32 E4M3 E5M2 I32 BOOL I64".split()
LAYOUTS = "DENSE PADDED RAGGED PAGED PAGE_NHD PAGE_HND PAGE_TABLE_ROWS PAGE_TABLE_CSR".split()
# Functions the package has no use for: a helper for C callers, and what the command line is for.
UNBOUND = {"qkv_tensor_dense", "qkv_cache_list", "qkv_cache_clear", "qkv_cache_gc", "qkv_cache_export", "qkv_doctor",
           "qkv_candidates", "qkv_tuned_write", "qkv_tuned_find", "qkv_measure", "qkv_tuned_bucket",
           "qkv_tuned_list", "qkv_tuned_check", "qkv_tuned_merge", "qkv_pack_list", "qkv_bundle_open", "qkv_bundle_add",
           "qkv_bundle_bytes", "qkv_bundle_write", "qkv_bundle_free"}
UNBOUND_STRUCTS = {"qkv_cache_entry", "qkv_cache_gc_options", "qkv_cache_gc_report", "qkv_cache_filter",
                   "qkv_candidate", "qkv_tuned_entry", "qkv_tuned_table", "qkv_contestant", "qkv_measure_options",
                   "qkv_pack_info", "qkv_pack_entry", "qkv_bundle_report"}


def expected():
    """What the C program must print: one "what value" a line."""
    for name, struct in STRUCTS.items():
        yield "sizeof(%s)" % name, ctypes.sizeof(struct)
        for field, kind in struct._fields_:
            yield "offsetof(%s, %s)" % (name, field), getattr(struct, field).offset
            yield "sizeof(((%s *)0)->%s)" % (name, field), ctypes.sizeof(kind)
    for name in STATUSES + DTYPES + LAYOUTS + ["POOL_BLOCKS", "POOL_CONTIGUOUS"]:
        yield "QKV_" + name, getattr(c, name)


def test_structures_match_the_header(root, tmp_path):
    wanted = dict(expected())
    lines = "\n".join('  printf("%%ld\\n", (long)(%s));' % what for what in wanted)
    source = tmp_path / "layout.c"
    includes = "".join('#include "%s"\n' % name for name in HEADERS)
    source.write_text('#include <stdio.h>\n#include <stddef.h>\n%sint main(void) {\n%s\n}\n' % (includes, lines))
    subprocess.run(["cc", "-I", str(root / "runtime"), "-o", str(tmp_path / "layout"), str(source)], check=True)
    values = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout.split()
    found = dict(zip(wanted, map(int, values), strict=True))
    assert found == wanted


def test_every_structure_and_function_is_bound(root):
    header = re.sub(r"/\*.*?\*/", "", "".join((root / "runtime" / name).read_text() for name in HEADERS), flags=re.S)
    structs = set(re.findall(r"typedef struct (qkv_\w+) \{", header))
    assert structs - UNBOUND_STRUCTS == set(STRUCTS)
    functions = set(re.findall(r"QKV_API [\w *]*?\b(qkv_\w+)\(", header))
    assert functions - UNBOUND == set(c.PROTOTYPES)
