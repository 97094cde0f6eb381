"""An open loop's figures start at the schedule, and say when there is no steady state or the schedule was not kept."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

import numpy as np
import pytest

from harness.analysis import curve
from harness.analysis.figures import level_summary
from harness.analysis.rules.requests import NEAR, TOO_NEAR, Conditions
from harness.analysis.table import Table
from harness.analysis.window import backlog
from harness.data.levels import LevelSummary
from harness.data.record import Level, Record
from harness.spec.traffic import parse
from harness.workload.arrivals import due_times
from tests.builders.records import request


def sent(due: float, *, lag: float = 0.0, takes: float = 1.0, **changes: Any) -> Record:
    """A request that was due, left `lag` later, and answered with nine tokens over `takes` from its send on."""
    at = due + lag
    arrivals = [at + takes * (0.2 + 0.1 * i) for i in range(9)]
    return request(at, arrivals, scheduled_s=due, concurrency=None, **changes)


def level(
    records: list[Record], start: float, end: float, rate: float, conditions: Conditions = Conditions()
) -> LevelSummary:
    return level_summary(Table.of(records), Level(0, None, 0, 0.0, start, end, end + 1.0, rate=rate), conditions)


def codes(s: LevelSummary) -> dict[str, str]:
    return {v.code: v.level for v in s.verdicts}


def test_headline_latencies_start_at_the_schedule_and_those_from_the_send_stand_beside_them() -> None:
    s = level([sent(i / 4, lag=0.003) for i in range(240)], 5.0, 45.0, 4.0)
    assert s.from_send is not None
    assert (s.ttft_s.mean, s.from_send.ttft_s.mean) == (pytest.approx(0.203), pytest.approx(0.2))
    assert (s.e2e_s.mean, s.from_send.e2e_s.mean) == (pytest.approx(1.003), pytest.approx(1.0))
    assert s.lag_s.mean == pytest.approx(0.003)
    assert (s.concurrency, s.rate, s.offered_requests_per_s) == (None, 4.0, pytest.approx(4.0))
    assert s.in_flight == pytest.approx(4.0)
    assert codes(s) == {"too_few_samples": "note"}


def test_a_request_belongs_to_the_window_in_which_it_was_due() -> None:
    late = sent(9.5, lag=2.0)
    s = level([sent(5.5), late, sent(11.5)], 5.0, 10.0, 1.0)
    assert s.requests == 2
    assert s.ttft_s.max == pytest.approx(2.2)


def test_a_schedule_that_was_kept_late_is_invalid() -> None:
    records = [sent(i / 4, lag=0.02) for i in range(240)]
    assert codes(level(records, 5.0, 45.0, 4.0))["schedule_not_kept"] == "invalid"


def test_a_rate_that_was_not_offered_is_invalid_and_chance_is_not() -> None:
    records = [sent(i / 4) for i in range(2400)]
    assert codes(level(records, 5.0, 585.0, 5.0))["schedule_not_kept"] == "invalid"
    chance = [sent(t) for t in poisson(4.0, 60.0, seed=3)]
    found = level(chance, 5.0, 45.0, 4.0)
    assert found.offered_requests_per_s is not None
    assert "schedule_not_kept" not in codes(found)


def test_above_the_sustainable_rate_there_are_rates_and_no_latencies() -> None:
    # One server, one second a request, two a second are due: the queue grows by one a second.
    free, records = 0.0, []
    for i in range(120):
        due = i / 2
        free = max(free, due) + 1.0
        records.append(sent(due, takes=free - due))
    s = level(records, 5.0, 45.0, 2.0)
    assert codes(s)["unstable"] == "invalid"
    assert (s.ttft_s.mean, s.ttft_s.p50, s.e2e_s.max, s.itl_s.mean, s.from_send) == (None, None, None, None, None)
    assert s.offered_requests_per_s == pytest.approx(2.0)
    assert s.requests_per_s.mean == pytest.approx(1.0, abs=0.05)
    assert "little_mismatch" not in codes(s)
    assert not {"too_few_samples", "window_too_short"} & set(codes(s)), "80 requests began, and all succeeded"


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    draw, due, out = random.Random(seed), 0.0, []
    while due < seconds:
        due += draw.expovariate(rate)
        out.append(due)
    return out


@pytest.mark.parametrize("window", [12.0, 40.0])
def test_a_steady_open_loop_is_rarely_called_unstable(window: float) -> None:
    # Poisson arrivals, exponential service without a queue: N is Poisson about 8, correlated over a request's time.
    rising = 0
    for seed in range(200):
        service = random.Random(1000 + seed)
        records = [sent(t, takes=service.expovariate(1.0)) for t in poisson(8.0, window + 12.0, seed)]
        found = backlog(Table.of(records), 10.0, 10.0 + window)
        assert found is not None
        rising += found.rising
    assert rising <= 14, "2.5 % are expected by chance; 7 % would be beyond it"


def served(kind: str, rate: float, seed: int, *, seats: int, takes: float, end: float) -> list[Record]:
    """Requests that arrive by `kind` at a server that answers each in `takes` seconds, and `seats` at a time."""
    free, records = [0.0] * seats, []
    for due in itertools.takewhile(lambda t: t < end, due_times(parse(kind), rate, seed=seed, level=0)):
        done = max(heapq.heappop(free), due) + takes
        heapq.heappush(free, done)
        records.append(sent(due, takes=done - due))
    return records


@pytest.mark.parametrize(("kind", "rate"), [("gamma(0.5)", 10.0), ("gamma(0.25)", 20.0), ("poisson", 50.0)])
def test_a_burst_in_a_short_window_is_no_overload(kind: str, rate: float) -> None:
    # Twelve seats that answer in 0.12 s serve 100 a second.
    known = Conditions(traffic=parse(kind))
    found = [
        level(served(kind, rate, seed, seats=12, takes=0.12, end=6.0), 0.5, 3.5, rate, known) for seed in range(100)
    ]
    assert sum("unstable" in codes(s) for s in found) <= 1
    assert sum(s.e2e_s.mean is None for s in found) <= 1


@pytest.mark.parametrize("window", [3.0, 12.0])
def test_a_server_that_falls_behind_in_bursts_is_found_in_a_short_window(window: float) -> None:
    kind, rate = "gamma(0.5)", 150.0
    known = Conditions(traffic=parse(kind))
    for seed in range(20):
        records = served(kind, rate, seed, seats=12, takes=0.12, end=window + 6.0)
        assert codes(level(records, 0.5, 0.5 + window, rate, known))["unstable"] == "invalid"


def test_a_server_that_completed_what_was_asked_for_did_not_fall_behind() -> None:
    # 12 a second are due for a while where 10 were asked for, and the server completes 11.
    records, free = [], 0.0
    for i in range(480):
        due = i / 12
        free = max(free, due) + 1 / 11
        records.append(sent(due, takes=free - due))
    assert "unstable" not in codes(level(records, 5.0, 35.0, 10.0))
    assert codes(level(records, 5.0, 35.0, 12.0))["unstable"] == "invalid"


def at_rate(kind: str, rate: float, end: float, **changes: Any) -> list[Record]:
    due = due_times(parse(kind), rate, seed=0, level=0)
    return [sent(t, **changes) for t in itertools.takewhile(lambda t: t < end, due)]


def test_a_rate_that_varies_is_no_queue_that_grows() -> None:
    # 5 are in flight until 60 s and 35 from then on: a rise within a period only.
    table = Table.of(at_rate("series(0s:5,20s:35,gaps=constant)", 20.0, 300.0))
    within, over = backlog(table, 50.0, 65.0), backlog(table, 50.0, 250.0, 40.0)
    assert within is not None
    assert within.rising
    assert over is not None
    assert not over.rising
    assert abs(over.slope) < 0.01
    assert backlog(table, 50.0, 170.0, 40.0) is None, "three periods"


def test_a_queue_that_grows_from_period_to_period_is_one() -> None:
    # Every answer takes a hundredth of a second more for each second since the start.
    records = [
        sent(r.scheduled_s, takes=0.01 * r.scheduled_s) for r in at_rate("wave(period=5s,low=1,high=9)", 5.0, 120.0)
    ]
    found = backlog(Table.of(records), 20.0, 100.0, 5.0)
    assert found is not None
    assert found.rising
    assert found.slope == pytest.approx(0.05, rel=0.2)


@pytest.mark.parametrize(("start", "end"), [(50.0, 90.0), (50.0, 75.0), (45.0, 60.0)])
def test_a_schedule_is_held_against_the_rate_of_its_window(start: float, end: float) -> None:
    kind = "series(0s:5,20s:35,gaps=constant)"
    kept = level(at_rate(kind, 20.0, 120.0), start, end, 20.0, Conditions(traffic=parse(kind)))
    assert "schedule_not_kept" not in codes(kept)
    fewer = level(at_rate(kind, 10.0, 120.0), start, end, 20.0, Conditions(traffic=parse(kind)))
    assert codes(fewer)["schedule_not_kept"] == "invalid"


def test_the_number_of_requests_in_bursts_scatters_by_more_than_its_root() -> None:
    # 400 are due and 320 come: four roots below, two where the gaps' variance is four times Poisson's.
    records = [sent(i / 8) for i in range(480)]
    for kind, found in (("poisson", True), ("gamma(0.25)", False)):
        s = level(records, 5.0, 45.0, 10.0, Conditions(traffic=parse(kind)))
        assert ("schedule_not_kept" in codes(s)) is found


def test_a_trace_is_held_against_its_own_times_and_not_against_its_mean_rate() -> None:
    # A trace of 10 a second in the mean, of which 4 a second are due in this window.
    trace = Conditions(traffic=parse("trace"))
    assert "schedule_not_kept" not in codes(level([sent(i / 4) for i in range(240)], 5.0, 45.0, 10.0, trace))
    late = level([sent(i / 4, lag=0.2) for i in range(240)], 5.0, 45.0, 10.0, trace)
    assert codes(late)["schedule_not_kept"] == "invalid"


def test_nothing_in_flight_has_no_trend() -> None:
    assert backlog(Table.of([sent(0.0)]), 10.0, 20.0) is None


def test_open_levels_are_no_points_of_the_curve() -> None:
    assert curve.points_of([level([sent(i / 4) for i in range(240)], 5.0, 45.0, 4.0)]) == []


def test_a_client_near_its_ceiling_is_doubted_and_never_void() -> None:
    records = [sent(i / 4) for i in range(240)]
    window = Level(0, None, 0, 0.0, 5.0, 45.0, 46.0, rate=4.0)

    def at(share: float, *, lower_bound: bool = False) -> LevelSummary:
        events = float(np.count_nonzero((Table.of(records).arrival >= 5) & (Table.of(records).arrival < 45))) / 40
        known = Conditions(ceiling=events / share, ceiling_is_lower_bound=lower_bound)
        return level_summary(Table.of(records), window, known)

    assert at(0.3).client.ceiling_fraction == pytest.approx(0.3)
    assert not {"client_busy", "client_limited"} & set(codes(at(0.49)))
    assert codes(at(0.51))["client_busy"] == "doubt"
    assert codes(at(0.99))["client_busy"] == "doubt"
    assert "client_limited" not in codes(at(0.99))
    assert "client_busy" not in codes(at(0.79, lower_bound=True)), "what it follows at most is not known then"
    assert codes(at(0.81, lower_bound=True))["client_busy"] == "doubt"
    assert at(0.99).client.limited is False
    assert NEAR < TOO_NEAR
