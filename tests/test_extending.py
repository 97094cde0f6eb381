"""The packages that docs/extending.md shows work as they stand there, installed beside Knee and not in it.

All blocks of the page make one package: Python by the file that its first line names, TOML by its entry points.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.analysis import rules
from harness.base import plugins
from harness.base.errors import HarnessError
from harness.cli import cli
from harness.dialects import DIALECTS, _plugin
from harness.library.measurement import export, send
from harness.results import exporters, readers
from harness.run.resume import must_be_named
from harness.spec.reading import build
from harness.spec.scenario import Scenario
from harness.workload.dataset.dataset import open_dataset
from harness.workload.request import Request
from tests.builders.outside import install
from tests.builders.servers import Request as Asked
from tests.builders.servers import serving
from tests.builders.stacks import models
from tests.builders.summaries import full, stored

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
MODULES = dict(re.findall(r"```python\n# (knee_acme/\S+\.py)\n(.*?)```", PAGE, re.DOTALL))
DOORS: dict[str, dict[str, str]] = {}  # names and targets by group
for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
    DOORS |= tomllib.loads(block)["project"].get("entry-points", {})
LOG = (
    '{"asked": "Why?", "length": 40, "second": 1700000000.5}\n{"asked": "How?", "length": 7, "second": 1700000002.5}\n'
)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that has the package, which is on sys.path."""
    folder = install(tmp_path / "site", "knee-acme", MODULES, DOORS)
    monkeypatch.syspath_prepend(folder)
    yield folder
    _plugin.cache_clear()
    rules._registered.pop("knee_acme.rules", None)
    rules._by_code.cache_clear()
    for name in [each for each in sys.modules if each.startswith("knee_acme")]:
        del sys.modules[name]


