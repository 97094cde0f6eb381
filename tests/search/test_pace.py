"""The ramp in time: what it has after how long, within any budget, against a closed-form server in virtual time."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from harness.analysis import curve
from harness.analysis.seats import Occupancy
from harness.data.record import Role
from harness.data.summary import BEYOND, FOUND, NONE, PROVISIONAL
from harness.search import pace, ramp
from harness.search.decision import Decision
from harness.search.state import MeasuredLevel, Search, State
from harness.spec import reading

TOKENS = 128  # of an answer


class Ramp(msgspec.Struct):
    """A whole ramp."""

    steps: list[Decision]
    seconds: float
    levels: list[MeasuredLevel]
    windows: list[float]  # seconds of each level's
    ends: list[float]  # when each ended

    @property
    def fit(self) -> curve.Fit:
        """What it came to."""
        return self.fit_of(len(self.levels))

    def fit_of(self, count: int) -> curve.Fit:
        """What its first levels came to."""
        points = [curve.Point(m.users, m.in_flight, m.throughput, m.se, assumed=m.assumed) for m in self.levels[:count]]
        return curve.fit(points, draws=200)

    @property
    def first(self) -> dict[str, float]:
        """After how many seconds it first had which answer."""
        states = [self.fit_of(i + 1).curve.state for i in range(len(self.levels))]
        return {state: self.ends[states.index(state)] for state in set(states)}

    def share(self, low: float, high: float) -> float:
        """The share of its window time that levels in between have."""
        near = [low <= m.users <= high for m in self.levels]
        return float(np.dot(near, self.windows) / sum(self.windows))


def throughput(C: int, seats: float, alone_s: float) -> float:
    """N/(a + bN) up to the seats, flat past them; a fifth of a request's time at the seats grows with load."""
    a = TOKENS / alone_s
    return 1 / (1 / (a * min(C, seats)) * 0.8 + 0.2 / (a * seats))


def run(
    seats: float,
    alone_s: float,
    *,
    max_seconds: float | None = None,
    noise: float = 0.01,
    seed: int = 0,
    quick: bool = False,
    counted: bool = False,
) -> Ramp:
    """A whole ramp; a level lasts as its pace says, and its window errs by `noise` and by what its phases do.

    `counted`: whether the records show how many are served at once.
    """
    rng = np.random.default_rng(seed)
    levels: list[MeasuredLevel] = []
    steps: list[Decision] = []
    windows: list[float] = []
    ends: list[float] = []
    now = 0.0
    options = Search(
        levels=None, rates=None, max_concurrency=1024, search_rate=False, slo=False, max_ttft_s=None,
        predicted_hinge=None, seed=seed, seconds_left=None, requests_left=None, seconds=max_seconds, paced=True,
        quick=quick,
    )  # fmt: skip
    while True:
        left = None if max_seconds is None else max_seconds - now
        steps.append(ramp.next_level(levels, msgspec.structs.replace(options, seconds_left=left)))
        C = steps[-1].concurrency
        if C is None or (left is not None and left <= 0):
            break
        X = throughput(C, seats, alone_s)
        request_s = C * TOKENS / X
        lasts_for = pace.first_pass if steps[-1].role is Role.FIRST_PASS else pace.refinement
        timed = lasts_for(request_s, left)
        assert timed.window_s is not None
        window = timed.window_s
        if timed.warm_up:
            lasts = timed.spread_s + 0.3 * request_s + window + request_s
        else:
            lasts = max(window, request_s) if C == 1 else timed.spread_s + window + request_s
        if left is not None and lasts > left:  # cut short
            window -= lasts - left
            if window < 0.3 * request_s:
                now += left
                break
            lasts = left
        now += lasts
        measured = window >= 4 * request_s
        se = max(0.005, noise) if measured else max(0.02, 1 / math.sqrt(max(1.0, X * window / TOKENS)))
        windows.append(window)
        ends.append(now)
        running = int(min(C, seats))
        crowd = Occupancy(C, C, running, running / X, window, running, 0.5)
        levels.append(
            MeasuredLevel(
                concurrency=C, rate=None, in_flight=float(C), throughput=X * math.exp(rng.normal(0, noise)),
                se=se * X, assumed=not measured, error_rate=0.0, seconds=lasts, requests=int(X * lasts / TOKENS),
                request_s=request_s, valid=True, in_flight_ok=True, ttft_p99_s=None, slo=None,
                occupancy=crowd if counted else None,
            )
        )  # fmt: skip
    return Ramp(steps, now, levels, windows, ends)


def covers(found: curve.Fit, seats: float) -> bool:
    low, high = found.curve.hinge_concurrency.ci95 or (None, None)
    return (low or 0.0) <= seats <= (high or math.inf)


@pytest.mark.slow
@pytest.mark.parametrize("seats", [6.0, 16.0, 48.0])
def test_there_is_an_answer_early_and_a_found_one_soon(seats: float) -> None:
    """At 1.2 s alone: a knee, provisional or found, within 60 s, and a found one within 4 min."""
    found = run(seats, 1.2)
    first, last = found.first, found.fit.curve
    assert min(first.get(state, math.inf) for state in (PROVISIONAL, FOUND)) <= 60
    assert first[FOUND] <= 240
    assert last.state == FOUND
    assert last.hinge_concurrency.value == pytest.approx(seats, rel=0.05)
    assert found.steps[-1].reason.startswith("stopped: the 95 % interval of the knee")
    assert [step.role for step in found.steps[:4]] == [Role.FIRST_PASS] * 4


