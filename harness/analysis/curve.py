"""The curve through the levels, and its knees, each with a 95 % interval (docs/method.md, The fit).

The levels become distinct points (`pool`), the points a curve of one of three families (`hyperbolas`), and the curve
its knees. The intervals are a parametric bootstrap's: each draw adds the levels' errors, lack of fit included, to a
curve and is then fitted, reweighted and selected all over. That curve is of one of the families, as often as its Akaike
weight says (Buckland et al. 1997): drawn around the chosen one alone, a dip that was narrowly missed would leave no
trace in the interval of the plateau, and of dips with 5 % noise that looked flat it would cover the truth in 75 %.

A dip needs more evidence. It takes part only where 3 levels lie past its hinge, which is decided once, on the measured
levels. Chosen, it is confirmed only where 2 levels past the hinge were measured twice and the interval of its depth
excludes 0; else there is a verdict and no figure. USL, the other curve that falls, is computed for comparison and never
chosen.

Left out: choosing the next level (`ramp`), and why throughput falls (`verdicts.curve`, which knows the levels).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis import collapse, conclusion, hyperbolas
from harness.analysis.collapse import Collapse
from harness.analysis.conclusion import Conclusion, past
from harness.analysis.hyperbolas import COEFFICIENTS, Curves, Solved, criterion, leaving_out_each, solve, taken
from harness.analysis.points import FEWEST, PooledLevels, pool
from harness.analysis.points import Point as Point
from harness.analysis.points import points_of as points_of
from harness.analysis.stats import Z95, t_quantile
from harness.analysis.table import Floats
from harness.analysis.verdicts.curve import (
    dip_unconfirmed,
    knee_not_identifiable,
    plateau_not_reached,
    throughput_collapses,
)
from harness.judgement import Code
from harness.summary import BEYOND, FOUND, PROVISIONAL, Curve, Knees, Value, Verdict

MORE_LEVELS = 3  # than coefficients, that a family needs
DIP_LEVELS, DIP_REPEATED, TWICE = 3, 2, 2  # past its hinge: to take part; of these, measured twice, to be confirmed

_CORNERS = 4  # of so many draws without a corner one has it

Draws = Curves  # of the bootstrap: what else the measured levels may have meant
HYPERBOLA, CAPPED, DIP, FAMILIES = hyperbolas.HYPERBOLA, hyperbolas.CAPPED, hyperbolas.DIP, hyperbolas.FAMILIES


class Fit(msgspec.Struct, frozen=True):
    curve: Curve
    knees: Knees
    draws: Draws | None = None  # None where no family can be fitted


def throughput(curve: Curve, N: Floats) -> Floats:
    """Output tok/s of the fitted curve at N in flight, shape of N; nan where no family was identified.

    X = N / (max(a + bN, N/P) + d·N·ln(N/B)₊), B = a/(1/P - b); without P the hyperbola.
    """
    if curve.family is None:
        return np.full(np.shape(N), np.nan)
    a, b, P, d = (curve.parameters.get(name, other) for name, other in (("a", 0), ("b", 0), ("P", math.inf), ("d", 0)))
    y = np.maximum(a + b * N, N / P)
    if d:
        y = y + d * N * np.log(np.maximum(1.0, N * (1 / P - b) / a))
    return np.asarray(N / y)


def fit(points: Sequence[Point], *, seed: int = 0, draws: int = 400) -> Fit:
    """The curve through the valid points and its knees, with 95 % intervals by parametric bootstrap.

    A draw that comes out a hyperbola has its hinge at infinity. Knees and hinge_concurrency are given on the axis of
    C; parameters and draws stay on that of N. Fewer draws are a cheaper fit: 100 suffice to choose a level by.
    """
    levels = pool(points)
    N = levels.N
    if len(N) < FEWEST[HYPERBOLA]:
        return _unfitted(levels)
    best, refused = _best(levels)
    if fall := collapse.find(levels, best):
        return _below(fall, fit([p for p in points if p.concurrency < fall.at], seed=seed, draws=draws))
    best = _cornered(N, best)
    rng = np.random.default_rng(seed)
    many = _bootstrap(levels, best, draws, rng)
    one, all_ = _derived(best.chosen, N), _derived(many.chosen, N)
    lacking = _lacking_at_one(best, N, draws, rng)
    all_ |= {name: all_[name] * lacking for name in ("single", "slope")}

    family = int(best.chosen.family[0])
    depth = _value(levels, one, all_, "depth") if family == DIP else Value(None)
    unconfirmed = _unconfirmed(levels, best.chosen, depth) if family == DIP else refused
    dip = family == DIP and not unconfirmed
    found = conclusion.of_fit(levels, best, many.chosen, dip=dip)
    bends = found.state != BEYOND
    if bends and family == HYPERBOLA:
        one, all_ = _without_corner(levels, best, one, all_, rng)
    value = functools.partial(_value, levels, one, all_)
    rises = not conclusion.flat(levels, best.chosen)  # else no level tells how it rises
    hinge = value("hinge", on_c=True) if bends or np.isfinite(all_["hinge"]).mean() > 0 else Value(None)
    if family == HYPERBOLA and hinge.ci95 and rises:
        hinge = Value(hinge.value, (hinge.ci95[0], None))  # a hyperbola need not have a corner anywhere
    curve = Curve(
        state=found.state,
        reasons=found.reasons,
        settle=found.settle,
        at_least_concurrency=found.at_least,
        expected_concurrency=found.expected,
        expected_by="asymptote" if found.expected is not None else None,
        family=FAMILIES[family],
        single_stream_tokens_per_s=value("single"),
        slope_tokens_per_s=value("slope") if rises else Value(None),
        hinge_concurrency=hinge,
        plateau_tokens_per_s=value("plateau") if bends else Value(None),
        plateau_reached=found.state == FOUND and not dip,
        dip=depth if dip else None,
        asymptote_tokens_per_s=value("most") if family == HYPERBOLA else None,
        usl=_usl(levels, best),
        weights=dict(zip(FAMILIES, _weights(best).tolist(), strict=False)),
        parameters=_parameters(levels, best),
        verdicts=_verdicts(levels, found, depth, unconfirmed),
    )
    knees = Knees(
        hinge=hinge if bends else None,
        plateau95=value("plateau95", on_c=True) if bends else None,
        half_point=value("half", on_c=True) if bends and rises else None,
        peak=hinge if found.state == FOUND else None,  # the least load that gives the most, dip or none
    )
    return Fit(curve, knees, many.chosen)


def _lacking_at_one(best: Solved, N: Floats, draws: int, rng: np.random.Generator) -> Floats:
    """Factors of the draws at N = 1: what the family lacks at low N it lacks there, and at the slope there, too."""
    low = best.tau_low[0] if N[0] < best.chosen.hinge[0] / 4 else 0.0
    factors: Floats = np.exp(rng.normal(0.0, 1.0, draws) * low)
    return factors


def _below(fall: Collapse, found: Fit) -> Fit:
    """The fit of the levels below a collapse, with the knee that is left of it."""
    curve = collapse.bounded(found.curve, found.draws, fall)
    few = [verdict for verdict in curve.verdicts if verdict.code == Code.KNEE_NOT_IDENTIFIABLE]
    X, below, at = fall.levels.X, len(fall.below.X), fall.levels.C
    low = below + int(np.argmin(X[below:]))
    fell = throughput_collapses(float(X.max()), float(at[np.argmax(X)]), float(X[low]), float(at[low]), fall.at)
    others = {"plateau95": found.knees.plateau95, "half_point": found.knees.half_point}
    bounded = {name: collapse.up_to(each, fall.at) for name, each in others.items() if each is not None}
    knee = curve.hinge_concurrency
    draws = found.draws and collapse.bounded_draws(found.draws, fall, rises=found.curve.state == BEYOND)
    return Fit(
        msgspec.structs.replace(curve, verdicts=[*few, fell]),
        msgspec.structs.replace(
            found.knees, hinge=knee, peak=knee if found.knees.peak is not None else None, **bounded
        ),
        draws,
    )


def _verdicts(levels: PooledLevels, found: Conclusion, depth: Value, unconfirmed: list[str]) -> list[Verdict]:
    n = len(levels.N)
    few = [knee_not_identifiable(n, conclusion.LEVELS)] if n < conclusion.LEVELS else []
    dip = [dip_unconfirmed(depth.value, unconfirmed)] if unconfirmed else []
    rises = [plateau_not_reached(found.reasons, float(levels.N[-1]))] if found.state != FOUND else []
    return few + dip + rises


def _value(
    levels: PooledLevels, one: dict[str, Floats], all_: dict[str, Floats], name: str, *, on_c: bool = False
) -> Value:
    """The figure of the fitted curve with its interval; an end that is unbounded is None."""
    lo, hi = interval(all_[name])
    if name == "hinge":
        lo = min(lo, float(levels.N[-1]))  # an infinite hinge only means "beyond the last level"
    at = float(one[name][0])
    ends = [_end(levels.concurrency_at(x) if on_c else x) for x in (at, min(lo, at), max(hi, at))]
    return Value(ends[0], (ends[1], ends[2]))


def _without_corner(
    levels: PooledLevels, best: Solved, one: dict[str, Floats], all_: dict[str, Floats], rng: np.random.Generator
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The figures of a hyperbola that is as good as flat where the levels end, as of a hinge and a plateau.

    Where all levels are alike the hinge is at the first one or below. Else it is where the hyperbola has 95 % of
    what it tends to; where that lies beyond the levels, the hinge of the capped hyperbola, which fits hardly worse,
    and where there are too few levels for one, where a line reaches the last throughput. Such a bend looks like a
    corner in the last gap, so some draws have one there: a line up to the last throughput.
    """
    N = levels.N
    one, all_ = (
        figures
        | {"most95": np.maximum(figures["most95"], N[0]), "half_of_most": np.maximum(figures["half_of_most"], N[0] / 2)}
        for figures in (one, all_)
    )  # nothing below the first level was measured
    saturated = {"hinge": "most95", "plateau95": "most95", "plateau": "most", "half": "half_of_most"}
    all_ = all_ | {name: np.where(np.isinf(all_["hinge"]), all_[of], all_[name]) for name, of in saturated.items()}
    if conclusion.flat(levels, best.chosen):
        return one | {name: one[of] for name, of in saturated.items()}, all_
    some = np.arange(0, len(all_["hinge"]), _CORNERS)
    corner = levels.X[-1] * np.exp(rng.normal(0.0, 1.0, len(some)) * levels.sigma[-1] * levels.widening[-1])
    for name, x in (("plateau", corner), ("hinge", np.minimum(corner * N[-2] / levels.X[-2], N[-1]))):
        all_[name] = np.array(all_[name])
        all_[name][some] = x
    if one["most95"][0] > N[-1] or len(best.fits) <= CAPPED:
        capped = _derived(best.fits[CAPPED], N) if len(best.fits) > CAPPED else _line_to_the_last(levels)
        return one | {name: capped[name] for name in saturated}, all_
    return one | {name: one[of] for name, of in saturated.items()}, all_


