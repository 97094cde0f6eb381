"""Which level comes next, and why. Pure: levels held so far in, the next one or the end out.

Given levels, of concurrency or of rate, are held in the order given. Else the ramp climbs 1, 2, 4, … and then asks
these questions in order, the whole list before every level; the first that wants a level gets it:

    was the last level invalid?       hold it again, once
    fewer than 6 valid levels?        no hinge can be fitted: fill the gaps around the likeliest one
    does throughput seem to fall?     repeat the levels past the hinge
    no descent to the knee yet?       repeat the level next to it, now that higher ones were held
    hinge and plateau known?          then it ends here, or goes on to the SLO
    is it a fourth level?             repeat an earlier one, against drift
    hinge or plateau too wide?        the level that tells most about them per second (`_telling`)
    plateau not reached?              go up, or hold the level past the hinge that tells most about the slope there

An SLO is then bisected between the largest level that met it and the smallest that did not; so is the largest rate
of an open loop, which needs no knee. Everything follows from the levels held: a run that is resumed goes on as if
it had never ended. Left out: how long a level lasts and when the budget is spent; the ramp only asks what a level
would cost.

What a level costs. One lasts some 25 request times and a request time is N·G/X, so past the hinge the seconds grow
in proportion to C. The flat levels at the end of the climb are its dearest: after the first one it goes on by √2,
not 2. The rule is the same, elasticity below 5 % twice, and the second flat level costs 2.8 to 5.7 times what a level
at the hinge does, instead of 4 to 8. And where levels are noisy, the elasticity between two of them falls below 5 %
by luck only; so the climb also ends once the curve through all of them puts the hinge below 0.9 of the last level in
95 % of the draws. If either was too early, the last question goes on upwards.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import curve
from harness.analysis.edge import CLOSE, edge_of, told
from harness.analysis.hyperbolas import DIP, excused
from harness.analysis.stats import FLOOR
from harness.analysis.table import Floats

FLAT = 0.05  # elasticity dlnX/dlnC below which a doubling gained nothing (analytic.md §6)
ERRORS = 0.01
LEVELS = 6  # distinct valid ones that a hinge needs (analytic.md §5: n >= k + 3)
LEAST, REFINEMENTS = 8, 24  # levels after the climb before the knee is known, and at which it is taken as it is
SLO_LEVELS = 16  # and as many more for the SLO
DRIFT = 4  # every so many levels an earlier one is repeated

_DRAWS = 100  # enough to choose by; the report draws its own
_CANDIDATES = 64
_AS_GOOD = 0.9  # of the best one's worth: among these the least held is taken, as no curve is exact
_ASSUMED = 0.02  # relative error of a level that has none
_PAST = 1.15  # a level that is to count as past the hinge (curve: 1.1) is asked for with some room
_BELOW_LAST, _SURE = 0.9, 0.95  # the hinge lies below 0.9 of the last level with this chance (analytic.md §5)
_FAR = 4.0  # a hinge at infinity counts as so many times the last level
_LEVER = 0.02  # Σ(ln N - mean)² too small to tell an elasticity by: two levels a fifth apart
_NEAR = 1.5  # a level within this factor of the hinge is next to it
_VAGUE = 2.0  # an interval whose ends are this factor apart says little
_WORTH = 1.1  # least step up towards a level that failed
_STILL = 0.25  # elasticity above which throughput still rises, whatever the curves say
_DIPS = 0.2  # share of draws with a dip that makes one suspected
_FALL = 0.03  # least fall of throughput that does


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A level as the ramp sees it: of a concurrency, or of a rate in requests per second."""

    concurrency: int | None
    rate: float | None
    in_flight: float | None
    output_tokens_per_s: float
    se: float | None  # one standard error, tok/s
    error_rate: float
    seconds: float  # the whole level, warm-up to the end of cooldown
    requests: int
    request_s: float | None  # mean E2E
    valid: bool
    in_flight_ok: bool
    ttft_p99_s: float | None
    slo: str | None  # met | missed | unresolved; None: no SLO asked
    unstable: bool = False  # open loop: more and more in flight


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
    first_rate: float | None = None  # of a search for the rate; 1 / (time of a request alone) is a good one


