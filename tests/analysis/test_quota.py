"""Where a quota, or a bound on requests in flight, sets what is measured, and not the server's speed."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from harness.analysis.patterns import taken_at_once
from harness.analysis.rules.observed import Observed, quota_limited, refused_above
from harness.analysis.table import Table
from harness.data.levels import LevelSummary
from harness.data.record import Level, Record
from harness.load.schedule import pause_after
from tests.builders.records import request
from tests.builders.summaries import level

SECONDS, ANSWER_S = 20.0, 0.31


def failed(**errors: int) -> LevelSummary:
    return msgspec.structs.replace(level(8), requests=100, errors_by_type=errors)


def refusing(slots: int, takes: Callable[[float, int], bool], spread: float, seed: int = 0) -> Table:
    """A closed loop against a server that takes a request or not, by the time and by how many it has in flight."""
    draw, records, ends = np.random.default_rng(seed), list[Record](), list[float]()
    waiting = [(slot * 0.01, slot, 0) for slot in range(slots)]
    while waiting and waiting[0][0] < SECONDS:
        at, slot, failures = heapq.heappop(waiting)
        ends = [end for end in ends if end > at]
        if takes(at, len(ends)):
            end = at + ANSWER_S * float(draw.lognormal(0.0, spread))
            records.append(request(at, [at + 0.05, end]))
            ends.append(end)
            heapq.heappush(waiting, (end + 0.001, slot, 0))
        else:
            records.append(request(at, done=at + 0.002, error="http_429"))
            heapq.heappush(waiting, (at + 0.002 + pause_after(failures + 1), slot, failures + 1))
    return Table.of(records)


def bucket(per_s: float, burst: float) -> Callable[[float, int], bool]:
    left = [burst, 0.0]

    def takes(at: float, _: int) -> bool:
        left[:] = [min(burst, left[0] + per_s * (at - left[1])), at]
        free = left[0] >= 1
        left[0] -= free
        return free

    return takes


WINDOW = Level(0, 8, 0, 0.0, 5.0, SECONDS, SECONDS)


def test_refusals_are_named() -> None:
    (said,) = quota_limited.findings(Observed(s=failed(http_429=5)))
    assert said.at == 8
    assert "5 of 100 requests were refused with 429: the quota sets" in said.message
    assert quota_limited.findings(Observed(s=failed(http_5xx=5))) == []


def test_a_bound_on_requests_in_flight_is_named_in_place_of_a_quota() -> None:
    seen = Observed(s=msgspec.structs.replace(failed(http_429=3), taken_at_once=6))
    assert quota_limited.findings(seen) == []
    (said,) = refused_above.findings(seen)
    assert said.message == "the server takes 6 requests at once and refuses more (http_429 3)"
    assert said.advice.startswith("--max-concurrency 6, ")
    (said,) = refused_above.findings(Observed(s=msgspec.structs.replace(failed(http_429=3), taken_at_once=1)))
    assert said.message.startswith("the server takes 1 request at once")


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(("slots", "most"), [(7, 6), (8, 6), (64, 6), (4, 1), (200, 100)])
def test_a_server_that_refuses_beyond_a_number_in_flight_is_seen_with_that_number(
    slots: int, most: int, spread: float
) -> None:
    table = refusing(slots, lambda _, now: now < most, spread)
    assert taken_at_once(table, WINDOW) == most


@pytest.mark.parametrize("spread", [0.0, 0.3])
@pytest.mark.parametrize(("per_s", "burst"), [(0.5, 1), (3, 1), (9, 1), (10, 20), (25, 1), (40, 5)])
def test_a_quota_of_requests_a_second_is_no_bound_on_requests_in_flight(
    per_s: float, burst: float, spread: float
) -> None:
    for seed in range(5):
        assert taken_at_once(refusing(24, bucket(per_s, burst), spread, seed), WINDOW) is None


def test_failures_by_chance_are_no_bound_on_requests_in_flight() -> None:
    for share in (0.02, 0.3, 0.8):
        draw = np.random.default_rng(1)
        table = refusing(16, lambda _, now: draw.random() > share, 0.3)  # noqa: B023
        assert taken_at_once(table, WINDOW) is None
