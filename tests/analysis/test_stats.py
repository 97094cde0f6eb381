"""Intervals against printed tables, definitions, and what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.stats import (
    SAMPLES,
    Z95,
    batch_means,
    batches,
    fit_error,
    incomplete_beta,
    lag1,
    percentiles,
    running_means,
    scatter_within,
    slope,
    spread,
    t_quantile,
    wilson,
)


@pytest.mark.parametrize(
    ("p", "nu", "table"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 5, 2.5706),
        (0.975, 9, 2.2622),
        (0.975, 30, 2.0423),
        (0.975, 120, 1.9799),
        (0.95, 10, 1.8125),
        (0.995, 4, 4.6041),
        (0.025, 9, -2.2622),
    ],
)
def test_t_quantiles_are_those_of_the_printed_table(p: float, nu: int, table: float) -> None:
    assert t_quantile(p, nu) == pytest.approx(table, abs=6e-5)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(0.975, 1e6) == pytest.approx(Z95, abs=1e-5)


@given(st.integers(1, 30), st.integers(1, 30), st.floats(0.01, 0.99))
def test_the_incomplete_beta_is_the_binomial_tail(a: int, b: int, x: float) -> None:
    n = a + b - 1
    tail = sum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert incomplete_beta(a, b, x) == pytest.approx(tail, abs=1e-10)


def test_wilson_s_interval_is_the_published_one() -> None:
    low, high = wilson(15, 148) or (0.0, 0.0)  # Newcombe 1998, table I: 0.0624 to 0.1605
    assert (low, high) == (pytest.approx(0.0624, abs=5e-5), pytest.approx(0.1605, abs=5e-5))
    assert wilson(0, 20) == (0.0, pytest.approx(0.1611, abs=5e-5))
    assert wilson(0, 0) is None


@pytest.mark.parametrize("q", sorted(SAMPLES))
def test_a_percentile_needs_the_fewest_samples_that_leave_two_beyond_it(q: float) -> None:
    def at_most_one_beyond(n: int) -> float:
        p = 1 - q / 100
        return (1 - p) ** n + n * p * (1 - p) ** (n - 1)

    assert at_most_one_beyond(SAMPLES[q]) <= 0.01 < at_most_one_beyond(SAMPLES[q] - 1)


def test_a_percentile_that_the_samples_do_not_carry_is_null() -> None:
    values = np.arange(700.0)
    for q, needed in SAMPLES.items():
        if needed <= 700:
            assert percentiles(values[:needed], [q]) != [None]
        assert percentiles(values[: needed - 1], [q]) == [None]


def test_a_spread_leaves_out_nans_and_counts_what_is_left() -> None:
    s = spread(np.array([math.nan, *range(64)]))
    assert (s.mean, s.p50, s.p90, s.p95, s.max, s.n) == (31.5, 31.5, pytest.approx(56.7), None, 63.0, 64)
    empty = spread(np.array([math.nan]))
    assert (empty.mean, empty.max, empty.n) == (None, None, 0)


def test_a_spread_leaves_the_values_as_they_are_unless_it_may_reorder_them() -> None:
    values = np.array([3.0, 1.0, 2.0] * 100)
    before = values.copy()
    found = spread(values, None, 2.0)
    assert np.array_equal(values, before)
    assert spread(values, None, 2.0, reorder=True) == found
    assert sorted(values) == sorted(before)


def test_the_effective_count_decides_on_percentiles_but_not_on_the_mean() -> None:
    s = spread(np.arange(1000.0), n=30)
    assert (s.mean, s.p50, s.p90, s.n) == (499.5, 499.5, None, 30)


def series(counts: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """One arrival in the middle of each second."""
    return np.arange(len(counts)) + 0.5, np.array(counts, dtype=float)


def test_batches_leave_out_what_lies_outside_the_window() -> None:
    times = np.array([-0.1, 0.0, 0.9, 1.0, 1.999, 2.0])
    assert batches(times, np.array([1.0, 2, 4, 8, 16, 32]), 0.0, 2.0, 2).tolist() == [6.0, 24.0]


def test_the_interval_is_student_s_t_over_the_batches() -> None:
    estimate = batch_means(*series([8, 12] * 5), 0.0, 10.0, 0.5)
    half = 2.2622 * math.sqrt(40 / 9) / math.sqrt(10)  # s² = 10·2²/9
    assert estimate.mean == 10.0
    assert estimate.ci95 == (pytest.approx(10 - half, abs=1e-3), pytest.approx(10 + half, abs=1e-3))


def test_a_window_below_twenty_request_times_has_no_interval() -> None:
    assert batch_means(*series([10] * 10), 0.0, 10.0, 0.5).ci95 is not None
    assert batch_means(*series([10] * 10), 0.0, 10.0, 0.51).ci95 is None
    assert batch_means(*series([10] * 10), 0.0, 10.0, None).ci95 is None


def test_correlated_batches_are_doubled_until_they_are_not() -> None:
    counts = [9.0, 9, 11, 11] * 10  # correlated second by second, opposed in pairs
    assert lag1(np.array(counts[:40])) == pytest.approx(0.0, abs=0.05)
    drifting = [float(v) for v in np.repeat([9, 11, 11, 9, 9, 11, 9, 11, 11, 9], 4)]
    assert lag1(np.array(drifting)) > 0.2
    estimate = batch_means(*series(drifting), 0.0, 40.0, 0.5)
    pairs = np.array(drifting).reshape(-1, 4).mean(1)  # doubled twice: 40 batches, 20, 10
    half = 2.2622 * pairs.std(ddof=1) / math.sqrt(10)
    assert estimate.ci95 == (pytest.approx(10 - half, abs=1e-3), pytest.approx(10 + half, abs=1e-3))


def test_correlation_that_is_left_widens_the_interval() -> None:
    """Ten batches with lag-1 correlation r: (r + 1/10)/(1 - 4/10), by Kendall's bias, and √((1 + ρ)/(1 - ρ)) by it."""
    rates = np.array([10.0, 11, 12, 10, 8, 10, 9, 10, 11, 9])
    r = lag1(rates)
    assert 0.0 < r < 0.2
    rho = (r + 0.1) / 0.6
    half = 2.2622 * rates.std(ddof=1) / math.sqrt(10) * math.sqrt((1 + rho) / (1 - rho))
    estimate = batch_means(*series(list(rates)), 0.0, 10.0, 0.5)
    assert estimate.ci95 == (pytest.approx(10 - half, rel=1e-4), pytest.approx(10 + half, rel=1e-4))


