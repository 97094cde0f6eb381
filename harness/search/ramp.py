"""Which level comes next, and why. Pure: levels held so far in, the next one or the end out.

Given levels, of concurrency or of rate, are held in the order given. Else a first pass of short levels climbs 1, 2,
4, … (1, 4, 16, … where the time allows for few of them) and then the ramp asks these questions in order, the whole list
before every level; the first that wants a level gets it:

    was the last level invalid?       hold it again, once
    fewer than 6 valid levels?        no hinge is found yet: fill the gaps around the likeliest one
    is the time nearly over?          the level that settles whether there is a plateau
    does throughput seem to fall?     repeat the levels past the hinge
    no descent to the knee yet?       repeat the level next to it, now that higher ones were held
    hinge and plateau known?          then it ends here, or goes on to the SLO
    is it a fourth level?             repeat an earlier one, against drift
    hinge or plateau too wide?        the level that tells most about them per second (`telling`)
    plateau not reached?              go up, or hold the level past the hinge that tells most about the slope there

An SLO is then bisected between the largest level that met it and the smallest that did not; so is the largest rate
of an open loop, which needs no knee. Everything follows from the levels held: a run that is resumed goes on as if
it had never ended. Left out: how long a level lasts and when the budget is spent; the ramp only asks what a level
would cost.

What a level costs. It lasts some request times (`precision.pace`) and a request time is N·G/X, so past the hinge the
seconds grow in proportion to C. The flat levels at the end of the climb are its dearest: after the first one it goes
on by √2, not 2. The rule is the same, elasticity below 5 % twice, and the second flat level costs 2.8 to 5.7 times what
a level at the hinge does, instead of 4 to 8. And where levels are noisy, the elasticity between two of them falls below
5 % by luck only; so the climb also ends once the curve through all of them puts the hinge below 0.9 of the last level
in 95 % of the draws. If either was too early, the last question goes on upwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import curve
from harness.analysis.answer import BELOW_LAST, HALF_POINTS, LEVELS, SURE
from harness.analysis.hyperbolas import DIP
from harness.analysis.table import Floats
from harness.search import information_gain, slo
from harness.search.measured import ERRORS, Seen, ceiling, look, overloaded
from harness.search.measured import Held as Held
from harness.search.measured import Next as Next
from harness.search.measured import Role as Role
from harness.search.measured import Search as Search
from harness.summary import BEYOND, FOUND, PROVISIONAL

FLAT = 0.05  # elasticity dlnX/dlnC below which a doubling gained nothing (docs/method.md, The ramp)
LEAST, REFINEMENTS = 8, 24  # levels after the climb before the knee is known, and at which it is taken as it is
SLO_LEVELS = 16  # and as many more for the SLO
DRIFT = 4  # every so many levels an earlier one is repeated

_DRAWS = 100  # enough to choose by; the report draws its own
_CANDIDATES = 64
_NEAR = 1.5  # a level within this factor of the hinge is next to it
_VAGUE = 2.0  # an interval whose ends are this factor apart says little
_WORTH = 1.1  # least step up towards a level that failed
_STILL = 0.25  # elasticity above which throughput still rises, whatever the curves say
_INSIDE = 0.7  # of the last level: a hinge below lies well inside
_FEW = 4  # levels of a first pass that may be sure of a bend
_FLAT_LEVELS = 2  # in a row that gain nothing end the first pass
_STALLS = 2  # levels in a row without a token, after which the server is given up
_MANY = 60.0  # request times in the whole run's time, below which the first pass goes by fours
_LAST = 2.5  # levels that the time left suffices for, below which the next one has to settle the plateau
_TIMES = 4  # a level is not repeated more often for what it tells; drift and a dip may ask for more
_SMOOTH = 2 * DRIFT  # levels after the climb that would have shown a corner where there is one
_DIPS = 0.2  # share of draws with a dip that makes one suspected
_FALL = 0.03  # least fall of throughput that does


def next_level(held: Sequence[Held], search: Search) -> Next:
    """The next level of one repeat of the ramp, from the levels it has held."""
    if stalled := _stalled(held):
        return stalled
    if search.rates is not None:
        return _failed(held, search) or _given(held, rates=search.rates)
    if search.levels is not None:
        return _failed(held, search) or _given(held, levels=search.levels)
    if search.search_rate:
        return slo.by_rate(held, search, REFINEMENTS + SLO_LEVELS)
    climbed, step = _climbed(held, search)
    seen = look(held, search, climbed)
    if step.concurrency is not None and seen.affordable(step.concurrency) and not _sure(seen):
        return _as(Role.FIRST_PASS, step, search)
    knee = _knee(seen, step.reason if step.over else seen.no_more())
    if not search.slo or not knee.over:
        return _as(Role.REFINEMENT, knee, search)
    limit = slo.by_concurrency(seen, REFINEMENTS + SLO_LEVELS)
    return limit if not limit.over else Next(None, f"{knee.reason}; {limit.reason}")


def _as(role: Role, step: Next, search: Search) -> Next:
    """The step in its role; where an SLO is judged every level is measured well enough for that."""
    return step if search.slo else msgspec.structs.replace(step, role=role)


def _stalled(held: Sequence[Held]) -> Next | None:
    last = held[-_STALLS:]
    if len(last) < _STALLS or not all(h.stalled for h in last):
        return None
    return Next(None, f"stopped: the server stalled at {_STALLS} levels in a row")


# Given levels


def _given(held: Sequence[Held], levels: Sequence[int] = (), rates: Sequence[float] = ()) -> Next:
    done = len(held)
    if done < len(levels):
        return Next(levels[done], "given")
    if done < len(rates):
        return Next(None, "given", rates[done])
    return Next(None, f"all given {'levels' if levels else 'rates'} are held")


def _failed(held: Sequence[Held], search: Search) -> Next | None:
    if search.keep_going or not held or held[-1].error_rate <= ERRORS:
        return None
    return Next(None, f"stopped: {held[-1].failure}")


# The climb


def _climbed(held: Sequence[Held], search: Search) -> tuple[int, Next]:
    """How many of the held levels the climb took, and its next step: it goes on while they are what it asks for."""
    for i in range(len(held)):
        step = _climb(held[:i], search)
        if step.over or held[i].concurrency != step.concurrency:
            return i, Next(None, step.reason)
    return len(held), _climb(held, search)


def _climb(held: Sequence[Held], search: Search) -> Next:
    """The next level of a climb so far, or why it ended."""
    if not held:
        return Next(1, "the ramp begins with a single stream")
    if again := _again(held):
        return again
    flat = [_elasticity(a, b) < FLAT for a, b in itertools.pairwise(filter(lambda h: h.counts, held))]
    if flat[-2:] == [True, True]:
        return Next(None, f"throughput rose by less than {FLAT:.0%} per doubling, twice")
    if search.paced and (best := _best_so_far(held)):
        return Next(None, f"two levels above {best} gained nothing on it")
    top, bar = ceiling(held, search)
    last = held[-1].users
    if last >= top:
        return Next(None, bar)
    if flat and flat[-1]:
        return Next(min(round(last * math.sqrt(2)) + (last == 1), top), f"half a doubling: {last} gained nothing")
    if _few_levels(held, search):
        return Next(min(4 * last, top), "twice a doubling: the time allows for few levels")
    return Next(min(2 * last, top), "doubling")


def _best_so_far(held: Sequence[Held]) -> int | None:
    """The level that the last two lie above without gaining on it; None where they gain.

    Neighbours of short levels on a noisy plateau seem to rise now and again; the best of all so far they do not pass.
    """
    valid = [h for h in held if h.counts]
    if len(valid) <= _FLAT_LEVELS:
        return None
    best = max(valid[:-_FLAT_LEVELS], key=lambda h: h.output_tokens_per_s)
    past = [h for h in valid[-_FLAT_LEVELS:] if h.users > best.users]
    gained = any(h.output_tokens_per_s > (1 + FLAT) * best.output_tokens_per_s for h in past)
    return best.users if len(past) == _FLAT_LEVELS and not gained else None


def _few_levels(held: Sequence[Held], search: Search) -> bool:
    """Whether the whole run's time allows for few levels, by the time of a request alone."""
    alone = held[0].request_s
    return search.seconds is not None and alone is not None and search.seconds < _MANY * alone


