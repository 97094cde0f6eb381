"""Staggered starts, arrivals and quotas."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workload.arrivals import arrivals, quota, stagger


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


@pytest.mark.parametrize("kind", ["constant", "poisson", "gamma(0.25)", "gamma(4)"])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_open_loop_has_its_rate_and_scatter_whatever_the_workers(kind: str, workers: int) -> None:
    parts = [
        list(itertools.islice(arrivals(kind, 50.0, seed="s", worker=i, workers=workers), 30_000 // workers))
        for i in range(workers)
    ]
    gaps = np.diff(sorted(itertools.chain.from_iterable(parts))[:25_000])
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    variance = {"constant": 0.0, "poisson": 1.0, "gamma(0.25)": 4.0, "gamma(4)": 0.25}[kind]
    assert gaps.var() * 50**2 == pytest.approx(variance, rel=0.1, abs=1e-9)


def test_bursts_are_the_same_on_one_worker_and_on_several() -> None:
    one = list(itertools.islice(arrivals("gamma(0.3)", 9.0, seed="s"), 60))
    parts = [list(itertools.islice(arrivals("gamma(0.3)", 9.0, seed="s", worker=i, workers=3), 20)) for i in range(3)]
    assert sorted(itertools.chain.from_iterable(parts)) == one
