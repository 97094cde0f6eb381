"""`knee plan` as it is called: a folder in, the answer, its files and its exit status out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

from harness.base import files
from harness.cli import cli
from harness.data.judgement import Outcome
from harness.data.levels import Attainment
from harness.decide.plan.plan import Plan
from tests.builders import summaries
from tests.builders.schemas import unindented

SCHEMA = Path(__file__).parents[2] / "docs" / "plan.schema.json"
H100 = str(Path(__file__).parents[2] / "results" / "live-h100-bf16")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A result folder whose requests were taken out: 200 tokens out, a hinge at 16, 1,860 tok/s, no SLO."""
    made = tmp_path / "run"
    made.mkdir()
    files.write_json(made / "manifest.json", summaries.MANIFEST)
    files.write_json(made / "summary.json", summaries.full())
    return str(made)


def knee(*words: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *words])


def printed(*words: str) -> dict[str, Any]:
    done = knee(*words, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_answer_is_three_lines_and_a_small_table(folder: str) -> None:
    done = knee(folder, "--rps", "20", "--price", "2")
    assert done.exit_code == 0, done.output
    lines = done.output.split("\n\n")
    # the curve has 1,808 tok/s at 16: 20 · 200 / 1,808 = 2.212, and 3.16 at 70 %
    assert lines[1].startswith("Replicas  4")
    assert "Each at   16 requests in flight: 1,8" in lines[1]
    assert "the lowest measured load with 95 % of the highest throughput" in " ".join(lines[1].split())
    assert "Cost      $8 an hour at the peak, $5,760 a month" in lines[1]
    assert [line.split()[:3] for line in lines[2].splitlines()[1:4]] == [
        ["one", "fewer", "3"],
        ["planned", "4", "55.3"],
        ["one", "more", "5"],
    ]


def test_each_price_of_a_million_tokens_says_which_it_is(folder: str) -> None:
    whole = " ".join(knee(folder, "--rps", "20", "--price", "2").stdout.split())
    answer, _, money = whole.partition("utilisation of the operating point's throughput")
    assert re.findall(r"per 1M output tokens( [a-z ]+)?", answer) == [" as planned"]
    assert "with every replica always at its operating point" in money


def test_json_is_the_plan_and_keeps_its_schema(folder: str) -> None:
    found = printed(folder, "--rps", "20", "--price", "2", "--traffic", "wave(period=24h,low=5,high=20)")
    assert found["fleet"]["replicas"] == 4
    schema = json.loads(SCHEMA.read_text())
    now = json.loads(json.dumps(msgspec.json.schema(Plan)))
    assert unindented(schema) == unindented(now), "run scripts/schema"
    jsonschema.validate(found, schema)
    assert msgspec.convert(found, Plan).question.prices.gpu_hour == 2


def test_files(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    done = knee(folder, "--rps", "20", "--out", str(out))
    assert sorted(path.name for path in out.iterdir()) == ["alerts.yml", "plan.json", "plan.md"]
    assert str(out / "plan.md") in done.output
    assert "Replicas" in (out / "plan.md").read_text()
    assert "alert: KneeThroughputLow" in (out / "alerts.yml").read_text()
    assert json.loads((out / "plan.json").read_text())["capacity"]["source"] == folder


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules(folder: str, tmp_path: Path) -> None:
    knee(folder, "--rps", "20", "--out", str(tmp_path / "plan"))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "plan" / "alerts.yml")], check=False)
    assert done.returncode == 0


def test_other_limits_need_the_requests(folder: str) -> None:
    done = knee(folder, "--rps", "20", "--slo", "ttft_p50=100ms")
    assert done.exit_code == 1
    assert "does not say whether it meets ttft_p50=100ms; bring its requests back" in done.output


def test_a_run_whose_levels_all_miss_its_limits_has_no_plan(folder: str) -> None:
    full, about = summaries.full(), summaries.MANIFEST
    missed = Attainment("ttft_p50=15ms", 0.5, 0, 100, 0.0, (0.0, 0.1), Outcome.MISSED)
    levels = [msgspec.structs.replace(level, slo=[missed]) for level in full.levels]
    asked = msgspec.structs.replace(about.scenario, slo={"ttft_p50": 0.015})
    files.write_json(Path(folder) / "summary.json", msgspec.structs.replace(full, levels=levels))
    files.write_json(Path(folder) / "manifest.json", msgspec.structs.replace(about, scenario=asked))
    done = knee(folder, "--rps", "20")
    assert done.exit_code == 99
    assert "Replicas  no measured load meets ttft_p50=15ms" in done.output