def test_a_drift_of_less_than_a_percent_keeps_its_interval_which_holds_every_batch() -> None:
    drifting = [1000.0 + 0.2 * i for i in range(40)]
    assert lag1(np.array(drifting)) > 0.2
    estimate = batch_means(*series(drifting), 0.0, 40.0, 0.5)
    # Ten batches of four: the first is 3.6 below the mean, the last as much above.
    assert estimate.ci95 == (pytest.approx(1003.9 - 3.6), pytest.approx(1003.9 + 3.6))


def test_a_long_window_has_no_more_than_forty_batches() -> None:
    """Rates that alternate every second would scatter in batches of a second; in those of 10 they do not."""
    estimate = batch_means(*series([9.0, 11.0] * 200), 0.0, 400.0, 0.5)
    assert estimate.ci95 == (pytest.approx(10.0), pytest.approx(10.0))


def test_a_running_count_has_the_interval_of_the_arrivals_that_it_counts() -> None:
    rates = [10.0, 11, 12, 10, 8, 10, 9, 10, 11, 9]

    count = np.concatenate([[0.0], np.cumsum(rates)])
    assert batch_means(*series(rates), 0.0, 10.0, 0.5).ci95 is not None
    by_count = running_means(np.arange(11.0), count, 0.0, 10.0, 0.5)
    by_arrival = batch_means(*series(rates), 0.0, 10.0, 0.5)
    assert by_count.mean == pytest.approx(by_arrival.mean)
    assert by_count.ci95 == pytest.approx(by_arrival.ci95)


def test_the_slope_s_error_is_the_scatter_about_the_line() -> None:
    # y = 1 + 2t with residuals +1, -1, -1, +1 at t = 0..3: 4 over 2 degrees of freedom over a lever of 5.
    rise, error = slope(np.arange(4.0), np.array([2.0, 2.0, 4.0, 8.0]))
    assert (rise, error) == (pytest.approx(2.0), pytest.approx(math.sqrt(4 / 2 / 5)))


def test_a_throughput_that_drifts_all_along_has_no_interval() -> None:
    assert batch_means(*series([float(i) for i in range(40)]), 0.0, 40.0, 0.5).ci95 is None