@pytest.mark.slow
@pytest.mark.parametrize("alone_s", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("max_seconds", [60.0, 120.0, 240.0])
def test_every_budget_has_an_answer_and_is_kept(max_seconds: float, alone_s: float) -> None:
    covered = intervals = 0
    for seed, seats in enumerate((6.0, 11.0, 16.0, 24.0, 30.0, 48.0)):
        found = run(seats, alone_s, max_seconds=max_seconds, seed=seed)
        assert found.seconds <= max_seconds + 1e-6
        last = found.fit
        assert last.curve.state != NONE
        highest = max(h.users for h in found.levels)
        if last.curve.state == BEYOND:
            assert highest < 1.5 * seats, "past the seats throughput does not rise"
        else:
            intervals, covered = intervals + 1, covered + covers(last, seats)
        if highest < 0.7 * seats:
            assert last.curve.state != FOUND
    assert covered >= intervals - 1, f"{covered} of {intervals} intervals cover the seats"


@pytest.mark.slow
@pytest.mark.parametrize("seats", [8.0, 16.0, 32.0])
def test_half_of_the_window_time_of_two_minutes_goes_to_levels_around_the_seats(seats: float) -> None:
    found = run(seats, 1.2, max_seconds=120.0, noise=0.03, counted=True)
    assert found.share(0.5 * seats, 1.5 * seats) >= 0.5


@pytest.mark.slow
def test_a_quick_ramp_ends_with_its_first_pass() -> None:
    found = run(16.0, 1.2, quick=True)
    assert found.fit.curve.state in (FOUND, PROVISIONAL)
    assert found.steps[-1].reason.startswith("--quick: the first pass has an answer")
    assert all(step.role is Role.FIRST_PASS for step in found.steps[:-1])
    assert found.seconds < 60


def test_a_ramp_with_little_time_goes_by_fours() -> None:
    found = run(64.0, 5.0, max_seconds=120.0)
    assert [h.users for h in found.levels[:3]] == [1, 4, 16]


def test_a_long_request_is_not_measured_six_times_over() -> None:
    assert pace.refinement(1.2, None).window_s == pytest.approx(7.2)
    assert pace.refinement(20.0, None).window_s == 60.0
    assert pace.refinement(100.0, None).window_s == 105.0  # a whole one
    assert pace.first_pass(20.0, None).window_s == 21.0


def test_a_window_takes_no_more_than_its_part_of_the_time_left() -> None:
    assert pace.refinement(2.0, 30.0).window_s == 6.0
    assert pace.first_pass(2.0, 25.0).window_s == 2.5
    assert pace.first_pass(0.1, 1.0).window_s == 1.0, "and is never shorter than this"


def test_a_short_fixed_window_has_a_short_warm_up() -> None:
    assert pace.fixed(1.0, 2.7) == pace.Pace(spread_s=2.7, warm_up=1, window_s=1.0)
    assert pace.fixed(30.0, 2.7) == pace.Pace(spread_s=2.7, warm_up=2, window_s=30.0)


def test_past_the_levels_a_request_takes_as_long_as_throughput_makes_it() -> None:
    def seen(*rates: float) -> float:
        levels = [
            MeasuredLevel(
                concurrency=4**i, rate=None, in_flight=None, throughput=X, se=None, error_rate=0.0,
                seconds=1.0, requests=1, request_s=4**i * TOKENS / X, valid=True, in_flight_ok=True, ttft_p99_s=None,
                slo=None,
            )
            for i, X in enumerate(rates)
        ]  # fmt: skip
        search = Search(
            levels=None, rates=None, max_concurrency=64, search_rate=False, slo=False, max_ttft_s=None,
            predicted_hinge=None, seed=0, seconds_left=None, requests_left=None, paced=True,
        )  # fmt: skip
        return State.of(levels, search, 0).request_s(16)

    assert seen(128.0, 512.0) == pytest.approx(1.0), "twice the load, twice the throughput: no longer"
    assert seen(128.0, 128.0) == pytest.approx(16.0), "the same throughput: in proportion"


def test_a_level_that_decides_takes_half_of_the_time_left_unless_that_decides_nothing() -> None:
    """Requests of 2 s in flight together may miss a limit together: 20 request times show it, half of 61 s do not."""

    def window_s(seconds_left: float | None, wanted_s: float = 0.0, **limits: float) -> float:
        spec = reading.build({"ramp": {}, "slo": limits}, place="test")
        return pace.decision(spec, 2.0, 10.0, seconds_left, wanted_s).window_s or 0.0

    assert window_s(400.0, ttft_p99=0.8) == 50
    assert window_s(61.0, ttft_p99=0.8) == 50
    assert window_s(61.0, itl_p99=0.05) == 30.5
    assert window_s(61.0, 55.0, itl_p99=0.05) == 55, "it needs more"
    assert 40 < window_s(45.0, ttft_p99=0.8) < 45
    assert window_s(2.0, ttft_p99=0.8) == 0
