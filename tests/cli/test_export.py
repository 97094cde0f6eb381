"""`knee export`: levels on stdout, files in a folder, and one line for what cannot be exported."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.base.files import write_json
from harness.base.terminal import Guard
from harness.cli import cli
from harness.data.judgement import Verdict
from harness.data.views import Estimate
from harness.library import answers as fitting
from harness.library import measurement as exporting
from harness.library.measurement import load
from harness.results import exporters, readers
from harness.results.exporters import csv as table
from harness.spec.work import Unit
from tests.builders.summaries import full, stored

DEMO = Path(__file__).parents[1] / "data" / "demo"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored(tmp_path / "run")


def test_the_exporters_are_named_in_the_order_of_the_help() -> None:
    assert exporters.names() == ["csv", "vllm"]


@pytest.mark.parametrize("to", ["csv", "vllm"])
def test_what_stands_on_stdout_is_read_back_by_fit(to: str, folder: Path) -> None:
    done = CliRunner().invoke(cli, ["export", str(folder), "--to", to])
    assert done.exit_code == 0, done.output
    found = readers.of_bytes(done.stdout.encode(), "stdout")
    assert [level.concurrency for level in found.levels] == [level.concurrency for level in full().levels]


def test_a_folder_gets_a_file_a_level(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", str(folder), "--to", "vllm", "--out", str(tmp_path / "out")])
    assert done.stdout == ""
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names[:2] == ["vllm-00-c1.json", "vllm-01-c2.json"]
    assert len(names) == len(full().levels)
    assert json.loads((tmp_path / "out" / names[1]).read_text())["max_concurrency"] == 2


@pytest.mark.slow
def test_tables_are_levels_and_requests(tmp_path: Path) -> None:
    made = exporting.export(DEMO, "csv", tmp_path / "out")
    assert [path.name for path in made] == ["levels.csv", "requests.csv"]
    with made[1].open(newline="") as file:
        lines = list(csv.DictReader(file))
    frame = load(DEMO).requests
    assert len(lines) == len(frame)
    assert "error_message" not in lines[0]
    first = frame[frame["error"].isna()].iloc[0]
    row = next(line for line in lines if line["request_id"] == first["request_id"])
    assert float(row["ttft_s"]) == first["ttft_s"]
    assert (row["error"], row["cached_tokens"]) == ("", "")


def test_what_counts_no_output_tokens_has_no_file_of_that_kind(folder: Path) -> None:
    write_json(folder / "summary.json", msgspec.structs.replace(full(), unit=Unit.INPUT_TOKENS.value))
    with pytest.raises(HarnessError, match="vllm counts output tokens, and this run input tokens"):
        exporting.text(load(folder), "vllm")
    assert exporting.text(load(folder), "csv").startswith("concurrency,output_tokens_per_s,error,")


def test_a_table_on_stdout_has_no_escapes_at_the_ends_of_its_lines(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Guard(written))
    cli.main(["export", str(folder), "--to", "csv"], standalone_mode=False)
    lines = written.getvalue().split("\n")
    assert lines[0] == ",".join(table.LEVELS)
    assert [line.rpartition(",")[2] for line in lines[1:-1]] == ["False"] * len(full().levels)


def test_the_curve_of_an_exported_table_is_that_of_its_folder(folder: Path, tmp_path: Path) -> None:
    """Also where a level is invalid, and where errors were assumed by the number of requests."""
    levels = [
        msgspec.structs.replace(
            level, output_tokens_per_s_se=level.throughput.mean, output_tokens_per_s_se_assumed=True
        )
        if i % 2
        else level
        for i, level in enumerate(full().levels)
    ]
    levels = [
        msgspec.structs.replace(level, requests_per_s=Estimate(None)) if level.output_tokens_per_s_se_assumed else level
        for level in levels
    ]
    levels[2] = msgspec.structs.replace(levels[2], verdicts=[Verdict("client_limited", "invalid", "x", "y")])
    write_json(folder / "summary.json", msgspec.structs.replace(full(), levels=levels))
    made = exporting.export(folder, "csv", tmp_path / "out")
    of_folder, of_table = fitting.fit(folder), fitting.fit(made[0])
    assert of_table.curve == of_folder.curve
    assert msgspec.structs.replace(of_table.knees, seats=None) == msgspec.structs.replace(of_folder.knees, seats=None)
    assert of_table.knees.seats is not None
    assert of_folder.knees.seats is not None
    assert of_table.knees.seats.value == pytest.approx(of_folder.knees.seats.value, rel=0.01)  # by other weights


def test_an_unknown_format_is_refused_with_the_nearest(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="did you mean 'vllm'"):
        exporting.export(folder, "vlm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_url_takes_no_files(folder: Path) -> None:
    refused = CliRunner().invoke(cli, ["export", str(folder), "--to", "csv", "--out", "http://127.0.0.1:1"])
    assert "csv is written to a folder" in str(refused.exception) + refused.output


def test_a_table_that_a_spreadsheet_saved_is_read_as_before(folder: Path, tmp_path: Path) -> None:
    """With a byte-order mark, and with semicolons: levels keep what is said of them."""
    plain = exporting.text(load(folder), "csv")
    rows, saved = list(csv.reader(io.StringIO(plain))), tmp_path / "saved.csv"
    for separator in ",;":
        with saved.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file, delimiter=separator).writerows(rows)
        assert readers.read(saved).levels == readers.of_bytes(plain.encode(), "plain").levels
