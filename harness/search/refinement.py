"""What a ramp measures after its first pass, until hinge and plateau are known.

These questions are answered in order before every level; the first that needs a level decides it:

    was the last level invalid?       measure it again, once
    fewer than 6 valid levels?        no hinge is found yet: fill the gaps around the likeliest one
    is the time nearly over?          the level that settles whether there is a plateau
    does throughput seem to fall?     repeat the levels past the hinge
    no descent to the knee yet?       repeat the level next to it, now that higher ones were measured
    hinge and plateau known?          then it ends here
    is it a fourth level?             repeat an earlier one, against drift
    hinge or plateau too wide?        the level with the most information about them per second (`information_gain`)
    plateau not reached?              go up, or to the level past the hinge with the most information on the slope there
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from harness.analysis import curve
from harness.analysis.conclusion import BELOW_LAST, LEVELS, SURE
from harness.analysis.hyperbolas import DIP
from harness.analysis.table import Floats
from harness.search import first_pass, information_gain, knee
from harness.search.decision import Decision, End, Part, Reason, end, interval_width, measure
from harness.search.state import State
from harness.summary import BEYOND, FOUND, PROVISIONAL

LEAST, MOST = 8, 24  # levels before the knee is known, and at which it is taken as it is
DRIFT = 4  # every so many levels an earlier one is repeated

_CANDIDATES = 64
_NEAR = 1.5  # a level within this factor of the hinge is next to it
_VAGUE = 2.0  # an interval whose ends are this factor apart is too wide to use
_WORTH = 1.1  # least step up towards a level that failed
_LAST = 2.5  # levels that the time left suffices for, below which the next one has to settle the plateau
_TIMES = 4  # a level is not repeated more often for its information; drift and a dip may repeat it more
_SMOOTH = 2 * DRIFT  # levels that would have shown a corner where there is one
_DIPS = 0.2  # share of draws with a dip that makes one suspected
_FALL = 0.03  # least fall of throughput that does


def next_step(state: State, why: str) -> Decision:
    """The next level that the knee needs, or why it needs no more; `why` the first pass ended."""
    if state.measured and (again := first_pass.again(state.measured)):
        return again
    if not state.times or state.top < 1:
        return end(End.NOTHING_ALLOWED, bar=state.bar if state.measured else Part.SPENT.words())
    if state.search.quick and state.climbed == len(state.measured):
        answer = knee.fit(state).curve.state
        if answer in (FOUND, PROVISIONAL):
            return end(End.QUICK, state=answer)
    if len(state.times) < LEVELS:
        return _fill(state) or end(End.FEW_LEVELS, needed=LEVELS, valid=len(state.times), bar=why)
    fit = knee.fit(state)
    assert fit.draws is not None
    found = knee.so_far(state, fit, fit.draws)
    if state.refined >= MOST:
        return end(End.MANY_LEVELS, levels=MOST, found=found)
    if step := _settling(state, fit) or _dip(state, fit.draws) or _from_above(state, fit.draws):
        return step
    wide = _too_wide(state, fit.draws)
    if not wide and knee.settled(fit) and state.refined >= LEAST:
        return end(End.FOUND, found=found)
    if _out_of_reach(state, fit.draws):
        return end(End.OUT_OF_REACH, found=found, bar=state.bar)
    step = _drift(state, fit, wide) or _higher(state, fit.draws, wide) or _informative(state, fit, wide)
    return step or end(End.NOTHING_HELPS, found=found, why=state.no_more)


def _too_wide(state: State, draws: curve.Draws) -> list[Floats]:
    """The draws of hinge and plateau, as far as these are not known well enough."""
    wide, far = [], knee.FAR * state.N[-1]
    if knee.width(hinges := knee.hinges(draws)) > state.search.hinge_width:
        wide.append(np.minimum(hinges, far))
    if knee.width(plateaus := knee.plateaus(draws)) > state.search.plateau_width:
        wide.append(np.where(np.isinf(plateaus), draws.throughput(np.array([far]))[:, 0], plateaus))
    return wide


def _settling(state: State, fit: curve.Fit) -> Decision | None:
    """The level that decides whether there is a plateau, while the time still suffices for it."""
    left = state.search.seconds_left
    if left is None or knee.settled(fit) or fit.curve.settle is None:
        return None
    wanted = [C for C in fit.curve.settle.levels if state.worthwhile(C) and state.affordable(C) and state.top >= C]
    if not wanted or left > _LAST * state.cost(max(wanted)):
        return None
    return measure(max(wanted), Reason.LITTLE_TIME, left=left)


def _fill(state: State) -> Decision | None:
    """A level that is new, nearest to where the hinge may be: as predicted, else where throughput stops rising.

    Where throughput still rises, as far up as the time allows.
    """
    last = state.highest
    if state.search.paced and knee.fit(state).curve.state == BEYOND:
        up = next((C for C in (2 * last, round(1.4 * last)) if state.top >= C > last and state.affordable(C)), None)
        return measure(up, Reason.STILL_RISES, last=last) if up else None
    if state.search.paced and (between := _between(state)):
        return state.measure(between, Reason.FEW_LEVELS, levels=len(state.times))
    about = state.search.predicted_hinge
    if about is None or not 1 <= about <= last:
        X = {m.users: m.throughput for m in state.valid}
        about = next((C for C in sorted(X) if X[C] >= 0.95 * max(X.values())), last)
    new = [C for C in range(1, min(2 * last, state.top) + 1) if C not in state.times and state.worthwhile(C)]
    near = min(new, key=lambda C: abs(math.log(C / about)), default=None)
    return None if near is None else state.measure(near, Reason.FEW_LEVELS, levels=len(state.times))


def _between(state: State) -> int | None:
    """The middle of the two levels around the likeliest hinge; None where there is no new level between them."""
    hinge = knee.fit(state).curve.hinge_concurrency.value
    for low, high in itertools.pairwise(state.times):
        middle = round(math.sqrt(low * high))
        if hinge is not None and low <= hinge <= high and middle not in state.times and state.worthwhile(middle):
            return middle
    return None


def _dip(state: State, draws: curve.Draws) -> Decision | None:
    """Throughput seems to fall past the hinge: only repeated levels can confirm it, three have to lie there."""
    edge = knee.PAST * float(np.median(knee.hinges(draws)))
    past = [C for C, N in zip(state.times, state.N, strict=True) if edge <= N]
    if len(past) < 2 or not (_falls(state, past) or np.mean(draws.family == DIP) > _DIPS):
        return None
    if len(past) == 2:
        between = round(math.sqrt(past[0] * past[1]))
        return None if between in past else state.measure(between, Reason.FALLS)
    once = [C for C in past[-2:] if state.times[C] == 1 and state.affordable(C)]
    return state.measure(once[-1], Reason.FALLS_AGAIN) if once else None


def _falls(state: State, past: Sequence[int]) -> bool:
    """Whether the highest level lies below those before it, by twice its error."""
    high = [m for m in state.valid if m.concurrency == past[-1]]
    rest = [m for m in state.valid if m.concurrency in past[:-1]]
    X, before = (sum(m.throughput for m in some) / len(some) for some in (high, rest))
    error = state.typical_error * math.sqrt(1 / len(high) + 1 / len(rest))
    return 1 - X / before > max(2 * error, _FALL)


def _from_above(state: State, draws: curve.Draws) -> Decision | None:
    """The first pass' level next to the hinge again, after higher ones: this shows hysteresis of the server."""
    hinge = float(np.median(knee.hinges(draws)))
    if not math.isfinite(hinge):
        return None
    levels = [m.concurrency for m in state.measured]
    for C, (i, m) in itertools.product(state.times, enumerate(state.measured)):
        above = any(other.users > C for other in state.measured[levels.index(C) : i])
        if m.concurrency == C and m.counts and above and abs(math.log(C / hinge)) <= math.log(_NEAR):
            return None
    climbed = _climbed(state)
    if len(climbed) < 2:
        return None
    near = min(climbed[:-1], key=lambda C: abs(math.log(C / hinge)))
    once = state.times[near] == 1  # repeated already and still far from the hinge: nothing nearer was climbed
    return state.measure(near, Reason.FROM_ABOVE) if once else None


