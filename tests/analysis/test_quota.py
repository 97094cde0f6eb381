"""Where a quota, and not the server, sets what is measured."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis.rules.observed import Observed, quota_limited
from harness.analysis.telemetry import quota_left
from harness.data.record import Sample
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
