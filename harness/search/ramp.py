"""Which level comes next, and why. Pure: the levels measured so far in, the next one or the end out.

Fixed levels, of concurrency or of rate, are measured in their order. Else a first pass of short levels climbs, 1, 2, 4,
… in flight, until requests wait or throughput does not rise any more. An SLO is then bisected between the largest level
that met it and the smallest that did not; so is the largest rate of an open loop, which needs no knee (`slo`). In the
time left further levels narrow hinge and plateau (`refinement`). A soak then measures one level more, at a share of the
knee.

Everything follows from the levels measured: a run that is resumed goes on as if it had never ended. Left out: how long
a level lasts (`pace`, `timing`) and when the budget is spent (`budget`); the ramp only uses what a level would cost.

The first pass goes by fours where the time allows for few levels, as long as it pays for such a level twice. Levels
past the knee cost the most, since a request takes N·G/X there, which grows with the load. So the pass ends at the first
load at which requests wait for a seat, where the records show that. Else it ends when the elasticity is below 5 %
twice, and after the first flat level it goes on by √2, not 2. Where levels are noisy it also ends once the knee lies
below 0.9 of the last level with a chance of 95 %. If any of this was too early, the refinement goes on upwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from harness.analysis.conclusion import LEVELS, SURE
from harness.data.judgement import Outcome
from harness.data.record import Role
from harness.data.summary import FOUND, PROVISIONAL
from harness.search import pace, refinement, slo
from harness.search.decision import Decision, End, Part, Reason, Stop, both, end, measure, measure_rate
from harness.search.state import MeasuredLevel, Search, State, again, ceiling, fit, known, waits
from harness.spec.scenario import Ramp

SLO_LEVELS = 16  # levels after the first pass that an SLO may take

_STALLS = 2  # levels in a row without a token, after which the run ends
FLAT = 0.05  # elasticity dlnX/dlnC below which a doubling gained nothing (docs/method.md, The ramp)

_STILL = 0.25  # elasticity above which throughput still rises, whatever the fit
_INSIDE = 0.7  # share of the last level: a hinge below lies well inside
_FEW = 4  # levels of a first pass that may be sure of a bend
_FLAT_LEVELS = 2  # levels in a row that gain nothing and end the first pass
_MANY = 60.0  # request times in a ramp's time, below which the first pass goes by fours


def next_level(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level of one repeat of the ramp, from the levels that it has measured."""
    if measured and measured[-1].soak:
        return end(End.SOAKED)
    step = _searched(measured, search)
    soaks = step.over and step.why is not Stop.STALLED and search.knee_share
    return (_soak(measured, search) or step) if soaks else step


def _soak(measured: Sequence[MeasuredLevel], search: Search) -> Decision | None:
    """Return the level of a soak, at a share of the knee found so far; None with fixed levels or no knee.

    With an SLO the knee is the highest load that met it; where throughput still rises, it is the highest measured.
    """
    counting = [m for m in measured if m.counts]
    if search.levels is not None or search.rates is not None or not counting:
        return None
    if search.slo:
        load, what = slo.edge_so_far(measured).met or 0.0, "the SLO knee"
    else:
        found = fit(State.of(measured, search, len(measured))).curve
        hinge = found.hinge_concurrency.value if found.state in (FOUND, PROVISIONAL) else None
        top = float(max(m.users for m in counting))
        load, what = (hinge, "the knee") if hinge else (top, "the highest level, for no knee was found")
    share = search.knee_share or 1.0
    return measure(max(1, round(share * load)), Reason.SOAK, Role.SOAK, share=share, what=what) if load else None