def _drift(state: State, fit: curve.Fit, wide: Sequence[Floats]) -> Decision | None:
    """Every fourth level repeats one of the first pass, the one with the most information per second."""
    if state.refined % DRIFT != DRIFT - 1:
        return None
    step = information_gain.most(state, fit, [C for C in _climbed(state) if state.top >= C], wide)
    return measure(step, Reason.DRIFT) if step else None


def _climbed(state: State) -> list[int]:
    """The valid concurrencies of the first pass, in order."""
    return sorted({m.users for m in state.measured[: state.climbed] if m.counts})


def _informative(state: State, fit: curve.Fit, wide: Sequence[Floats]) -> Decision | None:
    """The level with the most information per second on what is still too wide, or not known to be flat."""
    draws = fit.draws
    assert draws is not None
    lo, hi = curve.interval(knee.hinges(draws))
    known = Part.ABOVE.words(low=min(lo, state.N[-1]))
    if math.isfinite(hi):
        known = Part.BETWEEN.words(low=lo, high=hi)
    about = state.search.predicted_hinge
    if about and hi / lo > _VAGUE and lo <= about <= min(hi, state.highest) and round(about) not in state.times:
        return state.measure(round(about), Reason.PREDICTED, known=known, hinge=about)
    grid = np.unique(np.round(np.geomspace(1, state.highest, _CANDIDATES)).astype(int)).tolist()
    grid = [C for C in grid if state.times.get(C, 0) < _TIMES and state.worthwhile(C)]
    up = [_up(state)] if _up(state) > state.highest else []
    C = information_gain.most(state, fit, grid + up, wide)
    if not wide and not knee.settled(fit):
        known = Part.NOT_FLAT.words()
    elif knee.width(knee.hinges(draws)) <= state.search.hinge_width and wide:
        known = Part.PLATEAU.words(plateau=interval_width(knee.width(knee.plateaus(draws))))
    return measure(C, Reason.INFORMATION, known=known) if C else None


