"""`knee list` as it is called: folders in, a line each, the broken ones named, a page out."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.base import files
from harness.cli import cli
from tests.builders import summaries
from tests.cli.test_cli_compare import folder


def knee(*words: str) -> Result:
    return CliRunner().invoke(cli, ["list", *words])


def test_a_line_for_each_folder_below_the_oldest_first(tmp_path: Path) -> None:
    folder(tmp_path / "new", created="2026-03-05T10:00:00+00:00")
    (tmp_path / "more" / "inside").mkdir(parents=True)
    folder(tmp_path / "more" / "inside" / "old", created="2026-03-04T23:30:00-01:00")
    folder(tmp_path / "undated", created=None)
    done = knee(str(tmp_path))
    assert done.exit_code == 0, done.output
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["date", "target", "model", "knee", "plateau", "status", "folder"]
    assert [row.split()[-1].rpartition("/")[2] for row in rows] == ["old", "new", "undated"]
    assert rows[0].startswith("2026-03-05 00:30")  # UTC
    assert "16.2 (15.4–17.1)  1,853 output tok/s (1,839–1,868)  invalid" in rows[0]


def test_the_rows_as_json_with_a_figure(tmp_path: Path) -> None:
    folder(tmp_path / "a")
    done = knee(str(tmp_path), "--json", "--figure", "ttft_mean@8")
    (row,) = json.loads(done.stdout)["results"]
    assert (row["status"], row["model"], row["knee"]["value"]) == (
        "invalid", "meta-llama/Llama-3.1-8B-Instruct", 16.2,
    )  # fmt: skip
    assert row["figure"]["value"] == pytest.approx(0.0306)
    assert "30.6 ms" in knee(str(tmp_path), "--figure", "ttft_mean@8").stdout


@pytest.mark.parametrize(
    ("situation", "status"), [("full", "invalid"), ("constant", "complete"), ("interrupted", "incomplete")]
)
def test_the_status_says_whether_a_run_ended_and_whether_its_answer_stands(
    situation: str, status: str, tmp_path: Path
) -> None:
    """Of the full one a level is invalid that was asked for."""
    place = Path(folder(tmp_path / "a"))
    files.write_json(place / "summary.json", summaries.SITUATIONS[situation]())
    (row,) = json.loads(knee(str(place), "--json").stdout)["results"]
    assert row["status"] == status


def test_a_broken_folder_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    folder(tmp_path / "good")
    for name in ("bad", "worse"):
        folder(tmp_path / name)
        (tmp_path / name / "summary.json").write_text("{")
    done = knee(str(tmp_path))
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 2  # head and good
    lines = done.stderr.splitlines()
    assert [re.sub(r": .*?/(bad|worse)/summary.json: not a summary.*", r" \1", line) for line in lines] == [
        "error bad", "error worse",
    ]  # fmt: skip
    assert [each["place"] for each in json.loads(knee(str(tmp_path), "--json").stdout)["broken"]] == [
        str(tmp_path / "bad"), str(tmp_path / "worse"),
    ]  # fmt: skip


def test_links_are_not_followed_and_a_map_s_cells_are_listed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    folder(outside / "a")
    place = tmp_path / "results"
    (place / "map").mkdir(parents=True)
    (place / "map" / "map.json").write_text("{}")
    (place / "map" / "manifest.json").write_text("{}")
    folder(place / "map" / "cell")
    os.symlink(outside, place / "link")
    os.symlink(place, place / "circle")
    done = knee(str(place))
    assert [line.split()[-1] for line in done.stdout.splitlines()[1:]] == [str(place / "map" / "cell")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["."], ".: no result folder in it; give the --out of a run"),
        ([], "results: no such folder"),
        ([".", "--figure", "platau"], "--figure: unknown figure 'platau'; did you mean 'plateau'?"),
        ([".", "--figure", "plateau@8"], "--figure: 'plateau' is a figure of the whole run"),
        ([".", "--figure", "itl_p50@all"], "--figure: all levels make no figure of one run"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = knee(*words)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_page_plots_the_figure_over_time(tmp_path: Path) -> None:
    for i, factor in enumerate((1.0, 1.1)):
        folder(tmp_path / f"run-{i}", factor, created=f"2026-03-0{i + 1}T10:00:00+00:00")
    page = tmp_path / "index.html"
    done = knee(str(tmp_path), "--html", str(page), "--figure", "output_tokens_per_s@8")
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "over-time" in text
    assert text.count("run-1") >= 2  # in the table and at its point
