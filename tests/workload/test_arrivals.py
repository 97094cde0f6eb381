"""When requests begin: staggered starts, an open loop's schedule and its statistics, static batches, quotas."""

import itertools
import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.base.errors import HarnessError
from harness.spec.traffic import parse
from harness.workload.arrivals import due_times, quota, replay, stagger, trace_rate

KINDS = {  # rate by kind
    "constant": 50.0,
    "poisson": 50.0,
    "gamma(0.25)": 50.0,
    "gamma(4)": 50.0,
    "series(0s:10,2s:40,6s:0,7s)": 25.0,
    "wave(period=10s,low=0,high=20)": 12.0,
    "spike(period=20s,for=2s,low=5,high=50,gaps=gamma(0.3))": 9.5,
    "trace(speed=2)": 3.0,
}
TRACE = array("d", itertools.accumulate(1 + (i * 37 % 11) / 7 for i in range(600)))
ALWAYS = 1.63  # √n times the Kolmogorov-Smirnov distance that chance alone exceeds once in a hundred


def times(kind: str, n: int, rate: float = 1.0, *, seed: int = 0, level: int = 0) -> np.ndarray:
    """The first n due times of a kind, seconds, shape [n]."""
    return np.array(list(itertools.islice(due_times(parse(kind), rate, seed=seed, level=level), n)))


def distance(values: np.ndarray) -> float:
    """√n times the Kolmogorov-Smirnov distance of values from an exponential distribution with mean 1."""
    expected, n = 1 - np.exp(-np.sort(values)), len(values)
    upper, lower = np.arange(1, n + 1) / n - expected, expected - np.arange(n) / n
    return float(max(upper.max(), lower.max()) * math.sqrt(n))


@given(st.integers(1, 500), st.floats(0, 100))
def test_staggered_starts_lie_within_one_request_time_in_order(slots: int, over: float) -> None:
    delays = stagger(slots, over, "staggered")
    assert len(delays) == slots
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] <= over


def test_a_burst_starts_at_once() -> None:
    assert stagger(3, 5.0, "burst") == [0.0, 0.0, 0.0]