def _again(held: Sequence[Held]) -> Next | None:
    """An invalid level is held once more, as what spoiled it may have passed, unless its errors are the answer."""
    last = held[-1]
    if last.valid or overloaded(last, held) or [h.concurrency for h in held].count(last.concurrency) > 1:
        return None
    return Next(last.concurrency, f"{last.concurrency} again: the level was invalid")


def _elasticity(a: Held, b: Held) -> float:
    """dlnX/dlnC between two levels."""
    if a.output_tokens_per_s <= 0 or b.output_tokens_per_s <= 0 or a.concurrency == b.concurrency:
        return math.inf
    return math.log(b.output_tokens_per_s / a.output_tokens_per_s) / math.log(b.users / a.users)


# The knee


def _sure(seen: Seen) -> bool:
    """Whether the curves are sure, before the climb is flat twice, that it has passed the hinge."""
    valid = [h for h in seen.held if h.counts]
    fewest = _FEW if seen.search.paced else LEVELS
    if len(seen.times) < fewest or seen.refined or _elasticity(valid[-2], valid[-1]) > _STILL:
        return False
    fit = _fit(seen)
    if fit.draws is None:
        return False
    if len(seen.times) < LEVELS:  # goes by fours: a bend well inside is enough to look closer
        hinge = fit.curve.hinge_concurrency.value
        return _few_levels(seen.held, seen.search) and hinge is not None and hinge < _INSIDE * seen.highest
    return _below_last(seen, fit.draws) >= SURE


