"""The table of the live workloads: which share of the prompts is expected, and which is served; no server."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from harness.data.manifest import Manifest, Workload
from harness.data.summary import Summary
from harness.data.views import ServerView
from harness.results.result import read_manifest
from harness.spec import reading
from harness.workload import hit_rate
from harness.workload.dataset import table
from harness.workload.dataset.dataset import open_dataset
from tests.builders.summaries import full, level

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts/live"))

from workloads import SCENARIOS, report  # noqa: E402  # its folder is a line above


def folder(path: Path, expected: float | None, served: float | None) -> Path:
    path.mkdir()
    about = Manifest(workload=Workload(expected_hit_rate=expected))
    (path / "manifest.json").write_bytes(msgspec.json.encode(about))
    of_server = msgspec.structs.replace(ServerView(), prefix_hit_fraction=0.8)
    levels = [
        msgspec.structs.replace(level(2), cached_input_fraction=served, server=of_server, input_tokens_mean=700.4)
    ]
    (path / "summary.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(full(), levels=levels)))
    return path


@pytest.mark.parametrize(("served", "good"), [(0.771, True), (0.769, False), (0.829, True), (None, False)])
def test_a_level_serves_what_is_expected_or_the_answer_is_no(tmp_path: Path, served: float | None, good: bool) -> None:
    text, found = report([folder(tmp_path / "live-workload-prefix", 0.8, served)])
    assert found is good
    shown = "–" if served is None else f"{served:.3f}"
    assert f"| 700 | 0.800 | {shown} | 0.800 | {'yes' if good else 'no'} |" in text
    assert "| live-workload-prefix, C = 2 |" in text


def test_nothing_expected_is_no_agreement(tmp_path: Path) -> None:
    assert report([folder(tmp_path / "a", None, 0.5)])[1] is False


@pytest.mark.parametrize("name", SCENARIOS)
def test_its_scenarios_ask_for_reuse(name: str, tmp_path: Path) -> None:
    asked, rows = reading.load(str(ROOT / f"scripts/live/workload-{name}.toml")), ""
    if asked.workload.dataset:
        table.write(open_dataset(ROOT / asked.workload.dataset.path).rows(), tmp_path / "rows")
        rows = str(tmp_path / "rows")
    expected = hit_rate.expected(asked, block=128, template_tokens=8, rows=rows)
    assert expected is not None
    assert 0.5 < expected < 0.9


def test_the_committed_runs_served_what_was_expected() -> None:
    text, good = report([ROOT / f"results/live-workload-{name}" for name in SCENARIOS])
    assert good, text
    documented = (ROOT / "docs/workloads.md").read_text()
    for line in text.splitlines()[2:]:
        figures = line.split(" | ")[2:7]
        assert " | ".join(figures) in documented


def test_a_trace_of_agents_was_served_its_own_hits_within_two_percent_by_the_server_s_counters() -> None:
    folder = ROOT / "results/live-workload-agents"
    (level,) = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary).levels
    assert level.server
    assert level.server.prefix_hit_fraction == pytest.approx(read_manifest(folder).workload.expected_hit_rate, rel=0.02)
