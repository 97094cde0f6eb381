import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.decide.plan.question import with_spares
from harness.spec.work import usd_per_million


def test_dollars_per_million_tokens():
    assert usd_per_million(2, 6000) == pytest.approx(0.0926, rel=0.01)  # G16
    assert usd_per_million(2, 6497) == pytest.approx(0.0855, rel=0.01)  # at the model's own knee
    assert usd_per_million(3, 5000) == pytest.approx(0.1667, rel=0.02)  # G23


def test_replicas_keep_headroom_and_survive_their_spares():
    # 100·200/(6000·0.7) = 4.76 → 5; 100·200/6000 = 3.33 → 4, plus two that may be down = 6
    assert with_spares(100 * 200 / 6000, 0.7, spare=1) == 5
    assert with_spares(100 * 200 / 6000, 0.7, spare=2) == 6


def test_a_fleet_that_fits_exactly_needs_no_machine_more():
    assert with_spares(21 * 100 / 300, 0.7, spare=0) == 10


@given(st.floats(0.1, 1e4), st.floats(1, 1e4), st.floats(10, 1e5), st.floats(0.1, 1), st.integers(0, 5))
def test_the_fleet_carries_the_peak_even_with_its_spares_down(rate, tokens, x, utilization, spare):
    n = with_spares(rate * tokens / x, utilization, spare)
    assert (n - spare) * x >= rate * tokens * (1 - 1e-6)
    assert n * x * utilization >= rate * tokens * (1 - 1e-6)