def _line_to_the_last(levels: PooledLevels) -> dict[str, Floats]:
    """The figures of levels too few to fit a corner, whose asymptote may be twice what any of them gave."""
    hinge = np.array([conclusion.corner_in_the_last_gap(levels)])
    return {"hinge": hinge, "plateau95": 0.95 * hinge, "plateau": levels.X[-1:], "half": 0.5 * hinge}


def _bootstrap(levels: PooledLevels, best: Solved, draws: int, rng: np.random.Generator) -> Solved:
    """`draws` data sets that the levels might have given, each solved."""
    N, n, k = levels.N, len(levels.N), COEFFICIENTS[len(best.fits) - 1]
    # A lack of fit is only known from as many levels as the family leaves.
    unsure = best.tau[0] * t_quantile(0.975, max(n - k, 1)) / Z95
    error = np.sqrt(np.maximum(best.sigma[0] ** 2 - best.tau[0] ** 2, 0.0))
    noise = rng.normal(0.0, 1.0, (draws, n)) * np.hypot(error * levels.widening, unsure)
    parents = np.concatenate([found.y(N) for found in best.fits])
    which = rng.choice(len(parents), draws, p=_weights(best))
    return _cornered(N, _solve(levels, parents[which] * np.exp(noise), len(best.fits) - 1))


