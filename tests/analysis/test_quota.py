"""Where a quota, and not the server, sets what is measured."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.analysis.rules.levels import Concluded, quota_plateau
from harness.analysis.rules.observed import Observed, quota_limited
from harness.analysis.telemetry import quota_left
from harness.data.judgement import CurveState, Verdict
from harness.data.levels import LevelSummary
from harness.data.record import Sample
from harness.data.summary import Curve
from harness.data.views import Value
from tests.builders.summaries import level


def samples(**figures: list[float]) -> list[Sample]:
    return [Sample(float(i), "quota", name, x) for name, xs in figures.items() for i, x in enumerate(xs)]


def test_the_least_that_was_left_of_a_quota_is_a_share_of_its_limit() -> None:
    seen = samples(limit_tokens=[1000.0] * 4, remaining_tokens=[900.0, 10.0, 500.0, 400.0], remaining_requests=[0.0])
    assert quota_left(seen, (0.0, 10.0)) == {"tokens": 0.01}
    assert quota_left(seen, (2.0, 10.0)) == {"tokens": 0.4}
    assert quota_left([], (0.0, 10.0)) == {}


@pytest.mark.parametrize(
    ("errors", "left", "words"),
    [
        ({"http_429": 3}, {}, "3 of 100 requests were refused with 429: the quota sets"),
        ({}, {"tokens": 0.01, "requests": 0.6}, "1% of the quota of tokens was left: the quota sets"),
        ({"http_5xx": 3}, {"tokens": 0.5}, None),
        ({}, {}, None),
    ],
)
def test_refusals_and_a_quota_that_is_used_up_are_named(
    errors: dict[str, int], left: dict[str, float], words: str | None
) -> None:
    s = msgspec.structs.replace(level(8), requests=100, errors_by_type=errors)
    said = quota_limited.findings(Observed(s=s, quota_left=left))
    assert len(said) == (words is not None)
    assert all(words in each.message and each.at == 8 for each in said if words)


def curve(state: str) -> Curve:
    changes: dict[str, Any] = {"dip": None, "weights": {}, "parameters": {}, "verdicts": []}
    return Curve(
        state=state, family="capped_hyperbola", single_stream_tokens_per_s=Value(1.0), plateau_tokens_per_s=Value(8.0),
        hinge_concurrency=Value(8.0), plateau_reached=True, **changes,
    )  # fmt: skip


def limited(concurrency: int) -> LevelSummary:
    said = quota_limited.findings(Observed(s=level(concurrency), quota_left={"tokens": 0.0}))
    return msgspec.structs.replace(level(concurrency), verdicts=said)


def of_plateau(fitted: Curve | None, *levels: LevelSummary) -> list[Verdict]:
    return quota_plateau.findings(Concluded(curve=fitted, levels=levels))


def test_a_plateau_at_which_the_quota_was_used_up_is_the_quotas() -> None:
    (said,) = of_plateau(curve(CurveState.FOUND), level(4), limited(16))
    assert (said.code, said.at) == ("quota_limited", None)
    assert "stops rising at 8 in flight, and the quota was used up at 16" in said.message


def test_a_quota_below_the_knee_or_without_one_is_not_blamed_for_the_curve() -> None:
    assert of_plateau(curve(CurveState.FOUND), limited(4), level(16)) == []
    assert of_plateau(curve(CurveState.BEYOND), limited(16)) == []
    assert of_plateau(None, limited(16)) == []
