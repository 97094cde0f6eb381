"""`knee report`: another run laid over, pictures of every chart, and a folder without its requests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import cli, output
from tests.builders.summaries import MANIFEST, full, interrupted

DEMO = Path(__file__).parent.parent / "data" / "demo"


def report(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["report", "--quiet", *map(str, arguments)])


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return shutil.copytree(DEMO, tmp_path / "demo")


def charts(folder: Path) -> dict[str, dict[str, object]]:
    page = (folder / "report.html").read_text("utf-8")
    start = page.index('id="charts">') + len('id="charts">')
    found: dict[str, dict[str, object]] = json.loads(page[start : page.index("</script>", start)])
    return found


@pytest.mark.slow
def test_every_chart_is_a_picture(demo: Path, tmp_path: Path) -> None:
    done = report(demo, "--figures", tmp_path / "pictures")
    assert done.exit_code == 0, done.output
    found = charts(demo)
    pictures = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert pictures == {f"{name}.{kind}" for name in found for kind in ("png", "svg")}
    assert {"curve", "ttft", "frontier", "over-time", "ttft-distribution"} <= set(found)


def without_requests(folder: Path, **first_level: object) -> dict[str, object]:
    """The folder as it is when its requests were taken out; fields of its first level are changed."""
    assert report(folder, "--no-plots").exit_code == 0
    (folder / "requests.parquet").unlink()
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    summary["levels"][0] |= first_level
    (folder / "summary.json").write_text(json.dumps(summary))
    return summary


def test_a_run_that_ended_early_says_how_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a run"
    folder.mkdir()
    output.publish(folder, interrupted(), MANIFEST, plots=False, as_json=False, quiet=False, verbose=False)
    assert f"knee run --resume '{folder}'" in capsys.readouterr().out
    output.publish(folder, full(), MANIFEST, plots=False, as_json=False, quiet=False, verbose=False)
    assert "--resume" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_without_requests_is_shown_by_its_summary_and_telemetry(demo: Path) -> None:
    summary = without_requests(demo)
    done = report(demo)
    assert done.exit_code == 0, done.output
    assert json.loads((demo / "summary.json").read_text()) == summary
    found = charts(demo)
    assert {"curve", "ttft", "itl", "e2e", "frontier"} <= set(found)
    assert not {"over-time", "ttft-distribution"} & set(found)


@pytest.mark.slow
def test_a_summary_with_a_load_of_0_is_refused_in_one_line(demo: Path) -> None:
    without_requests(demo, concurrency=0)
    done = report(demo)
    assert done.exit_code == 1
    assert "it has a load that is not above 0" in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "line"),
    [(["--no-plots"], "error: --figures with --no-plots"), ([DEMO], "error: --figures with several folders")],
)
def test_figures_need_plots_and_one_folder(more: list[str | Path], line: str, tmp_path: Path) -> None:
    done = report(DEMO, *more, "--figures", tmp_path / "pictures")
    assert (done.exit_code, done.output[: len(line)]) == (1, line)
    assert not (tmp_path / "pictures").exists()
