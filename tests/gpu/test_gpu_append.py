"""The cases of tests/python/test_append.py on a GPU, and appends in a CUDA graph. Needs PyTorch and a GPU."""

import pathlib
import sys

import numpy
import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "tools" / "python"), str(TESTS / "python")]

import qkv  # noqa: E402
import test_append as appends  # noqa: E402

try:
    import torch
    have_gpu = torch.cuda.is_available()
except ImportError:
    have_gpu = False
pytestmark = pytest.mark.skipif(not have_gpu, reason="needs PyTorch and a GPU")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    appends._ops.clear()
    with qkv.Engine("cuda", cache_dir=str(tmp_path_factory.mktemp("cache"))) as engine:
        yield engine
    appends._ops.clear()


@pytest.mark.parametrize("name", appends.CASES)
def test_case(engine, name):
    appends.test_case(engine, name)


@pytest.mark.parametrize("test", [
    appends.test_slots_that_skip, appends.test_rows_of_no_sequence_are_left_alone, appends.test_fused_is_apart,
    appends.test_in_place, appends.test_any_alignment_and_strides, appends.test_schedules_agree,
    appends.test_company_order_and_pages_change_nothing, appends.test_far_positions_are_exact,
    appends.test_frequencies_of_a_call, appends.test_arrays_of_anything_stay_inside])
def test_as_on_the_emulator(engine, test):
    test(engine)


def test_graph_replays_see_new_lengths(engine):
    """One capture; lengths, pages and rows change between its replays."""
    case = appends.Case(slots="lengths", norm=True)
    tensors = {name: torch.from_numpy(value.copy()).cuda() for name, value in case.args.items()}
    tensors["q_out"] = torch.empty_like(tensors["q"])
    launch = appends.prepared(engine, case).bind_append(**tensors)
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(torch.cuda.current_stream())
    for seed in range(2, 6):
        other = appends.Case(slots="lengths", norm=True, seed=seed)
        before = other.args["k_cache"].copy(), other.args["v_cache"].copy()
        for name, value in other.args.items():
            tensors[name].copy_(torch.from_numpy(value.copy()))
        graph.replay()
        torch.cuda.synchronize()
        other.check(*(tensors[name].cpu().numpy() for name in ("q_out", "k_cache", "v_cache")), before)
    assert numpy.isfinite(tensors["q_out"].cpu().numpy()).all()