def _cornered(N: Floats, solved: Solved) -> Solved:
    """The fits with the capped hyperbola for every hyperbola that is as good as flat where the levels end.

    A tie goes to the simpler family, but a tail that no longer rises is what the corner is for: where 95 % of the
    asymptote lies inside the levels, a corner in their lower half that fits no worse is taken. What few levels charge a
    third coefficient does not count there.
    """
    if len(solved.fits) <= CAPPED:
        return solved
    chosen, score, last = solved.chosen, solved.score, N[-1]
    with np.errstate(divide="ignore"):
        bend = conclusion.HALF_POINTS * chosen.a / chosen.b
    # With the bend at the first level or below it all levels are alike, and none bends.
    flat = (chosen.family == HYPERBOLA) & (bend < last) & (bend > N[0])
    charged = criterion(np.zeros((1, 2)), np.array(COEFFICIENTS[: CAPPED + 1]), len(N))[0]
    worse = score[:, CAPPED] - score[:, HYPERBOLA] > charged[CAPPED] - charged[HYPERBOLA]
    corner = flat & ~worse & (solved.fits[CAPPED].hinge < last / 2)
    which = np.where(corner, CAPPED, chosen.family)
    return msgspec.structs.replace(solved, chosen=taken(solved.fits, which))


def _solve(levels: PooledLevels, Y: Floats, richest: int) -> Solved:
    return solve(levels.N, Y, levels.sigma, richest, excuse_low=not levels.assumed.all())


