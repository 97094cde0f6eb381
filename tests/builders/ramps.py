"""Whole ramps over servers in a formula: measured levels as a search knows them, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from harness.analysis.seats import Occupancy
from harness.analysis.stats import wilson
from harness.data.levels import Attainment
from harness.data.record import Role
from harness.search import state
from harness.search.decision import Decision
from harness.search.ramp import SLO_LEVELS, next_level
from harness.search.refinement import MOST as REFINEMENTS
from harness.search.state import MeasuredLevel, Search, State

MOST = REFINEMENTS + SLO_LEVELS + 24  # more than any ramp may take: the climb to 1024 has 21 steps at most


def search(**options: object) -> Search:
    plain = Search(
        levels=None, rates=None, max_concurrency=64, search_rate=False, slo=False, max_ttft_s=None,
        predicted_hinge=None, seed=0, seconds_left=None, requests_left=None,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **options)


def measured(C: int | None, X: float, **other: object) -> MeasuredLevel:
    """A level of which nothing is wrong: 128 tokens a request, 23 request times."""
    request_s = (C or 1) * 128 / X
    plain = MeasuredLevel(
        concurrency=C, rate=None, in_flight=None if C is None else float(C), throughput=X, se=0.01 * X,
        error_rate=0.0, seconds=23 * request_s, requests=23 * (C or 1), request_s=request_s, valid=True,
        in_flight_ok=True, ttft_p99_s=0.1, slo=None,
    )  # fmt: skip
    return judged_by_its_requests(msgspec.structs.replace(plain, **other))


def judged_by_its_requests(level: MeasuredLevel) -> MeasuredLevel:
    """The level with an attainment that comes to its outcome; an unresolved one leans to neither side."""
    if level.slo is None:
        return level
    met = {"met": 999, "missed": 0, "unresolved": 0}[level.slo]
    n = 0 if level.slo == "unresolved" else 999
    share = Attainment("ttft_p99=2s", 0.99, met, n, met / n if n else None, wilson(met, n), level.slo)
    return msgspec.structs.replace(level, attainments=(share,))


def climbed(*rates: float, **last: object) -> list[MeasuredLevel]:
    """Levels 1, 2, 4, … of these throughputs; the last one with something of its own."""
    levels = [measured(2**i, X) for i, X in enumerate(rates)]
    return levels[:-1] + [judged_by_its_requests(msgspec.structs.replace(h, **last)) for h in levels[-1:]]


def server(C: int, hinge: float = 20.0, bend: float = 0.2) -> float:
    """The linear-knee-plateau's throughput: one stream makes about 50 tok/s."""
    return min(C, hinge) / (0.02 + bend * 0.02 / hinge * min(C, hinge))


def padded(C: int) -> float:
    """Throughput where steps take the time of a batch of 8, 16, 32 or 64, of which a request has one place."""
    running = min(C, 64)
    return running / (0.02 + 0.02 / 64 * next(places for places in (8, 16, 32, 64) if running <= places))


def served(C: int, X: float, seats: int) -> Occupancy:
    """What a level shows of so many seats, where prompts take no time."""
    running = min(C, seats)
    return Occupancy(C, C, running, running / X, 20.0, running, 0.5)


class Ramp(msgspec.Struct):
    """A whole ramp: its levels, and its steps, of which the last is its end."""

    levels: list[MeasuredLevel]
    steps: list[Decision]

    @property
    def refined(self) -> list[MeasuredLevel]:
        """The levels after the climb."""
        return [m for m, step in zip(self.levels, self.steps, strict=False) if step.role is not Role.FIRST_PASS]

    def known(self, options: Search) -> state.Known:
        """What it came to."""
        found = state.known(State.of(self.levels, options, 0))
        assert found is not None
        return found


def ramp(options: Search, at: Callable[[int], float] = server, *, seats: int | None = None, noise: float = 0.0) -> Ramp:
    """A whole ramp over a server with this throughput, whose records show its seats where there are some."""
    rng = np.random.default_rng(0)
    levels: list[MeasuredLevel] = []
    steps = [next_level(levels, options)]
    while not steps[-1].over:
        assert len(levels) < MOST
        C = steps[-1].concurrency
        assert C is not None
        X = at(C) * math.exp(rng.normal(0.0, noise))
        levels.append(measured(C, X, se=max(0.01, noise) * X, occupancy=served(C, X, seats) if seats else None))
        steps.append(next_level(levels, options))
    return Ramp(levels, steps)
