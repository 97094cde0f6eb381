"""Why a level is measured and why a search ends: words from enumerations, and back."""

from __future__ import annotations

import math

from harness.search.decision import (
    End,
    Part,
    Reason,
    Stop,
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
    over = end(Stop.NOTHING_HELPS, found="it rises", why="10 s left do not suffice")
    assert (over.over, over.reason) == (True, "stopped: it rises; 10 s left do not suffice")
    assert type(measure(1, Reason.DOUBLING).reason) is str, "files hold the sentence"


def test_an_end_that_was_planned_is_no_stop() -> None:
    for over in (end(End.ALL_MEASURED, loads="levels"), end(End.QUICK, state="found")):
        assert not over.stopped
        assert over.cause == over.reason
    stop = end(Stop.DEAD, since_s=2.0)
    assert (stop.stopped, stop.cause) == (True, "nobody has answered since 2.0 s into the run")
    assert stop.reason == f"stopped: {stop.cause}", "as folders of earlier formats have it"
    assert len(Stop.__members__) == len(list(Stop)), "none is another's alias"


def test_a_load_stands_in_a_sentence_as_it_was_measured() -> None:
    assert Part.RISES.words(concurrency=64.0) == "throughput still rises at 64"


def test_what_is_left_is_worded_by_what_is_bounded() -> None:
    assert not_enough(None, None, "more") == ""
    assert not_enough(0.1, 10, "more") == "no time is left for more"
    assert not_enough(None, 0, "more") == "no request is left for more"
    assert not_enough(1.5, 10, "more") == "the 1.5 s and 10 requests left are too few for more"
    assert (interval_width(0.1), interval_width(math.inf)) == ("is 10% wide", "has no upper end")
