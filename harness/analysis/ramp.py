"""Which level comes next, and why. Pure: levels held so far in, the next one or the end out.

Given levels, of concurrency or of rate, are held in the order given. Without them: doubling from 1 until
throughput stops rising. The adaptive choice of levels comes later, in `next_level`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

FLAT = 0.05  # elasticity dlnX/dlnC below which a doubling gained nothing (analytic.md §6)
ERRORS = 0.01


class Held(msgspec.Struct, frozen=True):
    """A level as the ramp sees it: of a concurrency, or of a rate in requests per second."""

    concurrency: int | None
    rate: float | None
    output_tokens_per_s: float
    error_rate: float


class Next(msgspec.Struct, frozen=True):
    """The next level, or neither concurrency nor rate and the ramp is over; always with the reason."""

    concurrency: int | None
    reason: str
    rate: float | None = None

    @property
    def over(self) -> bool:
        return self.concurrency is None and self.rate is None


def next_level(
    held: Sequence[Held], *, levels: Sequence[int] | None, rates: Sequence[float] | None = None, max_concurrency: int
) -> Next:
    """The next level of the ramp.

    >>> next_level([], levels=None, max_concurrency=64)
    Next(concurrency=1, reason='the ramp begins with a single stream', rate=None)
    >>> next_level([Held(1, None, 10.0, 0.0)], levels=[1, 3], max_concurrency=64).concurrency
    3
    """
    if held and held[-1].error_rate > ERRORS:
        share, last = f"{held[-1].error_rate:.1%}", held[-1]
        where = f"{last.concurrency} in flight" if last.rate is None else f"{last.rate:g} requests per second"
        return Next(None, f"stopped: {share} of the requests failed at {where}")
    if rates is not None:
        if len(held) < len(rates):
            return Next(None, "given", rates[len(held)])
        return Next(None, "all given rates are held")
    if levels is not None:
        if len(held) < len(levels):
            return Next(levels[len(held)], "given")
        return Next(None, "all given levels are held")
    if not held:
        return Next(1, "the ramp begins with a single stream")
    flat = [_elasticity(a, b) < FLAT for a, b in itertools.pairwise(held)]
    if len(flat) >= 2 and flat[-1] and flat[-2]:
        return Next(None, f"stopped: throughput rose by less than {FLAT:.0%} per doubling, twice")
    highest = held[-1].concurrency
    assert highest is not None
    if highest >= max_concurrency:
        return Next(None, f"stopped: --max-concurrency {max_concurrency} is reached")
    return Next(min(2 * highest, max_concurrency), "doubling")


def _elasticity(a: Held, b: Held) -> float:
    if a.output_tokens_per_s <= 0 or b.output_tokens_per_s <= 0:
        return math.inf
    assert a.concurrency is not None
    assert b.concurrency is not None
    return math.log(b.output_tokens_per_s / a.output_tokens_per_s) / math.log(b.concurrency / a.concurrency)