def _fit(seen: Seen) -> curve.Fit:
    points = [
        curve.Point(h.users, h.in_flight, h.output_tokens_per_s, h.se, h.counts, h.in_flight_ok, h.assumed)
        for h in seen.held
    ]
    return curve.fit(points, seed=seen.search.seed, draws=_DRAWS)


def _below_last(seen: Seen, draws: curve.Draws) -> float:
    """The chance that the hinge lies below the highest level, and clearly so."""
    return float(np.mean(_hinges(draws) < BELOW_LAST * seen.N[-1]))


def _hinges(draws: curve.Draws) -> Floats:
    """Where each draw bends: its hinge, of one without a corner where it has 95 % of what it tends to."""
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(draws.hinge), HALF_POINTS * draws.a / draws.b, draws.hinge)


def _plateaus(draws: curve.Draws) -> Floats:
    """What each draw tends to: its plateau, of one without a corner its asymptote."""
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(draws.plateau), 1 / draws.b, draws.plateau)


def _knee(seen: Seen, ended: str) -> Next:
    """The next level that the knee needs, or why it needs no more; `ended` is why the climb did."""
    if seen.held and (again := _again(seen.held)):
        return again
    if not seen.times or seen.top < 1:
        return Next(None, f"stopped: {seen.bar if seen.held else 'nothing is left to spend'}")
    if seen.search.quick and seen.climbed == len(seen.held) and (answer := _answer(seen)):
        return Next(None, answer)
    if len(seen.times) < LEVELS:
        few = f"stopped: a knee needs {LEVELS} valid levels, there are {len(seen.times)}; {ended}"
        return _fill(seen) or Next(None, few)
    fit = _fit(seen)
    assert fit.draws is not None
    found = _found(seen, fit, fit.draws)
    if seen.refined >= REFINEMENTS:
        return Next(None, f"stopped: {REFINEMENTS} levels were held after the climb; {found}")
    if step := _settling(seen, fit) or _dip(seen, fit.draws) or _from_above(seen, fit.draws):
        return step
    wide, far = [], information_gain.FAR * seen.N[-1]
    if _width(hinges := _hinges(fit.draws)) > seen.search.hinge_width:
        wide.append(np.minimum(hinges, far))
    if _width(plateaus := _plateaus(fit.draws)) > seen.search.plateau_width:
        wide.append(np.where(np.isinf(plateaus), fit.draws.throughput(np.array([far]))[:, 0], plateaus))
    if not wide and information_gain.settled(fit) and seen.refined >= LEAST:
        return Next(None, f"stopped: {found}")
    if _out_of_reach(seen, fit.draws):
        return Next(None, f"stopped: {found}; {seen.bar}")
    step = _drift(seen, fit, wide) or _higher(seen, fit.draws, wide) or _telling(seen, fit, wide)
    return step or Next(None, f"stopped: {found}; {seen.no_more()}")


def _answer(seen: Seen) -> str | None:
    """What a quick ramp ends with, once there is a knee, found or provisional."""
    fit = _fit(seen)
    if fit.curve.state not in (FOUND, PROVISIONAL):
        return None
    return f"--quick: the first pass has an answer, a {fit.curve.state} one"