def _higher(state: State, draws: curve.Draws, wide: Sequence[Floats]) -> Decision | None:
    """Up, where the hinge most likely lies beyond the last level, or is known but too near to it for a plateau."""
    sure, up = knee.below_last(state, draws), _up(state)
    if up <= state.highest or sure >= (0.5 if wide else SURE):
        return None
    return state.measure(up, Reason.HIGHER, bound=BELOW_LAST * state.N[-1], chance=sure)


def _out_of_reach(state: State, draws: curve.Draws) -> bool:
    """Whether the levels allowed most likely reach no plateau; some more levels make sure of it.

    Throughput still rises at the highest one, or it bends without a corner and that knee has no upper end.
    """
    rises, smooth = knee.below_last(state, draws) < 0.5, np.mean(np.isinf(draws.hinge)) > 0.5
    enough = (rises and state.refined >= DRIFT) or (smooth and state.refined >= _SMOOTH)
    return _up(state) <= state.highest and bool(enough)


def _up(state: State) -> int:
    """The next level above the highest, which this is itself where none is allowed or worth it."""
    up = min(math.ceil(state.highest * math.sqrt(2)), state.top)
    if any(m.concurrency == state.top + 1 for m in state.measured):  # which failed: halfway there, not right below it
        up = min(up, round(math.sqrt(state.highest * (state.top + 1))))
        return up if up >= _WORTH * state.highest else state.highest
    return up
