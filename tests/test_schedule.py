"""Starts and pauses."""

from hypothesis import given
from hypothesis import strategies as st

from harness.load.schedule import pause_after, stagger, tick_ns


@given(st.integers(1, 500), st.floats(0, 100))
def test_staggered_starts_lie_within_one_request_time_in_order(slots: int, over: float) -> None:
    delays = stagger(slots, over, "staggered")
    assert len(delays) == slots
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] <= over


def test_a_burst_starts_at_once() -> None:
    assert stagger(3, 5.0, "burst") == [0.0, 0.0, 0.0]


def test_the_pause_grows_with_failures_and_ends_at_a_second() -> None:
    pauses = [pause_after(n) for n in range(2000)]
    assert pauses[0] == 0.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0


def test_the_tick_follows_the_faster_of_itl_and_request_within_its_bounds() -> None:
    assert tick_ns(0.008, None) == 1_000_000
    assert tick_ns(0.1, 0.256) == 1_000_000
    assert tick_ns(1e-6, 1.0) == 250_000
    assert tick_ns(10.0, 1000.0) == 3_000_000
