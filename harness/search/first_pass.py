"""The first pass of a ramp: 1, 2, 4, … in flight, until requests wait or throughput does not rise any more.

It goes by fours where the time allows for few levels, as long as it pays for such a level twice. Levels past the knee
cost the most, since a request takes N·G/X there, which grows with the load. So the pass ends at the first load at which
requests wait for a seat, where the records show that. Else it ends when the elasticity is below 5 % twice, and after
the first flat level it goes on by √2, not 2. Where levels are noisy it also ends once the knee lies below 0.9 of the
last level with a chance of 95 %. If any of this was too early, the refinement goes on upwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from harness.analysis.conclusion import LEVELS, SURE
from harness.data.judgement import Outcome
from harness.search import pace
from harness.search.decision import Decision, End, Reason, end, measure
from harness.search.slo import judged
from harness.search.state import MeasuredLevel, Search, State, ceiling, known, overloaded, waits

FLAT = 0.05  # elasticity dlnX/dlnC below which a doubling gained nothing (docs/method.md, The ramp)

_STILL = 0.25  # elasticity above which throughput still rises, whatever the fit
_INSIDE = 0.7  # of the last level: a hinge below lies well inside
_FEW = 4  # levels of a first pass that may be sure of a bend
_FLAT_LEVELS = 2  # in a row that gain nothing end the first pass
_MANY = 60.0  # request times in a ramp's time, below which the first pass goes by fours


def walk(measured: Sequence[MeasuredLevel], search: Search) -> tuple[int, Decision]:
    """Return how many of the levels are the first pass's, and its next step; it ends at the first that is not."""
    for i in range(len(measured)):
        step = next_step(measured[:i], search)
        if step.over or measured[i].concurrency != step.concurrency:
            return i, msgspec.structs.replace(step, concurrency=None)
    return len(measured), next_step(measured, search)


def next_step(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level of a first pass so far, or why it ended."""
    if not measured:
        return measure(1, Reason.SINGLE_STREAM)
    if step := again(measured):
        return step
    if search.slo and judged(measured[-1:]).leans == Outcome.MISSED:
        return end(End.SLO_PASSED, last=measured[-1].users)
    if (full := waits(measured)) and full[-1].load >= measured[-1].users:
        return end(End.WAITING, load=full[0].load)
    flat = [_elasticity(a, b) < FLAT for a, b in itertools.pairwise(filter(lambda m: m.counts, measured))]
    if flat[-2:] == [True, True]:
        return end(End.FLAT, share=FLAT)
    if search.paced and (best := _best_so_far(measured)):
        return end(End.NO_GAIN, best=best)
    top, bar = ceiling(measured, search)
    last = measured[-1].users
    if last >= top:
        return end(End.CEILING, bar=bar)
    if flat and flat[-1]:
        return measure(min(round(last * math.sqrt(2)) + (last == 1), top), Reason.HALF_A_DOUBLING, last=last)
    if _few_levels(measured, search) and _pays_twice(measured[-1], search):
        return measure(min(4 * last, top), Reason.FOURFOLD)
    return measure(min(2 * last, top), Reason.DOUBLING)


def again(measured: Sequence[MeasuredLevel]) -> Decision | None:
    """An invalid level is measured once more, as its cause may have passed, unless the server is overloaded."""
    last = measured[-1]
    if last.valid or overloaded(last, measured) or [m.concurrency for m in measured].count(last.concurrency) > 1:
        return None
    return measure(last.users, Reason.INVALID)


def is_sure(state: State) -> bool:
    """Return whether the curves are sure, before throughput is flat twice, that the hinge is passed."""
    valid = state.valid
    fewest = _FEW if state.search.paced else LEVELS
    if len(state.times) < fewest or state.refined or _elasticity(valid[-2], valid[-1]) > _STILL:
        return False
    found = known(state)
    if found is None:
        return False
    if len(state.times) < LEVELS:  # goes by fours: a bend well inside is enough to refine
        return _few_levels(state.measured, state.search) and found.corner < _INSIDE * state.highest
    return found.below_last >= SURE


def _best_so_far(measured: Sequence[MeasuredLevel]) -> int | None:
    """Return the level that the last two lie above without gaining on it; None where they gain.

    On a noisy plateau a short level may seem higher than its neighbour, but rarely than the best of all.
    """
    valid = [m for m in measured if m.counts]
    if len(valid) <= _FLAT_LEVELS:
        return None
    best = max(valid[:-_FLAT_LEVELS], key=lambda m: m.throughput)
    past = [m for m in valid[-_FLAT_LEVELS:] if m.users > best.users]
    gained = any(m.throughput > (1 + FLAT) * best.throughput for m in past)
    return best.users if len(past) == _FLAT_LEVELS and not gained else None


def _few_levels(measured: Sequence[MeasuredLevel], search: Search) -> bool:
    """Return whether a ramp's time allows for few levels, by the time of a request alone."""
    alone = measured[0].request_s
    return search.seconds is not None and alone is not None and search.seconds < _MANY * (alone + search.rest_s)


def _pays_twice(last: MeasuredLevel, search: Search) -> bool:
    """Return whether the time left is enough for two levels at four times the load, with requests as much longer.

    Two loads at which requests wait show how many are served at once; a single one shows little.
    """
    each = pace.LEAST_REQUEST_TIMES * (4 * (last.request_s or 0.0) + search.rest_s)
    return search.seconds_left is None or 2 * each <= search.seconds_left


def _elasticity(a: MeasuredLevel, b: MeasuredLevel) -> float:
    """Return dlnX/dlnC between two levels."""
    if a.throughput <= 0 or b.throughput <= 0 or a.concurrency == b.concurrency:
        return math.inf
    return math.log(b.throughput / a.throughput) / math.log(b.users / a.users)