class Next(msgspec.Struct, frozen=True):
    """The next level, or neither concurrency nor rate and the ramp is over; always with the reason."""

    concurrency: int | None
    reason: str
    rate: float | None = None

    @property
    def over(self) -> bool:
        return self.concurrency is None and self.rate is None


def next_level(held: Sequence[Held], search: Search) -> Next:
    """The next level of one repeat of the ramp, from the levels it has held."""
    if search.rates is not None:
        return _failed(held) or _given(held, rates=search.rates)
    if search.levels is not None:
        return _failed(held) or _given(held, levels=search.levels)
    if search.search_rate:
        return _rate(held, search)
    climbed, step = _climbed(held, search)
    seen = _look(held, search, climbed)
    if step.concurrency is not None and _affordable(seen, step.concurrency) and not _sure(seen):
        return step
    knee = _knee(seen, step.reason if step.over else _no_more(seen))
    if not search.slo or not knee.over:
        return knee
    slo = _slo(seen)
    return slo if not slo.over else Next(None, f"{knee.reason}; {slo.reason}")


# Given levels


def _given(held: Sequence[Held], levels: Sequence[int] = (), rates: Sequence[float] = ()) -> Next:
    done = len(held)
    if done < len(levels):
        return Next(levels[done], "given")
    if done < len(rates):
        return Next(None, "given", rates[done])
    return Next(None, f"all given {'levels' if levels else 'rates'} are held")


def _failed(held: Sequence[Held]) -> Next | None:
    if not held or held[-1].error_rate <= ERRORS:
        return None
    return Next(None, f"stopped: {_errors(held[-1])}")


def _errors(h: Held) -> str:
    where = f"{h.concurrency} in flight" if h.rate is None else f"{h.rate:g} requests per second"
    return f"{h.error_rate:.1%} of the requests failed at {where}"


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
    flat = [_elasticity(a, b) < FLAT for a, b in itertools.pairwise(filter(_counts, held))]
    if flat[-2:] == [True, True]:
        return Next(None, f"throughput rose by less than {FLAT:.0%} per doubling, twice")
    top, bar = _ceiling(held, search)
    last = _c(held[-1])
    if last >= top:
        return Next(None, bar)
    if flat and flat[-1]:
        return Next(min(round(last * math.sqrt(2)) + (last == 1), top), f"half a doubling: {last} gained nothing")
    return Next(min(2 * last, top), "doubling")


def _again(held: Sequence[Held]) -> Next | None:
    """An invalid level is held once more, as what spoiled it may have passed; errors are an answer."""
    last = held[-1]
    if last.valid or last.error_rate > ERRORS or [h.concurrency for h in held].count(last.concurrency) > 1:
        return None
    return Next(last.concurrency, f"{last.concurrency} again: the level was invalid")


def _ceiling(held: Sequence[Held], search: Search) -> tuple[int, str]:
    """The highest concurrency still allowed, and what forbids more."""
    bars = [(search.max_concurrency, f"--max-concurrency {search.max_concurrency} is reached")]
    spoiled = Counter(_c(h) for h in held if not h.valid) - Counter(_c(h) for h in held if h.valid)
    bars += [(C - 1, f"the level of {C} was invalid twice") for C, times in spoiled.items() if times > 1]
    for h in held:
        if h.error_rate > ERRORS:
            bars.append((_c(h) - 1, _errors(h)))
        elif search.max_ttft_s is not None and (h.ttft_p99_s or 0.0) > search.max_ttft_s:
            bars.append((_c(h), f"TTFT p99 of {h.ttft_p99_s:.3g} s at {_c(h)} is past {search.max_ttft_s:g} s"))
    for a, b in itertools.pairwise(sorted((h for h in held if h.valid and h.in_flight), key=_c)):
        if not b.in_flight_ok and _c(b) > _c(a) and _n(b) / _n(a) < math.sqrt(_c(b) / _c(a)):
            bars.append((_c(b), f"only {_n(b):.3g} were in flight at {_c(b)}"))
    return min(bars)


