"""Levels that a build no longer holds: what `@all`, a percentile at a load and the error rate say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.analysis.stats import wilson
from harness.data.levels import Attainment, LevelSummary
from harness.data.record import Role
from harness.decide.check import figures
from harness.decide.check.sides import CheckedRun
from tests.builders import summaries
from tests.decide.test_check import invalid, measured, of_levels, outcome

ALL = "output_tokens_per_s@all >= 0.5*baseline"
LEVELS = (1, 4, 16, 64)


def side(
    *void: Mapping[int, str] | None, loads: tuple[int, ...] = LEVELS, place: str = "new", **changes: Any
) -> list[CheckedRun]:
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
    old = side(place="old", role=Role.REFINEMENT)
    assert outcome(ALL, side(loads=(1, 4, 12, 64)), old).outcome == "met"


# ---- a percentile at a load that was measured again -----------------------------------------------------------------

MET = Attainment("ttft_p99=2s", 0.99, 500, 500, 1.0, wilson(500, 500), "met")
LATE = Attainment("ttft_p99=2s", 0.99, 5, 200, 0.025, wilson(5, 200), "missed")
FEW = Attainment("ttft_p99=2s", 0.99, 100, 100, 1.0, wilson(100, 100), "unresolved")
ERRORS, UNSTABLE = "errors_above_1_percent", "unstable"


@pytest.mark.parametrize(
    ("repeats", "expected"),
    [  # as `slo.by_load` judges them: most decide
        ([(MET, None)], "met"),
        ([(MET, None), (LATE, ERRORS)], "unresolved"),
        ([(MET, None), (LATE, UNSTABLE)], "unresolved"),
        ([(MET, None), (MET, ERRORS)], "unresolved"),
        ([(MET, None), (MET, None), (LATE, ERRORS)], "met"),
        ([(MET, None), (LATE, ERRORS), (LATE, UNSTABLE)], "missed"),
        ([(MET, None), (LATE, ERRORS), (MET, ERRORS)], "unresolved"),  # one of those that failed was in time
        ([(LATE, None), (LATE, ERRORS)], "missed"),  # all of them say so
        ([(MET, None), (LATE, "in_flight_low")], "unresolved"),
        ([(MET, None), (MET, "in_flight_low")], "met"),
        ([(MET, None), (LATE, "client_limited")], "met"),
    ],
)
def test_a_repeat_that_failed_counts_beside_the_valid_ones_of_its_run(
    repeats: list[tuple[Attainment, str | None]], expected: str
) -> None:
    run = measured(of_levels(*(level(32, code, slo=[attained]) for attained, code in repeats)))
    assert outcome("ttft_p99@32 < 2s", [run]).outcome == expected
    swapped = {"met": "missed", "missed": "met"}
    assert outcome("ttft_p99@32 > 2s", [run]).outcome == swapped.get(expected, expected)


def test_what_leaves_a_load_unresolved_is_said() -> None:
    def why(*repeats: tuple[Attainment, str | None]) -> tuple[str, str]:
        run = measured(of_levels(*(level(32, code, slo=[attained]) for attained, code in repeats)))
        found = outcome("ttft_p99@32 < 2s", [run])
        return found.outcome, found.why

    assert why((MET, None), (LATE, ERRORS)) == ("unresolved", f"1 of 2 repeats of the level are invalid: {ERRORS}")
    assert why((FEW, None), (FEW, None), (LATE, ERRORS)) == ("unresolved", "200 requests do not tell")


# ---- the error rate -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["client_limited", "worker_paused", "stalled"])
def test_the_error_rate_of_a_run_is_of_all_its_levels(code: str) -> None:
    failing = level(16, requests=400, errors=80, verdicts=[invalid(ERRORS), invalid(code)])
    run = measured(of_levels(level(4, requests=400, errors=0), failing))
    found = outcome("error_rate < 1%", [run])
    assert (found.outcome, found.value, found.ci95) == ("missed", 0.1, wilson(80, 800))
    assert found.ci95 == figures.OF_RUN["error_rate"][1](run.summary).ci95


def test_the_error_rate_at_a_level_needs_one_that_counts_in_every_run() -> None:
    def run(code: str | None) -> CheckedRun:
        return measured(of_levels(level(8, code, requests=400, errors=0)))

    assert outcome("error_rate@8 < 1%", [run(None), run(ERRORS)]).outcome == "met"
    found = outcome("error_rate@8 < 1%", [run(None), run("client_limited")])
    assert (found.outcome, found.why) == ("unresolved", "the level is invalid: client_limited")
