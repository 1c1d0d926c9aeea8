"""Tables of tuned schedules through the package: where they are, what explain says, that results stay right."""

import json

import numpy as np
import pytest
import qkv

SPEC = """qkvc: 1
name: tuned_small
attention: {heads: {q: 4, kv: 2}, dim: 32, dtype: f16, mask: causal}
"""
TABLE = """qkvc_tuned: 1
spec: tuned_small
tables:
  - gpu: {name: emu, class: emu, capability: 8.0, sm_count: 4, l2_bytes: 4194304,
          memory_bandwidth: 100000000000, shared_per_block: 232448}
    variant: %s
    qkvc: 0.1.0
    entries:
    - phase: prefill
      bucket: b1 q64 k64
      workload: {name: w, batch: 1, q: 64, kv: 64}
      family: attention_forward_sm80
      schedule: tile_m=64,tile_n=16,warps=4
      us: {median: 80.000, p10: 79.000, p90: 81.000}
      default: tile_m=128
      default_us: 100.000
"""


@pytest.fixture
def folder(tmp_path):
    with qkv.Engine("emu", arch="sm_80", cache_dir="", tuned_dir="") as plain:
        assert plain.tuned_path == ""
        said = json.loads(plain.explain(SPEC, json=True))["kernel"]
    assert said["schedule_from"] == "built-in default: tables are turned off"
    (tmp_path / "emu").mkdir()
    (tmp_path / "emu" / "tuned_small.yaml").write_text(TABLE % said["variant_hash"])
    return tmp_path


def test_a_table_decides_and_results_stay(folder):
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal((1, n, heads, 32)).astype(np.float16)
               for n, heads in ((50, 4), (60, 2), (60, 2)))
    with qkv.Engine("emu", arch="sm_80", cache_dir="", tuned_dir=str(folder)) as engine:
        assert engine.tuned_path == str(folder)
        said = json.loads(engine.explain(SPEC, json=True, batch=1, len_q=50, len_k=60))["kernel"]
        assert said["schedule"].startswith("tile_m=64,tile_n=16,warps=4")
        assert "1.25 times as fast as the default" in said["schedule_from"]
        other = json.loads(engine.explain(SPEC, json=True, batch=2, len_q=50, len_k=60))["kernel"]
        assert "outside of the tuned range" in other["schedule_from"]
        tuned = engine.prepare(SPEC, batch=1, len_q=50, len_k=60, aligned_only=True)(q, k, v)
    np.testing.assert_allclose(np.asarray(tuned, np.float32), np.asarray(qkv.reference(SPEC, q, k, v), np.float32),
                               atol=4e-3)
