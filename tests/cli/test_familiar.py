"""Options of other load generators, completion, and what `knee` says on an old Python."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from harness.cli import cli
from harness.spec import reading, scenario

URL = "http://h:8000"


def printed(line: str) -> scenario.Scenario:
    got = CliRunner().invoke(cli, [*shlex.split(line), "--print-scenario"])
    assert got.exit_code == 0, got.output
    return reading.build(tomllib.loads(got.stdout), place=line)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        # vllm bench serve
        (
            f"run --base-url {URL} --random-input-len 1024 --random-output-len 128 --request-rate 8 --burstiness 0.5 "
            "--max-concurrency 64 --num-prompts 1000 --seed 1",
            f"run --url {URL} --input-tokens 1024 --output-tokens 128 --rate 8 --arrivals 'gamma(0.5)' "
            "--max-concurrency 64 --max-requests 1000 --seed 1",
        ),
        (f"run {URL} --goodput ttft:500 tpot:50", f"run --url {URL} --slo ttft=500ms,tpot=50ms"),
        (f"run {URL} --input-len 512 --output-len=64", f"run --url {URL} --input-tokens 512 --output-tokens 64"),
        # GuideLLM
        (f"run --target {URL} --max-seconds 60", f"run --url {URL} --max-seconds 60s"),
        # AIPerf
        (
            f"run -m llama -u {URL} --concurrency 8 --request-count 200 --isl 512 --osl 64",
            f"run --model llama --url {URL} --levels 8 --max-requests 200 --input-tokens 512 --output-tokens 64",
        ),
        # hey, wrk
        (f"run -c8 -n 200 {URL}", f"run --url {URL} --levels 8 --max-requests 200"),
        # an address as it is typed
        ("run localhost:8000/v1", "run --url http://localhost:8000/v1"),
        (f"run {URL} --streaming", f"run --url {URL} --stream"),
        ("run chat sim:", "run chat --url sim:"),
        (f"run {URL} http://g:8000", f"run --url {URL} --url http://g:8000"),
    ],
)
def test_options_of_other_tools_do_what_they_do_there(theirs: str, ours: str) -> None:
    assert printed(theirs) == printed(ours)


def test_a_bound_of_the_search_is_told_from_a_level() -> None:
    got = CliRunner().invoke(cli, ["run", "http://127.0.0.1:1", "--max-concurrency", "64"])
    assert got.stderr.startswith("note: --max-concurrency 64 bounds the search; --levels 64 holds 64 in flight\n")
    quiet = CliRunner().invoke(cli, ["run", "http://127.0.0.1:1", "--max-concurrency", "64", "--quiet"])
    assert "note" not in quiet.stderr


@pytest.mark.parametrize(
    ("typed", "incomplete", "found"),
    [
        ([], "pre", ["predict"]),
        (["run"], "--lev", ["--level-seconds", "--levels"]),
        (["run"], "embed", ["embeddings"]),
        (["completion"], "z", ["zsh"]),
    ],
)
def test_commands_options_and_ready_scenarios_are_completed(
    typed: list[str], incomplete: str, found: list[str]
) -> None:
    kind = get_completion_class("bash")
    assert kind is not None
    items = kind(cli, {}, "knee", "_KNEE_COMPLETE").get_completions(typed, incomplete)
    assert sorted(item.value for item in items) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_s_script_asks_knee(shell: str) -> None:
    got = CliRunner().invoke(cli, ["completion", shell])
    assert got.exit_code == 0
    assert f"_KNEE_COMPLETE={shell}_complete" in got.output


def test_bash_can_read_its_script(tmp_path: Path) -> None:
    script = tmp_path / "knee.bash"
    script.write_text(CliRunner().invoke(cli, ["completion", "bash"]).output)
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (
            "sys.version_info = (3, 10, 4)",
            "error: this is Python 3.10: Knee needs 3.11 or later; install it, then run ",
        ),
        (
            "sys.modules['click'] = None",
            f"error: click is not installed for {sys.executable}; run {sys.executable} -m ",
        ),
    ],
)
def test_a_clone_that_cannot_run_says_why_in_one_line(before: str, line: str) -> None:
    code = f"import runpy, sys; {before}; runpy.run_module('harness', run_name='__main__')"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert got.returncode == 1
    assert got.stderr.startswith(line)
    assert got.stderr.count("\n") == 1