@given(st.floats(0.01, 10_000), st.integers(1, 8))
def test_the_quotas_of_all_workers_come_to_what_was_asked(per_s: float, workers: int) -> None:
    requests, period_s = quota(per_s / workers)
    assert workers * requests / period_s == pytest.approx(per_s)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_due_times_are_the_same_however_many_workers_there_are(kind: str, workers: int) -> None:
    def part(worker: int, workers: int) -> list[float]:
        mine = due_times(
            parse(kind), KINDS[kind], seed=7, level=2, worker=worker, workers=workers, trace=TRACE
        )  # fmt: skip
        return list(itertools.islice(mine, 600 // workers))

    parts = [part(worker, workers) for worker in range(workers)]
    whole = part(0, 1)
    assert [time for turn in zip(*parts, strict=True) for time in turn] == whole
    assert whole == sorted(whole)
    assert len(whole) == 600


@pytest.mark.parametrize("kind", ["poisson", "gamma(0.25)", "wave(period=10s,low=0,high=20)"])
def test_every_seed_and_level_has_times_of_its_own_and_no_rate_has(kind: str) -> None:
    first = times(kind, 20, 5.0)
    assert not np.allclose(first, times(kind, 20, 5.0, seed=1))
    assert not np.allclose(first, times(kind, 20, 5.0, level=1))
    if kind != "wave(period=10s,low=0,high=20)":
        assert times(kind, 20, 10.0) == pytest.approx(first / 2)


@pytest.mark.parametrize(
    ("kind", "cv2"), [("constant", 0.0), ("poisson", 1.0), ("gamma(0.25)", 4.0), ("gamma(4)", 0.25)]
)
def test_gaps_have_the_rate_and_the_scatter_that_was_asked(kind: str, cv2: float) -> None:
    gaps = np.diff(times(kind, 50_000, 50.0))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(cv2, rel=0.05, abs=1e-9)


def test_poisson_gaps_are_exponential_and_bursts_are_not() -> None:
    assert distance(50 * np.diff(times("poisson", 20_000, 50.0))) < ALWAYS
    assert distance(50 * np.diff(times("gamma(0.8)", 20_000, 50.0))) > 3 * ALWAYS


@pytest.mark.parametrize(
    "kind", ["series(0s:10,60s:40)", "wave(period=60s,low=0,high=20)", "spike(period=60s,for=5s,low=5,high=50)"]
)
def test_a_varying_rate_has_exponential_gaps_on_its_own_clock(kind: str) -> None:
    profile = parse(kind).profile
    assert profile is not None
    due = times(kind, 20_000, profile.mean)
    assert distance(np.diff([profile.until(t) for t in due.tolist()])) < ALWAYS
    assert distance(profile.mean * np.diff(due)) > 3 * ALWAYS, "by the wall's clock they are none"


def test_a_series_has_its_counts_in_every_part() -> None:
    edges = [0, 60, 120, 180, 240, 300, 360]
    even = times("series(0s:10,60s:40,120s:0,180s,gaps=constant)", 6000, 50 / 3)
    assert np.histogram(even, edges)[0].tolist() == [600, 2400, 0, 600, 2400, 0]
    chance = times("series(0s:10,60s:40,120s:0,180s)", 6500, 50 / 3)
    counts = np.histogram(chance, edges)[0]
    assert counts == pytest.approx(np.array([600, 2400, 0, 600, 2400, 0]), abs=4 * 2400**0.5)
    assert abs(counts[0] - 600) < 4 * 600**0.5
    assert counts[[2, 5]].tolist() == [0, 0]


def test_a_wave_and_a_spike_have_their_counts_in_every_part() -> None:
    wave = times("wave(period=60s,low=5,high=20,gaps=constant)", 750, 12.5)
    # 12.5 · 15 s ∓ 7.5 · 60 s / 2π in a quarter (tests/test_traffic.py): 115.88, 259.12
    assert np.histogram(wave, [0, 15, 30, 45, 60])[0] == pytest.approx([116, 259, 259, 116], abs=1)
    spike = times("spike(period=60s,for=10s,at=20s,low=5,high=50,gaps=constant)", 750, 12.5)
    assert np.histogram(spike, [0, 20, 30, 60])[0].tolist() == [100, 500, 150]


def test_a_rate_scales_a_series_to_its_mean() -> None:
    doubled = times("series(0s:10,60s:40,gaps=constant)", 6000, 50.0)
    assert np.histogram(doubled, [0, 60, 120])[0].tolist() == [1200, 4800]


def test_a_trace_begins_at_its_first_request_and_comes_at_the_rate_that_is_asked() -> None:
    recorded = [100.0, 100.5, 102.0, 104.0]
    assert trace_rate(recorded) == 0.75
    assert list(itertools.islice(replay(recorded, 0.75), 4)) == [0.0, 0.5, 2.0, 4.0]
    assert list(itertools.islice(replay(recorded, 1.5), 4)) == [0.0, 0.25, 1.0, 2.0]
    assert list(itertools.islice(replay(np.array(recorded), 0.75, worker=1, workers=2), 2)) == [0.5, 4.0]


def test_a_trace_begins_anew_behind_a_gap_of_its_mean_length_whatever_the_workers() -> None:
    """Four requests at 0.75 a second: the fifth at 4 / 0.75 s, the sixth half a second later."""
    assert list(itertools.islice(replay([3.0, 3.5, 5.0, 7.0], 0.75), 4, 6)) == pytest.approx([16 / 3, 16 / 3 + 0.5])
    third = [list(itertools.islice(replay([3.0, 3.5, 5.0, 7.0], 0.75, worker=w, workers=3), 4)) for w in range(3)]
    dealt = [time for times in zip(*third, strict=True) for time in times]
    assert dealt == list(itertools.islice(replay([3.0, 3.5, 5.0, 7.0], 0.75), 12))


@pytest.mark.parametrize("recorded", [[], [3.0], [3.0, 3.0], [3.0, 1.0], [3.0, math.nan]])
def test_a_trace_that_takes_no_time_is_refused(recorded: list[float]) -> None:
    with pytest.raises(HarnessError, match="requests of the trace take no time"):
        due_times(parse("trace"), 1.0, seed=0, level=0, trace=recorded)
