"""Quickstart lines of other tools, as their own documentation prints them, given to `knee run` without the tool's name.

quickstarts.toml has them. What each becomes is compared with the same in Knee's words; the slow test measures
those that take a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from harness.cli import cli, familiar, theirs, verb
from harness.spec import reading

LINES = tomllib.loads(Path(__file__).with_name("quickstarts.toml").read_text())["line"]
LIGHT = [line for line in LINES if "heavy" not in line]


def named(line: dict[str, str]) -> str:
    return line["from"].partition(",")[0]


def resolved(line: str, folder: Path) -> object:
    """Return the scenario of a line, with the places of this test in it."""
    file = folder / "data.jsonl"
    file.write_text(json.dumps({"prompt": "What is the capital of India?"}) + "\n")
    text = line.replace("PORT", "8000").replace("URL", "http://127.0.0.1:8000").replace("FILE", str(file))
    got = CliRunner().invoke(cli, ["run", *shlex.split(text), "--print-scenario"])
    assert got.exit_code == 0, got.output
    return reading.build(tomllib.loads(got.stdout), place=line)


@pytest.mark.parametrize("line", LINES, ids=named)
def test_a_line_of_another_tool_means_here_what_it_means_there(
    line: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(theirs.API_KEY, "")
    assert resolved(line["theirs"], tmp_path) == resolved(line["ours"], tmp_path)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    words = [sys.executable, "-m", "harness", "sim", "--port", str(number), "--speed", "20", "--max-num-seqs", "256"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{number}/v1/models"):
                break
            assert server.poll() is None
            time.sleep(0.05)
        yield number
        server.terminate()


def test_at_least_twenty_lines_are_measured() -> None:
    assert len(LIGHT) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("line", LIGHT, ids=named)
def test_a_line_of_another_tool_ends_in_figures(line: dict[str, str], port: int, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    rows = [{"prompt": f"What is the capital of {name}?"} for name in ("India", "Iran", "China")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (
        line["theirs"].replace("PORT", str(port)).replace("URL", f"http://127.0.0.1:{port}").replace("FILE", str(file))
    )
    words = [*shlex.split(text), "--out", str(tmp_path / "run"), "--no-plots", "--json"]
    got = subprocess.run([sys.executable, "-m", "harness", "run", *words], capture_output=True, text=True, check=False)
    assert got.returncode in (0, 3), got.stderr
    level = json.loads(got.stdout)["levels"][-1]
    assert level["output_tokens_per_s"]["mean"] > 0
    assert level["ttft_s"]["mean"] > 0
    assert "Traceback" not in got.stderr


def options() -> familiar.Ours:
    named = [param for param in verb("run").params if isinstance(param, click.Option)]
    known = {name for param in named for name in (*param.opts, *param.secondary_opts)}
    return familiar.Ours(known, {name for param in named if param.is_flag for name in param.opts}, measures=True)


def test_what_is_left_out_is_said_with_its_reason_in_one_line() -> None:
    got = familiar.read(["--backend", "vllm", "--num-prompts", "5", "--ignore-eos", "--save-result"], options())
    assert got.notes[-1] == (
        "left out: --ignore-eos (answers have the length that is asked for); "
        "--save-result (every run writes a result folder)"
    )
    assert got.notes[0].startswith("read as vllm bench serve's: knee run --api completions --max-requests 5 ")


def test_every_option_that_cannot_be_taken_is_named_at_once() -> None:
    got = CliRunner().invoke(cli, shlex.split("run http://h --lora-modules a b --concurency 4 --stages 1s:4"))
    assert got.exit_code == 2
    assert got.stderr == (
        "error: --lora-modules: no such option; write [[class]] tables with a model each, as docs/workloads.md shows · "
        "--concurency: no such option; did you mean --concurrency? · --stages: no such option; give --arrivals "
        "'series(0s:10,60s:40)'; without --levels the load rises by itself\n"
    )


def test_a_name_that_is_knee_s_too_is_read_by_its_value() -> None:
    knee, guide = ["sim:", "--profile", "llama-3.1-8b/l40s"], ["URL", "--profile", "kind=concurrent,streams=4"]
    assert familiar.read(knee, options()).arguments == knee
    assert familiar.read(guide, options()).arguments == ["URL", "--levels", "4"]
    assert familiar.read(["URL", "--max-concurrency", "64"], options()).arguments == ["URL", "--max-concurrency", "64"]


def test_a_key_is_not_in_the_line_that_is_printed_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(theirs.API_KEY, "")
    got = familiar.read(["--api-base", "http://h", "--api-key", "sk-secret-1", "--task", "text-to-text"], options())
    assert "sk-secret-1" not in " ".join([*got.arguments, *got.notes])
    assert got.arguments[-2:] == ["--api-key-env", theirs.API_KEY]


def test_the_table_names_options_of_knee_and_parts_that_are_read() -> None:
    ours = options().options
    for tool in familiar.tools():
        for name, row in tool.options.items():
            said = " ".join([row.is_, row.instead, *row.values.values(), row.read.partition(" ")[2]])
            assert {*re.findall(r"--[a-z][a-z-]+", said)} <= ours, (tool.name, name)
            assert (
                sum(map(bool, (row.is_, row.body, row.values or row.part or row.instead, row.read, row.left))) == 1
            ), name
            assert row.read.partition(" ")[0] in ("", "fields", "pairs")
            assert (row.when is not None) == (name in ours), (tool.name, name)
