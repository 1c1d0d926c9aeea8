"""What every family makes of every model and every score of the zoo for sm_90a, by its default schedule, keeps its speed: the compiler
serialises no wgmma, ignores no setmaxnreg, and spills nothing beyond the table below."""

import concurrent.futures
import json
import os
import pathlib
import shutil

import pytest

import qkv

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCORES = "alibi", "graphormer", "head_bias", "relative_bias", "sandwich", "softcap", "t5_buckets"
SPECS = sorted((ROOT / "specs").glob("*.yaml")) + [ROOT / "specs" / "masks" / (name + ".yaml") for name in SCORES]
SERVING = sorted((ROOT / "specs" / "serving").glob("*.yaml"))
ARCH = "sm_90a"

# Kernels known to spill, and the most bytes a thread they may keep in local memory: stores and loads, by NVRTC 13.0.
SPILLS = {
    ("align_top_left", "attention_forward_sm80", "unaligned"): 32,
    ("bert_base", "attention_forward_sm80", "unaligned"): 32,
    ("command_r7b_local", "attention_forward_sm80", "aligned"): 16,
    ("command_r7b_local", "attention_forward_sm80", "unaligned"): 120,
    ("falcon_180b", "attention_forward_sm80", "unaligned"): 36,
    ("falcon_7b", "attention_forward_sm80", "unaligned"): 32,
    ("flux_dev", "attention_forward_sm80", "aligned"): 16,
    ("flux_dev", "attention_forward_sm80", "unaligned"): 120,
    ("gemma3_27b_local", "attention_forward_sm80", "aligned"): 16,
    ("gemma3_27b_local", "attention_forward_sm80", "unaligned"): 120,
    ("gpt_oss_20b_global", "attention_forward_sm80", "unaligned"): 36,
    ("gpt_oss_20b_local", "attention_forward_sm80", "unaligned"): 40,
    ("hunyuan_video", "attention_forward_sm80", "aligned"): 16,
    ("hunyuan_video", "attention_forward_sm80", "unaligned"): 120,
    ("llama3_70b_tp8", "attention_forward_sm80", "aligned"): 24,
    ("llama3_70b_tp8", "attention_forward_sm80", "unaligned"): 32,
    ("llama3_8b", "attention_forward_sm80", "unaligned"): 32,
    ("llama4_scout_chunked", "attention_forward_sm80", "aligned"): 24,
    ("llama4_scout_chunked", "attention_forward_sm80", "unaligned"): 32,
    ("mask_prefix_lm", "attention_forward_sm80", "unaligned"): 32,
    ("mask_window_both", "attention_forward_sm80", "aligned"): 16,
    ("minilm_l6", "attention_forward_sm80", "aligned"): 16,
    ("mistral_7b", "attention_forward_sm80", "aligned"): 16,
    ("mistral_7b", "attention_forward_sm80", "unaligned"): 120,
    ("qwen2_5_7b", "attention_forward_sm80", "aligned"): 8,
    ("qwen2_5_7b", "attention_forward_sm80", "unaligned"): 24,
    ("qwen3_14b", "attention_forward_sm80", "aligned"): 16,
    ("qwen3_14b", "attention_forward_sm80", "unaligned"): 24,
    ("smollm2_135m", "attention_forward_sm80", "unaligned"): 36,
    ("whisper_large_v3_decoder", "attention_forward_sm80", "unaligned"): 36,
    ("wan2_1_14b", "attention_forward_sm80", "aligned"): 16,
    ("wan2_1_14b", "attention_forward_sm80", "unaligned"): 120,
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    engine = qkv.Engine("none", cache_dir=str(tmp_path_factory.mktemp("cache")))  # specs and alignments share kernels
    try:
        engine.build(qkv.Spec(SPECS[0]), arch=ARCH)
    except qkv.Error as error:
        if error.status != qkv.NO_COMPILER:
            raise
        pytest.skip("NVRTC is not there")
    yield engine
    engine.close()


def kernels(engine, spec):
    """(family, alignment) of every kernel that can be made of a spec."""
    for alignment in ("aligned", "unaligned"):
        choices = json.loads(engine.explain(spec, arch=ARCH, unaligned=alignment == "unaligned", json=True))
        yield from ((row["family"], alignment) for row in choices["families"] if row["supported"])


def lost_speed(report, limit):
    """What is wrong with a kernel, a line each."""
    for entry in report.entries:
        local = max(entry.spill_stores + entry.spill_loads, entry.stack)
        if entry.registers < 0:
            yield "%s: the compiler's log does not speak of it" % entry.name
        if local > limit:
            yield "%s: %d bytes of local memory, at most %d are known" % (entry.name, local, limit)
        if entry.serialised_wgmma or entry.ignored_setmaxnreg:
            yield from (line for line in report.advisories if line.startswith(entry.name + ": "))


def judge(engine, spec, family, alignment):
    report = engine.build(spec, arch=ARCH, family=family, unaligned=alignment == "unaligned")
    path = ("masks/" if spec.name in SCORES else "") + spec.name
    again = "qkvc build specs/%s.yaml --arch %s --family %s%s" % (path, ARCH, family,
                                                                  " --unaligned" if alignment == "unaligned" else "")
    limit = SPILLS.get((spec.name, family, alignment), 0)
    return ["%s: %s" % (again, fault) for fault in lost_speed(report, limit)]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_default_schedules(path, compiler):
    spec = qkv.Spec(path)
    found = list(kernels(compiler, spec))
    assert len(found) >= 2, "a family and its baseline"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = sum(pool.map(lambda kernel: judge(compiler, spec, *kernel), found), [])
    assert not faults, "\n".join(faults)


def test_appends(compiler):
    """No append of a served model spills. Models often share a kernel."""
    jobs = {}
    for path in SERVING:
        spec = qkv.Spec(path)
        jobs.setdefault(compiler.generate(spec, arch=ARCH, phase="append"), (path, spec))

    def faults_of(job):
        path, spec = job
        again = "qkvc build %s --arch %s --phase append" % (path.relative_to(ROOT), ARCH)
        return ["%s: %s" % (again, fault) for fault in lost_speed(compiler.build(spec, arch=ARCH, phase="append"), 0)]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = sum(pool.map(faults_of, jobs.values()), [])
    assert not faults, "\n".join(faults)


def test_the_table_names_kernels(compiler):
    for spec, family, alignment in SPILLS:
        path = ROOT / "specs" / ("masks" if spec in SCORES else ".") / (spec + ".yaml")
        assert path in SPECS and (family, alignment) in kernels(compiler, qkv.Spec(path)), (spec, family, alignment)


# Statements put into a kernel, each of which costs speed in one way.
MUTANTS = {
    "setmaxnreg ignored": 'asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); ((void (*)())(arena + lane))();',
    "wgmma serialised": """
  float d[4] = {}, e[4] = {};
  for (int n = 0; n < lane; n++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"((unsigned long long)lane));
    if (n > 0)
      asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;"
                   : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3]) : "l"((unsigned long long)n));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    d[0] *= e[1];
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    e[2] *= d[3];
  }
  arena[lane] = e[2];""",
    "bytes of local memory": "volatile float x[64]; x[lane] = 1.0f; arena[0] = x[lane / 2];",
}


@pytest.mark.parametrize("word", MUTANTS)
def test_lost_speed_is_found(word, compiler, tmp_path):
    """The judge above names a planted loss."""
    templates = tmp_path / "templates"
    shutil.copytree(ROOT / "templates", templates)
    path = templates / "kernels" / "attention_forward_sm80.cu"
    place = "  store_output(p, output, arena"
    source = path.read_text()
    assert source.count(place) == 1
    path.write_text(source.replace(place, "  { %s }\n%s" % (MUTANTS[word], place)))
    engine = qkv.Engine("none", cache_dir="", template_path=str(templates))
    try:
        faults = judge(engine, qkv.Spec(ROOT / "specs" / "minilm_l6.yaml"), "attention_forward_sm80", "aligned")
    finally:
        engine.close()
    assert any(word in fault for fault in faults), faults
