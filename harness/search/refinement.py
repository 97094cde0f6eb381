"""What a ramp measures after its first pass, until knee and plateau are known.

These questions are answered in order before every level; the first that needs a level decides it:

    was the last level invalid?       measure it again, once
    do requests wait at one load?     another one above the seats: two show how many are served at once
    fewer than 6 valid levels?        fill the gaps around the likeliest knee
    has the whole server changed?     the last level before that again, once
    is the time nearly over?          the level that settles whether there is a plateau, or one far above the knee
    knee and plateau known?           one level far above the knee, then it ends here
    many levels since the first pass? one of its levels again: it shows whether the whole server has changed
    may throughput still rise?        go up
    else                              a level around the knee

Levels around the knee lie between 0.5 and 1.5 of it, in turn below and above, so that a machine whose speed wanders
does not bend the curve. Of each side the level comes next that tells most of the knee per second. Once requests wait,
nothing above twice the least such load can tell more of the knee, but for one level at four times the knee: a fall is
seen nowhere else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.conclusion import LEVELS, PAST, SURE
from harness.analysis.seats import CROWDED
from harness.data.summary import BEYOND, FOUND, PROVISIONAL
from harness.search.decision import Decision, End, Part, Reason, Stop, end, measure
from harness.search.state import UP_TO, Known, State, again, fit, known, waits

LEAST, MOST = 8, 32  # levels before the knee is known, and at which it is taken as it is

_ZONE = 0.5, 1.5  # times the knee, between which levels tell most of it
_PAST_LEVELS = 2  # levels past the knee that show whether throughput stays; until then the next one above it is
_LOST = 0.05  # share of throughput from one level to the next, from which on it seems to fall
_FAR, _FAR_ENOUGH = 4.0, 3.0  # times the knee: the one level above the others, and from where on there is one
_PLACES = 12  # places that each side may have its next level at
_DISTINCT = 4  # levels of one side; then these are repeated
_AS_GOOD = 0.8  # share of the most information: among these the least measured level is taken, as no curve is exact
_WORTH = 1.1  # least step up towards a level that failed
_LAST = 2.5  # levels that the time left suffices for, below which the next one has to settle the plateau
_CONTROLLED, _BEFORE_FAR = 4, 2  # levels after which one of the first pass is measured again
_RISES = 4  # levels after the first pass that make sure that throughput rises at the highest load allowed


def next_step(state: State, why: str) -> Decision:
    """Return the next level that narrows the knee, or the end of the search; `why` is why the first pass ended.

    The search ends where knee and plateau are known well enough, after the most levels, where no further level would
    help or is affordable, and where throughput rises up to the highest load. A quick one ends with the first curve that
    has an answer.
    """
    if state.measured and (step := again(state.measured)):
        return step
    if not state.times or state.top < 1:
        return end(Stop.NOTHING_ALLOWED, bar=state.bar if state.measured else Part.SPENT.words())
    if state.search.quick and state.climbed == len(state.measured):
        answer = fit(state).curve.state
        if answer in (FOUND, PROVISIONAL):
            return end(End.QUICK, state=answer)
    if step := _second_to_wait(state):
        return step
    if len(state.times) < LEVELS:
        return _fill(state) or end(Stop.FEW_LEVELS, needed=LEVELS, valid=len(state.times), bar=why)
    found = known(state)
    assert found is not None
    if state.refined >= MOST:
        return _far(state, found) or end(Stop.MANY_LEVELS, levels=state.refined, found=found.words)
    if step := _confirming(state, found) or _settling(state, found):
        return step
    if _is_known(state, found):
        return _far(state, found) or end(Stop.FOUND, found=found.words)
    if _up(state) <= state.highest and found.below_last < 0.5 and state.refined >= _RISES:
        return end(Stop.OUT_OF_REACH, found=found.words, bar=state.bar)
    step = _higher(state, found) or _falling(state) or _control(state, found) or _around(state, found)
    return step or _far(state, found) or end(Stop.NOTHING_HELPS, found=found.words, why=state.no_more)


def _second_to_wait(state: State) -> Decision | None:
    """Return a level between the number served at once and the only load at which requests wait; else None."""
    full = waits(state.measured)
    if len(full) != 1:
        return None
    served, load = max(full[0].streaming, full[0].most), full[0].load
    between = [round(served ** (1 - part) * load**part) for part in (0.5, 0.75)]
    new = next((C for C in between if C not in state.times and CROWDED * served <= C < load), None)
    return state.measure(new, Reason.WAITS, load=load) if new else None


def _is_known(state: State, found: Known) -> bool:
    narrow = found.width <= state.search.hinge_width and found.plateau_width <= state.search.plateau_width
    return narrow and found.settled and state.refined >= LEAST


def _settling(state: State, found: Known) -> Decision | None:
    """Return a level past the knee to decide what throughput does there, if time is short but suffices; else None."""
    left = state.search.seconds_left
    if left is None:
        return None
    if found.settled or found.seats is not None:
        step = _far(state, found)
        return step if step and left <= _LAST * state.cost(step.concurrency or 1) else None
    settle = found.fit.curve.settle
    top = min(state.top, UP_TO * found.onset) if found.onset else state.top
    wanted = [C for C in settle.levels if state.worthwhile(C) and state.affordable(C) and top >= C] if settle else []
    if not wanted or left > _LAST * state.cost(max(wanted)):
        return None
    return measure(max(wanted), Reason.LITTLE_TIME, left=left)


def _fill(state: State) -> Decision | None:
    """Return a new level, for too few levels, nearest to where the knee may be: as predicted, else where the rise ends.

    Where throughput still rises, it is a higher level. None if no such level is allowed or affordable.
    """
    last, found = state.highest, known(state)
    rises = (found.fit if found else fit(state)).curve.state == BEYOND
    if state.search.paced and rises and not (found and found.onset):
        up = next((C for C in (2 * last, round(1.4 * last)) if state.top >= C > last and state.affordable(C)), None)
        return measure(up, Reason.STILL_RISES, last=last) if up else None
    if state.search.paced and found and (between := _middle(state, found.about)):
        return state.measure(between, Reason.FEW_LEVELS, levels=len(state.times))
    about = state.search.predicted_hinge
    if about is None or not 1 <= about <= last:
        X = {m.users: m.throughput for m in state.valid}
        about = next((C for C in sorted(X) if X[C] >= 0.95 * max(X.values())), last)
    new = [C for C in range(1, min(2 * last, state.top) + 1) if C not in state.times and state.worthwhile(C)]
    near = min(new, key=lambda C: abs(math.log(C / about)), default=None)
    return None if near is None else state.measure(near, Reason.FEW_LEVELS, levels=len(state.times))


def _middle(state: State, about: float) -> int | None:
    """Return the geometric mean of the two levels around load `about`; None if that is no new level."""
    for low, high in itertools.pairwise(state.times):
        middle = round(math.sqrt(low * high))
        if low <= about <= high and middle not in state.times and state.worthwhile(middle):
            return middle
    return None


def _higher(state: State, found: Known) -> Decision | None:
    """Return a level above the highest, if the knee is not surely below the highest and a higher one is allowed."""
    up = _up(state)
    enough = 0.5 if found.width > state.search.hinge_width and math.isfinite(found.high) else SURE
    if up <= state.highest or found.below_last >= enough or (found.onset and up > UP_TO * found.onset):
        return None
    return state.measure(up, Reason.HIGHER, bound=state.N[-1], chance=found.below_last)


def _confirming(state: State, found: Known) -> Decision | None:
    """Return the last level before the server changed again, unless some load was measured on both sides of it."""
    if found.shift is None:
        return None
    before, after = (
        [m.users for m in part if m.counts]
        for part in (state.measured[: found.shift.since], state.measured[found.shift.since :])
    )
    return None if set(before) & set(after) else state.measure(before[-1], Reason.CONTROL)


def _control(state: State, found: Known, since: int = _CONTROLLED) -> Decision | None:
    """Return a first-pass level well below the knee again, as control, if `since` levels were measured after it."""
    order = [m.users for m in state.valid]
    first = [m.users for m in state.measured[: state.climbed] if m.counts]
    C = max((C for C in first if _ZONE[0] * found.about >= C), default=min(first, default=None))
    due = C is not None and order[::-1].index(C) >= since
    return state.measure(C, Reason.CONTROL) if due and C else None


def _falling(state: State) -> Decision | None:
    """Return the highest level again, if it was measured once with less throughput than the one below; else None."""
    *_, before, last = state.times
    low, high = (np.mean([m.throughput for m in state.valid if m.users == C]) for C in (last, before))
    once = state.times[last] == 1 and last == state.highest
    return state.measure(last, Reason.FALLS_AGAIN) if once and low < (1 - _LOST) * high else None


def _far(state: State, found: Known) -> Decision | None:
    """Return a level far above the knee, or first a control level, if no level lies so far above; else None."""
    C = min(round(_FAR * found.about), state.top)
    if state.highest >= min(_FAR_ENOUGH * found.about, state.top) or state.highest >= C:
        return None
    return _control(state, found, _BEFORE_FAR) or state.measure(C, Reason.FAR)


def _around(state: State, found: Known) -> Decision | None:
    """Return the most informative level near the knee, if possible on the other side of it than the last level.

    While the knee is vague the predicted one comes first. None if no level near it is affordable.
    """
    about = state.search.predicted_hinge
    vague = found.high / found.low > UP_TO and found.seats is None
    if about and vague and found.low <= about <= min(found.high, state.highest) and round(about) not in state.times:
        return state.measure(round(about), Reason.PREDICTED, known=_interval(found), hinge=about)
    middle = found.about
    ends = (found.low, min(found.high, state.N[-1])) if vague else (middle, middle)
    below = _places(state, _ZONE[0] * ends[0], middle)
    few_past = sum(PAST * middle <= N for N in state.N) < _PAST_LEVELS
    above = _places(state, PAST * middle if few_past else math.floor(middle) + 1, _ZONE[1] * ends[1])
    sides = [below, above] if state.valid[-1].users > middle else [above, below]
    for side in sides:
        C = _most(state, found, [C for C in side if state.affordable(C)])
        if C is not None:
            return measure(C, Reason.INFORMATION, known=_interval(found))
    return None


def _interval(found: Known) -> str:
    if not math.isfinite(found.high):
        return Part.ABOVE.words(low=found.low)
    return Part.BETWEEN.words(low=found.low, high=found.high)


def _places(state: State, low: float, high: float) -> list[int]:
    """Return candidate levels from low to high: the measured ones if there are enough, else these and new ones."""
    least, most = max(1, math.ceil(low)), min(math.floor(high), _up(state))
    if least > most:
        return []
    measured = [C for C in state.times if least <= C <= most]
    if len(measured) >= _DISTINCT:
        return measured
    grid = np.unique(np.round(np.geomspace(least, most, _PLACES)).astype(int)).tolist()
    return [C for C in sorted({*grid, *measured}) if state.worthwhile(C)]


def _most(state: State, found: Known, levels: Sequence[int]) -> int | None:
    """Return the level that would narrow the knee (once known, the plateau) most per second of measuring.

    Drawn curves disagree by var(ln X) at a level, and by var(Q) about the quantity Q. Measuring it once more with the
    relative error s takes cov²/(var + s²) off the latter, the linear update of a normal ensemble.
    """
    draws, posterior = found.fit.draws, found.fit.posterior
    if not levels or draws is None or posterior is None:
        return None
    N = np.interp(levels, list(state.times), state.N) * np.maximum(1.0, np.array(levels) / max(state.times))
    L = np.log(draws.throughput(N))
    L = L - L.mean(0)
    plateau = found.width <= state.search.hinge_width
    q = np.log(draws.plateau if plateau else draws.hinge)
    gain = (L.T @ (q - q.mean()) / len(q)) ** 2 / (np.mean(L**2, axis=0) + posterior.noise**2)
    value = gain / [state.cost(C) for C in levels]
    good = [C for C, v in zip(levels, value, strict=True) if v >= _AS_GOOD * value.max()]
    return min(good, key=lambda C: (state.times.get(C, 0), -value[levels.index(C)]))


def _up(state: State) -> int:
    """Return the next level above the highest, by a factor of √2 at most; the highest itself if none is allowed."""
    up = min(math.ceil(state.highest * math.sqrt(2)), state.top)
    if any(m.concurrency == state.top + 1 for m in state.measured):  # it failed: halfway there, not right below it
        up = min(up, round(math.sqrt(state.highest * (state.top + 1))))
        return up if up >= _WORTH * state.highest else state.highest
    return up