def _searched(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level of the search, or its end: fixed levels, rates, first pass, SLO, then refinement."""
    if over := _abandoned(measured, search):
        return over
    if search.levels is not None or search.rates is not None:
        return _next_fixed(len(measured), search)
    if search.search_rate:
        return slo.by_rate(measured, search, refinement.MOST + SLO_LEVELS)
    climbed, step = _climbed(measured, search)
    state = State.of(measured, search, climbed)
    if step.concurrency is not None and state.affordable(step.concurrency) and not _is_sure(state):
        return _in_role(Role.FIRST_PASS, step)
    limit = slo.by_concurrency(state, SLO_LEVELS) if search.slo else None
    if limit and (search.quick or not limit.over):
        return limit
    step = refinement.next_step(state, step.reason if isinstance(step.why, End) else state.no_more)
    if not step.over:
        before = any(m.concurrency == step.concurrency for m in measured)
        return _in_role(Role.REPEAT if before else Role.REFINEMENT, step)
    return both(step, limit) if limit else step


def missing(asked: Ramp, why: Decision, known: Sequence[MeasuredLevel]) -> str:
    """Return in words which fixed loads a repeat did not measure, and why; "" if nothing is missing."""
    if why.why is Stop.TOO_SLOW:  # --max-ttft asks for no more
        return ""
    if why.why in (Stop.STALLED, Stop.DEAD):
        return why.cause
    left = [f"{load:g}" for load in asked.load.loads[len(known) :]]
    what = "requests per second" if asked.load.is_open else "in flight"
    return f"{', '.join(left)} {what}: not measured, {why.cause}" if left else ""


def _in_role(role: Role, step: Decision) -> Decision:
    return msgspec.structs.replace(step, role=role)


def _abandoned(measured: Sequence[MeasuredLevel], search: Search) -> Decision | None:
    """Return the decision to end the run if the server stalls, or a fixed level fails or is too slow; else None."""
    last = measured[-_STALLS:]
    if len(last) == _STALLS and all(m.stalled for m in last):
        return end(Stop.STALLED, levels=_STALLS)
    fixed = search.levels is not None or search.rates is not None
    if fixed and not search.keep_going and measured and measured[-1].fails:
        return end(Stop.FAILED, failure=measured[-1].failure)
    bound, ttft = search.max_ttft_s, (measured[-1].ttft_p99_s or 0.0) if measured else 0.0
    if fixed and bound is not None and ttft > bound:
        load = measured[-1].concurrency or measured[-1].rate
        return end(Stop.TOO_SLOW, ttft=Part.TTFT.words(ttft=ttft, concurrency=load, bound=bound))
    return None


def _next_fixed(done: int, search: Search) -> Decision:
    """Return the next of the given rates or levels, or the end where all are measured."""
    if search.rates is not None:
        if done < len(search.rates):
            return measure_rate(search.rates[done], Reason.FIXED, Role.FIXED)
        return end(End.ALL_MEASURED, loads="rates")
    levels = search.levels or ()
    if done < len(levels):
        return measure(levels[done], Reason.FIXED, Role.FIXED)
    return end(End.ALL_MEASURED, loads="levels")


# ---- the first pass -----------------------------------------------------------------------------------------


def _climbed(measured: Sequence[MeasuredLevel], search: Search) -> tuple[int, Decision]:
    """Return how many of the measured levels the first pass chose, and its next step or its end."""
    for i in range(len(measured)):
        step = climb(measured[:i], search)
        if step.over or measured[i].concurrency != step.concurrency:
            return i, msgspec.structs.replace(step, concurrency=None)
    return len(measured), climb(measured, search)


def climb(measured: Sequence[MeasuredLevel], search: Search) -> Decision:
    """Return the next level of the first pass (doubling, until throughput is flat or a limit bars it), or its end."""
    if not measured:
        return measure(1, Reason.SINGLE_STREAM)
    if step := again(measured):
        return step
    if search.slo and slo.judged(measured[-1:]).leans == Outcome.MISSED:
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


def _is_sure(state: State) -> bool:
    """Return whether the fitted curves surely have their hinge below the last level, so that the first pass may end."""
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
    """Return the level with the best throughput if the last levels, at higher loads, gain nothing on it; else None.

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
    """Return whether the time left is enough for two levels at four times the load and the request time.

    Two loads at which requests wait show how many are served at once; a single one shows little.
    """
    each = pace.LEAST_REQUEST_TIMES * (4 * (last.request_s or 0.0) + search.rest_s)
    return search.seconds_left is None or 2 * each <= search.seconds_left


def _elasticity(a: MeasuredLevel, b: MeasuredLevel) -> float:
    """Return dlnX/dlnC between two levels."""
    if a.throughput <= 0 or b.throughput <= 0 or a.concurrency == b.concurrency:
        return math.inf
    return math.log(b.throughput / a.throughput) / math.log(b.users / a.users)
