"""How long a window lasts until it is precise, and whether its interval keeps its promise under that stop."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.stats import half_width, running_means
from harness.analysis.table import Floats
from harness.data.views import Estimate
from harness.search.pace import APART, CHECKS, REQUEST_TIMES, lengths, precise
from harness.spec.scenario import PRECISION

STEP = 0.1  # of the running counts here, in request times of 1 s


def running(rates: Floats) -> tuple[Floats, Floats]:
    """Times and the running count of rates that each hold for a step."""
    return np.arange(len(rates) + 1) * STEP, np.concatenate([[0.0], np.cumsum(rates) * STEP])


def noise(seed: int, relative: float, seconds: float = 200.0, memory: float = 0.0) -> Floats:
    """Rates about 1; `memory` is the correlation from one step to the next."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0.0, 1.0, int(seconds / STEP))
    for i in range(1, len(x)):
        x[i] = memory * x[i - 1] + np.sqrt(1 - memory**2) * x[i]
    return 1.0 + relative * x


class Window(NamedTuple):
    """A window that ended at a check."""

    seconds: float
    estimate: Estimate
    precise: bool


def window(times: Floats, counts: Floats, start: float, request_s: float) -> Window:
    """Go from check to check until the window is precise or the last check has come."""
    for length in lengths(request_s):
        done = precise(times, counts, start, start + length, request_s, PRECISION)
        if done:
            break
    return Window(length, running_means(times, counts, start, start + length, request_s), done)


def test_checks_are_half_as_much_again_apart_and_the_first_can_carry_an_interval() -> None:
    found = lengths(2.0)
    assert found[0] == REQUEST_TIMES * 2.0 >= 20 * 2.0
    assert len(found) == CHECKS
    assert [b / a for a, b in itertools.pairwise(found)] == pytest.approx([APART] * (CHECKS - 1))


@given(st.floats(0.001, 100.0), st.floats(0.0, 10.0), st.floats(10.0, 1000.0))
def test_no_check_comes_before_the_least_or_after_the_most(request_s: float, least: float, most: float) -> None:
    found = lengths(request_s, least=least, most=most)
    assert found == sorted(found)
    assert found[-1] <= most
    assert found[0] >= min(least, most)
    assert len(set(found)) == len(found) >= 1


def test_an_even_count_is_precise_at_the_first_check() -> None:
    found = window(*running(np.full(2000, 50.0)), 1.0, 1.0)
    assert found.precise
    assert found.seconds == lengths(1.0)[0]
    assert found.estimate.mean == pytest.approx(50.0)


def test_a_noisier_count_takes_longer_and_what_never_is_precise_ends_at_the_last_check() -> None:
    quiet, loud, hopeless = (window(*running(noise(1, relative)), 0.0, 1.0) for relative in (0.05, 0.25, 4.0))
    assert quiet.seconds == lengths(1.0)[0]
    assert quiet.seconds < loud.seconds < lengths(1.0)[-1]
    assert quiet.precise
    assert loud.precise
    assert hopeless.seconds == lengths(1.0)[-1]
    assert not hopeless.precise


def test_a_check_is_precise_if_half_of_its_interval_is_within_the_bound() -> None:
    count = running(noise(2, 0.3))
    half = half_width(running_means(*count, 0.0, 40.0, 1.0))
    assert half is not None
    assert precise(*count, 0.0, 40.0, 1.0, half * 1.001)
    assert not precise(*count, 0.0, 40.0, 1.0, half * 0.999)
    assert half_width(Estimate(0.0, (0.0, 0.0))) is None
    assert half_width(Estimate(1.0, None)) is None


@pytest.mark.slow
@pytest.mark.parametrize("relative", [0.1, 0.25, 0.45])
@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_the_interval_at_the_stop_covers_the_truth_as_often_as_it_claims(relative: float, memory: float) -> None:
    """Of 400 windows 92 to 98 % (two standard errors of their count are 2.2 %); memory is a fifth of a request time."""
    relative /= np.sqrt((1 + memory) / (1 - memory))  # so that the mean of a window is as uncertain
    got = [window(*running(noise(seed, relative, memory=memory)), 0.0, 1.0).estimate.ci95 for seed in range(400)]
    intervals = [ci for ci in got if ci is not None]
    assert len(intervals) > 390, "chance correlation withholds hardly any"
    assert 0.92 <= np.mean([low <= 1.0 <= high for low, high in intervals]) <= 0.98