def _weights(best: Solved) -> Floats:
    """Akaike weight of every family admitted, from the scores; 0 where it is lost in the rounding of their sum."""
    weights = np.exp((best.score[0].min() - best.score[0]) / 2)
    weights[weights < np.finfo(float).eps] = 0.0  # 1e-263 says no more, and readers of the file refuse it
    return np.asarray(weights / weights.sum())


def _best(levels: PooledLevels) -> tuple[Solved, list[str]]:
    """The measured levels' own fit, with the families that they admit: n >= k + 3, a dip also by the levels past it.

    With 4 and 5 levels the capped hyperbola takes part too, for a provisional answer. The second value: why a dip
    that would have been chosen was not admitted.
    """
    N, Y, n = levels.N, (levels.N / levels.X)[None], len(levels.N)
    richest = max(family for family, k in enumerate(COEFFICIENTS) if n >= k + MORE_LEVELS or family == HYPERBOLA)
    if n >= FEWEST[CAPPED]:
        richest = max(richest, CAPPED)
    best = _solve(levels, Y, richest)
    beyond = int(np.count_nonzero(past(N, float(best.fits[-1].hinge[0]))))
    if richest < DIP or beyond >= DIP_LEVELS:
        return best, []
    refused = (
        [f"{beyond} level{'s' * (beyond != 1)} past the knee, {DIP_LEVELS} are needed"]
        if best.chosen.family[0] == DIP
        else []
    )
    return _solve(levels, Y, CAPPED), refused


# What follows from the coefficients


