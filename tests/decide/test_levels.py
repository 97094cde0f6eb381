"""What stored percentiles say of a limit, where the requests themselves are gone."""

from __future__ import annotations

import msgspec
import pytest

from harness.analysis import slo
from harness.data.judgement import Outcome
from harness.data.levels import LevelSummary
from harness.data.views import Spread
from harness.decide import levels
from tests.builders import summaries

(P99,) = slo.limits({"ttft_p99": 2.0})


def level(spread: Spread) -> LevelSummary:
    return summaries.level(8, ttft_s=spread)


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        (Spread(None, None, None, None, None, None, 0), Outcome.UNRESOLVED),  # nothing was finished
        (Spread(0.5, 0.4, 0.9, None, None, 1.0, 128), Outcome.UNRESOLVED),  # 299 within it are needed
        (Spread(0.5, 0.4, 0.9, 0.95, None, 1.0, 299), Outcome.MET),
        (Spread(0.5, 0.4, 0.9, 1.1, 1.8, 2.4, 1000), Outcome.MET),
        (Spread(0.5, 0.4, 0.9, 1.1, 2.1, 2.4, 1000), Outcome.MISSED),
        (Spread(1.0, 0.4, 0.9, None, None, 2.4, 90), Outcome.UNRESOLVED),  # one of 90 may be all that is late
        (Spread(2.0, 1.9, 2.5, None, None, 3.0, 90), Outcome.MISSED),  # a tenth is late
    ],
)
def test_a_stored_percentile_decides_with_enough_samples_only(spread: Spread, expected: Outcome) -> None:
    assert levels.outcome([level(spread)], P99) == expected


def test_repeats_have_their_samples_together_and_the_slowest_counts() -> None:
    one, other = Spread(0.5, 0.4, 0.9, None, None, 1.0, 128), Spread(0.6, 0.5, 1.4, 1.6, None, 1.7, 288)
    nothing = Spread(None, None, None, None, None, None, 0)
    assert levels.outcome([level(one), level(other), level(nothing)], P99) == Outcome.MET
    late = msgspec.structs.replace(other, max=2.1)
    assert levels.outcome([level(one), level(late)], P99) == Outcome.MISSED
