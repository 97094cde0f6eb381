"""Why a level is measured and why a search ends: words from enumerations, and back."""

from __future__ import annotations

import math
from string import Formatter

import pytest

from harness.data.roles import Role, role_of, stopped
from harness.search.decision import (
    End,
    Part,
    Reason,
    end,
    interval_width,
    measure,
    measure_rate,
    not_enough,
)


def test_a_decision_has_its_figures_in_its_reason() -> None:
    step = measure(8, Reason.FEW_LEVELS, levels=5)
    assert (step.concurrency, step.reason, step.over) == (8, "only 5 levels so far: 8 lies near the bend", False)
    assert measure_rate(22.6, Reason.SLO_BETWEEN, met=16.0, missed=32.0).reason == (
        "the SLO is met at 16 and not at 32: 22.6 lies between"
    )
    over = end(End.NOTHING_HELPS, found="it rises", why="10 s left do not suffice")
    assert (over.over, over.reason) == (True, "stopped: it rises; 10 s left do not suffice")
    assert type(measure(1, Reason.DOUBLING).reason) is str, "files hold the sentence"


@pytest.mark.parametrize(
    ("sentence", "role"),
    [
        ("", None),
        ("given", Role.FIXED),
        ("soak at 80% of the SLO knee", Role.SOAK),
        ("the ramp begins with a single stream", Role.FIRST_PASS),
        ("half a doubling: 16 gained nothing", Role.FIRST_PASS),
        ("twice a doubling: the time allows for few levels", Role.FIRST_PASS),
        ("31 again: throughput seems to fall past the hinge", Role.REPEAT),
        ("31 again: throughput seems to fall past the knee", Role.REPEAT),
        ("repeat of 16 against drift", Role.REPEAT),
        ("back to 11 from above", Role.REPEAT),
        ("the hinge lies between 5.63 and 7.54 (95 %): 9 tells most per second", Role.REFINEMENT),
        ("9.7 s are left: 192 tells whether there is a plateau", Role.REFINEMENT),
        ("the SLO is met at 16 and not at 32: 22.6 lies between", Role.SLO),
        ("begin", Role.SLO),
        ("prefill probe: prompts of 116 tokens, one request in flight", Role.PROBE),
        ("as a later version words it", Role.REFINEMENT),
    ],
)
def test_the_role_of_a_level_is_read_from_the_sentence_of_any_version(sentence: str, role: Role | None) -> None:
    assert role_of(sentence) is role


@pytest.mark.parametrize("why", Reason)
def test_every_sentence_reads_back_as_the_role_that_it_is_made_for(why: Reason) -> None:
    first = {Reason.SINGLE_STREAM, Reason.DOUBLING, Reason.FOURFOLD, Reason.HALF_A_DOUBLING}
    again = {Reason.INVALID, Reason.FALLS_AGAIN, Reason.CONTROL}
    rates = {Reason.ONE_IN_FLIGHT, Reason.FIRST_RATE, Reason.RATE_MET, Reason.RATE_MISSED}
    limits = {Reason.SLO_UNRESOLVED, Reason.SLO_MET, Reason.SLO_BETWEEN} | rates
    roles = {
        Reason.SLO_UNDECIDED: Role.SLO_DECISION,
        Reason.FIXED: Role.FIXED,
        Reason.PROMPT_LENGTH: Role.PROBE,
        Reason.SOAK: Role.SOAK,
    }
    roles |= dict.fromkeys(first, Role.FIRST_PASS) | dict.fromkeys(again, Role.REPEAT) | dict.fromkeys(limits, Role.SLO)
    texts = {"known": Part.BETWEEN.words(low=5.0, high=7.0), "what": "the SLO knee"}
    figures = {name: texts.get(name, 1) for _, name, _, _ in Formatter().parse(why.value) if name and name != "level"}
    assert role_of(measure(7, why, **figures).reason) is roles.get(why, Role.REFINEMENT)


def test_an_end_that_was_planned_is_no_stop() -> None:
    for over in (end(End.ALL_MEASURED, loads="levels"), end(End.QUICK, state="found")):
        assert not stopped(over.reason)
    for why in (End.STALLED, End.BUDGET, End.FOUND, End.FEW_LEVELS):
        assert why.stopped
        assert stopped(why.value)


def test_a_load_stands_in_a_sentence_as_it_was_measured() -> None:
    assert Part.RISES.words(concurrency=64.0) == "throughput still rises at 64"


def test_what_is_left_is_worded_by_what_is_bounded() -> None:
    assert not_enough(None, None, "more") == ""
    assert not_enough(1.5, 10, "more") == "the 1.5 s and 10 requests left are too few for more"
    assert (interval_width(0.1), interval_width(math.inf)) == ("is 10% wide", "has no upper end")
