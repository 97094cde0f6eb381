"""What the ramp knows: the levels held, what is asked of them, and what one more would cost.

Left out: which level comes next (`ramp`, `slo_search`), and what it would tell (`telling`).
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.stats import FLOOR
from harness.search import precision

ERRORS = 0.01
_ASSUMED = 0.02  # relative error of a level that has none


class Role(enum.StrEnum):
    """What a level is measured for, which decides how long it lasts (`precision.pace`)."""

    FIRST_PASS = "first pass"  # where the bend lies at all
    REFINEMENT = "refinement"  # what narrows the answer
    MEASUREMENT = "measurement"  # the level is the answer: a given one, one of a rate, one that an SLO is judged at


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A level as the ramp sees it: of a concurrency, or of a rate in requests per second."""

    concurrency: int | None
    rate: float | None
    in_flight: float | None
    output_tokens_per_s: float
    se: float | None  # one standard error, tok/s
    assumed: bool = False  # `se` is a weight: the window was too short to measure it
    error_rate: float
    seconds: float  # the whole level, warm-up to the end of cooldown
    requests: int
    request_s: float | None  # mean E2E
    valid: bool
    in_flight_ok: bool
    ttft_p99_s: float | None
    slo: str | None  # met | missed | unresolved; None: no SLO asked
    unstable: bool = False  # open loop: more and more in flight
    stalled: bool = False  # no token came for so long that the level was ended

    @property
    def users(self) -> int:
        """The concurrency, of a level that has one."""
        assert self.concurrency is not None
        return self.concurrency

    @property
    def n(self) -> float:
        """Mean in flight; the concurrency asked for where that is not known."""
        return self.in_flight or float(self.users)

    @property
    def counts(self) -> bool:
        """Whether the level is a point of the curve."""
        return self.valid and self.error_rate <= ERRORS and self.output_tokens_per_s > 0

    @property
    def failure(self) -> str:
        """The share of failed requests in words."""
        where = f"{self.concurrency} in flight" if self.rate is None else f"{self.rate:g} requests per second"
        return f"{self.error_rate:.1%} of the requests failed at {where}"


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """What the ramp is asked for, and how far it may go."""

    levels: Sequence[int] | None
    rates: Sequence[float] | None
    max_concurrency: int
    search_rate: bool  # open loop: the largest rate that meets the SLO, or without one that stays stable
    slo: bool
    max_ttft_s: float | None
    predicted_hinge: float | None  # only where refinement starts; never data, never an end
    seed: int
    hinge_width: float = 0.15  # full widths of the 95 % intervals, relative, at which it may stop
    plateau_width: float = 0.05
    seconds_left: float | None
    requests_left: int | None
    keep_going: bool = False  # of given levels: one that fails does not end them
    first_rate: float | None = None  # of a search for the rate; 1 / (time of a request alone) is a good one
    seconds: float | None = None  # that the whole run may take
    paced: bool = False  # levels last as long as `precision.pace` says, not one as long as the other
    quick: bool = False  # the first provisional answer is enough


class Next(msgspec.Struct, frozen=True):
    """The next level, or neither concurrency nor rate and the ramp is over; always with the reason."""

    concurrency: int | None
    reason: str
    rate: float | None = None
    role: Role = Role.MEASUREMENT

    @property
    def over(self) -> bool:
        return self.concurrency is None and self.rate is None


class Seen(msgspec.Struct, frozen=True):
    """The levels held, put in order for the questions."""

    held: Sequence[Held]
    search: Search
    climbed: int  # how many of them the climb took
    times: dict[int, int]  # how often each valid concurrency was held, in order of concurrency
    N: list[float]  # mean in flight at each of these
    seconds: list[float]  # mean time that each of these took
    top: int  # the highest concurrency allowed
    bar: str  # what forbids more

    @property
    def highest(self) -> int:
        return min(max(self.times), self.top)

    @property
    def refined(self) -> int:
        return len(self.held) - self.climbed

    def hold(self, C: int, reason: str) -> Next | None:
        return Next(C, reason) if self.affordable(C) else None

    def affordable(self, C: int) -> bool:
        requests = max((h.requests / h.users for h in self.held if h.counts), default=0.0) * C
        seconds, count = self.search.seconds_left, self.search.requests_left
        return (seconds is None or self.cost(C) <= seconds) and (count is None or requests <= count)

    def cost(self, C: int) -> float:
        """Seconds that a level of C would take, as little as it can."""
        if not self.times:
            return 0.0
        if self.search.paced:
            return precision.LEAST_REQUEST_TIMES * self.request_s(C)
        return float(np.interp(C, list(self.times), self.seconds)) * max(1.0, C / max(self.times))

    def request_s(self, C: int) -> float:
        """Seconds that a request takes at C: as at the levels around it, beyond them C·G/X with X as it rose last."""
        known: dict[int, list[float]] = {}
        for h in self.held:
            if h.counts and h.request_s:
                known.setdefault(h.users, []).append(h.request_s)
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

    def no_more(self) -> str:
        s = self.search
        left = [f"{s.seconds_left:.3g} s"] if s.seconds_left is not None else []
        left += [f"{s.requests_left} requests"] if s.requests_left is not None else []
        return f"{' and '.join(left)} left do not suffice for a level that helps" if left else self.bar

    def typical(self) -> float:
        """Relative error that a level has here."""
        errors = [h.se / h.output_tokens_per_s for h in self.held if h.counts and h.se]
        return max(float(np.median(errors)), FLOOR) if errors else _ASSUMED


def look(held: Sequence[Held], search: Search, climbed: int) -> Seen:
    valid = sorted(filter(lambda h: h.counts, held), key=lambda h: h.users)
    by = {C: list(same) for C, same in itertools.groupby(valid, lambda h: h.users)}
    return Seen(
        held, search, climbed, {C: len(same) for C, same in by.items()},
        [sum(h.n for h in same) / len(same) for same in by.values()],
        [sum(h.seconds for h in same) / len(same) for same in by.values()],
        *ceiling(held, search),
    )  # fmt: skip


def overloaded(level: Held, held: Sequence[Held]) -> bool:
    """Whether its errors are the server's answer to so many at once: as many, or more, never went without errors."""
    return level.error_rate > ERRORS and not any(h.counts and h.users >= level.users for h in held)


def ceiling(held: Sequence[Held], search: Search) -> tuple[int, str]:
    """The highest concurrency still allowed, and what forbids more: the server, never what the client spoiled."""
    bars = [(search.max_concurrency, f"--max-concurrency {search.max_concurrency} is reached")]
    for h in held:
        if overloaded(h, held):
            bars.append((h.users - 1, h.failure))
        elif search.max_ttft_s is not None and (h.ttft_p99_s or 0.0) > search.max_ttft_s:
            bars.append((h.users, f"TTFT p99 of {h.ttft_p99_s:.3g} s at {h.users} is past {search.max_ttft_s:g} s"))
    for a, b in itertools.pairwise(sorted((h for h in held if h.valid and h.in_flight), key=lambda h: h.users)):
        if not b.in_flight_ok and b.users > a.users and math.sqrt(b.users / a.users) > b.n / a.n:
            bars.append((b.users, f"only {b.n:.3g} were in flight at {b.users}"))
    return min(bars)
