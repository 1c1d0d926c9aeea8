"""Help, usage errors, exit codes and streams."""

import os
import re
import subprocess

import pytest

from command_line import QKVC, ROOT, needs_no_gpu

COMMANDS = ["check", "gen", "build", "run", "tune", "bench", "report", "explain", "cache", "tuned", "bundle", "pack",
            "doctor", "schema", "completion", "version", "help"]


def test_overview_names_every_command(qkvc):
    text = qkvc("--help").out
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", text, re.M), command
    assert qkvc("help").out == text == qkvc("-h").out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(qkvc, command):
    result = qkvc(command, "--help")
    assert result.out.startswith(f"qkvc {command}: ")
    assert f"Usage: qkvc {command}" in result.out and "Exit codes:" in result.out and not result.err
    assert qkvc("help", command).out == result.out
    assert max(map(len, result.out.splitlines())) <= 120


@pytest.mark.parametrize("command", COMMANDS)
def test_documentation_names_every_option(qkvc, command):
    """Options of docs/command-line.md exist, and every command stands there."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert f"`{command}" in page or f"`version`, `help`" in page
    everywhere = "".join(qkvc(c, "--help").out for c in COMMANDS)
    for option in re.findall(r"`(--[a-z0-9-]+)", page):
        assert option in everywhere, option


def options_of(text):
    """Name: (letter, word for its value) of each option of a help text."""
    rows = re.findall(r"^  (?:-(\w)|  )[, ] --([\w-]+)(?: (\S+))?(?:  .*)?$", text, re.M)
    return {name: (letter, word) for letter, name, word in rows}


def test_options_are_spelled_alike(qkvc):
    """An option has the same letter, and takes a value or none, in every command that has it; a letter means one thing
    in a command."""
    seen = {}
    for command in COMMANDS:
        options = options_of(qkvc(command, "--help").out)
        assert {"help", "device", "arch", "tuned-dir", "cache-dir"} <= set(options), command
        letters = [letter for letter, _ in options.values() if letter]
        assert len(letters) == len(set(letters)), (command, options)
        for name, (letter, word) in options.items():
            first, where = seen.setdefault(name, ((letter, bool(word)), command))
            assert first == (letter, bool(word)), (name, where, command)


@pytest.mark.parametrize("command", COMMANDS)
def test_near_options_are_named(qkvc, command):
    """Each option with two letters swapped: the message names it, or another that is as near."""
    options = options_of(qkvc(command, "--help").out)
    for name in options:
        wrong = name[:1] + name[2:3] + name[1:2] + name[3:] if len(name) > 3 else name + "x"
        if wrong in options:
            continue
        result = qkvc(command, "--" + wrong, code=2)
        assert f"{command} has no option --{wrong}" in result.err and not result.out, result
        assert len(name) < 3 or "; did you mean --" in result.err, result


def test_help_wins_over_missing_arguments(qkvc):
    assert qkvc("run", "--help").out == qkvc("run", "spec.yaml", "-h").out


@pytest.mark.parametrize("words, says", [
    ([], "no command"),
    (["chekc"], "did you mean check?"),
    (["frobnicate"], "no command 'frobnicate'"),
    (["--device", "emu", "run"], "the command comes first"),
    (["help", "biuld"], "did you mean build?"),
    (["gen"], "gen needs SPEC"),
    (["gen", "a", "b"], "'b' is too many"),
    (["version", "x"], "'x' is too many"),
    (["run", "x.yaml", "--sed", "1"], "did you mean --seed?"),
    (["run", "x.yaml", "--zzzzzz"], "run has no option --zzzzzz"),
    (["run", "x.yaml", "-z"], "run has no option -z"),
    (["run", "x.yaml", "--seed"], "--seed needs a value: --seed N"),
    (["run", "x.yaml", "--seed", "-1"], "whole number"),
    (["run", "x.yaml", "--q", "1e3"], "whole number"),
    (["run", "x.yaml", "--tolerance", "0,1"], "--tolerance takes a number"),
    (["run", "x.yaml", "--json=1"], "--json takes no value"),
    (["bench", "x.yaml", "--unaligned"], "bench has no option --unaligned"),
    (["explain", "x.yaml", "--mask", "--candidates", "3"], "two questions"),
    (["explain", "x.yaml", "--mask", "--effort", "full"], "--effort goes with --candidates"),
    (["cache", "verfy"], "did you mean verify?"),
    (["tuned", "marge"], "did you mean merge?"),
    (["tuned"], "tuned needs ls|check|merge|path"),
    (["tuned", "check", "x.yaml", "--json"], "tuned check takes no --json"),
    (["tuned", "ls", "-o", "x"], "tuned ls takes no --output"),
    (["tuned", "path", "x.yaml"], "'x.yaml' is too many"),
    (["pack", "time", "x.pack", "--json"], "pack time takes no --json"),
    (["pack", "ls", "x.pack", "--repeats", "5"], "pack ls takes no --repeats"),
    (["tuned", "check"], "tuned check needs FILE"),
    (["tuned", "merge", "x.yaml"], "merge needs -o DIR"),
    (["cache"], "cache needs ls|verify|gc|path|export|clear"),
    (["cache", "clear", "--dry-run"], "cache clear takes no --dry-run"),
    (["cache", "gc", "--invalid"], "cache gc takes no --invalid"),
    (["cache", "ls", "x.yaml"], "'x.yaml' is too many"),
    (["cache", "gc", "--older-than", "30"], "such as 30d"),
    (["cache", "gc", "--max-bytes", "1G"], "whole number"),
    (["cache", "export"], "--output DIR"),
    (["completion", "fish"], "completion is there for bash"),
    (["run", "specs/minilm_l6.yaml", "--device", "none"], "device none"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--batch", "3"], "--batch needs --q or --kv"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--workload", "sentense"], "did you mean sentence?"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--workload", "sentence", "--q", "3"], "--workload gives the sizes"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", "3", "--param", "x=1"], "has no parameter 'x'"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", "3", "--param", "x"], "name=value"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", "3", "--lse-out", "x"], "does not ask for lse"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", "3", "--sink-file", "x"], "has no sink"),
    (["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", "3", "--v-scale-file", "x"], "has no kv_scale"),
])
def test_usage_errors(qkvc, words, says):
    result = qkvc(*words, code=2)
    assert says in result.err, result
    assert not result.out, result


def test_missing_spec_is_a_spec_error(qkvc):
    for command in ("check", "gen", "build", "run", "explain"):
        result = qkvc(command, "no/such/spec.yaml", code=3)
        assert "no/such/spec.yaml" in result.err, result


def test_bad_spec_prints_all_errors(qkvc, bad):
    for command in ("check", "gen", "build", "explain"):
        result = qkvc(command, bad, code=3)
        assert f"{bad}:5:" in result.err and f"{bad}:7:" in result.err, result
        assert "^" in result.err and "did you mean" in result.err, result


def test_check_goes_through_all_files(qkvc, small, bad):
    result = qkvc("check", small, bad, "no/such.yaml", small, code=3)
    assert result.out.count("ok") == 2 and f"{bad}:5:" in result.err and "no/such.yaml" in result.err, result


def test_unknown_device(qkvc):
    result = qkvc("run", "specs/minilm_l6.yaml", "--device", "tpu", code=None)
    assert result.code in (1, 2, 5) and "tpu" in result.err, result


@needs_no_gpu
def test_no_gpu(qkvc):
    result = qkvc("run", "specs/minilm_l6.yaml", "--device", "cuda", code=5)
    assert "driver" in result.err or "GPU" in result.err, result
    assert "emu" in result.err, "the way out is named"
    assert qkvc("run", "specs/minilm_l6.yaml", "--q", "8", env={"QKV_DEVICE": "cuda"}, code=5)


def test_output_to_a_full_disk(qkvc):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([QKVC, "gen", "specs/minilm_l6.yaml"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "standard output cannot be written" in done.stderr


def test_a_device_that_fails_is_not_removed(qkvc, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    data = tmp_path / "d.csv"
    data.write_text("workload,median_us\nw,1\n")
    for words in (["gen", "specs/minilm_l6.yaml", "-o", link], ["report", data, "-o", link],
                  ["explain", "specs/minilm_l6.yaml", "--svg", link],
                  ["run", "specs/minilm_l6.yaml", "--device", "emu", "--q", 8, "--out", link]):
        result = qkvc(*words, code=1)
        assert "full: No space left on device" in result.err and link.is_symlink(), result


def test_broken_pipe_is_quiet():
    done = subprocess.run(["bash", "-c", '"$0" gen specs/minilm_l6.yaml | head -n 1', QKVC], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1 and not done.stderr, done


def test_no_colour_and_no_progress_in_pipes(qkvc, small):
    for words in (["build", small, "--device", "emu"], ["check", small], ["cache", "ls"], ["chekc"]):
        result = qkvc(*words, code=None, env={"TERM": "xterm"})
        assert "\033" not in result.out + result.err and "\r" not in result.out + result.err, result


def test_bash_completion(qkvc):
    script = qkvc("completion", "bash").out
    probe = script + '\nCOMP_WORDS=(qkvc buil); COMP_CWORD=1; _qkvc; echo "${COMPREPLY[*]}"' \
        '\nCOMP_WORDS=(qkvc cache v); COMP_CWORD=2; _qkvc; echo "${COMPREPLY[*]}"' \
        '\nCOMP_WORDS=(qkvc run --sch); COMP_CWORD=2; _qkvc; echo "${COMPREPLY[*]}"\n'
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True)
    assert done.stdout.split("\n")[:3] == ["build", "verify", "--schedule"], done


def test_comma_decimal_locale(qkvc, small):
    plain = qkvc("gen", small).out
    for locale in ("de_DE.UTF-8", "fr_FR.utf8", "C.UTF-8"):
        assert qkvc("gen", small, env={"LC_ALL": locale}).out == plain
        result = qkvc("run", small, "--device", "emu", "--q", "8", "--json", "--tolerance", "0.5", env={"LC_ALL": locale})
        assert result.json()["tolerance"] == 0.5


def test_runs_from_another_folder(qkvc, tmp_path):
    assert "ok" in qkvc("check", ROOT / "specs" / "minilm_l6.yaml", cwd=tmp_path).out
    result = qkvc("run", ROOT / "specs" / "minilm_l6.yaml", "--device", "emu", "--q", "8", "--out", "o.npy", cwd=tmp_path)
    assert (tmp_path / "o.npy").exists(), result


def test_a_spec_named_in_utf8(qkvc, tmp_path, small):
    path = tmp_path / "späte Größe.yaml"
    path.write_text(small.read_text())
    assert f"{path}: ok" in qkvc("check", path).out
    assert qkvc("check", path, "--json").json()[0]["file"] == str(path)


def test_schema_is_a_schema(qkvc):
    schema = __import__("json").loads(qkvc("schema").out)
    assert schema["$schema"].startswith("http")


def test_doctor(qkvc):
    result = qkvc("doctor", code=None)
    assert result.code in (0, 1) and "cache" in result.out.lower(), result
    assert isinstance(qkvc("doctor", "--json", code=result.code).json(), dict)


def test_explain(qkvc):
    text = qkvc("explain", "specs/llama3_8b.yaml").out
    assert "attention_forward_sm80" in text
    assert isinstance(qkvc("explain", "specs/llama3_8b.yaml", "--json").json(), dict)


def test_check_json(qkvc, small, bad):
    rows = qkvc("check", small, bad, "no/such.yaml", "--json", code=3).json()
    assert [row["ok"] for row in rows] == [True, False, False]
    assert rows[0]["spec"]["name"] == "small" and rows[1]["diagnostics"] and "error" in rows[2]


def test_check_canonical_is_a_fixed_point(qkvc, small, tmp_path):
    once = qkvc("check", small, "--canonical").out
    again = tmp_path / "canonical.yaml"
    again.write_text(once.replace("attention:", "name: small\nattention:", 1))  # the name is no part of it
    assert qkvc("check", again, "--canonical").out == once


def test_explain_does_not_count_for_minutes(qkvc, small):
    text = small.read_text().replace("mask: causal", "mask: (q * k) % 7 < 3")
    small.write_text(text + "  - {name: long, batch: 1, q: 1000000, kv: 1000000}\n")
    result = qkvc("explain", small, timeout=10)
    assert "one by one" in result.out.splitlines()[-1] and "?" in result.out.splitlines()[-1], result
    workloads = qkvc("explain", small, "--json", timeout=10).json()["workloads"]
    assert [w["flops"] is None for w in workloads] == [False, False, True]
