"""How long a server needs after a spike, by records worked out by hand."""

from __future__ import annotations

import pytest

from harness.analysis import patterns
from harness.analysis.table import Table
from harness.data.record import Level, Record
from harness.spec import traffic
from tests.builders.records import request

SPIKE = "spike(period=10s,for=1s,low=2,high=20,at=3s)"
LEVEL = Level(0, None, 0, 0.0, 0.0, 30.0, 30.0, rate=3.8)


def served(slow: list[tuple[float, float]]) -> list[Record]:
    """Two requests a second for 30 s, each with its first token after 0.2 s, or after 1 s in the `slow` times."""
    times = [0.5 * k for k in range(60)]
    return [request(t, [t + (1.0 if any(a <= t < b for a, b in slow) else 0.2)]) for t in times]


def recoveries(slow: list[tuple[float, float]], arrivals: str = SPIKE, level: Level = LEVEL) -> list[float | None]:
    return patterns.recoveries(Table.of(served(slow)), level, traffic.parse(arrivals))


def test_the_last_request_that_waits_ends_the_recovery() -> None:
    """Spikes end at 4, 14 and 24 s; after the third the window ends before the next."""
    assert recoveries([(3.0, 6.0), (13.0, 14.0)]) == pytest.approx([1.5, 0.0])


def test_a_server_that_is_not_itself_before_the_next_spike_has_no_recovery() -> None:
    assert recoveries([(3.0, 13.0)]) == [None, pytest.approx(0.0)]


def test_a_server_that_stays_slow_after_a_spike_never_recovers() -> None:
    assert recoveries([(3.0, 30.0)]) == [None, None]


def test_a_request_that_fails_in_place_of_a_first_token_is_late() -> None:
    failed = request(5.25, error="timeout")
    found = patterns.recoveries(Table.of([*served([]), failed]), LEVEL, traffic.parse(SPIKE))
    assert found == pytest.approx([1.25, 0.0])


@pytest.mark.parametrize(
    "arrivals",
    [
        "poisson",
        "wave(period=10s,low=2,high=20)",
        "series(0s:2,3s:20,4s:5,10s)",
        "series(0s:2,3s:20,4s:2,6s:20,7s:2,10s)",
    ],
)
def test_traffic_without_a_spike_has_none(arrivals: str) -> None:
    assert recoveries([(3.0, 6.0)], arrivals) == []


def test_a_closed_loop_has_none() -> None:
    assert recoveries([(3.0, 6.0)], level=Level(0, 4, 0, 0.0, 0.0, 30.0, 30.0)) == []
