"""scripts/live/cases.py: the rows of the committed runs, and scenarios that can be read."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from harness.data.summary import Summary
from harness.spec import reading

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/live"))

import cases  # noqa: E402  # its folder is a line above

FOLDERS = sorted(path for name in cases.CASES for path in (ROOT / "results").glob(f"live-{name}*"))


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
def test_the_docs_have_the_rows_of_the_committed_runs(folder: Path) -> None:
    row = f"| {' | '.join(cases.row(folder))} |"
    assert row in (ROOT / "docs/live-servers.md").read_text()


def test_the_records_of_a_run_are_small() -> None:
    assert FOLDERS
    assert all((folder / "requests.parquet").stat().st_size <= 300_000 for folder in FOLDERS)


def test_the_cache_s_end_was_predicted_within_a_quarter() -> None:
    summary = msgspec.json.decode((ROOT / "results/live-agents-end/summary.json").read_bytes(), type=Summary)
    assert summary.agents
    assert summary.agents.measured_holds == pytest.approx(summary.agents.holds, rel=0.25)


@pytest.mark.parametrize("name", ["classes", "long-prompts"])
def test_its_scenarios_can_be_read(name: str) -> None:
    assert len(reading.load(str(ROOT / f"scripts/live/case-{name}.toml")).class_ or ()) == 2
