"""Ratios and their intervals, the spread between runs, and a run that is off; all by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from harness.decide.compare import spread
from harness.decide.compare.spread import Difference, Sample, Variance


def test_two_samples_share_one_variance() -> None:
    """Means 0 and 0.1; variances 1e-4 and 4e-4 of 3 runs, 2.5e-4 together by 4 degrees of freedom."""
    a, b = Sample([0.0, 0.01, -0.01], [0.0] * 3), Sample([0.1, 0.12, 0.08], [0.0] * 3)
    found = spread.difference(a, b, pooled_of(a, b))
    assert found.value == pytest.approx(0.1)
    assert found.se == pytest.approx(math.sqrt(2.5e-4 * 2 / 3))
    assert found.freedom == pytest.approx(4.0)
    assert found.repeated


def test_two_samples_whose_variances_differ_by_far_are_compared_by_welch() -> None:
    """Variances 1e-6 and 1e-2 of 3 runs, F = 10,000: se² = 0.010001/3, and 2 degrees of freedom."""
    a, b = Sample([0.0, 0.001, -0.001], [0.0] * 3), Sample([0.1, 0.2, 0.0], [0.0] * 3)
    found = spread.difference(a, b, pooled_of(a, b))
    assert found.se == pytest.approx(math.sqrt(0.010001 / 3))
    assert found.freedom == pytest.approx(2.0, rel=1e-3)


def pooled_of(*samples: Sample) -> Variance:
    """The variance between the runs of samples at one load."""
    return spread.pooled([[{1.0: (value, 0.0)} for value in each.values] for each in samples], usual=False).run


def test_rounds_take_a_common_drift_out_from_four_on() -> None:
    drift = [0.0, 0.1, 0.2, 0.3]
    a, b = (
        Sample(drift, [0.001] * 4),
        Sample([x + 0.05 + e for x, e in zip(drift, (0.01, -0.01, 0.01, -0.01), strict=True)], [0.001] * 4),
    )
    between = pooled_of(a, b)
    paired = spread.difference(a, b, between, rounds=True)
    assert (paired.value, paired.freedom) == (pytest.approx(0.05), 3.0)
    assert paired.se == pytest.approx(math.sqrt(4e-4 / 3 / 4))
    assert spread.difference(a, b, between).se > 10 * paired.se
    three = [Sample(each.values[:3], each.errors[:3]) for each in (a, b)]
    assert spread.difference(*three, between, rounds=True).se > 10 * paired.se, "below four rounds they are two samples"


def test_repeats_that_agree_by_luck_are_no_better_than_their_windows() -> None:
    lucky, other = Sample([0.0, 0.0, 0.0], [0.02] * 3), Sample([0.01] * 3, [0.02] * 3)
    assert spread.difference(lucky, other, Variance(0.0, 4.0)).se == pytest.approx(0.02 * math.sqrt(2 / 3))


def test_without_repeats_runs_differ_as_is_usual() -> None:
    """3.4 % a run, of 3 degrees of freedom, less than the 5 % of one window: se² = 0.034² + 0.05², t = 3.1824."""
    between = spread.pooled([[{1.0: (0.0, 0.0)}], [{1.0: (0.1, 0.0)}]])
    assert not between.known
    found = spread.difference(Sample([0.0], [0.03]), Sample([0.1], [0.05]), between.run, known=between.known)
    assert (found.se, found.freedom) == (pytest.approx(math.hypot(0.034, 0.05)), 3.0)
    assert (found.repeated, found.known) == (False, False)
    half = 3.1824 * math.hypot(0.034, 0.05)
    assert found.ratio() == pytest.approx((math.exp(0.1), math.exp(0.1 - half), math.exp(0.1 + half)), rel=1e-4)


def rates(*off: float, own: float = 0.0) -> spread.Rates:
    """Runs of eight loads, each off by a share at all of them."""
    return [{float(C): (math.log(C) + each, own) for C in range(1, 9)} for each in off]


def test_the_spread_between_runs_is_pooled_over_stacks() -> None:
    """Two stacks of two runs, ± 1 % and ± 3 %: (2e-4 + 18e-4)/2 by 2 degrees of freedom."""
    found = spread.pooled([rates(0.01, -0.01), rates(0.03, -0.03)], usual=False)
    assert (found.run.value, found.run.freedom) == (pytest.approx(1e-3), 2.0)
    # the levels of a run are off together, so eight of them know no more than one
    assert found.level.freedom == pytest.approx(2.0)
    assert found.at(4.0).value == pytest.approx(1e-3)


def test_what_runs_usually_differ_by_fills_up_to_three_degrees_of_freedom() -> None:
    quiet = Variance(1e-4, 2.0).filled(0.03)
    assert (quiet.value, quiet.freedom) == (pytest.approx((9e-4 + 2e-4) / 3), 3.0)
    loud = Variance(9e-2, 2.0).filled(0.03)  # ten times as much as is usual: it counts for a hundredth of a degree
    assert (loud.value, loud.freedom) == (pytest.approx(9e-2, rel=5e-3), pytest.approx(2.01))


def test_a_load_that_differs_more_than_the_others_keeps_its_own_variance() -> None:
    draw = np.random.default_rng(3)
    sigma = {float(C): 0.2 if C == 5 else 0.01 for C in range(1, 9)}
    runs = [{C: (float(draw.normal(0, own)), 0.0) for C, own in sigma.items()} for _ in range(10)]
    found = spread.pooled([runs[:5], runs[5:]])
    assert found.at(5.0).value > 10 * found.at(1.0).value
    assert found.at(1.0).value < 0.3 * found.level.value
    even = [{C: (float(draw.normal(0, 0.01)), 0.0) for C in sigma} for _ in range(4)]
    alike = spread.pooled([even[:2], even[2:]])
    assert len({round(alike.at(C).value, 12) for C in sigma}) == 1, "where loads do not differ there is one variance"


def starved(
    run: Mapping[float, tuple[float, float]], since: float, times: float = 0.6
) -> dict[float, tuple[float, float]]:
    return {C: (x + (math.log(times) if since <= C else 0.0), own) for C, (x, own) in run.items()}


def test_a_starved_run_of_three_is_named_and_left_out() -> None:
    a, b = list(rates(0.0, 0.008, -0.008)), rates(0.1, 0.109, 0.092)
    (odd,) = spread.odd_runs([[a[0], starved(a[1], 5.0), a[2]], b])
    assert (odd.stack, odd.run, odd.since, odd.left_out) == (0, 1, 5.0, True)
    assert odd.times == pytest.approx(0.6, rel=0.02)
    assert spread.odd_runs([a, b]) == []


def test_of_two_runs_the_slower_is_named_and_none_left_out() -> None:
    a, b = list(rates(0.0, 0.008)), rates(0.1, 0.109)
    (odd,) = spread.odd_runs([[a[0], starved(a[1], 5.0)], b])
    assert (odd.run, odd.left_out) == (1, False)


def test_two_of_three_are_never_left_out() -> None:
    a = list(rates(0.0, 0.004, -0.004))
    found = spread.odd_runs([[a[0], starved(a[1], 1.0, 0.3), starved(a[2], 1.0, 0.1)], rates(0.0, 0.003, -0.003)])
    assert sum(odd.left_out for odd in found) < 2


def test_a_run_s_mean_over_loads_keeps_what_its_levels_share() -> None:
    """Window errors of 1 % over 4 loads average to 0.5 %; FLOOR, 0.5 %, does not."""
    rates = {float(C): (math.log(C), 0.01) for C in (1, 2, 4, 8)}
    found = spread.over_loads([rates], [1.0, 2.0, 4.0, 8.0])
    assert found.values == pytest.approx([1.5 * math.log(2)])
    assert found.errors == pytest.approx([0.005 * math.sqrt(2)])


def test_holm_stops_at_the_first_that_is_not_rejected() -> None:
    assert [shown for _, shown in spread.holm([0.04, 0.03, 0.001])] == [False, False, True]
    assert [shown for _, shown in spread.holm([0.04, 0.01])] == [True, True]
    assert spread.holm([]) == []


def test_p_is_student_s() -> None:
    assert Difference(3.182446, 1.0, 3.0, repeated=True).p == pytest.approx(0.05, abs=1e-6)
    assert Difference(0.0, 1.0, 3.0, repeated=True).p == pytest.approx(1.0)


def test_a_run_without_a_valid_level_has_no_load_in_common() -> None:
    assert spread.aligned([{1.0: (0.0, 0.0), 4.0: (1.0, 0.0)}], [{}]) == [[{}], [{}]]
