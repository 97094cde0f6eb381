"""What the head of a result says of its workload, and its answer of a prefix cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.data.summary import Summary
from harness.report.answer import answer
from harness.report.facts import tool_times
from harness.spec.reading import build


@pytest.mark.parametrize(("scale", "words"), [({}, ""), ({"tool_time_scale": 0.05}, "tools' times × 0.05")])
def test_the_head_says_by_how_much_tools_times_are_scaled(scale: dict[str, float], words: str) -> None:
    workload = {"session": {"turns": 2, "user_tokens": 9}} | scale
    assert tool_times(build({"workload": workload}, place="test")) == words


def test_a_run_of_agents_answers_how_many_of_them_the_cache_holds() -> None:
    folder = Path(__file__).parents[2] / "results/live-agents-end"
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    (found,) = [each for each in answer(summary).lines if each.label == "Cache holds"]
    assert (found.value, found.detail) == ("about 6.93 sessions", "about 6 sessions predicted; 7,168 tokens")
