"""A worker's pauses and ticks."""

from harness.load.schedule import pause_after, tick_ns


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
    assert (tick_ns(0.002, 0.0256), tick_ns(0.002, 0.001)) == (100_000, 50_000), "half of it is 0.2 % of a request"