def _elasticity(a: Held, b: Held) -> float:
    """dlnX/dlnC between two levels."""
    if a.output_tokens_per_s <= 0 or b.output_tokens_per_s <= 0 or a.concurrency == b.concurrency:
        return math.inf
    return math.log(b.output_tokens_per_s / a.output_tokens_per_s) / math.log(_c(b) / _c(a))


def _c(h: Held) -> int:
    assert h.concurrency is not None
    return h.concurrency


def _counts(h: Held) -> bool:
    """Whether the level is a point of the curve."""
    return h.valid and h.error_rate <= ERRORS and h.output_tokens_per_s > 0


def _n(h: Held) -> float:
    return h.in_flight or float(_c(h))


# The knee


class _Seen(msgspec.Struct, frozen=True):
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


def _look(held: Sequence[Held], search: Search, climbed: int) -> _Seen:
    valid = sorted(filter(_counts, held), key=_c)
    by = {C: list(same) for C, same in itertools.groupby(valid, _c)}
    return _Seen(
        held, search, climbed, {C: len(same) for C, same in by.items()},
        [sum(map(_n, same)) / len(same) for same in by.values()],
        [sum(h.seconds for h in same) / len(same) for same in by.values()],
        *_ceiling(held, search),
    )  # fmt: skip


def _sure(seen: _Seen) -> bool:
    """Whether the curves are sure, before the climb is flat twice, that it has passed the hinge."""
    valid = [h for h in seen.held if _counts(h)]
    if len(seen.times) < LEVELS or seen.refined or _elasticity(valid[-2], valid[-1]) > _STILL:
        return False
    fit = _fit(seen)
    return fit.draws is not None and _below_last(seen, fit.draws) >= _SURE


def _fit(seen: _Seen) -> curve.Fit:
    points = [
        curve.Point(_c(h), h.in_flight, h.output_tokens_per_s, h.se, _counts(h), h.in_flight_ok) for h in seen.held
    ]
    return curve.fit(points, seed=seen.search.seed, draws=_DRAWS)


def _below_last(seen: _Seen, draws: curve.Draws) -> float:
    """The chance that the hinge lies below the highest level, and clearly so."""
    return float(np.mean(draws.hinge < _BELOW_LAST * seen.N[-1]))


def _knee(seen: _Seen, ended: str) -> Next:
    """The next level that the knee needs, or why it needs no more; `ended` is why the climb did."""
    if seen.held and (again := _again(seen.held)):
        return again
    if not seen.times or seen.top < 1:
        return Next(None, f"stopped: {seen.bar if seen.held else 'nothing is left to spend'}")
    if len(seen.times) < LEVELS:
        few = f"stopped: {len(seen.times)} valid levels are too few for a hinge, {LEVELS} are needed; {ended}"
        return _fill(seen) or Next(None, few)
    fit = _fit(seen)
    assert fit.draws is not None
    found = _found(seen, fit, fit.draws)
    if seen.refined >= REFINEMENTS:
        return Next(None, f"stopped: {REFINEMENTS} levels were held after the climb; {found}")
    if step := _dip(seen, fit.draws) or _from_above(seen, fit.draws):
        return step
    wide = [
        q
        for q, limit in ((fit.draws.hinge, seen.search.hinge_width), (fit.draws.plateau, seen.search.plateau_width))
        if _width(q) > limit
    ]
    if not wide and _settled(fit) and seen.refined >= LEAST:
        return Next(None, f"stopped: {found}")
    if _out_of_reach(seen, fit.draws):
        return Next(None, f"stopped: {found}; {seen.bar}")
    step = _drift(seen, fit, wide) or _higher(seen, fit.draws, wide) or _telling(seen, fit, wide)
    return step or Next(None, f"stopped: {found}; {_no_more(seen)}")


