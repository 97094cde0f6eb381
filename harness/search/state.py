"""What a search decides on: its options, the levels so far, the knee that they show, and what a level would cost.

Of a level it uses less than the report: not all of its findings and latencies. Left out: which level comes next
(`ramp`, `refinement`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import change, curve, seats, slo
from harness.analysis.conclusion import BELOW_LAST, UNSURE
from harness.analysis.points import chance
from harness.analysis.rules import Purpose, usable
from harness.analysis.rules.requests import answered, in_flight_low, too_many_fail, unstable
from harness.analysis.seats import Occupancy, occupancy
from harness.data.levels import Attainment, LevelSummary
from harness.data.record import Level, LevelNote, Role
from harness.data.summary import BEYOND
from harness.data.views import Spread
from harness.search import decision, pace
from harness.search.budget import Budget, sharing
from harness.search.decision import Decision, Part, Reason, interval_width
from harness.search.level import FAILING
from harness.spec.load import Rates
from harness.spec.scenario import Scenario


class MeasuredLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What a search knows of a level of a concurrency, or of a rate in requests per second."""

    concurrency: int | None
    rate: float | None
    in_flight: float | None  # requests, or sessions where slots hold these
    throughput: float  # in the run's unit, per second
    se: float | None = None  # one standard error, tok/s
    assumed: bool = False  # `se` is a weight: the window was too short to measure it
    chance: float = 0.0  # least relative error, since resting slots send at random times
    error_rate: float = 0.0
    answered: int | None = None  # requests by which that is judged; None: many
    seconds: float  # the whole level, warm-up to the end of cooldown
    requests: int
    request_s: float | None  # mean E2E
    valid: bool = True
    in_flight_ok: bool = True
    ttft_p99_s: float | None = None
    slo: str | None = None  # met | missed | unresolved; None: there is no SLO
    attainments: tuple[Attainment, ...] = ()  # attainment of each limit
    unstable: bool = False  # open loop: more and more in flight
    stalled: bool = False  # nobody answered for so long that the level was ended
    occupancy: Occupancy | None = None  # what it shows of the server's seats
    window_s: float = 0.0
    time_s: float | None = None  # the middle of its window, since the run's start
    soak: bool = False  # the search is over, and this is what it was for

    @property
    def users(self) -> int:
        """Return the concurrency; only a level of a closed loop has one."""
        assert self.concurrency is not None
        return self.concurrency

    @property
    def n(self) -> float:
        """Return the mean in flight; the concurrency if that is not known."""
        return self.in_flight or float(self.users)

    @property
    def counts(self) -> bool:
        """Return whether the level is a point of the curve."""
        return self.valid and not self.fails and self.throughput > 0

    @property
    def fails(self) -> bool:
        """Return whether too many of its requests failed."""
        return too_many_fail(self.error_rate, self.answered)

    @property
    def failure(self) -> str:
        """Return the share of failed requests in words."""
        failed = Part.FAILED if self.rate is None else Part.FAILED_RATE
        return failed.words(error_rate=self.error_rate, concurrency=self.concurrency, rate=self.rate)


def measured(summary: LevelSummary, level: Level) -> MeasuredLevel:
    """Return what the search needs to know of a finished level, from its summary.

    Its number of requests is estimated from those of its window: those of the whole level are not all over when the
    search goes on, and a resumed run must come to the same number later.
    """
    assert level.end_s is not None
    seconds = level.end_s - level.begin_s
    return MeasuredLevel(
        concurrency=level.concurrency,
        rate=level.rate,
        in_flight=summary.in_slots,
        throughput=summary.throughput.mean or 0.0,
        se=summary.output_tokens_per_s_se,
        assumed=summary.output_tokens_per_s_se_assumed,
        chance=chance(summary),
        error_rate=summary.error_rate or 0.0,
        answered=answered(summary),
        seconds=seconds,
        requests=round(summary.requests * seconds / summary.window_s),
        request_s=summary.e2e_s.mean,
        valid=usable(summary, Purpose.POINT) and summary.throughput.mean is not None,
        in_flight_ok=not in_flight_low.voids(summary),
        ttft_p99_s=_p99_at_least(summary.first_s),
        slo=slo.outcome(summary.slo) if summary.slo else None,
        attainments=tuple(summary.slo),
        unstable=unstable.voids(summary),
        stalled=bool({LevelNote.STALLED, LevelNote.REFUSED, LevelNote.COOLDOWN_STALLED} & {*level.notes}),
        occupancy=occupancy(summary),
        window_s=summary.window_s,
        time_s=sum(summary.window) / 2,
        soak=level.role is Role.SOAK,
    )


