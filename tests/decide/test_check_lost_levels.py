"""Levels that a build no longer holds: what `@all`, a percentile at a load and the error rate say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.decide.check.measured import Measured
from harness.summary import LevelSummary
from tests.builders import summaries
from tests.decide.test_check import invalid, measured, of_levels, outcome

ALL = "output_tokens_per_s@all >= 0.5*baseline"
LEVELS = (1, 4, 16, 64)


def side(
    *void: Mapping[int, str] | None, loads: tuple[int, ...] = LEVELS, place: str = "new", **changes: Any
) -> list[Measured]:
    """Three runs of these loads, of which the first ones have levels that are invalid by a code."""
    voided = [*void, *[None] * (3 - len(void))]
    levels = [[level(C, (codes or {}).get(C), **changes) for C in loads] for codes in voided]
    return [measured(of_levels(*each), place) for each in levels]


def level(C: int, code: str | None = None, **changes: Any) -> LevelSummary:
    return summaries.level(C, **changes | ({"verdicts": [invalid(code)]} if code else {}))


# ---- @all -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["errors_above_1_percent", "client_limited", "stalled"])
def test_a_level_that_the_new_build_breaks_leaves_all_levels_unresolved(code: str) -> None:
    found = outcome(ALL, side({64: code}), side(place="old"))
    assert (found.outcome, found.ratio) == ("unresolved", None)
    assert (found.why, found.way_out) == (f"new: the level 64 is invalid: {code}", "the way out")
    assert outcome(ALL.replace("@all", "@64"), side({64: code}), side(place="old")).outcome == "unresolved"


def test_a_baseline_that_held_the_level_once_shows_that_it_can_be_held() -> None:
    code = {64: "errors_above_1_percent"}
    assert outcome(ALL, side(code, code, code), side(code, place="old")).outcome == "unresolved"


def test_a_level_that_the_baseline_did_not_hold_either_is_left_out() -> None:
    void = {64: "client_limited"}
    assert outcome(ALL, side(void, void, void), side(void, void, void, place="old")).outcome == "met"
    assert outcome(ALL, side(), side(void, place="old")).outcome == "met"


def test_a_run_that_ended_below_the_levels_of_its_baseline_is_unresolved() -> None:
    found = outcome(ALL, [*side()[:2], *side(loads=(1, 4))[:1]], side(place="old"))
    assert (found.outcome, found.why) == ("unresolved", "new has no level 16")
    assert found.way_out == "its levels are 1, 4"


def test_levels_that_a_ramp_chose_may_differ() -> None:
    old = side(place="old", reason="between 4 and 64")
    assert outcome(ALL, side(loads=(1, 4, 12, 64)), old).outcome == "met"