def _settled(fit: curve.Fit) -> bool:
    """Whether it is known what throughput does past the hinge: stay, or fall."""
    return fit.curve.plateau_reached or fit.curve.dip is not None


def _fill(seen: _Seen) -> Next | None:
    """A level that is new, nearest to where the hinge may be: as predicted, else where throughput stops rising."""
    last = seen.highest
    X = {_c(h): h.output_tokens_per_s for h in seen.held if _counts(h)}
    about = seen.search.predicted_hinge
    if about is None or not 1 <= about <= last:
        about = next((C for C in sorted(X) if X[C] >= 0.95 * max(X.values())), last)
    new = [C for C in range(1, min(2 * last, seen.top) + 1) if C not in seen.times]
    near = min(new, key=lambda C: abs(math.log(C / about)), default=None)
    if near is None:
        return None
    return _hold(seen, near, f"only {len(seen.times)} levels so far: {near} lies near the bend")


def _dip(seen: _Seen, draws: curve.Draws) -> Next | None:
    """Throughput seems to fall past the hinge: only levels held twice can confirm it, three have to lie there."""
    edge = _PAST * float(np.median(draws.hinge))
    past = [C for C, N in zip(seen.times, seen.N, strict=True) if edge <= N]
    if len(past) < 2 or not (_falls(seen, past) or np.mean(draws.family == DIP) > _DIPS):
        return None
    if len(past) == 2:
        between = round(math.sqrt(past[0] * past[1]))
        return None if between in past else _hold(seen, between, f"throughput seems to fall: {between} lies between")
    once = [C for C in past[-2:] if seen.times[C] == 1 and _affordable(seen, C)]
    return _hold(seen, once[-1], f"{once[-1]} again: throughput seems to fall past the hinge") if once else None


def _falls(seen: _Seen, past: Sequence[int]) -> bool:
    """Whether the highest level lies below those before it, by twice its error."""
    high = [h for h in seen.held if _counts(h) and h.concurrency == past[-1]]
    rest = [h for h in seen.held if _counts(h) and h.concurrency in past[:-1]]
    X, before = (sum(h.output_tokens_per_s for h in some) / len(some) for some in (high, rest))
    error = _typical(seen) * math.sqrt(1 / len(high) + 1 / len(rest))
    return 1 - X / before > max(2 * error, _FALL)


def _from_above(seen: _Seen, draws: curve.Draws) -> Next | None:
    """The climb's level next to the hinge again, after higher ones: a server that remembers its load shows it."""
    hinge = float(np.median(draws.hinge))
    if not math.isfinite(hinge):
        return None
    levels = [h.concurrency for h in seen.held]
    for C, (i, h) in itertools.product(seen.times, enumerate(seen.held)):
        above = any(_c(k) > C for k in seen.held[levels.index(C) : i])
        if h.concurrency == C and _counts(h) and above and abs(math.log(C / hinge)) <= math.log(_NEAR):
            return None
    climbed = sorted({_c(h) for h in seen.held[: seen.climbed] if _counts(h)})
    if len(climbed) < 2:
        return None
    near = min(climbed[:-1], key=lambda C: abs(math.log(C / hinge)))
    once = seen.times[near] == 1  # repeated already and still far from the hinge: nothing nearer was climbed
    return _hold(seen, near, f"back to {near} from above") if once else None


def _drift(seen: _Seen, fit: curve.Fit, wide: Sequence[Floats]) -> Next | None:
    """Every fourth level one of the climb again that was not repeated yet, the one that tells most per second."""
    if seen.refined % DRIFT != DRIFT - 1:
        return None
    climbed = sorted({_c(h) for h in seen.held[: seen.climbed] if _counts(h) and _c(h) <= seen.top})
    step = _most(seen, fit, climbed, wide)
    return Next(step, f"repeat of {step} against drift") if step else None