def _derived(s: Curves, N: Floats) -> dict[str, Floats]:
    """What has an interval, each [D] and on the axis of N; inf where there is none."""
    P, last = s.plateau, N[-1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        half, most = (  # N/(a + bN) = f·P
            np.where(np.isinf(P), np.inf, f * P * s.a / (1 - f * P * s.b)) for f in (0.5, 0.95)
        )
        depth = np.where(s.family == DIP, 1 - s.throughput(last)[:, 0] / P, 0.0)
        most_of_all = np.where(np.isinf(P), 1 / s.b, P)  # what no load exceeds
        bend = s.a / s.b  # N where a hyperbola has half of it
    return {
        "single": s.throughput(np.ones(1))[:, 0], "slope": 1 / s.a, "hinge": s.hinge, "plateau": P, "half": half,
        "plateau95": most, "depth": depth, "most": most_of_all, "half_of_most": bend,
        "most95": conclusion.HALF_POINTS * bend,
    }  # fmt: skip


def _parameters(levels: PooledLevels, best: Solved) -> dict[str, float]:
    """Coefficients of the chosen family, drift, lack of fit, and the leave-one-out error, relative rms.

    The last is the error at each level of the family fitted, with the same weights, to all the others.
    """
    N, chosen, family = levels.N, best.chosen, int(best.chosen.family[0])
    found = {"a": float(chosen.a[0]), "b": float(chosen.b[0])}
    if family >= CAPPED:
        found["P"] = float(chosen.plateau[0])
    if family == DIP:
        found["d"] = float(chosen.d[0])
    if levels.assumed.any():
        found["error_scale"] = levels.scale
    found |= {"drift": levels.drift, "lack_of_fit": float(best.tau[0]), "lack_of_fit_low": float(best.tau_low[0])}
    y = best.y[0]
    others = leaving_out_each(N, y, best.weights[0], family)
    return found | {"leave_one_out": float(np.sqrt(np.mean((np.diagonal(others.y(N)) / y - 1) ** 2)))}


def _usl(levels: PooledLevels, best: Solved) -> dict[str, float] | None:
    """y = a + bN + kN² (Gunther's USL) under the same weights; None below 6 levels. Never chosen.

    Its peak is at N = √(a/k). The score compares with those that the families were chosen by.
    """
    N, n = levels.N, len(levels.N)
    if n < 3 + MORE_LEVELS:
        return None
    w = np.sqrt(best.weights[0])
    powers = np.vander(N / N[-1], 3, increasing=True)
    x, *_ = np.linalg.lstsq(powers * w[:, None], best.y[0] * w, rcond=None)
    chi2 = np.sum((w * (best.y[0] - powers @ x)) ** 2)
    a, b, k = (float(v) for v in x / N[-1] ** np.arange(3))
    found = {"a": a, "b": b, "k": k}
    if k > 0 and a > 0:
        found["peak_concurrency"] = levels.concurrency_at(math.sqrt(a / k))
    score = criterion(chi2[None, None], np.array([3]), n)
    return found | {"score": float(score[0, 0])}


def interval(draws: Floats) -> tuple[float, float]:
    """2.5 % and 97.5 % of the draws, outwards to the next draw, since infinities do not interpolate."""
    ordered = np.sort(draws)
    last = len(ordered) - 1
    return float(ordered[math.floor(0.025 * last)]), float(ordered[math.ceil(0.975 * last)])


def _end(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _unconfirmed(levels: PooledLevels, chosen: Curves, depth: Value) -> list[str]:
    """Why a dip that was chosen is not confirmed; empty: it is."""
    beyond = past(levels.N, float(chosen.hinge[0]))
    repeated = int(np.count_nonzero(levels.times[beyond] >= TWICE))
    reasons = []
    if repeated < DIP_REPEATED:
        reasons.append(
            f"{repeated} level{'s' * (repeated != 1)} past the knee measured twice, {DIP_REPEATED} are needed"
        )
    if not depth.ci95 or not depth.ci95[0] or depth.ci95[0] <= 0:
        reasons.append("its 95 % interval includes 0")
    return reasons


def _unfitted(levels: PooledLevels) -> Fit:
    """The result of fewer levels than any family needs."""
    n, found, nothing = len(levels.N), conclusion.of_few(levels), Value(None)
    bends = found.state == PROVISIONAL
    bend = conclusion.bend_of_few(levels) if bends else 0.0
    past_it = levels.X[1:] if bends and bend > levels.N[0] else levels.X
    curve = Curve(
        state=found.state,
        reasons=found.reasons,
        settle=found.settle,
        at_least_concurrency=found.at_least,
        family=None,
        single_stream_tokens_per_s=nothing,
        hinge_concurrency=Value(levels.concurrency_at(bend), (None, None)) if bends else nothing,
        plateau_tokens_per_s=Value(float(past_it.mean()), (None, None)) if bends else nothing,
        plateau_reached=False,
        dip=None,
        weights={},
        parameters={},
        verdicts=[knee_not_identifiable(n, conclusion.LEVELS)],
    )
    return Fit(curve, Knees(hinge=curve.hinge_concurrency if bends else None))