def knee(*arguments: str, site: Path, within_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which finds the package where pip would have put it."""
    command = [sys.executable, "-m", "harness", *arguments]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(Path(__file__).parent.parent)])}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=within_s, check=False)


def test_every_door_that_the_page_shows_is_one_and_every_section_has_its_package() -> None:
    assert set(DOORS) <= {
        plugins.DATASETS, plugins.DIALECTS, plugins.EXPORTERS, plugins.READERS, plugins.RULES,
    }  # fmt: skip
    assert re.findall(r"^## .*`(knee\.\w+)`$", PAGE, re.MULTILINE) == list(DOORS)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, of in DOORS.items() for name in of])
def test_what_stands_behind_a_door_is_loaded_by_its_name(acme: Path, group: str, name: str) -> None:
    assert plugins.names(group) == [name]
    assert "knee_acme" not in sys.modules, "listing names runs no code"
    assert plugins.find(group, name) is not None


def test_a_dialect_writes_the_body_and_reads_the_events(acme: Path) -> None:
    dialect = DIALECTS["acme"]
    body = dialect.encoder("m").encode(Request(number=0, prompt="Capital of France?", output_tokens=2))
    assert msgspec.json.decode(body) == {"model": "m", "limit": 2, "input": "Capital of France?"}
    decoder = dialect.decoder()
    assert decoder.feed(b'data: {"text": " Paris"}\n\n', 5) == 1
    assert decoder.feed(b'data: {"text": ".", "stop": "length", "tokens_in": 9, "tokens_out": 2}\n\n', 9) == 1
    answer = decoder.end(10)
    assert (list(answer.arrivals), answer.input_tokens, answer.output_tokens) == ([5, 9], 9, 2)
    assert (answer.error, answer.finish_reason) == ("", "length")


def test_a_reader_gives_rows_with_their_times(acme: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(LOG)
    rows = list(open_dataset(file, "acme").rows())
    assert [(row.prompt, row.output_tokens, row.at_s) for row in rows] == [("Why?", 40, 0.0), ("How?", 7, 2.0)]
    file.write_text('{"asked": " ", "length": 1, "second": 0}\n')
    with pytest.raises(HarnessError, match="line 1, byte 0: not a line of Acme's log: its question is empty"):
        list(open_dataset(file, "acme").rows())
    with pytest.raises(HarnessError, match="none of its fields is known to hold prompts"):
        open_dataset(file)


def test_a_scenario_may_name_them_and_a_folder_may_be_read_without_them(acme: Path) -> None:
    tree = {"target": {"api": "acme"}, "workload": {"dataset": {"path": "log.jsonl", "format": "acme"}}}
    asked = build(tree, place="x.toml")
    assert asked.target.api == "acme"
    assert "knee_acme" not in sys.modules
    stored = msgspec.json.encode({"target": {"api": "of another machine"}})
    assert msgspec.json.decode(stored, type=Scenario).target.api == "of another machine"


@pytest.mark.parametrize(
    ("named", "fact"),
    [
        ({"api": None, "dataset": None}, "only the folder names the plug-in of --api acme; add --api acme if"),
        ({"api": "acme", "dataset": None}, "only the folder names the plug-in of --dataset acme:log.jsonl"),
        ({"api": "chat", "dataset": None}, "--api chat: the run was begun with acme; give that"),
        ({"api": "acme", "dataset": "acme:log.jsonl"}, ""),
    ],
)
def test_a_folder_alone_loads_no_package_when_its_run_is_resumed(
    acme: Path, named: dict[str, str | None], fact: str
) -> None:
    tree = {"target": {"api": "acme"}, "workload": {"dataset": {"path": "log.jsonl", "format": "acme"}}}
    begun = build(tree, place="x.toml")
    if fact:
        with pytest.raises(HarnessError) as error:
            must_be_named(begun, **named, place="results/run")  # type: ignore[arg-type]
        assert fact in str(error.value)
    else:
        must_be_named(begun, **named, place="results/run")  # type: ignore[arg-type]
    assert "knee_acme" not in sys.modules


@pytest.mark.slow
def test_the_first_requests_of_a_dataset_of_another_package(acme: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(LOG)
    done = knee("run", "--dataset", f"acme:{file}", "--print-requests", "2", site=acme)
    assert [json.loads(line)["output_tokens"] for line in done.stdout.splitlines()] == [40, 7], done.stderr
    wrong = knee("run", "--dataset", f"acne:{file}", "--print-requests", "2", site=acme)
    assert (wrong.returncode, wrong.stderr) == (1, f"error: {file}: unknown format 'acne'; did you mean 'acme'?\n")


@pytest.mark.slow
def test_an_api_of_another_package_is_measured(acme: Path, tmp_path: Path) -> None:
    def script(asked: Asked) -> None:
        if asked.path == "/v1/models":
            asked.answer(200, models("m"))
        elif asked.path == "/v1/acme/write":
            body = json.loads(asked.body)
            end = {"stop": "length", "tokens_in": len(body["input"].split()), "tokens_out": body["limit"]}
            events = [{"text": " a"} | (end if i == body["limit"] - 1 else {}) for i in range(body["limit"])]
            asked.stream(*(b"data: %b\n\n" % json.dumps(each).encode() for each in events))
        else:
            asked.answer(404, b"{}")

    with serving(script) as port:
        load = ["--levels", "1", "--level-seconds", "0.5", "--input-tokens", "20", "--output-tokens", "4", "--no-plots"]
        url, out = f"http://127.0.0.1:{port}", str(tmp_path / "out")
        done = knee("run", "--api", "acme", "--url", url, *load, "--workers", "1", "--out", out, site=acme)
    assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy for the client
    (level,) = json.loads((tmp_path / "out" / "summary.json").read_text())["levels"]
    assert (level["errors"], level["requests"] > 0, level["input_tokens_mean"]) == (0, True, 20.0)
    shown = knee("report", out, "--no-plots", site=tmp_path)  # which has no such package
    assert shown.returncode in (0, 3), shown.stderr
    wrong = knee("run", "--api", "acne", "--url", url, site=acme)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --api: 'acne' is not one of 'chat', 'completions', ")


# ---- files of another tool, and results for another -----------------------------------------------------------------


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    """A file of Acme's load test."""
    line = {"acme": 2, "answered": 300, "wait_ms": {"average": 60, "p99": 118}}
    file = tmp_path / "log.json"
    file.write_text("".join(json.dumps(line | {"users": n, "rate": 80.0 * n}) + "\n" for n in (1, 2, 4, 8)))
    return file


def test_a_reader_of_another_package_maps_its_names(acme: Path, loads: Path) -> None:
    found = readers.read(loads, "acme")
    assert [(each.concurrency, each.output_tokens_per_s) for each in found.levels] == [
        (1.0, 80.0), (2.0, 160.0), (4.0, 320.0), (8.0, 640.0),
    ]  # fmt: skip
    assert found.levels[0].ttft_s.mean == pytest.approx(0.06)
    assert (found.levels[0].ttft_s.p99, found.levels[0].requests) == (pytest.approx(0.118), 300)


def test_the_content_of_a_file_loads_no_package(acme: Path, loads: Path) -> None:
    with pytest.raises(HarnessError, match="a file of no known tool"):
        readers.read(loads)
    assert "knee_acme" not in sys.modules
    with pytest.raises(HarnessError, match="no format 'acne'; did you mean 'acme'"):
        readers.read(loads, "acne")
    assert "knee_acme" not in sys.modules


def test_a_file_of_another_format_than_the_one_named_is_refused(acme: Path, loads: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no file of the format vllm; leave --format out"):
        readers.read(loads, "vllm")
    table = tmp_path / "table.csv"
    table.write_text("concurrency,output_tokens_per_s\n1,100\n2,190\n")
    assert len(readers.read(table, "csv").levels) == 2
    with pytest.raises(HarnessError, match="no file of the format acme"):
        readers.read(table, "acme")


def test_fit_and_compare_take_the_format_by_its_name(acme: Path, loads: Path) -> None:
    for stdin, arguments in (
        ("", ["fit", str(loads), "--format", "acme", "--json"]),
        (loads.read_text(), ["fit", "-", "--format", "acme", "--json"]),
        ("", ["compare", f"a={loads}", f"b={loads}", "--format", "acme", "--json"]),
    ):
        done = CliRunner().invoke(cli, arguments, input=stdin)
        assert done.exit_code in (0, 3), done.output
        assert json.loads(done.stdout)


def test_an_exporter_of_another_package_writes_and_sends(acme: Path, tmp_path: Path) -> None:
    folder, out = stored(tmp_path / "run"), tmp_path / "out"
    assert [path.name for path in export(folder, "acme", out)] == ["acme.json"]
    users = [level.concurrency for level in full().levels]
    assert json.loads((out / "acme.json").read_text()) == {"users": users, "simulated": False}
    assert send(folder, "acme", "http://127.0.0.1:1") == "http://127.0.0.1:1: 1 file"
    printed = CliRunner().invoke(cli, ["export", str(folder), "--to", "acme"])
    assert json.loads(printed.stdout) == {"users": users, "simulated": False}
    sent = CliRunner().invoke(cli, ["export", str(folder), "--to", "acme", "--out", "http://127.0.0.1:1"])
    assert (sent.exit_code, sent.stderr) == (0, "http://127.0.0.1:1: 1 file\n")


def test_an_unknown_exporter_is_a_usage_error_and_loads_no_package(acme: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", str(stored(tmp_path / "run")), "--to", "acne"])
    assert (done.exit_code, "'acne' is not one of 'csv', 'vllm'" in done.output) == (2, True)
    assert "knee_acme" not in sys.modules


def test_each_module_of_the_packages_is_registered() -> None:
    assert list(readers.built_in()) == [
        "sglang",
        "vllm",
        "guidellm",
        "aiperf",
        "inference-perf",
        "llm-d",
        "inferencex",
        "csv",
    ]
    assert all(exporters.find(name).text or exporters.find(name).files for name in exporters.names())


@pytest.mark.slow
def test_a_rule_is_applied_where_the_report_asks_for_it(acme: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(Path(__file__).parent / "data" / "demo", folder)
    before = knee("report", str(folder), "--no-plots", "--json", site=acme)
    quick = (acme / "knee_acme" / "rules.py").read_text().replace("fast < 1e-3", "fast < 1e9")
    (acme / "knee_acme" / "rules.py").write_text(quick)
    after = knee("report", str(folder), "--no-plots", "--json", "--rules", "acme", site=acme)
    assert [("acme_hurries" in run.stdout, run.returncode) for run in (before, after)] == [(False, 0), (True, 0)]
    wrong = knee("report", str(folder), "--no-plots", "--rules", "acne", site=acme)
    assert (wrong.returncode, wrong.stderr) == (1, "error: --rules: no rules are called 'acne'; installed: acme\n")