def _telling(seen: _Seen, fit: curve.Fit, wide: Sequence[Floats]) -> Next | None:
    """The level that tells most per second about what is still too wide, or not known to be flat."""
    draws = fit.draws
    assert draws is not None
    lo, hi = curve.interval(draws.hinge)
    asked = f"the hinge lies above {min(lo, seen.N[-1]):.3g} (95 %)"
    if math.isfinite(hi):
        asked = f"the hinge lies between {lo:.3g} and {hi:.3g} (95 %)"
    about = seen.search.predicted_hinge
    if about and hi / lo > _VAGUE and lo <= about <= min(hi, seen.highest) and round(about) not in seen.times:
        return _hold(seen, round(about), f"{asked}: predicted at {about:.3g}")
    grid = np.unique(np.round(np.geomspace(1, seen.highest, _CANDIDATES)).astype(int)).tolist()
    up = [_up(seen)] if _up(seen) > seen.highest else []
    C = _most(seen, fit, grid + up, wide)
    if not wide and not _settled(fit):
        asked = "throughput past the hinge is not known to be flat"
    elif _width(draws.hinge) <= seen.search.hinge_width and wide:
        asked = f"the plateau is known to {_percent(_width(draws.plateau))}"
    return Next(C, f"{asked}: {C} tells most per second") if C else None


def _most(seen: _Seen, fit: curve.Fit, levels: Sequence[int], wide: Sequence[Floats]) -> int | None:
    """That of the affordable levels C whose measurement would narrow what is asked most per second.

    The bootstrap curves disagree by var(ln X(C)) there and by var(ln Q) about the quantity Q; a level measured with
    the relative error s (`_adds`) takes cov²/(var + s²) off the latter (the linear update of a normal ensemble).
    That is divided by the seconds that the level would take. Q is the first of `wide`, or the hinge.
    """
    draws = fit.draws
    assert draws is not None
    candidates = [C for C in levels if _affordable(seen, C)]
    if not candidates:
        return None
    N = np.interp(candidates, list(seen.times), seen.N) * np.maximum(1.0, np.array(candidates) / max(seen.times))
    L = np.log(draws.throughput(N))
    L = L - L.mean(0)
    s2 = _adds(seen, fit, candidates, N)
    far = np.array([_FAR * seen.N[-1]])
    if not wide and not _settled(fit):
        gain = _flatter(seen, draws, N)
    else:
        Q = wide[0] if wide else draws.hinge  # the hinge comes first
        q = np.log(np.where(np.isfinite(Q), Q, far if Q is draws.hinge else draws.throughput(far)[:, 0]))
        q = q - q.mean()
        gain = (L.T @ q / len(q)) ** 2 / (np.mean(L**2, axis=0) + s2)
    value = gain / [_cost(seen, C) for C in candidates]
    good = [C for C, v in zip(candidates, value, strict=True) if v >= _AS_GOOD * value.max()]
    return min(good, key=lambda C: (seen.times.get(C, 0), -value[candidates.index(C)]))


def _adds(seen: _Seen, fit: curve.Fit, levels: Sequence[int], N: Floats) -> Floats:
    """Square of the relative error with which one more holding of each level counts, shape [levels].

    Its own error and what the family lacks there, which is more at low N. Holding a level again narrows the former
    only: n holdings have the variance v(n) = s²/n + τ², and the next one is worth 1/v(n + 1) - 1/v(n).
    """
    of = fit.curve.parameters
    B = np.array(min(of["a"] / (1 / of["P"] - of["b"]), _FAR * seen.N[-1]) if "P" in of else _FAR * seen.N[-1])
    tau2 = of.get("lack_of_fit", 0.0) ** 2 + (of.get("lack_of_fit_low", 0.0) * excused(N, B)) ** 2
    n, own = np.array([seen.times.get(C, 0) for C in levels]), _typical(seen) ** 2
    again, now = own / (n + 1) + tau2, own / np.maximum(n, 1) + tau2
    return np.where(n > 0, again * now / np.where(n > 0, now - again, 1.0), again)


