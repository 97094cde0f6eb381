"""What a search decides on: its options, the levels measured so far in order, and what one more would cost.

Left out: which level comes next (`ramp`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.search import decision, pace
from harness.search.budget import Budget, sharing
from harness.search.decision import Decision, Part, Reason
from harness.search.measured import MeasuredLevel
from harness.spec.load import Rates
from harness.spec.scenario import Scenario

KNEE_SHARE = 0.8  # of the knee, at which a soak without a load of its own is: as full as a server is run
_IN_VAIN = 2  # times that a level is measured without counting, after which its cause is taken to stand


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a search, and how far it may go."""

    levels: Sequence[int] | None
    rates: Sequence[float] | None
    max_concurrency: int
    search_rate: bool  # open loop: the largest rate that meets the SLO, or without one that stays stable
    slo: bool
    counted: str = "in flight"  # what a concurrency counts, in sentences
    max_ttft_s: float | None
    predicted_hinge: float | None  # only where refinement starts; never data, never an end
    seed: int
    hinge_width: float = 0.08  # full widths of the 95 % intervals, relative, at which it may stop
    plateau_width: float = 0.05
    seconds_left: float | None
    requests_left: int | None
    keep_going: bool = False  # of fixed levels: one that fails does not end them
    first_rate: float | None = None  # of a search for the rate; 1 / (time of a request alone) is a good one
    seconds: float | None = None  # that a ramp may take, of all that the run may
    paced: bool = False  # levels last as long as `pace` decides, not all equally long
    rest_s: float = 0.0  # that a slot rests for each request
    quick: bool = False  # the first provisional answer is enough
    knee_share: float | None = None  # at which it then soaks; None: it does not

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        budget: Budget,
        *,
        predicted_hinge: float | None = None,
        e2e_s: float | None = None,
        rest_s: float = 0.0,
    ) -> Search:
        """The search of a scenario, with the budget that is left; `e2e_s` is the time of a request alone."""
        spec = scenario.ramp
        return cls(
            levels=spec.levels,
            rates=spec.load.loads if isinstance(spec.load, Rates) else None,
            max_concurrency=spec.max_concurrency,
            search_rate=spec.search_rate,
            slo=scenario.has_limits,
            counted="sessions" if scenario.has_tasks else "in flight",
            max_ttft_s=spec.max_ttft,
            predicted_hinge=predicted_hinge,
            seed=scenario.workload.seed or 0,
            keep_going=spec.keep_going,
            seconds_left=budget.seconds_left,
            requests_left=budget.requests_left,
            first_rate=1 / e2e_s if e2e_s else None,
            seconds=None if spec.max_seconds is None else spec.max_seconds / sharing(spec, 0),
            paced=pace.paced(scenario),
            rest_s=rest_s,
            quick=spec.quick,
            knee_share=spec.knee_share or KNEE_SHARE if spec.duration else None,
        )


