"""explain --candidates: the schedules that a tuner would try, as a table and as JSON."""

import pytest

LLAMA = "specs/llama3_8b.yaml"


def listed(qkvc, *words):
    return qkvc("explain", LLAMA, "--arch", "sm_90a", "--candidates", *words, "--json").json()


def test_default_first_then_by_expected_time(qkvc):
    found = listed(qkvc, 0, "--q", 4096, "--kv", 4096)
    rows = found["candidates"]
    assert found["count"] == len(rows) > 50 and found["effort"] == "default"
    assert [row["default"] for row in rows] == [True] + [False] * (len(rows) - 1)
    times = [row["seconds"] for row in rows[1:]]
    assert times == sorted(times)
    assert len({row["schedule"] for row in rows}) == len(rows)
    for row in rows:
        assert row["seconds"] >= max(row[term] for term in ("tensor", "exponential", "shared", "memory")), row


def test_more_effort_keeps_what_less_had(qkvc):
    sets = [{row["schedule"] for row in listed(qkvc, 0, "--effort", effort, "--q", 1024, "--kv", 1024)["candidates"]}
            for effort in ("quick", "default", "full")]
    assert sets[0] < sets[1] < sets[2]


def test_table(qkvc):
    text = qkvc("explain", LLAMA, "--arch", "sm_90a", "--candidates", 3, "--effort", "quick").out
    lines = text.splitlines()
    assert len(lines) == 5 and "candidates (quick)" in lines[0] and "expected us" in lines[1], text
    assert lines[2].lstrip().startswith("1 *") and "attention_forward_sm90" in lines[2], text


def test_all_families(qkvc):
    rows = listed(qkvc, 0, "--effort", "quick", "--family", "all", "--q", 1, "--kv", 4096, "--batch", 8)["candidates"]
    families = {row["family"] for row in rows}
    assert {"attention_decode_sm90", "attention_decode_sm80", "attention_forward_sm90"} <= families
    assert sum(row["default"] for row in rows) == len(families) and rows[0]["default"]


@pytest.mark.parametrize("words,message", [
    (("--candidates", 3, "--effort", "some"), "--effort is quick, default or full, not 'some'"),
    (("--effort", "quick"), "--effort goes with --candidates"),
    (("--candidates", 3, "--tile", "64x64"), "--tile goes with --mask"),
])
def test_wrong_words(qkvc, words, message):
    result = qkvc("explain", LLAMA, *words, code=2)
    assert message in result.err, result


def test_nothing_is_printed_of_a_failure(qkvc, tmp_path):
    result = qkvc("explain", LLAMA, "--candidates", 3, "--schedule", "tile_n=1", "--json", code=None)
    assert result.code != 0 and result.out == "", result


def test_model_error(qkvc, tmp_path):
    """A landscape of the model's own times has no error, and the first is the fastest."""
    import os
    import subprocess
    import sys

    from command_line import QKVC, ROOT
    rows = listed(qkvc, 4, "--effort", "quick", "--q", 2048, "--kv", 2048)["candidates"][1:]
    path = tmp_path / "landscape.csv"
    with open(path, "w", encoding="utf-8") as file:
        file.write("spec,family,phase,batch,len_q,len_k,schedule,seconds\n")
        for row in rows:
            file.write(f'{LLAMA},{row["family"]},prefill,1,2048,2048,"{row["schedule"]}",{row["seconds"]!r}\n')
    words = [sys.executable, "tools/model_error.py", "--rows", str(path)]
    out = subprocess.run(words, cwd=ROOT, env={**os.environ, "QKVC": QKVC}, capture_output=True, text=True, check=True).stdout
    assert "3 rows, expected / measured 1.00 (1.00 to 1.00)" in out, out
    assert "the fastest is number 1; the first 1, 4, 8 lose 0.0, 0.0, 0.0 %" in out, out