def _flatter(seen: _Seen, draws: curve.Draws, N: Floats) -> Floats:
    """Share that a level of N would take off the variance of the elasticity past the hinge: s²/Σ(ln N - mean)²."""
    edge = _PAST * float(np.median(draws.hinge))
    past = [n for n, times in zip(seen.N, seen.times.values(), strict=True) for _ in range(times) if n >= edge]
    if not past:
        return np.zeros(len(N))
    x = np.log(past)
    had = float(np.sum((x - x.mean()) ** 2)) + _LEVER
    more = len(x) / (len(x) + 1) * (np.log(N) - x.mean()) ** 2
    return np.asarray(np.where(edge <= N, more / (had + more), 0.0))


def _higher(seen: _Seen, draws: curve.Draws, wide: Sequence[Floats]) -> Next | None:
    """Up, where the hinge most likely lies beyond the last level, or is known but too near to it for a plateau."""
    sure, up = _below_last(seen, draws), _up(seen)
    if up <= seen.highest or sure >= (0.5 if wide else _SURE):
        return None
    return _hold(seen, up, f"the hinge lies below {_BELOW_LAST * seen.N[-1]:.3g} with {sure:.0%} only: up to {up}")


def _out_of_reach(seen: _Seen, draws: curve.Draws) -> bool:
    """Whether throughput most likely still rises at the highest level allowed; a few levels make sure of it."""
    return _up(seen) <= seen.highest and _below_last(seen, draws) < 0.5 and seen.refined >= DRIFT


def _up(seen: _Seen) -> int:
    """The next level above the highest, which this is itself where none is allowed or worth it."""
    up = min(math.ceil(seen.highest * math.sqrt(2)), seen.top)
    if any(h.concurrency == seen.top + 1 for h in seen.held):  # which failed: halfway there, not right below it
        up = min(up, round(math.sqrt(seen.highest * (seen.top + 1))))
        return up if up >= _WORTH * seen.highest else seen.highest
    return up


def _found(seen: _Seen, fit: curve.Fit, draws: curve.Draws) -> str:
    """The answer so far in words."""
    if not math.isfinite(np.median(draws.hinge)):
        return f"throughput still rises at {max(seen.times)}"
    falls = ", past which it falls" if fit.curve.dip is not None else ", and is not reached"
    reached = "" if fit.curve.plateau_reached else falls
    hinge, plateau = _percent(_width(draws.hinge)), _percent(_width(draws.plateau))
    return f"the hinge is known to {hinge} and the plateau to {plateau}{reached}"


def _width(draws: Floats) -> float:
    """Full width of the 95 % interval relative to the median."""
    lo, hi = curve.interval(draws)
    return (hi - lo) / float(np.median(draws)) if math.isfinite(hi) else math.inf


def _percent(width: float) -> str:
    return f"{width:.0%}" if math.isfinite(width) else "no upper end"


def _typical(seen: _Seen) -> float:
    """Relative error that a level has here."""
    errors = [h.se / h.output_tokens_per_s for h in seen.held if _counts(h) and h.se]
    return max(float(np.median(errors)), FLOOR) if errors else _ASSUMED


# What a level costs


def _hold(seen: _Seen, C: int, reason: str) -> Next | None:
    return Next(C, reason) if _affordable(seen, C) else None


def _affordable(seen: _Seen, C: int) -> bool:
    requests = max((h.requests / _c(h) for h in seen.held if _counts(h)), default=0.0) * C
    seconds, count = seen.search.seconds_left, seen.search.requests_left
    return (seconds is None or _cost(seen, C) <= seconds) and (count is None or requests <= count)


def _cost(seen: _Seen, C: int) -> float:
    """Seconds that a level of C would take: as the levels around it did, beyond them in proportion to C."""
    if not seen.times:
        return 0.0
    return float(np.interp(C, list(seen.times), seen.seconds)) * max(1.0, C / max(seen.times))


def _no_more(seen: _Seen) -> str:
    s = seen.search
    left = [f"{s.seconds_left:.3g} s"] if s.seconds_left is not None else []
    left += [f"{s.requests_left} requests"] if s.requests_left is not None else []
    return f"{' and '.join(left)} left do not suffice for a level that helps" if left else seen.bar