def test_the_fit_s_error_is_widened_for_few_batches() -> None:
    se, assumed = fit_error(*series([90, 110, 90, 110]), 0.0, 4.0, 1.0, 40)
    assert not assumed
    assert se == pytest.approx(math.sqrt(400 / 3) / 2 * 3.18245 / 1.959964, rel=1e-4)


def test_no_level_is_known_better_than_half_a_percent() -> None:
    assert fit_error(*series([100] * 20), 0.0, 20.0, 1.0, 40) == (0.5, False)


def test_a_level_too_short_for_four_batches_assumes_its_error() -> None:
    assert fit_error(*series([100] * 3), 0.0, 3.0, 1.0, 100) == (10.0, True)
    assert fit_error(*series([100] * 3), 0.0, 3.0, 1.0, 10**6) == (2.0, True)
    assert fit_error(*series([0] * 30), 0.0, 30.0, 1.0, 0) == (None, True)


def test_past_the_knee_answers_that_fit_four_times_stand_in_for_requests_that_wait() -> None:
    """3 request times fit, of which an answer streams a quarter: its error is measured as if these were requests."""
    counts = series([90, 110, 90, 110, 100, 90, 110, 100, 90, 110, 100, 100])
    waiting = fit_error(*counts, 0.0, 12.0, 4.0, 40, 1.0)
    assert waiting == fit_error(*counts, 0.0, 12.0, 1.0, 40)
    assert not waiting[1]
    assert fit_error(*counts, 0.0, 12.0, 4.0, 40, 3.5) == fit_error(*counts, 0.0, 12.0, 4.0, 40)
    assert fit_error(*counts, 0.0, 12.0, 4.0, 40, 0.0)[1], "one token has no length"
    assert fit_error(*counts, 0.0, 12.0, 2.0, 40, 0.5) == fit_error(*counts, 0.0, 12.0, 2.0, 40)


@pytest.mark.parametrize(("completions", "error"), [(1, 1.0), (4, 0.5)])
def test_a_request_s_own_prompt_and_answer_are_no_error(completions: int, error: float) -> None:
    """Requests in step, each silent for 1.5 s and then streaming for 0.5: the window of 2 s holds all of each."""
    tokens = series([0] * 15 + [completions] * 5)
    se, assumed = fit_error(tokens[0] / 10, tokens[1], 0.0, 2.0, 2.0, completions, 0.5)
    assert (se, assumed) == (pytest.approx(error * completions * 2.5), True)


def poisson(rng: np.random.Generator, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    times = rng.uniform(0, seconds, rng.poisson(50 * seconds))
    return times, np.ones(len(times))


def test_the_interval_covers_the_rate_of_a_poisson_stream() -> None:
    rng = np.random.default_rng(1)
    intervals = [ci for _ in range(400) if (ci := batch_means(*poisson(rng, 100), 0.0, 100.0, 1.0).ci95)]
    assert len(intervals) > 390  # chance correlation withholds hardly any
    assert 0.92 <= np.mean([low <= 50 <= high for low, high in intervals]) <= 0.98


def test_the_fit_s_error_covers_like_a_standard_error_even_from_four_batches() -> None:
    rng = np.random.default_rng(2)
    for seconds in (4.0, 8.0, 30.0):
        hits = 0
        for _ in range(400):
            times, ones = poisson(rng, seconds)
            se, assumed = fit_error(times, ones, 0.0, seconds, 1.0, 100)
            assert se is not None
            assert not assumed
            hits += abs(len(times) / seconds - 50) <= Z95 * se
        assert 0.92 <= hits / 400 <= 0.98, seconds


def test_what_lies_between_the_values_of_a_group_is_found_beyond_their_errors() -> None:
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(400), 3)
    errors = rng.uniform(0.01, 0.05, len(group))
    values = group + rng.normal(0, errors)
    assert scatter_within(values, errors, group) < 0.01
    assert scatter_within(values + rng.normal(0, 0.08, len(group)), errors, group) == pytest.approx(0.08, rel=0.1)


def test_a_group_of_one_and_one_without_an_error_tell_nothing() -> None:
    group = np.array([0, 1, 1, 2, 2])
    values = np.array([5.0, 1.0, 3.0, 9.0, 11.0])
    errors = np.array([0.1, math.nan, 0.1, 1.0, 1.0])
    assert scatter_within(values, errors, group) == pytest.approx(1.0)
    assert scatter_within(values[:3], errors[:3], group[:3]) == 0
    assert scatter_within(values[:0], errors[:0], group[:0]) == 0