class State(msgspec.Struct, frozen=True):
    """The levels measured so far, arranged for the questions of a search."""

    measured: Sequence[MeasuredLevel]
    search: Search
    climbed: int  # how many of them the first pass took
    times: dict[int, int]  # how often each valid concurrency was measured, in order of concurrency
    N: list[float]  # mean in flight at each of these
    seconds: list[float]  # mean time that each of these took
    top: int  # the highest concurrency allowed
    bar: str  # what forbids more

    @classmethod
    def of(cls, measured: Sequence[MeasuredLevel], search: Search, climbed: int) -> State:
        valid = sorted(filter(lambda m: m.counts, measured), key=lambda m: m.users)
        by = {C: list(same) for C, same in itertools.groupby(valid, lambda m: m.users)}
        return cls(
            measured, search, climbed, {C: len(same) for C, same in by.items()},
            [sum(m.n for m in same) / len(same) for same in by.values()],
            [sum(m.seconds for m in same) / len(same) for same in by.values()],
            *ceiling(measured, search),
        )  # fmt: skip

    @property
    def highest(self) -> int:
        return min(max(self.times), self.top)

    @property
    def refined(self) -> int:
        """How many levels were measured after the first pass."""
        return len(self.measured) - self.climbed

    @property
    def valid(self) -> list[MeasuredLevel]:
        """The points of the curve, in the order in which they were measured."""
        return [m for m in self.measured if m.counts]

    def measure(self, C: int, why: Reason, /, **figures: object) -> Decision | None:
        """The level as the next one, if it may tell something and what is left of the budget pays for it."""
        return decision.measure(C, why, **figures) if self.worthwhile(C) and self.affordable(C) else None

    def worthwhile(self, C: int) -> bool:
        """Whether a level may still count: not where it has not whenever it was measured."""
        return C in self.times or sum(m.concurrency == C for m in self.measured) < _IN_VAIN

    def affordable(self, C: int) -> bool:
        seconds, count = self.search.seconds_left, self.search.requests_left
        return (seconds is None or self.cost(C) <= seconds) and (count is None or self._requests(C) <= count)

    def _requests(self, C: int) -> float:
        """Requests that a level of C would send: as few as it can where its length is free, else as its neighbours."""
        if not self.times:
            return 0.0
        if self.search.paced:
            return pace.LEAST_REQUEST_TIMES * C
        each: dict[int, list[float]] = {}
        for m in sorted(self.valid, key=lambda m: m.users):
            each.setdefault(m.users, []).append(m.requests / m.users)
        return float(np.interp(C, list(each), [np.mean(x) for x in each.values()])) * C

    def cost(self, C: int) -> float:
        """Seconds that a level of C would take, as little as it can."""
        if not self.times:
            return 0.0
        if self.search.paced:
            return pace.LEAST_REQUEST_TIMES * (self.request_s(C) + self.search.rest_s)
        return float(np.interp(C, list(self.times), self.seconds)) * max(1.0, C / max(self.times))

    def request_s(self, C: int) -> float:
        """Seconds that a request takes at C: as at the levels around it, beyond them C·G/X with X as it rose last."""
        known: dict[int, list[float]] = {}
        for m in self.valid:
            if m.request_s:
                known.setdefault(m.users, []).append(m.request_s)
        if not known:
            return 0.0
        levels = sorted(known)
        seconds = [float(np.mean(known[x])) for x in levels]
        if levels[-1] >= C:
            return float(np.interp(C, levels, seconds))
        grows = 0.0
        if len(levels) > 1 and min(seconds[-2:]) > 0:  # R = C·G/X, so that it grows where X does not
            grows = math.log(seconds[-1] / seconds[-2]) / math.log(levels[-1] / levels[-2])
        return float(seconds[-1] * (C / levels[-1]) ** min(max(grows, 0.0), 1.0))

    @property
    def no_more(self) -> str:
        """Why no further level helps: the budget, else what forbids more."""
        return (
            decision.not_enough(self.search.seconds_left, self.search.requests_left, "a level that helps") or self.bar
        )


def overloaded(level: MeasuredLevel, measured: Sequence[MeasuredLevel]) -> bool:
    """Whether its errors come from so much load: no level of as many, or more, in flight went without them."""
    return level.fails and not any(m.counts and m.users >= level.users for m in measured)


def ceiling(measured: Sequence[MeasuredLevel], search: Search) -> tuple[int, str]:
    """The highest concurrency still allowed, and what forbids more: the server, never a fault of the client."""
    bars = [(search.max_concurrency, Part.HIGHEST.words(concurrency=search.max_concurrency))]
    for m in measured:
        if overloaded(m, measured):
            bars.append((m.users - 1, m.failure))
        elif search.max_ttft_s is not None and (ttft := m.ttft_p99_s or 0.0) > search.max_ttft_s:
            bars.append((m.users, Part.TTFT.words(ttft=ttft, concurrency=m.users, bound=search.max_ttft_s)))
    for a, b in itertools.pairwise(sorted((m for m in measured if m.valid and m.in_flight), key=lambda m: m.users)):
        if not b.in_flight_ok and b.users > a.users and math.sqrt(b.users / a.users) > b.n / a.n:
            bars.append((b.users, Part.IN_FLIGHT.words(in_flight=b.n, concurrency=b.users)))
    return min(bars)
