"""What the head of a result says of its workload, and its answer of a prefix cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from harness.data.judgement import Verdict
from harness.data.summary import Settle, Summary
from harness.report.answer import answer
from harness.report.document import Fact
from harness.report.facts import in_short, tool_times
from harness.spec.reading import build
from tests.builders import summaries


@pytest.mark.parametrize(("scale", "words"), [({}, ""), ({"tool_time_scale": 0.05}, "tools' times × 0.05")])
def test_the_head_says_by_how_much_tools_times_are_scaled(scale: dict[str, float], words: str) -> None:
    workload = {"session": {"turns": 2, "user_tokens": 9}} | scale
    assert tool_times(build({"workload": workload}, place="test")) == words


def test_a_run_of_agents_answers_how_many_of_them_the_cache_holds() -> None:
    folder = Path(__file__).parents[2] / "results/live-agents-end"
    summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Summary)
    (found,) = [each for each in answer(summary).lines if each.label == "Cache holds"]
    assert (found.value, found.detail) == ("about 6.93 sessions", "about 6 sessions predicted; 7,168 tokens")


def test_levels_that_failed_are_measured_again_when_it_is_known_why() -> None:
    failing = Verdict("errors_above_1_percent", "invalid", "9 of 99 requests failed")
    levels = [summaries.level(4), summaries.level(6, verdicts=[failing]), summaries.level(8, verdicts=[failing])]
    curve = msgspec.structs.replace(summaries.simulated().curve, settle=Settle([6, 8], 30.0))
    summary = msgspec.structs.replace(summaries.simulated(), levels=levels, curve=curve)
    words = "see why requests fail at C = 6, 8; then repeat 6 and 8 in flight, about 30 s"
    assert in_short(summary, quick=True) == [Fact("To settle it", words)], "a longer run would not mend the server"