def test_the_committed_run_on_an_h100() -> None:
    found = printed(H100, "--rps", "50", "--price", "3")
    assert found["operating_point"]["at"]["load"] == 128
    X = found["operating_point"]["at"]["work_per_s"]["value"]
    assert found["fleet"]["replicas"] == 2
    assert found["fleet"]["exact"] == pytest.approx(50 * 128 / X / 0.7)


def test_headroom_is_utilization_by_another_name(folder: str) -> None:
    a, b = (
        printed(folder, "--rps", "20", flag, value) for flag, value in (("--headroom", "25%"), ("--utilization", "80%"))
    )
    assert a["fleet"] == b["fleet"]


def test_everything_at_once_has_its_section(folder: str, tmp_path: Path) -> None:
    day = tmp_path / "day.csv"
    day.write_text("time,requests_per_s\n0h,5\n8h,20\n18h,10\n24h\n")
    done = knee(folder, "--traffic", str(day), "--price", "2", "--cold-start", "90s", "--think-time", "30s")
    assert done.exit_code == 0, done.output
    for title in ("Cost", "Traffic of 24 h", "Thresholds"):
        assert f"\n{title}\n" in done.output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "knee plan: no demand is given; add --rps 50"),
        (("--rps", "0"), "--rps: '0' is not above 0; give more"),
        (("--rps", "-5"), "--rps: '-5' is not a number from 0 on; write it like '50' or '1.5k'"),
        (("--rps", "nan"), "--rps: 'nan' is not a number from 0 on; write it like '50' or '1.5k'"),
        (("--rps", "1e300"), "--rps: '1e300' is not a number from 0 on; write it like '50' or '1.5k'"),
        (("--rps", "many"), "--rps: 'many' is not a number; write it like '5', '0.25' or '1.5k'"),
        (("--rps", "5", "--users", "5", "--think-time", "1s"), "knee plan: a plan has one demand"),
        (
            ("--rps", "5", "--utilization", "120%"),
            "--utilization: '120%' is not between 1% and 100%; write it like 70%",
        ),
        (("--rps", "5", "--utilization", "70%", "--headroom", "30%"), "--headroom: --utilization says the same"),
        (("--rps", "5", "--headroom", "30"), "--headroom: a headroom of 3,000%; a share of the peak: write 30%"),
        (("--rps", "5", "--slo", "tftt=1s"), "--slo: unknown limit 'tftt'; did you mean 'ttft'?"),
        (("--rps", "5", "--by", "slo"), "--by slo: the run has no SLO; add --slo ttft_p99=2s"),
        (("--traffic", "poisson"), "--traffic poisson: No such file or directory"),
        (("--traffic", "gamma(2)"), "--traffic: these arrivals have no rate of their own"),
        (("--rps", "1e14"), "more than 100,000 replicas"),
        (("--documents-per-s", "5"), "--documents-per-s: the run counts no documents; give --rps"),
    ],
)
def test_a_mistake_is_one_line(folder: str, words: tuple[str, ...], line: str) -> None:
    done = knee(folder, *words)
    assert done.exit_code == 1, done.output
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    done = knee(str(tmp_path / "nothing"), "--rps", "5")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "no such result folder" in done.stderr


def test_a_run_without_a_valid_level(tmp_path: Path) -> None:
    """Nothing is planned on levels that are void."""
    files.write_json(tmp_path / "manifest.json", summaries.MANIFEST)
    made = summaries.full()
    void = [level for level in made.levels if any(verdict.level == "invalid" for verdict in level.verdicts)]
    files.write_json(tmp_path / "summary.json", msgspec.structs.replace(made, levels=void))
    done = knee(str(tmp_path), "--rps", "5")
    assert done.exit_code == 1
    assert "no level of it is valid; measure it anew" in done.stderr