# The SLO, in concurrency or in rate


def _slo(seen: _Seen) -> Next:
    """Bisect in log C between the largest concurrency that met the SLO and the smallest that did not."""
    outcomes: dict[float, list[str]] = {}
    for h in seen.held:
        if h.slo is not None or not _counts(h):
            outcomes.setdefault(_c(h), []).append(_outcome(h))
    if not outcomes:
        return Next(None, "no level says anything about the SLO")
    edge = edge_of(outcomes)
    if seen.refined >= REFINEMENTS + SLO_LEVELS:
        return Next(None, told(edge, "in flight"))
    step: Next | None
    if edge.again is not None and edge.again <= seen.top:
        step = _hold(seen, int(edge.again), f"{edge.again:g} again: whether it meets the SLO is unresolved")
    elif edge.missed is None:
        assert edge.met is not None
        C = min(2 * int(edge.met), seen.top)
        if edge.met >= C:
            return Next(None, f"{told(edge, 'in flight')}, {seen.bar}")
        step = _hold(seen, C, f"the SLO is still met at {edge.met:g}: doubling")
    else:
        met = edge.met or 0.0
        if edge.missed <= max(met + 1, met * CLOSE):
            return Next(None, told(edge, "in flight"))
        C = min(max(round(math.sqrt(met * edge.missed)), int(met) + 1), math.ceil(edge.missed) - 1)
        step = _hold(seen, C, f"the SLO is met at {met:g} and not at {edge.missed:g}: {C} lies between")
    return step or Next(None, f"{told(edge, 'in flight')}; {_no_more(seen)}")


def _rate(held: Sequence[Held], search: Search) -> Next:
    """Double the rate until it misses the SLO or is unstable, then bisect; halve it where even the first misses."""
    if not held:
        first = _round(search.first_rate or 1.0)
        return Next(None, "the search begins with about one request in flight" if search.first_rate else "begin", first)
    outcomes: dict[float, list[str]] = {}
    for h in held:
        assert h.rate is not None
        outcomes.setdefault(h.rate, []).append(_outcome(h))
    edge = edge_of(outcomes)
    found = f"stopped: {told(edge, 'requests per second')}"
    if edge.again is not None:
        rate, reason = edge.again, f"{edge.again:g} again: whether it meets the SLO is unresolved"
    elif edge.missed is None:
        assert edge.met is not None
        rate, reason = _round(2 * edge.met), f"{edge.met:g} requests per second are met: doubling"
    elif edge.met is None:
        rate, reason = _round(edge.missed / 2), f"{edge.missed:g} requests per second are not met: half of it"
    elif edge.missed <= CLOSE * edge.met:
        return Next(None, found)
    else:
        rate = _round(math.sqrt(edge.met * edge.missed))
        reason = f"the SLO is met at {edge.met:g} and not at {edge.missed:g}: {rate:g} lies between"
    last = held[-1]
    assert last.rate is not None
    if len(held) >= REFINEMENTS + SLO_LEVELS:
        return Next(None, f"{found}; {len(held)} levels were held")
    if search.seconds_left is not None and last.seconds > search.seconds_left:
        return Next(None, f"{found}; {search.seconds_left:.3g} s left do not suffice for another level")
    if search.requests_left is not None and last.requests / last.rate * rate > search.requests_left:
        return Next(None, f"{found}; {search.requests_left} requests left do not suffice for another level")
    return Next(None, reason, rate)


def _outcome(h: Held) -> str:
    """Met, missed or unresolved; without an SLO, what is stable meets it."""
    if h.unstable or h.error_rate > ERRORS:
        return "missed"
    return (h.slo or "met") if h.valid else "unresolved"


def _round(rate: float) -> float:
    """Three digits are enough for a rate.

    >>> _round(22.6274)
    22.6
    """
    return float(f"{rate:.3g}")
