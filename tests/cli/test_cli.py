"""The command line: usage, mistakes in one line, and what `--help` costs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from harness import cli as cli_module
from harness.base.errors import HarnessError
from harness.cli import VERBS, cli, output, verb
from harness.cli.run import shown
from harness.spec import reading
from tests.builders.servers import Request, serving


def knee(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_a_run_without_an_endpoint_is_a_usage_error_that_names_the_simulated_one() -> None:
    got = knee("run")
    assert got.exit_code == 2
    assert "--url sim:" in got.output


@pytest.mark.parametrize(
    "verb", [[], ["run"], ["predict"], ["report"], ["fit"], ["sim"], ["calibrate"], ["calibrate", "model"]]
)
def test_help_is_there_for_every_verb(verb: list[str]) -> None:
    got = knee(*verb, "--help")
    assert got.exit_code == 0
    assert got.output.startswith("Usage:")


@pytest.mark.parametrize("name", VERBS)
def test_the_list_of_verbs_has_the_first_sentence_of_each_verb_s_help(name: str) -> None:
    command, (_, line) = verb(name), VERBS[name]
    assert (command.name, command.get_short_help_str(63)) == (name, line), "63 letters fit beside the names"


def test_help_imports_no_verb() -> None:
    code = (
        "import sys; from harness.cli import cli; cli(['--help'], standalone_mode=False);"
        "print(*[name for name in sys.modules if name.startswith('harness')], file=sys.stderr)"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in got.stdout for name in VERBS)
    few = {"harness", "harness.cli", "harness.base", "harness.base.terminal"}
    assert set(got.stderr.split()) == few


def test_an_unknown_verb_is_a_usage_error_that_names_the_nearest() -> None:
    got = knee("predct")
    assert got.exit_code == 2
    assert "predict" in got.output


def test_the_options_of_a_run_stand_under_headings_each_once() -> None:
    text = knee("run", "--help").output
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Common options:", "Endpoint:", "Workload:", "Load:", "Limits:", "Prediction and cost:", "Simulated endpoint:",
        "Output:",
    ]  # fmt: skip
    options = [option for option in verb("run").params if isinstance(option, click.Option)]
    for option in options:
        begins = tuple(f"{name}{end}" for name in option.opts for end in " ,")
        assert sum(line.strip().startswith(begins) for line in text.splitlines()) == 1
    shown = text.partition("Examples:")[2].partition("Common options:")[0]
    examples = [line.strip() for line in shown.splitlines() if line.strip()]
    assert len(examples) == 5
    for example in examples:
        got = knee(*shlex.split(example)[1:], "--print-scenario")
        assert got.exit_code == 0, got.output


def test_the_printed_scenario_repeats_the_flags() -> None:
    got = knee(
        "run", "--url", "http://h:1", "--levels", "1,2,4", "--level-seconds", "500ms", "--input-tokens", "1k",
        "--header", "X-Team: env:TEAM", "--extra-body", '{"top_p": 0.5}', "--server-meta", "flags=--x=1",
        "--omit", "ignore_eos, stream_options.include_usage", "--omit", "temperature",
        "--print-scenario",
    )  # fmt: skip
    assert got.exit_code == 0, got.output
    read = reading.build(tomllib.loads(got.output), place="printed")
    assert (read.ramp.levels, read.ramp.level_seconds, read.workload.input_tokens) == ([1, 2, 4], 0.5, 1000)
    assert read.target.headers == {"X-Team": "env:TEAM"}
    assert read.target.extra_body == {"top_p": 0.5}
    assert read.target.omit == ["ignore_eos", "stream_options.include_usage", "temperature"]
    assert read.target.server_meta == {"flags": "--x=1"}


def test_a_printed_scenario_holds_no_secret_and_asks_for_it_when_it_is_run(tmp_path: Path) -> None:
    options = ["--header", "X-Key: s3cret", "--header", "User-Agent: me", "--extra-body", '{"api_key": "s3cret"}']
    got = knee("run", "--url", "http://127.0.0.1:1", *options, "--print-scenario")
    assert "s3cret" not in got.output
    read = reading.build(tomllib.loads(got.output), place="printed").target
    assert (read.headers, read.extra_body) == (
        {"X-Key": "(not stored)", "User-Agent": "me"},
        {"api_key": "(not stored)"},
    )
    (tmp_path / "s.toml").write_text(got.output)
    again = knee("run", str(tmp_path / "s.toml"))
    assert again.output == (
        "error: $.target.headers.X-Key: its value is not stored; give it again, or name it: env:VARIABLE\n"
    )


def test_the_command_is_kept_without_what_may_be_secret() -> None:
    arguments = ["run", "--url", "http://h", "--header", "X-Key: a", "--header=X-Id:b", '--extra-body={"token": "c"}']
    secrets = ["sk-0123456789", "on"]
    assert shown([*arguments, "--server-meta", "flags=--api-key sk-0123456789 --on"], secrets) == [
        "run", "--url", "http://h", "--header", "X-Key: (not stored)", "--header", "X-Id: (not stored)",
        "--extra-body", '{"token": "(not stored)"}', "--server-meta", "flags=--api-key (hidden) --on",
    ]  # fmt: skip


def test_a_bug_s_traceback_repeats_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def bug() -> None:
        raise RuntimeError("it said sk-0123456789")

    monkeypatch.setattr(output, "secrets", ["sk-0123456789"])
    monkeypatch.setattr(cli_module, "cli", bug)
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert ended.value.code == 70
    assert capsys.readouterr().err.endswith("RuntimeError: it said (hidden)\n")


def test_flags_lie_over_the_scenario_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('name = "mine"\n[workload]\nseed = 4\noutput_tokens = 9\n')
    got = knee("run", str(file), "--url", "http://h:1", "--random-output-len", "11", "--print-scenario")
    read = reading.build(tomllib.loads(got.output), place="printed")
    assert (read.name, read.workload.seed, read.workload.output_tokens) == ("mine", 4, 11)


def test_max_num_seqs_is_the_simulated_endpoint_s_too() -> None:
    got = knee("run", "--url", "sim:", "--max-num-seqs", "5", "--print-scenario")
    read = reading.build(tomllib.loads(got.output), place="printed")
    assert (read.sim.max_num_seqs, read.hardware.max_num_seqs) == (5, 5)


def test_what_a_prediction_needs_is_in_the_scenario() -> None:
    got = knee(
        "run", "--url", "http://h:1", "--gpu", "host", "--host-cpus", "0,2-3", "--gpus", "4", "--tp", "2",
        "--dtype", "fp8", "--kv-dtype", "fp8", "--calibration", "p.json", "--print-scenario",
    )  # fmt: skip
    assert got.exit_code == 0, got.output
    hardware = reading.build(tomllib.loads(got.output), place="printed").hardware
    assert (hardware.gpu, hardware.host_cpus, hardware.gpus, hardware.tp) == ("host", [0, 2, 3], 4, 2)
    assert (hardware.dtype, hardware.kv_dtype, hardware.calibration) == ("fp8", "fp8", "p.json")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "none.toml", "--url", "x"], "error: none.toml: No such file or directory; give the path of"),
        (["run", "--url", "ftp://x"], "error: ftp://x: not an http address; write it like http://host:8000"),
        (["run", "--url", "http://127.0.0.1:1"], "error: http://127.0.0.1:1: nothing answers there"),
        (["run", "--url", "x", "--levels", "1,x"], "error: --levels: 'x' is not a count"),
        (["run", "--url", "x", "--level-seconds", "soon"], "error: --level-seconds: 'soon' is not a duration"),
        (["run", "--url", "x", "--extra-body", "{"], "error: --extra-body: not JSON"),
        (["run", "--url", "x", "--header", "sk-1"], "error: --header: not a name and a value; write it like 'Name: v"),
        (["run", "sk-1", "--header", "X-Key:"], "error: --header: not a name and a value"),
        (["run", "--url", "http://me:pa/ss@h"], "error: --url: an address with a key in it would be stored"),
        (
            ["run", "--url", "http://h", "--api-key-env", "sk-1"],
            "error: --api-key-env: it is not the name of a variable",
        ),
        (
            ["run", "--url", "http://h", "--api-key-env", "abc1"],
            "error: --api-key-env: no variable of that name is set",
        ),
        (
            ["run", "--url", "x", "--max-dollars", "5"],
            "error: --max-dollars: no price to count by; give --price",
        ),
        (["run", "--url", "x", "--price-per-mtok", "1"], "error: --price-per-mtok: not two or three prices"),
        (["run", "--url", "x", "--price-per-mtok", "a,b"], "error: --price-per-mtok: 'a,b' is not a list of prices"),
        (
            ["run", "--url", "x", "--output-tokens", "0"],
            "error: --output-tokens: '0' is not a length: 0 is not a whole number from 1 on",
        ),
        (["run", "--url", "sim:", "--profile", "nope"], "error: --profile: 'nope' is not MODEL/GPU"),
        (["run", "--url", "sim:", "--profile", "llama-3.1-8b/h1000-sxm"], "error: --profile: unknown GPU 'h1000-sxm'"),
        (["run", "--url", "x", "--tp", "0"], "error: --tp: it must be 1 or more"),
        (["run", "--url", "x", "--host-cpus", "a"], "error: --host-cpus: 'a' is no list of processors"),
        (
            ["run", "--url", "x", "--gpu", "l4", "--host-cpus", "0"],
            "error: --host-cpus: it is used with gpu = host only",
        ),
        (["sim", "--calibration", "none.json"], "error: none.json: No such file or directory"),
        (["calibrate", "model", "nowhere"], "error: nowhere: no such result folder"),
        (["report", "nowhere"], "error: nowhere: no such result folder"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(arguments: list[str], line: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    got = CliRunner().invoke(cli, arguments)
    assert got.exit_code == 1, got.output
    assert got.output.startswith(line)
    assert got.output.count("\n") == 1
    assert not {"sk-1", "abc1", "pa", "ss"} & set(re.findall(r"[\w-]+", got.output)), "it may be a key"
    assert list(tmp_path.rglob("*.json")) == [], "nothing was measured: nothing is left behind"


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    got = knee("run", "--url", "sim:", "--out", str(tmp_path))
    assert (got.exit_code, "not empty" in got.output) == (1, True)
    assert (tmp_path / "mine").read_text() == "x"


def test_a_header_s_value_reaches_neither_disk_nor_error(tmp_path: Path) -> None:
    def script(r: Request) -> None:
        assert r.header("X-Key") == "s3cret"
        r.answer(401, b'{"error":"who are you"}')

    with serving(script) as port:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run", "--url", f"http://127.0.0.1:{port}", "--header", "X-Key: s3cret"],
            capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "s3cret" not in done.stdout + done.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_help_may_be_asked_for_by_a_verb() -> None:
    assert knee("help").output == knee("--help").output
    assert knee("help", "predict").output == knee("predict", "--help").output


def test_the_names_that_people_try_first_are_names_of_options() -> None:
    dry, wordy = knee("run", "sim:", "--dry-run"), knee("run", "sim:", "-v", "--print-scenario")
    assert dry.stdout == wordy.stdout == knee("run", "sim:", "--print-scenario").stdout
    assert wordy.stderr == "note: nothing is measured, so --verbose has no effect\n"
    idle = knee("run", "http://h:1", "--print-scenario", "--live", "--json", "--out", "x", "--yes").stderr
    assert idle == "note: nothing is measured, so --out, --json, --live, --yes has no effect\n"
    assert "[sim]" in dry.stdout
    assert "[sim]" not in knee("run", "http://h:1", "--print-scenario").stdout


def test_a_page_is_opened_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open_new_tab", lambda address: bool(opened.append(address)) or True)
    page = tmp_path / "report.html"
    with pytest.raises(HarnessError, match="no page to open; leave --no-plots out"):
        output.open_in_browser(page)
    page.write_text("")
    output.open_in_browser(page)
    assert opened == [page.as_uri()]
