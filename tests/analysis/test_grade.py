"""Grades: what a level and a run need for each, and what is said to be missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.analysis import grade
from harness.summary import Estimate, LevelSummary, Verdict
from tests.builders.summaries import level, spread

LONG = {"window_s": 60.0, "ttft_s": spread(0.1, 1000), "e2e_s": spread(1.0, 1000)}


def measured(C: int, *, completed: int = 1000, **changes: Any) -> LevelSummary:
    """A level of 60 s with an interval, 1,000 completed requests of a second each, as graded by itself."""
    made = msgspec.structs.replace(level(C), **(LONG | changes))
    made = msgspec.structs.replace(made, requests_per_s=Estimate(completed / made.window_s))
    return msgspec.structs.replace(made, grade=grade.of_level(made))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "submission"),
        ({"window_s": 29.0}, "standard"),  # below 30 s
        ({"e2e_s": spread(3.5, 1000)}, "standard"),  # 60 s are 17 request times
        ({"completed": 99}, "standard"),
        ({"output_tokens_per_s": Estimate(100.0)}, "quick"),
        ({"verdicts": [Verdict("not_precise", "doubt", "")]}, "quick"),
        ({"verdicts": [Verdict("prefix_cache_hits", "doubt", "")]}, "submission"),
        ({"verdicts": [Verdict("client_limited", "invalid", "")]}, "quick"),
        ({"verdicts": [Verdict("too_few_samples", "note", "")]}, "submission"),
    ],
)
def test_a_level_s_grade_is_by_its_interval_its_doubts_its_length_and_its_requests(
    changes: dict[str, Any], name: str
) -> None:
    assert measured(4, **changes).grade == name


def test_a_level_needs_five_requests_in_each_slot() -> None:
    assert measured(64, completed=319).grade == "standard"
    assert measured(64, completed=320).grade == "submission"


def test_a_run_of_submission_grade_is_long_and_was_repeated() -> None:
    thrice = [measured(C, repeat=repeat) for repeat in range(3) for C in (1, 2, 4, 8)]
    found = grade.of_run(thrice)
    assert (found.name, found.missing, found.repeats) == ("submission", [], 3)
    once = grade.of_run(thrice[:4])
    assert once.name == "standard"
    assert once.repeats == 1
    assert once.missing == ["3 repeats of 1, 2, 4, 8 in flight: --repeat 3", "600 s of windows, not 240"]


def test_what_is_missing_names_the_levels() -> None:
    levels = [measured(1, completed=50), measured(2, window_s=20.0), measured(4, ttft_s=spread(0.1, 300)), measured(8)]
    found = grade.of_run(levels * 3)
    assert found.name == "standard"
    assert found.missing == [
        "windows of 30 s (30 s, 20 request times) at 2 in flight",
        "100 requests, and 5 in each slot, completed at 1 in flight",
        "662 requests, which p99 needs, at 4 in flight",
    ]


def test_one_level_without_an_interval_makes_a_run_quick() -> None:
    short = measured(2, output_tokens_per_s=Estimate(100.0))
    found = grade.of_run([measured(1), short, measured(4)])
    assert found.name == "quick"
    assert found.missing == ["an interval and no doubt at 2 in flight: hold it longer, and see its verdicts"]
    assert grade.of_run([]).name == "quick"


def test_the_spread_is_the_largest_half_range_of_a_level_s_repeats() -> None:
    def at(C: int, tokens_per_s: float, **changes: Any) -> LevelSummary:
        return measured(C, output_tokens_per_s=Estimate(tokens_per_s, (tokens_per_s, tokens_per_s)), **changes)

    found = grade.of_run([at(1, 99.0), at(1, 101.0), at(2, 190.0), at(2, 200.0), at(2, 210.0), at(4, 500.0)])
    assert found.spread == pytest.approx(0.05)
    assert found.spread_at == 2
    assert found.repeats == 1
    assert grade.of_run([at(1, 99.0)]).spread is None
    # A probe holds one request in flight at several prompt lengths: those are no repeats of each other.
    probe = [at(1, 99.0, input_tokens_asked=64), at(1, 10.0, input_tokens_asked=4096)]
    assert grade.of_run(probe).spread is None


def test_an_open_level_is_named_by_its_rate() -> None:
    open_ = measured(4, concurrency=None, rate=2.5)
    assert "3 repeats of 2.5 req/s: --repeat 3" in grade.of_run([open_]).missing
