"""`knee check` as it is called: folders and thresholds in, the answer, its files and its exit status out."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from click.testing import CliRunner, Result

from harness.cli import cli, verb
from harness.cli.decide import _wanted
from harness.decide.check import figures
from harness.decide.check.expression import Subject
from tests.cli.test_cli_compare import folder

ROOT = Path(__file__).parents[2]
SOUND = ROOT / "results" / "live-vllm-sweep-1"
PAGE = (ROOT / "docs" / "check.md").read_text()
WORKFLOW = ROOT / "docs" / "check-workflow.yml"


def knee(*words: str) -> Result:
    return CliRunner().invoke(cli, ["check", *words])


@pytest.mark.parametrize(
    ("thresholds", "status"),
    [
        (["plateau >= 1500"], 0),
        (["plateau >= 1500", "plateau >= 1850"], 3),
        (["plateau >= 1850", "plateau >= 2000"], 99),
    ],
)
def test_the_exit_status_is_that_of_the_gravest(thresholds: list[str], status: int, tmp_path: Path) -> None:
    done = knee(folder(tmp_path / "a"), *(word for text in thresholds for word in ("-t", text)))
    assert done.exit_code == status, done.output


def test_thresholds_of_a_file_join_those_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.txt"
    file.write_text("# speed\nknee >= 8\n")
    done = knee(folder(tmp_path / "a"), "-t", "plateau >= 1500", "--thresholds", str(file), "--json", "--quiet")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(each["threshold"], each["outcome"]) for each in found["decisions"]] == [
        ("plateau >= 1500", "met"), ("knee >= 8", "met"),
    ]  # fmt: skip


def test_a_wrong_name_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "thresholds.txt"
    file.write_text("knee >= 8\nplatau >= 3\n")
    done = knee(folder(tmp_path / "a"), "--thresholds", str(file))
    assert f"{file}:2: unknown figure 'platau'" in done.stderr


def test_repeats_against_a_baseline(tmp_path: Path) -> None:
    new = [folder(tmp_path / f"new-{i}", 0.9 + i / 1000) for i in range(3)]
    old = [word for i in range(3) for word in ("--baseline", folder(tmp_path / f"old-{i}", 1 + i / 1000))]
    done = knee(*new, *old, "-t", "output_tokens_per_s@all >= 0.97*baseline")
    assert done.exit_code == 99, done.output
    assert "0.900 × the baseline" in done.output
    assert knee(*new, *old, "-t", "output_tokens_per_s@knee >= 0.85*baseline").exit_code == 0


def test_a_folder_is_not_its_own_repeat(tmp_path: Path) -> None:
    a = folder(tmp_path / "a")
    done = knee(a, f"{a}/../a", "-t", "knee >= 8")
    assert (done.exit_code, done.stderr) == (1, f"error: {a}: is given twice; give each folder once\n")


def test_other_work_is_not_compared(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b", tokens=250.0)
    done = knee(a, "--baseline", b, "-t", "plateau >= 0.5*baseline")
    assert done.exit_code == 3
    assert "not alike: realised lengths" in done.output


def test_every_form_on_stdout_and_the_files(tmp_path: Path) -> None:
    a, xml, md = folder(tmp_path / "a"), tmp_path / "check.xml", tmp_path / "check.md"
    done = knee(a, "-t", "plateau >= 2000", "--format", "github", "--junit", str(xml), "--markdown", str(md))
    assert done.stdout.startswith("::error title=missed%3A plateau >= 2000::")
    assert "1 threshold: 1 missed" in done.stderr
    assert ElementTree.parse(xml).getroot().get("failures") == "1"
    assert md.read_text().startswith("# 1 threshold: 1 missed")
    assert knee(a, "-t", "knee >= 8", "--format", "markdown", "--quiet").stdout.startswith("# 1 threshold: 1 met")
    assert ElementTree.fromstring(knee(a, "-t", "knee >= 8", "--format", "junit", "--quiet").stdout).get("tests") == "1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "knee check: no threshold is given; give -t 'plateau >= 1500' or --thresholds FILE"),
        (
            ["--baseline", "x"],
            "knee check: no threshold is given; give -t 'plateau >= 0.98*baseline' or --thresholds FILE",
        ),
        (["-t", "tps > 10"], "--threshold: unknown figure 'tps'; write plateau, or output_tokens_per_s@knee"),
        (["-t", "platau >= 3"], "--threshold: unknown figure 'platau'; did you mean 'plateau'?"),
        (["-t", "plateau >= baseline"], "--threshold: 'plateau >= baseline' has no baseline; give --baseline DIR"),
        (["--thresholds", "nowhere.txt"], "nowhere.txt: No such file"),
        (["-t", "knee >= 8", "--baseline", "nowhere"], "nowhere: no such result folder"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = knee(folder(tmp_path / "a"), *words)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_percentile_is_counted_from_the_requests_of_a_folder() -> None:
    """By hand from requests.parquet: how many that began in the window have their first token within the limit."""
    import numpy as np

    from harness.analysis.level import Facts
    from harness.analysis.window import began_in, whole_requests
    from harness.results.result import Result as Folder

    run = Folder.open(SOUND)
    (level,) = [each for each in run.levels if each.concurrency == 8]
    table = Facts.of(run.manifest).table(run.records)
    inside = began_in(table, whole_requests(table.around(*level.window), level)) & ~table.cut
    ttft = np.nan_to_num(table.first - table.sent, nan=np.inf)
    limit = round(float(np.median(ttft[inside])) * 1e3)  # the folder's own median, so that some are slower than it

    done = knee(str(SOUND), "-t", f"ttft_p50@8 < {limit}ms", "--json", "--quiet")
    found = json.loads(done.stdout)["decisions"][0]["attainment"]
    within = inside & table.ok & (ttft <= limit / 1e3)
    assert (found["n"], found["met"]) == (int(inside.sum()), int(within.sum()))
    assert 0 < found["met"] < found["n"]


# ---- what the docs show ---------------------------------------------------------------------------------------------


def shown(text: str) -> list[list[str]]:
    """The words of every `knee` command in a text, of lines that a backslash joins too."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("knee ")]


@pytest.mark.slow
def test_the_output_in_the_docs_is_the_command_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = knee(*shown(PAGE)[0][1:])
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    assert done.exit_code == 99
    assert "\n".join(f"    {line}".rstrip() for line in lines) in PAGE


def test_every_command_of_the_docs_and_of_the_workflow_is_understood() -> None:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["check"]["steps"]
    commands = shown(PAGE) + shown("\n".join(step.get("run", "") for step in steps))
    assert [words[0] for words in commands] == ["check", "check", "list", "run", "check", "check"]
    for name, *words in commands:
        options = verb(name).make_context(name, words).params
        if name == "check":
            wanted = _wanted(options["threshold"], None)
            assert wanted
            figures.must_be_decidable(wanted, baseline=bool(options["baseline"]))


def test_the_figures_in_the_docs_are_those_there_are() -> None:
    of_run, of_level = (next(row for row in PAGE.splitlines() if row.startswith(f"| figure of {each}")) for each in (
        "the run", "a level",
    ))  # fmt: skip
    named = set(re.findall(r"`([a-z0-9_.]+)`", of_run))
    assert named == set(figures.OF_RUN) - {"usd_per_million_input_tokens"}
    for name in re.findall(r"`([a-z][a-z0-9_.]+)`", of_level):
        assert figures.unit(Subject(figure=name, at=8.0), "") in ("s", "%", "/s", "")
