"""What a run says of one load: the level at the knee, and the throughput there."""

from __future__ import annotations

import math

import pytest

from harness.analysis import answer
from harness.data.views import Estimate, Value
from tests.builders import summaries


def test_throughput_at_a_load_is_the_curve_s_and_not_that_of_a_lucky_level() -> None:
    made = summaries.full()
    lucky = summaries.level(48, output_tokens_per_s=Estimate(2100.0))
    found = answer.throughput(made.curve, [lucky])
    assert found.value == pytest.approx(summaries.P, rel=1e-3)
    assert found.ci95 == pytest.approx((0.99 * summaries.P, 1.01 * summaries.P), rel=1e-3)


def test_without_a_curve_repeats_are_pooled_and_have_an_interval_where_each_has_its_own() -> None:
    """One standard error is 0.4 %, taken as 0.5 %; of two repeats 0.35 %."""
    one, other = summaries.level(8, 0.0), summaries.level(8, 0.002)
    found = answer.throughput(None, [one, other])
    X = summaries.throughput(8 * 0.992) * 1.001
    assert found.value == pytest.approx(X, rel=1e-4)
    assert found.ci95 is not None
    assert found.ci95[0] == pytest.approx(X * math.exp(-1.96 * 0.005 / math.sqrt(2)), rel=1e-3)
    short = summaries.level(8, output_tokens_per_s=Estimate(1000.0))
    assert answer.throughput(None, [one, short]).ci95 is None


def test_a_load_outside_the_levels_of_the_curve_has_the_level_s_own() -> None:
    above = summaries.level(128, output_tokens_per_s=Estimate(1700.0))
    assert answer.throughput(summaries.full().curve, [above]) == Value(1700.0)
