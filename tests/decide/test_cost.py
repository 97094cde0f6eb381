import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.decide.plan.question import Tokens, busy, months_to_pay, tco, usd_per_request, with_spares
from harness.spec.work import usd_per_million


def output(amount):
    return Tokens(amount, "output")


def total(amount):
    return Tokens(amount, "total")


def test_dollars_per_million_tokens():
    assert usd_per_million(2, 6000) == pytest.approx(0.0926, rel=0.01)  # G16
    assert usd_per_million(2, 6497) == pytest.approx(0.0855, rel=0.01)  # at the model's own knee
    assert usd_per_million(3, 5000) == pytest.approx(0.1667, rel=0.02)  # G23


def test_a_request_costs_its_tokens():
    assert usd_per_request(0.17, 500 + 200) == pytest.approx(0.000119, rel=1e-12)  # G24


def test_ownership_is_gpus_and_everything_around_them():
    assert tco(10, 3, 720, 500, 1000, 500, 5000) == 28_600  # G25


def test_an_effort_breaks_even_when_its_savings_have_paid_for_it():
    assert months_to_pay(50_000, 10_000) == 5  # G26
    assert months_to_pay(50_000, 0) == math.inf


def test_replicas_with_a_redundancy_factor():
    exact = busy(10, total(500 + 200), total(5000)) / 0.7 * 1.25
    assert exact == pytest.approx(2.5, rel=1e-12)  # G28
    assert math.ceil(exact) == 3


def test_output_and_total_tokens_give_the_same_replicas_when_each_is_kept_to():
    # G29: of 700 tokens 200 are output, so 6000 output tok/s are 21,000 tokens/s in all.
    by_output = busy(100, output(200), output(6000)) / 0.7 * 1.25
    by_total = busy(100, total(700), total(21_000)) / 0.7 * 1.25
    assert by_output == pytest.approx(5.95, rel=0.005)
    assert by_total == pytest.approx(by_output)


def test_mixing_total_tokens_with_an_output_rate_is_refused():
    with pytest.raises(HarnessError, match="700 total tokens cannot be divided by 6000 output tokens/s"):
        busy(100, total(700), output(6000)) / 0.7 * 1.25


def test_replicas_keep_headroom_and_survive_their_spares():
    # 100·200/(6000·0.7) = 4.76 → 5; 100·200/6000 = 3.33 → 4, plus two that may be down = 6
    assert with_spares(busy(100, output(200), output(6000)), 0.7, spare=1) == 5
    assert with_spares(busy(100, output(200), output(6000)), 0.7, spare=2) == 6


def test_a_fleet_that_fits_exactly_needs_no_machine_more():
    assert with_spares(busy(21, output(100), output(300)), 0.7, spare=0) == 10


@given(st.floats(0.1, 1e4), st.floats(1, 1e4), st.floats(10, 1e5), st.floats(0.1, 1), st.integers(0, 5))
def test_the_fleet_carries_the_peak_even_with_its_spares_down(rate, tokens, x, utilization, spare):
    n = with_spares(busy(rate, output(tokens), output(x)), utilization, spare)
    assert (n - spare) * x >= rate * tokens * (1 - 1e-6)
    assert n * x * utilization >= rate * tokens * (1 - 1e-6)