def _settling(seen: Seen, fit: curve.Fit) -> Next | None:
    """The level that tells whether there is a plateau, while the time still suffices for it."""
    left = seen.search.seconds_left
    if left is None or information_gain.settled(fit) or fit.curve.settle is None:
        return None
    wanted = [C for C in fit.curve.settle.levels if seen.affordable(C) and seen.top >= C]
    if not wanted or left > _LAST * seen.cost(max(wanted)):
        return None
    return Next(max(wanted), f"{left:.3g} s are left: {max(wanted)} tells whether there is a plateau")


def _fill(seen: Seen) -> Next | None:
    """A level that is new, nearest to where the hinge may be: as predicted, else where throughput stops rising.

    Where throughput still rises, as far up as the time allows.
    """
    last = seen.highest
    if seen.search.paced and _fit(seen).curve.state == BEYOND:
        up = next((C for C in (2 * last, round(1.4 * last)) if seen.top >= C > last and seen.affordable(C)), None)
        return Next(up, f"throughput still rises at {last}: up to {up}") if up else None
    X = {h.users: h.output_tokens_per_s for h in seen.held if h.counts}
    if seen.search.paced and (between := _between(seen)):
        return seen.hold(between, f"only {len(seen.times)} levels so far: {between} lies near the bend")
    about = seen.search.predicted_hinge
    if about is None or not 1 <= about <= last:
        about = next((C for C in sorted(X) if X[C] >= 0.95 * max(X.values())), last)
    new = [C for C in range(1, min(2 * last, seen.top) + 1) if C not in seen.times]
    near = min(new, key=lambda C: abs(math.log(C / about)), default=None)
    if near is None:
        return None
    return seen.hold(near, f"only {len(seen.times)} levels so far: {near} lies near the bend")


def _between(seen: Seen) -> int | None:
    """The middle of the gap between two levels that the likeliest hinge lies in; None where it holds no new level."""
    hinge = _fit(seen).curve.hinge_concurrency.value
    for low, high in itertools.pairwise(seen.times):
        middle = round(math.sqrt(low * high))
        if hinge is not None and low <= hinge <= high and middle not in seen.times:
            return middle
    return None


def _dip(seen: Seen, draws: curve.Draws) -> Next | None:
    """Throughput seems to fall past the hinge: only levels held twice can confirm it, three have to lie there."""
    edge = information_gain.PAST * float(np.median(_hinges(draws)))
    past = [C for C, N in zip(seen.times, seen.N, strict=True) if edge <= N]
    if len(past) < 2 or not (_falls(seen, past) or np.mean(draws.family == DIP) > _DIPS):
        return None
    if len(past) == 2:
        between = round(math.sqrt(past[0] * past[1]))
        return None if between in past else seen.hold(between, f"throughput seems to fall: {between} lies between")
    once = [C for C in past[-2:] if seen.times[C] == 1 and seen.affordable(C)]
    return seen.hold(once[-1], f"{once[-1]} again: throughput seems to fall past the knee") if once else None


def _falls(seen: Seen, past: Sequence[int]) -> bool:
    """Whether the highest level lies below those before it, by twice its error."""
    high = [h for h in seen.held if h.counts and h.concurrency == past[-1]]
    rest = [h for h in seen.held if h.counts and h.concurrency in past[:-1]]
    X, before = (sum(h.output_tokens_per_s for h in some) / len(some) for some in (high, rest))
    error = seen.typical() * math.sqrt(1 / len(high) + 1 / len(rest))
    return 1 - X / before > max(2 * error, _FALL)


def _from_above(seen: Seen, draws: curve.Draws) -> Next | None:
    """The climb's level next to the hinge again, after higher ones: a server that remembers its load shows it."""
    hinge = float(np.median(_hinges(draws)))
    if not math.isfinite(hinge):
        return None
    levels = [h.concurrency for h in seen.held]
    for C, (i, h) in itertools.product(seen.times, enumerate(seen.held)):
        above = any(k.users > C for k in seen.held[levels.index(C) : i])
        if h.concurrency == C and h.counts and above and abs(math.log(C / hinge)) <= math.log(_NEAR):
            return None
    climbed = sorted({h.users for h in seen.held[: seen.climbed] if h.counts})
    if len(climbed) < 2:
        return None
    near = min(climbed[:-1], key=lambda C: abs(math.log(C / hinge)))
    once = seen.times[near] == 1  # repeated already and still far from the hinge: nothing nearer was climbed
    return seen.hold(near, f"back to {near} from above") if once else None