def _p99_at_least(spread: Spread) -> float | None:
    """Return a lower bound of p99: the highest percentile that the samples carry."""
    carried = (spread.p99, spread.p95, spread.p90, spread.p50)
    return next((value for value in carried if value is not None), None)


KNEE_SHARE = 0.8  # share of the knee at which a soak without a load of its own is: as full as a server is run
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
    predicted_hinge: float | None  # where refinement starts; never data, never an end
    seed: int
    hinge_width: float = 0.08  # full widths of the 95 % intervals, relative, at which it may stop
    plateau_width: float = 0.05
    seconds_left: float | None
    requests_left: int | None
    keep_going: bool = False  # a fixed level that fails does not end the others
    first_rate: float | None = None  # first rate of a search; 1 / (time of a request alone) is a good one
    seconds: float | None = None  # time for this ramp, part of the run's
    paced: bool = False  # levels last as long as `pace` decides, not all equally long
    rest_s: float = 0.0  # rest of a slot for each request
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
        """Return the search of a scenario, with the budget that is left; `e2e_s` is the time of a request alone."""
        spec = scenario.ramp
        return cls(
            levels=spec.levels,
            rates=spec.load.loads if isinstance(spec.load, Rates) else None,
            max_concurrency=spec.max_concurrency,
            search_rate=spec.search_rate,
            slo=scenario.has_limits,
            counted=scenario.counted,
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
        """Return how many levels were measured after the first pass."""
        return len(self.measured) - self.climbed

    @property
    def valid(self) -> list[MeasuredLevel]:
        """Return the points of the curve, in the order in which they were measured."""
        return [m for m in self.measured if m.counts]

    def measure(self, C: int, why: Reason, /, **figures: object) -> Decision | None:
        """Return the level as the next one, if it may tell something and what is left of the budget pays for it."""
        return decision.measure(C, why, **figures) if self.worthwhile(C) and self.affordable(C) else None

    def worthwhile(self, C: int) -> bool:
        """Return whether measuring a level may help: it has counted before, or was not tried in vain twice."""
        return C in self.times or sum(m.concurrency == C for m in self.measured) < _IN_VAIN

    def affordable(self, C: int) -> bool:
        seconds, count = self.search.seconds_left, self.search.requests_left
        return (seconds is None or self.cost(C) <= seconds) and (count is None or self._requests(C) <= count)

    def _requests(self, C: int) -> float:
        """Return the requests that a level of C would send: the fewest if its length is free, else as levels near."""
        if not self.times:
            return 0.0
        if self.search.paced:
            return pace.LEAST_REQUEST_TIMES * C
        each: dict[int, list[float]] = {}
        for m in sorted(self.valid, key=lambda m: m.users):
            each.setdefault(m.users, []).append(m.requests / m.users)
        return float(np.interp(C, list(each), [np.mean(x) for x in each.values()])) * C

    def cost(self, C: int) -> float:
        """Return the seconds that a level of C would take: the fewest if its length is free, else as levels near it."""
        if not self.times:
            return 0.0
        if self.search.paced:
            return pace.LEAST_REQUEST_TIMES * (self.request_s(C) + self.search.rest_s)
        return float(np.interp(C, list(self.times), self.seconds)) * max(1.0, C / max(self.times))

    def request_s(self, C: int) -> float:
        """Return the seconds of a request at C, interpolated between the valid levels; 0 before there is one.

        Above them it grows by the power of C by which it grew between the last two, from 0 to 1.
        """
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
        """Return why no further level helps: the budget, else `bar`, what forbids more."""
        return (
            decision.not_enough(self.search.seconds_left, self.search.requests_left, "a level that helps") or self.bar
        )


def overloaded(level: MeasuredLevel, measured: Sequence[MeasuredLevel]) -> bool:
    """Return whether its errors come from so much load: no level of as many, or more, in flight went without them."""
    return level.fails and not any(m.counts and m.users >= level.users for m in measured)


def again(measured: Sequence[MeasuredLevel]) -> Decision | None:
    """Return the decision to repeat the last level if it was invalid, once, but not if it was overloaded; else None.

    That is shown where most requests failed, or refusals left slots empty. Else as many may fail at any load.
    """
    last = measured[-1]
    shown = overloaded(last, measured) and (last.error_rate >= FAILING or not last.in_flight_ok)
    if last.valid or shown or [m.concurrency for m in measured].count(last.concurrency) > 1:
        return None
    return decision.measure(last.users, Reason.INVALID)


def ceiling(measured: Sequence[MeasuredLevel], search: Search) -> tuple[int, str]:
    """Return the highest concurrency still allowed, and which bound or which overload of the server forbids more."""
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


UP_TO = 2.0  # times the load from which on requests wait, that a level goes up to

_DRAWS = 100  # enough to choose a level by; the report makes its own


class Known(msgspec.Struct, frozen=True):
    """The knee so far, in requests in flight."""

    fit: curve.Fit
    low: float  # lower end of the 95 % interval of the curve's corner
    corner: float
    high: float  # inf if it may lie beyond the levels
    below_last: float  # the chance that it lies below the highest level, and clearly so
    plateau_width: float  # relative width of the 95 % interval
    seats: float | None  # requests served at once, if the records show them
    onset: float | None  # the least load at which requests wait; None if they do at none
    shift: change.Shift | None  # a change of the server, if the levels so far look like one

    @property
    def about(self) -> float:
        """Return the load near which levels tell most."""
        return self.seats or self.corner

    @property
    def width(self) -> float:
        """Return the full width of the corner's interval, relative to it; inf without an upper end."""
        return (self.high - self.low) / self.corner

    @property
    def settled(self) -> bool:
        """Return whether it is known what throughput does past the knee: stay, or fall."""
        return self.fit.curve.plateau_reached or self.fit.curve.dip is not None

    @property
    def words(self) -> str:
        """Return the answer so far: the seats, a rise up to a concurrency, or how well knee and plateau are known."""
        if self.seats is not None:
            return Part.SEATS.words(seats=self.seats)
        if self.fit.curve.state == BEYOND:
            return Part.RISES.words(concurrency=self.fit.curve.at_least_concurrency or 0.0)
        past = "" if self.settled else ", and the plateau is not reached"
        return Part.KNEE.words(hinge=interval_width(self.width), plateau=interval_width(self.plateau_width), past=past)


def fit(state: State) -> curve.Fit:
    """Return the curve through the levels of the last steady stretch; it has draws if they are enough."""
    return curve.fit(steady(state.measured).points, seed=state.search.seed, draws=_DRAWS)


def steady(measured: Sequence[MeasuredLevel]) -> change.Steady:
    """Return the levels since the server last changed, as points; all of them where their times are not known."""
    points = [
        change.TimedPoint(
            m.users, m.in_flight, m.throughput, m.se, m.counts, m.in_flight_ok, m.assumed, m.chance,
            time_s=math.nan if m.time_s is None else m.time_s, occupancy=m.occupancy if m.counts else None,
        )
        for m in measured
    ]  # fmt: skip
    if any(m.time_s is None for m in measured):
        return change.Steady(points, [p.occupancy for p in points if p.occupancy], None)
    return change.steady(points, fast=True)


def known(state: State) -> Known | None:
    """Return the knee so far: fit, interval, chance that it is below the last level, seats; None: too few levels."""
    stretch = steady(state.measured)
    found = curve.fit(stretch.points, seed=state.search.seed, draws=_DRAWS)
    if found.posterior is None:
        return None
    low, corner, high = found.posterior.quantiles(0.025, 0.5, 0.975)
    last = state.N[-1]
    below = found.posterior.chance_below(BELOW_LAST * last)
    above = 1 - found.posterior.chance_below(last)
    plateau = found.curve.plateau_tokens_per_s
    ends = plateau.ci95 or (None, None)
    width = (ends[1] - ends[0]) / plateau.value if plateau.value and None not in ends else math.inf  # type: ignore[operator]
    counted = seats.find(stretch.crowd)
    waiting = seats.waiting(stretch.crowd)
    return Known(
        found, low, corner, math.inf if above > UNSURE else high, below, width,
        counted.value if counted else None, waiting[0] if waiting else None, stretch.shift,
    )  # fmt: skip


def waits(levels: Sequence[MeasuredLevel]) -> list[Occupancy]:
    """Return the levels at which requests wait for a seat, in order of load."""
    crowd = [m.occupancy for m in levels if m.counts and m.occupancy is not None]
    loads = seats.waiting(crowd)
    return sorted((each for each in crowd if each.load in loads), key=lambda each: each.load)
