"""The committed measurements of a real vLLM: small, complete, and their summaries follow from their records."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.analysis.summarise import summarise
from harness.results.result import Result, read_summary
from tests.builders.texts import same

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "live-vllm"
MEASURED = sorted(path.parent for path in (ROOT / "results").glob("live-*/**/requests.parquet"))
VERSUS = [ROOT / "results" / f"live-vllm-versus-{kind}" for kind in ("adaptive", "fixed")]


@pytest.mark.parametrize(
    ("result", "levels", "knee"),
    [
        (RESULT, [1, 2, 4, 8, 12, 16, 20, 24, 32, 48, 64], 16),
        (VERSUS[0], [1, 2, 4, 8, 16, 23, 8, 6, 5, 2, 11, 21, 9, 1, 3, 6, 5, 4, 1, 2, 1, 1, 5, 2, 1, 1, 1, 1, 1, 1], 6),
        (VERSUS[1], [1, 2, 4, 8, 16, 32, 64], 6),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_its_summary_is_made_anew_from_its_records(result: Path, levels: list[int], knee: int) -> None:
    committed = read_summary(result)
    again = summarise(Result.open(result))
    assert [level.concurrency for level in again.levels] == levels
    same(msgspec.json.encode(again.levels), msgspec.json.encode(committed.levels))
    assert again.curve is not None
    assert committed.curve is not None
    assert again.curve.hinge_concurrency.value == pytest.approx(committed.curve.hinge_concurrency.value)
    assert (again.knee.kind, again.knee.state) == ("seats", "found")
    assert again.knee.ci95 is not None
    low, high = again.knee.ci95
    assert low is not None
    assert high is not None
    assert low <= knee <= high, f"the server ran at most {knee} sequences at once"
    assert high <= 1.05 * knee
    assert again.simulated is False


@pytest.mark.slow
@pytest.mark.parametrize("result", MEASURED, ids=lambda result: result.relative_to(ROOT / "results").as_posix())
def test_every_committed_summary_is_what_its_records_say(result: Path) -> None:
    same(msgspec.json.encode(summarise(Result.open(result))), (result / "summary.json").read_bytes())


@pytest.mark.slow
def test_its_report_is_made_anew_by_the_command(tmp_path: Path) -> None:
    shutil.copytree(RESULT, tmp_path / "copy")
    for name in ("summary.json", "report.md", "curve.png"):
        (tmp_path / "copy" / name).unlink()
    done = subprocess.run(
        [sys.executable, "-m", "harness", "report", str(tmp_path / "copy"), "--quiet"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("summary.json", "report.md", "report.html", "curve.png"):
        assert (tmp_path / "copy" / name).stat().st_size > 0
    same((tmp_path / "copy" / "summary.json").read_bytes(), (RESULT / "summary.json").read_bytes())


@pytest.mark.slow
def test_the_comparison_is_made_anew_from_its_records() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/live/versus.py", "table", *map(str, VERSUS), "--knee", "6"],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    docs = (ROOT / "docs" / "knee.md").read_text().replace(" %", "%")
    for row in done.stdout.splitlines()[2:4]:
        assert row in docs


def test_the_readme_and_the_guide_show_the_answer_of_the_committed_run() -> None:
    report = (VERSUS[0] / "report.md").read_text()
    readme, guide = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/guide.md"))
    shown = {name: line for name, _, line in (each[2:].partition(": ") for each in report.splitlines())}
    for name in ("Knee", "Plateau", "At the knee"):
        assert f"{name} {shown[name]}" in readme
    assert f"Knee {shown['Knee']} Plateau {shown['Plateau'].partition('; single')[0]} Hinge {shown['Hinge']}" in guide


@pytest.mark.parametrize("result", [RESULT, *VERSUS], ids=lambda path: path.name)
def test_it_is_small_and_tells_nothing_of_the_machine_s_paths(result: Path) -> None:
    files = sorted(p for p in result.iterdir() if p.name != "report.html")
    assert {p.name for p in files} >= {"manifest.json", "requests.parquet", "summary.json", "report.md", "curve.png"}
    assert all(p.stat().st_size < 1_000_000 for p in files)
    for name in ("manifest.json", "report.md"):
        text = (result / name).read_text()
        assert not any(path in text for path in ("/root", "/home", "/tmp", "/work"))