def _drift(seen: Seen, fit: curve.Fit, wide: Sequence[Floats]) -> Next | None:
    """Every fourth level one of the climb again that was not repeated yet, the one that tells most per second."""
    if seen.refined % DRIFT != DRIFT - 1:
        return None
    climbed = sorted({h.users for h in seen.held[: seen.climbed] if h.counts and seen.top >= h.users})
    step = information_gain.most(seen, fit, climbed, wide)
    return Next(step, f"repeat of {step} against drift") if step else None


def _telling(seen: Seen, fit: curve.Fit, wide: Sequence[Floats]) -> Next | None:
    """The level that tells most per second about what is still too wide, or not known to be flat."""
    draws = fit.draws
    assert draws is not None
    lo, hi = curve.interval(_hinges(draws))
    asked = f"the knee lies above {min(lo, seen.N[-1]):.3g} (95 %)"
    if math.isfinite(hi):
        asked = f"the knee lies between {lo:.3g} and {hi:.3g} (95 %)"
    about = seen.search.predicted_hinge
    if about and hi / lo > _VAGUE and lo <= about <= min(hi, seen.highest) and round(about) not in seen.times:
        return seen.hold(round(about), f"{asked}: predicted at {about:.3g}")
    grid = np.unique(np.round(np.geomspace(1, seen.highest, _CANDIDATES)).astype(int)).tolist()
    grid = [C for C in grid if seen.times.get(C, 0) < _TIMES]
    up = [_up(seen)] if _up(seen) > seen.highest else []
    C = information_gain.most(seen, fit, grid + up, wide)
    if not wide and not information_gain.settled(fit):
        asked = "throughput past the knee is not known to be flat"
    elif _width(_hinges(draws)) <= seen.search.hinge_width and wide:
        asked = f"the plateau is known to {_percent(_width(_plateaus(draws)))}"
    return Next(C, f"{asked}: {C} tells most per second") if C else None


def _higher(seen: Seen, draws: curve.Draws, wide: Sequence[Floats]) -> Next | None:
    """Up, where the hinge most likely lies beyond the last level, or is known but too near to it for a plateau."""
    sure, up = _below_last(seen, draws), _up(seen)
    if up <= seen.highest or sure >= (0.5 if wide else SURE):
        return None
    return seen.hold(up, f"the knee lies below {BELOW_LAST * seen.N[-1]:.3g} with {sure:.0%} only: up to {up}")


def _out_of_reach(seen: Seen, draws: curve.Draws) -> bool:
    """Whether the levels allowed most likely hold no plateau; some more levels make sure of it.

    Throughput still rises at the highest one, or it bends without a corner and that knee has no upper end.
    """
    rises, smooth = _below_last(seen, draws) < 0.5, np.mean(np.isinf(draws.hinge)) > 0.5
    return _up(seen) <= seen.highest and bool((rises and seen.refined >= DRIFT) or (smooth and seen.refined >= _SMOOTH))


def _up(seen: Seen) -> int:
    """The next level above the highest, which this is itself where none is allowed or worth it."""
    up = min(math.ceil(seen.highest * math.sqrt(2)), seen.top)
    if any(h.concurrency == seen.top + 1 for h in seen.held):  # which failed: halfway there, not right below it
        up = min(up, round(math.sqrt(seen.highest * (seen.top + 1))))
        return up if up >= _WORTH * seen.highest else seen.highest
    return up


def _found(seen: Seen, fit: curve.Fit, draws: curve.Draws) -> str:
    """The answer so far in words."""
    if not math.isfinite(np.median(draws.hinge)):
        return f"throughput still rises at {max(seen.times)}"
    falls = ", past which it falls" if fit.curve.dip is not None else ", and is not reached"
    reached = "" if fit.curve.plateau_reached else falls
    hinge, plateau = _percent(_width(_hinges(draws))), _percent(_width(_plateaus(draws)))
    return f"the knee is known to {hinge} and the plateau to {plateau}{reached}"


def _width(draws: Floats) -> float:
    """Full width of the 95 % interval relative to the median."""
    lo, hi = curve.interval(draws)
    return (hi - lo) / float(np.median(draws)) if math.isfinite(hi) else math.inf


def _percent(width: float) -> str:
    return f"{width:.0%}" if math.isfinite(width) else "no upper end"
